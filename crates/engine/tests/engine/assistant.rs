//! A separate drafter against the reference, and a target that takes its head from another checkpoint.

use crate::common::{ByHand, Device, golden_runner};
use forerun_base::{DType, SeqId};
use forerun_engine::{
    DraftEntry, DraftPlan, DraftTokens, Engine, Request, Runner, SampleSpec, Settings, Speculation,
};
use forerun_model::{Blueprint, DrafterSpec, ModelError, RopeScale};
use forerun_testkit::Golden;
use forerun_testkit::tolerance::assert_close;

fn settings(kv: DType) -> Settings {
    let speculation = Speculation::mtp(4);
    Settings { context: 128, prefill_chunk: 80, speculation, kv, ..Settings::default() }
}

/// The next token of every position of the prompt, as the engine would hand them over.
fn plan(by_hand: &ByHand, golden: &Golden, depth: usize) -> DraftPlan {
    let blocks = by_hand.states.lease(by_hand.lease).blocks.clone();
    let mut tokens = golden.tokens("input_ids")[1..].to_vec();
    tokens.extend(golden.tokens("target.next_id"));
    DraftPlan {
        entries: vec![DraftEntry {
            seq: SeqId(0),
            lease: by_hand.lease,
            start: 0,
            tokens: 0..tokens.len(),
            blocks: 0..blocks.len(),
            depth,
            sample: SampleSpec::GREEDY,
            candidates: by_hand.runner.model().spec.vocabulary,
            constrained: false,
        }],
        tokens,
        blocks,
        ..DraftPlan::default()
    }
}

/// Drafters and their targets: clusters of the vocabulary, and all of it with a draft that stands for a video.
const PAIRS: [(&str, &str); 2] =
    [("gemma4_dense", "gemma4_assistant"), ("gemma4_dense_2", "gemma4_assistant_2")];

#[test]
fn four_chained_drafts_match_however_the_prompt_was_cut() {
    for (model, drafter) in PAIRS {
        let golden = Golden::open(drafter);
        let prompt = golden.tokens("input_ids");
        let cases = Device::ALL.into_iter().flat_map(|device| [1, 33, 70].map(|cut| (device, cut)));
        for (device, cut) in cases {
            let runner =
                golden_runner(&format!("{model} + {drafter}"), device, &settings(DType::F32));
            let mut by_hand = ByHand::new(runner);
            prompt.chunks(cut).for_each(|chunk| {
                by_hand.feed(chunk, 0, chunk.len());
            });
            let mut drafts = DraftTokens::default();
            let mut plan = plan(&by_hand, &golden, 4);
            by_hand.runner.draft(&mut plan, &mut drafts, &mut |_, _, _| {}).expect("drafted");
            let expected = golden.tokens("mtp.draft.ids");
            assert_eq!(drafts.of(0), expected, "{drafter} on {device:?}, pieces of {cut}");
        }
    }
}

#[test]
fn draft_logits_match_over_the_whole_vocabulary() {
    let golden = Golden::open("gemma4_assistant");
    let prompt = golden.tokens("input_ids");
    for device in Device::ALL {
        let runner =
            golden_runner("gemma4_dense + gemma4_assistant", device, &settings(DType::F32));
        let mut by_hand = ByHand::new(runner);
        by_hand.feed(&prompt, 0, prompt.len());
        let mut plan = plan(&by_hand, &golden, 1);
        // The newest row alone: the others mean nothing to a drafter without a cache.
        let newest = plan.tokens.len() - 1;
        plan.entries[0].start = newest as u32;
        plan.entries[0].tokens = newest..newest + 1;
        let mut logits = Vec::new();
        by_hand.runner.draft_logits(&plan, &mut |row| logits.extend_from_slice(row)).unwrap();
        let expected = golden.f32("mtp.draft.logits");
        assert_close(&format!("{device:?}"), expected.row(0), &logits, 2e-3);
    }
}

#[test]
fn a_drafter_changes_no_token() {
    let golden = Golden::open("gemma4_dense");
    for device in Device::ALL {
        for kv in [DType::F32, DType::F16] {
            let runner = golden_runner("gemma4_dense + gemma4_assistant", device, &settings(kv));
            let mut engine = Engine::new(runner);
            assert_eq!(engine.speculation_off(), None);
            engine.submit(Request::greedy(golden.tokens("input_ids"), 32)).expect("accepted");
            let (text, _) = crate::common::finish(&mut engine).remove(0);
            assert_eq!(text, golden.tokens("greedy.ids"), "on {device:?}, kv {kv}");
        }
    }
}

#[test]
fn a_head_is_taken_from_another_checkpoint_of_the_same_model() {
    // The packed trunk lost its head; the published checkpoint beside it still has one.
    let runner = golden_runner("mlx_qwen3_5_bf16 + qwen3_5", Device::Tuned, &settings(DType::F32));
    let mut engine = Engine::new(runner);
    assert_eq!(engine.speculation_off(), None);
    let golden = Golden::open("mlx_qwen3_5_bf16");
    engine.submit(Request::greedy(golden.tokens("input_ids"), 32)).expect("accepted");
    let (text, _) = crate::common::finish(&mut engine).remove(0);
    assert_eq!(text, golden.tokens("greedy.ids"));
}

#[test]
fn wrong_pairs_are_refused_by_name() {
    let attach = |model: &str, drafter: &str| {
        let mut blueprint = Blueprint::open(Golden::open(model).checkpoint()).expect("a model");
        let error = blueprint.attach_drafter(Golden::open(drafter).checkpoint());
        error.expect_err("refused").to_string()
    };
    let refused = attach("qwen3_5", "gemma4_assistant");
    assert!(refused.contains("made for Gemma 4, not for qwen3_5"), "{refused}");
    let refused = attach("gemma4_e", "gemma4_assistant");
    assert!(refused.contains("key heads"), "{refused}");
    let refused = attach("gemma4_dense", "llama");
    assert!(refused.contains("neither a separate drafter nor an MTP head"), "{refused}");
    let alone = Blueprint::open(Golden::open("gemma4_assistant").checkpoint());
    assert!(matches!(alone, Err(ModelError::IsDrafter(_))));
}

#[test]
fn a_longer_context_turns_the_drafter_like_the_model() {
    for scale in [RopeScale::Linear(3.0), RopeScale::Yarn(3.0)] {
        let mut blueprint =
            Blueprint::open(Golden::open("gemma4_dense").checkpoint()).expect("a model");
        let drafter = Golden::open("gemma4_assistant");
        blueprint.attach_drafter(drafter.checkpoint()).expect("a fitting drafter");
        let before = blueprint.spec.ropes.clone();
        blueprint.extend_context(scale);
        let Some(DrafterSpec::Assistant(drafter)) = &blueprint.spec.drafter else {
            panic!("a separate drafter")
        };
        assert_ne!(blueprint.spec.ropes, before);
        assert_eq!(drafter.ropes, blueprint.spec.ropes, "{scale:?}");
    }
}
