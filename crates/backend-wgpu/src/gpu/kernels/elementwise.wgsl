// Gates and caps, element by element.
//
// Math: forerun_backend::op::{Glu, Softcap, GateMul, AddGated, Experts}.
// Layout: `x` is the view that is written; `up` of a glu has rows of `up_width`, of which the part from `up_first`
// takes part.
// Numerics: f32.
// Shape of the launch: an invocation for each element.

struct Sizes { x: u32, y: u32, z: u32, count: u32, dim: u32, width: u32, first: u32, mode: u32, number: f32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;
@group(0) @binding(3) var<storage, read> z: array<f32>;

@compute @workgroup_size(64)
fn glu(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.count) { return; }
  let up = y[p.y + i / p.dim * p.width + p.first + i % p.dim];
  x[p.x + i] = activate(p.mode, x[p.x + i]) * up;
}

@compute @workgroup_size(64)
fn softcap(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.count) { return; }
  x[p.x + i] = p.number * tanh_of(x[p.x + i] / p.number);
}

@compute @workgroup_size(64)
fn gate_mul(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.count) { return; }
  x[p.x + i] = x[p.x + i] * sigmoid(y[p.y + i]);
}

// x += sigmoid(gate of the row) · y
@compute @workgroup_size(64)
fn add_gated(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.count) { return; }
  x[p.x + i] = fma(sigmoid(z[p.z + i / p.dim]), y[p.y + i], x[p.x + i]);
}

// The chosen experts' rows `y`, weighed by `z`, in the order in which they were chosen; `width` of them for a row.
@compute @workgroup_size(64)
fn experts_sum(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let i = flat(wg, n) * 64u + lane;
  if (i >= p.count) { return; }
  let row = i / p.dim;
  var sum = 0.0;
  for (var j = 0u; j < p.width; j++) {
    let choice = row * p.width + j;
    sum = fma(z[p.z + choice], y[p.y + choice * p.dim + i % p.dim], sum);
  }
  if (p.mode == 1u) { sum += x[p.x + i]; }
  x[p.x + i] = sum;
}
