//! Which tensors each family stores.

use super::weights::{NormInit, TinyWeights};
use super::{Family, Tiny, gemma, lfm2, scan};
use forerun_base::DType;

pub(super) fn fill(tiny: &Tiny, weights: &mut TinyWeights) {
    if tiny.family.is_gemma() {
        return gemma::fill(tiny, weights);
    }
    if tiny.family.is_lfm2() {
        return lfm2::fill(tiny, weights);
    }
    if tiny.family.has_scans() {
        return scan::fill(tiny, weights);
    }
    let root = match tiny.family {
        Family::Qwen35 | Family::Qwen35Moe => "model.language_model",
        _ => "model",
    };
    let norm = layer_norm(tiny);
    // Tied embeddings are also the head: smaller, so that logits stay moderate.
    let spread = if tiny.tied { 0.5 } else { 1.0 };
    weights.normal(format!("{root}.embed_tokens.weight"), &[tiny.vocabulary, tiny.hidden], spread);
    for i in 0..tiny.layers {
        let at = format!("{root}.layers.{i}");
        weights.norm(format!("{at}.input_layernorm.weight"), tiny.hidden, norm);
        if tiny.is_attention(i) {
            attention(tiny, weights, &format!("{at}.self_attn"));
        } else {
            delta_net(tiny, weights, &format!("{at}.linear_attn"));
        }
        weights.norm(format!("{at}.post_attention_layernorm.weight"), tiny.hidden, norm);
        mlp(tiny, weights, &format!("{at}.mlp"), tiny.has_experts(i));
    }
    weights.norm(format!("{root}.norm.weight"), tiny.hidden, norm);
    if !tiny.tied {
        weights.projection("lm_head.weight".into(), [tiny.vocabulary, tiny.hidden], 3.0);
    }
    if tiny.mtp && tiny.family.is_hybrid() {
        mtp(tiny, weights);
    }
}

fn layer_norm(tiny: &Tiny) -> NormInit {
    if tiny.family.is_hybrid() { NormInit::Offset } else { NormInit::Plain }
}

fn attention(tiny: &Tiny, weights: &mut TinyWeights, at: &str) {
    let (wide, kv) = (tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim);
    let gated = tiny.family.is_hybrid();
    // The gate halves what passes; a larger output projection makes up for it.
    let (queries, gain) = if gated { (2 * wide, 2.0) } else { (wide, 1.0) };
    weights.projection(format!("{at}.q_proj.weight"), [queries, tiny.hidden], 1.0);
    weights.projection(format!("{at}.k_proj.weight"), [kv, tiny.hidden], 1.0);
    weights.projection(format!("{at}.v_proj.weight"), [kv, tiny.hidden], 1.0);
    weights.projection(format!("{at}.o_proj.weight"), [tiny.hidden, wide], gain);
    if tiny.family != Family::Llama {
        for name in ["q_norm", "k_norm"] {
            weights.norm(format!("{at}.{name}.weight"), tiny.head_dim, layer_norm(tiny));
        }
    }
}

fn delta_net(tiny: &Tiny, weights: &mut TinyWeights, at: &str) {
    let linear = tiny.linear;
    let keys = linear.key_heads * linear.key_dim;
    let values = linear.value_heads * linear.value_dim;
    let heads = linear.value_heads;
    let fused = tiny.family == Family::Qwen3Next;
    let inputs: &[(&str, usize, f32)] = if fused {
        &[("qkvz", 2 * keys + 2 * values, 1.0), ("ba", 2 * heads, 0.7)]
    } else {
        &[("qkv", 2 * keys + values, 1.0), ("z", values, 1.0), ("b", heads, 0.7), ("a", heads, 0.7)]
    };
    for &(name, outputs, gain) in inputs {
        weights.projection(format!("{at}.in_proj_{name}.weight"), [outputs, tiny.hidden], gain);
    }
    weights.normal(format!("{at}.conv1d.weight"), &[2 * keys + values, 1, linear.taps], 0.6);
    // Qwen3.5 files keep these in f32 while the rest is bf16.
    let dtype = if fused { tiny.dtype } else { DType::F32 };
    weights.uniform(format!("{at}.A_log"), heads, dtype, [0.1, 4.0], f32::ln);
    // The inverse of softplus: the decay's step is then what was drawn.
    let inverse = |step: f32| step.exp_m1().ln();
    weights.uniform(format!("{at}.dt_bias"), heads, tiny.dtype, [0.01, 0.25], inverse);
    weights.norm_as(format!("{at}.norm.weight"), linear.value_dim, NormInit::Plain, dtype);
    weights.projection(format!("{at}.out_proj.weight"), [tiny.hidden, values], 1.0);
}

fn mlp(tiny: &Tiny, weights: &mut TinyWeights, at: &str, sparse: bool) {
    if !sparse {
        return swiglu(weights, at, tiny.hidden, tiny.ffn);
    }
    let (hidden, experts) = (tiny.hidden, tiny.experts);
    weights.projection(format!("{at}.gate.weight"), [experts.count, hidden], 2.0);
    if tiny.family == Family::Qwen35Moe {
        let shape = [experts.count, 2 * experts.ffn, hidden];
        weights.stack(format!("{at}.experts.gate_up_proj"), shape, 1.0);
        let shape = [experts.count, hidden, experts.ffn];
        weights.stack(format!("{at}.experts.down_proj"), shape, 1.5);
    } else {
        for e in 0..experts.count {
            swiglu(weights, &format!("{at}.experts.{e}"), hidden, experts.ffn);
        }
    }
    if tiny.family.is_hybrid() {
        swiglu(weights, &format!("{at}.shared_expert"), hidden, experts.shared_ffn);
        weights.projection(format!("{at}.shared_expert_gate.weight"), [1, hidden], 1.0);
    }
}

pub(super) fn swiglu(weights: &mut TinyWeights, at: &str, hidden: usize, ffn: usize) {
    weights.projection(format!("{at}.gate_proj.weight"), [ffn, hidden], 1.0);
    weights.projection(format!("{at}.up_proj.weight"), [ffn, hidden], 1.0);
    weights.projection(format!("{at}.down_proj.weight"), [hidden, ffn], 1.5);
}

fn mtp(tiny: &Tiny, weights: &mut TinyWeights) {
    let hidden = tiny.hidden;
    for name in ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"] {
        weights.norm(format!("mtp.{name}.weight"), hidden, NormInit::Offset);
    }
    weights.projection("mtp.fc.weight".into(), [hidden, 2 * hidden], 1.0);
    let at = "mtp.layers.0";
    for name in ["input_layernorm", "post_attention_layernorm"] {
        weights.norm(format!("{at}.{name}.weight"), hidden, NormInit::Offset);
    }
    attention(tiny, weights, &format!("{at}.self_attn"));
    mlp(tiny, weights, &format!("{at}.mlp"), tiny.family.is_sparse());
}
