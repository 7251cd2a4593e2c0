//! Choosing a token from a row of logits.

use crate::op::{Channels, Linear, Softcap};
use crate::{Access, OpDesc, View, WeightId};

/// One token per row.
///
/// # Math
/// 0. A token that the row's mask leaves out has the logit −∞, whatever follows. A logit that is not a number is −∞.
/// 1. Each token in the row's history: logit divided (if positive) or multiplied by `repetition`; minus
///    `presence` and `frequency·count` if generated `count > 0` times; plus its bias.
/// 2. `temperature = 0`: the largest logit, ties to the lower id.
/// 3. Otherwise logits are divided by the temperature and filtered: the `top_k` largest (0: all); then, by
///    probability among those, the shortest prefix that reaches `top_p`; then those with at least `min_p`
///    times the largest probability. Order is by logit, ties by lower id.
/// 4. A row without a logit above −∞ has nothing to sample: [`Sample::NO_TOKEN`], for the host to read as an error.
/// 5. The sampled token is the largest `logit + gumbel(seed, position, id)` of what is left.
///
/// The noise depends on seed, position and id alone, so a sampled token is a function of (seed, position,
/// logits, mask, history): the same with speculation on or off, alone or in a batch.
///
/// # History
/// `history` holds [`HistoryEntry`] words for everything before the span; the span's own tokens up to the row are read
/// from `ids`, so draft rows see exactly the tokens before them. Tokens that are no candidates have no logit to change.
///
/// # Masks
/// A mask has one bit per token of the vocabulary, in [`Sample::mask_words`] words, and a row names one or none. A row
/// whose mask leaves no candidate has nothing to sample.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// `[rows, candidates]`.
    pub logits: View,
    /// Tokens that can be chosen: the first so many of the vocabulary.
    pub candidates: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// u32 `[rows, SampleRow::WORDS]`.
    pub rows: View,
    /// u32 `[entries, HistoryEntry::WORDS]`, rows point into it.
    pub history: View,
    /// u32: the batch's token ids, rows point into it.
    pub ids: View,
    /// u32 `[masks, Sample::mask_words(vocabulary)]`, rows point into it; bit `t % 32` of word `t / 32` allows token
    /// `t`.
    pub masks: View,
    /// u32 `[rows]`.
    pub out: View,
}

impl Sample {
    /// What a row samples that has nothing to sample: no logit of its candidates is a number above −∞.
    pub const NO_TOKEN: u32 = u32::MAX;

    /// u32 words of a mask over so many tokens.
    pub const fn mask_words(vocabulary: usize) -> usize {
        vocabulary.div_ceil(32)
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        self.operands(desc, Access::Read);
    }

    fn operands(&self, desc: &mut OpDesc<'_>, logits: Access) {
        let rows = self.out.len;
        desc.require(
            self.candidates > 0 && self.candidates <= self.vocabulary,
            "candidates must be between 1 and the vocabulary",
        );
        desc.f32("logits", self.logits, logits, rows.saturating_mul(self.candidates));
        desc.u32("rows", self.rows, Access::Read, rows * SampleRow::WORDS);
        desc.require(
            self.history.len.is_multiple_of(HistoryEntry::WORDS),
            "history is not whole entries",
        );
        desc.u32("history", self.history, Access::Gather, self.history.len);
        desc.u32("ids", self.ids, Access::Read, self.ids.len);
        desc.require(
            self.masks.len.is_multiple_of(Self::mask_words(self.vocabulary).max(1)),
            "masks are not whole",
        );
        desc.u32("masks", self.masks, Access::Gather, self.masks.len);
        desc.u32("out", self.out, Access::Write, rows);
        desc.work(0, (self.candidates * self.flops_per_token(desc, rows)) as u64);
    }

