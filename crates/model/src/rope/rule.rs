//! Rules that stretch rotary frequencies.

/// A request to reach further than a model was made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScale {
    /// Positions divided by the factor.
    Linear(f64),
    /// YaRN: high frequencies kept, low ones divided, cosines and sines strengthened.
    Yarn(f64),
}

impl RopeScale {
    /// How many times as far.
    pub const fn factor(self) -> f64 {
        match self {
            Self::Linear(factor) | Self::Yarn(factor) => factor,
        }
    }

    /// The rule for a model made for `context` positions.
    pub fn rule(self, context: usize) -> RopeRule {
        match self {
            Self::Linear(factor) => RopeRule::Linear { factor },
            Self::Yarn(factor) => {
                RopeRule::Yarn { factor, context, fast: 32.0, slow: 1.0, whole: true, scale: None }
            }
        }
    }
}

/// How stored frequencies become the ones used.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeRule {
    /// As they are.
    None,
    /// All divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3: long waves divided, short ones kept, a smooth passage between.
    Llama3 {
        /// What long waves are divided by.
        factor: f32,
        /// Waves longer than `context / low` are long.
        low: f32,
        /// Waves shorter than `context / high` are short.
        high: f32,
        /// Context the model was first made for.
        context: f32,
    },
    /// YaRN.
    Yarn {
        /// What slow pairs are divided by.
        factor: f64,
        /// Context the model was first made for.
        context: usize,
        /// Pairs that turn more often than this within `context` are kept.
        fast: f64,
        /// Pairs that turn less often than this are divided.
        slow: f64,
        /// Whether the limits are rounded to whole pairs.
        whole: bool,
        /// Factor on cosines and sines; `0.1·ln(factor) + 1` where nothing is said.
        scale: Option<f64>,
    },
    /// Each pair divided by a stored number; one of 1e29 or more stands still.
    Factors(Vec<f32>),
}

/// A stored divisor from here on means that the pair stands still.
const STILL: f32 = 1e29;

impl RopeRule {
    /// Whether the rule says that a pair is not rotated at all.
    pub(super) fn stops(&self, pair: usize) -> bool {
        matches!(self, Self::Factors(factors) if factors.get(pair).is_some_and(|&f| f >= STILL))
    }

    /// Changes the frequencies in place; the factor on cosines and sines.
    pub(super) fn apply(&self, inv_freq: &mut [f32], rotary: usize, theta: f64) -> f32 {
        match self {
            Self::None => {}
            Self::Linear { factor } => {
                inv_freq.iter_mut().for_each(|inv| *inv /= *factor as f32);
            }
            &Self::Llama3 { factor, low, high, context } => {
                for inv in inv_freq {
                    let wavelength = 2.0 * std::f32::consts::PI / *inv;
                    if wavelength > context / low {
                        *inv /= factor;
                    } else if wavelength >= context / high {
                        let smooth = (context / wavelength - low) / (high - low);
                        *inv = (1.0 - smooth) * *inv / factor + smooth * *inv;
                    }
                }
            }
            &Self::Yarn { factor, context, fast, slow, whole, scale } => {
                let limits = yarn_limits(rotary, theta, context, fast, slow, whole);
                yarn(inv_freq, factor, limits);
                return scale.unwrap_or_else(|| yarn_strength(factor, 1.0)) as f32;
            }
            Self::Factors(factors) => {
                for (inv, &factor) in inv_freq.iter_mut().zip(factors) {
                    *inv = if factor >= STILL { 0.0 } else { *inv / factor };
                }
            }
        }
        1.0
    }
}

/// `0.1·m·ln(factor) + 1`: how much sharper YaRN makes attention.
pub(crate) fn yarn_strength(factor: f64, m: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 }
}

/// Where YaRN goes over from kept pairs to divided ones.
struct YarnLimits {
    /// The first pair that is not wholly kept.
    low: f64,
    /// The first that is wholly divided.
    high: f64,
}

/// The limits for a model made for `context` positions.
fn yarn_limits(
    rotary: usize,
    theta: f64,
    context: usize,
    fast: f64,
    slow: f64,
    whole: bool,
) -> YarnLimits {
    let pair = |turns: f64| {
        let waves = context as f64 / (turns * 2.0 * std::f64::consts::PI);
        rotary as f64 * waves.ln() / (2.0 * theta.ln())
    };
    let (low, high) = (pair(fast), pair(slow));
    let (low, high) = if whole { (low.floor(), high.ceil()) } else { (low, high) };
    let (low, high) = (low.max(0.0), high.min(rotary as f64 - 1.0));
    // Equal limits would divide by zero below.
    YarnLimits { low, high: if high == low { high + 0.001 } else { high } }
}

fn yarn(inv_freq: &mut [f32], factor: f64, YarnLimits { low, high }: YarnLimits) {
    for (i, inv) in inv_freq.iter_mut().enumerate() {
        let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
        let kept = 1.0 - ramp;
        *inv = *inv / factor as f32 * (1.0 - kept) + *inv * kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RopeSpec;

    #[test]
    fn yarn_keeps_fast_pairs_divides_slow_ones_and_strengthens() {
        let spec = RopeSpec::new(128, 1e6);
        let rule = RopeScale::Yarn(4.0).rule(32768);
        let far = spec.clone().rescaled(&rule);
        assert_eq!(far.inv_freq[0], spec.inv_freq[0], "the fastest pair");
        let last = spec.inv_freq.len() - 1;
        assert_eq!(far.inv_freq[last], spec.inv_freq[last] / 4.0, "the slowest pair");
        assert!((far.scale - (0.1 * 4f32.ln() + 1.0)).abs() < 1e-6);
        // Between the two every ratio lies between 1/4 and 1 and falls.
        let ratios: Vec<f32> =
            far.inv_freq.iter().zip(&spec.inv_freq).map(|(far, near)| far / near).collect();
        assert!(ratios.windows(2).all(|w| w[1] <= w[0] + 1e-6), "{ratios:?}");
    }

    #[test]
    fn a_rule_goes_on_top_of_the_one_before() {
        let spec = RopeSpec::new(16, 1e4);
        let twice = spec
            .clone()
            .rescaled(&RopeRule::Linear { factor: 2.0 })
            .rescaled(&RopeRule::Linear { factor: 4.0 });
        assert_eq!(twice, spec.rescaled(&RopeRule::Linear { factor: 8.0 }));
    }

    #[test]
    fn enormous_factors_hold_a_pair_still() {
        let spec = RopeSpec::new(8, 1e4).rescaled(&RopeRule::Factors(vec![1.0, 2.0, 1e30, 1e30]));
        let base = RopeSpec::new(8, 1e4).inv_freq;
        assert_eq!(spec.inv_freq, [base[0], base[1] / 2.0, 0.0, 0.0]);
    }

    #[test]
    fn yarn_with_one_limit_for_both_does_not_divide_by_zero() {
        let spec = RopeSpec::new(4, 1e4).rescaled(&RopeScale::Yarn(8.0).rule(16));
        assert!(spec.inv_freq.iter().all(|inv| inv.is_finite()));
    }
}
