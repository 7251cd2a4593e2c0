//! The formats of 256 values with scales of scales: Q2_K to Q6_K.
//!
//! # Math
//! `d·s·q − dmin·m` for Q2_K, Q4_K and Q5_K; `d·s·q` with signed codes for Q3_K and Q6_K. `s`
//! and `m` are small integers of a group of 16 or 32 values. The canonical matrix keeps both
//! levels: the nested scale is `d·s` and the offset `(−dmin)·m`, both exact in f32, so the last
//! sum rounds once, as ggml's does.

use super::{BlockFormat, nibbles};
use forerun_base::{Codes, ScaleKind};

const VALUES: usize = 256;

pub(in crate::gguf) struct Q2K;
pub(in crate::gguf) struct Q3K;
pub(in crate::gguf) struct Q4K;
pub(in crate::gguf) struct Q5K;
pub(in crate::gguf) struct Q6K;

impl BlockFormat for Q2K {
    const VALUES: usize = VALUES;
    const BYTES: usize = 84;
    const CODES: Codes = Codes::Uint { bits: 2 };
    const GROUP: usize = 16;
    const SCALE: ScaleKind = ScaleKind::Nested;
    const OFFSET: bool = true;

    /// 16 bytes of scale and minimum nibbles, 64 bytes of codes, d, dmin.
    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], offsets: &mut [u8]) {
        copy_halves(&block[80..84], scales, offsets);
        for (i, &byte) in block[..16].iter().enumerate() {
            scales[2 + i] = byte & 15;
            offsets[2 + i] = byte >> 4;
        }
        crumbs(&block[16..80], codes);
    }
}

impl BlockFormat for Q3K {
    const VALUES: usize = VALUES;
    const BYTES: usize = 110;
    const CODES: Codes = Codes::Int { bits: 3 };
    const GROUP: usize = 16;
    const SCALE: ScaleKind = ScaleKind::Nested;
    const OFFSET: bool = false;

    /// 32 bytes of third bits, 64 bytes of codes, 12 bytes of scales, d. The third bit clear
    /// means four less, which is what it means in a signed code.
    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], _: &mut [u8]) {
        scales[..2].copy_from_slice(&block[108..110]);
        let packed = &block[96..108];
        for i in 0..16 {
            let low = packed[i % 8] >> (i / 8 * 4) & 15;
            let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
            scales[2 + i] = (low | high << 4).wrapping_sub(32);
        }
        crumbs(&block[32..96], codes);
        add_bits(&block[..32], codes, 2);
    }
}

impl BlockFormat for Q4K {
    const VALUES: usize = VALUES;
    const BYTES: usize = 144;
    const CODES: Codes = Codes::Uint { bits: 4 };
    const GROUP: usize = 32;
    const SCALE: ScaleKind = ScaleKind::Nested;
    const OFFSET: bool = true;

    /// d, dmin, 12 bytes of scales and minimums, 128 bytes of codes.
    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], offsets: &mut [u8]) {
        scales_and_minimums(block, scales, offsets);
        nibble_groups(&block[16..144], codes);
    }
}

impl BlockFormat for Q5K {
    const VALUES: usize = VALUES;
    const BYTES: usize = 176;
    const CODES: Codes = Codes::Uint { bits: 5 };
    const GROUP: usize = 32;
    const SCALE: ScaleKind = ScaleKind::Nested;
    const OFFSET: bool = true;

    /// As Q4_K, with 32 bytes of fifth bits before the codes.
    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], offsets: &mut [u8]) {
        scales_and_minimums(block, scales, offsets);
        nibble_groups(&block[48..176], codes);
        add_bits(&block[16..48], codes, 4);
    }
}

impl BlockFormat for Q6K {
    const VALUES: usize = VALUES;
    const BYTES: usize = 210;
    const CODES: Codes = Codes::Int { bits: 6 };
    const GROUP: usize = 16;
    const SCALE: ScaleKind = ScaleKind::Nested;
    const OFFSET: bool = false;

    /// Two halves of 64 bytes of low nibbles, two of 32 bytes of high pairs, 16 signed scales,
    /// d. In a half, the low nibbles of all 64 bytes come before the high ones.
    #[inline(always)]
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], _: &mut [u8]) {
        scales[..2].copy_from_slice(&block[208..210]);
        scales[2..].copy_from_slice(&block[192..208]);
        let (low, high) = block[..192].split_at(128);
        for (h, codes) in codes.chunks_exact_mut(128).enumerate() {
            nibbles(&low[64 * h..64 * h + 64], codes);
            for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, byte) in codes.iter_mut().zip(&high[32 * h..32 * h + 32]) {
                    *code |= (byte >> (2 * k) & 3) << 4;
                }
            }
        }
    }
}

/// Two-bit codes: byte j of each 32 holds values j, 32 + j, 64 + j and 96 + j.
#[inline(always)]
fn crumbs(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
        for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = byte >> (2 * k) & 3;
            }
        }
    }
}

/// Four-bit codes: each 32 bytes hold 32 values in low nibbles, then 32 in high ones.
#[inline(always)]
fn nibble_groups(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        nibbles(bytes, codes);
    }
}

/// Bit s of byte j becomes bit `to` of value 32·s + j.
#[inline(always)]
fn add_bits(bytes: &[u8], codes: &mut [u8], to: usize) {
    for (s, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code |= (byte >> s & 1) << to;
        }
    }
}

/// d, dmin and eight pairs of 6-bit numbers in 12 bytes: bytes 0 to 3 hold scales 0 to 3 and
/// bytes 4 to 7 minimums 0 to 3 in their low six bits; the others have four bits in bytes 8 to
/// 11, scales low and minimums high, and two in the tops of the first eight.
#[inline(always)]
fn scales_and_minimums(block: &[u8], scales: &mut [u8], offsets: &mut [u8]) {
    copy_halves(block, scales, offsets);
    let packed = &block[4..16];
    let (scales, offsets) = (&mut scales[2..], &mut offsets[2..]);
    for i in 0..4 {
        let [scale, minimum, rest] = [packed[i], packed[4 + i], packed[8 + i]];
        scales[i] = scale & 63;
        offsets[i] = minimum & 63;
        scales[4 + i] = rest & 15 | scale >> 6 << 4;
        offsets[4 + i] = rest >> 4 | minimum >> 6 << 4;
    }
}

/// d, and dmin negated.
#[inline(always)]
fn copy_halves(from: &[u8], scales: &mut [u8], offsets: &mut [u8]) {
    scales[..2].copy_from_slice(&from[..2]);
    offsets[0] = from[2];
    offsets[1] = from[3] ^ 0x80;
}
