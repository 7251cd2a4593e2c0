// The experts of each row.
//
// Math: forerun_backend::op::Router.
// Layout: row-major.
// Numerics: f32. Exponentials are summed by 32 lanes, each over every 32nd expert, then by a tree; chosen weights, and the best of a
//   group, in order. Equal ranks fall to the lower index. Scores are made anew wherever they are needed, which gives the same bits.
// Shape of the launch: a warp for each row, blocks of four. A lane ranks a group.
// Limits: 32 groups.

enum Scores { SOFTMAX, SIGMOID, SQRT_SOFTPLUS };

// Experts whose logits fit into shared memory.
#define STAGED 1024
// Logits of a lane that one wait for memory brings.
#define RUN 8

struct Router {
  const float* logits;
  const float* bias;
  const float* expert_scale;
  u32* chosen;
  float* weights;
  u32 rows, experts, top_k, scores;
  // Groups, how many are open, and how many experts rank one; no groups where there are none.
  u32 groups, open, ranked_by;
  u32 divides;
  float added, scale;
};

// What experts of a row are ranked by: see `operator[]`.
struct Ranks {
  const Router& a;
  const float* logits;
  // The largest logit and the sum of a softmax.
  float most, sum;
  // A bit for each group.
  u32 open;

  __device__ float score(u32 i) const {
    if (a.scores == SIGMOID) return sigmoid(logits[i]);
    if (a.scores == SQRT_SOFTPLUS) return sqrtf(softplus(logits[i]));
    return exp_of(logits[i] - most) / sum;
  }
  __device__ float operator[](u32 i) const {
    if (!a.bias && !a.groups) return logits[i];
    if (a.groups && !(open >> (i / (a.experts / a.groups)) & 1)) return -INFINITE;
    return a.bias ? score(i) + a.bias[i] : score(i);
  }
};

// The groups that a row may choose from.
__device__ inline u32 open_groups(const Router& a, const Ranks& all) {
  u32 size = a.experts / a.groups, group = lane();
  u64 key = 0;
  if (group < a.groups) {
    float sum = 0.0f;
    u64 last = ~0ull;
    for (u32 k = 0; k < a.ranked_by; k++) {
      last = largest_below(all, group * size, (group + 1) * size, 1, last);
      sum = sum + of_order((u32)(last >> 32));
    }
    key = (u64)order_of(sum) << 32 | (u32)~group;
  }
  u32 better = 0;
  for (u32 other = 0; other < a.groups; other++) better += __shfl_sync(ALL_LANES, key, other) > key;
  return __ballot_sync(ALL_LANES, group < a.groups && better < a.open);
}

KERNEL(router, Router, 128) {
  __shared__ float staged[4][STAGED];
  u32 row = blockIdx.x * 4 + warp();
  if (row >= a.rows) return;
  const float* logits = a.logits + (u64)row * a.experts;
  // Every choice looks at all of them again.
  if (a.experts <= STAGED) {
    for (u32 first = 0; first < a.experts; first += 32 * RUN) {
      float run[RUN];
#pragma unroll
      for (u32 i = 0; i < RUN; i++) run[i] = first + 32 * i + lane() < a.experts ? logits[first + 32 * i + lane()] : 0.0f;
#pragma unroll
      for (u32 i = 0; i < RUN; i++)
        if (first + 32 * i + lane() < a.experts) staged[warp()][first + 32 * i + lane()] = run[i];
    }
    __syncwarp();
    logits = staged[warp()];
  }
  Ranks ranks = {a, logits, -INFINITE, 0.0f, ALL_LANES};
  if (a.scores == SOFTMAX) {
    for (u32 i = lane(); i < a.experts; i += 32) ranks.most = fmaxf(ranks.most, ranks.logits[i]);
    ranks.most = warp_max(ranks.most);
    for (u32 i = lane(); i < a.experts; i += 32) ranks.sum += exp_of(ranks.logits[i] - ranks.most);
    ranks.sum = warp_sum(ranks.sum);
  }
  if (a.groups) ranks.open = open_groups(a, ranks);
  u32* chosen = a.chosen + (u64)row * a.top_k;
  float* weights = a.weights + (u64)row * a.top_k;
  u64 last = ~0ull;
  float total = 0.0f;
  for (u32 k = 0; k < a.top_k; k++) {
    last = next_largest(ranks, a.experts, last);
    u32 expert = ~(u32)last;
    float weight = ranks.score(expert);
    total = total + weight;
    if (lane() == 0) chosen[k] = expert, weights[k] = weight;
  }
  __syncwarp();
  total = total + a.added;
  for (u32 k = lane(); k < a.top_k; k += 32) {
    float weight = weights[k];
    if (a.divides) weight = weight / total;
    weight = weight * a.scale;
    weights[k] = a.expert_scale ? weight * a.expert_scale[chosen[k]] : weight;
  }
}
