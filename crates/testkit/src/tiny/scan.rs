//! Granite 4 and Nemotron-H: Mamba-2 in most blocks.

use super::weights::{NormInit, TinyWeights};
use super::{Family, Tiny, TinyLinear};
use forerun_base::DType;
use serde_json::{Value, json};

/// What a block of Nemotron-H is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Scan,
    Attention,
    Mlp,
    Experts,
}

impl Tiny {
    fn nemotron_kind(&self, i: usize) -> Kind {
        match i % 3 {
            _ if self.is_attention(i) => Kind::Attention,
            0 => Kind::Scan,
            1 => Kind::Mlp,
            _ => Kind::Experts,
        }
    }

    fn scan_inner(&self) -> usize {
        self.linear.value_heads * self.linear.value_dim
    }

    pub(super) fn granite(&self) -> Value {
        let TinyLinear { key_heads, value_heads, key_dim, value_dim, taps, .. } = self.linear;
        assert!(self.scan_inner().is_multiple_of(self.hidden), "channels expand the stream");
        let kind = |i| if self.is_attention(i) { "full_attention" } else { "linear_attention" };
        let layer_types: Vec<&str> = (0..self.layers).map(kind).collect();
        json!({
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "intermediate_size": self.experts.ffn,
            "shared_intermediate_size": self.experts.shared_ffn,
            "num_local_experts": if self.has_experts(0) { self.experts.count } else { 0 },
            "num_experts_per_tok": self.experts.top_k,
            "layer_types": layer_types,
            "mamba_n_heads": value_heads,
            "mamba_d_head": value_dim,
            "mamba_n_groups": key_heads,
            "mamba_d_state": key_dim,
            "mamba_d_conv": taps,
            "mamba_expand": self.scan_inner() / self.hidden,
            "mamba_conv_bias": self.conv_bias,
            "position_embedding_type": "nope",
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.6,
            "logits_scaling": 2.0,
            "attention_multiplier": 0.25,
            "rms_norm_eps": 1e-6,
        })
    }

    pub(super) fn nemotron(&self) -> Value {
        let TinyLinear { key_heads, value_heads, key_dim, value_dim, taps, .. } = self.linear;
        let letter = |i| match self.nemotron_kind(i) {
            Kind::Scan => 'M',
            Kind::Attention => '*',
            Kind::Mlp => '-',
            Kind::Experts => 'E',
        };
        let pattern: String = (0..self.layers).map(letter).collect();
        json!({
            "architectures": ["NemotronHForCausalLM"],
            "hybrid_override_pattern": pattern,
            "intermediate_size": self.ffn,
            "mamba_num_heads": value_heads,
            "mamba_head_dim": value_dim,
            "n_groups": key_heads,
            "ssm_state_size": key_dim,
            "conv_kernel": taps,
            "use_conv_bias": self.conv_bias,
            "mlp_hidden_act": "relu2",
            "n_routed_experts": self.experts.count,
            "num_experts_per_tok": self.experts.top_k,
            "moe_intermediate_size": self.experts.ffn,
            "moe_shared_expert_intermediate_size": self.experts.shared_ffn,
            "routed_scaling_factor": 1.5,
            "layer_norm_epsilon": 1e-5,
        })
    }
}

pub(super) fn fill(tiny: &Tiny, weights: &mut TinyWeights) {
    let nemotron = tiny.family == Family::NemotronH;
    let (trunk, embedding, last) = match nemotron {
        true => ("backbone", "embeddings", "norm_f"),
        false => ("model", "embed_tokens", "norm"),
    };
    let spread = if tiny.tied { 0.5 } else { 1.0 };
    let table = [tiny.vocabulary, tiny.hidden];
    weights.normal(format!("{trunk}.{embedding}.weight"), &table, spread);
    for i in 0..tiny.layers {
        let at = format!("{trunk}.layers.{i}");
        if nemotron {
            nemotron_block(tiny, weights, &at, tiny.nemotron_kind(i));
        } else {
            granite_block(tiny, weights, &at, i);
        }
    }
    weights.norm(format!("{trunk}.{last}.weight"), tiny.hidden, NormInit::Plain);
    if !tiny.tied {
        weights.projection("lm_head.weight".into(), table, 3.0);
    }
}

