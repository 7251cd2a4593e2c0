//! What stands between a part of a block and the streams.
//!
//! Gated, with `n` streams, all norms of one stream's width, and their weights divided by `n`:
//!
//! ```text
//! u = norm of each stream          in  = Σ_s σ(up(silu(down(u))))_s · u_s
//! x_s += 2σ(inject(u))_s · out
//! ```
//!
//! The division makes a mean of the sum, and of what `down` and `inject` give.
//!
//! Balanced: see [`CollapseStreams`]. Its logits are made of the streams together, normed without a weight.

use crate::forward::Pass;
use crate::loader::Loader;
use crate::{ModelError, StreamMix, StreamsSpec};
use forerun_backend::WeightId;
use forerun_backend::op::{
    CollapseStreams, GroupNorm, Linear, LinearPart, Linears, MixStreams, RmsNorm, SiluRows,
    StreamMixing, StreamUpdate, UpdateStreams,
};

/// Weights of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    spec: StreamsSpec,
    weights: ConnectionWeights,
}

#[derive(Clone, Copy, Debug)]
enum ConnectionWeights {
    Gated {
        merge: GatedMerge,
        inject: WeightId,
    },
    Balanced {
        merge: BalancedMerge,
        /// Norm of what the part reads.
        norm: WeightId,
    },
}

/// Several streams to one, by gates.
#[derive(Clone, Copy, Debug)]
struct GatedMerge {
    norm: WeightId,
    down: WeightId,
    up: WeightId,
}

/// Several streams to one, by weights.
#[derive(Clone, Copy, Debug)]
struct BalancedMerge {
    /// Ones.
    norm: WeightId,
    product: WeightId,
    base: WeightId,
    scale: WeightId,
}

impl GatedMerge {
    fn load(
        loader: &mut Loader<'_>,
        path: &str,
        (streams, rank): (usize, usize),
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let (at, wide) = (|name: &str| format!("{path}.{name}"), streams * hidden);
        Ok(Self {
            norm: loader.scaled_norm(&at("hc_norm"), wide, 1.0 / streams as f32)?,
            down: loader.matrix(&at("input_mix_weight_down"), [rank, wide])?,
            up: loader.matrix(&at("input_mix_weight_up"), [wide, rank])?,
        })
    }

    /// The streams as one to `out`; logits of what goes back to each besides, where wanted.
    fn forward(
        &self,
        pass: &mut Pass<'_>,
        (streams, rank): (usize, usize),
        inject: Option<WeightId>,
        out: forerun_backend::View,
    ) {
        let (dim, eps) = (pass.sizes.hidden, pass.sizes.eps);
        let wide = streams * dim;
        let [normed, low, gates, injected, ..] =
            pass.frame_scratch([wide, rank, wide, streams, 0, 0, 0]);
        let x = pass.rows_of(pass.space.streams, wide);
        pass.push(GroupNorm { x, weight: self.norm, out: normed, dim: wide, group: dim, eps });
        let part = |weight, out| LinearPart { weight, bias: None, out };
        let inject = inject.map(|weight| part(weight, injected));
        let parts = [Some(part(self.down, low)), inject, None, None];
        pass.push(Linears { x: normed, norm: None, parts });
        pass.push(SiluRows { x: low });
        pass.push(Linear::set(low, self.up, gates));
        pass.push(MixStreams { x: normed, gates, streams, dim, out });
    }
}

impl BalancedMerge {
    fn load(
        loader: &mut Loader<'_>,
        path: [&str; 2],
        (streams, mixing): (usize, bool),
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let [path, separator] = path;
        let (at, wide) = (|name: &str| format!("{path}{separator}{name}"), streams * hidden);
        let logits = CollapseStreams::logits(streams, mixing);
        let product = loader.checkpoint.values(&at("fn"), &[logits, wide])?;
        Ok(Self {
            norm: loader.numbers(&at("norm (ones)"), 1, &vec![1.0; wide])?,
            product: loader.numbers(&at("fn"), logits, &product)?,
            base: loader.vector(&at("base"), logits, |b| b)?,
            scale: loader.vector(&at("scale"), if mixing { 3 } else { 1 }, |s| s)?,
        })
    }

