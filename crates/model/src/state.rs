//! What sequences remember: key/value caches, recurrent states, convolution windows and their logs.

use crate::{AttentionSpec, KV_BLOCK, Limits, MixerSpec, ModelError, ModelSpec, Planner};
use forerun_backend::op::CacheLayout;
use forerun_backend::{BufferId, View};
use forerun_base::DType;

/// Device memory of one layer, for all leases together.
#[derive(Clone, Copy, Debug)]
pub enum LayerState {
    /// Keys and values, the layer's own or another's.
    Attention(KvCache),
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

/// Paged keys and values of one layer.
#[derive(Clone, Copy, Debug)]
pub struct KvCache {
    /// `[blocks, kv_heads, head_dim, block]`.
    pub k: View,
    /// `[blocks, kv_heads, block, head_dim]`.
    pub v: View,
    /// Both shapes.
    pub layout: CacheLayout,
    /// Whether each slot has a ring of blocks of its own, as layers with a window do: the keys before the window
    /// are overwritten.
    pub ring: bool,
}

/// What drafting remembers.
#[derive(Clone, Copy, Debug)]
pub struct DraftState {
    /// Keys and values of the MTP head's block; a separate drafter has none.
    pub cache: Option<LayerState>,
    /// `[slots, hidden_window, hidden]`: the trunk's final hidden state of position `p` at row
    /// `p % hidden_window`.
    pub hidden: View,
}

/// Device memory of all layers.
#[derive(Clone, Debug)]
pub struct StateBuffers {
    /// In layer order.
    pub layers: Vec<LayerState>,
    /// When a head or a separate drafter drafts.
    pub draft: Option<DraftState>,
}

impl StateBuffers {
    /// Makes (or plans) the state of every layer.
    pub fn new(
        spec: &ModelSpec,
        limits: &Limits,
        planner: &mut Planner<'_>,
    ) -> Result<Self, ModelError> {
        let draft = match spec.drafter.as_ref().filter(|_| limits.mtp) {
            Some(_) => {
                let len = limits.sequences * limits.hidden_window() * spec.hidden;
                let hidden = View::head(planner.state("hidden window", DType::F32, len)?, len);
                let block = spec.head_block();
                let cache = block.map(|block| layer_state(&block.mixer, &[], limits, planner));
                Some(DraftState { cache: cache.transpose()?, hidden })
            }
            None => None,
        };
        let mut layers = Vec::with_capacity(spec.layers.len());
        for layer in &spec.layers {
            layers.push(layer_state(&layer.mixer, &layers, limits, planner)?);
        }
        Ok(Self { layers, draft })
    }
}

fn layer_state(
    mixer: &MixerSpec,
    earlier: &[LayerState],
    limits: &Limits,
    planner: &mut Planner<'_>,
) -> Result<LayerState, ModelError> {
    let mut state = |line: &str, dtype, len| -> Result<View, ModelError> {
        let buffer: BufferId = planner.state(line, dtype, len)?;
        Ok(View::head(buffer, len))
    };
    match mixer {
        MixerSpec::Attention(AttentionSpec { shares: Some(layer), .. }) => Ok(earlier[*layer]),
        MixerSpec::Attention(spec) => {
            let ring = spec.window.is_some();
            let layout = CacheLayout {
                blocks: if ring { limits.ring_blocks() } else { limits.blocks() },
                kv_heads: spec.kv_heads,
                block: KV_BLOCK,
                head_dim: spec.head_dim,
                coded: limits.kv == DType::I8,
            };
            let line = if ring { "kv cache, windows" } else { "kv cache" };
            let k = state(line, limits.kv, layout.len())?;
            let v = state(line, limits.kv, layout.len())?;
            Ok(LayerState::Attention(KvCache { k, v, layout, ring }))
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
