//! The network as data: everything the forward pass asks, nothing a file format knows.

use crate::{RopeRule, RopeScale, RopeSpec};
use forerun_backend::op::{Activation, DeltaShape, ExpertGroups, ScanShape, Scores};
use forerun_base::Token;

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
    /// Tokens that stand for something else than text.
    pub placeholders: Placeholders,
    /// Factor on embeddings.
    pub embed_scale: f32,
    /// Factor on logits, which the norm before the head is multiplied by.
    pub logit_scale: f32,
    /// Logits are bent to stay within ± this.
    pub logit_cap: Option<f32>,
    /// Activation of every MLP.
    pub activation: Activation,
    /// Rotary frequencies; attention layers name theirs by index.
    pub ropes: Vec<RopeSpec>,
    /// Blocks in order.
    pub layers: Vec<LayerSpec>,
    /// A second embedding whose rows hold a vector per layer.
    pub per_layer: Option<PerLayerSpec>,
    /// What drafts ahead, where the checkpoint or one beside it has it.
    pub drafter: Option<DrafterSpec>,
}

/// Tokens that stand for images or sound. Where one appears in text it is read as padding, as the
/// published models do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placeholders {
    /// The tokens.
    pub tokens: Vec<Token>,
    /// What they are read as.
    pub padding: Token,
}

impl Placeholders {
    /// The token whose embedding is used for `token`.
    pub fn read_as(&self, token: Token) -> Token {
        if self.tokens.contains(&token) { self.padding } else { token }
    }
}

/// What drafts ahead with weights of its own.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a model has one of these")]
pub enum DrafterSpec {
    /// A multi-token-prediction head: one block with a cache of its own.
    Head(LayerSpec),
    /// A small network that reads the target's keys and values.
    Assistant(AssistantSpec),
}

/// A drafter without a cache: its blocks attend to the target's.
#[derive(Clone, Debug, PartialEq)]
pub struct AssistantSpec {
    /// Width of its residual stream.
    pub hidden: usize,
    /// Its blocks; each shares the keys and values of a layer of the target.
    pub layers: Vec<LayerSpec>,
    /// Its own frequencies.
    pub ropes: Vec<RopeSpec>,
    /// Added to mean squares in norms.
    pub eps: f32,
    /// Activation of its MLPs.
    pub activation: Activation,
    /// Clusters of the vocabulary, of which only the best are scored.
    pub clusters: Option<ClusterSpec>,
}

/// A vocabulary in clusters of equal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    /// How many there are.
    pub count: usize,
    /// How many are scored.
    pub best: usize,
}

/// Vectors per layer, looked up by token and added to what the embedding says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerSpec {
    /// Width of a layer's vector.
    pub width: usize,
    /// Rows of the table.
    pub vocabulary: usize,
}

/// One block: a mixer over positions, then an MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// What mixes positions.
    pub mixer: MixerSpec,
    /// What follows it.
    pub mlp: MlpSpec,
    /// Where norms stand.
    pub frame: Frame,
}

/// How a block's branches meet the residual stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Frame {
    /// `x += f(norm(x))`, for mixer and MLP.
    Pre,
    /// `x += norm(f(x))`.
    Post,
    /// `x += norm(f(norm(x)))`.
    Sandwich {
        /// Whether the stream is scaled by a stored number at the end of the block.
        scaled: bool,
    },
    /// A sandwich around one of several streams.
    AltUp(AltUpSpec),
    /// Several streams, of which each part reads a mixture.
    Streams(StreamsSpec),
}

/// A residual of several streams, and a low-rank path beside attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltUpSpec {
    /// How many streams there are.
    pub streams: usize,
    /// The one that layers work on.
    pub active: usize,
    /// Whether what the token's own vector is gated by is scaled by stored numbers.
    pub scaled: bool,
    /// Width of the path beside attention.
    pub laurel: usize,
}

/// Parallel residual streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamsSpec {
    /// How many there are; the same in all blocks.
    pub count: usize,
    /// How they meet a part of a block.
    pub mix: StreamMix,
    /// What is added to them first.
    pub ngram: Option<NgramSpec>,
}

/// How streams meet a part of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StreamMix {
    /// A gate for each number on the way in, one for each stream on the way out.
    Gated {
        /// Width inside the product that makes the gates.
        rank: usize,
    },
    /// A weight for each stream both ways, and a matrix of weights between them whose rows and columns sum to 1.
    Balanced {
        /// Rounds in which sums become 1.
        iterations: usize,
        /// Added to weights and sums.
        eps: f32,
    },
}

/// Embeddings of the last tokens together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramSpec {
    /// Width of a stream.
    pub hidden: usize,
    /// Width of all heads' rows together.
    pub width: usize,
    /// Taps of the convolution, `order` rows apart.
    pub taps: usize,
    /// The most tokens taken together.
    pub order: usize,
    /// Heads of each order from 2 on.
    pub heads: usize,
    /// Tokens there are.
    pub vocabulary: usize,
    /// Heads have primes from here on as sizes.
    pub base: u32,
    /// Where factors come from.
    pub seed: u64,
    /// Which of such layers this is.
    pub index: usize,
    /// What the number of the table's rows is a multiple of.
    pub divisor: usize,
    /// Shards of the table.
    pub parts: usize,
    /// The token behind which nothing is seen.
    pub boundary: u32,
}

