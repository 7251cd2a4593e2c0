// The step of the tensor core: c += a b, 16 rows, 8 columns, 16 deep, bfloat16 or half floats; and the loads that lay its
// operands out in registers.

#ifdef FORERUN_EMULATED
// What the chip computes: products and c cut toward zero at 25 binary places below the largest exponent (of a product: the
// sum of its factors'), summed exactly, the sum cut toward zero to 24 bits. Held to the chip bit for bit on finite numbers.
namespace emulated {
struct Operand { u32 a[4], b[2]; };
static Operand operands[MOST_THREADS];

// Bits of a number's mantissa, and the exponent field of what is not finite.
template <bool HALF> struct Narrow {
  static constexpr u32 MANTISSA = HALF ? 10 : 7, LARGEST = HALF ? 31 : 255;
  static constexpr i32 MIDDLE = HALF ? 15 : 127;
};

// Mantissas of the two numbers of a word, with the leading bit, and their exponents.
template <bool HALF> static void wide(u32 word, i32* mantissa, i32* exponent) {
  using N = Narrow<HALF>;
  for (u32 i = 0; i < 2; i++, word >>= 16) {
    i32 e = word >> N::MANTISSA & N::LARGEST, m = (word & ((1 << N::MANTISSA) - 1)) | (e ? 1 << N::MANTISSA : 0);
    mantissa[i] = word & 0x8000 ? -m : m;
    exponent[i] = (e ? e : 1) - N::MIDDLE;
  }
}
#ifdef __FMA__
#define STEP_TARGET __attribute__((optimize("O3"), target("avx2")))
#else
#define STEP_TARGET __attribute__((optimize("O3")))
#endif
template <bool HALF> STEP_TARGET static float step(const i32* am, const i32* ae, const i32* bm, const i32* be, float c) {
  i32 p[16], e[16], top = -1000;
  for (u32 i = 0; i < 16; i++) {
    p[i] = am[i] * bm[i];
    e[i] = ae[i] + be[i];
    i32 seen = p[i] ? e[i] : -1000;
    top = seen > top ? seen : top;
  }
  u32 bits = __builtin_bit_cast(u32, c);
  i32 ce = bits >> 23 & 255, cm = (bits & 0x7fffff) | (ce ? 0x800000 : 0);
  ce = (ce ? ce : 1) - 127;
  if (cm) {
    // The exponent of a subnormal number is that of its first bit.
    i32 first = ce - (__builtin_clz(cm) - 8);
    top = first > top ? first : top;
  }
  if (top == -1000) return c;
  i32 sums[16];
  long long sum = 0;
  for (u32 i = 0; i < 16; i++) {
    i32 by = top - e[i], size = p[i] < 0 ? -p[i] : p[i];
    size = by > 31 ? 0 : (size << (25 - 2 * Narrow<HALF>::MANTISSA)) >> (by & 31);
    sums[i] = p[i] < 0 ? -size : size;
  }
  for (u32 i = 0; i < 16; i++) sum += sums[i];
  i32 by = top - ce;
  long long own = by > 31 ? 0 : ((long long)cm << 2) >> by;
  sum += bits >> 31 ? -own : own;
  if (sum == 0) return 0;
  unsigned long long size = sum < 0 ? -sum : sum;
  i32 over = 40 - __builtin_clzll(size);
  if (over > 0) size = size >> over << over;
  float value = __builtin_ldexpf((float)size, top - 25);
  return sum < 0 ? -value : value;
}
template <bool HALF> static bool finite_pair(u32 w) {
  const u32 low = Narrow<HALF>::LARGEST << Narrow<HALF>::MANTISSA, high = low << 16;
  return (w & low) != low && (w & high) != high;
}
static u32 rows_at[MOST_THREADS];
}  // namespace emulated
template <bool HALF> __device__ inline void mma_of(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  using namespace emulated;
  u32 first = state.current & ~31u, l = ::lane(), g = l / 4, t = l % 4;
  operands[state.current] = {{a0, a1, a2, a3}, {b0, b1}};
  __syncwarp();
  i32 am[2][16], ae[2][16], bm[2][16], be[2][16];
  bool row[2] = {true, true}, col[2] = {true, true};
  for (u32 q = 0; q < 4; q++) {
    const Operand& x = operands[first + g * 4 + q];
    for (u32 i = 0; i < 4; i++) wide<HALF>(x.a[i], am[i & 1] + i / 2 * 8 + 2 * q, ae[i & 1] + i / 2 * 8 + 2 * q);
    for (u32 i = 0; i < 4; i++) row[i & 1] &= finite_pair<HALF>(x.a[i]);
    for (u32 n = 0; n < 2; n++) {
      const Operand& y = operands[first + (2 * t + n) * 4 + q];
      for (u32 i = 0; i < 2; i++) {
        wide<HALF>(y.b[i], bm[n] + i * 8 + 2 * q, be[n] + i * 8 + 2 * q);
        col[n] &= finite_pair<HALF>(y.b[i]);
      }
    }
  }
  for (u32 i = 0; i < 4; i++) {
    bool known = row[i / 2] && col[i % 2] && !isnan(c[i]) && !isinf(c[i]);
    c[i] = known ? step<HALF>(am[i / 2], ae[i / 2], bm[i % 2], be[i % 2], c[i]) : __uint_as_float(0x7fffffff);
  }
  __syncwarp();
}
template <bool TURNED> __device__ inline void load_matrices(u32 at, u32 (&v)[4]) {
  using namespace emulated;
  u32 first = state.current & ~31u, l = ::lane();
  rows_at[state.current] = at;
  __syncwarp();
  for (u32 i = 0; i < 4; i++) {
    const u32* rows = rows_at + first + 8 * i;
    if (!TURNED) {
      memcpy(&v[i], state.shared + rows[l / 4] + l % 4 * 4, 4);
      continue;
    }
    u16 low, high;
    memcpy(&low, state.shared + rows[l % 4 * 2] + l / 4 * 2, 2);
    memcpy(&high, state.shared + rows[l % 4 * 2 + 1] + l / 4 * 2, 2);
    v[i] = low | (u32)high << 16;
  }
  __syncwarp();
}
#else
template <bool HALF> __device__ __forceinline__ void mma_of(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#define MMA_OF(type)                                                                                                          \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"     \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                                         \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
  if (HALF) MMA_OF("f16");
  else MMA_OF("bf16");
#undef MMA_OF
}
// Four matrices of 8 rows of 16 bytes, the rows at the addresses of eight lanes each; a lane gets two neighbouring numbers of
// a row of each, or TURNED of a column.
template <bool TURNED> __device__ __forceinline__ void load_matrices(u32 at, u32 (&v)[4]) {
  if (TURNED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
}
#endif

__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  mma_of<false>(c, a0, a1, a2, a3, b0, b1);
}
