//! What each architecture says and stores.

use super::convert::Converter;
use forerun_testkit::tiny::{Family, GgufFile, GgufValue, Tiny};
use std::path::Path;

/// The checkpoint of `tiny` in `folder` as a GGUF file.
pub(super) fn converted(tiny: &Tiny, folder: &Path) -> GgufFile {
    let mut converter = Converter::new(tiny, folder);
    match tiny.family {
        Family::Gemma3 | Family::Gemma4 => gemma(&mut converter),
        Family::Lfm2 | Family::Lfm2Moe => lfm2(&mut converter),
        Family::Granite => granite(&mut converter),
        Family::NemotronH => nemotron(&mut converter),
        _ => qwen(&mut converter),
    }
    converter.file
}

fn lfm2(c: &mut Converter<'_>) {
    let tiny = c.tiny;
    c.outside(1e-5, 1e6);
    // The norm at the end goes by this name.
    c.copy("token_embd_norm.weight", "model.embedding_norm.weight");
    c.counts(&[
        ("block_count", tiny.layers),
        ("attention.key_length", tiny.head_dim),
        ("attention.value_length", tiny.head_dim),
        ("feed_forward_length", tiny.ffn),
        ("shortconv.l_cache", tiny.linear.taps),
        ("vocab_size", tiny.vocabulary),
    ]);
    let attends = |i: usize| c.holds(&format!("model.layers.{i}.self_attn.q_proj.weight"));
    let kv_heads = (0..tiny.layers).map(|i| if attends(i) { tiny.kv_heads as i32 } else { 0 });
    let kv_heads = GgufValue::i32s(&kv_heads.collect::<Vec<_>>());
    c.key("attention.head_count_kv", kv_heads);
    if tiny.family == Family::Lfm2Moe {
        experts(c);
        c.counts(&[("leading_dense_block_count", tiny.dense_layers.len())]);
    }
    for i in 0..tiny.layers {
        let (at, b) = (c.block(i), format!("blk.{i}"));
        if c.holds(&format!("{at}.feed_forward.gate.weight")) {
            let at = format!("{at}.feed_forward");
            c.copy(&format!("{b}.ffn_gate_inp.weight"), &format!("{at}.gate.weight"));
            c.copy(&format!("{b}.exp_probs_b.bias"), &format!("{at}.expert_bias"));
            for (own, stored) in [("w1", "gate"), ("w3", "up"), ("w2", "down")] {
                let from = |e| format!("{at}.experts.{e}.{own}.weight");
                c.stacked(&format!("{b}.ffn_{stored}_exps.weight"), from);
            }
        }
        c.conv_kernel_of(&at, &b);
        for (published, stored) in [
            ("operator_norm", "attn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.out_proj", "attn_output"),
            ("self_attn.q_layernorm", "attn_q_norm"),
            ("self_attn.k_layernorm", "attn_k_norm"),
            ("conv.in_proj", "shortconv.in_proj"),
            ("conv.out_proj", "shortconv.out_proj"),
            ("ffn_norm", "ffn_norm"),
            ("feed_forward.w1", "ffn_gate"),
            ("feed_forward.w3", "ffn_up"),
            ("feed_forward.w2", "ffn_down"),
        ] {
            c.copy(&format!("{b}.{stored}.weight"), &format!("{at}.{published}.weight"));
        }
        for name in ["in_proj", "conv", "out_proj"] {
            c.copy(&format!("{b}.shortconv.{name}.bias"), &format!("{at}.conv.{name}.bias"));
        }
    }
}

/// Mamba-2's sizes, and heads of keys in the blocks that attend.
fn scans(c: &mut Converter<'_>, attends: &dyn Fn(&Converter<'_>, usize) -> bool) {
    let (tiny, linear) = (c.tiny, c.tiny.linear);
    c.counts(&[
        ("block_count", tiny.layers),
        ("attention.key_length", tiny.head_dim),
        ("attention.value_length", tiny.head_dim),
        ("ssm.conv_kernel", linear.taps),
        ("ssm.state_size", linear.key_dim),
        ("ssm.group_count", linear.key_heads),
        ("ssm.time_step_rank", linear.value_heads),
        ("ssm.inner_size", linear.value_heads * linear.value_dim),
        ("expert_shared_feed_forward_length", tiny.experts.shared_ffn),
    ]);
    let heads = (0..tiny.layers).map(|i| if attends(c, i) { tiny.kv_heads as i32 } else { 0 });
    let heads = GgufValue::i32s(&heads.collect::<Vec<_>>());
    c.key("attention.head_count_kv", heads);
    c.key("rope.scaling.finetuned", GgufValue::Bool(false));
}

