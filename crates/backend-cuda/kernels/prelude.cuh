// Included by every family.
//
// Numerics: kernels are compiled without contraction (--fmad=false, -ffp-contract=off): a product and a sum are
// rounded apart unless the text says fmaf. Division and square roots are rounded to nearest. No library function is
// called. So a GPU and the CPU compute the same bits.
//
// FORERUN_EMULATED: the text is compiled with g++ after emulated.h, which has the C++ twins of what CUDA has built in.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;

// Programmatic dependent launch: a kernel's blocks may start when all blocks of the kernel ahead have, which hides the time
// of a launch. KERNEL waits for the results of the kernel ahead before it does anything; OVERLAPPED_KERNEL calls
// `let_next_start` and `wait_for_previous` itself, and before the latter reads nothing but weights.
#if !defined(FORERUN_EMULATED) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
__device__ inline void wait_for_previous() {}
__device__ inline void let_next_start() {}
#endif
// Brings a line to the cache that all multiprocessors share, which holds whatever is written meanwhile, too.
#ifdef FORERUN_EMULATED
__device__ inline void prefetch(const void*) {}
#else
__device__ __forceinline__ void prefetch(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"((u64)__cvta_generic_to_global(at)));
}
#endif

#ifdef FORERUN_EMULATED
// A kernel: its thread's body, and an entry that the emulation finds by name.
#define KERNEL(name, Args, threads)                                             \
  static void name##_thread(const Args& a);                                     \
  extern "C" void name(const void* args) { name##_thread(*(const Args*)args); } \
  extern "C" const u32 name##_bytes;                                            \
  const u32 name##_bytes = sizeof(Args);                                        \
  static void name##_thread(const Args& a)
#define OVERLAPPED_KERNEL KERNEL
// Dynamic shared memory.
#define DYNAMIC_SHARED(type, name) type* name = (type*)emulated::dynamic()
#else
#define OVERLAPPED_KERNEL(name, Args, threads) \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Args a)
#define KERNEL(name, Args, threads)                          \
  static __device__ __forceinline__ void name##_thread(const Args& a); \
  OVERLAPPED_KERNEL(name, Args, threads) {                   \
    let_next_start();                                        \
    wait_for_previous();                                     \
    name##_thread(a);                                        \
  }                                                          \
  static __device__ __forceinline__ void name##_thread(const Args& a)
extern __shared__ __align__(128) unsigned char forerun_dynamic[];
#define DYNAMIC_SHARED(type, name) type* name = (type*)forerun_dynamic
#endif

#define ALL_LANES 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)

__device__ inline u32 lane() { return threadIdx.x & 31; }
__device__ inline u32 warp() { return threadIdx.x >> 5; }
__device__ inline u64 ceil_div(u64 a, u64 b) { return (a + b - 1) / b; }

// ---- copies to shared memory that run beside the arithmetic, in groups

#ifdef FORERUN_EMULATED
// One number, or four.
__device__ inline void copy_floats(float* to, const float* from, bool four) { memcpy(to, from, four ? 16 : 4); }
__device__ inline void copies_commit() {}
template <int N> __device__ inline void copies_wait() {}
#else
__device__ __forceinline__ void copy_floats(float* to, const float* from, bool four) {
  const u32 at = (u32)__cvta_generic_to_shared(to);
  const u64 source = (u64)__cvta_generic_to_global(from);
  if (four) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(source) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(source) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's copies but those of the last N groups.
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
#endif

// ---- indices that come from device memory

// Whether `index` is below `limit`. The first one that is not is noted for the host, with where it was found.
__device__ inline bool inside(u32* fault, u32 site, u64 index, u64 limit) {
  if (index < limit) return true;
  if (atomicCAS(fault, 0u, site) == 0) {
    fault[1] = index > ALL_LANES ? ALL_LANES : (u32)index;
    fault[2] = limit > ALL_LANES ? ALL_LANES : (u32)limit;
  }
  return false;
}

// ---- conversions

__device__ inline float bf16_to_f32(u16 bits) { return __uint_as_float((u32)bits << 16); }

// Ties to even; NaN stays NaN.
__device__ inline u16 f32_to_bf16(float x) {
  u32 bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return (u16)(bits >> 16) | 0x40;
  return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

__device__ inline float f16_to_f32(u16 bits) {
#ifdef FORERUN_EMULATED
  u32 sign = (u32)(bits & 0x8000) << 16, rest = bits & 0x7fff;
  if (rest >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // The exponent is short by 127 - 15; a product repairs it, and numbers below the normal ones with it.
  float size = __uint_as_float(rest << 13) * __uint_as_float(0x77800000);
  return __uint_as_float(sign | __float_as_uint(size));
#else
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#endif
}

// Ties to even; what is too large becomes infinite.
__device__ inline u16 f32_to_f16(float x) {
  u32 bits = __float_as_uint(x), rest = bits & 0x7fffffff;
  u16 sign = (u16)((bits >> 16) & 0x8000);
  if (rest > 0x7f800000) return sign | 0x7e00;
  if (rest >= 0x47800000) return sign | 0x7c00;
  if (rest < 0x38800000) {
    // Adding one half aligns the significand, so that the addition rounds it.
    float rounded = __uint_as_float(rest) + 0.5f;
    return sign | (u16)(__float_as_uint(rounded) - 0x3f000000);
  }
  u32 rounded = rest - 0x38000000 + 0xfff + ((rest >> 13) & 1);
  return sign | (u16)(rounded >> 13);
}

__device__ inline float e4m3_to_f32(u8 code) {
  float size = __uint_as_float((u32)(code & 127) << 20) * __uint_as_float(0x7b800000);
  return __uint_as_float((u32)(code & 128) << 24 | __float_as_uint(size));
}

// ---- functions: those of the CPU's kernels, to the bit

// `x` between the two; NaN stays NaN.
__device__ inline float clamp(float lowest, float highest, float x) {
  x = highest < x ? highest : x;
  return lowest > x ? lowest : x;
}

__device__ inline float pow2(float n) { return __uint_as_float((u32)((int)n + 127) << 23); }

// n, r and (e^r - 1 - r) / r^2 where x = n ln 2 + r.
__device__ inline void exp_parts(float x, float& n, float& r, float& p) {
  const float round = 12582912.0f;
  n = fmaf(x, 1.4426950408889634f, round) - round;
  r = fmaf(n, -0.6933594f, x);
  r = fmaf(n, 2.1219444e-4f, r);
  p = 1.9875691e-4f;
  p = fmaf(p, r, 1.3981999e-3f);
  p = fmaf(p, r, 8.333452e-3f);
  p = fmaf(p, r, 4.1665796e-2f);
  p = fmaf(p, r, 1.6666665e-1f);
  p = fmaf(p, r, 5e-1f);
}

// e^x.
__device__ inline float exp_of(float x) {
  float n, r, p;
  exp_parts(clamp(-87.33f, 88.02f, x), n, r, p);
  float scaled = (fmaf(p, r * r, r) + 1.0f) * pow2(n);
  if (x < -87.33f) return 0.0f;
  return 88.02f < x ? INFINITE : scaled;
}

// e^x for x <= 0: what a softmax needs.
__device__ inline float exp_down(float x) {
  float n, r, p;
  exp_parts(-88.0f > x ? -88.0f : x, n, r, p);
  return fmaf(fmaf(p, r, 1.0f), r, 1.0f) * pow2(n);
}

// 2^x for x <= 0, zero below the normal numbers: what a softmax in powers of two needs.
__device__ __forceinline__ float exp2_down(float x) {
  const float round = 12582912.0f, near = -126.0f > x ? -126.0f : x, shifted = near + round, r = near - (shifted - round);
  float p = 0.00015353362f;
  p = fmaf(p, r, 0.0013398875f);
  p = fmaf(p, r, 0.00961843692f);
  p = fmaf(p, r, 0.0555033237f);
  p = fmaf(p, r, 0.240226477f);
  p = fmaf(p, r, 0.693147182f);
  p = fmaf(p, r, 1.0f);
  // The rounded exponent is in the low bits of `shifted`.
  const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000);
  return x < -126.0f ? 0.0f : p * power;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + exp_of(0.0f - x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }

__device__ inline float tanh_of(float x) {
  float near = clamp(-10.0f, 10.0f, x), n, r, p;
  exp_parts(near + near, n, r, p);
  // e^2x - 1 without ever adding 1 to something small.
  float power = pow2(n), less = fmaf(power, fmaf(p, r * r, r), power - 1.0f);
  return less / (less + 2.0f);
}

// x / (1 + e^-y) with y = x (a + b x^2), y as a sum of two numbers.
__device__ inline float gelu_tanh(float x) {
  const float a = 1.5957692f, a_rest = -4.534068e-8f, b = 0.071354814f, b_rest = 2.3988325e-9f;
  float near = clamp(-10.03f, 10.03f, x);
  float square = near * near, square_rest = fmaf(near, near, 0.0f - square);
  float cubic = b * square, cubic_rest = fmaf(b, square, 0.0f - cubic);
  cubic_rest = fmaf(b, square_rest, fmaf(b_rest, square, cubic_rest));
  float slope = a + cubic;
  // What that addition rounded away, exactly.
  float back = slope - a, lost = (a - (slope - back)) + (cubic - back);
  float slope_rest = (lost + cubic_rest) + a_rest;
  float y = near * slope, y_rest = fmaf(near, slope_rest, fmaf(near, slope, 0.0f - y));
  float e = exp_of(0.0f - y);
  e = fmaf(e, 0.0f - y_rest, e);
  return x * (x < -10.03f ? 0.0f : 1.0f / (1.0f + e));
}

// The function of this number on a gate: silu, gelu by tanh, relu.
__device__ inline float activated(u32 number, float x) {
  if (number == 2) return x > 0.0f ? x : 0.0f;
  return number == 1 ? gelu_tanh(x) : silu(x);
}

// ln x of a normal number. Products and sums are apart: the CPU has the same definition.
__device__ inline float ln_of(float x) {
  if (x == 0.0f) return -INFINITE;
  u32 bits = __float_as_uint(x) - 0x3f3504f3;
  float e = (float)((int)bits >> 23);
  float z = __uint_as_float((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  float p = 0.070376836f;
  p = p * z - 0.1151461f;
  p = p * z + 0.11676999f;
  p = p * z - 0.12420141f;
  p = p * z + 0.14249323f;
  p = p * z - 0.16668058f;
  p = p * z + 0.20000715f;
  p = p * z - 0.24999994f;
  p = p * z + 0.3333333f;
  float square = z * z;
  float y = p * z * square;
  y = y + e * -2.1219444e-4f;
  y = y - 0.5f * square;
  return (z + y) + e * 0.6933594f;
}

// ln (1 + x) for x >= 0.
__device__ inline float ln_1p(float x) {
  float w = 1.0f + x;
  if (w == 1.0f) return x;
  return w == INFINITE ? w : ln_of(w) - ((w - 1.0f) - x) / w;
}

// ln (1 + e^x), the identity where that is exact.
__device__ inline float softplus(float x) { return x > 20.0f ? x : ln_1p(exp_of(x)); }

// ---- reductions in a fixed order

struct Add { static __device__ inline float of(float a, float b) { return a + b; } };
struct Max {
  static __device__ inline float of(float a, float b) { return fmaxf(a, b); }
  static __device__ inline u64 of(u64 a, u64 b) { return b > a ? b : a; }
};

// Over a warp, in every lane: a butterfly.
template <class Op, class T> __device__ inline T warp_reduce(T x) {
  for (u32 by = 16; by > 0; by >>= 1) x = Op::of(x, __shfl_xor_sync(ALL_LANES, x, by));
  return x;
}

// Over a block of whole warps, in every thread: warps in ascending order.
template <class Op, class T> __device__ inline T block_reduce(T x) {
  __shared__ T of_warps[32];
  x = warp_reduce<Op>(x);
  __syncthreads();
  if (lane() == 0) of_warps[warp()] = x;
  __syncthreads();
  T all = of_warps[0];
  for (u32 i = 1; i < blockDim.x / 32; i++) all = Op::of(all, of_warps[i]);
  return all;
}

__device__ inline float warp_sum(float x) { return warp_reduce<Add>(x); }
__device__ inline float warp_max(float x) { return warp_reduce<Max>(x); }
__device__ inline float block_sum(float x) { return block_reduce<Add>(x); }
__device__ inline float block_max(float x) { return block_reduce<Max>(x); }
__device__ inline u64 block_max_u64(u64 x) { return block_reduce<Max>(x); }

// The position of a number in the order of all numbers, with NaN of either sign at its end.
__device__ inline u32 order_of(float x) {
  u32 bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000;
}
__device__ inline float of_order(u32 order) {
  return __uint_as_float(order >> 31 ? order & 0x7fffffff : ~order);
}

// The product of two rows of f32 by a warp, in every lane: each lane adds every 32nd product in ascending order, then a tree.
__device__ __forceinline__ float dot_of(const float* w, const float* x, u32 columns) {
  // Counted in whole runs, since a compiler does not unroll a counter that may wrap; one wait for memory a run.
  constexpr u32 RUN = 16;
  const u32 runs = columns / (32 * RUN);
  float sum = 0.0f;
  w += lane(), x += lane();
  for (u32 run = 0; run < runs; run++, w += 32 * RUN, x += 32 * RUN) {
    float ws[RUN], xs[RUN];
#pragma unroll
    for (u32 i = 0; i < RUN; i++) ws[i] = w[32 * i], xs[i] = x[32 * i];
#pragma unroll
    for (u32 i = 0; i < RUN; i++) sum = fmaf(ws[i], xs[i], sum);
  }
  const u32 rest = columns % (32 * RUN);
  for (u32 k = 0; lane() + k < rest; k += 32) sum = fmaf(w[k], x[k], sum);
  return warp_sum(sum);
}

// One step of a top-k: the largest key below `last` among the scores `first`, `first + step`, ... below `end`, of one thread. A
// key is a score's order in the high word and its inverted index in the low one, so equal scores go to the lower index;
// the index is `~(u32)key`. `scores` is anything that has a number in brackets.
template <class Scores>
__device__ inline u64 largest_below(const Scores& scores, u32 first, u32 end, u32 step, u64 last) {
  u64 best = 0;
  for (u32 i = first; i < end; i += step) {
    u64 key = (u64)order_of(scores[i]) << 32 | (u32)~i;
    if (key < last && key > best) best = key;
  }
  return best;
}

// The same of `count` scores by a warp.
template <class Scores> __device__ inline u64 next_largest(const Scores& scores, u32 count, u64 last) {
  return warp_reduce<Max>(largest_below(scores, lane(), count, 32, last));
}
