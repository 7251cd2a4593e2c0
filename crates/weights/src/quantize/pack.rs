//! Codes to the little-endian bit stream.

/// Eight codes fill exactly `BITS` bytes, so no width needs a case of its own.
pub(super) const CODES: usize = 8;

/// Packs codes below `2^BITS`; `codes` is a multiple of eight long.
pub(super) fn pack<const BITS: usize>(codes: &[u8], out: &mut [u8]) {
    for (codes, out) in codes.chunks_exact(CODES).zip(out.chunks_exact_mut(BITS)) {
        let mut word = 0u64;
        for (i, &code) in codes.iter().enumerate() {
            word |= u64::from(code) << (i * BITS);
        }
        out.copy_from_slice(&word.to_le_bytes()[..BITS]);
    }
}
