//! The short convolution: causal and depthwise, with log-and-fold state.

use crate::op::Spans;
use crate::op::spans::Moves;
use crate::{Access, OpDesc, View, WeightId};

/// A causal depthwise convolution over each span's rows, with an optional gate on both sides.
///
/// # Math
/// With `u = x`, or `u = x · gates.input`, per channel `c`:
///
/// ```text
/// y_t = bias + Σ_j w[c][j] · u_{t−K+1+j}      silu(y_t) where wanted
/// out_t = y_t, or y_t · gates.output
/// ```
///
/// Rows before the span come from the slot's window (and its pending log rows), zeros before position 0.
///
/// # State
/// `window` holds the last `K − 1` rows of `u` at the committed position (oldest first), less pending
/// log rows. Confirmed rows move it on; drafts go to `log` and leave it alone.
#[derive(Clone, Copy, Debug)]
pub struct ShortConv {
    /// `[rows, channels]`.
    pub x: View,
    /// Factors on what goes in and what comes out.
    pub gates: Option<ConvGates>,
    /// `[channels, K]`, newest tap last.
    pub weight: WeightId,
    /// `[1, channels]`.
    pub bias: Option<WeightId>,
    /// Whether silu follows the sum.
    pub silu: bool,
    /// Width of a row.
    pub channels: usize,
    /// `[slots, K − 1, channels]`.
    pub window: View,
    /// `[slots, log_rows, channels]`.
    pub log: View,
    /// Which rows belong together.
    pub spans: Spans,
    /// `[rows, channels]`.
    pub out: View,
}

/// Factors beside a convolution, `[rows, channels]` each.
#[derive(Clone, Copy, Debug)]
pub struct ConvGates {
    /// On each row before the convolution.
    pub input: View,
    /// On each row after it.
    pub output: View,
}

impl ShortConv {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let channels = self.channels;
        desc.require(channels > 0, "a convolution over no channels");
        let Some(weight) = desc.weight_info("weight", self.weight) else { return };
        let taps = weight.cols;
        desc.require(taps > 1, "convolution needs at least two taps");
        let rows = self.x.len / channels.max(1);
        let Spans { slots, log_rows, .. } = self.spans;
        desc.f32("x", self.x, Access::Read, rows * channels);
        if let Some(gates) = self.gates {
            desc.f32("gates.input", gates.input, Access::Read, rows * channels);
            desc.f32("gates.output", gates.output, Access::Read, rows * channels);
        }
        desc.weight("weight", self.weight, [channels, taps]);
        if let Some(bias) = self.bias {
            desc.weight("bias", bias, [1, channels]);
        }
        let kept = taps.saturating_sub(1) * channels;
        desc.f32("window", self.window, Access::Scatter, slots * kept);
        desc.f32("log", self.log, Access::Scatter, slots * log_rows * channels);
        self.spans.describe(desc);
        desc.f32("out", self.out, Access::Write, rows * channels);
        let Moves { reads, writes, folded, logged } = self.spans.moves(desc);
        let log = (folded + logged) * channels as u64;
        desc.state_bytes(4 * ((reads + writes) * kept as u64 + log));
        let each =
            2 * taps + if self.silu { 10 } else { 0 } + 2 * usize::from(self.gates.is_some());
        desc.work(0, (rows * channels * each) as u64);
    }
}
