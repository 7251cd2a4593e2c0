//! Random weights from a seed: NumPy's generator, so that the bytes are those that Python drew.
//!
//! A tensor's generator is PCG64 (XSL-RR 128/64), seeded through NumPy's `SeedSequence` with the first eight bytes of
//! SHA-256 of `seed/model/tensor`. Normal numbers are Marsaglia and Tsang's ziggurat of 256 layers
//! (*The Ziggurat Method for Generating Random Variables*, 2000) with the bits laid out as NumPy does.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// How the values of a tensor are distributed: one entry of `draws` in `weights.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Draw {
    /// Mean and deviation.
    Normal(f64, f64),
    /// Normal; the deviation is this over the square root of the last axis.
    Linear(f64),
    /// Between two limits.
    Uniform(f64, f64),
    /// The logarithm of a uniform number.
    LogUniform(f64, f64),
    /// `log(exp(x) − 1)` of a uniform number: softplus gives the number back.
    LogExpm1Uniform(f64, f64),
}

impl Draw {
    /// `None` for anything else than one of the distributions.
    pub(super) fn parse(entry: &Value) -> Option<Self> {
        let pair = |key: &str| Some((entry[key][0].as_f64()?, entry[key][1].as_f64()?));
        type Make = fn(f64, f64) -> Draw;
        let kinds: [(&str, Make); 4] = [
            ("normal", Self::Normal),
            ("uniform", Self::Uniform),
            ("log_uniform", Self::LogUniform),
            ("log_expm1_uniform", Self::LogExpm1Uniform),
        ];
        let two = kinds.iter().find_map(|(key, kind)| pair(key).map(|(a, b)| kind(a, b)));
        two.or_else(|| entry["linear"].as_f64().map(Self::Linear))
    }

    /// `count` values of the tensor that `label` names; `width` is its last axis.
    pub(super) fn values(self, label: &str, count: usize, width: usize) -> Vec<f32> {
        let mut generator = Generator::of(label);
        let mut next = || match self {
            Self::Normal(mean, deviation) => mean + deviation * generator.normal(),
            Self::Linear(gain) => gain / (width as f64).sqrt() * generator.normal(),
            Self::Uniform(from, to) => generator.between(from, to),
            Self::LogUniform(from, to) => generator.between(from, to).ln(),
            Self::LogExpm1Uniform(from, to) => generator.between(from, to).exp_m1().ln(),
        };
        (0..count).map(|_| next() as f32).collect()
    }
}

/// PCG64 as NumPy has it.
struct Generator {
    state: u128,
    increment: u128,
}

impl Generator {
    fn of(label: &str) -> Self {
        let digest = Sha256::digest(label.as_bytes());
        let (seed, _) = digest.as_chunks::<8>();
        let [a, b, c, d] = seed_sequence(u64::from_le_bytes(seed[0]));
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let mut generator = Self { state: 0, increment: wide(c, d) << 1 | 1 };
        generator.advance();
        generator.state = generator.state.wrapping_add(wide(a, b));
        generator.advance();
        generator
    }

