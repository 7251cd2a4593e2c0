// CUDA's built-ins for g++: one fiber per thread of a block, blocks one after another.
//
// A fiber runs until it waits for others, at a barrier or at an exchange within its warp; then the next one runs. When none can
// go on, the launch ends with an error. Shared memory is static memory of the library, so a library runs one launch
// at a time; the caller sees to that.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define __constant__ static const
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 { unsigned x, y, z; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulated {

const unsigned MOST_THREADS = 1024, STACK = 64 << 10, MOST_DYNAMIC = 232 << 10;

#if defined(__x86_64__)
typedef void* Context;
// Saves what a call must preserve, and goes on where `to` was saved.
__attribute__((naked, noinline)) static void swap(Context* from, Context* to) {
  __asm__ volatile(
      "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15;"
      "mov %rsp, (%rdi); mov (%rsi), %rsp;"
      "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");
}
static void prepare(Context* context, char* stack, void (*entry)()) {
  void** top = (void**)(stack + STACK);
  *--top = nullptr;
  *--top = (void*)entry;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  *context = top;
}
#else
typedef ucontext_t Context;
static void swap(Context* from, Context* to) { swapcontext(from, to); }
static void prepare(Context* context, char* stack, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = STACK;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}
#endif

struct Warp {
  unsigned exists, arrived;
  uint64_t in[32], out[32];
  unsigned generation[32];
};

static struct {
  Context main, fibers[MOST_THREADS];
  dim3 thread[MOST_THREADS];
  unsigned next[MOST_THREADS], before[MOST_THREADS];
  Warp warps[MOST_THREADS / 32];
  // What a group of the block waits for at its own barrier, by the barrier's number; 0 is everybody's.
  unsigned waiting[16], passed[16];
  unsigned current, alive, threads, idle;
  bool stuck;
  void (*kernel)(const void*);
  const void* args;
  char* stacks;
  alignas(128) unsigned char shared[MOST_DYNAMIC];
} state;

static dim3 grid_dim, block_dim, block_index;

inline void* dynamic() { return state.shared; }

inline void go(unsigned next) {
  unsigned last = state.current;
  if (next == last) return;
  state.current = next;
  swap(&state.fibers[last], &state.fibers[next]);
}

// Lets the next fiber run. When all fibers were resumed several times and none made progress, it is a deadlock.
__attribute__((noinline)) static void yield() {
  if (++state.idle > 4 * state.threads + 64) {
    state.stuck = true;
    swap(&state.fibers[state.current], &state.main);
  }
  go(state.next[state.current]);
}

static void release(unsigned id) {
  state.waiting[id] = 0;
  state.passed[id]++;
  state.idle = 0;
}

// Waits for `count` threads at barrier `id`.
static void barrier(unsigned id, unsigned count) {
  unsigned passed = state.passed[id];
  if (++state.waiting[id] >= count) return release(id);
  while (state.passed[id] == passed) yield();
}

// Hands `value` to the lanes in `mask` and gets what they handed in: `out` of the warp.
__attribute__((noinline)) static const uint64_t* exchange(unsigned mask, uint64_t value) {
  Warp& warp = state.warps[state.current / 32];
  unsigned lane = state.current % 32;
  mask &= warp.exists;
  warp.in[lane] = value;
  warp.arrived |= 1u << lane;
  if ((warp.arrived & mask) == mask) {
    for (unsigned i = 0; i < 32; i++)
      if (mask >> i & 1) warp.out[i] = warp.in[i], warp.generation[i]++;
    warp.arrived &= ~mask;
    state.idle = 0;
  } else {
    unsigned generation = warp.generation[lane];
    while (warp.generation[lane] == generation) yield();
  }
  return warp.out;
}

static void entry() {
  state.kernel(state.args);
  unsigned at = state.current, next = state.next[at];
  state.alive--;
  state.idle = 0;
  if (state.alive == 0) {
    swap(&state.fibers[at], &state.main);
  }
  // A thread that has ended is not waited for.
  if (state.waiting[0] >= state.alive) release(0);
  state.next[state.before[at]] = next;
  state.before[next] = state.before[at];
  state.current = next;
  swap(&state.fibers[at], &state.fibers[next]);
  abort();
}

static const char* run_block(unsigned dynamic_bytes) {
  unsigned n = state.threads;
  memset(state.warps, 0, sizeof(Warp) * ((n + 31) / 32));
  memset(state.waiting, 0, sizeof(state.waiting));
  // Whoever reads shared memory before anyone wrote it reads NaN.
  memset(state.shared, 0xff, dynamic_bytes);
  for (unsigned i = 0; i < n; i++) {
    state.thread[i] = {i % block_dim.x, i / block_dim.x % block_dim.y, i / (block_dim.x * block_dim.y)};
    state.next[i] = i + 1 < n ? i + 1 : 0;
    state.before[i] = i > 0 ? i - 1 : n - 1;
    state.warps[i / 32].exists |= 1u << (i % 32);
    prepare(&state.fibers[i], state.stacks + (size_t)i * STACK, entry);
  }
  state.alive = n;
  state.current = state.idle = 0;
  state.stuck = false;
  swap(&state.main, &state.fibers[0]);
  return state.stuck ? "threads wait for each other" : nullptr;
}

}  // namespace emulated

// Runs a kernel; what went wrong, or null.
extern "C" const char* forerun_launch(void (*kernel)(const void*), const void* args, const unsigned* grid,
                                      const unsigned* block, unsigned dynamic_bytes) {
  using namespace emulated;
  unsigned threads = block[0] * block[1] * block[2];
  if (threads == 0 || threads > MOST_THREADS) return "a block has 1 to 1024 threads";
  if (dynamic_bytes > MOST_DYNAMIC) return "more dynamic shared memory than a block has";
  if (!state.stacks) {
    void* stacks = mmap(nullptr, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) return "no memory for stacks";
    state.stacks = (char*)stacks;
  }
  state.kernel = kernel;
  state.args = args;
  state.threads = threads;
  grid_dim = {grid[0], grid[1], grid[2]};
  block_dim = {block[0], block[1], block[2]};
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        block_index = {x, y, z};
        if (const char* why = run_block(dynamic_bytes)) return why;
      }
  return nullptr;
}

