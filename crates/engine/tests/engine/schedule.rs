//! The scheduler over a runner that only counts: no device, many traces.

use forerun_base::{DType, SeqId, Token};
use forerun_engine::{
    Allowed, Constraint, DraftPlan, DraftTokens, Engine, EngineError, Event, FinishReason, Follow,
    RejectError, Request, Runner, SampledTokens, Sampling, Scheduler, Speculation, StateCopies,
    StateShape, StateStore, StepPlan,
};
use forerun_model::Limits;
use proptest::prelude::*;
use std::time::Duration;

/// Samples `position of the token % 50` and checks what every plan must keep.
pub(crate) struct CountingRunner {
    limits: Limits,
    fails_at: Option<usize>,
    fails_drafting: bool,
    pub(crate) steps: usize,
}

impl Runner for CountingRunner {
    fn run(&mut self, plan: &StepPlan, output: &mut SampledTokens) -> Result<(), EngineError> {
        self.steps += 1;
        if Some(self.steps) == self.fails_at {
            return Err(EngineError::Settings("the device is on fire".to_owned()));
        }
        assert!(plan.tokens.len() <= self.limits.rows, "a step holds its rows");
        let sampled: usize = plan.spans.iter().map(|s| s.sampled_rows()).sum();
        assert!(sampled <= self.limits.sampled, "a step holds its logits");
        output.reset(plan);
        for (span, range) in plan.spans.iter().zip(&output.of_span) {
            let end = span.start as usize + span.tokens.len();
            assert!(end <= span.blocks.len() * forerun_model::KV_BLOCK, "blocks reach the span");
            for (i, token) in output.tokens[range.clone()].iter_mut().enumerate() {
                // The model's token at each position depends on the position alone.
                *token = ((span.start as usize + span.confirmed() + i) % 50) as Token;
            }
        }
        Ok(())
    }

    /// Right, wrong, right, … by position.
    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        _follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        if self.fails_drafting {
            return Err(EngineError::Settings("the head is on fire".to_owned()));
        }
        drafts.reset(plan);
        for (i, entry) in plan.entries.iter().enumerate() {
            assert!(entry.depth <= self.limits.log_rows, "no deeper than the log");
            for k in 0..entry.depth {
                let position = entry.start as usize + entry.tokens.len() + 1 + k;
                let wrong = usize::from(position.is_multiple_of(3));
                drafts.push(i, ((position + wrong) % 50) as Token);
            }
        }
        Ok(plan.deepest())
    }

    fn shape(&self) -> StateShape {
        StateShape::default()
    }

    fn copies(&mut self) -> &mut dyn StateCopies {
        unreachable!("there is no cache")
    }
}

pub(crate) fn engine(limits: Limits, fails_at: Option<usize>) -> Engine<CountingRunner> {
    let runner = CountingRunner { limits, fails_at, fails_drafting: false, steps: 0 };
    let speculation = Speculation { text: true, ..Speculation::mtp(limits.log_rows) };
    Engine::with_parts(Scheduler::new(limits, 100, speculation), StateStore::new(&limits), runner)
}

pub(crate) fn limits(sequences: usize, rows: usize, drafts: usize) -> Limits {
    let log_rows = drafts.min(rows - 1);
    Limits {
        context: 200,
        sequences,
        rows,
        sampled: (sequences * (log_rows + 1)).min(rows),
        log_rows,
        kv: DType::F16,
        mtp: log_rows > 0,
        window: 0,
    }
}

