//! The formats of 32 values with one f16 as scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! # Math
//! `d·q + m` for the `_1` formats, `d·(q − 2^(bits − 1))` for Q4_0 and Q5_0, `d·q` with signed
//! bytes for Q8_0.
//!
//! # Layout
//! d, perhaps m, perhaps a word with bit i the fifth bit of value i, then the codes: low
//! nibbles are values 0 to 15, high nibbles values 16 to 31.

use super::{BlockFormat, nibbles};
use forerun_base::{Codes, ScaleKind};

const VALUES: usize = 32;

pub(in crate::gguf) struct Q4_0;
pub(in crate::gguf) struct Q4_1;
pub(in crate::gguf) struct Q5_0;
pub(in crate::gguf) struct Q5_1;
pub(in crate::gguf) struct Q8_0;

impl BlockFormat for Q4_0 {
    const VALUES: usize = VALUES;
    const BYTES: usize = 18;
    const CODES: Codes = Codes::Int { bits: 4 };
    const GROUP: usize = VALUES;
    const SCALE: ScaleKind = ScaleKind::F16;
    const OFFSET: bool = false;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], _: &mut [u8]) {
        scales.copy_from_slice(&block[..2]);
        nibbles(&block[2..18], codes);
    }
}

impl BlockFormat for Q4_1 {
    const VALUES: usize = VALUES;
    const BYTES: usize = 20;
    const CODES: Codes = Codes::Uint { bits: 4 };
    const GROUP: usize = VALUES;
    const SCALE: ScaleKind = ScaleKind::F16;
    const OFFSET: bool = true;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], offsets: &mut [u8]) {
        scales.copy_from_slice(&block[..2]);
        offsets.copy_from_slice(&block[2..4]);
        nibbles(&block[4..20], codes);
    }
}

impl BlockFormat for Q5_0 {
    const VALUES: usize = VALUES;
    const BYTES: usize = 22;
    const CODES: Codes = Codes::Int { bits: 5 };
    const GROUP: usize = VALUES;
    const SCALE: ScaleKind = ScaleKind::F16;
    const OFFSET: bool = false;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], _: &mut [u8]) {
        scales.copy_from_slice(&block[..2]);
        nibbles(&block[6..22], codes);
        add_fifth_bits(&block[2..6], codes);
    }
}

impl BlockFormat for Q5_1 {
    const VALUES: usize = VALUES;
    const BYTES: usize = 24;
    const CODES: Codes = Codes::Uint { bits: 5 };
    const GROUP: usize = VALUES;
    const SCALE: ScaleKind = ScaleKind::F16;
    const OFFSET: bool = true;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], offsets: &mut [u8]) {
        scales.copy_from_slice(&block[..2]);
        offsets.copy_from_slice(&block[2..4]);
        nibbles(&block[8..24], codes);
        add_fifth_bits(&block[4..8], codes);
    }
}

impl BlockFormat for Q8_0 {
    const VALUES: usize = VALUES;
    const BYTES: usize = 34;
    const CODES: Codes = Codes::Int { bits: 8 };
    const GROUP: usize = VALUES;
    const SCALE: ScaleKind = ScaleKind::F16;
    const OFFSET: bool = false;

    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], _: &mut [u8]) {
        scales.copy_from_slice(&block[..2]);
        for (code, byte) in codes.iter_mut().zip(&block[2..34]) {
            *code = byte ^ 0x80;
        }
    }
}

/// Sets bit 4 of each code whose bit in `bits` is set, eight codes at a time.
#[inline(always)]
fn add_fifth_bits(bits: &[u8], codes: &mut [u8]) {
    for (&byte, eight) in bits.iter().zip(codes.as_chunks_mut::<8>().0) {
        // Byte k keeps bit k alone; adding 127 carries anything but zero into the top bit.
        let alone = (u64::from(byte) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        let fifth = ((alone + 0x7f7f_7f7f_7f7f_7f7f) & 0x8080_8080_8080_8080) >> 3;
        *eight = (u64::from_le_bytes(*eight) | fifth).to_le_bytes();
    }
}
