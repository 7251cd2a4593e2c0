// Decay and write strength of the delta rule.
//
// Math: forerun_backend::op::DeltaInputs: exp(rate · softplus(a + bias)) and sigmoid(b).
// Shape of the launch: an invocation for each row and value head.

struct Sizes { a: u32, b: u32, spans: u32, decay: u32, beta: u32, rows: u32, count: u32, slots: u32, log_rows: u32, heads: u32, site: u32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> rate: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> spans: array<u32>;
@group(0) @binding(6) var<storage, read_write> decay: array<f32>;
@group(0) @binding(7) var<storage, read_write> beta: array<f32>;

fn softplus(x: f32) -> f32 {
  if (x > 20.0) { return x; }
  return ln_1p_of(exp_of(x));
}

@compute @workgroup_size(64)
fn gates(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.rows * p.heads) { return; }
  let span = span_of_row(i / p.heads, p.spans, p.count, p.rows, p.slots, p.log_rows, p.site);
  if (!span.ok) { return; }
  let head = i % p.heads;
  decay[p.decay + i] = exp_of(rate[head] * softplus(a[p.a + i] + bias[head]));
  beta[p.beta + i] = sigmoid(b[p.b + i]);
}
