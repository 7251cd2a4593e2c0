//! Mamba-2: step sizes, the selective scan with log-and-fold state, and the gated norm over groups.

use crate::op::Spans;
use crate::op::spans::Moves;
use crate::{Access, OpDesc, View, WeightId};

/// Head counts and widths of a Mamba-2 layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanShape {
    /// Heads.
    pub heads: usize,
    /// Groups of heads that share B and C, a divisor of `heads`; head `h` is of group `h / (heads/groups)`.
    pub groups: usize,
    /// Channels of a head.
    pub width: usize,
    /// Numbers that are remembered of each channel: the width of B and of C.
    pub state: usize,
}

impl ScanShape {
    /// Channels of all heads.
    pub const fn inner(&self) -> usize {
        self.heads * self.width
    }

    /// Width of the `[x | B | C]` row.
    pub const fn channels(&self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }

    /// f32 of one slot's state, `[heads, width, state]`.
    pub const fn state_len(&self) -> usize {
        self.inner() * self.state
    }

    /// f32 of one log row: `[x | B | step | decay]`.
    pub const fn log_len(&self) -> usize {
        self.inner() + self.groups * self.state + 2 * self.heads
    }

    fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.require(
            self.heads > 0 && self.groups > 0 && self.heads.is_multiple_of(self.groups),
            "heads must be a multiple of groups, and neither zero",
        );
        desc.require(self.width > 0 && self.state > 0, "widths must not be zero");
    }
}

/// How far each head of a row goes, and what of its state that leaves.
///
/// # Math
/// Per head: `step = min(max(ln(1 + exp(dt + bias)), least), most)`, in place, and `decay = exp(rate · step)`.
#[derive(Clone, Copy, Debug)]
pub struct ScanGates {
    /// `[rows, heads]`: `dt` in, the step out.
    pub step: View,
    /// `[1, heads]`: `−exp(A_log)`.
    pub rate: WeightId,
    /// `[1, heads]`.
    pub bias: WeightId,
    /// Heads.
    pub heads: usize,
    /// No step is smaller.
    pub least: f32,
    /// No step is larger; perhaps infinite.
    pub most: f32,
    /// `[rows, heads]`.
    pub decay: View,
}

impl ScanGates {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let (heads, len) = (self.heads, self.step.len);
        desc.require(heads > 0 && len.is_multiple_of(heads.max(1)), "steps are not whole rows");
        desc.require(
            self.least >= 0.0 && self.least <= self.most,
            "the least step must be at least 0, and the most not below it",
        );
        desc.f32("step", self.step, Access::Update, len);
        desc.weight("rate", self.rate, [1, heads]);
        desc.weight("bias", self.bias, [1, heads]);
        desc.f32("decay", self.decay, Access::Write, len);
        desc.work(0, 30 * len as u64);
    }
}

/// The selective scan of Mamba-2 over each span's rows, sequentially.
///
/// # Math
/// Per head with memory `S [width, state]`, and B and C of its group:
///
/// ```text
/// S ← decay·S + (step·x) Bᵀ      forget, write
/// y = S·C + skip·x               read, and the input past it
/// ```
///
/// # State
/// See [`crate::op::SpanEntry`]: pending log rows are folded with the same arithmetic, confirmed rows advance the
/// state, drafts work on a private copy and leave x, B, step and decay in the log.
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScan {
    /// `[rows, x | B | C]`, convolved.
    pub xbc: View,
    /// `[rows, heads]` from [`ScanGates`].
    pub step: View,
    /// `[rows, heads]` from [`ScanGates`].
    pub decay: View,
    /// `[1, heads]`: what of the input goes past the state.
    pub skip: WeightId,
    /// `[slots, heads, width, state]`.
    pub state: View,
    /// `[slots, log_rows, x | B | step | decay]`.
    pub log: View,
    /// Which rows belong together.
    pub spans: Spans,
    /// Heads.
    pub shape: ScanShape,
    /// `[rows, heads, width]`.
    pub out: View,
}

impl SelectiveScan {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let shape = self.shape;
        shape.describe(desc);
        let rows = self.xbc.len / shape.channels().max(1);
        let Spans { slots, log_rows, .. } = self.spans;
        desc.f32("xbc", self.xbc, Access::Read, rows * shape.channels());
        desc.f32("step", self.step, Access::Read, rows * shape.heads);
        desc.f32("decay", self.decay, Access::Read, rows * shape.heads);
        desc.weight("skip", self.skip, [1, shape.heads]);
        desc.f32("state", self.state, Access::Scatter, slots * shape.state_len());
        desc.f32("log", self.log, Access::Scatter, slots * log_rows * shape.log_len());
        self.spans.describe(desc);
        desc.f32("out", self.out, Access::Write, rows * shape.inner());
        let Moves { reads, writes, folded, logged } = self.spans.moves(desc);
        let state = shape.state_len() as u64;
        let log = (folded + logged) * shape.log_len() as u64;
        // A folded row is written to the state and gives no output.
        desc.state_bytes(4 * ((reads + writes) * state + log));
        desc.work(0, (5 * rows as u64 + 3 * folded) * state);
    }
}

/// `x ← x·silu(gate) / sqrt(mean((x·silu(gate))²) + eps) · weight`, in place; the mean is of a group of `dim`, the
/// weight of the whole row.
#[derive(Clone, Copy, Debug)]
pub struct GatedGroupNorm {
    /// `[rows, width]`, in place.
    pub x: View,
    /// Same shape as `x`.
    pub gate: View,
    /// `[1, width]`.
    pub weight: WeightId,
    /// Width of a group, a divisor of `width`.
    pub dim: usize,
    /// Added to the mean square.
    pub eps: f32,
}

impl GatedGroupNorm {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Some(weight) = desc.weight_info("weight", self.weight) else { return };
        let width = weight.cols;
        desc.require(self.dim > 0 && width.is_multiple_of(self.dim), "a row is not whole groups");
        desc.require(width > 0 && self.x.len.is_multiple_of(width), "x is not whole rows");
        desc.f32("x", self.x, Access::Update, self.x.len);
        desc.f32("gate", self.gate, Access::Read, self.x.len);
        desc.weight("weight", self.weight, [1, width]);
        desc.work(0, 12 * self.x.len as u64);
    }
}
