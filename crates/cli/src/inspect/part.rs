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
    Mamba,
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

/// What a block of Nemotron-H calls `mixer` is told by what is in it: this, if it is Mamba-2.
const MAMBA: [&str; 7] = ["A_log", "D", "conv1d", "dt_bias", "in_proj", "norm", "out_proj"];
const MLPS: [&str; 4] = ["mlp", "feed_forward", "shared_mlp", "mixer"];
const GATES: [&str; 2] = ["gate", "shared_expert_gate"];
const EXPERTS: [&str; 5] =
    ["experts", "switch_mlp", "shared_expert", "shared_experts", "block_sparse_moe"];

/// What stands between parallel residual streams and the parts of a block.
const STREAMS: [&str; 3] = ["attn_hc", "ffn_hc", "hc_head"];

impl NetworkPart {
    pub(super) fn of(name: &str) -> Self {
        let segments: Vec<&str> = name.split('.').collect();
        let has = |wanted: &str| segments.contains(&wanted);
        let any = |wanted: &[&str]| segments.iter().any(|segment| wanted.contains(segment));
        let mixture = has("block_sparse_moe") || any(&MLPS);
        // The order matters: an MTP block holds attention, a mixture holds gates.
        if has("visual") || has("vision_tower") || has("audio_tower") {
            Self::Other
        } else if has("mtp") || ["eh_proj", "enorm", "hnorm", "shared_head"].into_iter().any(has) {
            Self::Mtp
        } else if any(&["embed_tokens", "embeddings", "embed_tokens_per_layer"]) {
            Self::Embedding
        } else if has("lm_head") {
            Self::Head
        } else if has("linear_attn") {
            Self::DeltaNet
        } else if has("mamba") || has("mixer") && any(&MAMBA) {
            Self::Mamba
        } else if has("self_attn") || has("mixer") && any(&["q_proj", "k_proj", "v_proj", "o_proj"])
        {
            Self::Attention
        } else if has("laurel")
            || segments.iter().any(|s| {
                s.starts_with("altup") || s.contains("hyper_connection") || STREAMS.contains(s)
            })
        {
            Self::Streams
        } else if has("ple")
            || segments.iter().any(|s| s.starts_with("per_layer_") && !s.ends_with("norm"))
        {
            Self::PerLayer
        } else if has("router") || has("expert_bias") || mixture && any(&GATES) {
            Self::Router
        } else if any(&EXPERTS) {
            Self::Experts
        } else if any(&MLPS) {
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
            Self::Mamba => "mamba-2",
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
            ("model.altup_projections.0.weight", NetworkPart::Streams),
            ("model.layers.0.altup.router_norm.weight", NetworkPart::Streams),
            ("model.layers.0.laurel.linear_left.weight", NetworkPart::Streams),
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
            ("model.layers.1.feed_forward.gate.weight", NetworkPart::Router),
            ("model.layers.1.feed_forward.expert_bias", NetworkPart::Router),
            ("model.layers.1.feed_forward.experts.0.w1.weight", NetworkPart::Experts),
            ("model.layers.0.mamba.norm.weight", NetworkPart::Mamba),
            ("model.layers.0.block_sparse_moe.router.layer.weight", NetworkPart::Router),
            ("model.layers.0.block_sparse_moe.input_linear.weight", NetworkPart::Experts),
            ("model.layers.0.shared_mlp.input_linear.weight", NetworkPart::Mlp),
            ("backbone.embeddings.weight", NetworkPart::Embedding),
            ("backbone.layers.0.norm.weight", NetworkPart::Norms),
            ("backbone.norm_f.weight", NetworkPart::Norms),
            ("backbone.layers.0.mixer.A_log", NetworkPart::Mamba),
            ("backbone.layers.0.mixer.norm.weight", NetworkPart::Mamba),
            ("backbone.layers.1.mixer.q_proj.weight", NetworkPart::Attention),
            ("backbone.layers.2.mixer.up_proj.weight", NetworkPart::Mlp),
            ("backbone.layers.3.mixer.gate.e_score_correction_bias", NetworkPart::Router),
            ("backbone.layers.3.mixer.experts.0.up_proj.weight", NetworkPart::Experts),
            ("backbone.layers.3.mixer.shared_experts.up_proj.weight", NetworkPart::Experts),
            ("mtp.layers.0.self_attn.q_proj.weight", NetworkPart::Mtp),
            ("language_model.mtp.fc.weight", NetworkPart::Mtp),
            ("model.layers.61.eh_proj.weight", NetworkPart::Mtp),
            ("model.layers.61.shared_head.norm.weight", NetworkPart::Mtp),
            ("model.layers.3.mlp.shared_experts.up_proj.weight", NetworkPart::Experts),
            ("model.layers.1.block_sparse_moe.experts.0.w1.weight", NetworkPart::Experts),
            ("model.layers.1.block_sparse_moe.gate.e_score_correction_bias", NetworkPart::Router),
            ("model.visual.patch_embed.weight", NetworkPart::Other),
        ];
        for (name, part) in cases {
            assert_eq!(NetworkPart::of(name), part, "{name}");
        }
    }
}
