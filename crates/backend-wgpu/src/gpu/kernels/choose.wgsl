// The largest scores of each row, best first: the choice of clusters of forerun_backend::op::ClusterHead.

struct Sizes { scores: u32, chosen: u32, rows: u32, count: u32, top_k: u32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read_write> chosen: array<u32>;

// First of the row's scores.
var<private> at: u32;

fn rank_of(i: u32) -> f32 { return scores[at + i]; }

@compute @workgroup_size(64)
fn choose(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = flat(wg, n);
  let here = row < p.rows;
  at = p.scores + row * p.count;
  let count = select(0u, p.count, here);
  var last = Best(0u, NOBODY);
  for (var round = 0u; round < p.top_k; round++) {
    last = next_best(lane, last, count);
    if (lane == 0u && here) { chosen[p.chosen + row * p.top_k + round] = last.place; }
  }
}
