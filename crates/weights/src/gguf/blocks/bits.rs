//! Bytes that each hold a code, as the canonical little-endian bit stream.

/// Packs codes of `bits` bits; there are a multiple of eight, and `out` has exactly their bytes.
///
/// Inlined with a constant width. Widths that fill whole bytes have loops of their own, which
/// the compiler turns into vector code.
#[inline(always)]
pub(super) fn pack(bits: usize, codes: &[u8], out: &mut [u8]) {
    match bits {
        2 => {
            for (four, out) in codes.as_chunks::<4>().0.iter().zip(out) {
                let word = u32::from_le_bytes(*four);
                *out = (word | word >> 6 | word >> 12 | word >> 18) as u8;
            }
        }
        4 => {
            for (two, out) in codes.as_chunks::<2>().0.iter().zip(out) {
                let word = u16::from_le_bytes(*two);
                *out = (word | word >> 4) as u8;
            }
        }
        8 => out.copy_from_slice(codes),
        _ => {
            for (eight, out) in codes.as_chunks::<8>().0.iter().zip(out.chunks_exact_mut(bits)) {
                let packed = squeeze(bits, u64::from_le_bytes(*eight));
                out.copy_from_slice(&packed.to_le_bytes()[..bits]);
            }
        }
    }
}

/// Moves eight codes, one in each byte, next to each other: pairs, then fours, then all.
#[inline(always)]
fn squeeze(bits: usize, codes: u64) -> u64 {
    const PAIRS: u64 = 0x00ff_00ff_00ff_00ff;
    const FOURS: u64 = 0x0000_ffff_0000_ffff;
    const HALF: u64 = 0x0000_0000_ffff_ffff;
    let pairs = (codes & PAIRS) | ((codes & !PAIRS) >> (8 - bits));
    let fours = (pairs & FOURS) | ((pairs & !FOURS) >> (16 - 2 * bits));
    (fours & HALF) | ((fours & !HALF) >> (32 - 4 * bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_each_other_bit_by_bit() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let mask = ((1u16 << bits) - 1) as u8;
            let codes: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(91) & mask).collect();
            let mut out = vec![0; 8 * bits];
            pack(bits, &codes, &mut out);
            for (i, code) in codes.iter().enumerate() {
                for bit in 0..bits {
                    let at = i * bits + bit;
                    let found = out[at / 8] >> (at % 8) & 1;
                    assert_eq!(found, code >> bit & 1, "bit {bit} of code {i} of {bits} bits");
                }
            }
        }
    }
}
