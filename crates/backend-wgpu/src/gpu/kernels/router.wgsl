// The experts of each row and what they weigh.
//
// Math: forerun_backend::op::Router.
// Numerics: the sum of the softmax is over 64 invocations, each over every 64th expert, then by a tree; chosen weights, and the best
//   of a group, are added in order. Scores are made anew wherever they are needed.
// Limits: a group for each invocation.

struct Sizes {
  logits: u32, chosen: u32, weights: u32, rows: u32, experts: u32, top_k: u32, scores: u32, groups: u32, open: u32,
  ranked_by: u32, divides: u32, has_bias: u32, has_scale: u32, added: f32, scale: f32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> logits: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> expert_scale: array<f32>;
@group(0) @binding(4) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(5) var<storage, read_write> weights: array<f32>;

const SIGMOID: u32 = 1u;
const SQRT_SOFTPLUS: u32 = 2u;

// First of the row's logits, the largest of them, and the sum of their softmax.
var<private> at: u32;
var<private> most: f32;
var<private> sum: f32;
// What groups are ranked by, and which may be chosen from.
var<workgroup> group_sums: array<f32, LANES>;
var<workgroup> group_open: array<u32, LANES>;

fn score_of(i: u32) -> f32 {
  let logit = logits[at + i];
  if (p.scores == SIGMOID) { return sigmoid(logit); }
  if (p.scores == SQRT_SOFTPLUS) { return sqrt(softplus(logit)); }
  return exp_of(logit - most) / sum;
}

fn rank_of(i: u32) -> f32 {
  if (p.has_bias == 0u && p.groups == 0u) { return logits[at + i]; }
  if (p.groups > 0u && group_open[i / (p.experts / p.groups)] == 0u) { return bitcast<f32>(MINUS_INFINITY_BITS); }
  var rank = score_of(i);
  if (p.has_bias == 1u) { rank += bias[i]; }
  return rank;
}

// Decides which groups are open.
fn open_groups(lane: u32, here: bool) {
  group_open[lane] = 1u;
  workgroupBarrier();
  if (lane < p.groups && here) {
    let size = p.experts / p.groups;
    var total = 0.0;
    var last = Best(0u, NOBODY);
    for (var k = 0u; k < p.ranked_by; k++) {
      last = best_after(last, lane * size, (lane + 1u) * size, 1u);
      total += of_order(last.key);
    }
    group_sums[lane] = total;
  }
  workgroupBarrier();
  if (lane < p.groups && here) {
    let own = Best(order_of(group_sums[lane]), lane);
    var better = 0u;
    for (var other = 0u; other < p.groups; other++) {
      if (before(Best(order_of(group_sums[other]), other), own)) { better += 1u; }
    }
    if (better >= p.open) { group_open[lane] = 0u; }
  }
  workgroupBarrier();
}

@compute @workgroup_size(64)
fn router(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = flat(wg, n);
  let here = row < p.rows;
  at = p.logits + row * p.experts;
  let count = select(0u, p.experts, here);
  most = bitcast<f32>(MINUS_INFINITY_BITS);
  for (var i = lane; i < count; i += LANES) { most = max(most, logits[at + i]); }
  most = workgroup_max(lane, most);
  var own = 0.0;
  for (var i = lane; i < count; i += LANES) { own += exp_of(logits[at + i] - most); }
  sum = workgroup_sum(lane, own);
  open_groups(lane, here);
  var last = Best(0u, NOBODY);
  for (var round = 0u; round < p.top_k; round++) {
    last = next_best(lane, last, count);
    if (lane == 0u && here) {
      chosen[p.chosen + row * p.top_k + round] = last.place;
      weights[p.weights + row * p.top_k + round] = score_of(last.place);
    }
  }
  if (lane == 0u && here) {
    let to = p.weights + row * p.top_k;
    var total = 0.0;
    for (var i = 0u; i < p.top_k; i++) { total += weights[to + i]; }
    total += p.added;
    for (var i = 0u; i < p.top_k; i++) {
      var weight = weights[to + i];
      if (p.divides == 1u) { weight = weight / total; }
      weight *= p.scale;
      if (p.has_scale == 1u) { weight *= expert_scale[chosen[p.chosen + row * p.top_k + i]]; }
      weights[to + i] = weight;
    }
  }
}
