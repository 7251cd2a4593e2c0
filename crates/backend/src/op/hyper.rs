//! A residual stream of several parallel ones: how a block's input is made of them, and where its output goes.

use crate::{Access, OpDesc, View, WeightId};

/// `out = x / sqrt(mean(x²) + eps) · weight`, per group of `group` neighbours in a row.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm {
    /// `[rows, dim]`.
    pub x: View,
    /// `[1, dim]`.
    pub weight: WeightId,
    /// `[rows, dim]`.
    pub out: View,
    /// Width of a row: whole groups.
    pub dim: usize,
    /// Width of a group.
    pub group: usize,
    /// Added to the mean squares.
    pub eps: f32,
}

impl GroupNorm {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { dim, group, .. } = *self;
        desc.require(dim > 0 && self.x.len.is_multiple_of(dim), "x is not whole rows");
        desc.require(group > 0 && dim.is_multiple_of(group), "a row is not whole groups");
        desc.f32("x", self.x, Access::Read, self.x.len);
        desc.weight("weight", self.weight, [1, dim]);
        desc.f32("out", self.out, Access::Write, self.x.len);
        desc.work(0, 4 * self.x.len as u64);
    }
}

/// `x ← x · σ(x)`.
#[derive(Clone, Copy, Debug)]
pub struct SiluRows {
    /// Any length, in place.
    pub x: View,
}

impl SiluRows {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        desc.f32("x", self.x, Access::Update, self.x.len);
        desc.work(0, 10 * self.x.len as u64);
    }
}

/// `out[r][i] = Σ_s σ(gates[r][s][i]) · x[r][s][i]`, in order of `s`.
#[derive(Clone, Copy, Debug)]
pub struct MixStreams {
    /// `[rows, streams, dim]`.
    pub x: View,
    /// `[rows, streams, dim]`.
    pub gates: View,
    /// Streams.
    pub streams: usize,
    /// Width of a stream.
    pub dim: usize,
    /// `[rows, dim]`.
    pub out: View,
}

impl MixStreams {
    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let wide = wide(desc, self.streams, self.dim, self.x);
        desc.f32("x", self.x, Access::Read, self.x.len);
        desc.f32("gates", self.gates, Access::Read, self.x.len);
        desc.f32("out", self.out, Access::Write, self.x.len / wide * self.dim);
        desc.work(0, 12 * self.x.len as u64);
    }
}

/// The width of all streams together, checked against a view of them.
fn wide(desc: &mut OpDesc<'_>, streams: usize, dim: usize, x: View) -> usize {
    desc.require(streams > 0 && dim > 0, "streams of no width");
    let wide = streams.saturating_mul(dim).max(1);
    desc.require(x.len.is_multiple_of(wide), "x is not whole rows");
    wide
}

/// How a block's output meets the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUpdate {
    /// `x_s = y`: all begin as the same.
    Set,
    /// `x_s += y`.
    Add,
    /// `x_s += 2σ(gates_s) · y`.
    Gated {
        /// `[rows, streams]`.
        gates: View,
    },
    /// `x_s = post_s · y + Σ_j comb[j][s] · x_j`.
    Mixed {
        /// `[rows, streams]`.
        post: View,
        /// `[rows, streams, streams]`.
        comb: View,
    },
}

/// A block's output to all streams.
#[derive(Clone, Copy, Debug)]
pub struct UpdateStreams {
    /// `[rows, dim]`.
    pub y: View,
    /// What happens to it.
    pub update: StreamUpdate,
    /// Streams.
    pub streams: usize,
    /// Width of a stream.
    pub dim: usize,
    /// `[rows, streams, dim]`.
    pub x: View,
}

impl UpdateStreams {
    /// The most streams that mix.
    pub const MOST_MIXED: usize = 16;

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { streams, dim, .. } = *self;
        let wide = wide(desc, streams, dim, self.x);
        let rows = self.x.len / wide;
        desc.f32("y", self.y, Access::Read, rows * dim);
        let mut each = 1;
        let access = match self.update {
            StreamUpdate::Set => Access::Write,
            StreamUpdate::Add => Access::Update,
            StreamUpdate::Gated { gates } => {
                desc.f32("gates", gates, Access::Read, rows * streams);
                Access::Update
            }
            StreamUpdate::Mixed { post, comb } => {
                desc.require(streams <= Self::MOST_MIXED, "more streams mix than can");
                desc.f32("post", post, Access::Read, rows * streams);
                desc.f32("comb", comb, Access::Read, rows * streams * streams);
                each = streams;
                Access::Update
            }
        };
        desc.f32("x", self.x, access, self.x.len);
        desc.work(0, (2 * each * self.x.len) as u64);
    }
}

/// One stream of several by weights that a product gave, and what the next [`UpdateStreams`] needs.
///
/// # Math
/// With `n` streams and logits `[pre | post | comb]` of `n`, `n` and `n·n` numbers, each part times its number of
/// `scale` plus `base`:
///
/// ```text
/// out  = Σ_s (σ(pre_s) + eps) · x_s
/// post = 2σ(post)
/// comb = softmax of each row + eps;  columns to sum 1;  then iterations − 1 times rows, columns
/// ```
///
/// where a sum that is divided by has `eps` added. Without `mixing` the logits are `pre` alone.
#[derive(Clone, Copy, Debug)]
pub struct CollapseStreams {
    /// `[rows, streams, dim]`.
    pub x: View,
    /// `[rows, streams · (streams + 2)]`, or `[rows, streams]`.
    pub logits: View,
    /// `[1, 3]`, or `[1, 1]`.
    pub scale: WeightId,
    /// As wide as `logits`.
    pub base: WeightId,
    /// What is made besides.
    pub mixing: Option<StreamMixing>,
    /// Streams.
    pub streams: usize,
    /// Width of a stream.
    pub dim: usize,
    /// Added to weights and sums.
    pub eps: f32,
    /// `[rows, dim]`.
    pub out: View,
}

/// How streams will be mixed.
#[derive(Clone, Copy, Debug)]
pub struct StreamMixing {
    /// Rounds of division by sums, at least one.
    pub iterations: usize,
    /// `[rows, streams]`.
    pub post: View,
    /// `[rows, streams, streams]`.
    pub comb: View,
}

impl CollapseStreams {
    /// Width of a row of logits.
    pub const fn logits(streams: usize, mixing: bool) -> usize {
        if mixing { streams * (streams + 2) } else { streams }
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { streams, dim, mixing, .. } = *self;
        let wide = wide(desc, streams, dim, self.x);
        let rows = self.x.len / wide;
        desc.require(streams <= UpdateStreams::MOST_MIXED, "more streams mix than can");
        let each = Self::logits(streams.min(UpdateStreams::MOST_MIXED), mixing.is_some());
        desc.f32("x", self.x, Access::Read, self.x.len);
        desc.f32("logits", self.logits, Access::Read, rows * each);
        desc.weight("scale", self.scale, [1, if mixing.is_some() { 3 } else { 1 }]);
        desc.weight("base", self.base, [1, each]);
        if let Some(StreamMixing { iterations, post, comb }) = mixing {
            desc.require(iterations > 0 && iterations <= 1 << 10, "rounds must be 1 to 1024");
            desc.f32("post", post, Access::Write, rows * streams);
            desc.f32("comb", comb, Access::Write, rows * streams * streams);
            desc.work(0, (4 * rows * iterations * streams * streams) as u64);
        }
        desc.f32("out", self.out, Access::Write, rows * dim);
        desc.work(0, (2 * self.x.len + 12 * rows * each) as u64);
    }
}