/// What mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum MixerSpec {
    /// Softmax attention over a cache.
    Attention(AttentionSpec),
    /// Gated DeltaNet with a recurrent state.
    Delta(DeltaSpec),
    /// A gated short convolution with a window of its inputs.
    ShortConv(ShortConvSpec),
    /// Attention over a cache of latents.
    Latent(LatentSpec),
    /// The delta rule with a decay of each key channel.
    Kda(KdaSpec),
    /// Mamba-2 with a recurrent state.
    Scan(ScanSpec),
    /// Nothing: the block is its MLP.
    None,
    /// Softmax attention to groups of positions that an index chooses.
    Indexed(IndexedSpec),
    /// Softmax attention to the last keys and to compressed ones.
    Compressed(CompressedSpec),
}

/// Attention to the last keys, to entries made of neighbouring ones, and to a sink; one key for all heads, which is
/// its own value.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedSpec {
    /// Query heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of what queries are made of.
    pub q_rank: usize,
    /// Keys a row sees as they are, its own included.
    pub window: usize,
    /// Which of the model's ropes turns queries, keys and entries.
    pub rope: usize,
    /// Groups of heads that are projected each by itself.
    pub groups: usize,
    /// What a group is projected to.
    pub out_rank: usize,
    /// How entries are made, where there are any.
    pub compress: Option<CompressSpec>,
}

/// Entries made of neighbouring positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressSpec {
    /// Positions of an entry.
    pub every: usize,
    /// Whether an entry also takes from the positions of the one before.
    pub overlaps: bool,
    /// What chooses entries; all are seen without.
    pub index: Option<IndexSpec>,
}

/// Queries and entries of their own by which entries are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSpec {
    /// Query heads.
    pub heads: usize,
    /// Their width.
    pub head_dim: usize,
    /// Entries a row sees at most.
    pub most: usize,
}

/// Attention to the best groups of positions, and to the last positions that are no whole group.
#[derive(Clone, Debug, PartialEq)]
pub struct IndexedSpec {
    /// The attention; without a window.
    pub attention: AttentionSpec,
    /// Query heads of the index.
    pub heads: usize,
    /// Their width.
    pub head_dim: usize,
    /// Positions of a group.
    pub every: usize,
    /// Groups a row sees at most.
    pub most: usize,
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
    /// Factor on scores.
    pub scale: f32,
    /// Norm of each query and key head before rope.
    pub qk_norm: bool,
    /// Whether that norm is one over all heads together.
    pub norm_whole: bool,
    /// A sigmoid gate on each head's output, stored beside the query rows.
    pub gated: bool,
    /// Biases on the four projections.
    pub bias: bool,
    /// No bias on the output projection, although the others have one.
    pub bare_out: bool,
    /// Keys a row sees, itself included; all when there is no window.
    pub window: Option<usize>,
    /// Which of the model's ropes turns queries and keys.
    pub rope: usize,
    /// Where values come from.
    pub values: Values,
    /// The layer whose keys and values this one reads instead of having its own.
    pub shares: Option<usize>,
}

impl AttentionSpec {
    /// Attention over everything with scores scaled by the square root of the head's width, and nothing special.
    pub fn plain(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            qk_norm: false,
            norm_whole: false,
            gated: false,
            bias: false,
            bare_out: false,
            window: None,
            rope: 0,
            values: Values::Projected,
            shares: None,
        }
    }
}

/// Where an attention layer's values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A projection of their own.
    Projected,
    /// The same, each head normed.
    Normed,
    /// The key projection before its norm and rope, each head normed.
    FromKeys,
}

/// Gated DeltaNet.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaSpec {
    /// Heads.
    pub shape: DeltaShape,
    /// Taps of the short convolution.
    pub taps: usize,
    /// Factor on write strengths, which are between 0 and 1 without one.
    pub beta_scale: f32,
    /// What the norm of its output adds to mean squares, where that is not what the model's other norms add.
    pub norm_eps: Option<f32>,
}

/// A gated short convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// Channels, each with a kernel of its own.
    pub channels: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Biases on the projections and the convolution.
    pub bias: bool,
}

/// Latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentSpec {
    /// Query heads.
    pub heads: usize,
    /// Width of the queries' own latent; absent where they are projected at once.
    pub q_latent: Option<usize>,
    /// Width of the latent.
    pub latent: usize,
    /// Width of the rope key, which all heads share, and of the part of a query that meets it.
    pub rope_dim: usize,
    /// Width of a head's other key.
    pub nope: usize,
    /// Width of a head's value.
    pub value: usize,
    /// Factor on scores.
    pub scale: f32,
    /// Which of the model's ropes turns rope keys; they stand still where there is none.
    pub rope: Option<usize>,
    /// Whether pairs lie side by side in stored rows.
    pub interleaved: bool,
    /// Biases on the projections to latents and on the output's.
    pub bias: bool,
}

