//! The network as data: everything the forward pass asks, nothing a file format knows.

use crate::RopeSpec;
use forerun_backend::op::DeltaShape;

/// A decoder-only network.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// `model_type` of the config.
    pub family: String,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Added to mean squares in norms.
    pub eps: f32,
    /// Longest context the model was made for.
    pub max_positions: usize,
    /// Whether the embedding is also the head.
    pub tied: bool,
    /// Rotary frequencies, shared by all attention layers.
    pub rope: RopeSpec,
    /// Blocks in order.
    pub layers: Vec<LayerSpec>,
    /// The block of the multi-token-prediction head, where the checkpoint has one.
    pub mtp: Option<LayerSpec>,
}

/// One block: a mixer over positions, then an MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// What mixes positions.
    pub mixer: MixerSpec,
    /// What follows it.
    pub mlp: MlpSpec,
}

/// What mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum MixerSpec {
    /// Softmax attention over a cache.
    Attention(AttentionSpec),
    /// Gated DeltaNet with a recurrent state.
    Delta(DeltaSpec),
}

/// Softmax attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Norm of each query and key head before rope.
    pub qk_norm: bool,
    /// A sigmoid gate on each head's output, stored beside the query rows.
    pub gated: bool,
    /// Biases on the four projections.
    pub bias: bool,
}

/// Gated DeltaNet.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaSpec {
    /// Heads.
    pub shape: DeltaShape,
    /// Taps of the short convolution.
    pub taps: usize,
}

/// What follows the mixer.
#[derive(Clone, Debug, PartialEq)]
pub enum MlpSpec {
    /// SwiGLU of the given width.
    Dense(usize),
    /// A mixture of experts.
    Moe(MoeSpec),
}

/// A mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Experts in the layer.
    pub experts: usize,
    /// Experts per row.
    pub top_k: usize,
    /// Width inside an expert.
    pub ffn: usize,
    /// Whether the chosen weights are divided by their sum.
    pub renormalise: bool,
    /// Width of the gated shared expert, where there is one.
    pub shared: Option<usize>,
}

impl ModelSpec {
    /// Whether any block keeps a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|l| matches!(l.mixer, MixerSpec::Delta(_)))
    }
}
