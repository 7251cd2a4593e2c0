// What the products share: codes made bfloat16, sums of groups, and what is done with a sum.
//
// # Numerics
// A segment of the columns is a chain of k16 steps from zero, ascending. Codes are summed group by group; a group's sum is
// multiplied by its scale as it is added to the segment's. Segments are added ascending, then the parts of the activations,
// the small ones first. Each kernel does exactly these operations for every element, so a row's bits depend neither on the
// kernel nor on the rows beside it.

#define TILE_ROWS 16

#ifdef FORERUN_EMULATED
__device__ __forceinline__ u32 bf16_pair_times(u32 a, u32 b) {
  float low = bf16_to_f32(a & 0xffff) * bf16_to_f32(b & 0xffff), high = bf16_to_f32(a >> 16) * bf16_to_f32(b >> 16);
  return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000);
}
__device__ __forceinline__ u32 bf16_pair_minus(u32 a, u32 b) {
  float low = bf16_to_f32(a & 0xffff) - bf16_to_f32(b & 0xffff), high = bf16_to_f32(a >> 16) - bf16_to_f32(b >> 16);
  return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000);
}
template <u32 M> __device__ __forceinline__ u32 and_or(u32 w, u32 o) { return (w & M) | o; }
template <u32 V> __device__ __forceinline__ u32 kept() { return V; }
#else
// Before sm_90 products and differences are fused multiply-adds with -0 and -1; all are exact here.
__device__ __forceinline__ u32 bf16_pair_times(u32 a, u32 b) {
  u32 d;
#if __CUDA_ARCH__ >= 900
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
  return d;
}
__device__ __forceinline__ u32 bf16_pair_minus(u32 a, u32 b) {
  u32 d;
#if __CUDA_ARCH__ >= 900
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a));
#endif
  return d;
}
// (w & M) | o in one instruction.
template <u32 M> __device__ __forceinline__ u32 and_or(u32 w, u32 o) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(w), "n"(M), "r"(o));
  return d;
}
// A constant that stays in a register; the compiler would rebuild it at each use.
template <u32 V> __device__ __forceinline__ u32 kept() {
  u32 r;
  asm volatile("mov.u32 %0, %1;" : "=r"(r) : "n"(V));
  return r;
}
#endif

// c = a b.
__device__ __forceinline__ void mma_from_zero(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#ifdef FORERUN_EMULATED
  for (u32 i = 0; i < 4; i++) c[i] = 0;
  mma(c, a0, a1, a2, a3, b0, b1);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
#endif
}

// ---- codes to pairs of bfloat16, exact

struct Constants { u32 mask, sub; };

// `sub`: what is subtracted from a 4-bit code, 0 where the zero point of the group includes it.
template <int F> __device__ __forceinline__ Constants constants(i32 bias, bool offset) {
  Constants k = {0, 0};
  // A code of four bits becomes 16 + code; without an offset 16 - bias is subtracted.
  if (F == U4) k.mask = kept<0x41804180u>(), k.sub = offset ? 0u : bias ? kept<0x41c041c0u>() : kept<0x41804180u>();
  if (F == I8) k.mask = kept<0x43004300u>();
  if (F == E4M3) k.sub = kept<0x7b807b80u>();
  return k;
}
// What is added to an offset for each scale.
template <int F> __device__ __forceinline__ float offset_bias(i32 bias) { return F == U4 ? -16.0f : (float)bias; }

__device__ __forceinline__ void from_e4m3(const Constants& k, u32 w, u32& first, u32& second) {
  first = bf16_pair_times(w & 0x87f087f0u, k.sub);
  second = bf16_pair_times(and_or<0x80f080f0u>(w << 4, (w >> 4) & 0x07000700u), k.sub);
}
__device__ __forceinline__ void from_i8(const Constants& k, u32 w, u32& first, u32& second) {
  u32 v = w >> 8;
  first = bf16_pair_minus(and_or<0x007f007fu>(w, k.mask), and_or<0x00800080u>(w, k.mask));
  second = bf16_pair_minus(and_or<0x007f007fu>(v, k.mask), and_or<0x00800080u>(v, k.mask));
}
template <bool SHIFTED> __device__ __forceinline__ void from_u4(const Constants& k, u32 w, u32 (&a)[4]) {
  a[0] = and_or<0x00780078u>(w, k.mask);
  a[1] = and_or<0x00780078u>(w >> 4, k.mask);
  a[2] = and_or<0x00780078u>(w >> 8, k.mask);
  a[3] = and_or<0x00780078u>(rotate_right(w, 12), k.mask);
  if (!SHIFTED)
#pragma unroll
    for (u32 i = 0; i < 4; i++) a[i] = bf16_pair_minus(a[i], k.sub);
}

// ---- activations

// The position of column k in a row of activations: 32 columns are ordered so that 16 bytes are a lane's `B` of two steps.
__device__ __forceinline__ u32 place(u32 k) {
  u32 r = k & 15;
  return (k & ~31u) + (r & 7) / 2 * 8 + (k & 16) / 4 + r / 8 * 2 + (r & 1);
}

// ---- what is done with a sum

struct WeightPart {
  const u8* at;       // the packed weight
  const float* bias;  // one for each row, or null
  float* out;         // [tokens, rows]
  u32 first, stride;  // the first row; rows from one expert to the next
  u32 rows;
  u32 unit;  // of the launch's units of 16 rows, the first that is this part's
};

struct Product {
  WeightPart part[4];
  const u16* x;      // [columns, depth], ordered by `place`
  const float* sums; // [depth / group, ld] sums of groups of activations
  const PairTile* tiles; // null: columns follow each other
  const u32* tile_count;
  const u32* list;   // pairs in the order of the tiles
  u32 parts;         // weights; with a pair, gate and up
  u32 tokens;
  u32 split;         // parts of an activation, columns that follow each other
  u32 depth, segments, ld;
  u32 group, scales, offset, family;
  i32 bias;
  u32 pair;          // 0: none, 1: silu, 2: gelu by tanh, 3: relu
  u32 add;           // 1: out += sum
  u32 share;         // pairs that share a column of x: the choices of a token, or 1
};

__device__ __forceinline__ float activate(u32 kind, float x) { return activated(kind - 1, x); }

// A result as an activation of the next product, in `split` limbs.
__device__ __forceinline__ void store_column(u16* columns, u32 depth, u32 split, u32 row, u64 token, float result) {
  float rest = result;
  for (u32 h = 0; h < split; h++) {
    const u16 limb = f32_to_bf16(rest);
    rest = rest - bf16_to_f32(limb);
    columns[(token * split + h) * depth + place(row)] = limb;
  }
}

__device__ __forceinline__ void store(const Product& a, const WeightPart& p, u32 row, u64 token, float sum) {
  if (p.bias) sum = sum + p.bias[row];
  float* out = p.out + token * p.rows + row;
  *out = a.add ? *out + sum : sum;
}
