// Residuals of several streams: predict_streams, correct_streams, match_rms; and threshold.
//
// Math: forerun_backend::op::streams.
// Layout: row-major f32, a buffer for each stream.
// Numerics: f32. Coefficients of a row and sums over streams in order. Sums over a row: each of 256 threads over every 256th
//   element, then a tree, so the order depends on the width of a row alone.
// Shape of the launch: a block of 256 threads for each row.
// Limits: eight streams.

#define MOST_STREAMS 8

struct Streams {
  float* at[MOST_STREAMS];
  u32 count, active, dim, scaled;
};

// The coefficients of this block's row: `one` plus `weight` [outputs, streams] times the tangents of what the router says.
__device__ inline void coefficients(float* out, u32 outputs, float one, const float* weight, const float* router, u32 count) {
  __shared__ float tangents[MOST_STREAMS];
  if (threadIdx.x < count) tangents[threadIdx.x] = tanh_of(router[(u64)blockIdx.x * count + threadIdx.x]);
  __syncthreads();
  for (u32 i = threadIdx.x; i < outputs; i += 256) {
    float sum = 0.0f;
    for (u32 k = 0; k < count; k++) sum = sum + weight[i * count + k] * tangents[k];
    out[i] = one + sum;
  }
  __syncthreads();
}

struct PredictStreams {
  Streams streams;
  const float* router;
  const float* weight;
  float* out;
};

KERNEL(predict_streams, PredictStreams, 256) {
  __shared__ float mix[MOST_STREAMS * MOST_STREAMS];
  const Streams& s = a.streams;
  coefficients(mix, s.count * s.count, 0.0f, a.weight, a.router, s.count);
  const u64 row = (u64)blockIdx.x * s.dim;
  for (u32 column = threadIdx.x; column < s.dim; column += 256) {
    float old[MOST_STREAMS];
#pragma unroll
    for (u32 j = 0; j < MOST_STREAMS; j++)
      if (j < s.count) old[j] = s.at[j][row + column];
#pragma unroll
    for (u32 i = 0; i < MOST_STREAMS; i++) {
      if (i >= s.count) break;
      float sum = 0.0f;
#pragma unroll
      for (u32 j = 0; j < MOST_STREAMS; j++)
        if (j < s.count) sum = fmaf(mix[i * s.count + j], old[j], sum);
      const float now = old[i] + sum;
      s.at[i][row + column] = now;
      if (i == s.active) a.out[row + column] = now;
    }
  }
}

struct CorrectStreams {
  Streams streams;
  const float* x;
  const float* router;
  const float* weight;
  const float* scale;
  float* out;
};

KERNEL(correct_streams, CorrectStreams, 256) {
  __shared__ float mix[MOST_STREAMS];
  const Streams& s = a.streams;
  coefficients(mix, s.count, 1.0f, a.weight, a.router, s.count);
  const u64 row = (u64)blockIdx.x * s.dim;
  for (u32 column = threadIdx.x; column < s.dim; column += 256) {
    const u64 at = row + column;
    const float news = a.x[at] - s.at[s.active][at];
    for (u32 i = 0; i < s.count; i++) {
      const float now = fmaf(mix[i], news, s.at[i][at]);
      s.at[i][at] = now;
      if (i == s.active) a.out[at] = s.scaled ? now * a.scale[column] : now;
    }
  }
}

struct MatchRms {
  const float* x;
  const float* like;
  float* out;
  u32 dim, add;
  float floor, scale;
};

__device__ inline float mean_square(const float* x, u32 dim) {
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < dim; i += 256) sum = fmaf(x[i], x[i], sum);
  return block_sum(sum) / (float)dim;
}

KERNEL(match_rms, MatchRms, 256) {
  const u64 row = (u64)blockIdx.x * a.dim;
  const float own = mean_square(a.x + row, a.dim), other = mean_square(a.like + row, a.dim);
  const float factor = sqrtf(other / (own < a.floor ? a.floor : own)) * a.scale;
  for (u32 i = threadIdx.x; i < a.dim; i += 256) {
    const float scaled = a.x[row + i] * factor;
    a.out[row + i] = a.add ? a.out[row + i] + scaled : scaled;
  }
}

struct Threshold {
  float* x;
  u32 dim;
  float deviations;
};

KERNEL(threshold, Threshold, 256) {
  float* x = a.x + (u64)blockIdx.x * a.dim;
  float sum = 0.0f, spread = 0.0f;
  for (u32 i = threadIdx.x; i < a.dim; i += 256) sum = sum + x[i];
  const float mean = block_sum(sum) / (float)a.dim;
  for (u32 i = threadIdx.x; i < a.dim; i += 256) spread = fmaf(x[i] - mean, x[i] - mean, spread);
  const float least = mean + a.deviations * sqrtf(block_sum(spread) / (float)a.dim);
  // A number that is none stays so.
  for (u32 i = threadIdx.x; i < a.dim; i += 256) x[i] = x[i] <= least ? 0.0f : x[i] - least;
}