pub(crate) fn reason_of(events: &[Event], id: SeqId) -> Option<FinishReason> {
    events.iter().find_map(|event| match event {
        Event::Finished { seq, reason, .. } if *seq == id => Some(reason.clone()),
        _ => None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random arrivals and cancels neither leak a block nor starve anyone.
    #[test]
    fn traces_end_with_everything_returned(
        sequences in 1usize..5,
        rows in 1usize..40,
        drafts in 0usize..9,
        arrivals in prop::collection::vec((1usize..150, 1usize..60, 0usize..5, any::<bool>()), 1..20),
        priorities in prop::collection::vec(-2i32..3, 20),
        budget in prop_oneof![Just(Duration::ZERO), Just(Duration::from_nanos(1))],
    ) {
        let limits = limits(sequences, rows, drafts);
        let mut engine = engine(limits, None);
        engine.set_step_budget(budget);
        let free = engine.states().free();
        let mut events = Vec::new();
        let mut waiting = Vec::new();
        for ((prompt, max_tokens, gap, cancel), priority) in arrivals.into_iter().zip(priorities) {
            let request = Request { priority, ..Request::greedy(vec![1; prompt], max_tokens) };
            let id = engine.submit(request).expect("fits");
            waiting.push((id, prompt, max_tokens, cancel));
            (0..gap).for_each(|_| engine.step(&mut events));
            if cancel {
                engine.cancel(id, &mut events);
            }
        }
        let mut steps = 0;
        while !engine.is_idle() {
            engine.step(&mut events);
            steps += 1;
            prop_assert!(steps < 20_000, "somebody starves");
        }
        for (id, prompt, max_tokens, cancel) in waiting {
            let reason = reason_of(&events, id);
            prop_assert!(reason.is_some(), "{:?} never ended", id);
            if cancel {
                continue;
            }
            prop_assert_eq!(reason, Some(FinishReason::Length));
            let tokens = events.iter().filter(|e| matches!(e, Event::Token { seq, .. } if *seq == id)).count();
            prop_assert_eq!(tokens, max_tokens.min(limits.context - prompt));
        }
        prop_assert_eq!(engine.states().free(), free, "blocks or leases leaked");
    }
}

#[test]
fn end_tokens_watches_and_length_end_an_answer() {
    let mut engine = engine(limits(3, 16, 4), None);
    let prompt = || vec![1; 10];
    let mut submit = |request| engine.submit(request).expect("fits");
    let by_token = submit(Request { end_tokens: vec![14], ..Request::greedy(prompt(), 100) });
    let watch: forerun_engine::Watch = Box::new(|token| token == 12);
    let by_watch = submit(Request { watch: Some(watch), ..Request::greedy(prompt(), 100) });
    let by_length = submit(Request::greedy(prompt(), 3));
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    for (id, reason, tokens) in [
        (by_token, FinishReason::EndToken, vec![10, 11, 12, 13, 14]),
        (by_watch, FinishReason::Watched, vec![10, 11, 12]),
        (by_length, FinishReason::Length, vec![10, 11, 12]),
    ] {
        assert_eq!(reason_of(&events, id), Some(reason));
        let own = |e: &Event| matches!(e, Event::Token { seq, .. } if *seq == id);
        let said: Vec<Event> = events.iter().filter(|e| own(e)).cloned().collect();
        let expected: Vec<Event> = tokens
            .into_iter()
            .map(|token| Event::Token { seq: id, token, logprobs: None })
            .collect();
        assert_eq!(said, expected);
    }
}

#[test]
fn a_failed_step_ends_only_the_sequences_it_held() {
    let mut engine = engine(limits(1, 8, 0), Some(2));
    let first = engine.submit(Request::greedy(vec![1; 4], 10)).expect("fits");
    let second = engine.submit(Request::greedy(vec![1; 4], 10)).expect("fits");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    let failed = FinishReason::Failed("the device is on fire".to_owned());
    assert_eq!(reason_of(&events, first), Some(failed));
    assert_eq!(reason_of(&events, second), Some(FinishReason::Length));
    assert_eq!(engine.states().free(), (1, 4));
}

/// Allows one token that the runner never samples.
struct Never;

impl Constraint for Never {
    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        mask[99 / 32] |= 1 << (99 % 32);
        Ok(Allowed::Some)
    }

    fn take(&mut self, token: Token) -> bool {
        token == 99
    }

    fn back(&mut self, _: usize) {}

    fn forced(&mut self, most: usize, tokens: &mut Vec<Token>) {
        tokens.extend(std::iter::repeat_n(99, most));
    }

    fn is_done(&mut self) -> bool {
        false
    }
}

#[test]
fn a_pick_that_its_constraint_does_not_allow_is_no_text_and_ends_its_answer_only() {
    for drafts in [0, 4] {
        let mut engine = engine(limits(2, 16, drafts), None);
        let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Never));
        let retain = true;
        let bound = Request { constraint, retain, ..Request::greedy(vec![1; 4], 10) };
        let bound = engine.submit(bound).expect("fits");
        let free = engine.submit(Request::greedy(vec![1; 4], 10)).expect("fits");
        let mut events = Vec::new();
        while !engine.is_idle() {
            engine.step(&mut events);
        }
        let spoke = events.iter().any(|e| matches!(e, Event::Token { seq, .. } if *seq == bound));
        assert!(!spoke, "what may not come is not told");
        let Some(FinishReason::Refused(why)) = reason_of(&events, bound) else { panic!("no end") };
        assert!(why.contains("token 4"), "{why}");
        assert_eq!(reason_of(&events, free), Some(FinishReason::Length));
        assert_eq!(engine.states().free().0, 2, "what failed is not kept");
    }
}

