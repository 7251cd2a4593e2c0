//! Tiny random checkpoints in the published layout of each family.
//!
//! [`Tiny::new`] gives a family's usual small shape; change any field, then [`Tiny::write`]. Every
//! tensor is drawn from a generator keyed by seed, family and name, so a model does not change
//! when another tensor is added. Values are scaled so that activations stay of order one and
//! logits have a clear winner.

mod config;
mod family;
mod file;
mod gemma;
mod gguf;
mod lfm2;
mod scan;
mod weights;

pub use file::{StoredTensor, safetensors};
pub use gemma::{Gemma, TinyAssistant};
pub use gguf::{GgufFile, GgufValue, TinyGgufTensor};

use forerun_base::DType;
use std::path::Path;
use weights::TinyWeights;

/// A model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the published models")]
pub enum Family {
    Llama,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    Gemma3,
    Gemma4,
    Granite,
    Lfm2,
    Lfm2Moe,
    NemotronH,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Llama,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Qwen3Next,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Gemma3,
        Self::Gemma4,
        Self::Lfm2,
        Self::Granite,
        Self::Lfm2Moe,
        Self::NemotronH,
    ];

    /// `model_type` in `config.json`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Qwen3Next => "qwen3_next",
            Self::Qwen35 => "qwen3_5",
            Self::Qwen35Moe => "qwen3_5_moe",
            Self::Gemma3 => "gemma3_text",
            Self::Gemma4 => "gemma4",
            Self::Granite => "granitemoehybrid",
            Self::Lfm2 => "lfm2",
            Self::Lfm2Moe => "lfm2_moe",
            Self::NemotronH => "nemotron_h",
        }
    }

    /// Whether most layers are delta-net layers and norms are stored as `w − 1`.
    pub const fn is_hybrid(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }

    /// Whether some layers have a window and norms stand on both sides of a branch.
    pub const fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma3 | Self::Gemma4)
    }

    /// Whether MLPs are mixtures of experts.
    pub const fn is_sparse(self) -> bool {
        matches!(
            self,
            Self::Qwen3Moe
                | Self::Qwen3Next
                | Self::Qwen35Moe
                | Self::Granite
                | Self::Lfm2Moe
                | Self::NemotronH
        )
    }

    /// Whether most layers are gated short convolutions.
    pub const fn is_lfm2(self) -> bool {
        matches!(self, Self::Lfm2 | Self::Lfm2Moe)
    }

    /// Whether most layers, or blocks, are Mamba-2.
    pub const fn has_scans(self) -> bool {
        matches!(self, Self::Granite | Self::NemotronH)
    }
}

/// The delta-net layers of a hybrid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyLinear {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Every which layer is full attention instead.
    pub interval: usize,
}

/// The experts of a sparse family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TinyExperts {
    /// Experts in a layer.
    pub count: usize,
    /// Experts chosen per row.
    pub top_k: usize,
    /// Width inside an expert.
    pub ffn: usize,
    /// Width inside the shared expert (hybrids only).
    pub shared_ffn: usize,
}

/// The shape of a tiny model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiny {
    /// The family.
    pub family: Family,
    /// Keys all values.
    pub seed: u64,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head; a multiple of 8 in hybrids, which turn a quarter of it.
    pub head_dim: usize,
    /// Width inside a dense MLP.
    pub ffn: usize,
    /// Layers that are dense although the family is sparse (not in Qwen3.5).
    pub dense_layers: Vec<usize>,
    /// Delta-net layers; used by hybrids. LFM2 uses its taps and its interval. Mamba-2 has value heads in as many
    /// groups as there are key heads, with a state as wide as a key.
    pub linear: TinyLinear,
    /// Whether the short convolutions of LFM2 and their projections have biases, or those of Mamba-2.
    pub conv_bias: bool,
    /// Experts; used by sparse families, and by Gemma 4 where it says so.
    pub experts: TinyExperts,
    /// What Gemma models have besides.
    pub gemma: Gemma,
    /// Tokens.
    pub vocabulary: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Whether the MTP module is stored; used by hybrids.
    pub mtp: bool,
    /// BF16 or F32.
    pub dtype: DType,
    /// Weight files.
    pub shards: usize,
}

impl Tiny {
    /// The usual small shape of a family.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            seed: 0,
            hidden: 64,
            layers: match family {
                _ if family.is_hybrid() => 8,
                _ if family.is_gemma() => 6,
                _ => 4,
            },
            heads: 4,
            kv_heads: 2,
            head_dim: match family {
                Family::Llama => 16,
                _ if family.is_gemma() || family.is_lfm2() || family.has_scans() => 16,
                _ => 32,
            },
            ffn: 128,
            dense_layers: match family {
                Family::Qwen3Moe => vec![1],
                Family::Lfm2Moe => vec![0],
                _ => Vec::new(),
            },
            linear: TinyLinear {
                key_heads: 2,
                value_heads: 4,
                key_dim: 16,
                value_dim: 16,
                taps: if family.is_lfm2() { 3 } else { 4 },
                interval: if family.is_lfm2() || family == Family::Granite { 3 } else { 4 },
            },
            conv_bias: family.has_scans(),
            experts: TinyExperts { count: 6, top_k: 3, ffn: 32, shared_ffn: 48 },
            gemma: Gemma::default(),
            vocabulary: 400,
            tied: family.is_gemma() || family.is_lfm2(),
            mtp: family.is_hybrid(),
            dtype: DType::BF16,
            shards: 1,
        }
    }

    /// Writes `config.json` and the weights into an existing folder.
    ///
    /// # Panics
    /// When a file cannot be written or the shape contradicts itself.
    pub fn write(&self, folder: &Path) {
        assert!(matches!(self.dtype, DType::BF16 | DType::F32), "{} weights", self.dtype);
        assert!(self.heads.is_multiple_of(self.kv_heads), "heads are a multiple of kv heads");
        let config = serde_json::to_vec_pretty(&self.config()).expect("a config is plain JSON");
        file::write(&folder.join("config.json"), &config);
        let mut weights = TinyWeights::new(self.seed, self.family.model_type(), self.dtype);
        family::fill(self, &mut weights);
        file::write_checkpoint(folder, &weights.into_tensors(), self.shards);
    }

    /// Writes `config.json` and a weight file whose numbers are all zero and take no room, into an existing folder: a
    /// network of any size, to count what it asks of a device. The file system must know files with holes.
    ///
    /// # Panics
    /// When a file cannot be written or the shape contradicts itself.
    pub fn write_hollow(&self, folder: &Path) {
        let config = serde_json::to_vec_pretty(&self.config()).expect("a config is plain JSON");
        file::write(&folder.join("config.json"), &config);
        let mut weights = TinyWeights::hollow(self.dtype);
        family::fill(self, &mut weights);
        file::write_hollow(&folder.join("model.safetensors"), &weights.into_tensors());
    }

    /// Whether layer `i` is full attention.
    fn is_attention(&self, i: usize) -> bool {
        let mixed = self.family.is_hybrid() || self.family.is_lfm2() || self.family.has_scans();
        !mixed || (i + 1).is_multiple_of(self.linear.interval)
    }

    /// Whether layer `i` has experts.
    fn has_experts(&self, i: usize) -> bool {
        self.family.is_sparse() && !self.dense_layers.contains(&i)
    }
}

#[cfg(test)]
mod tests;
