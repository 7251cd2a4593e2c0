//! Rotary frequencies: which dims are rotated, how fast, and the rules that stretch them to longer contexts.

mod read;
mod rule;

pub(crate) use read::{RopeDefaults, RopeSource};
pub(crate) use rule::yarn_strength;
pub use rule::{RopeRule, RopeScale};

/// Which dims are rotated, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Dims of a head in rotated pairs, from the first.
    pub rotary: usize,
    /// Radians per position of each pair, `rotary / 2` numbers; zero for a pair that stands still.
    pub inv_freq: Vec<f32>,
    /// Factor on cosines and sines.
    pub scale: f32,
    /// Base of the powers.
    theta: f64,
}

impl RopeSpec {
    /// `theta^(−2i / rotary)` for every pair.
    pub fn new(rotary: usize, theta: f64) -> Self {
        // The reference computes the powers in f32.
        let inv = |i: usize| 1.0 / (theta as f32).powf(2.0 * i as f32 / rotary as f32);
        Self { rotary, inv_freq: (0..rotary / 2).map(inv).collect(), scale: 1.0, theta }
    }

    /// Nothing turns: positions do not count.
    pub(crate) fn none(head_dim: usize) -> Self {
        Self::new(head_dim / 2 * 2, 1e4).standing(|_| true)
    }

    /// One pair that stands still, for heads that are not rotated.
    pub fn still() -> Self {
        Self { rotary: 2, inv_freq: vec![0.0], scale: 1.0, theta: 1.0 }
    }

    /// The same with some pairs standing still, whatever rule follows.
    fn standing(mut self, stands: impl Fn(usize) -> bool) -> Self {
        let stopped = self.inv_freq.iter_mut().enumerate().filter(|(i, _)| stands(*i));
        stopped.for_each(|(_, inv)| *inv = 0.0);
        self
    }

    /// Dims of a head whose angle is not always zero.
    pub fn rotated_dims(&self) -> usize {
        2 * self.inv_freq.iter().filter(|&&inv| inv != 0.0).count()
    }

    /// The frequencies under a rule, on top of those that hold already. A pair that stands still stays so, and heads of
    /// which all do are left as they are.
    #[must_use]
    pub fn rescaled(mut self, rule: &RopeRule) -> Self {
        if self.rotated_dims() == 0 {
            return self;
        }
        self.scale *= rule.apply(&mut self.inv_freq, self.rotary, self.theta);
        self
    }
}
