//! Gated DeltaNet: short convolution, gates, and the delta rule, with log-and-fold state.

use crate::op::spans::Moves;
use crate::op::{ShortConv, Spans};
use crate::{Access, OpDesc, View, WeightId};

/// Head counts and widths of a delta-net layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`; value head `j` uses key head `j / (value/key)`.
    pub value_heads: usize,
    /// Width of a key.
    pub dk: usize,
    /// Width of a value.
    pub dv: usize,
}

impl DeltaShape {
    /// Width of the `[q | k | v]` row.
    pub const fn channels(&self) -> usize {
        2 * self.key_heads * self.dk + self.value_heads * self.dv
    }

    /// f32 of one slot's state, `[value_heads, dk, dv]`.
    pub const fn state_len(&self) -> usize {
        self.value_heads * self.dk * self.dv
    }

    /// f32 of one log row: `[k | v | decay | beta]`.
    pub const fn log_len(&self) -> usize {
        self.key_heads * self.dk + self.value_heads * (self.dv + 2)
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(
            self.key_heads > 0
                && self.value_heads > 0
                && self.value_heads.is_multiple_of(self.key_heads),
            "value heads must be a multiple of key heads, and neither zero",
        );
        desc.require(self.dk > 0 && self.dv > 0, "head widths must not be zero");
    }
}

/// Makes the convolved rows of spans ready for the delta rule; rows of no span stay.
///
/// # Math
/// Each head of q and k, in place: `u / sqrt(Σu² + 1e-6)`, q also times `dk^-½`.
/// `decay = exp(rate · softplus(a + dt_bias))`, `beta = beta_scale · σ(b)`, per value head.
#[derive(Clone, Copy, Debug)]
pub struct DeltaGates {
    /// `[rows, q | k | v]`, q and k in place.
    pub qkv: View,
    /// `[rows, value_heads]`.
    pub a: View,
    /// `[rows, value_heads]`.
    pub b: View,
    /// `[1, value_heads]`: `−exp(A_log)`.
    pub rate: WeightId,
    /// `[1, value_heads]`.
    pub dt_bias: WeightId,
    /// Factor on write strengths; up to 2, where a write may turn what is remembered around.
    pub beta_scale: f32,
    /// Which rows there are.
    pub spans: Spans,
    /// Heads.
    pub shape: DeltaShape,
    /// `[rows, value_heads]`.
    pub decay: View,
    /// `[rows, value_heads]`.
    pub beta: View,
}

impl DeltaGates {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        self.shape.describe(desc);
        let DeltaShape { key_heads, value_heads, dk, .. } = self.shape;
        let channels = self.shape.channels();
        let rows = self.qkv.len / channels.max(1);
        let (heads, units) = (rows * value_heads, rows * 2 * key_heads * dk);
        desc.f32_part("qkv", self.qkv, Access::Update, rows * channels, units);
        desc.f32("a", self.a, Access::Read, heads);
        desc.f32("b", self.b, Access::Read, heads);
        desc.weight("rate", self.rate, [1, value_heads]);
        desc.weight("dt_bias", self.dt_bias, [1, value_heads]);
        self.spans.describe(desc);
        desc.f32("decay", self.decay, Access::Write, heads);
        desc.f32("beta", self.beta, Access::Write, heads);
        desc.work(0, (3 * units + 40 * heads) as u64);
    }
}

/// Makes the delta rule's inputs of projected rows: a [`ShortConv`] with silu over `x`, then [`DeltaGates`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaInputs {
    /// `[rows, q | k | v]`.
    pub x: View,
    /// `[rows, value_heads]`.
    pub a: View,
    /// `[rows, value_heads]`.
    pub b: View,
    /// `[channels, K]`, newest tap last.
    pub weight: WeightId,
    /// `[1, value_heads]`: `−exp(A_log)`.
    pub rate: WeightId,
    /// `[1, value_heads]`.
    pub dt_bias: WeightId,
    /// Factor on write strengths; up to 2, where a write may turn what is remembered around.
    pub beta_scale: f32,
    /// `[slots, K − 1, channels]`.
    pub window: View,
    /// `[slots, log_rows, channels]`.
    pub log: View,
    /// Which rows belong together.
    pub spans: Spans,
    /// Heads.
    pub shape: DeltaShape,
    /// `[rows, q | k | v]`.
    pub qkv: View,
    /// `[rows, value_heads]`.
    pub decay: View,
    /// `[rows, value_heads]`.
    pub beta: View,
}

