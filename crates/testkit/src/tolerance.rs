//! Comparing numbers with a message that says where and by how much.

use std::fmt;

/// The worst place of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorstError {
    /// Where.
    pub index: usize,
    /// What the reference says.
    pub expected: f32,
    /// What was computed.
    pub found: f32,
    /// `|expected − found|`; infinite when exactly one of them is not a number.
    pub difference: f32,
}

impl fmt::Display for WorstError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, expected, found, difference } = self;
        write!(f, "worst at {index}: expected {expected}, found {found}, off by {difference}")
    }
}

/// The largest absolute difference; `None` when there is nothing to compare.
///
/// # Panics
/// When the lengths differ.
pub fn worst(expected: &[f32], found: &[f32]) -> Option<WorstError> {
    assert_eq!(expected.len(), found.len(), "lengths of expected and found");
    let pairs = expected.iter().zip(found).enumerate();
    pairs
        .map(|(index, (&expected, &found))| {
            let same = expected == found || (expected.is_nan() && found.is_nan());
            let gap = (expected - found).abs();
            let difference = match (same, gap.is_nan()) {
                (true, _) => 0.0,
                (_, true) => f32::INFINITY,
                _ => gap,
            };
            WorstError { index, expected, found, difference }
        })
        .max_by(|a, b| a.difference.total_cmp(&b.difference))
}

/// Asserts that nothing is off by more than `limit`.
///
/// # Panics
/// When something is; the message names the worst place.
#[track_caller]
pub fn assert_close(what: &str, expected: &[f32], found: &[f32], limit: f32) {
    if let Some(worst) = worst(expected, found) {
        assert!(worst.difference <= limit, "{what}: {worst}; allowed {limit}");
    }
}

/// Asserts that both hold the same bits.
///
/// # Panics
/// When they do not; the message names the first place.
#[track_caller]
pub fn assert_same_bits(what: &str, expected: &[f32], found: &[f32]) {
    assert_eq!(expected.len(), found.len(), "{what}: lengths");
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    if let Some(i) = expected.iter().zip(found).position(differs) {
        panic!("{what}: first difference at {i}: expected {}, found {}", expected[i], found[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_place_is_named() {
        let worst = worst(&[1.0, 2.0, 3.0], &[1.0, 2.5, 3.25]).unwrap();
        assert_eq!((worst.index, worst.difference), (1, 0.5));
    }

    #[test]
    fn a_number_against_nan_is_infinitely_wrong_and_nan_against_nan_is_not() {
        assert_eq!(worst(&[1.0], &[f32::NAN]).unwrap().difference, f32::INFINITY);
        assert_eq!(worst(&[f32::NAN], &[f32::NAN]).unwrap().difference, 0.0);
    }

    #[test]
    #[should_panic(expected = "logits: worst at 1: expected 2, found 2.5, off by 0.5")]
    fn a_failure_says_what_where_and_by_how_much() {
        assert_close("logits", &[1.0, 2.0], &[1.0, 2.5], 0.25);
    }

    #[test]
    #[should_panic(expected = "first difference at 0")]
    fn zeros_of_different_sign_have_different_bits() {
        assert_same_bits("x", &[0.0], &[-0.0]);
    }
}
