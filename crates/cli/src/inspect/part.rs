//! Which part of a network a tensor belongs to, by its stored name.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum NetworkPart {
    Embedding,
    PerLayer,
    Attention,
    DeltaNet,
    ShortConv,
    Streams,
    Mlp,
    Experts,
    Router,
    Norms,
    Head,
    Mtp,
    /// Stored but not part of the text model.
    Other,
}

/// What stands between parallel residual streams and the parts of a block.
const STREAMS: [&str; 3] = ["attn_hc", "ffn_hc", "hc_head"];

impl NetworkPart {
    pub(super) fn of(name: &str) -> Self {
        let segments: Vec<&str> = name.split('.').collect();
        let has = |wanted: &str| segments.contains(&wanted);
        // The order matters: an MTP block holds attention, a mixture holds gates.
        if has("visual") || has("vision_tower") || has("audio_tower") {
            Self::Other
        } else if has("mtp") {
            Self::Mtp
        } else if has("embed_tokens") || has("embed_tokens_per_layer") {
            Self::Embedding
        } else if has("lm_head") {
            Self::Head
        } else if has("linear_attn") {
            Self::DeltaNet
        } else if has("self_attn") {
            Self::Attention
        } else if segments.iter().any(|s| s.contains("hyper_connection") || STREAMS.contains(s)) {
            Self::Streams
        } else if has("ple")
            || segments.iter().any(|s| s.starts_with("per_layer_") && !s.ends_with("norm"))
        {
            Self::PerLayer
        } else if has("router") || has("mlp") && (has("gate") || has("shared_expert_gate")) {
            Self::Router
        } else if has("experts")
            || has("switch_mlp")
            || has("shared_expert")
            || has("shared_experts")
        {
            Self::Experts
        } else if has("mlp") || has("feed_forward") {
            Self::Mlp
        } else if has("conv") {
            Self::ShortConv
        } else if segments.iter().any(|s| s.contains("norm")) || has("layer_scalar") {
            Self::Norms
        } else {
            Self::Other
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::PerLayer => "per-layer inputs",
            Self::Attention => "attention",
            Self::DeltaNet => "delta net",
            Self::ShortConv => "short convolution",
            Self::Streams => "streams",
            Self::Mlp => "mlp",
            Self::Experts => "experts",
            Self::Router => "router",
            Self::Norms => "norms",
            Self::Head => "head",
            Self::Mtp => "mtp",
            Self::Other => "not used",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_layout_find_their_part() {
        let cases = [
            ("model.embed_tokens.weight", NetworkPart::Embedding),
            ("language_model.model.layers.3.self_attn.q_norm.weight", NetworkPart::Attention),
            ("model.layers.0.linear_attn.A_log", NetworkPart::DeltaNet),
            ("model.layers.0.conv.in_proj.weight", NetworkPart::ShortConv),
            ("model.layers.0.conv.conv.weight", NetworkPart::ShortConv),
            ("model.layers.0.feed_forward.w1.weight", NetworkPart::Mlp),
            ("model.layers.0.mlp.gate_proj.weight", NetworkPart::Mlp),
            ("model.layers.0.mlp.gate.weight", NetworkPart::Router),
            ("model.layers.0.mlp.shared_expert_gate.weight", NetworkPart::Router),
            ("model.layers.0.mlp.experts.7.up_proj.weight", NetworkPart::Experts),
            ("model.layers.0.mlp.switch_mlp.up_proj.scales", NetworkPart::Experts),
            ("model.layers.0.mlp.shared_expert.up_proj.weight", NetworkPart::Experts),
            ("model.layers.0.input_layernorm.weight", NetworkPart::Norms),
            ("model.norm.weight", NetworkPart::Norms),
            ("model.layers.0.mlp.shared_experts.up_proj.weight", NetworkPart::Experts),
            ("model.layers.0.mlp_hyper_connection.hc_norm.weight", NetworkPart::Streams),
            ("model.layers.0.attn_hc.fn", NetworkPart::Streams),
            ("model.layers.1.ple.norm_key.weight", NetworkPart::PerLayer),
            ("lm_head.weight", NetworkPart::Head),
            ("model.embed_tokens_per_layer.weight", NetworkPart::Embedding),
            ("model.per_layer_model_projection.weight", NetworkPart::PerLayer),
            ("model.layers.0.per_layer_input_gate.weight", NetworkPart::PerLayer),
            ("model.layers.0.post_feedforward_layernorm_1.weight", NetworkPart::Norms),
            ("model.layers.0.post_per_layer_input_norm.weight", NetworkPart::Norms),
            ("model.layers.0.layer_scalar", NetworkPart::Norms),
            ("model.layers.0.router.per_expert_scale", NetworkPart::Router),
            ("model.layers.0.experts.gate_up_proj", NetworkPart::Experts),
            ("mtp.layers.0.self_attn.q_proj.weight", NetworkPart::Mtp),
            ("language_model.mtp.fc.weight", NetworkPart::Mtp),
            ("model.visual.patch_embed.weight", NetworkPart::Other),
        ];
        for (name, part) in cases {
            assert_eq!(NetworkPart::of(name), part, "{name}");
        }
    }
}
