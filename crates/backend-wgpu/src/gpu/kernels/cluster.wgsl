// Tokens of chosen clusters, and a floor below their logits for all others.
//
// Math: forerun_backend::op::ClusterHead.
// Layout: `list` and `logits` are [rows, top_k · members].
// Shape of the launch: `tokens`: an invocation for each token of a row; `fill`: a workgroup for each row.

struct Sizes { chosen: u32, list: u32, logits: u32, out: u32, rows: u32, each: u32, top_k: u32, tokens: u32, site: u32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> chosen: array<u32>;
@group(0) @binding(2) var<storage, read> members: array<f32>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read_write> list: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn tokens(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.rows * p.top_k * p.each) { return; }
  let number = members[chosen[p.chosen + i / p.each] * p.each + i % p.each];
  var token = 0xffffffffu;
  // What is no nonnegative integer is no index.
  if (number >= 0.0 && number < 16777216.0 && floor(number) == number) { token = u32(number); }
  if (!inside(p.site, token, p.tokens)) { token = 0xffffffffu; }
  list[p.list + i] = token;
}

@compute @workgroup_size(64)
fn fill(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = flat(wg, n);
  let pairs = select(0u, p.top_k * p.each, row < p.rows);
  let count = select(0u, p.tokens, row < p.rows);
  let at = row * p.top_k * p.each;
  var most = bitcast<f32>(MINUS_INFINITY_BITS);
  for (var i = lane; i < pairs; i += LANES) { most = max(most, -logits[p.logits + at + i]); }
  let floor_of = -workgroup_max(lane, most) - 1.0;
  for (var i = lane; i < count; i += LANES) { out[p.out + row * p.tokens + i] = floor_of; }
  storageBarrier();
  for (var i = lane; i < pairs; i += LANES) {
    let token = list[p.list + at + i];
    if (token < p.tokens) { out[p.out + row * p.tokens + token] = logits[p.logits + at + i]; }
  }
}
