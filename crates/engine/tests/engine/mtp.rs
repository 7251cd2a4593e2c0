//! The MTP head against the references: every row over a prompt, and chained drafts.

use crate::common::{ByHand, Device, runner};
use forerun_base::{DType, SeqId, Token, bf16_to_f32};
use forerun_engine::{
    DraftEntry, DraftPlan, DraftTokens, Runner, SampleSpec, Settings, Speculation,
};
use forerun_testkit::Golden;
use forerun_testkit::tiny::{StoredTensor, safetensors};
use forerun_testkit::tolerance::assert_close;
use forerun_weights::Checkpoint;
use std::path::Path;

const WITH_HEAD: [&str; 10] = [
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_odd",
    "qwen3_5_moe",
    "gguf_qwen3_5_bf16",
    "gguf_qwen3_5_q8_0",
    "gguf_qwen3_5_moe_mxfp4",
    "gguf_qwen3_next_q8_0",
    "glm4_moe",
    "deepseek_v3",
];

fn by_hand(name: &str, device: Device, kv: DType) -> ByHand {
    let speculation = Speculation::mtp(4);
    let settings =
        Settings { context: 128, prefill_chunk: 80, speculation, kv, ..Settings::default() };
    ByHand::new(runner(Golden::open(name).checkpoint(), device, &settings))
}

/// Everything after the prompt's positions, for the head to take in from `from` on.
fn plan(by_hand: &ByHand, next: &[Token], from: usize, depth: usize) -> DraftPlan {
    let blocks = by_hand.states.lease(by_hand.lease).blocks.clone();
    let sample = SampleSpec::GREEDY;
    let tokens = next[from..].to_vec();
    DraftPlan {
        entries: vec![DraftEntry {
            seq: SeqId(0),
            lease: by_hand.lease,
            start: from as u32,
            tokens: 0..tokens.len(),
            blocks: 0..blocks.len(),
            depth,
            sample,
            candidates: by_hand.runner.model().spec.vocabulary,
            constrained: false,
        }],
        tokens,
        blocks,
        ..DraftPlan::default()
    }
}

#[test]
fn draft_logits_match_over_the_prompt() {
    for name in WITH_HEAD {
        let golden = Golden::open(name);
        for device in Device::ALL {
            let mut by_hand = by_hand(name, device, DType::F32);
            let prompt = golden.tokens("input_ids");
            by_hand.feed(&prompt, 0, prompt.len());
            let next = golden.tokens("mtp.prefill.ids");
            let plan = plan(&by_hand, &next, 0, 0);
            let mut logits = Vec::new();
            by_hand.runner.draft_logits(&plan, &mut |row| logits.extend_from_slice(row)).unwrap();
            let expected = golden.f32("mtp.prefill.logits").values;
            assert_close(&format!("{name} on {device:?}"), &expected, &logits, 2e-3);
        }
    }
}

/// How a head is stored beside a trunk.
struct Sidecar {
    model: &'static str,
    file: &'static str,
    prefix: &'static str,
    /// Norms stored as the factor itself, and whether a manifest says so.
    gamma: Option<bool>,
    split_experts: bool,
}

/// All tensors of a golden checkpoint.
fn stored(name: &str) -> Vec<StoredTensor> {
    let checkpoint = Checkpoint::open(Golden::open(name).checkpoint()).expect("a checkpoint");
    let one = |name: &str| {
        let tensor = checkpoint.tensor(name).expect("a tensor");
        let (dtype, shape) = (tensor.dtype, tensor.shape);
        StoredTensor { name: name.to_owned(), dtype, shape, bytes: tensor.bytes.to_vec() }
    };
    checkpoint.names().map(one).collect()
}

/// `w` as `1 + w`, without rounding.
fn as_gamma(tensor: &mut StoredTensor) {
    assert_eq!(tensor.dtype, DType::BF16, "goldens hold bf16");
    let (halves, _) = tensor.bytes.as_chunks::<2>();
    let wide = |half: &[u8; 2]| (1.0 + bf16_to_f32(u16::from_le_bytes(*half))).to_le_bytes();
    tensor.bytes = halves.iter().flat_map(wide).collect();
    tensor.dtype = DType::F32;
}

