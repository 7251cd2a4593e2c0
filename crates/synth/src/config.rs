//! `config.json` as the published model has it.

use crate::shape::{DELTA_DIM, GROUP, HEAD_DIM, PublishedShape, SynthOptions, TAPS, WeightForm};
use serde_json::{Map, Value, json};

/// Of every so many layers the last attends to all positions.
const QWEN_INTERVAL: usize = 4;
const GEMMA_INTERVAL: usize = 6;

impl PublishedShape {
    /// Whether layer `i` attends to all positions.
    pub(crate) fn attends_to_all(&self, i: usize) -> bool {
        let interval = if self.gemma.is_some() { GEMMA_INTERVAL } else { QWEN_INTERVAL };
        // The last layer of a Gemma does so whatever is said.
        (i + 1).is_multiple_of(interval) || (self.gemma.is_some() && i + 1 == self.layers)
    }
}

pub(crate) fn of(shape: &PublishedShape, options: &SynthOptions) -> Value {
    let own = if shape.gemma.is_some() { gemma(shape) } else { qwen(shape) };
    merged([own, packing(options.form)])
}

/// What the config says about packed weights.
fn packing(form: WeightForm) -> Value {
    match form {
        WeightForm::Bf16 => Value::Null,
        WeightForm::Fp8 => json!({
            "quantization_config": {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": [128, 128],
            },
        }),
        WeightForm::FourBit => {
            let affine = json!({ "group_size": GROUP, "bits": 4, "mode": "affine" });
            json!({ "quantization": affine, "quantization_config": affine })
        }
    }
}

fn common(shape: &PublishedShape, [whole, other]: [&str; 2]) -> Value {
    let kind = |i| if shape.attends_to_all(i) { whole } else { other };
    json!({
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": HEAD_DIM,
        "layer_types": (0..shape.layers).map(kind).collect::<Vec<_>>(),
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-6,
        "attention_bias": false,
        "dtype": "bfloat16",
    })
}

fn qwen(shape: &PublishedShape) -> Value {
    let (kind, name) = match shape.experts {
        Some(_) => ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration"),
        None => ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    };
    let delta = shape.delta.map(|delta| {
        json!({
            "full_attention_interval": QWEN_INTERVAL,
            "linear_num_key_heads": delta.keys,
            "linear_num_value_heads": delta.values,
            "linear_key_head_dim": DELTA_DIM,
            "linear_value_head_dim": DELTA_DIM,
            "linear_conv_kernel_dim": TAPS,
        })
    });
    let mlp = match shape.experts {
        Some(experts) => json!({
            "num_experts": experts.count,
            "num_experts_per_tok": experts.top_k,
            "moe_intermediate_size": experts.ffn,
            "shared_expert_intermediate_size": shape.ffn,
        }),
        None => json!({ "intermediate_size": shape.ffn }),
    };
    let own = json!({
        "model_type": format!("{kind}_text"),
        "hidden_act": "silu",
        "attn_output_gate": true,
        "mamba_ssm_dtype": "float32",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": true,
            "mrope_section": [11, 11, 10],
        },
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": false,
    });
    let text = common(shape, ["full_attention", "linear_attention"]);
    json!({
        "architectures": [name],
        "model_type": kind,
        "tie_word_embeddings": false,
        "text_config": merged([text, own, mlp, delta.unwrap_or_default()]),
    })
}

fn gemma(shape: &PublishedShape) -> Value {
    let own = shape.gemma.map(|gemma| {
        json!({
            "model_type": "gemma4_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "intermediate_size": shape.ffn,
            "tie_word_embeddings": true,
            "sliding_window": gemma.window,
            "final_logit_softcapping": 30.0,
            "global_head_dim": gemma.global_head_dim,
            "attention_k_eq_v": true,
            "num_global_key_value_heads": gemma.global_kv_heads,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": false,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": shape.experts.is_some(),
            "num_experts": shape.experts.map(|experts| experts.count),
            "top_k_experts": shape.experts.map(|experts| experts.top_k),
            "moe_intermediate_size": shape.experts.map(|experts| experts.ffn),
            "rope_parameters": {
                "sliding_attention": { "rope_type": "default", "rope_theta": 10_000.0 },
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1_000_000.0,
                    "partial_rotary_factor": 0.25,
                },
            },
            "pad_token_id": 0,
        })
    });
    let text = common(shape, ["full_attention", "sliding_attention"]);
    json!({
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "tie_word_embeddings": true,
        "text_config": merged([text, own.unwrap_or_default()]),
    })
}

/// One object of several; later keys win.
fn merged<const N: usize>(parts: [Value; N]) -> Value {
    let mut all = Map::new();
    for part in parts {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    Value::Object(all)
}
