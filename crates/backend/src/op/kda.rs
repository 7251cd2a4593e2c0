//! Kimi Delta Attention: the delta rule with a decay of each key channel, with log-and-fold state.

use super::{DeltaShape, Spans};
use crate::op::spans::Moves;
use crate::{Access, OpDesc, View, WeightId};

/// f32 of one log row: `[k | v | decay | beta]`.
pub const fn kda_log_len(shape: &DeltaShape) -> usize {
    let DeltaShape { key_heads, value_heads, dk, dv } = *shape;
    key_heads * dk + value_heads * (dv + dk + 1)
}

/// Makes convolved rows of spans ready for [`KdaRule`]; rows of no span stay.
///
/// # Math
/// Each head of q and k, in place: `u / sqrt(Σu² + 1e-6)`, q also times `dk^-½`. Per value head and key channel
/// `decay = exp(rate · softplus(a + dt_bias))`, per value head `beta = σ(b)`.
#[derive(Clone, Copy, Debug)]
pub struct KdaGates {
    /// `[rows, q | k | v]`, q and k in place.
    pub qkv: View,
    /// `[rows, value_heads, dk]`.
    pub a: View,
    /// `[rows, value_heads]`.
    pub b: View,
    /// `[1, value_heads]`: `−exp(A_log)`.
    pub rate: WeightId,
    /// `[1, value_heads · dk]`.
    pub dt_bias: WeightId,
    /// Which rows there are.
    pub spans: Spans,
    /// Heads.
    pub shape: DeltaShape,
    /// `[rows, value_heads, dk]`.
    pub decay: View,
    /// `[rows, value_heads]`.
    pub beta: View,
}

impl KdaGates {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        self.shape.describe(desc);
        let DeltaShape { key_heads, value_heads, dk, .. } = self.shape;
        let channels = self.shape.channels();
        let rows = self.qkv.len / channels.max(1);
        let (heads, units) = (rows * value_heads, rows * 2 * key_heads * dk);
        desc.f32_part("qkv", self.qkv, Access::Update, rows * channels, units);
        desc.f32("a", self.a, Access::Read, heads * dk);
        desc.f32("b", self.b, Access::Read, heads);
        desc.weight("rate", self.rate, [1, value_heads]);
        desc.weight("dt_bias", self.dt_bias, [1, value_heads * dk]);
        self.spans.describe(desc);
        desc.f32("decay", self.decay, Access::Write, heads * dk);
        desc.f32("beta", self.beta, Access::Write, heads);
        desc.work(0, (3 * units + heads * (30 * dk + 10)) as u64);
    }
}

/// The delta rule with a decay of each key channel over each span's rows, sequentially.
///
/// # Math
/// Per value head with memory `S [dk, dv]`:
///
/// ```text
/// S ← diag(decay)·S      forget
/// e = beta·(v − Sᵀk)     the error of recall
/// S ← S + k eᵀ           write it
/// o = Sᵀq
/// ```
///
/// # State
/// As [`DeltaRule`](crate::op::DeltaRule): pending log rows are folded, confirmed rows advance the state, drafts work
/// on a private copy and leave k, v, decay, beta in the log.
#[derive(Clone, Copy, Debug)]
pub struct KdaRule {
    /// `[rows, q | k | v]`.
    pub qkv: View,
    /// `[rows, value_heads, dk]`.
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

impl KdaRule {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let shape = self.shape;
        shape.describe(desc);
        let rows = self.qkv.len / shape.channels().max(1);
        let Spans { slots, log_rows, .. } = self.spans;
        let log_len = kda_log_len(&shape);
        desc.f32("qkv", self.qkv, Access::Read, rows * shape.channels());
        desc.f32("decay", self.decay, Access::Read, rows * shape.value_heads * shape.dk);
        desc.f32("beta", self.beta, Access::Read, rows * shape.value_heads);
        desc.f32("state", self.state, Access::Scatter, slots * shape.state_len());
        desc.f32("log", self.log, Access::Scatter, slots * log_rows * log_len);
        self.spans.describe(desc);
        desc.f32("out", self.out, Access::Write, rows * shape.value_heads * shape.dv);
        let Moves { reads, writes, folded, logged } = self.spans.moves(desc);
        let state = shape.state_len() as u64;
        let log = (folded + logged) * log_len as u64;
        desc.state_bytes(4 * ((reads + writes) * state + log));
        desc.work(0, (7 * rows as u64 + 5 * folded) * state);
    }
}
