// The largest scores of each row, best first; and what chosen experts weigh.
//
// Math: forerun_backend::op::Router; the choice of clusters of ClusterHead.
// Numerics: scores are compared as integers, in the total order of f32, of equal ones the lower index first. The sum of the softmax is
//   over 64 invocations, each over every 64th expert, then by a tree.
// Shape of the launch: a workgroup for each row; a round for each choice, which looks for the best after the last one.

struct Sizes { scores: u32, chosen: u32, weights: u32, rows: u32, count: u32, top_k: u32, weigh: u32, renormalise: u32, has_scale: u32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(4) var<storage, read_write> weights: array<f32>;

var<workgroup> keys: array<u32, 64>;
var<workgroup> places: array<u32, 64>;

// Whether the first of two candidates comes before the second.
fn before(key: u32, place: u32, other_key: u32, other_place: u32) -> bool {
  return key > other_key || (key == other_key && place < other_place);
}

@compute @workgroup_size(64)
fn choose(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = flat(wg, n);
  let here = row < p.rows;
  let at = p.scores + row * p.count;
  let count = select(0u, p.count, here);
  var most = bitcast<f32>(MINUS_INFINITY_BITS);
  for (var i = lane; i < count; i += LANES) { most = max(most, scores[at + i]); }
  most = workgroup_max(lane, most);
  var sum = 0.0;
  for (var i = lane; i < count; i += LANES) { sum += exp_of(scores[at + i] - most); }
  sum = workgroup_sum(lane, sum);
  var last_key = 0xffffffffu;
  var last_place = 0u;
  for (var round = 0u; round < p.top_k; round++) {
    var key = 0u;
    var place = 0xffffffffu;
    for (var i = lane; i < count; i += LANES) {
      let own = order_of(scores[at + i]);
      let left = round == 0u || before(last_key, last_place, own, i);
      if (left && (place == 0xffffffffu || before(own, i, key, place))) {
        key = own;
        place = i;
      }
    }
    workgroupBarrier();
    keys[lane] = key;
    places[lane] = place;
    for (var by = LANES / 2u; by > 0u; by >>= 1u) {
      workgroupBarrier();
      if (lane < by) {
        let other = places[lane + by];
        let better = places[lane] == 0xffffffffu || before(keys[lane + by], other, keys[lane], places[lane]);
        if (other != 0xffffffffu && better) {
          keys[lane] = keys[lane + by];
          places[lane] = other;
        }
      }
    }
    workgroupBarrier();
    last_key = keys[0];
    last_place = places[0];
    if (lane == 0u && here) {
      chosen[p.chosen + row * p.top_k + round] = last_place;
      if (p.weigh == 1u) {
        weights[p.weights + row * p.top_k + round] = exp_of(scores[at + last_place] - most) / sum;
      }
    }
  }
  if (lane == 0u && here && p.weigh == 1u) {
    let to = p.weights + row * p.top_k;
    var total = 0.0;
    for (var i = 0u; i < p.top_k; i++) { total += weights[to + i]; }
    for (var i = 0u; i < p.top_k; i++) {
      var weight = weights[to + i];
      if (p.renormalise == 1u) { weight = weight / total; }
      if (p.has_scale == 1u) { weight *= scale[chosen[p.chosen + row * p.top_k + i]]; }
      weights[to + i] = weight;
    }
  }
}
