//! nvfp4: E2M1 codes times an e4m3 scale per 16 numbers, without a global scale.
//!
//! # Math
//! `scale = e4m3(max|w| / 6)`, code = nearest E2M1 to `w / scale`. A group too small for the
//! least scale, 2^-9, becomes zero; one too large for the greatest, 448, is cut off.
//!
//! # Numerics
//! f32 throughout.

use super::encoder::{EncodeError, Row};
use super::pack::pack;
use super::small::{e2m1, e4m3, magnitude};
use forerun_base::e4m3_to_f32;

pub(super) const GROUP: usize = 16;

pub(super) fn encode(row: Row<'_>) -> Result<(), EncodeError> {
    let Row { values, codes, scales, .. } = row;
    let groups = values.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP / 2));
    for ((values, codes), scale) in groups.zip(scales) {
        *scale = e4m3(magnitude(values).ok_or(EncodeError)? / 6.0);
        let step = e4m3_to_f32(*scale);
        let mut buffer = [0; GROUP];
        if step > 0.0 {
            for (value, code) in values.iter().zip(&mut buffer) {
                *code = e2m1(value / step);
            }
        }
        pack::<4>(&buffer, codes);
    }
    Ok(())
}
