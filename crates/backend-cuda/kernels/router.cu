// The experts of each row.
//
// Math: forerun_backend::op::Router.
// Layout: row-major.
// Numerics: f32. Exponentials are summed by 32 lanes, each over every 32nd expert, then by a tree; chosen weights in order.
//   Equal logits fall to the lower index.
// Shape of the launch: a warp for each row, blocks of four.
// Limits: none.

struct Router {
  const float* logits;
  const float* expert_scale;
  u32* chosen;
  float* weights;
  u32 rows, experts, top_k, renormalise;
};

KERNEL(router, Router, 128) {
  u32 row = blockIdx.x * 4 + warp();
  if (row >= a.rows) return;
  const float* logits = a.logits + (u64)row * a.experts;
  float most = -INFINITE, sum = 0.0f;
  for (u32 i = lane(); i < a.experts; i += 32) most = fmaxf(most, logits[i]);
  most = warp_max(most);
  for (u32 i = lane(); i < a.experts; i += 32) sum += exp_of(logits[i] - most);
  sum = warp_sum(sum);
  u32* chosen = a.chosen + (u64)row * a.top_k;
  float* weights = a.weights + (u64)row * a.top_k;
  u64 last = ~0ull;
  float total = 0.0f;
  for (u32 k = 0; k < a.top_k; k++) {
    last = next_largest(logits, a.experts, last);
    u32 expert = ~(u32)last;
    float weight = exp_of(logits[expert] - most) / sum;
    total = total + weight;
    if (lane() == 0) chosen[k] = expert, weights[k] = weight;
  }
  __syncwarp();
  for (u32 k = lane(); k < a.top_k; k += 32) {
    float weight = weights[k];
    if (a.renormalise) weight = weight / total;
    weights[k] = a.expert_scale ? weight * a.expert_scale[chosen[k]] : weight;
  }
}
