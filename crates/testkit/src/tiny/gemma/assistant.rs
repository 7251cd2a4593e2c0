//! A separate drafter for a Gemma 4 model: queries only, over the model's own keys and values.

use super::Gemma;
use super::tensors::layer;
use crate::tiny::weights::{NormInit, TinyWeights};
use crate::tiny::{Family, Tiny, file};
use serde_json::{Value, json};
use std::path::Path;

/// The shape of a drafter; heads and windows are those of the model it is written for.
#[derive(Clone, Debug, PartialEq)]
pub struct TinyAssistant {
    /// Width of its residual stream.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Layers without a window.
    pub whole: Vec<usize>,
    /// Width inside its MLPs.
    pub ffn: usize,
    /// Clusters of the vocabulary, and how many of them are scored; the first number divides the vocabulary.
    pub clusters: Option<(usize, usize)>,
}

impl Default for TinyAssistant {
    fn default() -> Self {
        Self { hidden: 32, layers: 4, whole: vec![3], ffn: 64, clusters: Some((20, 6)) }
    }
}

impl TinyAssistant {
    /// Writes a drafter for `target` into an existing folder.
    ///
    /// # Panics
    /// When a file cannot be written or the shape contradicts itself.
    pub fn write(&self, target: &Tiny, folder: &Path) {
        assert_eq!(target.family, Family::Gemma4, "this drafter is made for Gemma 4");
        let own = self.blocks(target);
        let config = serde_json::to_vec_pretty(&self.config(target)).expect("a config is JSON");
        file::write(&folder.join("config.json"), &config);
        let mut weights = TinyWeights::new(target.seed, "gemma4_assistant", target.dtype);
        let (hidden, wide, tokens) = (self.hidden, target.hidden, target.vocabulary);
        let spread = 3.0 / (hidden as f32).sqrt();
        weights.normal("model.embed_tokens.weight".into(), &[tokens, hidden], spread);
        for i in 0..self.layers {
            layer(&own, &mut weights, &format!("model.layers.{i}"), i);
        }
        weights.norm("model.norm.weight".into(), hidden, NormInit::Plain);
        weights.projection("pre_projection.weight".into(), [hidden, 2 * wide], 1.0);
        weights.projection("post_projection.weight".into(), [wide, hidden], 1.0);
        if let Some((count, _)) = self.clusters {
            assert!(tokens.is_multiple_of(count), "{count} clusters of {tokens} tokens");
            let name = "masked_embedding.centroids.weight".to_owned();
            weights.projection(name, [count, hidden], 2.0);
            weights.order("masked_embedding.token_ordering".into(), tokens);
        }
        file::write_checkpoint(folder, &weights.into_tensors(), 1);
    }

    /// The drafter's blocks as a Gemma 4 model all of whose layers share.
    fn blocks(&self, target: &Tiny) -> Tiny {
        Tiny {
            hidden: self.hidden,
            layers: self.layers,
            ffn: self.ffn,
            gemma: Gemma {
                whole: self.whole.clone(),
                cap: None,
                sharing: self.layers,
                double_wide: false,
                per_layer: 0,
                experts: false,
                ..target.gemma.clone()
            },
            ..target.clone()
        }
    }

    pub(in crate::tiny) fn config(&self, target: &Tiny) -> Value {
        let (count, best) = self.clusters.unwrap_or_default();
        json!({
            "architectures": ["Gemma4AssistantForCausalLM"],
            "model_type": "gemma4_assistant",
            "backbone_hidden_size": target.hidden,
            "use_ordered_embeddings": self.clusters.is_some(),
            "num_centroids": count,
            "centroid_intermediate_top_k": best,
            "tie_word_embeddings": true,
            "text_config": self.blocks(target).gemma4_text(),
        })
    }
}
