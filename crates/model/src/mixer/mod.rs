//! What mixes positions: softmax attention and Gated DeltaNet.

mod attention;
mod delta;

pub(crate) use attention::Attention;
pub use delta::DELTA_RATE;
pub(crate) use delta::Delta;

use crate::forward::{Input, Output, Pass};
use crate::loader::Loader;
use crate::{LayerState, MixerSpec, ModelError};

/// A mixer's weights on the device.
#[derive(Clone, Debug)]
pub(crate) enum Mixer {
    /// Softmax attention.
    Attention(Attention),
    /// Gated DeltaNet.
    Delta(Delta),
}

impl Mixer {
    pub(crate) fn load(
        loader: &mut Loader<'_>,
        block: &str,
        spec: &MixerSpec,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        Ok(match spec {
            MixerSpec::Attention(spec) => {
                let path = format!("{block}.self_attn");
                Self::Attention(Attention::load(loader, &path, spec, hidden)?)
            }
            MixerSpec::Delta(spec) => {
                let path = format!("{block}.linear_attn");
                Self::Delta(Delta::load(loader, &path, spec, hidden)?)
            }
        })
    }

    /// What attention needs to know of its input later, and nothing else.
    pub(crate) fn remember(&self, pass: &mut Pass<'_>, input: Input, state: &LayerState) {
        match (self, state) {
            (Self::Attention(mixer), LayerState::Attention(cache)) => {
                mixer.remember(pass, input, cache)
            }
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
        match (self, state) {
            (Self::Attention(mixer), LayerState::Attention(cache)) => {
                mixer.forward(pass, input, cache, out)
            }
            (Self::Delta(mixer), LayerState::Delta { window, window_log, state, state_log }) => {
                mixer.forward(pass, input, [*window, *window_log], [*state, *state_log], out)
            }
            _ => unreachable!("state buffers are built from the same layers as the weights"),
        }
    }
}