fn granite(c: &mut Converter<'_>) {
    let (tiny, experts) = (c.tiny, c.tiny.experts);
    c.outside(1e-6, 1e4);
    scans(c, &|c, i| c.holds(&format!("model.layers.{i}.self_attn.q_proj.weight")));
    c.counts(&[("feed_forward_length", experts.ffn)]);
    let sparse = c.holds("model.layers.0.block_sparse_moe.router.layer.weight");
    if sparse {
        c.counts(&[("expert_count", experts.count), ("expert_used_count", experts.top_k)]);
    }
    for (key, factor) in [
        ("attention.scale", 0.25),
        ("embedding_scale", 2.0),
        ("residual_scale", 0.6),
        ("logit_scale", 2.0),
    ] {
        c.key(key, GgufValue::F32(factor));
    }
    for i in 0..tiny.layers {
        let (at, b) = (c.block(i), format!("blk.{i}"));
        c.copy(&format!("{b}.attn_norm.weight"), &format!("{at}.input_layernorm.weight"));
        c.copy(&format!("{b}.ffn_norm.weight"), &format!("{at}.post_attention_layernorm.weight"));
        if c.holds(&format!("{at}.mamba.in_proj.weight")) {
            c.scan(&format!("{at}.mamba"), &b);
        } else {
            c.attention(&at, &b);
        }
        let (moe, shared) = (format!("{at}.block_sparse_moe"), format!("{at}.shared_mlp"));
        if sparse {
            c.copy(&format!("{b}.ffn_gate_inp.weight"), &format!("{moe}.router.layer.weight"));
            halves(c, &format!("{b}.ffn_{{}}_exps.weight"), &moe, experts.ffn);
        }
        let suffix = if sparse { "_shexp" } else { "" };
        halves(c, &format!("{b}.ffn_{{}}{suffix}.weight"), &shared, experts.shared_ffn);
    }
}

/// Gate and up of an MLP that stores them as one, and its down.
fn halves(c: &mut Converter<'_>, name: &str, at: &str, ffn: usize) {
    let both = format!("{at}.input_linear.weight");
    c.some_rows(&name.replace("{}", "gate"), &both, 0..ffn);
    c.some_rows(&name.replace("{}", "up"), &both, ffn..2 * ffn);
    c.copy(&name.replace("{}", "down"), &format!("{at}.output_linear.weight"));
}

fn nemotron(c: &mut Converter<'_>) {
    let (tiny, experts) = (c.tiny, c.tiny.experts);
    c.outside(1e-5, 1e4);
    c.key("attention.layer_norm_epsilon", GgufValue::F32(1e-5));
    c.copy("token_embd.weight", "backbone.embeddings.weight");
    c.copy("output_norm.weight", "backbone.norm_f.weight");
    scans(c, &|c, i| c.holds(&format!("backbone.layers.{i}.mixer.q_proj.weight")));
    let width = |i: usize| match () {
        () if c.holds(&format!("backbone.layers.{i}.mixer.gate.weight")) => experts.ffn as i32,
        () if c.holds(&format!("backbone.layers.{i}.mixer.up_proj.weight")) => tiny.ffn as i32,
        () => 0,
    };
    let widths = GgufValue::i32s(&(0..tiny.layers).map(width).collect::<Vec<_>>());
    c.key("feed_forward_length", widths);
    c.counts(&[
        ("expert_count", experts.count),
        ("expert_used_count", experts.top_k),
        ("expert_feed_forward_length", experts.ffn),
        ("expert_group_count", 1),
    ]);
    c.key("expert_weights_norm", GgufValue::Bool(true));
    c.key("expert_weights_scale", GgufValue::F32(1.5));
    for i in 0..tiny.layers {
        let (at, b) = (c.block(i), format!("blk.{i}"));
        c.copy(&format!("{b}.attn_norm.weight"), &format!("{at}.norm.weight"));
        let mixer = format!("{at}.mixer");
        if c.holds(&format!("{mixer}.in_proj.weight")) {
            c.scan(&mixer, &b);
        } else if c.holds(&format!("{mixer}.q_proj.weight")) {
            c.attention(&at, &b);
        }
        c.copy(&format!("{b}.ffn_gate_inp.weight"), &format!("{mixer}.gate.weight"));
        let bias = format!("{mixer}.gate.e_score_correction_bias");
        c.copy(&format!("{b}.exp_probs_b.bias"), &bias);
        for name in ["up", "down"] {
            c.copy(&format!("{b}.ffn_{name}.weight"), &format!("{mixer}.{name}_proj.weight"));
            let shared = format!("{mixer}.shared_experts.{name}_proj.weight");
            c.copy(&format!("{b}.ffn_{name}_shexp.weight"), &shared);
            if c.holds(&bias) {
                let from = |e| format!("{mixer}.experts.{e}.{name}_proj.weight");
                c.stacked(&format!("{b}.ffn_{name}_exps.weight"), from);
            }
        }
    }
}

