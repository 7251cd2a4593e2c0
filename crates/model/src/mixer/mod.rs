//! What mixes positions: softmax attention over keys or latents, Gated DeltaNet, KDA, gated short convolutions and
//! Mamba-2.
//!
//! A mixer is one file: its weights, its operations, and, for [`MixerSpec`], what it keeps of a sequence, the scratch
//! it needs and what it says of itself. Nothing outside this folder asks which mixer a layer has.

mod attention;
mod compressed;
mod delta;
mod indexed;
mod kda;
mod latent;
mod projection;
mod scan;
mod short_conv;

pub(crate) use attention::AttentionMixer;
pub(crate) use compressed::CompressedMixer;
pub use delta::DELTA_RATE;
pub(crate) use delta::Delta;
pub(crate) use indexed::IndexedMixer;
pub(crate) use kda::Kda;
pub(crate) use latent::Latent;
pub(crate) use scan::Mamba;
pub use scan::SCAN_RATE;
pub(crate) use short_conv::GatedConv;

use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::state::StateDecl;
use crate::{
    AttentionSpec, CompressedSpec, IndexedSpec, LayerState, Limits, MixerSpec, ModelError,
};
use forerun_backend::Backend;
use std::fmt;

/// A mixer's weights on the device.
#[derive(Clone, Debug)]
pub(crate) enum Mixer {
    /// Softmax attention.
    Attention(AttentionMixer),
    /// Gated DeltaNet.
    Delta(Delta),
    /// A gated short convolution.
    ShortConv(GatedConv),
    /// Attention over latents.
    Latent(Latent),
    /// KDA.
    Kda(Kda),
    /// Mamba-2.
    Scan(Mamba),
    /// Attention to groups that an index chooses.
    Indexed(IndexedMixer),
    /// Attention to the last keys and to compressed ones.
    Compressed(Box<CompressedMixer>),
}

impl MixerSpec {
    /// Softmax attention, where it is that.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match self {
            Self::Attention(spec) => Some(spec),
            Self::Indexed(spec) => Some(&spec.attention),
            _ => None,
        }
    }

    /// Whether it keeps a state that cannot be cut at a position.
    pub(crate) fn is_recurrent(&self) -> bool {
        !matches!(self, Self::Attention(_) | Self::Latent(_) | Self::None)
    }

    /// The layer whose state this one reads instead of having its own.
    pub(crate) fn shares(&self) -> Option<usize> {
        self.attention().and_then(|spec| spec.shares)
    }

    /// How many weights its products read, for a residual stream of this width; vectors and kernels left out.
    pub fn weights(&self, hidden: usize) -> usize {
        match self {
            Self::Attention(spec) => spec.weights(hidden),
            Self::Delta(spec) => spec.weights(hidden),
            Self::ShortConv(spec) => spec.weights(hidden),
            Self::Latent(spec) => spec.weights(hidden),
            Self::Kda(spec) => spec.weights(hidden),
            Self::Scan(spec) => spec.weights(hidden),
            Self::None => 0,
            Self::Indexed(spec) => spec.weights(hidden),
            Self::Compressed(spec) => spec.weights(hidden),
        }
    }

    /// Operations of it that a device may lack.
    fn operations(&self) -> &'static [&'static str] {
        match self {
            Self::Latent(_) => &["latent_attention", "latent_inputs", "head_linear"],
            Self::Kda(_) => &["kda_rule", "kda_gates"],
            Self::Scan(_) => &["scan_gates", "selective_scan", "gated_group_norm"],
            Self::Indexed(_) => IndexedSpec::OPERATIONS,
            Self::Compressed(_) => CompressedSpec::OPERATIONS,
            _ => &[],
        }
    }

    /// Refuses a device that lacks one of its operations.
    pub(crate) fn check(&self, backend: &dyn Backend) -> Result<(), ModelError> {
        let missing = backend.missing();
        match self.operations().iter().find(|op| missing.contains(op)) {
            None => Ok(()),
            Some(op) => {
                Err(ModelError::Missing { device: backend.name(), part: self.to_string(), op })
            }
        }
    }

    /// What it keeps of sequences.
    pub(crate) fn state(&self, limits: &Limits) -> Vec<StateDecl> {
        match self {
            Self::Attention(spec) => spec.state(limits).into(),
            Self::Delta(spec) => spec.state(limits).into(),
            Self::ShortConv(spec) => spec.state(limits).into(),
            Self::Latent(spec) => spec.state(limits).into(),
            Self::Kda(spec) => spec.state(limits).into(),
            Self::Scan(spec) => spec.state(limits).into(),
            Self::None => Vec::new(),
            Self::Indexed(spec) => spec.state(limits),
            Self::Compressed(spec) => spec.state(limits),
        }
    }

    /// Widths of the rows it needs for the time of a layer.
    pub(crate) fn scratch(&self) -> Vec<usize> {
        match self {
            Self::Attention(spec) => spec.scratch().into(),
            Self::Delta(spec) => spec.scratch().into(),
            Self::ShortConv(spec) => spec.scratch().into(),
            Self::Latent(spec) => spec.scratch().into(),
            Self::Kda(spec) => spec.scratch().into(),
            Self::Scan(spec) => spec.scratch().into(),
            Self::None => Vec::new(),
            Self::Indexed(spec) => spec.scratch().into(),
            Self::Compressed(spec) => spec.scratch().into(),
        }
    }

    /// Entries that it chooses for a row at most.
    pub(crate) fn chosen(&self) -> usize {
        match self {
            Self::Indexed(spec) => spec.most,
            Self::Compressed(spec) => spec.chosen(),
            _ => 0,
        }
    }
}

