// The root mean square of a row, as every kernel with a norm over wide rows computes it.
//
// # Numerics
// 256 threads add the squares of every 256th group of four elements, each of the four in a sum of its own; widths that are
// no multiple of four are added element by element. Then trees. So the order follows from the width alone.

// The sum of a row's squares; all threads of the block call it together, of which those beyond 256 add nothing.
__device__ inline float sum_of_squares(const float* x, u32 dim) {
  float s[4] = {0, 0, 0, 0};
  if (threadIdx.x >= 256) dim = 0;
  if (dim % 4 == 0) {
    const float4* fours = (const float4*)x;
    // Eight loads are under way at a time.
    for (u32 base = threadIdx.x; base < dim / 4; base += 8 * 256) {
      float4 v[8];
#pragma unroll
      for (u32 i = 0; i < 8; i++) v[i] = base + i * 256 < dim / 4 ? fours[base + i * 256] : make_float4(0, 0, 0, 0);
#pragma unroll
      for (u32 i = 0; i < 8; i++) {
        s[0] = fmaf(v[i].x, v[i].x, s[0]);
        s[1] = fmaf(v[i].y, v[i].y, s[1]);
        s[2] = fmaf(v[i].z, v[i].z, s[2]);
        s[3] = fmaf(v[i].w, v[i].w, s[3]);
      }
    }
  } else {
    for (u32 k = threadIdx.x; k < dim; k += 256) s[0] = fmaf(x[k], x[k], s[0]);
  }
  return block_sum((s[0] + s[1]) + (s[2] + s[3]));
}

// 1 / sqrt(mean(x^2) + eps), in every thread.
__device__ inline float inverse_rms(const float* x, u32 dim, float eps) {
  return 1.0f / sqrtf(sum_of_squares(x, dim) / (float)dim + eps);
}
