// Norms over rows: rms_norm, add_norm, join_norm, gated_norm.
//
// Math: scale = 1 / sqrt(mean(x^2) + eps); see forerun_backend::op::norm.
// Layout: row-major f32.
// Numerics: f32. A row's squares are summed by 32 threads where rows are narrow and by 256 where they are wide, each over
//   every 32nd or 256th element, then by a tree. So the order depends on the width of a row alone.
// Shape of the launch: blocks of 256 threads with eight narrow rows or one wide row.
// Limits: none.

struct Rows {
  u32 row, first, step;
};

// This thread's row and its elements in it; a whole warp has no row at all.
__device__ inline Rows rows_of(u32 wide) {
  if (wide) return {blockIdx.x, threadIdx.x, 256};
  return {blockIdx.x * 8 + warp(), lane(), 32};
}

__device__ inline float inverse_rms(const float* x, u32 dim, float eps, Rows at, u32 wide) {
  float sum = 0.0f;
  for (u32 i = at.first; i < dim; i += at.step) sum = fmaf(x[i], x[i], sum);
  sum = wide ? block_sum(sum) : warp_sum(sum);
  return 1.0f / sqrtf(sum / (float)dim + eps);
}

struct RmsNorm {
  const float* x;
  const float* weight;
  float* out;
  u32 rows, dim, wide;
  float eps;
};

KERNEL(rms_norm, RmsNorm, 256) {
  Rows at = rows_of(a.wide);
  if (at.row >= a.rows) return;
  const float* x = a.x + (u64)at.row * a.dim;
  float* out = a.out + (u64)at.row * a.dim;
  float scale = inverse_rms(x, a.dim, a.eps, at, a.wide);
  for (u32 i = at.first; i < a.dim; i += at.step) out[i] = x[i] * scale * a.weight[i];
}

struct AddNorm {
  const float* x;
  const float* weight;
  float* out;
  u32 rows, dim, wide;
  float eps, scale;
};

KERNEL(add_norm, AddNorm, 256) {
  Rows at = rows_of(a.wide);
  if (at.row >= a.rows) return;
  const float* x = a.x + (u64)at.row * a.dim;
  float* out = a.out + (u64)at.row * a.dim;
  float scale = inverse_rms(x, a.dim, a.eps, at, a.wide);
  for (u32 i = at.first; i < a.dim; i += at.step)
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
  Rows at = rows_of(a.wide);
  if (at.row >= 2 * a.rows) return;
  u32 side = at.row % 2;
  const float* x = (side ? a.sources[1] : a.sources[0]) + (u64)(at.row / 2) * a.dim;
  const float* weight = side ? a.weights[1] : a.weights[0];
  float* out = a.out + (u64)at.row * a.dim;
  if (!a.normed) {
    for (u32 i = at.first; i < a.dim; i += at.step) out[i] = x[i];
    return;
  }
  float scale = inverse_rms(x, a.dim, a.eps, at, a.wide);
  for (u32 i = at.first; i < a.dim; i += at.step) out[i] = x[i] * scale * weight[i];
}

struct GatedNorm {
  float* x;
  const float* gate;
  const float* weight;
  u32 rows, dim, wide;
  float eps;
};

KERNEL(gated_norm, GatedNorm, 256) {
  Rows at = rows_of(a.wide);
  if (at.row >= a.rows) return;
  float* x = a.x + (u64)at.row * a.dim;
  const float* gate = a.gate + (u64)at.row * a.dim;
  float scale = inverse_rms(x, a.dim, a.eps, at, a.wide);
  for (u32 i = at.first; i < a.dim; i += at.step)
    x[i] = x[i] * scale * a.weight[i] * silu(gate[i]);
}
