// Norms over rows: rms_norm, add_norm, join_norm, gated_norm.
//
// Math: scale = 1 / sqrt(mean(x^2) + eps); see forerun_backend::op::norm.
// Layout: row-major f32.
// Numerics: f32. A row's squares are summed by a warp where rows are narrow, each lane over every 32nd element, then by a
//   tree; where they are wide as in row_norm.cuh. So the order depends on the width of a row alone.
// Shape of the launch: blocks of 256 threads with eight narrow rows, or for a wide row one block or one for each 1024
//   elements (gridDim.y), each of which adds up the squares of the whole row.
// Limits: none.

// This thread's row and its elements in it; a whole warp has no row at all.
struct Rows {
  u32 row, first, step, end;
};

#define PIECE 1024

__device__ inline Rows rows_of(u32 wide, u32 dim) {
  if (!wide) return {blockIdx.x * 8 + warp(), lane(), 32, dim};
  if (gridDim.y == 1) return {blockIdx.x, threadIdx.x, 256, dim};
  return {blockIdx.x, blockIdx.y * PIECE + threadIdx.x, 256, min(dim, blockIdx.y * PIECE + PIECE)};
}

__device__ inline float scale_of_row(const float* x, u32 dim, float eps, u32 wide) {
  if (wide) return inverse_rms(x, dim, eps);
  float sum = 0.0f;
#pragma unroll 8
  for (u32 i = lane(); i < dim; i += 32) sum = fmaf(x[i], x[i], sum);
  return 1.0f / sqrtf(warp_sum(sum) / (float)dim + eps);
}

struct RmsNorm {
  const float* x;
  const float* weight;
  float* out;
  u32 rows, dim, wide;
  float eps;
};

KERNEL(rms_norm, RmsNorm, 256) {
  Rows at = rows_of(a.wide, a.dim);
  if (at.row >= a.rows) return;
  const float* x = a.x + (u64)at.row * a.dim;
  float* out = a.out + (u64)at.row * a.dim;
  float scale = scale_of_row(x, a.dim, a.eps, a.wide);
#pragma unroll 4
  for (u32 i = at.first; i < at.end; i += at.step) out[i] = x[i] * scale * a.weight[i];
}

struct AddNorm {
  const float* x;
  const float* weight;
  float* out;
  u32 rows, dim, wide;
  float eps, scale;
};

KERNEL(add_norm, AddNorm, 256) {
  Rows at = rows_of(a.wide, a.dim);
  if (at.row >= a.rows) return;
  const float* x = a.x + (u64)at.row * a.dim;
  float* out = a.out + (u64)at.row * a.dim;
  float scale = scale_of_row(x, a.dim, a.eps, a.wide);
#pragma unroll 4
  for (u32 i = at.first; i < at.end; i += at.step)
    out[i] = (out[i] + x[i] * scale * a.weight[i]) * a.scale;
}

struct JoinNorm {
  const float* sources[2];
  const float* weights[2];
  float* out;
  u32 rows, dim, wide, normed;
  float eps;
};

// A row is a half of a row of `out`.
KERNEL(join_norm, JoinNorm, 256) {
  Rows at = rows_of(a.wide, a.dim);
  if (at.row >= 2 * a.rows) return;
  u32 side = at.row % 2;
  const float* x = (side ? a.sources[1] : a.sources[0]) + (u64)(at.row / 2) * a.dim;
  const float* weight = side ? a.weights[1] : a.weights[0];
  float* out = a.out + (u64)at.row * a.dim;
  if (!a.normed) {
#pragma unroll 4
    for (u32 i = at.first; i < at.end; i += at.step) out[i] = x[i];
    return;
  }
  float scale = scale_of_row(x, a.dim, a.eps, a.wide);
#pragma unroll 4
  for (u32 i = at.first; i < at.end; i += at.step) out[i] = x[i] * scale * weight[i];
}

struct GatedNorm {
  float* x;
  const float* gate;
  const float* weight;
  u32 rows, dim, wide;
  float eps;
};

KERNEL(gated_norm, GatedNorm, 256) {
  Rows at = rows_of(a.wide, a.dim);
  if (at.row >= a.rows) return;
  float* x = a.x + (u64)at.row * a.dim;
  const float* gate = a.gate + (u64)at.row * a.dim;
  float scale = scale_of_row(x, a.dim, a.eps, a.wide);
#pragma unroll 4
  for (u32 i = at.first; i < at.end; i += at.step)
    x[i] = x[i] * scale * a.weight[i] * silu(gate[i]);
}