fn qwen(c: &mut Converter<'_>) {
    let tiny = c.tiny;
    let hybrid = tiny.family.is_hybrid();
    let mtp = hybrid && tiny.mtp;
    let (eps, theta) = match tiny.family {
        Family::Llama => (1e-5, 5e5),
        _ if hybrid => (1e-6, 1e7),
        _ => (1e-6, 1e6),
    };
    c.outside(eps, theta);
    let turning = if hybrid { tiny.head_dim / 4 } else { tiny.head_dim };
    c.counts(&[
        ("block_count", tiny.layers + usize::from(mtp)),
        ("attention.head_count_kv", tiny.kv_heads),
        ("attention.key_length", tiny.head_dim),
        ("attention.value_length", tiny.head_dim),
        ("rope.dimension_count", turning),
        ("feed_forward_length", tiny.ffn),
    ]);
    if tiny.family.is_sparse() {
        experts(c);
    }
    if hybrid {
        let linear = tiny.linear;
        c.counts(&[
            ("ssm.conv_kernel", linear.taps),
            ("ssm.state_size", linear.key_dim),
            ("ssm.group_count", linear.key_heads),
            ("ssm.time_step_rank", linear.value_heads),
            ("ssm.inner_size", linear.value_heads * linear.value_dim),
            ("full_attention_interval", linear.interval),
            ("nextn_predict_layers", usize::from(mtp)),
        ]);
    }
    for i in 0..tiny.layers + usize::from(mtp) {
        let (at, b) = (c.block(i), format!("blk.{i}"));
        c.norm(&format!("{b}.attn_norm.weight"), &format!("{at}.input_layernorm.weight"));
        let name = if hybrid { "post_attention_norm" } else { "ffn_norm" };
        c.norm(&format!("{b}.{name}.weight"), &format!("{at}.post_attention_layernorm.weight"));
        if c.holds(&format!("{at}.self_attn.q_proj.weight")) {
            c.attention(&at, &b);
        } else {
            c.delta(&at, &b);
        }
        qwen_mlp(c, &at, &b);
    }
    if mtp {
        let b = format!("blk.{}", tiny.layers);
        c.copy(&format!("{b}.nextn.eh_proj.weight"), "mtp.fc.weight");
        c.norm(&format!("{b}.nextn.enorm.weight"), "mtp.pre_fc_norm_embedding.weight");
        c.norm(&format!("{b}.nextn.hnorm.weight"), "mtp.pre_fc_norm_hidden.weight");
        c.norm(&format!("{b}.nextn.shared_head_norm.weight"), "mtp.norm.weight");
    }
}

fn qwen_mlp(c: &mut Converter<'_>, at: &str, b: &str) {
    let router = format!("{at}.mlp.gate.weight");
    if !c.holds(&router) {
        return c.dense(&format!("{at}.mlp"), b, "");
    }
    c.copy(&format!("{b}.ffn_gate_inp.weight"), &router);
    c.experts(&format!("{at}.mlp"), b, false);
    let gate = format!("{at}.mlp.shared_expert_gate.weight");
    if c.holds(&gate) {
        c.flat(&format!("{b}.ffn_gate_inp_shexp.weight"), &gate);
        c.dense(&format!("{at}.mlp.shared_expert"), b, "_shexp");
    }
}

fn experts(c: &mut Converter<'_>) {
    let experts = c.tiny.experts;
    c.counts(&[
        ("expert_count", experts.count),
        ("expert_used_count", experts.top_k),
        ("expert_feed_forward_length", experts.ffn),
    ]);
    if c.tiny.family.is_hybrid() {
        c.counts(&[("expert_shared_feed_forward_length", experts.shared_ffn)]);
    }
}

