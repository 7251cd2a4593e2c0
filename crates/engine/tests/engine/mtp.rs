//! The MTP head against the references: every row over a prompt, and chained drafts.

use crate::common::{ByHand, Device, runner};
use forerun_backend::op::SampleRow;
use forerun_base::{DType, SeqId, Token};
use forerun_engine::{DraftEntry, DraftPlan, Guesses, Runner, SampleSpec, Settings, Speculation};
use forerun_testkit::Golden;
use forerun_testkit::tolerance::assert_close;

const WITH_HEAD: [&str; 3] = ["qwen3_next", "qwen3_5", "qwen3_5_moe"];

fn by_hand(name: &str, device: Device, kv: DType) -> ByHand {
    let speculation = Speculation::mtp(4);
    let settings =
        Settings { context: 128, prefill_chunk: 80, speculation, kv, ..Settings::default() };
    ByHand::new(runner(Golden::open(name).checkpoint(), device, &settings))
}

/// Everything after the prompt's positions, for the head to take in from `from` on.
fn plan(by_hand: &ByHand, next: &[Token], from: usize, depth: usize) -> DraftPlan {
    let blocks = by_hand.states.lease(by_hand.lease).blocks.clone();
    let sample = SampleSpec { row: SampleRow::GREEDY, prompt_len: 0, history: 0..0 };
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
        }],
        tokens,
        blocks,
        history: Vec::new(),
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

#[test]
fn four_chained_drafts_match_however_the_prompt_was_taken_in() {
    for name in WITH_HEAD {
        let golden = Golden::open(name);
        for device in Device::ALL {
            for cut in [0, 1, 33, 69] {
                let mut by_hand = by_hand(name, device, DType::F32);
                let prompt = golden.tokens("input_ids");
                by_hand.feed(&prompt, 0, prompt.len());
                let next = golden.tokens("mtp.prefill.ids");
                let mut guesses = Guesses::default();
                if cut > 0 {
                    let first = plan(&by_hand, &next[..cut], 0, 0);
                    by_hand.runner.draft(&first, &mut guesses).unwrap();
                }
                let rest = plan(&by_hand, &next, cut, 4);
                by_hand.runner.draft(&rest, &mut guesses).unwrap();
                let expected = golden.tokens("mtp.draft.ids");
                assert_eq!(guesses.of(0), expected, "{name} on {device:?}, cut at {cut}");
            }
        }
    }
}
