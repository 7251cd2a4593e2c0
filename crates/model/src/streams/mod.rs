//! Blocks on several parallel residual streams: each part of a block reads one vector made of them all, and what it
//! gives goes back to each.

mod connection;
mod ngram;

pub(crate) use connection::{Connection, StreamMerge};
pub(crate) use ngram::Ngram;

use crate::forward::{Output, Pass};
use crate::layer::Layer;
use crate::loader::Loader;
use crate::mixer::Mixer;
use crate::mlp::Mlp;
use crate::state::{StateDecl, StateKind};
use crate::{Frame, LayerSpec, LayerState, Limits, ModelError, NgramSpec, StreamMix, StreamsSpec};
use forerun_backend::BufferId;
use forerun_backend::op::{Store, StreamUpdate, UpdateStreams};

/// A block of either kind.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    /// On one residual stream.
    Plain(Box<Layer>),
    /// On several.
    Streams(Box<StreamLayer>),
}

impl Block {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &LayerSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        Ok(match spec.frame {
            Frame::Streams(streams) => {
                let layer = StreamLayer::load(loader, block, (spec, streams), hidden)?;
                Self::Streams(Box::new(layer))
            }
            _ => Self::Plain(Box::new(Layer::load(loader, block, spec, hidden)?)),
        })
    }

    pub(crate) fn forward(&self, pass: &mut Pass<'_>, state: &LayerState) {
        match self {
            Self::Plain(layer) => layer.forward(pass, state),
            Self::Streams(layer) => layer.forward(pass, state),
        }
    }
}

impl StreamsSpec {
    /// Widths of the rows a block needs besides: see [`Connection`] and [`Ngram`], which share them.
    pub(crate) fn scratch(&self, hidden: usize) -> [usize; 7] {
        let wide = self.count * hidden;
        let mut widths = match self.mix {
            StreamMix::Gated { rank } => [wide, rank, wide, self.count, 0, 0, 0],
            StreamMix::Balanced { .. } => {
                let logits = self.count * (self.count + 2);
                [wide, logits, self.count, self.count * self.count, 0, 0, 0]
            }
        };
        if let Some(ngram) = self.ngram {
            let own = [wide, ngram.width, wide, hidden, wide, wide, wide];
            widths.iter_mut().zip(own).for_each(|(width, own)| *width = (*width).max(own));
        }
        widths
    }

    pub(crate) fn operations(&self) -> &'static [&'static str] {
        match (self.mix, self.ngram) {
            (StreamMix::Gated { .. }, None) => {
                &["group_norm", "silu_rows", "mix_streams", "update_streams"]
            }
            (StreamMix::Gated { .. }, Some(_)) => &[
                "group_norm",
                "silu_rows",
                "mix_streams",
                "update_streams",
                "ngram_embed",
                "ngram_gate",
            ],
            (StreamMix::Balanced { .. }, _) => &["collapse_streams", "update_streams"],
        }
    }
}

impl LayerSpec {
    /// What the block keeps of sequences: the mixer's first.
    pub(crate) fn state(&self, limits: &Limits) -> Vec<StateDecl> {
        let mut state = self.mixer.state(limits);
        if let Frame::Streams(StreamsSpec { ngram: Some(ngram), count, .. }) = self.frame {
            state.extend(ngram.state(limits, count));
        }
        state
    }
}

impl NgramSpec {
    /// The convolution's window and the last tokens, each with its log.
    fn state(&self, limits: &Limits, streams: usize) -> [StateDecl; 4] {
        let (log, wide) = (limits.log_rows, streams * self.hidden);
        let decl = |name, kind, len| StateDecl { name, kind, len };
        [
            decl("ngram conv", StateKind::Slot, (self.reach() - 1) * wide),
            decl("ngram conv log", StateKind::Log, log * wide),
            decl("ngram tokens", StateKind::Slot, self.order - 1),
            decl("ngram tokens log", StateKind::Log, log),
        ]
    }
}

/// One block's weights.
#[derive(Clone, Debug)]
pub(crate) struct StreamLayer {
    ngram: Option<Ngram>,
    around_mixer: Connection,
    mixer: Mixer,
    around_mlp: Connection,
    mlp: Mlp,
}

impl StreamLayer {
    fn load(
        loader: &mut Loader<'_>,
        block: &str,
        (spec, streams): (&LayerSpec, StreamsSpec),
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let names = loader.names;
        let around = |loader: &mut Loader<'_>, names: [&str; 2]| {
            let [own, norm] = names.map(|name| format!("{block}.{name}"));
            Connection::load(loader, [&own, &norm], streams, hidden)
        };
        let ngram = match streams.ngram {
            Some(ngram) => {
                Some(Ngram::load(loader, &format!("{block}.ple"), ngram, streams.count)?)
            }
            None => None,
        };
        let [mixer, mlp] = names.connections;
        let half =
            || ModelError::Layout(format!("{block}: on several streams, but only half a block"));
        Ok(Self {
            ngram,
            around_mixer: around(loader, [mixer, names.mixer_norm])?,
            mixer: Mixer::load(loader, block, &spec.mixer, hidden)?.ok_or_else(half)?,
            around_mlp: around(loader, [mlp, names.mlp_norm])?,
            mlp: Mlp::load(loader, block, &spec.mlp, hidden)?.ok_or_else(half)?,
        })
    }

    /// One block over the streams.
    fn forward(&self, pass: &mut Pass<'_>, state: &LayerState) {
        if let Some(ngram) = &self.ngram {
            ngram.forward(pass, state);
        }
        let view = pass.rows_of(pass.space.branch, pass.sizes.hidden);
        let out = Output { view, store: Store::Set };
        self.around_mixer.enter(pass);
        self.mixer.forward(pass, pass.normed(), state, out);
        self.around_mixer.leave(pass);
        self.around_mlp.enter(pass);
        self.mlp.forward_normed(pass, out);
        self.around_mlp.leave(pass);
    }
}

/// Makes all streams begin as the rows of `x`.
pub(crate) fn begin(pass: &mut Pass<'_>, streams: usize, x: BufferId) {
    let dim = pass.sizes.hidden;
    pass.push(UpdateStreams {
        y: pass.rows_of(x, dim),
        update: StreamUpdate::Set,
        streams,
        dim,
        x: pass.rows_of(pass.space.streams, streams * dim),
    });
}
