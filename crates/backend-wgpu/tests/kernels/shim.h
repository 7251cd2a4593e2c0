// Enough of Metal's standard library to run a compute kernel on the host: one fiber for each thread of a threadgroup.
#pragma once
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define kernel
#define device
#define thread
#define threadgroup
#define constant const

namespace host {
struct Fiber { ucontext_t context; std::vector<char> stack; bool done = false; };
inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline size_t current, arrived, generation;
inline std::function<void(size_t)> body;

inline void yield() { swapcontext(&fibers[current].context, &scheduler); }
inline void barrier() {
  size_t mine = generation;
  if (++arrived == fibers.size()) { arrived = 0; generation++; return; }
  while (generation == mine) yield();
}
inline void begin() {
  size_t number = current;
  body(number);
  fibers[number].done = true;
  yield();
}
// Runs a threadgroup; ends the process where some threads wait at a barrier that others never reach.
inline void run(size_t threads, std::function<void(size_t)> what) {
  body = what;
  fibers.assign(threads, Fiber());
  arrived = 0;
  for (auto& fiber : fibers) {
    fiber.stack.resize(64 << 10);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, begin, 0);
  }
  for (size_t left = threads; left > 0;) {
    size_t before = generation, ended = 0;
    for (current = 0; current < threads; current++) {
      if (fibers[current].done) continue;
      swapcontext(&scheduler, &fibers[current].context);
      ended += fibers[current].done;
    }
    left -= ended;
    if (ended == 0 && generation == before) { fprintf(stderr, "a barrier that not all threads reach\n"); exit(3); }
  }
}
}

namespace metal {
using uint = uint32_t;
template <class T, int N> struct Lanes;
template <class T> struct alignas(2 * sizeof(T)) Lanes<T, 2> {
  T x, y;
  Lanes() = default;
  explicit Lanes(T a) : x(a), y(a) {}
  Lanes(T a, T b) : x(a), y(b) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) Lanes<T, 3> {
  T x, y, z;
  Lanes() = default;
  explicit Lanes(T a) : x(a), y(a), z(a) {}
  Lanes(T a, T b, T c) : x(a), y(b), z(c) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
template <class T> struct alignas(4 * sizeof(T)) Lanes<T, 4> {
  T x, y, z, w;
  Lanes() = default;
  explicit Lanes(T a) : x(a), y(a), z(a), w(a) {}
  Lanes(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  T& operator[](int i) { return (&x)[i]; }
  const T& operator[](int i) const { return (&x)[i]; }
};
#define LANEWISE(op) \
  template <class T, int N> Lanes<T, N> operator op(Lanes<T, N> a, Lanes<T, N> b) { \
    for (int i = 0; i < N; i++) a[i] = T(a[i] op b[i]); \
    return a; \
  } \
  template <class T, int N> Lanes<T, N> operator op(Lanes<T, N> a, T b) { return a op Lanes<T, N>(b); }
LANEWISE(+) LANEWISE(-) LANEWISE(*) LANEWISE(/)
#define METAL_BITS(op) \
  template <int N> Lanes<uint, N> operator op(Lanes<uint, N> a, Lanes<uint, N> b) { \
    Lanes<uint, N> r; for (int i = 0; i < N; i++) r[i] = a[i] op b[i]; return r; \
  }
METAL_BITS(&) METAL_BITS(>>)
template <class T, int N> Lanes<T, N>& operator-=(Lanes<T, N>& a, Lanes<T, N> b) { return a = a - b; }
template <class T, int N> Lanes<bool, N> operator==(Lanes<T, N> a, Lanes<T, N> b) {
  Lanes<bool, N> same;
  for (int i = 0; i < N; i++) same[i] = a[i] == b[i];
  return same;
}
template <int N> bool all(Lanes<bool, N> a) {
  for (int i = 0; i < N; i++) if (!a[i]) return false;
  return true;
}
using float2 = Lanes<float, 2>; using float3 = Lanes<float, 3>; using float4 = Lanes<float, 4>;
using uint2 = Lanes<uint, 2>; using uint3 = Lanes<uint, 3>; using uint4 = Lanes<uint, 4>;
template <class T> T select(T a, T b, bool c) { return c ? b : a; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }
template <class T, int N> Lanes<T, N> min(Lanes<T, N> a, Lanes<T, N> b) {
  for (int i = 0; i < N; i++) a[i] = min(a[i], b[i]);
  return a;
}
template <class T> T clamp(T x, T low, T high) { return min(max(x, low), high); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
template <int N> Lanes<float, N> fma(Lanes<float, N> a, Lanes<float, N> b, Lanes<float, N> c) {
  for (int i = 0; i < N; i++) a[i] = std::fma(a[i], b[i], c[i]);
  return a;
}
inline float abs(float x) { return std::fabs(x); }
inline float floor(float x) { return std::floor(x); }
inline float sqrt(float x) { return std::sqrt(x); }
enum class mem_flags { mem_none, mem_device, mem_threadgroup };
inline void threadgroup_barrier(mem_flags) { host::barrier(); }
struct atomic_uint { uint value; };
enum memory_order { memory_order_relaxed };
inline bool atomic_compare_exchange_weak_explicit(atomic_uint* at, uint* expected, uint desired, memory_order, memory_order) {
  if (at->value == *expected) { at->value = desired; return true; }
  *expected = at->value;
  return false;
}
inline void atomic_store_explicit(atomic_uint* at, uint value, memory_order) { at->value = value; }
}
template <class To, class From> To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
using metal::uint; using metal::uint2; using metal::uint3; using metal::uint4;
using metal::float2; using metal::float3; using metal::float4;

// Buffers by binding, of any length.
inline std::vector<uint32_t> buffers[32];
inline void read_buffers(const char* path) {
  FILE* file = fopen(path, "rb");
  uint32_t head[2];
  while (file && fread(head, 4, 2, file) == 2) {
    buffers[head[0]].resize(head[1]);
    if (fread(buffers[head[0]].data(), 4, head[1], file) != head[1]) exit(4);
  }
  fclose(file);
}
inline void write_buffer(const char* path, int binding) {
  FILE* file = fopen(path, "wb");
  fwrite(buffers[binding].data(), 4, buffers[binding].size(), file);
  fclose(file);
}