/// The mixer and its sizes, for people.
impl fmt::Display for MixerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attention(spec) => spec.fmt(f),
            Self::Delta(spec) => spec.fmt(f),
            Self::ShortConv(spec) => spec.fmt(f),
            Self::Latent(spec) => spec.fmt(f),
            Self::Kda(spec) => spec.fmt(f),
            Self::Scan(spec) => spec.fmt(f),
            Self::None => f.write_str("no mixer"),
            Self::Indexed(spec) => spec.fmt(f),
            Self::Compressed(spec) => spec.fmt(f),
        }
    }
}

impl Mixer {
    /// The mixer of a spec, where that has one.
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &MixerSpec,
        hidden: usize,
    ) -> Result<Option<Self>, ModelError> {
        Ok(Some(match spec {
            MixerSpec::Attention(spec) => {
                let path = format!("{block}.{}", loader.names.attention);
                Self::Attention(AttentionMixer::load(loader, &path, spec, hidden)?)
            }
            MixerSpec::Delta(spec) => {
                let path = format!("{block}.linear_attn");
                Self::Delta(Delta::load(loader, &path, spec, hidden)?)
            }
            MixerSpec::ShortConv(spec) => {
                let path = format!("{block}.conv");
                Self::ShortConv(GatedConv::load(loader, &path, spec, hidden)?)
            }
            MixerSpec::Latent(spec) => {
                let path = format!("{block}.self_attn");
                Self::Latent(Latent::load(loader, &path, spec, hidden)?)
            }
            MixerSpec::Kda(spec) => {
                let path = format!("{block}.self_attn");
                Self::Kda(Kda::load(loader, &path, spec, hidden)?)
            }
            MixerSpec::Scan(spec) => {
                let path = format!("{block}.{}", loader.names.scan);
                Self::Scan(Mamba::load(loader, &path, spec, hidden)?)
            }
            MixerSpec::Indexed(spec) => {
                let path = format!("{block}.self_attn");
                Self::Indexed(IndexedMixer::load(loader, &path, spec, hidden)?)
            }
            MixerSpec::Compressed(spec) => {
                let path = format!("{block}.self_attn");
                Self::Compressed(Box::new(CompressedMixer::load(loader, &path, spec, hidden)?))
            }
            MixerSpec::None => return Ok(None),
        }))
    }

    /// What attention needs to know of its input later, and nothing else.
    pub(crate) fn remember(&self, pass: &mut Pass<'_>, input: Input, state: &LayerState) {
        match self {
            Self::Attention(mixer) => mixer.remember(pass, input, state),
            Self::Latent(mixer) => mixer.remember(pass, input, state),
            _ => unreachable!("a recurrent mixer's memory is made with its output"),
        }
    }

    /// `mixer(input)` to `out`.
    pub(crate) fn forward(
        &self,
        pass: &mut Pass<'_>,
        input: Input,
        state: &LayerState,
        out: Output,
    ) {
        match self {
            Self::Attention(mixer) => mixer.forward(pass, input, state, out),
            Self::Delta(mixer) => mixer.forward(pass, input, state, out),
            Self::ShortConv(mixer) => mixer.forward(pass, input, state, out),
            Self::Latent(mixer) => mixer.forward(pass, input, state, out),
            Self::Kda(mixer) => mixer.forward(pass, input, state, out),
            Self::Scan(mixer) => mixer.forward(pass, input, state, out),
            Self::Indexed(mixer) => mixer.forward(pass, input, state, out),
            Self::Compressed(mixer) => mixer.forward(pass, input, state, out),
        }
    }
}
