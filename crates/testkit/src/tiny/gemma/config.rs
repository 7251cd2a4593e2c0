//! `config.json` of Gemma models.

use crate::tiny::{Family, Tiny};
use forerun_base::DType;
use serde_json::{Value, json};

impl Tiny {
    /// Width of a head in layer `i` of a Gemma model.
    pub(super) fn gemma_head_dim(&self, i: usize) -> usize {
        let wide = self.family == Family::Gemma4 && self.gemma.whole.contains(&i);
        if wide { self.gemma.whole_head_dim } else { self.head_dim }
    }

    /// What both generations spell alike.
    fn gemma_common(&self) -> Value {
        let whole = |i| self.gemma.whole.contains(&i);
        let kind = |i| if whole(i) { "full_attention" } else { "sliding_attention" };
        let layer_types: Vec<&str> = (0..self.layers).map(kind).collect();
        json!({
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": self.tied,
            "attention_bias": false,
            "layer_types": layer_types,
            "sliding_window": self.gemma.window,
            "final_logit_softcapping": self.gemma.cap,
            "eos_token_id": 381,
            "dtype": if self.dtype == DType::F32 { "float32" } else { "bfloat16" },
        })
    }

    pub(in crate::tiny) fn gemma3(&self) -> Value {
        let scaling = self.gemma.rope_factor;
        let own = json!({
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "query_pre_attn_scalar": self.gemma.query_scalar,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "rope_scaling": scaling.map(|factor| json!({ "factor": factor, "rope_type": "linear" })),
            "attn_logit_softcapping": null,
        });
        crate::tiny::config::merged([self.gemma_common(), own])
    }

    pub(in crate::tiny) fn gemma4(&self) -> Value {
        json!({
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "tie_word_embeddings": self.tied,
            "text_config": self.gemma4_text(),
        })
    }

    pub(super) fn gemma4_text(&self) -> Value {
        let (gemma, experts) = (&self.gemma, self.experts);
        let count = |n: usize| gemma.experts.then_some(n);
        let own = json!({
            "model_type": "gemma4_text",
            "global_head_dim": gemma.whole_head_dim,
            "attention_k_eq_v": gemma.keys_as_values.is_some(),
            "num_global_key_value_heads": gemma.keys_as_values,
            "num_kv_shared_layers": gemma.sharing,
            "use_double_wide_mlp": gemma.double_wide,
            "hidden_size_per_layer_input": gemma.per_layer,
            "enable_moe_block": gemma.experts,
            "num_experts": count(experts.count),
            "top_k_experts": count(experts.top_k),
            "moe_intermediate_size": count(experts.ffn),
            "rope_parameters": {
                "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1_000_000.0,
                    "partial_rotary_factor": 0.25,
                },
            },
            "pad_token_id": 0,
        });
        crate::tiny::config::merged([self.gemma_common(), own])
    }
}