    /// Of all rows: a comparison where the largest is taken, else filters and noise.
    fn flops_per_token(&self, desc: &OpDesc<'_>, rows: usize) -> usize {
        let Some(words) = desc.words(self.rows) else { return 20 * rows };
        let each = words.chunks_exact(SampleRow::WORDS).map(SampleRow::from_words);
        each.map(|row| if row.temperature == 0.0 { 1 } else { 20 }).sum()
    }
}

/// One token per row of a product: a head and what is chosen of its logits, which nobody else wants to see.
///
/// # Math
/// `logits[r][t] = Σ_k x[r][k]·w[t][k]` for the candidates, through [`Softcap`] where there is a cap; then [`Sample`].
#[derive(Clone, Copy, Debug)]
pub struct HeadSample {
    /// `[rows, K]`.
    pub x: View,
    /// `[vocabulary, K]`.
    pub weight: WeightId,
    /// Logits stay below this.
    pub cap: Option<f32>,
    /// How to choose. `logits` are left unspecified; room for the unfused definition.
    pub sample: Sample,
}

impl HeadSample {
    /// The operations this one is defined as.
    pub fn parts(self) -> (Linear, Option<Softcap>, Sample) {
        let Self { x, weight, cap, sample } = self;
        let product = Linear::set(x, weight, sample.logits);
        let cap = cap.map(|cap| Softcap { x: sample.logits, cap });
        (Linear { channels: Some(Channels::head(sample.candidates)), ..product }, cap, sample)
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Some(weight) = desc.weight_info("weight", self.weight) else { return };
        desc.shape("weight", self.weight, [self.sample.vocabulary, weight.cols]);
        desc.require(
            self.cap.is_none_or(|cap| cap > 0.0 && cap.is_finite()),
            "a cap is a positive number",
        );
        let (rows, candidates) = (self.sample.out.len, self.sample.candidates.min(weight.rows));
        desc.f32("x", self.x, Access::Read, rows.saturating_mul(weight.cols));
        self.sample.operands(desc, Access::Write);
        desc.weight_bytes(weight.bytes_of(candidates));
        desc.work(0, 2 * (candidates * self.x.len) as u64);
    }
}

/// How one row is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRow {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 does nothing.
    pub repetition: f32,
    /// 0 does nothing.
    pub presence: f32,
    /// 0 does nothing.
    pub frequency: f32,
    /// Keys the noise.
    pub seed: u64,
    /// Position of the token to be sampled.
    pub position: u32,
    /// First entry in `history`.
    pub history_first: u32,
    /// Entries in `history`.
    pub history_len: u32,
    /// First of the span's tokens in `ids`.
    pub ids_first: u32,
    /// The span's tokens up to and including this row.
    pub ids_len: u32,
    /// How many of those belong to the prompt (they repeat, but were not generated).
    pub ids_prompt: u32,
    /// 0 allows every token; `i` is mask number `i − 1`.
    pub mask: u32,
}

impl SampleRow {
    /// u32 words per row.
    pub const WORDS: usize = 16;

    /// Greedy, nothing else.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition: 1.0,
        presence: 0.0,
        frequency: 0.0,
        seed: 0,
        position: 0,
        history_first: 0,
        history_len: 0,
        ids_first: 0,
        ids_len: 0,
        ids_prompt: 0,
        mask: 0,
    };

    /// Whether any token's logit depends on what came before.
    pub fn has_penalties(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// The words of this row.
    pub const fn words(&self) -> [u32; Self::WORDS] {
        [
            self.temperature.to_bits(),
            self.top_k,
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.repetition.to_bits(),
            self.presence.to_bits(),
            self.frequency.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.position,
            self.history_first,
            self.history_len,
            self.ids_first,
            self.ids_len,
            self.ids_prompt,
            self.mask,
        ]
    }

    /// The row from its words.
    ///
    /// # Panics
    /// When `words` is not exactly one row.
    pub fn from_words(words: &[u32]) -> Self {
        assert_eq!(words.len(), Self::WORDS, "a sample row has {} words", Self::WORDS);
        Self {
            temperature: f32::from_bits(words[0]),
            top_k: words[1],
            top_p: f32::from_bits(words[2]),
            min_p: f32::from_bits(words[3]),
            repetition: f32::from_bits(words[4]),
            presence: f32::from_bits(words[5]),
            frequency: f32::from_bits(words[6]),
            seed: u64::from(words[7]) | (u64::from(words[8]) << 32),
            position: words[9],
            history_first: words[10],
            history_len: words[11],
            ids_first: words[12],
            ids_len: words[13],
            ids_prompt: words[14],
            mask: words[15],
        }
    }
}

