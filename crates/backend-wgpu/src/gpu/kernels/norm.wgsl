// Norms over rows: alone, added to the stream, two side by side, and gated.
//
// Math: forerun_backend::op::{RmsNorm, AddNorm, JoinNorm, GatedNorm}.
// Layout: rows of `dim`; row i of `x` goes to row `i · stride + side` of `out`.
// Numerics: f32. The squares of a row are summed by 64 invocations, each over every 64th element, then by a tree.
// Shape of the launch: a workgroup for each row.

struct Sizes { x: u32, out: u32, gate: u32, rows: u32, dim: u32, stride: u32, side: u32, mode: u32, eps: f32, scale: f32 }
var<immediate> p: Sizes;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn inverse_rms(lane: u32, squares: f32) -> f32 {
  return 1.0 / sqrt(workgroup_sum(lane, squares) / f32(p.dim) + p.eps);
}

// Mode 0 sets, 1 adds and scales, 2 copies without a norm.
@compute @workgroup_size(64)
fn norm(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = flat(wg, n);
  let source = p.x + row * p.dim;
  let to = p.out + (row * p.stride + p.side) * p.dim;
  let count = select(0u, p.dim, row < p.rows);
  var squares = 0.0;
  if (p.mode != 2u) {
    for (var i = lane; i < count; i += LANES) { squares = fma(x[source + i], x[source + i], squares); }
  }
  let scale = inverse_rms(lane, squares);
  for (var i = lane; i < count; i += LANES) {
    if (p.mode == 2u) {
      out[to + i] = x[source + i];
    } else {
      let normed = x[source + i] * scale * weight[i];
      if (p.mode == 1u) { out[to + i] = (out[to + i] + normed) * p.scale; } else { out[to + i] = normed; }
    }
  }
}

// `out` is normed in place and multiplied by silu of the gate, which is bound as `x`.
@compute @workgroup_size(64)
fn gated(@builtin(workgroup_id) wg: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = flat(wg, n);
  let at = p.out + row * p.dim;
  let count = select(0u, p.dim, row < p.rows);
  var squares = 0.0;
  for (var i = lane; i < count; i += LANES) { squares = fma(out[at + i], out[at + i], squares); }
  let scale = inverse_rms(lane, squares);
  for (var i = lane; i < count; i += LANES) {
    out[at + i] = out[at + i] * scale * weight[i] * silu(x[p.x + row * p.dim + i]);
  }
}
