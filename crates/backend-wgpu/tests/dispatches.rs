//! How many dispatches and submissions a decoded token takes, for each family: a change that adds one is seen here.
//!
//! Counted by the lowering that the real device uses, without an adapter.

use forerun_backend::Budget;
use forerun_backend_wgpu::{Counts, Planned, PlannedLimits};
use forerun_engine::{Engine, ModelRunner, Request, Settings};
use forerun_model::{Blueprint, Model};
use forerun_testkit::{GOLDENS, Golden};

/// Goldens with operations that the device lacks, and the first of them.
const REFUSED: [(&str, &str); 7] = [
    ("gemma3n", "predict_streams"),
    ("deepseek_v3", "latent_attention"),
    ("kimi_linear", "kda_rule"),
    ("granitemoehybrid", "scan_gates"),
    ("nemotron_h", "scan_gates"),
    ("qwen4_exp", "group_norm"),
    ("deepseek_v4", "turn_tails"),
];

/// What decoding takes: the name of a golden, dispatches and submissions of a token.
const TOKENS: &[(&str, u64, u64)] = &[
    ("llama", 30, 1),
    ("qwen3", 30, 1),
    ("qwen3_yarn", 24, 1),
    ("qwen3_moe", 39, 1),
    ("qwen3_fp8", 18, 1),
    ("qwen3_next", 122, 1),
    ("qwen3_5", 66, 1),
    ("qwen3_5_odd", 34, 1),
    ("qwen3_5_moe", 122, 1),
    ("lfm2", 27, 1),
    ("olmo_hybrid", 40, 1),
    ("glm4_moe", 34, 1),
    ("lfm2_moe", 36, 1),
    ("gemma3", 55, 1),
    ("gemma4_dense", 55, 1),
    ("gemma4_dense_2", 47, 1),
    ("gemma4_e", 82, 1),
    ("gemma4_moe", 103, 1),
    ("gguf_gemma4_dense_f16", 55, 1),
    ("gguf_gemma4_e_q8_0", 82, 1),
    ("gguf_gemma4_moe_q4_0", 103, 1),
    ("gguf_llama_q8_0", 30, 1),
    ("gguf_qwen3_5_bf16", 66, 1),
    ("gguf_qwen3_5_moe_mxfp4", 122, 1),
    ("gguf_qwen3_5_q8_0", 66, 1),
    ("gguf_qwen3_5_wide_q3_k", 39, 1),
    ("gguf_qwen3_5_wide_q4_k", 37, 1),
    ("gguf_qwen3_next_q8_0", 122, 1),
    ("gguf_qwen3_q4_0", 30, 1),
    ("mlx_gemma4_e_4bit", 82, 1),
    ("mlx_gemma4_moe_8bit", 103, 1),
    ("mlx_llama_5bit", 30, 1),
    ("mlx_llama_nvfp4", 30, 1),
    ("mlx_qwen3_3bit", 30, 1),
    ("mlx_qwen3_5_4bit", 72, 1),
    ("mlx_qwen3_5_bf16", 66, 1),
    ("mlx_qwen3_5_moe_4bit", 122, 1),
    ("mlx_qwen3_moe_mxfp4", 39, 1),
    ("mlx_qwen3_mxfp8", 30, 1),
    ("mlx_qwen3_next_6bit", 122, 1),
];

/// Counts after so many tokens of one request.
fn after(name: &str, limits: PlannedLimits, tokens: usize) -> Counts {
    let golden = Golden::open(name);
    let blueprint = Blueprint::open(golden.checkpoint()).expect("a model");
    let mut device = Box::new(Planned::new(limits));
    let counts = device.counts();
    let model = Model::load(&blueprint, &mut *device, &mut |_| {}).expect("a model");
    let settings = Settings { context: 256, prefill_chunk: 64, ..Settings::default() };
    let mut engine = Engine::new(ModelRunner::new(device, model, &settings).expect("memory"));
    let before = counts.get();
    let prompt = golden.tokens("input_ids")[..8].to_vec();
    engine.submit(Request::greedy(prompt, tokens)).expect("accepted");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let after = counts.get();
    Counts {
        dispatches: after.dispatches - before.dispatches,
        submissions: after.submissions - before.submissions,
        ..after
    }
}

/// Dispatches and submissions of a decoded token.
fn of_a_token(name: &str, limits: PlannedLimits) -> (u64, u64) {
    let [few, many] = [3, 11].map(|tokens| after(name, limits, tokens));
    let each = |few: u64, many: u64| {
        assert!((many - few).is_multiple_of(8), "{name}: tokens differ in what they take");
        (many - few) / 8
    };
    (each(few.dispatches, many.dispatches), each(few.submissions, many.submissions))
}

#[test]
fn a_token_takes_the_dispatches_and_submissions_that_are_written_down() {
    let found: Vec<(&str, u64, u64)> = GOLDENS
        .iter()
        .filter(|name| REFUSED.iter().all(|(refused, _)| refused != *name))
        .map(|name| {
            let (dispatches, submissions) = of_a_token(name, PlannedLimits::default());
            (*name, dispatches, submissions)
        })
        .collect();
    assert_eq!(found, TOKENS);
}

#[test]
fn no_dispatch_of_a_prompt_is_longer_than_it_may_be() {
    for name in ["qwen3_5", "mlx_qwen3_5_moe_4bit", "gemma4_e", "lfm2"] {
        let whole = after(name, PlannedLimits::default(), 3);
        let dispatch = Budget { bytes: whole.longest.bytes / 4, flops: whole.longest.flops / 4 };
        let cut = after(name, PlannedLimits { dispatch, ..PlannedLimits::default() }, 3);
        assert!(cut.longest.flops <= dispatch.flops, "{name}: {cut:?} over {dispatch:?}");
        assert!(cut.dispatches > whole.dispatches, "{name}");
    }
}

#[test]
fn a_model_whose_operations_are_missing_is_refused_by_name_before_its_weights() {
    for (name, op) in REFUSED {
        let blueprint = Blueprint::open(Golden::open(name).checkpoint()).expect("a model");
        let mut device = Planned::new(PlannedLimits::default());
        let mut loaded = 0;
        let refused = Model::load(&blueprint, &mut device, &mut |bytes| loaded = bytes);
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains(&format!("operation `{op}`")), "{name}: {error}");
        assert_eq!(loaded, 0, "{name}");
    }
}
