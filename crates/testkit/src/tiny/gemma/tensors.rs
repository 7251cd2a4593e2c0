//! Which tensors a Gemma model stores.

use crate::tiny::family::swiglu;
use crate::tiny::weights::{NormInit, TinyWeights};
use crate::tiny::{Family, Tiny};

pub(in crate::tiny) fn fill(tiny: &Tiny, weights: &mut TinyWeights) {
    let root = if tiny.family == Family::Gemma3 { "model" } else { "model.language_model" };
    let tiny = &Tiny { gemma: tiny.gemma.of(tiny.family), ..tiny.clone() };
    let hidden = tiny.hidden;
    // Embeddings are multiplied by the root of the width, and are also the head.
    let spread = 3.0 / (hidden as f32).sqrt();
    weights.normal(format!("{root}.embed_tokens.weight"), &[tiny.vocabulary, hidden], spread);
    for i in 0..tiny.layers {
        layer(tiny, weights, &format!("{root}.layers.{i}"), i);
    }
    weights.norm(format!("{root}.norm.weight"), hidden, norm(tiny));
    if !tiny.tied {
        weights.projection("lm_head.weight".into(), [tiny.vocabulary, hidden], 3.0);
    }
    let width = tiny.gemma.per_layer;
    if width > 0 {
        let (all, spread) = (tiny.layers * width, 1.0 / (width as f32).sqrt());
        let at = |name: &str| format!("{root}.{name}.weight");
        weights.normal(at("embed_tokens_per_layer"), &[tiny.vocabulary, all], spread);
        // What comes out is divided by the root of the width.
        let gain = (hidden as f32).sqrt();
        weights.projection(at("per_layer_model_projection"), [all, hidden], gain);
        weights.norm(at("per_layer_projection_norm"), width, NormInit::Plain);
    }
}

/// Gemma 3 alone stores norms as `w − 1`.
fn norm(tiny: &Tiny) -> NormInit {
    if tiny.family == Family::Gemma3 { NormInit::Offset } else { NormInit::Plain }
}

/// One block. That of a drafter has no keys: all its layers share.
pub(super) fn layer(tiny: &Tiny, weights: &mut TinyWeights, at: &str, i: usize) {
    let hidden = tiny.hidden;
    for name in [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ] {
        weights.norm(format!("{at}.{name}.weight"), hidden, norm(tiny));
    }
    attention(tiny, weights, &format!("{at}.self_attn"), i);
    let wide = tiny.gemma.double_wide && i >= tiny.layers - tiny.gemma.sharing;
    swiglu(weights, &format!("{at}.mlp"), hidden, if wide { 2 * tiny.ffn } else { tiny.ffn });
    if tiny.family == Family::Gemma3 {
        return;
    }
    let dtype = tiny.dtype;
    weights.uniform(format!("{at}.layer_scalar"), 1, dtype, [0.6, 1.1], |x| x);
    let width = tiny.gemma.per_layer;
    if width > 0 {
        weights.projection(format!("{at}.per_layer_input_gate.weight"), [width, hidden], 1.0);
        weights.projection(format!("{at}.per_layer_projection.weight"), [hidden, width], 1.0);
        weights.norm(format!("{at}.post_per_layer_input_norm.weight"), hidden, NormInit::Plain);
    }
    if tiny.gemma.experts {
        experts(tiny, weights, at);
    }
}

fn attention(tiny: &Tiny, weights: &mut TinyWeights, at: &str, i: usize) {
    let (hidden, gemma) = (tiny.hidden, &tiny.gemma);
    let whole = gemma.whole.contains(&i);
    let from_keys = gemma.keys_as_values.filter(|_| whole);
    let head_dim = tiny.gemma_head_dim(i);
    let kv = from_keys.unwrap_or(tiny.kv_heads) * head_dim;
    weights.projection(format!("{at}.q_proj.weight"), [tiny.heads * head_dim, hidden], 1.0);
    weights.projection(format!("{at}.o_proj.weight"), [hidden, tiny.heads * head_dim], 1.0);
    let mut norms = vec!["q_norm"];
    // Published files keep the keys of layers that share; only a drafter has none at all.
    if gemma.sharing < tiny.layers {
        weights.projection(format!("{at}.k_proj.weight"), [kv, hidden], 1.0);
        if from_keys.is_none() {
            weights.projection(format!("{at}.v_proj.weight"), [kv, hidden], 1.0);
        }
        norms.push("k_norm");
    }
    for name in norms {
        let name = format!("{at}.{name}.weight");
        match tiny.family {
            Family::Gemma3 => weights.norm(name, head_dim, NormInit::Offset),
            // Scores are not scaled: these norms set their size.
            _ => weights.near(name, head_dim, 0.6, 0.1),
        }
    }
}

fn experts(tiny: &Tiny, weights: &mut TinyWeights, at: &str) {
    let (hidden, experts) = (tiny.hidden, tiny.experts);
    // The router's input is divided by the root of the width.
    let gain = (hidden as f32).sqrt();
    weights.projection(format!("{at}.router.proj.weight"), [experts.count, hidden], gain);
    weights.norm(format!("{at}.router.scale"), hidden, NormInit::Plain);
    weights.norm(format!("{at}.router.per_expert_scale"), experts.count, NormInit::Plain);
    let shape = [experts.count, 2 * experts.ffn, hidden];
    weights.stack(format!("{at}.experts.gate_up_proj"), shape, 1.0);
    weights.stack(format!("{at}.experts.down_proj"), [experts.count, hidden, experts.ffn], 1.5);
    for name in [
        "pre_feedforward_layernorm_2",
        "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2",
    ] {
        weights.norm(format!("{at}.{name}.weight"), hidden, NormInit::Plain);
    }
}
