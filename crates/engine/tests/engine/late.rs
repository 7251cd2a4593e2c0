//! Constraints whose masks are computed elsewhere: their sequences sit out steps, and nothing else changes.

use crate::common::{Device, answers, engine, prompt};
use forerun_base::{DType, Token};
use forerun_engine::{
    Allowed, Constraint, Depth, Event, FinishReason, Request, Sampling, Settings, Speculation,
};
use std::time::Duration;

/// Every third token of the vocabulary, by place; whole after so many. After a token it wants to be asked a few times
/// before it says what may come next, or whether anything may.
struct Thirds {
    taken: usize,
    whole_after: usize,
    /// Most times it is not ready.
    late: usize,
    pending: usize,
}

impl Thirds {
    fn boxed(whole_after: usize, late: usize) -> Option<Box<dyn Constraint>> {
        Some(Box::new(Self { taken: 0, whole_after, late, pending: late }))
    }

    fn fill(&self, mask: &mut [u32]) -> Result<Allowed, String> {
        let all = 32 * mask.len() as Token;
        for token in (0..all).filter(|token| *token as usize % 3 == self.taken % 3) {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(Allowed::Some)
    }
}

impl Constraint for Thirds {
    fn ready(&mut self, _: Duration) -> bool {
        let ready = self.pending == 0;
        self.pending = self.pending.saturating_sub(1);
        ready
    }

    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        assert_eq!(self.pending, 0, "it said that it was not ready");
        self.fill(mask)
    }

    fn glimpse(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        if self.taken % 5 == 4 { Err("not known in time".to_owned()) } else { self.fill(mask) }
    }

    fn take(&mut self, token: Token) -> bool {
        let allowed = token as usize % 3 == self.taken % 3;
        self.taken += usize::from(allowed);
        self.pending = self.late.min(self.taken % 4);
        allowed
    }

    fn back(&mut self, count: usize) {
        self.taken -= count;
    }

    fn forced(&mut self, _: usize, _: &mut Vec<Token>) {}

    fn is_done_ahead(&mut self) -> bool {
        self.taken >= self.whole_after
    }

    fn is_decided(&mut self) -> bool {
        self.pending == 0
    }

    fn is_done(&mut self) -> bool {
        self.pending == 0 && self.taken >= self.whole_after
    }
}

#[test]
fn a_mask_that_is_late_changes_no_answer_and_delays_nobody_else() {
    let name = "qwen3_5";
    let sampling = Sampling { temperature: 0.9, seed: 3, ..Sampling::default() };
    let run = |late: usize, speculation: Speculation| {
        let settings = Settings {
            context: 192,
            sequences: 4,
            kv: DType::F16,
            speculation,
            ..Settings::default()
        };
        let mut engine = engine(name, Device::Tuned, &settings);
        let request = |whole_after, max_tokens| Request {
            constraint: Thirds::boxed(whole_after, late),
            sampling: sampling.clone(),
            depth: Depth::Fixed(3),
            ..Request::greedy(prompt(name, 20), max_tokens)
        };
        // One comes to its length, one is whole before it, one is whole just there.
        for (whole_after, max_tokens) in [(1000, 22), (17, 40), (19, 19)] {
            engine.submit(request(whole_after, max_tokens)).expect("fits");
        }
        let other = Request {
            sampling: sampling.clone(),
            depth: Depth::Fixed(0),
            ..Request::greedy(prompt(name, 8), 30)
        };
        let other = engine.submit(other).expect("fits");
        let (mut events, mut said) = (Vec::new(), 0);
        for step in 0..2000 {
            let before = events.len();
            engine.step(&mut events);
            let spoke = events[before..]
                .iter()
                .any(|e| matches!(e, Event::Token { seq, .. } if *seq == other));
            said += usize::from(spoke);
            assert!(
                spoke || said == 0 || said == 30,
                "the other has a token in every step, {step} too"
            );
            if engine.is_idle() {
                break;
            }
        }
        assert!(engine.is_idle(), "everyone comes to an end");
        assert_eq!(engine.states().free(), engine.states().size());
        answers(&events)
    };
    let expected = run(0, Speculation::OFF);
    let reasons: Vec<&FinishReason> = expected.iter().map(|(_, reason)| reason).collect();
    let (length, whole) = (&FinishReason::Length, &FinishReason::Complete);
    assert_eq!(reasons, [length, whole, whole, length]);
    for late in [0, 1, 3] {
        for speculation in [Speculation::OFF, Speculation { text: true, ..Speculation::mtp(3) }] {
            assert_eq!(run(late, speculation), expected, "{late} times late, {speculation:?}");
        }
    }
}
