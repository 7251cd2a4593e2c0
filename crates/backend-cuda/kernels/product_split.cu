// Activations made the columns of a product: normalised where the product has a norm, split into bfloat16 limbs, with the
// sums of groups that zero points are multiplied with.
//
// # Math
// x = p0 + p1 + p2, each the bfloat16 nearest to what is left: 24 bits in all. Sums of a group are a tree over sums of 16.
//
// # Shape of the launch
// One block a row, one thread 16 columns at a time.

struct Split {
  const float* x;     // [rows, dim]
  const float* norm;  // [dim] or null
  u16* out;           // [rows * parts, depth], or in the order of `tiled`
  float* sums;        // for groups of 16, 32, 64 and 128: [depth / group, ld], each with room for groups of 16
  u32 dim, depth, planes, parts, ld;
  u32 levels;  // bit i: sums of groups of 16 << i
  u32 tiled;   // 1: runs of 64 columns by 8 rows in the order of 128-byte swizzling
  float eps;
};

// 1 / sqrt(mean(x²) + eps) by a block of 256 threads, each of which adds every 256th square.
__device__ inline float inverse_rms(const float* x, u32 dim, float eps) {
  float squares = 0;
  for (u32 k = threadIdx.x; k < dim; k += 256) squares = fmaf(x[k], x[k], squares);
  return 1.0f / sqrtf(block_sum(squares) / (float)dim + eps);
}

KERNEL(product_split, Split, 256) {
  let_next_start();
  wait_for_previous();
  u32 row = blockIdx.x;
  const float* x = a.x + (u64)row * a.dim;
  float factor = 1.0f;
  if (a.norm) factor = inverse_rms(x, a.dim, a.eps);
  u32 all = (a.depth / 16 + 31) & ~31u;
  for (u32 step = threadIdx.x; step < all; step += 256) {
    u32 group = step / a.planes;
    bool real = step < a.depth / 16;
    float rest[16];
    for (u32 i = 0; i < 16; i++) {
      u32 k = group * 16 + i;
      float v = real && k < a.dim ? x[k] : 0.0f;
      if (a.norm && real && k < a.dim) v = v * factor * a.norm[k];
      rest[i] = v;
    }
    for (u32 p = 0; p < a.parts; p++) {
      u32 col = row * a.parts + p;
      float sum = 0;
      u32 words[8];
      for (u32 i = 0; i < 16; i++) {
        u16 term = f32_to_bf16(rest[i]);
        float value = bf16_to_f32(term);
        rest[i] = rest[i] - value;
        sum = sum + value;
        words[i / 2] = i & 1 ? words[i / 2] | (u32)term << 16 : term;
      }
      if (real && !a.tiled) {
        u32* out = (u32*)(a.out + (u64)col * a.depth) + (step / 2 * 32 + step % 2 * 4) / 2;
        // Words 0..3 are columns 0..7, words 4..7 columns 8..15; see `place`.
        for (u32 t = 0; t < 4; t++) *(uint2*)(out + t * 4) = make_uint2(words[t], words[t + 4]);
      }
      if (real && a.tiled) {
        // Runs of 64 columns: for each, rows of 128 bytes, 16-byte pieces exchanged by the row's number.
        u8* run = (u8*)a.out + ((u64)(step / 4) * a.ld + col) * 128;
        u32 piece = step % 4 * 2, by = col & 7;
        *(uint4*)(run + ((piece ^ by) << 4)) = make_uint4(words[0], words[1], words[2], words[3]);
        *(uint4*)(run + (((piece + 1) ^ by) << 4)) = make_uint4(words[4], words[5], words[6], words[7]);
      }
      for (u32 level = 0; level < 4; level++) {
        if (real && (a.levels >> level & 1) && (step & ((1u << level) - 1)) == 0)
          a.sums[(u64)level * (a.depth / 16) * a.ld + (u64)(step >> level) * a.ld + col] = sum;
        sum = sum + __shfl_xor_sync(ALL_LANES, sum, 1 << level);
      }
    }
  }
}

struct Norm {
  const float* x;
  const float* norm;
  float* out;
  u32 dim;
  float eps;
};

// The norm alone, for products that take f32.
KERNEL(product_norm, Norm, 256) {
  let_next_start();
  wait_for_previous();
  const float* x = a.x + (u64)blockIdx.x * a.dim;
  float factor = inverse_rms(x, a.dim, a.eps);
  for (u32 k = threadIdx.x; k < a.dim; k += 256) a.out[(u64)blockIdx.x * a.dim + k] = x[k] * factor * a.norm[k];
}
