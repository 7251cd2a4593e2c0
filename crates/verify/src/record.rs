//! What is remembered of an answer to be compared.

use forerun_base::Token;
use forerun_engine::FinishReason;

/// One request's answer, or one text's scores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnswerRecord {
    /// Of the request.
    pub(crate) name: &'static str,
    /// The answer; empty for scores.
    pub(crate) tokens: Vec<Token>,
    /// `None` for scores.
    pub(crate) ending: Option<FinishReason>,
    /// Position of the first row.
    pub(crate) first_row: usize,
    /// The bits of each row of logits, as [`fingerprint`] has them.
    pub(crate) rows: Vec<u64>,
    /// Drafts made on the way and those that were right.
    pub(crate) drafts: DraftCounts,
}

/// Drafts made and drafts accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DraftCounts {
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
}

/// Stands for the bits of a row. Each round is invertible in the number and in what came before,
/// so rows that differ in one number never share a fingerprint; others do by an accident of 2⁻⁶⁴.
pub(crate) fn fingerprint(row: &[f32]) -> u64 {
    let mix = |hash: u64, x: &f32| {
        (hash ^ u64::from(x.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    };
    row.iter().fold(row.len() as u64, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_in_one_number_changes_the_fingerprint() {
        let row: [f32; 4] = [1.0, -2.5, 0.0, 3.25];
        for i in 0..row.len() {
            for bit in 0..32 {
                let mut other = row;
                other[i] = f32::from_bits(row[i].to_bits() ^ (1 << bit));
                assert_ne!(fingerprint(&row), fingerprint(&other), "number {i}, bit {bit}");
            }
        }
        assert_ne!(fingerprint(&row), fingerprint(&row[..3]));
        assert_ne!(fingerprint(&[1.0, 2.0]), fingerprint(&[2.0, 1.0]));
    }
}