/// What the committed text says of one token. A token appears at most once per sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HistoryEntry {
    /// The token.
    pub token: u32,
    /// Whether it occurs in prompt or answer.
    pub seen: bool,
    /// How often it was generated.
    pub generated: u32,
    /// Added to its logit.
    pub bias: f32,
}

impl HistoryEntry {
    /// u32 words per entry.
    pub const WORDS: usize = 3;

    /// The words of this entry.
    pub const fn words(self) -> [u32; Self::WORDS] {
        [self.token, (self.generated << 1) | self.seen as u32, self.bias.to_bits()]
    }

    /// The entry from its words.
    ///
    /// # Panics
    /// When `words` is not exactly one entry.
    pub fn from_words(words: &[u32]) -> Self {
        assert_eq!(words.len(), Self::WORDS, "a history entry has {} words", Self::WORDS);
        Self {
            token: words[0],
            seen: words[1] & 1 == 1,
            generated: words[1] >> 1,
            bias: f32::from_bits(words[2]),
        }
    }
}

/// A number in (0, 1] from counters alone: PCG-4D, 32-bit integer arithmetic that every device has.
pub const fn uniform(seed: u64, position: u32, token: u32) -> f32 {
    const fn lcg(x: u32) -> u32 {
        x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
    }
    let mut v = [lcg(seed as u32), lcg((seed >> 32) as u32), lcg(position), lcg(token)];
    let mut round = 0;
    while round < 2 {
        v[0] = v[0].wrapping_add(v[1].wrapping_mul(v[3]));
        v[1] = v[1].wrapping_add(v[2].wrapping_mul(v[0]));
        v[2] = v[2].wrapping_add(v[0].wrapping_mul(v[1]));
        v[3] = v[3].wrapping_add(v[1].wrapping_mul(v[2]));
        if round == 0 {
            let mut i = 0;
            while i < 4 {
                v[i] ^= v[i] >> 16;
                i += 1;
            }
        }
        round += 1;
    }
    (v[0] as f32 + 0.5) * (1.0 / 4_294_967_296.0)
}

/// Standard Gumbel noise for one candidate.
///
/// `−ln(−ln(1 − u))`: the large values come from small `u`, where f32 is finest, so the upper
/// tail is good to `2^-33`. Sums and products of f32 alone, rounded one by one, so every device has the same bits.
pub fn gumbel(seed: u64, position: u32, token: u32) -> f32 {
    let u = uniform(seed, position, token);
    let w = 1.0 - u;
    if w == 0.0 {
        return f32::NEG_INFINITY;
    }
    // −ln(1 − u), with what rounding took from 1 − u.
    let exponential = if w == 1.0 { u } else { ((w - 1.0) + u) / w - ln(w) };
    -ln(exponential)
}

/// The logarithm of a positive normal number, good to two units in the last place (Cephes).
fn ln(x: f32) -> f32 {
    /// `(ln(1 + z) − z + z²/2) / z³` for `√½ ≤ 1 + z < √2`, highest power first.
    const POLYNOMIAL: [f32; 9] = [
        0.070_376_836,
        -0.115_146_1,
        0.116_769_99,
        -0.124_201_41,
        0.142_493_23,
        -0.166_680_58,
        0.200_007_15,
        -0.249_999_94,
        0.333_333_3,
    ];
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let bits = x.to_bits().wrapping_sub(SQRT_HALF);
    let e = (bits as i32 >> 23) as f32;
    let z = f32::from_bits((bits & 0x7f_ffff) + SQRT_HALF) - 1.0;
    let p = POLYNOMIAL[1..].iter().fold(POLYNOMIAL[0], |p, c| p * z + c);
    let square = z * z;
    let y = p * z * square + e * LN2[1] - 0.5 * square;
    (z + y) + e * LN2[0]
}

