//! What sequences remember: key/value caches, recurrent states, convolution windows and their logs.

use crate::{KV_BLOCK, Limits, MixerSpec, ModelError, ModelSpec, Planner};
use forerun_backend::op::CacheLayout;
use forerun_backend::{BufferId, View};
use forerun_base::DType;

/// Device memory of one layer, for all leases together.
#[derive(Clone, Copy, Debug)]
pub enum LayerState {
    /// Paged keys and values.
    Attention {
        /// `[blocks, kv_heads, block, head_dim]`.
        k: View,
        /// Same shape as `k`.
        v: View,
        /// That shape.
        layout: CacheLayout,
    },
    /// Slots of Gated DeltaNet.
    Delta {
        /// `[slots, taps − 1, channels]`.
        window: View,
        /// `[slots, log_rows, channels]`.
        window_log: View,
        /// `[slots, value_heads, dk, dv]`.
        state: View,
        /// `[slots, log_rows, k | v | decay | beta]`.
        state_log: View,
    },
}

/// What the MTP head remembers.
#[derive(Clone, Copy, Debug)]
pub struct MtpState {
    /// Keys and values of its block.
    pub cache: LayerState,
    /// `[slots, hidden_window, hidden]`: the trunk's final hidden state of position `p` at row
    /// `p % hidden_window`.
    pub hidden: View,
}

/// Device memory of all layers.
#[derive(Clone, Debug)]
pub struct StateBuffers {
    /// In layer order.
    pub layers: Vec<LayerState>,
    /// When the MTP head drafts.
    pub mtp: Option<MtpState>,
}

impl StateBuffers {
    /// Makes (or plans) the state of every layer.
    pub fn new(
        spec: &ModelSpec,
        limits: &Limits,
        planner: &mut Planner<'_>,
    ) -> Result<Self, ModelError> {
        let mtp = match spec.mtp.as_ref().filter(|_| limits.mtp) {
            Some(block) => {
                let len = limits.sequences * limits.hidden_window() * spec.hidden;
                let hidden = View::head(planner.state("hidden window", DType::F32, len)?, len);
                Some(MtpState { cache: layer_state(&block.mixer, limits, planner)?, hidden })
            }
            None => None,
        };
        let mut layer = |mixer: &MixerSpec| layer_state(mixer, limits, planner);
        let layers = spec.layers.iter().map(|l| layer(&l.mixer)).collect::<Result<_, _>>()?;
        Ok(Self { layers, mtp })
    }
}

fn layer_state(
    mixer: &MixerSpec,
    limits: &Limits,
    planner: &mut Planner<'_>,
) -> Result<LayerState, ModelError> {
    let mut state = |line: &str, dtype, len| -> Result<View, ModelError> {
        let buffer: BufferId = planner.state(line, dtype, len)?;
        Ok(View::head(buffer, len))
    };
    match mixer {
        MixerSpec::Attention(spec) => {
            let layout = CacheLayout {
                blocks: limits.blocks(),
                kv_heads: spec.kv_heads,
                block: KV_BLOCK,
                head_dim: spec.head_dim,
            };
            let k = state("kv cache", limits.kv, layout.len())?;
            let v = state("kv cache", limits.kv, layout.len())?;
            Ok(LayerState::Attention { k, v, layout })
        }
        MixerSpec::Delta(spec) => {
            let (slots, log, shape) = (limits.sequences, limits.log_rows, &spec.shape);
            let channels = shape.channels();
            let window = (spec.taps - 1) * channels;
            Ok(LayerState::Delta {
                window: state("recurrent state", DType::F32, slots * window)?,
                window_log: state("draft log", DType::F32, slots * log * channels)?,
                state: state("recurrent state", DType::F32, slots * shape.state_len())?,
                state_log: state("draft log", DType::F32, slots * log * shape.log_len())?,
            })
        }
    }
}
