// After the delta rule: rows of drafts to the log; beside it, perhaps, the gated norm of what the rule gave.
//
// Math: forerun_backend::op::{DeltaRule, GatedNorm}.
// Layout: a log row is [k | v | decay | beta].
// Numerics: those of norm.wgsl.
// Shape of the launch: a workgroup for each row that a log holds and each span; then one for each head of `x`, if there
// are any.

struct Sizes {
  qkv: u32, decay: u32, beta: u32, log: u32, spans: u32, rows: u32, count: u32, slots: u32,
  log_rows: u32, key_heads: u32, value_heads: u32, dk: u32, dv: u32, site: u32,
  x: u32, gate: u32, heads: u32, eps: f32,
}
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> decay: array<f32>;
@group(0) @binding(3) var<storage, read> beta: array<f32>;
@group(0) @binding(4) var<storage, read> spans: array<u32>;
@group(0) @binding(5) var<storage, read_write> log: array<f32>;
@group(0) @binding(6) var<storage, read> weight: array<f32>;
@group(0) @binding(7) var<storage, read> gate: array<f32>;
@group(0) @binding(8) var<storage, read_write> x: array<f32>;

fn remember(lane: u32, number: u32, which: u32) {
  let span = span_at(p.spans, which, p.rows, p.slots, p.log_rows, p.site);
  if (!span.ok || number >= span.rows - span.confirmed) { return; }
  let row = span.first_row + span.confirmed + number;
  let keys = p.key_heads * p.dk;
  let numbers = keys + p.value_heads * p.dv;
  let at = p.log + (span.slot * p.log_rows + number) * (numbers + 2u * p.value_heads);
  for (var i = lane; i < numbers; i += LANES) { log[at + i] = qkv[p.qkv + row * (keys + numbers) + keys + i]; }
  for (var i = lane; i < p.value_heads; i += LANES) {
    log[at + numbers + i] = decay[p.decay + row * p.value_heads + i];
    log[at + numbers + p.value_heads + i] = beta[p.beta + row * p.value_heads + i];
  }
}

@compute @workgroup_size(64)
fn remember_and_norm(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let number = flat(wg, n);
  let logged = p.count * p.log_rows;
  if (number < logged) { remember(lane, number % p.log_rows, number / p.log_rows); }
  let head = number - logged;
  let count = select(0u, p.dv, number >= logged && head < p.heads);
  let at = p.x + head * p.dv;
  var squares = 0.0;
  for (var i = lane; i < count; i += LANES) { squares = fma(x[at + i], x[at + i], squares); }
  let scale = 1.0 / sqrt(workgroup_sum(lane, squares) / f32(p.dv) + p.eps);
  for (var i = lane; i < count; i += LANES) {
    x[at + i] = x[at + i] * scale * weight[i] * silu(gate[p.gate + head * p.dv + i]);
  }
}
