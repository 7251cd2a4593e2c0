//! mxfp4: E2M1 codes times a power of two per 32 numbers.
//!
//! # Math
//! `scale = 2^ceil(log2(max|w| / 6))`, code = nearest E2M1 to `w / scale`.
//!
//! # Numerics
//! f32 throughout.

use super::encoder::{EncodeError, Row};
use super::pack::pack;
use super::small::{e2m1, exponent, magnitude, power_of_two};

pub(super) const GROUP: usize = 32;

pub(super) fn encode(row: Row<'_>) -> Result<(), EncodeError> {
    let Row { values, codes, scales, .. } = row;
    let groups = values.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP / 2));
    for ((values, codes), scale) in groups.zip(scales) {
        let exponent = exponent(magnitude(values).ok_or(EncodeError)? / 6.0);
        let step = power_of_two(exponent);
        let mut buffer = [0; GROUP];
        for (value, code) in values.iter().zip(&mut buffer) {
            *code = e2m1(value / step);
        }
        pack::<4>(&buffer, codes);
        *scale = (exponent + 127) as u8;
    }
    Ok(())
}
