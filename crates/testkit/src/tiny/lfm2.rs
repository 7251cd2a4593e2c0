//! LFM2: gated short convolutions with attention in some layers, under names of its own.

use super::Tiny;
use super::weights::{NormInit, TinyWeights};

pub(super) fn fill(tiny: &Tiny, weights: &mut TinyWeights) {
    let Tiny { hidden, vocabulary, ffn, .. } = *tiny;
    let spread = if tiny.tied { 0.5 } else { 1.0 };
    weights.normal("model.embed_tokens.weight".into(), &[vocabulary, hidden], spread);
    for i in 0..tiny.layers {
        let at = format!("model.layers.{i}");
        weights.norm(format!("{at}.operator_norm.weight"), hidden, NormInit::Plain);
        if tiny.is_attention(i) {
            attention(tiny, weights, &format!("{at}.self_attn"));
        } else {
            short_conv(tiny, weights, &format!("{at}.conv"));
        }
        weights.norm(format!("{at}.ffn_norm.weight"), hidden, NormInit::Plain);
        let at = format!("{at}.feed_forward");
        if !tiny.has_experts(i) {
            mlp(weights, &at, [hidden, ffn]);
            continue;
        }
        let experts = tiny.experts;
        weights.projection(format!("{at}.gate.weight"), [experts.count, hidden], 2.0);
        weights.near(format!("{at}.expert_bias"), experts.count, 0.0, 0.1);
        for e in 0..experts.count {
            mlp(weights, &format!("{at}.experts.{e}"), [hidden, experts.ffn]);
        }
    }
    weights.norm("model.embedding_norm.weight".into(), hidden, NormInit::Plain);
    if !tiny.tied {
        weights.projection("lm_head.weight".into(), [vocabulary, hidden], 3.0);
    }
}

fn mlp(weights: &mut TinyWeights, at: &str, [hidden, ffn]: [usize; 2]) {
    for (name, shape, gain) in
        [("w1", [ffn, hidden], 1.0), ("w3", [ffn, hidden], 1.0), ("w2", [hidden, ffn], 1.5)]
    {
        weights.projection(format!("{at}.{name}.weight"), shape, gain);
    }
}

fn attention(tiny: &Tiny, weights: &mut TinyWeights, at: &str) {
    let (wide, kv) = (tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim);
    for (name, outputs) in [("q_proj", wide), ("k_proj", kv), ("v_proj", kv)] {
        weights.projection(format!("{at}.{name}.weight"), [outputs, tiny.hidden], 1.0);
    }
    weights.projection(format!("{at}.out_proj.weight"), [tiny.hidden, wide], 1.0);
    for name in ["q_layernorm", "k_layernorm"] {
        weights.norm(format!("{at}.{name}.weight"), tiny.head_dim, NormInit::Plain);
    }
}

fn short_conv(tiny: &Tiny, weights: &mut TinyWeights, at: &str) {
    let hidden = tiny.hidden;
    weights.projection(format!("{at}.in_proj.weight"), [3 * hidden, hidden], 1.0);
    weights.normal(format!("{at}.conv.weight"), &[hidden, 1, tiny.linear.taps], 0.6);
    weights.projection(format!("{at}.out_proj.weight"), [hidden, hidden], 1.0);
    if tiny.conv_bias {
        for (name, len) in [("in_proj", 3 * hidden), ("conv", hidden), ("out_proj", hidden)] {
            weights.near(format!("{at}.{name}.bias"), len, 0.0, 0.3);
        }
    }
}
