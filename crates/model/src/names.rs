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
    pub(crate) mtp: MtpNames,
    /// What stands between parallel residual streams and a block's mixer and MLP.
    pub(crate) connections: [&'static str; 2],
}

/// What the modules of an MTP head are called, below its path.
#[derive(Debug)]
pub(crate) struct MtpNames {
    pub(crate) embedding_norm: &'static str,
    pub(crate) hidden_norm: &'static str,
    /// The projection of both halves.
    pub(crate) join: &'static str,
    /// The block; empty where its modules stand beside the others.
    pub(crate) block: &'static str,
    /// The norm of the block's output.
    pub(crate) norm: &'static str,
    /// A head of its own.
    pub(crate) head: &'static str,
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
    mtp: MtpNames {
        embedding_norm: "pre_fc_norm_embedding",
        hidden_norm: "pre_fc_norm_hidden",
        join: "fc",
        block: "layers.0",
        norm: "norm",
        head: "lm_head",
    },
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

/// As published; what was saved again has the common names.
const OLMO: ModuleNames = ModuleNames {
    mixer_norm: "attention_layer_norm",
    mlp_norm: "feedforward_layer_norm",
    ..COMMON
};

const DEEPSEEK: ModuleNames = ModuleNames {
    shared_expert: "mlp.shared_experts",
    mtp: MtpNames {
        embedding_norm: "enorm",
        hidden_norm: "hnorm",
        join: "eh_proj",
        block: "",
        norm: "shared_head.norm",
        head: "shared_head.head",
    },
    ..COMMON
};

const KIMI: ModuleNames = ModuleNames {
    moe: "block_sparse_moe",
    shared_expert: "block_sparse_moe.shared_experts",
    expert: ["w1", "w3", "w2"],
    ..DEEPSEEK
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

const DEEPSEEK_V4: ModuleNames = ModuleNames {
    shared_expert: "mlp.shared_experts",
    connections: ["attn_hc", "ffn_hc"],
    ..COMMON
};

impl ModuleNames {
    /// Those of a family.
    pub(crate) fn of(family: &str) -> &'static Self {
        match family {
            "olmo_hybrid" => &OLMO,
            "glm4_moe" | "deepseek_v3" => &DEEPSEEK,
            "deepseek_v4" => &DEEPSEEK_V4,
            "kimi_linear" => &KIMI,
            "lfm2" | "lfm2_moe" => &LFM2,
            "granitemoehybrid" => &GRANITE,
            "nemotron_h" => &NEMOTRON_H,
            _ => &COMMON,
        }
    }

    /// What the norm before a mixer or an MLP is called in any file of any family.
    pub(crate) fn common(name: &'static str) -> &'static str {
        match name {
            _ if name == OLMO.mixer_norm => COMMON.mixer_norm,
            _ if name == OLMO.mlp_norm => COMMON.mlp_norm,
            _ => name,
        }
    }
}
