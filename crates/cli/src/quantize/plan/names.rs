//! Names of the new checkpoint.

use forerun_model::Storage;
use forerun_weights::Checkpoint;

/// Translates stored names.
pub(super) struct Names<'a> {
    storage: &'a Storage,
    /// The new trunk.
    trunk: &'static str,
    /// The new head.
    head: &'static str,
    /// The first layer that uses the keys and values of an earlier one.
    first_sharing: Option<usize>,
}

/// Where a tensor goes.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) target: String,
    /// Whether it belongs to the MTP head.
    pub(super) mtp: bool,
}

impl<'a> Names<'a> {
    pub(super) fn new(checkpoint: &Checkpoint, storage: &'a Storage) -> Self {
        // MLX knows Gemma's text models under their own names, Qwen's only inside others.
        let nested = storage.family.starts_with("qwen3_5")
            || ["gemma3", "gemma4", "gemma4_unified"].contains(&storage.family.as_str());
        let (trunk, head) = if nested {
            ("language_model.model", "language_model.lm_head")
        } else {
            ("model", "lm_head")
        };
        let config = checkpoint.config();
        let text = config.get("text_config").unwrap_or(config);
        let count = |key: &str| text.get(key)?.as_u64().and_then(|n| usize::try_from(n).ok());
        let sharing = count("num_kv_shared_layers").filter(|&layers| layers > 0);
        let first_sharing = sharing
            .and_then(|sharing| count("num_hidden_layers")?.checked_sub(sharing))
            .filter(|_| storage.family.starts_with("gemma4"));
        Self { storage, trunk, head, first_sharing }
    }

    /// The new name; `None` for what the text model does not use: vision and audio, tables that
    /// follow from the config, a head beside tied embeddings, unused keys and values.
    pub(super) fn place(&self, name: &str) -> Option<Place> {
        let below = |prefix: &str| name.strip_prefix(prefix)?.strip_prefix('.');
        if let Some(rest) = self.storage.mtp.and_then(below) {
            return Some(Place { target: format!("mtp.{rest}"), mtp: true });
        }
        if let Some(rest) = self.storage.head.and_then(below) {
            let target = format!("{}.{rest}", self.head);
            return (!self.storage.tied).then_some(Place { target, mtp: false });
        }
        let rest = below(self.storage.trunk)?;
        if rest.ends_with("rotary_emb.inv_freq") || self.is_unused(rest) {
            return None;
        }
        Some(Place { target: format!("{}.{rest}", self.trunk), mtp: false })
    }

    /// Keys and values of a layer that borrows them.
    fn is_unused(&self, rest: &str) -> bool {
        let layer = || {
            let (layer, rest) = rest.strip_prefix("layers.")?.split_once('.')?;
            let own = [".k_proj.", ".v_proj.", ".k_norm."].iter().any(|part| rest.contains(part));
            layer.parse::<usize>().ok().filter(|_| own && rest.starts_with("self_attn."))
        };
        self.first_sharing.zip(layer()).is_some_and(|(first, layer)| layer >= first)
    }
}

impl Place {
    /// Whether a family that has norms stored as `w − 1` means this one.
    pub(super) fn is_offset_norm(&self) -> bool {
        let ends = |names: &[&str]| names.iter().any(|name| self.target.ends_with(name));
        let everywhere = [
            ".input_layernorm.weight",
            ".post_attention_layernorm.weight",
            ".pre_feedforward_layernorm.weight",
            ".post_feedforward_layernorm.weight",
            ".q_norm.weight",
            ".k_norm.weight",
        ];
        let head = [".pre_fc_norm_embedding.weight", ".pre_fc_norm_hidden.weight"];
        // A delta net has a norm of its own, which is plain.
        let last = ["mtp.norm.weight", "model.norm.weight"].contains(&self.target.as_str())
            || self.target == "language_model.model.norm.weight";
        ends(&everywhere) || last || (self.mtp && ends(&head))
    }
}
