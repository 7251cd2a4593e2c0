//! What families call the modules of a block and the norm at the end.

/// Names of modules, as published.
#[derive(Debug)]
pub(crate) struct ModuleNames {
    /// The embedding of tokens.
    pub(crate) embedding: &'static str,
    /// The norm after the last block.
    pub(crate) final_norm: &'static str,
    /// The norm before a block's mixer.
    pub(crate) mixer_norm: &'static str,
    /// The norm before the MLP, in a block without norms after its parts.
    pub(crate) mlp_norm: &'static str,
    /// Softmax attention.
    pub(crate) attention: &'static str,
    /// Mamba-2.
    pub(crate) scan: &'static str,
    pub(crate) mlp: &'static str,
    /// A mixture, where a block has one in place of the MLP.
    pub(crate) moe: &'static str,
    /// The router's matrix, in the mixture.
    pub(crate) router: &'static str,
    /// What is added to a router's scores, in the mixture.
    pub(crate) router_bias: &'static str,
    /// Gate, up and down of an expert that is a module of its own. Where gate and up are one module, it is both: relu
    /// squared of a product is relu of it times itself.
    pub(crate) expert: [&'static str; 3],
    /// The experts' gates and ups in one stack, and their downs, in the mixture.
    pub(crate) stacks: [&'static str; 2],
    /// The expert that every row goes through, in the block.
    pub(crate) shared_expert: &'static str,
    /// Gate and up in one matrix, where an MLP may store them so.
    pub(crate) gate_up_proj: Option<&'static str>,
    pub(crate) gate_proj: &'static str,
    pub(crate) up_proj: &'static str,
    pub(crate) down_proj: &'static str,
    pub(crate) q_norm: &'static str,
    pub(crate) k_norm: &'static str,
    pub(crate) o_proj: &'static str,
}

const COMMON: ModuleNames = ModuleNames {
    embedding: "embed_tokens",
    final_norm: "norm",
    mixer_norm: "input_layernorm",
    mlp_norm: "post_attention_layernorm",
    attention: "self_attn",
    scan: "mamba",
    mlp: "mlp",
    moe: "mlp",
    router: "gate",
    router_bias: "gate.e_score_correction_bias",
    expert: ["gate_proj", "up_proj", "down_proj"],
    stacks: ["experts.gate_up_proj", "experts.down_proj"],
    shared_expert: "mlp.shared_expert",
    gate_up_proj: None,
    gate_proj: "gate_proj",
    up_proj: "up_proj",
    down_proj: "down_proj",
    q_norm: "q_norm",
    k_norm: "k_norm",
    o_proj: "o_proj",
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

const GRANITE: ModuleNames = ModuleNames {
    moe: "block_sparse_moe",
    router: "router.layer",
    stacks: ["input_linear", "output_linear"],
    mlp: "shared_mlp",
    shared_expert: "shared_mlp",
    gate_up_proj: Some("input_linear"),
    down_proj: "output_linear",
    ..COMMON
};

/// A block is one part, called the mixer, behind one norm.
const NEMOTRON_H: ModuleNames = ModuleNames {
    embedding: "embeddings",
    final_norm: "norm_f",
    mixer_norm: "norm",
    mlp_norm: "norm",
    attention: "mixer",
    scan: "mixer",
    mlp: "mixer",
    moe: "mixer",
    shared_expert: "mixer.shared_experts",
    expert: ["up_proj", "up_proj", "down_proj"],
    stacks: ["experts.up_proj", "experts.down_proj"],
    gate_proj: "up_proj",
    ..COMMON
};

impl ModuleNames {
    /// Those of a family.
    pub(crate) fn of(family: &str) -> &'static Self {
        match family {
            "lfm2" | "lfm2_moe" => &LFM2,
            "granitemoehybrid" => &GRANITE,
            "nemotron_h" => &NEMOTRON_H,
            _ => &COMMON,
        }
    }
}
