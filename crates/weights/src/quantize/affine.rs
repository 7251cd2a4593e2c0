//! Affine codes: `w ≈ scale · code + bias`.
//!
//! # Math
//! The end of the group's range that lies farther from zero becomes the bias, exactly. The step
//! `(max − min) / (2^bits − 1)` is then bent so that zero is an integral number of steps away from
//! it, so zero has a code without error. When the upper end is the farther one, the scale is
//! negative. A step is at least 1e-7; a group that is smaller than half of that becomes zero.
//!
//! Bending may shorten the range at the other end, so a number there can be off by almost one
//! step; all others are off by half a step at most, apart from the rounding of the scale itself.
//!
//! # Numerics
//! f32 throughout. Codes are computed with the unrounded scale, which is then stored rounded.

use super::encoder::{EncodeError, Row};
use super::pack::{CODES, pack};
use super::small::store;

const LEAST_STEP: f32 = 1e-7;
/// Adding this to a number in `0..2^22` rounds it, ties to even, into the lowest bits.
const ROUND: f32 = 12_582_912.0;
/// The largest group.
const MAX_GROUP: usize = 128;

pub(super) fn encode<const BITS: usize>(group: usize, row: Row<'_>) -> Result<(), EncodeError> {
    let Row { values, codes, scales, biases, float } = row;
    let size = float.size();
    let mut buffer = [0; MAX_GROUP];
    let groups = values.chunks_exact(group).zip(codes.chunks_exact_mut(group * BITS / 8));
    let places = scales.chunks_exact_mut(size).zip(biases.chunks_exact_mut(size));
    for ((values, codes), (scale_out, bias_out)) in groups.zip(places) {
        let (low, high) = range(values);
        // Also false when one of them is not a number: `range` hands those on.
        if !(high - low).is_finite() {
            return Err(EncodeError);
        }
        let most = ((1u32 << BITS) - 1) as f32;
        let (scale, bias) = line(low, high, most);
        let buffer = &mut buffer[..group];
        for (value, code) in values.iter().zip(buffer.iter_mut()) {
            // Clamping first is the same, because both ends are whole, and keeps `ROUND` in range.
            let steps = ((value - bias) / scale).max(0.0).min(most);
            *code = (steps + ROUND).to_bits() as u8;
        }
        pack::<BITS>(buffer, codes);
        store(float, scale, scale_out);
        store(float, bias, bias_out);
    }
    Ok(())
}

/// Scale and bias of a group from its range.
fn line(low: f32, high: f32, most: f32) -> (f32, f32) {
    let below = low.abs() > high.abs();
    let step = ((high - low) / most).max(LEAST_STEP);
    let (step, edge) = if below { (step, low) } else { (-step, high) };
    let steps_to_zero = (edge / step).round_ties_even();
    if steps_to_zero == 0.0 { (step, 0.0) } else { (edge / steps_to_zero, edge) }
}

/// The least and the greatest value; not a number when one of them is not.
fn range(values: &[f32]) -> (f32, f32) {
    // Lanes instead of one running minimum: that the compiler can do several at a time.
    let mut low = [f32::INFINITY; CODES];
    let mut high = [f32::NEG_INFINITY; CODES];
    let mut check = [0.0f32; CODES];
    for chunk in values.chunks_exact(CODES) {
        for (i, &x) in chunk.iter().enumerate() {
            low[i] = if x < low[i] { x } else { low[i] };
            high[i] = if x > high[i] { x } else { high[i] };
            // Zero times anything finite is zero; otherwise it is not a number.
            check[i] += x * 0.0;
        }
    }
    let bad = check.iter().any(|x| x.is_nan());
    if bad {
        return (f32::NAN, f32::NAN);
    }
    (
        low.into_iter().fold(f32::INFINITY, f32::min),
        high.into_iter().fold(f32::NEG_INFINITY, f32::max),
    )
}
