// Heads of unit length, decay and write strength for the delta rule.
//
// Math: forerun_backend::op::DeltaGates.
// Numerics: f32. The squares of a head are summed by 64 invocations, each over every 64th element, then by a tree.
// Shape of the launch: a workgroup for each row and head of q and k, and one more for each row, which has the gates.

struct Sizes {
  qkv: u32, a: u32, b: u32, spans: u32, decay: u32, beta: u32, rows: u32, count: u32,
  slots: u32, log_rows: u32, key_heads: u32, value_heads: u32, dk: u32, channels: u32, site: u32,
  beta_scale: f32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> rate: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> spans: array<u32>;
@group(0) @binding(6) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(7) var<storage, read_write> decay: array<f32>;
@group(0) @binding(8) var<storage, read_write> beta: array<f32>;

@compute @workgroup_size(64)
fn delta_gates(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = flat(wg, n);
  let each = 2u * p.key_heads + 1u;
  let row = number / each;
  let head = number % each;
  var here = row < p.rows;
  if (here) { here = span_of_row(row, p.spans, p.count, p.rows, p.slots, p.log_rows, p.site).ok; }
  let unit = here && head < 2u * p.key_heads;
  let at = p.qkv + row * p.channels + head * p.dk;
  var squares = 0.0;
  if (unit) {
    for (var i = lane; i < p.dk; i += LANES) { squares = fma(qkv[at + i], qkv[at + i], squares); }
  }
  var scale = 1.0 / sqrt(workgroup_sum(lane, squares) + 1e-6);
  if (head < p.key_heads) { scale *= 1.0 / sqrt(f32(p.dk)); }
  if (unit) {
    for (var i = lane; i < p.dk; i += LANES) { qkv[at + i] = qkv[at + i] * scale; }
    return;
  }
  if (!here) { return; }
  for (var value_head = lane; value_head < p.value_heads; value_head += LANES) {
    let i = row * p.value_heads + value_head;
    decay[p.decay + i] = exp_of(rate[value_head] * softplus(a[p.a + i] + bias[value_head]));
    beta[p.beta + i] = p.beta_scale * sigmoid(b[p.b + i]);
  }
}
