// Products of rows with channels of weights: what all of them share.
//
// Math: out[r][n] (+)= Σ_k x[r][k]·w[n][k] (+ bias[n]), where the rows of x are normed first if a norm is bound.
// Numerics: f32. K is cut into 8 segments of whole units of 32 columns. A segment is summed from zero by `fma`, columns
// ascending, and
//   segments are added ascending. The order depends on K alone: one row, four or 32 of a workgroup, one weight or several
//   of a launch,
//   channels in order or those of experts have the same bits.
// Limits: none.

@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> norm: array<f32>;

// No row, and no channel.
const NONE: u32 = 0xffffffffu;

struct Part { out: u32, height: u32, scales_at: u32, offsets_at: u32 }

// Bits of `flags`; bit HAS_BIAS << i is of part i. From SCALE_AT on they are the weights' `style`, from NAMING_AT on how
// channels are named.
const NORMED: u32 = 1u;
const ADD: u32 = 2u;
const GELU: u32 = 4u;
const RELU: u32 = 8u;
const HAS_BIAS: u32 = 16u;
const NAMING_AT: u32 = 16u;

const SEGMENTS: u32 = 8u;

// Units of 32 columns of a segment.
fn units_each() -> u32 { return ((p.cols + 31u) / 32u + SEGMENTS - 1u) / SEGMENTS; }

fn capped(sum: f32) -> f32 {
  if (p.cap > 0.0) { return p.cap * tanh_of(sum / p.cap); }
  return sum;
}
