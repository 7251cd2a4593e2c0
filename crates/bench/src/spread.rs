//! The middle of several measurements and how far they lie apart.

use serde::Serialize;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` for no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Some(Self { median, min, max })
    }

    /// Of each value over the baseline measured in the same repetition; `None` unless every value has
    /// one that can be divided by.
    pub(crate) fn of_ratios(values: &[f64], baselines: &[f64]) -> Option<Self> {
        if values.len() != baselines.len() || baselines.iter().any(|&b| b <= 0.0) {
            return None;
        }
        Self::of(values.iter().zip(baselines).map(|(value, baseline)| value / baseline))
    }
}

/// Median and range, with the digits that the format gives: `{:.1}`.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(1);
        let Self { median, min, max } = self;
        write!(f, "{median:.digits$} ({min:.digits$}..{max:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        let odd = Spread::of([3.0, 1.0, 10.0]).unwrap();
        assert_eq!(odd, Spread { median: 3.0, min: 1.0, max: 10.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 10.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of([]), None);
        assert_eq!(format!("{odd:.0}"), "3 (1..10)");
    }

    #[test]
    fn a_gain_is_the_median_of_ratios_and_not_the_ratio_of_medians() {
        let gain = Spread::of_ratios(&[20.0, 3.0, 50.0], &[10.0, 2.0, 50.0]).unwrap();
        assert_eq!(gain, Spread { median: 1.5, min: 1.0, max: 2.0 });
    }

    #[test]
    fn a_repetition_without_its_baseline_has_no_gain() {
        assert_eq!(Spread::of_ratios(&[1.0, 2.0], &[1.0]), None);
        assert_eq!(Spread::of_ratios(&[1.0], &[0.0]), None);
        assert_eq!(Spread::of_ratios(&[], &[]), None);
    }
}