/// Modules of a Gemma block by their published and their stored names.
const GEMMA_NORMS: [(&str, &str); 8] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ("post_per_layer_input_norm", "post_norm"),
];

fn gemma(c: &mut Converter<'_>) {
    let tiny = c.tiny;
    c.outside(1e-6, 1e6);
    c.counts(&[("block_count", tiny.layers), ("attention.sliding_window", tiny.gemma.window)]);
    let windowed: Vec<bool> = (0..tiny.layers).map(|i| !tiny.gemma.whole.contains(&i)).collect();
    c.key("attention.sliding_window_pattern", GgufValue::flags(&windowed));
    c.key("rope.freq_base_swa", GgufValue::F32(1e4));
    match tiny.family {
        Family::Gemma3 => gemma3(c),
        _ => gemma4(c, &windowed),
    }
    for i in 0..tiny.layers {
        let (at, b) = (c.block(i), format!("blk.{i}"));
        for (name, stored) in GEMMA_NORMS {
            c.norm(&format!("{b}.{stored}.weight"), &format!("{at}.{name}.weight"));
        }
        c.attention(&at, &b);
        c.dense(&format!("{at}.mlp"), &b, "");
        for (name, stored) in [
            ("layer_scalar", "layer_output_scale.weight"),
            ("per_layer_input_gate.weight", "inp_gate.weight"),
            ("per_layer_projection.weight", "proj.weight"),
            ("router.proj.weight", "ffn_gate_inp.weight"),
            ("router.scale", "ffn_gate_inp.scale"),
            ("router.per_expert_scale", "ffn_down_exps.scale"),
        ] {
            c.copy(&format!("{b}.{stored}"), &format!("{at}.{name}"));
        }
        if tiny.gemma.experts {
            c.experts(&at, &b, true);
        }
    }
}

fn gemma3(c: &mut Converter<'_>) {
    let tiny = c.tiny;
    c.counts(&[
        ("attention.head_count_kv", tiny.kv_heads),
        ("attention.key_length", tiny.head_dim),
        ("attention.value_length", tiny.head_dim),
        ("feed_forward_length", tiny.ffn),
    ]);
    if let Some(factor) = tiny.gemma.rope_factor {
        c.key("rope.scaling.type", GgufValue::text("linear"));
        c.key("rope.scaling.factor", GgufValue::F32(factor as f32));
    }
}

fn gemma4(c: &mut Converter<'_>, windowed: &[bool]) {
    let (tiny, gemma) = (c.tiny, &c.tiny.gemma);
    let whole = gemma.whole_head_dim;
    c.counts(&[
        ("attention.key_length", whole),
        ("attention.value_length", whole),
        ("attention.key_length_swa", tiny.head_dim),
        ("attention.value_length_swa", tiny.head_dim),
        ("rope.dimension_count", whole),
        ("rope.dimension_count_swa", tiny.head_dim),
        ("attention.shared_kv_layers", gemma.sharing),
        ("embedding_length_per_layer_input", gemma.per_layer),
    ]);
    let kv = |&windowed: &bool| match gemma.keys_as_values {
        Some(heads) if !windowed => heads as i32,
        _ => tiny.kv_heads as i32,
    };
    c.key("attention.head_count_kv", GgufValue::i32s(&windowed.iter().map(kv).collect::<Vec<_>>()));
    let wide = |i: usize| gemma.double_wide && i >= tiny.layers - gemma.sharing;
    let width = |i: usize| (tiny.ffn * if wide(i) { 2 } else { 1 }) as i32;
    let widths: Vec<i32> = (0..tiny.layers).map(width).collect();
    c.key("feed_forward_length", GgufValue::i32s(&widths));
    if let Some(cap) = gemma.cap {
        c.key("final_logit_softcapping", GgufValue::F32(cap as f32));
    }
    if gemma.experts {
        experts(c);
    }
    for (name, stored) in [
        ("embed_tokens_per_layer", "per_layer_token_embd"),
        ("per_layer_model_projection", "per_layer_model_proj"),
        ("per_layer_projection_norm", "per_layer_proj_norm"),
    ] {
        c.copy(&format!("{stored}.weight"), &format!("model.language_model.{name}.weight"));
    }
    // A quarter of the pairs turns.
    let pair = |i: usize| if i < whole / 8 { 1.0 } else { 1e30 };
    c.vector("rope_freqs.weight", (0..whole / 2).map(pair).collect());
}
