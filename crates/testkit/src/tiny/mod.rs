//! Tiny random checkpoints in the published layout of each family.
//!
//! [`Tiny::new`] gives a family's usual small shape; change any field, then [`Tiny::write`]. Every
//! tensor is drawn from a generator keyed by seed, family and name, so a model does not change
//! when another tensor is added. Values are scaled so that activations stay of order one and
//! logits have a clear winner.

mod config;
mod family;
mod file;
mod gguf;
mod weights;

pub use file::{StoredTensor, safetensors};
pub use gguf::{GgufFile, GgufTensor, GgufValue};

use forerun_base::DType;
use std::path::Path;
use weights::Weights;

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
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Llama, Self::Qwen3, Self::Qwen3Moe, Self::Qwen3Next, Self::Qwen35, Self::Qwen35Moe];

    /// `model_type` in `config.json`.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Qwen3Next => "qwen3_next",
            Self::Qwen35 => "qwen3_5",
            Self::Qwen35Moe => "qwen3_5_moe",
        }
    }

    /// Whether most layers are delta-net layers and norms are stored as `w − 1`.
    pub const fn is_hybrid(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }

    /// Whether MLPs are mixtures of experts.
    pub const fn is_sparse(self) -> bool {
        matches!(self, Self::Qwen3Moe | Self::Qwen3Next | Self::Qwen35Moe)
    }
}

/// The delta-net layers of a hybrid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
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
pub struct Experts {
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
    /// Delta-net layers; used by hybrids.
    pub linear: Linear,
    /// Experts; used by sparse families.
    pub experts: Experts,
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
            layers: if family.is_hybrid() { 8 } else { 4 },
            heads: 4,
            kv_heads: 2,
            head_dim: if family == Family::Llama { 16 } else { 32 },
            ffn: 128,
            dense_layers: if family == Family::Qwen3Moe { vec![1] } else { Vec::new() },
            linear: Linear {
                key_heads: 2,
                value_heads: 4,
                key_dim: 16,
                value_dim: 16,
                taps: 4,
                interval: 4,
            },
            experts: Experts { count: 6, top_k: 3, ffn: 32, shared_ffn: 48 },
            vocabulary: 400,
            tied: false,
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
        let mut weights = Weights::new(self);
        family::fill(self, &mut weights);
        file::write_checkpoint(folder, &weights.into_tensors(), self.shards);
    }

    /// Whether layer `i` is full attention.
    fn is_attention(&self, i: usize) -> bool {
        !self.family.is_hybrid() || (i + 1).is_multiple_of(self.linear.interval)
    }

    /// Whether layer `i` has experts.
    fn has_experts(&self, i: usize) -> bool {
        self.family.is_sparse() && !self.dense_layers.contains(&i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Golden;
    use forerun_weights::Checkpoint;

    fn written(tiny: &Tiny) -> (tempfile::TempDir, Checkpoint) {
        let folder = tempfile::tempdir().unwrap();
        tiny.write(folder.path());
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        (folder, checkpoint)
    }

    /// Name, type and shape of every tensor the text model uses.
    fn facts(checkpoint: &Checkpoint) -> Vec<(String, DType, Vec<usize>)> {
        checkpoint
            .names()
            .filter(|name| !name.contains("visual"))
            .map(|name| {
                let tensor = checkpoint.tensor(name).unwrap();
                (name.to_owned(), tensor.dtype, tensor.shape)
            })
            .collect()
    }

    /// The shape the golden checkpoints were made with.
    fn golden_shape(family: Family) -> Tiny {
        let usual = Tiny::new(family);
        match family {
            Family::Llama => Tiny { ffn: 160, ..usual },
            Family::Qwen3 => Tiny { ffn: 160, tied: true, ..usual },
            Family::Qwen3Moe => {
                Tiny { ffn: 160, experts: Experts { count: 8, ..usual.experts }, ..usual }
            }
            Family::Qwen3Next => Tiny { ffn: 160, ..usual },
            Family::Qwen35 | Family::Qwen35Moe => usual,
        }
    }

    #[test]
    fn names_types_and_shapes_are_those_of_the_golden_checkpoints() {
        for family in Family::ALL {
            let golden = Golden::open(family.model_type());
            let golden = Checkpoint::open(golden.checkpoint()).unwrap();
            let (_folder, tiny) = written(&golden_shape(family));
            assert_eq!(facts(&tiny), facts(&golden), "{family:?}");
        }
    }

    #[test]
    fn config_keys_are_those_of_the_golden_checkpoints() {
        for family in Family::ALL {
            let golden = Golden::open(family.model_type());
            let golden = Checkpoint::open(golden.checkpoint()).unwrap();
            let (_folder, tiny) = written(&golden_shape(family));
            for (key, value) in tiny.config().as_object().unwrap() {
                let expected = golden.config().get(key);
                if let Some(inner) = value.as_object().filter(|_| key == "text_config") {
                    for (key, value) in inner {
                        assert_eq!(Some(value), expected.unwrap().get(key), "{family:?}.{key}");
                    }
                } else {
                    assert_eq!(Some(value), expected, "{family:?} {key}");
                }
            }
        }
    }

    #[test]
    fn shards_hold_the_same_values_as_one_file() {
        let one = Tiny { mtp: false, layers: 4, ..Tiny::new(Family::Qwen35) };
        let three = Tiny { shards: 3, ..one.clone() };
        let ((_a, one), (_b, three)) = (written(&one), written(&three));
        assert_eq!(three.files().len(), 3);
        assert_eq!(facts(&one), facts(&three));
        for name in one.names() {
            assert_eq!(*one.tensor(name).unwrap().bytes, *three.tensor(name).unwrap().bytes);
        }
    }

    #[test]
    fn another_seed_gives_other_values() {
        let first = Tiny::new(Family::Qwen3);
        let second = Tiny { seed: 1, ..first.clone() };
        let ((_a, first), (_b, second)) = (written(&first), written(&second));
        let name = "model.layers.0.self_attn.q_proj.weight";
        assert_ne!(*first.tensor(name).unwrap().bytes, *second.tensor(name).unwrap().bytes);
    }

    #[test]
    fn switches_change_what_is_stored() {
        let tiny = Tiny { tied: true, mtp: false, ..Tiny::new(Family::Qwen3Next) };
        let (_folder, checkpoint) = written(&tiny);
        assert!(!checkpoint.contains("lm_head.weight"));
        assert!(checkpoint.names().all(|name| !name.starts_with("mtp.")));
    }
}
