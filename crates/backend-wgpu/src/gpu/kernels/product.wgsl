// Products of rows with channels of weights: what all of them share.
//
// Math: out[r][n] (+)= Σ_k x[r][k]·w[n][k] (+ bias[n]), where the rows of x are normed first if a norm is bound.
// Numerics: f32. K is cut into 8 segments of whole units of 32 columns. A segment is summed from zero by `fma`, columns
// ascending, and
//   segments are added ascending. The order depends on K alone: one row or four of an invocation, one weight or several
//   of a launch,
//   channels in order or those of experts have the same bits. A norm here has the bits of norm.wgsl: the squares of a
//   row are summed by
//   64 invocations, each over every 64th element, then by a tree.
// Shape of the launch: workgroups of 16 channels × 8 segments, for ROWS rows. A step takes a unit of each segment: all
// invocations first
//   lay its columns of x, normed, into workgroup memory.
// Limits: none.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> norm: array<f32>;

// No row, and no channel.
const NONE: u32 = 0xffffffffu;

struct Part { out: u32, height: u32, scales_at: u32, offsets_at: u32 }

// Bits of `flags`; bit HAS_BIAS << i is of part i.
const NORMED: u32 = 1u;
const ADD: u32 = 2u;
const GELU: u32 = 4u;
const HAS_BIAS: u32 = 16u;

const SEGMENTS: u32 = 8u;
var<workgroup> staged: array<Rows, 256>;
var<workgroup> sums: array<Rows, 128>;

fn units_each() -> u32 { return ((p.cols + 31u) / 32u + SEGMENTS - 1u) / SEGMENTS; }

// The columns of step `step`, 32 of each segment.
fn stage(lane: u32, step: u32, row: u32, scale: Rows) {
  let each = units_each();
  for (var i = lane; i < 256u; i += 128u) {
    let unit = i / 32u * each + step;
    let k = unit * 32u + i % 32u;
    if (k < p.cols) {
      var numbers = rows_at(row, k);
      if ((p.flags & NORMED) != 0u) { numbers = numbers * scale * norm[k]; }
      staged[i] = numbers;
    }
  }
}

// The sum of the segments' sums, in the invocations that have segment 0.
fn total_of(t: vec3<u32>, sum: Rows) -> Rows {
  workgroupBarrier();
  sums[t.y * 16u + t.x] = sum;
  workgroupBarrier();
  var all = sums[t.x];
  for (var segment = 1u; segment < SEGMENTS; segment++) { all += sums[segment * 16u + t.x]; }
  return all;
}

// What makes a row of x one whose mean square is one; all invocations of a workgroup call it.
fn inverse_rms(lane: u32, row: u32) -> f32 {
  var squares = 0.0;
  if (lane < LANES) {
    for (var i = lane; i < p.cols; i += LANES) {
      let number = x[p.x + row * p.cols + i];
      squares = fma(number, number, squares);
    }
  }
  return 1.0 / sqrt(workgroup_sum(lane, squares) / f32(p.cols) + p.eps);
}

fn capped(sum: f32) -> f32 {
  if (p.cap > 0.0) { return p.cap * tanh_of(sum / p.cap); }
  return sum;
}