fn granite_block(tiny: &Tiny, weights: &mut TinyWeights, at: &str, i: usize) {
    let (hidden, experts) = (tiny.hidden, tiny.experts);
    weights.norm(format!("{at}.input_layernorm.weight"), hidden, NormInit::Plain);
    if tiny.is_attention(i) {
        attention(tiny, weights, &format!("{at}.self_attn"));
    } else {
        scan(tiny, weights, &format!("{at}.mamba"));
    }
    weights.norm(format!("{at}.post_attention_layernorm.weight"), hidden, NormInit::Plain);
    if tiny.has_experts(i) {
        let at = format!("{at}.block_sparse_moe");
        weights.projection(format!("{at}.router.layer.weight"), [experts.count, hidden], 2.0);
        let shape = [experts.count, 2 * experts.ffn, hidden];
        weights.stack(format!("{at}.input_linear.weight"), shape, 1.0);
        let shape = [experts.count, hidden, experts.ffn];
        weights.stack(format!("{at}.output_linear.weight"), shape, 1.5);
    }
    let shared = experts.shared_ffn;
    weights.projection(format!("{at}.shared_mlp.input_linear.weight"), [2 * shared, hidden], 1.0);
    weights.projection(format!("{at}.shared_mlp.output_linear.weight"), [hidden, shared], 1.5);
}

fn nemotron_block(tiny: &Tiny, weights: &mut TinyWeights, at: &str, kind: Kind) {
    let (hidden, experts) = (tiny.hidden, tiny.experts);
    weights.norm(format!("{at}.norm.weight"), hidden, NormInit::Plain);
    let at = format!("{at}.mixer");
    let mlp = |weights: &mut TinyWeights, at: &str, ffn: usize| {
        weights.projection(format!("{at}.up_proj.weight"), [ffn, hidden], 1.0);
        weights.projection(format!("{at}.down_proj.weight"), [hidden, ffn], 1.5);
    };
    match kind {
        Kind::Scan => scan(tiny, weights, &at),
        Kind::Attention => attention(tiny, weights, &at),
        Kind::Mlp => mlp(weights, &at, tiny.ffn),
        Kind::Experts => {
            weights.projection(format!("{at}.gate.weight"), [experts.count, hidden], 2.0);
            let bias = format!("{at}.gate.e_score_correction_bias");
            weights.near(bias, experts.count, 0.0, 0.1);
            for e in 0..experts.count {
                mlp(weights, &format!("{at}.experts.{e}"), experts.ffn);
            }
            mlp(weights, &format!("{at}.shared_experts"), experts.shared_ffn);
        }
    }
}

fn attention(tiny: &Tiny, weights: &mut TinyWeights, at: &str) {
    let (wide, kv) = (tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim);
    for (name, outputs) in [("q_proj", wide), ("k_proj", kv), ("v_proj", kv)] {
        weights.projection(format!("{at}.{name}.weight"), [outputs, tiny.hidden], 1.0);
    }
    weights.projection(format!("{at}.o_proj.weight"), [tiny.hidden, wide], 1.0);
}

fn scan(tiny: &Tiny, weights: &mut TinyWeights, at: &str) {
    let TinyLinear { key_heads, value_heads, key_dim, taps, .. } = tiny.linear;
    let inner = tiny.scan_inner();
    let channels = inner + 2 * key_heads * key_dim;
    let rows = inner + channels + value_heads;
    weights.projection(format!("{at}.in_proj.weight"), [rows, tiny.hidden], 1.0);
    weights.normal(format!("{at}.conv1d.weight"), &[channels, 1, taps], 0.6);
    if tiny.conv_bias {
        weights.near(format!("{at}.conv1d.bias"), channels, 0.0, 0.1);
    }
    weights.uniform(format!("{at}.A_log"), value_heads, DType::F32, [0.5, 8.0], f32::ln);
    let inverse = |step: f32| step.exp_m1().ln();
    weights.uniform(format!("{at}.dt_bias"), value_heads, tiny.dtype, [0.01, 0.3], inverse);
    weights.norm(format!("{at}.D"), value_heads, NormInit::Plain);
    weights.norm(format!("{at}.norm.weight"), inner, NormInit::Plain);
    weights.projection(format!("{at}.out_proj.weight"), [tiny.hidden, inner], 1.0);
}