impl DeltaInputs {
    /// The operations it is defined as.
    pub const fn parts(self) -> (ShortConv, DeltaGates) {
        let Self { x, a, b, weight, rate, dt_bias, window, log, spans, shape, .. } = self;
        let Self { beta_scale, qkv, decay, beta, .. } = self;
        let (channels, gates, bias, silu, out) = (shape.channels(), None, None, true, qkv);
        let conv = ShortConv { x, gates, weight, bias, silu, channels, window, log, spans, out };
        (conv, DeltaGates { qkv, a, b, rate, dt_bias, beta_scale, spans, shape, decay, beta })
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        self.shape.describe(desc);
        let Some(weight) = desc.weight_info("weight", self.weight) else { return };
        let DeltaShape { key_heads, value_heads, dk, .. } = self.shape;
        let (channels, taps) = (self.shape.channels(), weight.cols);
        desc.require(taps > 1, "convolution needs at least two taps");
        let rows = self.x.len / channels.max(1);
        let heads = rows * value_heads;
        let Spans { slots, log_rows, .. } = self.spans;
        desc.f32("x", self.x, Access::Read, rows * channels);
        desc.f32("a", self.a, Access::Read, heads);
        desc.f32("b", self.b, Access::Read, heads);
        desc.weight("weight", self.weight, [channels, taps]);
        desc.weight("rate", self.rate, [1, value_heads]);
        desc.weight("dt_bias", self.dt_bias, [1, value_heads]);
        let kept = taps.saturating_sub(1) * channels;
        desc.f32("window", self.window, Access::Scatter, slots * kept);
        desc.f32("log", self.log, Access::Scatter, slots * log_rows * channels);
        self.spans.describe(desc);
        desc.f32("qkv", self.qkv, Access::Write, rows * channels);
        desc.f32("decay", self.decay, Access::Write, heads);
        desc.f32("beta", self.beta, Access::Write, heads);
        let Moves { reads, writes, folded, logged } = self.spans.moves(desc);
        let log = (folded + logged) * channels as u64;
        desc.state_bytes(4 * ((reads + writes) * kept as u64 + log));
        let unit = 3 * rows * 2 * key_heads * dk;
        desc.work(0, (rows * channels * (2 * taps + 10) + unit + 40 * heads) as u64);
    }
}

/// The gated delta rule over each span's rows, sequentially.
///
/// # Math
/// Per value head with memory `S [dk, dv]`:
///
/// ```text
/// S ← decay·S            forget
/// e = beta·(v − Sᵀk)     the error of recall
/// S ← S + k eᵀ           write it
/// o = Sᵀq
/// ```
///
/// # State
/// See [`crate::op::SpanEntry`]: pending log rows are folded with the same arithmetic, confirmed rows
/// advance the state, drafts work on a private copy and leave k, v, decay, beta in the log.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule {
    /// `[rows, q | k | v]` from [`DeltaInputs`].
    pub qkv: View,
    /// `[rows, value_heads]`.
    pub decay: View,
    /// `[rows, value_heads]`.
    pub beta: View,
    /// `[slots, value_heads, dk, dv]`.
    pub state: View,
    /// `[slots, log_rows, k | v | decay | beta]`.
    pub log: View,
    /// Which rows belong together.
    pub spans: Spans,
    /// Heads.
    pub shape: DeltaShape,
    /// `[rows, value_heads, dv]`.
    pub out: View,
}

impl DeltaRule {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let shape = self.shape;
        shape.describe(desc);
        let rows = self.qkv.len / shape.channels().max(1);
        let Spans { slots, log_rows, .. } = self.spans;
        desc.f32("qkv", self.qkv, Access::Read, rows * shape.channels());
        desc.f32("decay", self.decay, Access::Read, rows * shape.value_heads);
        desc.f32("beta", self.beta, Access::Read, rows * shape.value_heads);
        desc.f32("state", self.state, Access::Scatter, slots * shape.state_len());
        desc.f32("log", self.log, Access::Scatter, slots * log_rows * shape.log_len());
        self.spans.describe(desc);
        desc.f32("out", self.out, Access::Write, rows * shape.value_heads * shape.dv);
        let Moves { reads, writes, folded, logged } = self.spans.moves(desc);
        let state = shape.state_len() as u64;
        let log = (folded + logged) * shape.log_len() as u64;
        // A folded row is written to the state and gives no output.
        desc.state_bytes(4 * ((reads + writes) * state + log));
        desc.work(0, (7 * rows as u64 + 5 * folded) * state);
    }
}