#define threadIdx (emulated::state.thread[emulated::state.current])
#define blockIdx (emulated::block_index)
#define blockDim (emulated::block_dim)
#define gridDim (emulated::grid_dim)

inline void __syncthreads() { emulated::barrier(0, emulated::state.alive); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulated::exchange(mask, 0); }
inline void __threadfence() {}

namespace emulated {
template <class T> uint64_t to_word(T x) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
  uint64_t word = 0;
  memcpy(&word, &x, sizeof(T));
  return word;
}
template <class T> T from_word(uint64_t word) {
  T x;
  memcpy(&x, &word, sizeof(T));
  return x;
}
template <class T> T shuffle(unsigned mask, T x, unsigned source) {
  return from_word<T>(exchange(mask, to_word(x))[source & 31]);
}
inline unsigned lane() { return state.current & 31; }
}  // namespace emulated

template <class T> T __shfl_sync(unsigned mask, T x, int source, int width = 32) {
  unsigned lane = emulated::lane();
  return emulated::shuffle(mask, x, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int other, int width = 32) {
  return emulated::shuffle(mask, x, emulated::lane() ^ other);
}
template <class T> T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32) {
  unsigned lane = emulated::lane();
  return emulated::shuffle(mask, x, (lane & (width - 1)) + by < (unsigned)width ? lane + by : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32) {
  unsigned lane = emulated::lane();
  return emulated::shuffle(mask, x, (lane & (width - 1)) >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int yes) {
  const uint64_t* all = emulated::exchange(mask, yes != 0);
  unsigned votes = 0;
  mask &= emulated::state.warps[emulated::state.current / 32].exists;
  for (unsigned i = 0; i < 32; i++) votes |= (mask >> i & 1 & (unsigned)all[i]) << i;
  return votes;
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, !yes) == 0; }

// Fibers do not interrupt each other.
template <class T> T atomicAdd(T* at, T x) { T old = *at; *at = old + x; return old; }
template <class T> T atomicMin(T* at, T x) { T old = *at; if (x < old) *at = x; return old; }
template <class T> T atomicMax(T* at, T x) { T old = *at; if (x > old) *at = x; return old; }
template <class T> T atomicOr(T* at, T x) { T old = *at; *at = old | x; return old; }
template <class T> T atomicExch(T* at, T x) { T old = *at; *at = x; return old; }
template <class T> T atomicCAS(T* at, T is, T then) { T old = *at; if (old == is) *at = then; return old; }

template <class T> T __ldg(const T* at) { return *at; }
template <class T> T __ldcs(const T* at) { return *at; }
template <class T> T __ldcg(const T* at) { return *at; }
template <class T> void __stcs(T* at, T x) { *at = x; }

inline unsigned __float_as_uint(float x) { return emulated::to_word(x); }
inline int __float_as_int(float x) { return (int)emulated::to_word(x); }
inline float __uint_as_float(unsigned x) { return emulated::from_word<float>(x); }
inline float __int_as_float(int x) { return emulated::from_word<float>((unsigned)x); }
inline long long __double_as_longlong(double x) { return (long long)emulated::to_word(x); }
inline double __longlong_as_double(long long x) { return emulated::from_word<double>((uint64_t)x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }

inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float sqrtf(float x) { return __builtin_sqrtf(x); }
inline float fabsf(float x) { return __builtin_fabsf(x); }
inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
inline float rintf(float x) { return __builtin_rintf(x); }
inline float floorf(float x) { return __builtin_floorf(x); }
inline float truncf(float x) { return __builtin_truncf(x); }
inline bool isnan(float x) { return x != x; }
inline bool isinf(float x) { return __builtin_isinf(x); }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