    fn advance(&mut self) {
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    fn bits(&mut self) -> u64 {
        self.advance();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// In `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    fn normal(&mut self) -> f64 {
        let tables = &*ZIGGURAT;
        loop {
            let bits = self.bits();
            let layer = (bits & 0xff) as usize;
            let magnitude = bits >> 9 & ((1 << 52) - 1);
            let sign = if bits >> 8 & 1 == 1 { -1.0 } else { 1.0 };
            let x = magnitude as f64 * tables.width[layer];
            if magnitude < tables.inside[layer] {
                return sign * x;
            }
            if layer == 0 {
                return self.tail(magnitude >> 8 & 1 == 1);
            }
            let (above, below) = (tables.height[layer - 1], tables.height[layer]);
            if (above - below) * self.unit() + below < (-0.5 * x * x).exp() {
                return sign * x;
            }
        }
    }

    fn tail(&mut self, negative: bool) -> f64 {
        loop {
            let out = -(-self.unit()).ln_1p() / Ziggurat::EDGE;
            let up = -(-self.unit()).ln_1p();
            if up + up > out * out {
                return if negative { -(Ziggurat::EDGE + out) } else { Ziggurat::EDGE + out };
            }
        }
    }
}

/// Four words from a seed: O'Neill's seed sequence with a pool of four 32-bit words.
fn seed_sequence(seed: u64) -> [u64; 4] {
    let fold = |x: u32| x ^ x >> 16;
    let mut constant = 0x43b0_d7e5_u32;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        fold(value.wrapping_mul(constant))
    };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut hash);
    for from in 0..4 {
        for to in (0..4).filter(|&to| to != from) {
            let other = hash(pool[from]).wrapping_mul(0x4973_f715);
            pool[to] = fold(pool[to].wrapping_mul(0xca01_f9dd).wrapping_sub(other));
        }
    }
    let mut constant = 0x8b51_f9dd_u32;
    let mut word = |i: usize| {
        let value = pool[i % 4] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        u64::from(fold(value.wrapping_mul(constant)))
    };
    std::array::from_fn(|i| word(2 * i) | word(2 * i + 1) << 32)
}

/// Layers of equal area under `exp(−x²/2)`; layer 0 is the base with the tail.
struct Ziggurat {
    /// Magnitudes below are inside the curve whatever the height.
    inside: [u64; 256],
    /// A layer's width over 2⁵².
    width: [f64; 256],
    /// The curve at a layer's right edge.
    height: [f64; 256],
}

static ZIGGURAT: LazyLock<Ziggurat> = LazyLock::new(Ziggurat::new);

impl Ziggurat {
    /// Where the tail begins.
    const EDGE: f64 = 3.654_152_885_361_009;
    /// The area of each layer.
    const AREA: f64 = 0.004_928_673_233_974_655;

    fn new() -> Self {
        let scale = (1_u64 << 52) as f64;
        let curve = |x: f64| (-0.5 * x * x).exp();
        let (mut inside, mut width, mut height) = ([0; 256], [0.0; 256], [1.0; 256]);
        let base = Self::AREA / curve(Self::EDGE);
        inside[0] = (Self::EDGE / base * scale) as u64;
        width[0] = base / scale;
        width[255] = Self::EDGE / scale;
        height[255] = curve(Self::EDGE);
        let mut outer = Self::EDGE;
        for i in (1..255).rev() {
            let inner = (-2.0 * (Self::AREA / outer + curve(outer)).ln()).sqrt();
            inside[i + 1] = (inner / outer * scale) as u64;
            width[i] = inner / scale;
            height[i] = curve(inner);
            outer = inner;
        }
        Self { inside, width, height }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_numpy() {
        // numpy.random.Generator(numpy.random.PCG64(int.from_bytes(sha256(b"0/a/b")[:8], "little")))
        let mut generator = Generator::of("0/a/b");
        let normal: [f64; 4] = std::array::from_fn(|_| generator.normal());
        let expected =
            [0.23065190103034966, -0.34547472639653304, 1.3838942136468129, -0.8060646331406116];
        assert_eq!(normal, expected);
        let uniform: [f64; 2] = std::array::from_fn(|_| generator.unit());
        assert_eq!(uniform, [0.19375738790965968, 0.911898880703217]);
    }

    #[test]
    fn numbers_of_the_tail_are_those_of_numpy() {
        let mut generator = Generator::of("0/a/b");
        let numbers = (0..100_000).map(|_| generator.normal());
        let far: Vec<f64> = numbers.filter(|x| x.abs() > Ziggurat::EDGE).collect();
        assert_eq!(far.len(), 32);
        assert!((far.iter().sum::<f64>() + 15.116919703754704).abs() < 1e-9);
    }
}
