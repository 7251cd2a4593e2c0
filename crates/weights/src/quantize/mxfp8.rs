//! mxfp8: e4m3 codes times a power of two per 32 numbers.
//!
//! # Math
//! `scale = 2^ceil(log2(max|w| / 448))`, code = nearest e4m3 to `w / scale`, at most 448.
//!
//! # Numerics
//! f32 throughout.

use super::encoder::{EncodeError, Row};
use super::small::{e4m3, exponent, magnitude, power_of_two};

pub(super) const GROUP: usize = 32;

pub(super) fn encode(row: Row<'_>) -> Result<(), EncodeError> {
    let Row { values, codes, scales, .. } = row;
    let groups = values.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP));
    for ((values, codes), scale) in groups.zip(scales) {
        let exponent = exponent(magnitude(values).ok_or(EncodeError)? / 448.0);
        let step = power_of_two(exponent);
        for (value, code) in values.iter().zip(codes) {
            *code = e4m3(value / step);
        }
        *scale = (exponent + 127) as u8;
    }
    Ok(())
}