#[test]
fn a_failed_draft_ends_those_who_still_answer_and_leaves_the_ended_alone() {
    let mut engine = engine(limits(2, 16, 4), None);
    engine.runner().fails_drafting = true;
    let short = engine.submit(Request::greedy(vec![1; 4], 1)).expect("fits");
    let long = engine.submit(Request::greedy(vec![1; 4], 10)).expect("fits");
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    assert_eq!(reason_of(&events, short), Some(FinishReason::Length));
    let failed = FinishReason::Failed("the head is on fire".to_owned());
    assert_eq!(reason_of(&events, long), Some(failed));
    let ends = events.iter().filter(|e| matches!(e, Event::Finished { .. })).count();
    assert_eq!(ends, 2, "each ends once");
    assert_eq!(engine.states().free().0, 2);
}

#[test]
fn a_long_prompt_delays_a_running_answer_by_one_chunk_at_most() {
    let mut engine = engine(limits(2, 8, 3), None);
    let running = engine.submit(Request::greedy(vec![1; 4], 50)).expect("fits");
    let mut events = Vec::new();
    engine.step(&mut events);
    engine.submit(Request::greedy(vec![1; 150], 1)).expect("fits");
    for _ in 0..10 {
        events.clear();
        engine.step(&mut events);
        let spoke = events.iter().any(|e| matches!(e, Event::Token { seq, .. } if *seq == running));
        assert!(spoke, "a decoding sequence is in every step");
    }
}

#[test]
fn impossible_requests_are_refused_by_name() {
    let mut engine = engine(limits(1, 8, 0), None);
    let sampling = |sampling| Request { sampling, ..Request::greedy(vec![1], 5) };
    let hot = Sampling { temperature: f32::NAN, ..Sampling::default() };
    let cases = [
        (Request::greedy(vec![], 5), "the prompt is empty"),
        (Request::greedy(vec![1; 200], 5), "prompt has 200 tokens; the context holds 200"),
        (Request::greedy(vec![100], 5), "token id 100 is outside the vocabulary of 100"),
        (Request::greedy(vec![1], 0), "max_tokens is 0"),
        (sampling(hot), "temperature is NaN"),
        (sampling(Sampling { top_p: 0.0, ..Sampling::default() }), "top_p is 0"),
        (sampling(Sampling { min_p: 1.5, ..Sampling::default() }), "min_p is 1.5"),
        (
            sampling(Sampling { logit_bias: vec![(3, 1.0), (3, 2.0)], ..Sampling::default() }),
            "logit_bias is 3=2",
        ),
    ];
    for (request, expected) in cases {
        let error: RejectError = engine.submit(request).expect_err(expected);
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}
