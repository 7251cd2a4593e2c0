//! GGUF files under published names: the config their metadata amounts to, and where each tensor belongs.
//!
//! A translated file looks like a published checkpoint with two differences that the loader knows: norms are
//! stored as the factor itself, and a delta layer's decay as `−exp(A_log)`. A tensor that the
//! architecture does not know is refused, since running without it could be silently wrong.

mod config;
mod heads;
mod names;
mod scan;

use crate::ModelError;
use forerun_weights::gguf::Metadata;
use forerun_weights::{Checkpoint, Translation};
use serde_json::Value;

/// Architectures by the name GGUF gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arch {
    Llama,
    Qwen3,
    Qwen3Moe,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    Gemma3,
    Gemma3n,
    Gemma4,
    GraniteHybrid,
    Lfm2,
    Lfm2Moe,
    NemotronH,
    NemotronHMoe,
}

impl Arch {
    const ALL: [(&'static str, Self); 14] = [
        ("llama", Self::Llama),
        ("qwen3", Self::Qwen3),
        ("qwen3moe", Self::Qwen3Moe),
        ("qwen3next", Self::Qwen3Next),
        ("qwen35", Self::Qwen35),
        ("qwen35moe", Self::Qwen35Moe),
        ("gemma3", Self::Gemma3),
        ("gemma3n", Self::Gemma3n),
        ("gemma4", Self::Gemma4),
        ("granitehybrid", Self::GraniteHybrid),
        ("lfm2", Self::Lfm2),
        ("lfm2moe", Self::Lfm2Moe),
        ("nemotron_h", Self::NemotronH),
        ("nemotron_h_moe", Self::NemotronHMoe),
    ];

    /// Whether the network has Gated DeltaNet layers.
    const fn is_hybrid(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }

    /// Whether the network is LFM2, with experts or without.
    const fn is_lfm2(self) -> bool {
        matches!(self, Self::Lfm2 | Self::Lfm2Moe)
    }

    /// Whether a block is one part alone.
    const fn is_nemotron(self) -> bool {
        matches!(self, Self::NemotronH | Self::NemotronHMoe)
    }

    /// Whether the network has Mamba-2 layers, and heads in the order for interleaved pairing though they may not be
    /// rotated.
    const fn has_scans(self) -> bool {
        matches!(self, Self::GraniteHybrid) || self.is_nemotron()
    }

    /// Whether value heads are stored round-robin over key heads.
    const fn spreads_value_heads(self) -> bool {
        matches!(self, Self::Qwen35 | Self::Qwen35Moe)
    }
}

/// A GGUF file on its way to published names.
struct GgufSource<'a> {
    checkpoint: &'a Checkpoint,
    metadata: &'a Metadata,
    arch: Arch,
    /// What keys of this architecture begin with.
    prefix: &'a str,
}

/// The same checkpoint with published names and a config.
pub(crate) fn translate(checkpoint: Checkpoint) -> Result<Checkpoint, ModelError> {
    let translation = GgufSource::of(&checkpoint)?.translation()?;
    Ok(checkpoint.translated(translation)?)
}

impl<'a> GgufSource<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        let metadata = checkpoint.gguf().expect("only GGUF checkpoints are translated");
        let prefix = metadata
            .text("general.architecture")
            .ok_or_else(|| ModelError::Gguf("`general.architecture` is missing".into()))?;
        let Some((_, arch)) = Arch::ALL.into_iter().find(|(name, _)| *name == prefix) else {
            let known = Arch::ALL.map(|(name, _)| name).join(", ");
            return Err(ModelError::Gguf(format!(
                "architecture `{prefix}` is not supported; supported are {known}"
            )));
        };
        Ok(Self { checkpoint, metadata, arch, prefix })
    }

    fn translation(&self) -> Result<Translation, ModelError> {
        let config = self.config()?;
        let tensors = self.renamed(&config)?;
        Ok(Translation { config, tensors })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    fn bad(&self, name: &str, problem: impl std::fmt::Display) -> ModelError {
        ModelError::Gguf(format!("`{}` {problem}", self.key(name)))
    }

    fn maybe_count(&self, name: &str) -> Option<u64> {
        self.metadata.count(&self.key(name))
    }

    fn count(&self, name: &str) -> Result<u64, ModelError> {
        self.maybe_count(name).ok_or_else(|| self.bad(name, "is missing or no count"))
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.metadata.number(&self.key(name))
    }

    /// A count given once for all layers or as a list, as one number per layer.
    fn per_layer(&self, name: &str, layers: usize) -> Result<Vec<u64>, ModelError> {
        if let Some(list) = self.metadata.integers(&self.key(name)) {
            let list: Option<Vec<u64>> = list.iter().map(|&n| u64::try_from(n).ok()).collect();
            return match list {
                Some(list) if list.len() >= layers => Ok(list[..layers].to_vec()),
                _ => Err(self.bad(name, format!("is no list of {layers} counts"))),
            };
        }
        Ok(vec![self.count(name)?; layers])
    }

    /// Whether the file holds a tensor.
    fn has(&self, name: &str) -> bool {
        self.checkpoint.contains(name)
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>, ModelError> {
        Ok(self.checkpoint.info(name)?.shape)
    }

    /// Blocks besides those of the MTP head.
    fn layers(&self) -> Result<usize, ModelError> {
        let (blocks, extra) = (self.count("block_count")?, self.extra_blocks());
        if extra > 1 {
            let problem = format!("is {extra}, where at most one extra block is supported");
            return Err(self.bad("nextn_predict_layers", problem));
        }
        match blocks.checked_sub(extra) {
            // Lists of this length are made.
            Some(layers @ 1..=4096) => Ok(layers as usize),
            _ => Err(self.bad("block_count", format!("is {blocks}, of which {extra} are extra"))),
        }
    }

    /// Blocks of the MTP head.
    fn extra_blocks(&self) -> u64 {
        self.maybe_count("nextn_predict_layers").unwrap_or(0)
    }
}

/// Reads a number from a config made here.
fn config_count(config: &Value, key: &str) -> usize {
    let text = config.get("text_config").unwrap_or(config);
    text.get(key).and_then(Value::as_u64).map_or(0, |n| n as usize)
}
