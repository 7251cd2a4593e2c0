//! The formats whose 4-bit codes index sixteen numbers: IQ4_NL, IQ4_XS, MXFP4.

use super::{BlockFormat, nibbles};
use crate::read::DOUBLED_E2M1;
use forerun_base::{Codes, ScaleKind};

/// The levels of both IQ4 formats.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(in crate::gguf) struct Iq4Nl;
pub(in crate::gguf) struct Iq4Xs;
pub(in crate::gguf) struct Mxfp4;

impl BlockFormat for Iq4Nl {
    const VALUES: usize = 32;
    const BYTES: usize = 18;
    const CODES: Codes = Codes::Table { values: LEVELS };
    const GROUP: usize = 32;
    const SCALE: ScaleKind = ScaleKind::F16;
    const OFFSET: bool = false;

    /// d, then nibbles as in Q4_0.
    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], _: &mut [u8]) {
        scales.copy_from_slice(&block[..2]);
        nibbles(&block[2..18], codes);
    }
}

impl BlockFormat for Iq4Xs {
    const VALUES: usize = 256;
    const BYTES: usize = 136;
    const CODES: Codes = Codes::Table { values: LEVELS };
    const GROUP: usize = 32;
    const SCALE: ScaleKind = ScaleKind::Nested;
    const OFFSET: bool = false;

    /// d, a word of the top two bits of eight scales, their low nibbles, then for each 32
    /// values 16 bytes as in Q4_0.
    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], _: &mut [u8]) {
        scales[..2].copy_from_slice(&block[..2]);
        let tops = u16::from_le_bytes([block[2], block[3]]);
        for i in 0..8 {
            let low = block[4 + i / 2] >> (i % 2 * 4) & 15;
            let high = (tops >> (2 * i) & 3) as u8;
            scales[2 + i] = (low | high << 4).wrapping_sub(32);
        }
        for (bytes, codes) in block[8..136].chunks_exact(16).zip(codes.chunks_exact_mut(32)) {
            nibbles(bytes, codes);
        }
    }
}

impl BlockFormat for Mxfp4 {
    const VALUES: usize = 32;
    const BYTES: usize = 17;
    const CODES: Codes = Codes::Table { values: DOUBLED_E2M1 };
    const GROUP: usize = 32;
    const SCALE: ScaleKind = ScaleKind::BF16;
    const OFFSET: bool = false;

    /// A bare exponent, then nibbles as in Q4_0.
    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], _: &mut [u8]) {
        scales.copy_from_slice(&halved_exponent(block[0]).to_le_bytes());
        nibbles(&block[1..17], codes);
    }
}

/// `2^(exponent − 128)` as a bfloat16: half the scale, because the table holds doubled values.
#[inline(always)]
fn halved_exponent(exponent: u8) -> u16 {
    match exponent {
        // Below the least normal number.
        0 | 1 => 0x20 << exponent,
        _ => (u16::from(exponent) - 1) << 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_base::bf16_to_f32;

    #[test]
    fn every_exponent_halves_exactly() {
        for exponent in 0..=u8::MAX {
            let expected = 2f64.powi(i32::from(exponent) - 128);
            assert_eq!(f64::from(bf16_to_f32(halved_exponent(exponent))), expected, "{exponent}");
        }
    }
}
