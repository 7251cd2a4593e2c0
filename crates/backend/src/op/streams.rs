//! A residual of several streams (AltUp): a layer works on one of them, and the others are predicted from it and
//! corrected by what it did.
//!
//! A stream is a buffer of its own, `[rows, dim]`, so that every other operation can read or write one. What mixes them
//! is made of a few numbers for each row, `m = tanh(router)`, one for each stream.

use crate::op::Store;
use crate::{Access, OpDesc, View, WeightId};

/// Rows of the same tokens in several buffers.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// Each `[rows, dim]`; the first ones are there.
    pub views: [Option<View>; Streams::MOST],
    /// Width of a row.
    pub dim: usize,
    /// The stream that the layer works on.
    pub active: usize,
}

impl Streams {
    /// Most streams of a call.
    pub const MOST: usize = 8;
    const NAMES: [&str; Self::MOST] = [
        "streams[0]",
        "streams[1]",
        "streams[2]",
        "streams[3]",
        "streams[4]",
        "streams[5]",
        "streams[6]",
        "streams[7]",
    ];

    /// How many there are.
    pub fn count(&self) -> usize {
        self.views.iter().flatten().count()
    }

    /// Describes all of them, updated, and the rows of `router`; how many rows there are.
    fn describe(&self, router: View, desc: &mut OpDesc<'_>) -> usize {
        let count = self.count();
        desc.require(self.views.iter().take(count).all(Option::is_some), "a stream left out");
        desc.require(self.active < count, "the active stream is not there");
        desc.require(self.dim > 0, "streams of no width");
        let rows = router.len / count.max(1);
        desc.f32("router", router, Access::Read, rows * count);
        for (view, name) in self.views.iter().flatten().zip(Self::NAMES) {
            desc.f32(name, *view, Access::Update, rows * self.dim);
        }
        rows
    }
}

/// What the streams are expected to be after a layer, before it runs.
///
/// # Math
/// `sᵢ ← sᵢ + Σⱼ pᵢⱼ·sⱼ` with the streams as they were, and `pᵢⱼ = Σₖ weight[i·n + j][k]·m[k]` for `n` streams.
/// `out` is the active one afterwards.
#[derive(Clone, Copy, Debug)]
pub struct PredictStreams {
    /// The streams, in place.
    pub streams: Streams,
    /// `[rows, n]`, before the hyperbolic tangent.
    pub router: View,
    /// `[n·n, n]`.
    pub weight: WeightId,
    /// `[rows, dim]`.
    pub out: View,
}

impl PredictStreams {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let rows = self.streams.describe(self.router, desc);
        let (count, dim) = (self.streams.count(), self.streams.dim);
        desc.weight("weight", self.weight, [count * count, count]);
        desc.f32("out", self.out, Access::Write, rows * dim);
        let coefficients = 2 * count * count * count + 20 * count;
        desc.work(0, (rows * (coefficients + 2 * count * count * dim)) as u64);
    }
}

/// The streams after a layer, by how far its result is from what was predicted.
///
/// # Math
/// `sᵢ ← sᵢ + cᵢ·(x − s_active)` with the active stream as it was, and `cᵢ = 1 + Σₖ weight[i][k]·m[k]`. `out` is the
/// active one afterwards, times `scale` where there is one.
#[derive(Clone, Copy, Debug)]
pub struct CorrectStreams {
    /// The streams, in place.
    pub streams: Streams,
    /// `[rows, dim]`: what the layer made of the active stream.
    pub x: View,
    /// `[rows, n]`, before the hyperbolic tangent.
    pub router: View,
    /// `[n, n]`.
    pub weight: WeightId,
    /// `[1, dim]`.
    pub scale: Option<WeightId>,
    /// `[rows, dim]`.
    pub out: View,
}

impl CorrectStreams {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let rows = self.streams.describe(self.router, desc);
        let (count, dim) = (self.streams.count(), self.streams.dim);
        desc.f32("x", self.x, Access::Read, rows * dim);
        desc.weight("weight", self.weight, [count, count]);
        if let Some(scale) = self.scale {
            desc.weight("scale", scale, [1, dim]);
        }
        desc.f32("out", self.out, Access::Write, rows * dim);
        desc.work(0, (rows * (2 * count * count + 20 * count + (2 * count + 2) * dim)) as u64);
    }
}

/// Rows brought to the size of others: `out (+)= x · sqrt(mean(like²) / max(mean(x²), floor)) · scale`, per row of
/// `dim`. A row that is matched to itself is copied.
#[derive(Clone, Copy, Debug)]
pub struct MatchRms {
    /// `[rows, dim]`.
    pub x: View,
    /// `[rows, dim]`.
    pub like: View,
    /// `[rows, dim]`.
    pub out: View,
    /// Width of a row.
    pub dim: usize,
    /// No mean square counts as less; above zero.
    pub floor: f32,
    /// Factor on the result.
    pub scale: f32,
    /// Replace or add.
    pub store: Store,
}

impl MatchRms {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let len = self.x.len;
        desc.require(self.dim > 0 && len.is_multiple_of(self.dim), "x is not whole rows");
        desc.require(self.floor > 0.0 && self.floor.is_finite(), "the floor must be positive");
        desc.f32("x", self.x, Access::Read, len);
        desc.f32("like", self.like, Access::Read, len);
        desc.f32("out", self.out, self.store.access(), len);
        desc.work(0, 7 * len as u64);
    }
}

/// What of a row lies above its mean by so many standard deviations: `x ← max(x − (mean + deviations·σ), 0)`, per row
/// of `dim`. Of numbers that are normally distributed a known share is left.
#[derive(Clone, Copy, Debug)]
pub struct Threshold {
    /// `[rows, dim]`, in place.
    pub x: View,
    /// Width of a row.
    pub dim: usize,
    /// Standard deviations, of the row as a whole (divided by `dim`, not by `dim − 1`).
    pub deviations: f32,
}

impl Threshold {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let len = self.x.len;
        desc.require(self.dim > 0 && len.is_multiple_of(self.dim), "x is not whole rows");
        desc.require(self.deviations.is_finite(), "the deviations must be finite");
        desc.f32("x", self.x, Access::Update, len);
        desc.work(0, 6 * len as u64);
    }
}
