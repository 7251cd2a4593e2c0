// Pairs of a row and an expert it chose, sorted by expert; and the experts' rows added up.

struct Route {
  const u32* chosen;  // [pairs]
  u32* list;          // pairs by expert, in any order within one
  PairTile* tiles;        // runs of at most `most` pairs of one expert
  u32* tile_count;
  u32* fault;
  u32 site, pairs, experts, most;
};

#define MOST_EXPERTS 1024

// One block. A pair's column in its tile changes no bit, so ranks may come in any order.
KERNEL(product_route, Route, 1024) {
  __shared__ u32 count[MOST_EXPERTS], at[MOST_EXPERTS], tile[MOST_EXPERTS];
  for (u32 e = threadIdx.x; e < a.experts; e += blockDim.x) count[e] = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < a.pairs; i += blockDim.x) {
    u32 e = a.chosen[i];
    if (inside(a.fault, a.site, e, a.experts)) atomicAdd(&count[e], 1u);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    u32 pairs = 0, tiles = 0;
    for (u32 from = 0; from < a.experts; from += 32) {
      u32 e = from + threadIdx.x, own = e < a.experts ? count[e] : 0, runs = (own + a.most - 1) / a.most;
      u32 before = own, before_runs = runs;
      for (u32 by = 1; by < 32; by <<= 1) {
        u32 other = __shfl_up_sync(ALL_LANES, before, by), other_runs = __shfl_up_sync(ALL_LANES, before_runs, by);
        if (threadIdx.x >= by) before += other, before_runs += other_runs;
      }
      if (e < a.experts) at[e] = pairs + before - own, tile[e] = tiles + before_runs - runs;
      pairs += __shfl_sync(ALL_LANES, before, 31);
      tiles += __shfl_sync(ALL_LANES, before_runs, 31);
    }
    if (threadIdx.x == 0) *a.tile_count = tiles;
  }
  __syncthreads();
  for (u32 e = threadIdx.x; e < a.experts; e += blockDim.x)
    for (u32 c = 0, k = tile[e]; c < count[e]; c += a.most, k++)
      a.tiles[k] = {e, at[e] + c, min(a.most, count[e] - c), 0};
  __syncthreads();
  for (u32 i = threadIdx.x; i < a.pairs; i += blockDim.x) {
    u32 e = a.chosen[i];
    if (e < a.experts) a.list[atomicAdd(&at[e], 1u)] = i;
  }
}

struct Combine {
  const float* partial;  // [rows, top_k, dim]
  const float* weights;  // [rows, top_k]
  float* out;            // [rows, dim]
  u32 rows, dim, top_k, add;
};

// The experts' rows in the order chosen.
KERNEL(product_combine, Combine, 256) {
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= (u64)a.rows * a.dim) return;
  u64 row = i / a.dim, channel = i % a.dim;
  float sum = 0;
  for (u32 j = 0; j < a.top_k; j++)
    sum = fmaf(a.weights[row * a.top_k + j], a.partial[(row * a.top_k + j) * a.dim + channel], sum);
  a.out[i] = a.add ? a.out[i] + sum : sum;
}