/// `experts.gate_up_proj` and `experts.down_proj` as one module per expert.
fn split_experts(tensor: &StoredTensor) -> Vec<StoredTensor> {
    let Some((path, kind)) = tensor.name.split_once(".experts.") else {
        return vec![tensor.clone()];
    };
    let names: &[&str] =
        if kind == "gate_up_proj" { &["gate_proj", "up_proj"] } else { &["down_proj"] };
    let [experts, rows, cols] = tensor.shape[..] else { panic!("a stack has three axes") };
    let part = tensor.bytes.len() / experts / names.len();
    let piece = |(i, bytes): (usize, &[u8])| StoredTensor {
        name: format!("{path}.experts.{}.{}.weight", i / names.len(), names[i % names.len()]),
        dtype: tensor.dtype,
        shape: vec![rows / names.len(), cols],
        bytes: bytes.to_vec(),
    };
    tensor.bytes.chunks_exact(part).enumerate().map(piece).collect()
}

/// The golden checkpoint with its head moved to a file of its own.
fn move_head(sidecar: &Sidecar, folder: &Path) {
    let (mut head, trunk): (Vec<_>, Vec<_>) =
        stored(sidecar.model).into_iter().partition(|t| t.name.starts_with("mtp."));
    if sidecar.split_experts {
        head = head.iter().flat_map(split_experts).collect();
    }
    for tensor in &mut head {
        if sidecar.gamma.is_some() && tensor.shape.len() == 1 {
            as_gamma(tensor);
        }
        tensor.name = format!("{}{}", sidecar.prefix, tensor.name);
    }
    std::fs::create_dir(folder.join("mtp")).expect("a folder");
    std::fs::write(folder.join("model.safetensors"), safetensors(&trunk)).expect("written");
    std::fs::write(folder.join(sidecar.file), safetensors(&head)).expect("written");
    if sidecar.gamma == Some(true) {
        let manifest = r#"{"rmsnorm_weight_format": "mlx_gamma"}"#;
        std::fs::write(folder.join("mtp/manifest.json"), manifest).expect("written");
    }
    let config = Golden::open(sidecar.model).checkpoint().join("config.json");
    std::fs::copy(config, folder.join("config.json")).expect("copied");
}

#[test]
fn a_head_beside_the_model_drafts_the_same_however_it_is_stored() {
    let base = Sidecar {
        model: "qwen3_5",
        file: "model-mtp.safetensors",
        prefix: "",
        gamma: None,
        split_experts: false,
    };
    for sidecar in [
        Sidecar { ..base },
        Sidecar { gamma: Some(false), prefix: "language_model.", ..base },
        Sidecar { file: "mtp/weights.safetensors", gamma: Some(true), ..base },
        Sidecar { file: "mtp/weights.safetensors", model: "qwen3_next", ..base },
        Sidecar { model: "qwen3_5_moe", ..base },
        Sidecar { model: "qwen3_5_moe", split_experts: true, gamma: Some(false), ..base },
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        move_head(&sidecar, folder.path());
        let golden = Golden::open(sidecar.model);
        let speculation = Speculation::mtp(4);
        let settings =
            Settings { context: 128, prefill_chunk: 80, speculation, ..Settings::default() };
        let mut by_hand = ByHand::new(runner(folder.path(), Device::Tuned, &settings));
        let prompt = golden.tokens("input_ids");
        by_hand.feed(&prompt, 0, prompt.len());
        let mut plan = plan(&by_hand, &golden.tokens("mtp.prefill.ids"), 0, 4);
        let mut drafts = DraftTokens::default();
        by_hand.runner.draft(&mut plan, &mut drafts, &mut |_, _, _| {}).expect("drafted");
        let Sidecar { model, file, gamma, split_experts, .. } = sidecar;
        let what = format!("{model} in {file}, gamma {gamma:?}, split experts {split_experts}");
        assert_eq!(drafts.of(0), golden.tokens("mtp.draft.ids"), "{what}");
    }
}

#[test]
fn chained_drafts_match_however_the_prompt_was_taken_in() {
    for name in WITH_HEAD {
        let golden = Golden::open(name);
        for device in Device::ALL {
            for cut in [0, 1, 33, 69] {
                let mut by_hand = by_hand(name, device, DType::F32);
                let prompt = golden.tokens("input_ids");
                by_hand.feed(&prompt, 0, prompt.len());
                let next = golden.tokens("mtp.prefill.ids");
                let mut drafts = DraftTokens::default();
                if cut > 0 {
                    let mut first = plan(&by_hand, &next[..cut], 0, 0);
                    by_hand.runner.draft(&mut first, &mut drafts, &mut |_, _, _| {}).unwrap();
                }
                // Four, or as many as the library drafts with one module.
                let expected = golden.tokens("mtp.draft.ids");
                let mut rest = plan(&by_hand, &next, cut, expected.len());
                by_hand.runner.draft(&mut rest, &mut drafts, &mut |_, _, _| {}).unwrap();
                assert_eq!(drafts.of(0), expected, "{name} on {device:?}, cut at {cut}");
            }
        }
    }
}
