//! `config.json` of each family.

use super::{Family, Tiny};
use forerun_base::DType;
use serde_json::{Map, Value, json};

/// The part of a head that hybrids turn.
const PARTIAL_ROTARY: f64 = 0.25;

impl Tiny {
    pub(super) fn config(&self) -> Value {
        match self.family {
            Family::Llama => merged([self.common(), self.llama()]),
            Family::Qwen3 => merged([self.common(), self.qwen3()]),
            Family::Qwen3Moe => merged([self.common(), self.qwen3(), self.sparse()]),
            Family::Qwen3Next => merged([self.common(), self.linear_keys(), self.qwen3_next()]),
            Family::Qwen35 | Family::Qwen35Moe => self.qwen3_5(),
            Family::Gemma3 => self.gemma3(),
            Family::Gemma4 => self.gemma4(),
            Family::Granite => merged([self.common(), self.granite()]),
            Family::Lfm2 => self.lfm2(),
            Family::Lfm2Moe => self.lfm2_moe(),
            Family::NemotronH => merged([self.common(), self.nemotron()]),
        }
    }

    fn common(&self) -> Value {
        json!({
            "model_type": self.family.model_type(),
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": 4096,
            "tie_word_embeddings": self.tied,
            "attention_bias": false,
            "eos_token_id": 381,
            "dtype": if self.dtype == DType::F32 { "float32" } else { "bfloat16" },
        })
    }

    fn llama(&self) -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"],
            "intermediate_size": self.ffn,
            "rms_norm_eps": 1e-5,
            "mlp_bias": false,
            "rope_theta": 500_000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "eos_token_id": [379, 381],
        })
    }

    fn qwen3(&self) -> Value {
        let name = if self.family.is_sparse() { "Qwen3MoeForCausalLM" } else { "Qwen3ForCausalLM" };
        json!({
            "architectures": [name],
            "intermediate_size": self.ffn,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "rope_scaling": null,
            "use_sliding_window": false,
        })
    }

    fn sparse(&self) -> Value {
        json!({
            "num_experts": self.experts.count,
            "num_experts_per_tok": self.experts.top_k,
            "moe_intermediate_size": self.experts.ffn,
            "norm_topk_prob": true,
            "decoder_sparse_step": 1,
            "mlp_only_layers": self.dense_layers,
        })
    }

    fn linear_keys(&self) -> Value {
        json!({
            "rms_norm_eps": 1e-6,
            "full_attention_interval": self.linear.interval,
            "linear_num_key_heads": self.linear.key_heads,
            "linear_num_value_heads": self.linear.value_heads,
            "linear_key_head_dim": self.linear.key_dim,
            "linear_value_head_dim": self.linear.value_dim,
            "linear_conv_kernel_dim": self.linear.taps,
        })
    }

    fn qwen3_next(&self) -> Value {
        let own = json!({
            "architectures": ["Qwen3NextForCausalLM"],
            "intermediate_size": self.ffn,
            "shared_expert_intermediate_size": self.experts.shared_ffn,
            "partial_rotary_factor": PARTIAL_ROTARY,
            "rope_theta": 10_000_000,
            "rope_scaling": null,
        });
        merged([self.sparse(), own])
    }

    fn lfm2(&self) -> Value {
        let kind = |i| if self.is_attention(i) { "full_attention" } else { "conv" };
        let layer_types: Vec<&str> = (0..self.layers).map(kind).collect();
        let usual = self.heads * self.head_dim == self.hidden;
        let head_dim = if usual { Value::Null } else { json!({ "head_dim": self.head_dim }) };
        let own = json!({
            "architectures": ["Lfm2ForCausalLM"],
            "model_type": "lfm2",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "block_auto_adjust_ff_dim": false,
            "num_hidden_layers": self.layers,
            "layer_types": layer_types,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "conv_L_cache": self.linear.taps,
            "conv_bias": self.conv_bias,
            "norm_eps": 1e-5,
            "rope_parameters": { "rope_theta": 1_000_000.0, "rope_type": "default" },
            "max_position_embeddings": 4096,
            "tie_word_embeddings": self.tied,
            "eos_token_id": 381,
            "dtype": if self.dtype == DType::F32 { "float32" } else { "bfloat16" },
        });
        merged([own, head_dim])
    }

    fn lfm2_moe(&self) -> Value {
        let dense = (0..self.layers).take_while(|&i| !self.has_experts(i)).count();
        let mut base = self.lfm2();
        // Widths are taken as they are.
        base.as_object_mut().map(|base| base.remove("block_auto_adjust_ff_dim"));
        let own = json!({
            "architectures": ["Lfm2MoeForCausalLM"],
            "model_type": "lfm2_moe",
            "num_dense_layers": dense,
            "num_experts": self.experts.count,
            "num_experts_per_tok": self.experts.top_k,
            "moe_intermediate_size": self.experts.ffn,
            "norm_topk_prob": true,
            "use_expert_bias": true,
            "routed_scaling_factor": 1.0,
        });
        merged([base, own])
    }

    fn qwen3_5(&self) -> Value {
        let sparse = self.family.is_sparse();
        let kind = |i| if self.is_attention(i) { "full_attention" } else { "linear_attention" };
        let layer_types: Vec<&str> = (0..self.layers).map(kind).collect();
        let pairs = (self.head_dim as f64 * PARTIAL_ROTARY) as usize / 2;
        let own = json!({
            "model_type": format!("{}_text", self.family.model_type()),
            "layer_types": layer_types,
            "attn_output_gate": true,
            "mamba_ssm_dtype": "float32",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000_000,
                "partial_rotary_factor": PARTIAL_ROTARY,
                "mrope_interleaved": true,
                "mrope_section": [pairs - 2 * (pairs / 3), pairs / 3, pairs / 3],
            },
            "mtp_num_hidden_layers": usize::from(self.mtp),
            "mtp_use_dedicated_embeddings": false,
        });
        let mlp = if sparse {
            json!({
                "num_experts": self.experts.count,
                "num_experts_per_tok": self.experts.top_k,
                "moe_intermediate_size": self.experts.ffn,
                "shared_expert_intermediate_size": self.experts.shared_ffn,
            })
        } else {
            json!({ "intermediate_size": self.ffn })
        };
        let name = if sparse { "Qwen3_5Moe" } else { "Qwen3_5" };
        json!({
            "architectures": [format!("{name}ForConditionalGeneration")],
            "model_type": self.family.model_type(),
            "tie_word_embeddings": self.tied,
            "text_config": merged([self.common(), self.linear_keys(), own, mlp]),
        })
    }
}

/// One object of several; later keys win.
pub(super) fn merged<const N: usize>(parts: [Value; N]) -> Value {
    let mut all = Map::new();
    for part in parts {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    Value::Object(all)
}