/// Kimi Delta Attention.
#[derive(Clone, Debug, PartialEq)]
pub struct KdaSpec {
    /// Heads, of keys and of values.
    pub heads: usize,
    /// Width of a head.
    pub dim: usize,
    /// Taps of the short convolutions.
    pub taps: usize,
}

/// Mamba-2: a selective scan behind a short convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanSpec {
    /// Heads.
    pub shape: ScanShape,
    /// Taps of the short convolution.
    pub taps: usize,
    /// A bias on the convolution.
    pub conv_bias: bool,
    /// Biases on the projections.
    pub bias: bool,
    /// The smallest step and the largest.
    pub limits: [f32; 2],
    /// Groups of channels, in order, that are normed together.
    pub norms: usize,
    /// Added to mean squares in that norm.
    pub eps: f32,
}

/// What follows the mixer.
#[derive(Clone, Debug, PartialEq)]
pub enum MlpSpec {
    /// A gated MLP of the given width.
    Dense(usize),
    /// The same, of whose gates only what lies far above their mean passes.
    Sparse {
        /// Width.
        ffn: usize,
        /// How far, in standard deviations.
        deviations: f32,
    },
    /// A mixture of experts.
    Moe(MoeSpec),
    /// The same, with experts that a stored table names for each token.
    Hashed(MoeSpec),
    /// A gated MLP and, beside it, a mixture with norms of its own; their outputs are added.
    Beside {
        /// Width of the MLP.
        dense: usize,
        /// The mixture.
        moe: MoeSpec,
    },
    /// Nothing: the block is its mixer.
    None,
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
    /// How experts are chosen, and what they weigh.
    pub router: RouterSpec,
    /// An expert that every row goes through.
    pub shared: Option<SharedExpertSpec>,
}

/// How experts are chosen, and what they weigh: a [`Router`](forerun_backend::op::Router) without its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouterSpec {
    /// What logits become.
    pub scores: Scores,
    /// A stored number for each expert, added to its score for the choice alone.
    pub bias: bool,
    /// Which experts may be chosen.
    pub groups: Option<ExpertGroups>,
    /// Added to the sum of the chosen weights, by which they are divided; absent where they are not.
    pub renormalise: Option<f32>,
    /// Factor on all weights.
    pub scale: f32,
}

impl RouterSpec {
    /// Weights that are the softmax itself, or divided by their sum.
    pub const fn softmax(renormalise: bool) -> Self {
        let renormalise = if renormalise { Some(0.0) } else { None };
        Self { scores: Scores::Softmax, bias: false, groups: None, renormalise, scale: 1.0 }
    }
}

/// An expert that every row goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Its width inside.
    pub width: usize,
    /// Whether its output is multiplied by the sigmoid of a projection.
    pub gated: bool,
}

impl ModelSpec {
    /// Whether any block keeps a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixer.is_recurrent())
    }

    /// The widest attention window, when any layer has one.
    pub fn widest_window(&self) -> Option<usize> {
        self.layers.iter().filter_map(LayerSpec::window).max()
    }

    /// Makes the context longer: ropes of layers that see all of it are stretched, from what the model
    /// was made for. Layers with a window never look further than it. A drafter that reads this model's
    /// keys has to turn its queries alike.
    pub fn extend_context(&mut self, scale: RopeScale) {
        let rule = scale.rule(self.max_positions);
        stretch(&mut self.ropes, &self.layers, &rule);
        if let Some(DrafterSpec::Assistant(drafter)) = &mut self.drafter {
            stretch(&mut drafter.ropes, &drafter.layers, &rule);
        }
        self.max_positions = (self.max_positions as f64 * scale.factor()) as usize;
    }

    /// The streams of the residual, where there are several.
    pub fn altup(&self) -> Option<AltUpSpec> {
        self.layers.iter().find_map(|layer| match layer.frame {
            Frame::AltUp(spec) => Some(spec),
            _ => None,
        })
    }

    /// The block of the multi-token-prediction head, when that is the drafter.
    pub fn head_block(&self) -> Option<&LayerSpec> {
        match &self.drafter {
            Some(DrafterSpec::Head(block)) => Some(block),
            _ => None,
        }
    }
}

/// Puts the ropes of layers without a window under a rule.
fn stretch(ropes: &mut [RopeSpec], layers: &[LayerSpec], rule: &RopeRule) {
    let whole = |layer: &LayerSpec| match &layer.mixer {
        MixerSpec::Attention(attention) => attention.window.is_none().then_some(attention.rope),
        MixerSpec::Latent(latent) => latent.rope,
        _ => None,
    };
    let mut stretched: Vec<usize> = layers.iter().filter_map(whole).collect();
    stretched.sort_unstable();
    stretched.dedup();
    for rope in stretched {
        ropes[rope] = ropes[rope].clone().rescaled(rule);
    }
}

impl LayerSpec {
    /// The layer's attention window, when it has one.
    pub fn window(&self) -> Option<usize> {
        self.mixer.attention()?.window
    }
}
