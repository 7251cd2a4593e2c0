// Embedding, and products of single elements: clusters of tokens, and experts whose weights have no kernel in common.
//
// Math: forerun_backend::op::{Embed, Experts, ClusterHead}.
// Layout: row-major f32; weights as in weight.cuh.
// Numerics: f32 from decoded weights. A warp has a sum: each lane adds every 32nd product in ascending order, then a tree.
// Shape of the launch: blocks of eight warps, a channel each; rows along y.
// Limits: fewer than 65536 rows a launch.

struct Embed {
  Weight table;
  const u32* ids;
  float* out;
  u32* fault;
  u32 site;
  float scale;
};

KERNEL(embed, Embed, 256) {
  u32 id = a.ids[blockIdx.x], dim = a.table.cols;
  if (!inside(a.fault, a.site, id, a.table.rows)) return;
  float* out = a.out + (u64)blockIdx.x * dim;
  for (u32 i = blockIdx.y * 256 + threadIdx.x; i < dim; i += gridDim.y * 256) out[i] = element(a.table, id, i) * a.scale;
}

__device__ inline float dot(const Weight& w, u64 row, const float* x) {
  float sum = 0.0f;
  for (u32 k = lane(); k < w.cols; k += 32) sum = fmaf(x[k], element(w, row, k), sum);
  return warp_sum(sum);
}

struct ExpertRows {
  Weight weight;
  u32 first, stride;
};

struct Experts {
  ExpertRows gate, up, down;
  const float* x;
  const u32* chosen;
  const float* weights;
  float* hidden;
  float* partial;
  u32* fault;
  u32 site, experts, top_k, ffn, dim, activation;
};

__device__ inline u64 expert_row(const ExpertRows& rows, u32 expert, u32 channel) {
  return rows.first + (u64)expert * rows.stride + channel;
}

KERNEL(experts_hidden, Experts, 256) {
  u32 routed = blockIdx.y, channel = blockIdx.x * 8 + warp(), expert = a.chosen[routed];
  if (channel >= a.ffn || !inside(a.fault, a.site, expert, a.experts)) return;
  const float* x = a.x + (u64)(routed / a.top_k) * a.dim;
  float gate = dot(a.gate.weight, expert_row(a.gate, expert, channel), x);
  float up = dot(a.up.weight, expert_row(a.up, expert, channel), x);
  if (lane() == 0)
    a.hidden[(u64)routed * a.ffn + channel] = activated(a.activation, gate) * up;
}

KERNEL(experts_down, Experts, 256) {
  u32 routed = blockIdx.y, channel = blockIdx.x * 8 + warp(), expert = a.chosen[routed];
  if (channel >= a.dim || expert >= a.experts) return;
  float sum = dot(a.down.weight, expert_row(a.down, expert, channel), a.hidden + (u64)routed * a.ffn);
  if (lane() == 0) a.partial[(u64)routed * a.dim + channel] = sum;
}

struct ClusterHead {
  Weight head, members;
  const float* x;
  const float* scores;
  float* out;
  u32* chosen;     // [rows, top_k]
  u32* tokens;     // [rows, top_k, each]
  float* logits;   // The same.
  PairTile* runs;  // The same: a pair each, with a token in place of the expert.
  u32* list;       // The same.
  u32* run_count;
  u32* fault;
  u32 site, clusters, top_k, rows;
};

// The clusters of largest score, a warp for each row.
KERNEL(cluster_choose, ClusterHead, 256) {
  u32 row = blockIdx.x * 8 + warp();
  if (row >= a.rows) return;
  const float* scores = a.scores + (u64)row * a.clusters;
  u64 last = ~0ull;
  for (u32 k = 0; k < a.top_k; k++) {
    last = next_largest(scores, a.clusters, last);
    if (lane() == 0) a.chosen[(u64)row * a.top_k + k] = ~(u32)last;
  }
}

// The tokens of the chosen clusters, as runs of a product.
KERNEL(cluster_tokens, ClusterHead, 256) {
  u64 i = (u64)blockIdx.x * 256 + threadIdx.x;
  u32 each = a.members.cols, count = a.top_k * each;
  if (i >= (u64)a.rows * count) return;
  u64 row = i / count, at = i % count;
  float number = element(a.members, a.chosen[row * a.top_k + at / each], at % each);
  // A token id is a non-negative integer.
  bool integer = number >= 0.0f && number < 4294967296.0f && truncf(number) == number;
  u32 token = integer ? (u32)number : ALL_LANES;
  bool there = inside(a.fault, a.site, token, a.head.rows);
  a.tokens[i] = there ? token : ALL_LANES;
  a.runs[i] = {there ? token : 0, (u32)i, 1, 0};
  a.list[i] = i;
  if (i == 0) *a.run_count = a.rows * count;
}

// Their logits where the head is plain f32.
KERNEL(cluster_logits, ClusterHead, 256) {
  u64 i = (u64)blockIdx.x * 8 + warp();
  u32 count = a.top_k * a.members.cols;
  if (i >= (u64)a.rows * count) return;
  float sum = dot(a.head, a.runs[i].expert, a.x + i / count * a.head.cols);
  if (lane() == 0) a.logits[i] = sum;
}

KERNEL(cluster_fill, ClusterHead, 256) {
  u32 count = a.top_k * a.members.cols;
  u64 from = (u64)blockIdx.x * count;
  float* out = a.out + (u64)blockIdx.x * a.head.rows;
  float least = INFINITE;
  for (u32 i = threadIdx.x; i < count; i += 256) least = fminf(least, a.logits[from + i]);
  least = -block_max(-least) - 1.0f;
  for (u32 i = threadIdx.x; i < a.head.rows; i += 256) out[i] = least;
  __syncthreads();
  for (u32 i = threadIdx.x; i < count; i += 256)
    if (a.tokens[from + i] < a.head.rows) out[a.tokens[from + i]] = a.logits[from + i];
}
