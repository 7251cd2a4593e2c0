//! What families call the modules of a block and the norm at the end.

/// Names of modules, as published.
#[derive(Debug)]
pub(crate) struct ModuleNames {
    /// The norm after the last block.
    pub(crate) final_norm: &'static str,
    /// The norm before a block's mixer.
    pub(crate) mixer_norm: &'static str,
    /// The norm before the MLP, in a block without norms after its parts.
    pub(crate) mlp_norm: &'static str,
    pub(crate) mlp: &'static str,
    /// A mixture, where a block has one in place of the MLP.
    pub(crate) moe: &'static str,
    /// What is added to a router's scores, in the mixture.
    pub(crate) router_bias: &'static str,
    /// Gate, up and down of an expert that is a module of its own.
    pub(crate) expert: [&'static str; 3],
    pub(crate) shared_expert: &'static str,
    pub(crate) gate_proj: &'static str,
    pub(crate) up_proj: &'static str,
    pub(crate) down_proj: &'static str,
    pub(crate) q_norm: &'static str,
    pub(crate) k_norm: &'static str,
    pub(crate) o_proj: &'static str,
    /// What stands between parallel residual streams and a block's mixer and MLP.
    pub(crate) connections: [&'static str; 2],
}

const COMMON: ModuleNames = ModuleNames {
    final_norm: "norm",
    mixer_norm: "input_layernorm",
    mlp_norm: "post_attention_layernorm",
    mlp: "mlp",
    moe: "mlp",
    router_bias: "gate.e_score_correction_bias",
    expert: ["gate_proj", "up_proj", "down_proj"],
    shared_expert: "shared_expert",
    gate_proj: "gate_proj",
    up_proj: "up_proj",
    down_proj: "down_proj",
    q_norm: "q_norm",
    k_norm: "k_norm",
    o_proj: "o_proj",
    connections: ["attn_hyper_connection", "mlp_hyper_connection"],
};

const LFM2: ModuleNames = ModuleNames {
    final_norm: "embedding_norm",
    mixer_norm: "operator_norm",
    mlp_norm: "ffn_norm",
    mlp: "feed_forward",
    moe: "feed_forward",
    router_bias: "expert_bias",
    expert: ["w1", "w3", "w2"],
    gate_proj: "w1",
    up_proj: "w3",
    down_proj: "w2",
    q_norm: "q_layernorm",
    k_norm: "k_layernorm",
    o_proj: "out_proj",
    ..COMMON
};

const DEEPSEEK_V4: ModuleNames =
    ModuleNames { shared_expert: "shared_experts", connections: ["attn_hc", "ffn_hc"], ..COMMON };

impl ModuleNames {
    /// Those of a family.
    pub(crate) fn of(family: &str) -> &'static Self {
        match family {
            "deepseek_v4" => &DEEPSEEK_V4,
            _ if family.starts_with("lfm2") => &LFM2,
            _ => &COMMON,
        }
    }
}