    /// The streams as one to `x`, and how they will be mixed, where wanted.
    fn forward(&self, pass: &mut Pass<'_>, spec: StreamsSpec, mixes: bool) {
        let StreamMix::Balanced { iterations, eps: added } = spec.mix else {
            unreachable!("streams of this kind")
        };
        let (streams, dim, eps) = (spec.count, pass.sizes.hidden, pass.sizes.eps);
        let wide = streams * dim;
        let width = CollapseStreams::logits(streams, mixes);
        let [normed, logits, post, comb, ..] =
            pass.frame_scratch([wide, width, streams, streams * streams, 0, 0, 0]);
        let x = pass.rows_of(pass.space.streams, wide);
        pass.push(RmsNorm { x, weight: self.norm, out: normed, dim: wide, eps });
        pass.push(Linear::set(normed, self.product, logits));
        pass.push(CollapseStreams {
            x,
            logits,
            scale: self.scale,
            base: self.base,
            mixing: mixes.then_some(StreamMixing { iterations, post, comb }),
            streams,
            dim,
            eps: added,
            out: pass.rows_of(pass.space.x, dim),
        });
    }
}

impl Connection {
    /// `path` is the connection's own name, then that of the norm behind it.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        [path, norm]: [&str; 2],
        spec: StreamsSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let streams = spec.count;
        let weights = match spec.mix {
            StreamMix::Gated { rank } => ConnectionWeights::Gated {
                merge: GatedMerge::load(loader, path, (streams, rank), hidden)?,
                inject: loader
                    .matrix(&format!("{path}.block_inject_weight"), [streams, streams * hidden])?,
            },
            StreamMix::Balanced { .. } => ConnectionWeights::Balanced {
                merge: BalancedMerge::load(loader, [path, "."], (streams, true), hidden)?,
                norm: loader.norm(norm, hidden)?,
            },
        };
        Ok(Self { spec, weights })
    }

    /// What the part reads, to `normed`.
    pub(super) fn enter(&self, pass: &mut Pass<'_>) {
        match self.weights {
            ConnectionWeights::Gated { merge, inject } => {
                let StreamMix::Gated { rank } = self.spec.mix else {
                    unreachable!("streams of this kind")
                };
                let out = pass.normed().x;
                merge.forward(pass, (self.spec.count, rank), Some(inject), out);
            }
            ConnectionWeights::Balanced { merge, norm } => {
                merge.forward(pass, self.spec, true);
                pass.norm(pass.space.x, norm, pass.space.normed);
            }
        }
    }

    /// What the part left in `branch`, to the streams.
    pub(super) fn leave(&self, pass: &mut Pass<'_>) {
        let (streams, dim) = (self.spec.count, pass.sizes.hidden);
        let [_, _, post, fourth, ..] =
            pass.frame_scratch([0, 0, streams, streams * streams, 0, 0, 0]);
        let update = match self.weights {
            ConnectionWeights::Gated { .. } => {
                let rows = pass.inputs.rows();
                StreamUpdate::Gated { gates: fourth.part(0, rows * streams) }
            }
            ConnectionWeights::Balanced { .. } => StreamUpdate::Mixed { post, comb: fourth },
        };
        pass.push(UpdateStreams {
            y: pass.rows_of(pass.space.branch, dim),
            update,
            streams,
            dim,
            x: pass.rows_of(pass.space.streams, streams * dim),
        });
    }
}

/// All streams to one, behind the last block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamMerge {
    spec: StreamsSpec,
    weights: MergeWeights,
}

#[derive(Clone, Copy, Debug)]
enum MergeWeights {
    Gated(GatedMerge),
    /// And the model's last norm.
    Balanced(BalancedMerge, WeightId),
}

impl StreamMerge {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        trunk: &str,
        spec: StreamsSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let weights = match spec.mix {
            StreamMix::Gated { rank } => {
                let path = format!("{trunk}.hyper_connection_mixer");
                MergeWeights::Gated(GatedMerge::load(loader, &path, (spec.count, rank), hidden)?)
            }
            StreamMix::Balanced { .. } => {
                let path = format!("{trunk}.hc_head");
                let path = [path.as_str(), ".hc_"];
                let merge = BalancedMerge::load(loader, path, (spec.count, false), hidden)?;
                let norm = loader.norm(&format!("{trunk}.{}", loader.names.final_norm), hidden)?;
                MergeWeights::Balanced(merge, norm)
            }
        };
        Ok(Self { spec, weights })
    }

    /// Streams there are.
    pub(crate) fn streams(&self) -> usize {
        self.spec.count
    }

    /// What the head reads, to `final_hidden`.
    pub(crate) fn forward(&self, pass: &mut Pass<'_>) {
        match self.weights {
            MergeWeights::Gated(merge) => {
                let StreamMix::Gated { rank } = self.spec.mix else {
                    unreachable!("streams of this kind")
                };
                let out = pass.rows_of(pass.space.final_hidden, pass.sizes.hidden);
                merge.forward(pass, (self.spec.count, rank), None, out);
            }
            MergeWeights::Balanced(merge, norm) => {
                merge.forward(pass, self.spec, false);
                pass.norm(pass.space.x, norm, pass.space.final_hidden);
            }
        }
    }
}
