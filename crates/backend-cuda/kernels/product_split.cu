// Rows of f32 on their way into a product: normed or gated, then columns of bfloat16, one, two or three for each row, and the
// sums of groups that zero points are multiplied with.
//
// # Math
// x becomes x / rms(x) · norm; with a gate x / rms(head) · norm · silu(gate) where heads are normed, else x · σ(gate). Then
// x = p0 + p1 + p2, each the bfloat16 nearest to what is left: 24 bits in all.
//
// # Numerics
// A head's squares are added eight to a thread, in order, then by a tree over its threads. The sum of 16 columns is a tree, as
// is that of wider groups over sums of 16.
//
// # Shape of the launch
// A block of 256 threads for each row and each 2048 columns, or a block for a whole row (gridDim.y) where there are many
// rows. A thread has eight columns of 32: those of one lane's `B` operand of two steps of the tensor core. Each block of a
// row with a norm adds up the squares of the whole row.
//
// # Limits
// Heads of 32, 64, 128 or 256. A gate goes with one plane.

struct Split {
  const float* x;     // [rows, dim]
  const float* gate;  // [rows, dim], or null
  const float* norm;  // [dim] or [head], or null
  float* changed;     // [rows, dim]: what normed or gated rows come to, may be x where there is a gate; or null
  u16* out;           // [rows * parts, depth], ordered by `place`; or null
  float* sums;        // four levels: [depth / 16 >> level, ld]
  u32 dim, depth, planes, parts, ld;
  u32 levels;         // bit i: level i is made
  u32 tiled;          // 1: columns in the order of the kernel for many
  u32 head;           // elements of a head that is normed by itself, or 0
  float eps;
};

// The first of a thread's columns of step `step`.
__device__ __forceinline__ u32 column_of(const Split& a, u32 step) { return step / a.planes * 16 + threadIdx.x % 4 * 2; }

__device__ __forceinline__ void put_columns(float* x, u32 k, u32 dim, const float (&v)[4]) {
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    const u32 at = k + j / 2 * 8 + j % 2;
    if (at < dim) x[at] = v[j];
  }
}

// Norms the head that this thread's eight numbers belong to.
__device__ __forceinline__ void norm_head(const Split& a, const float (&w)[2][4], float (&v)[2][4]) {
  float sum = 0;
#pragma unroll
  for (u32 i = 0; i < 2; i++)
#pragma unroll
    for (u32 j = 0; j < 4; j++) sum = fmaf(v[i][j], v[i][j], sum);
  for (u32 by = 1; by < a.head / 8; by <<= 1) sum = sum + __shfl_xor_sync(ALL_LANES, sum, by);
  const float scale = 1.0f / sqrtf(sum / (float)a.head + a.eps);
#pragma unroll
  for (u32 i = 0; i < 2; i++)
#pragma unroll
    for (u32 j = 0; j < 4; j++) v[i][j] = v[i][j] * scale * w[i][j];
}

// A thread's columns of block `block`, and sums of groups.
__device__ __forceinline__ void put_limbs(const Split& a, u32 row, u32 block, bool real, float (&v)[2][4]) {
  const u32 t = threadIdx.x % 4;
  for (u32 p = 0; p < a.parts; p++) {
    const u32 col = row * a.parts + p;
    u32 words[4];
    float sum[2];
    limbs_of_eight(v, words, sum);
    if (real && !a.tiled)
      *(uint4*)(a.out + (u64)col * a.depth + block * 32 + t * 8) = make_uint4(words[0], words[1], words[2], words[3]);
    if (real && a.tiled) {
      // Runs of 64 columns: for each, rows of 128 bytes, 16-byte pieces exchanged by the row's number.
      u8* run = (u8*)a.out + ((u64)(block / 2) * a.ld + col) * 128;
#pragma unroll
      for (u32 i = 0; i < 4; i++) *(u32*)(run + ((block % 2 * 4 + i) ^ (col & 7)) * 16 + t * 4) = words[i];
    }
    if (!a.levels) continue;
    const u64 level_size = (u64)(a.depth / 16) * a.ld;
    sums_of_groups(sum, block, real, a.levels, [&](u32 level, u32 group, float total) {
      a.sums[level * level_size + (u64)group * a.ld + col] = total;
    });
  }
}

OVERLAPPED_KERNEL(product_split, Split, 256) {
  let_next_start();
  const u32 row = blockIdx.x, units = a.depth / 8;
  const u64 first = (u64)row * a.dim;
  const float* x = a.x + first;
  const bool whole = a.norm && !a.head;
  u32 unit = blockIdx.y * 256 + threadIdx.x;
  float w[2][4];
  // A norm's weight does not depend on the kernel ahead. A thread's columns of a head are the same in every block.
  if (a.norm && unit < units)
    for (u32 i = 0; i < 2; i++) {
      const u32 k = column_of(a, unit / 4 * 2 + i);
      columns_of(a.norm, a.head ? k % a.head : k, a.head ? a.head : a.dim, w[i]);
    }
  wait_for_previous();
  float v[2][4], gate[2][4];
  // A thread's numbers are on their way while the row is added up.
  auto load = [&]() {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      const u32 k = column_of(a, unit / 4 * 2 + i), dim = unit < units ? a.dim : 0;
      columns_of(x, k, dim, v[i]);
      if (a.gate) columns_of(a.gate + first, k, dim, gate[i]);
    }
  };
  load();
  const float factor = whole ? inverse_rms(x, a.dim, a.eps) : 1.0f;
  for (; unit - threadIdx.x % 32 < units; unit += gridDim.y * 256) {
    const bool real = unit < units;
    const u32 block = unit / 4;
    if (unit >= gridDim.y * 256) {
      load();
      if (whole)
#pragma unroll
        for (u32 i = 0; i < 2; i++) columns_of(a.norm, column_of(a, block * 2 + i), real ? a.dim : 0, w[i]);
    }
    if (whole)
#pragma unroll
      for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) v[i][j] = v[i][j] * factor * w[i][j];
    if (a.head) norm_head(a, w, v);
    if (a.gate && real)
#pragma unroll
      for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) v[i][j] = v[i][j] * (a.head ? silu(gate[i][j]) : sigmoid(gate[i][j]));
    if (a.changed && real)
#pragma unroll
      for (u32 i = 0; i < 2; i++) put_columns(a.changed + first, column_of(a, block * 2 + i), a.dim, v[i]);
    if (a.out) put_limbs(a, row, block, real, v);
  }
}
