//! Names of the new checkpoint.

use forerun_model::StorageForm;

/// Translates stored names.
pub(super) struct Names<'a> {
    storage: &'a StorageForm,
    /// The new trunk.
    trunk: &'static str,
    /// The new head.
    head: &'static str,
}

/// What a tensor is called in the new checkpoint.
#[derive(Debug)]
pub(super) struct NewName {
    pub(super) target: String,
    /// Whether it belongs to the MTP head.
    pub(super) mtp: bool,
}

impl<'a> Names<'a> {
    pub(super) fn new(storage: &'a StorageForm) -> Self {
        let (trunk, head) = if storage.mlx.nested {
            ("language_model.model", "language_model.lm_head")
        } else {
            ("model", "lm_head")
        };
        Self { storage, trunk, head }
    }

    /// The new name; `None` for what the text model does not use: vision and audio, tables that
    /// follow from the config, a head beside tied embeddings, unused keys and values.
    pub(super) fn translate(&self, name: &str) -> Option<NewName> {
        let below = |prefix: &str| name.strip_prefix(prefix)?.strip_prefix('.');
        if let Some(rest) = self.storage.mtp.and_then(below) {
            return Some(NewName { target: format!("mtp.{rest}"), mtp: true });
        }
        if let Some(rest) = self.storage.head.and_then(below) {
            let target = format!("{}.{rest}", self.head);
            return (!self.storage.tied).then_some(NewName { target, mtp: false });
        }
        let rest = below(self.storage.trunk)?;
        if rest.ends_with("rotary_emb.inv_freq") || self.is_unused(rest) {
            return None;
        }
        Some(NewName { target: format!("{}.{rest}", self.trunk), mtp: false })
    }

    /// Keys and values of a layer that borrows them.
    fn is_unused(&self, rest: &str) -> bool {
        let layer = || {
            let (layer, rest) = rest.strip_prefix("layers.")?.split_once('.')?;
            let own = [".k_proj.", ".v_proj.", ".k_norm."].iter().any(|part| rest.contains(part));
            layer.parse::<usize>().ok().filter(|_| own && rest.starts_with("self_attn."))
        };
        layer().is_some_and(|layer| self.storage.sharing_layers.contains(&layer))
    }
}

impl NewName {
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
