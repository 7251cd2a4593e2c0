//! Gemma 3n as llama.cpp names it, made of the golden checkpoint.

use crate::common::{Device, runner, score};
use forerun_base::DType;
use forerun_engine::{Engine, Settings};
use forerun_testkit::Golden;
use forerun_testkit::tiny::{GgufFile, GgufValue};
use forerun_testkit::tolerance::assert_same_bits;
use forerun_weights::safetensors::parse_header;

/// ggml's number of bfloat16.
const BF16: u32 = 30;

/// Modules by their published and their stored names.
const NAMES: [(&str, &str); 32] = [
    ("model.embed_tokens_per_layer.", "per_layer_token_embd."),
    ("model.embed_tokens.", "token_embd."),
    ("model.per_layer_model_projection.", "per_layer_model_proj."),
    ("model.per_layer_projection_norm.", "per_layer_proj_norm."),
    ("model.norm.", "output_norm."),
    ("model.layers.", "blk."),
    (".input_layernorm.", ".attn_norm."),
    (".self_attn.q_proj.", ".attn_q."),
    (".self_attn.k_proj.", ".attn_k."),
    (".self_attn.v_proj.", ".attn_v."),
    (".self_attn.o_proj.", ".attn_output."),
    (".self_attn.q_norm.", ".attn_q_norm."),
    (".self_attn.k_norm.", ".attn_k_norm."),
    (".post_attention_layernorm.", ".post_attention_norm."),
    (".pre_feedforward_layernorm.", ".ffn_norm."),
    (".post_feedforward_layernorm.", ".post_ffw_norm."),
    (".mlp.gate_proj.", ".ffn_gate."),
    (".mlp.up_proj.", ".ffn_up."),
    (".mlp.down_proj.", ".ffn_down."),
    (".per_layer_input_gate.", ".inp_gate."),
    (".per_layer_projection.", ".proj."),
    (".post_per_layer_input_norm.", ".post_norm."),
    (".altup.correct_output_scale", ".altup_correct_scale.weight"),
    (".altup.correction_coefs.", ".altup_correct_coef."),
    (".altup.prediction_coefs.", ".altup_predict_coef."),
    (".altup.modality_router.", ".altup_router."),
    (".altup.router_norm.", ".altup_router_norm."),
    (".laurel.linear_left.", ".laurel_l."),
    (".laurel.linear_right.", ".laurel_r."),
    (".laurel.post_laurel_norm.", ".laurel_post_norm."),
    ("model.altup_projections", "altup_proj"),
    ("model.altup_unembed_projections", "altup_unembd_proj"),
];

fn key(name: &str) -> String {
    format!("gemma3n.{name}")
}

/// What the golden's config says, as metadata.
fn metadata() -> GgufFile {
    let counts = [
        ("block_count", 5),
        ("context_length", 4096),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
        ("attention.sliding_window", 16),
        ("attention.shared_kv_layers", 2),
        ("altup.num_inputs", 3),
        ("altup.active_idx", 0),
        ("embedding_length_per_layer_input", 16),
    ];
    let none = f32::NEG_INFINITY;
    // 90 % of normally distributed numbers are below.
    let scale = 1.281_551_6;
    let file = GgufFile::default()
        .with("general.architecture", GgufValue::text("gemma3n"))
        .with(&key("rope.freq_base"), GgufValue::F32(1e6))
        .with(&key("attention.layer_norm_rms_epsilon"), GgufValue::F32(1e-6))
        .with(&key("activation_sparsity_scale"), GgufValue::f32s(&[scale, scale, none, none, none]))
        .with(
            &key("attention.sliding_window_pattern"),
            GgufValue::flags(&[true, true, false, true, false]),
        );
    counts.iter().fold(file, |file, (name, count)| file.with(&key(name), GgufValue::U32(*count)))
}

fn stored_name(published: &str) -> String {
    NAMES.iter().fold(published.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// The golden's tensors; projections of the streams are stacked.
fn file() -> GgufFile {
    let path = Golden::open("gemma3n").checkpoint().join("model.safetensors");
    let bytes = std::fs::read(path).expect("a file");
    let header = parse_header(&bytes, bytes.len() as u64).expect("a header");
    let mut file = metadata();
    for (published, tensor) in &header.tensors {
        let data = &bytes[tensor.range.clone()];
        let mut shape: Vec<u64> = tensor.shape.iter().map(|&n| n as u64).collect();
        let name = stored_name(published);
        let Some((stack, number)) = name.split_once("_proj.").filter(|_| name.starts_with("altup"))
        else {
            file = file.tensor(&name, BF16, &shape, data);
            continue;
        };
        let name = format!("{stack}_proj.weight");
        if number.starts_with('0') {
            shape.insert(0, 1);
            file = file.tensor(&name, BF16, &shape, data);
        } else {
            let stack = file.tensors.last_mut().expect("the first of them was there");
            assert_eq!(stack.name, name);
            stack.shape[0] += 1;
            stack.bytes.extend(data);
        }
    }
    file
}

#[test]
fn a_gemma3n_file_gives_the_bits_of_its_source() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    file().write(&path);
    let golden = Golden::open("gemma3n");
    let settings =
        Settings { context: 96, prefill_chunk: 48, kv: DType::F32, ..Settings::default() };
    let [expected, found] = [golden.checkpoint(), &path].map(|path| {
        let mut engine = Engine::new(runner(path, Device::Tuned, &settings));
        score(&mut engine, &golden.tokens("input_ids"))
    });
    assert_same_bits("the golden as a GGUF file", &expected, &found);
}