/// ln 2 in two parts, the first with few bits so that its products with small integers are exact.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// What a token weighs whose logit is `difference` above the largest one, which is not above zero:
/// `e^difference` in units of `2^-40`, what is less than one left out.
///
/// An integer, so sums of them do not depend on their order, and what the filters keep is the same on every device.
pub fn weight(difference: f32) -> u64 {
    /// `(e^r − 1 − r) / r²` for `|r| ≤ ln 2 / 2`, highest power first (Cephes).
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1];
    /// Adding and taking away `1.5·2²³` leaves the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    // Numbers that are no number weigh nothing either.
    if difference.is_nan() || difference < -28.0 {
        return 0;
    }
    let n = (difference * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (difference - n * LN2[0]) - n * LN2[1];
    let p = POLYNOMIAL[1..].iter().fold(POLYNOMIAL[0], |p, c| p * r + c);
    let e = (p * (r * r) + r) + 1.0;
    (e * f32::from_bits(((n as i32 + 40 + 127) as u32) << 23)) as u64
}

/// Whether tokens that weigh `sum` are as much of `total` as `top_p` asks for.
pub fn reaches(top_p: f32, sum: u64, total: u64) -> bool {
    sum as f64 >= f64::from(top_p) * total as f64
}

/// Whether a token that weighs `weight` passes `min_p`; the best token always does.
pub fn passes(min_p: f32, weight: u64) -> bool {
    weight as f64 >= f64::from(min_p) * WHOLE
}

/// What the best token weighs.
const WHOLE: f64 = 1_099_511_627_776.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_within_two_units_of_the_last_place() {
        let sizes = (0x0080_0000_u32..0x7f80_0000).step_by(0x1357).map(f32::from_bits);
        let near_one = (0..100_000).map(|i| 0.5 + i as f32 * 1.5e-5);
        for x in sizes.chain(near_one) {
            let exact = f64::from(x).ln();
            let unit = f64::from(f32::EPSILON) * exact.abs().max(1e-30);
            let far = (f64::from(ln(x)) - exact).abs() / unit;
            assert!(far <= 2.0, "ln {x:e} is {far} units away");
        }
    }

    #[test]
    fn noise_is_minus_the_logarithm_of_an_exponential() {
        for token in 0..200_000 {
            let u = f64::from(uniform(7, 3, token));
            let exact = -(-(-u).ln_1p()).ln();
            let found = f64::from(gumbel(7, 3, token));
            // Near zero the outer logarithm cancels.
            assert!(
                (found - exact).abs() <= 4e-7 * exact.abs().max(1.0),
                "{token}: {found} {exact}"
            );
        }
    }

    #[test]
    fn weights_fall_with_the_logit_and_end_in_nothing() {
        assert_eq!(weight(0.0), 1 << 40);
        for nothing in [f32::NAN, f32::NEG_INFINITY, -28.1, -1e30] {
            assert_eq!(weight(nothing), 0, "{nothing}");
        }
        for i in 0..280_000 {
            let x = i as f32 * -1e-4;
            let exact = f64::from(x).exp() * WHOLE;
            assert!((weight(x) as f64 - exact).abs() <= 2.0 + 2e-7 * exact, "{x}");
        }
    }

    #[test]
    fn filters_are_reached_by_as_much_as_they_ask_for() {
        assert!(reaches(0.5, 50, 100) && !reaches(0.5, 49, 100) && reaches(0.9, 0, 0));
        assert!(passes(0.5, 1 << 39) && !passes(0.5, (1 << 39) - 1) && passes(0.0, 0));
    }
}
