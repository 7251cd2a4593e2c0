//! Panics at every stage of a step, over a real model: others answer as ever, and nothing leaks.

use super::Stage;
use crate::{
    Allowed, CacheSettings, Constraint, Depth, DraftPlan, DraftTokens, Engine, EngineError, Event,
    FinishReason, Follow, ModelRunner, Part, Recovery, Request, Runner, SampledTokens, Sampling,
    Scheduler, Settings, Speculation, StateShape, StateStore, StepPlan,
};
use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_base::{Bytes, SeqId, Token};
use forerun_model::{Blueprint, Model};
use forerun_testkit::Golden;

/// Calls of a runner that can panic, before or after the device did its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunnerCall {
    Run,
    Draft,
    Follow,
    CopyOut,
    CopyIn,
}

/// A real runner that panics once: at a call, after so many of its kind, before or after the work.
struct PanickingRunner {
    inner: ModelRunner,
    fault: Option<(RunnerCall, usize, bool)>,
}

impl PanickingRunner {
    /// Whether this is the call to fail: `Some(true)` after its work.
    fn due(&mut self, call: RunnerCall) -> Option<bool> {
        let (_, left, after) = self.fault.as_mut().filter(|(at, ..)| *at == call)?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let after = *after;
        self.fault = None;
        Some(after)
    }

    fn around<T>(&mut self, call: RunnerCall, work: impl FnOnce(&mut ModelRunner) -> T) -> T {
        let due = self.due(call);
        assert!(due != Some(false), "a fault before {call:?}");
        let done = work(&mut self.inner);
        assert!(due != Some(true), "a fault after {call:?}");
        done
    }
}

impl Runner for PanickingRunner {
    fn run(&mut self, plan: &StepPlan, sampled: &mut SampledTokens) -> Result<(), EngineError> {
        self.around(RunnerCall::Run, |inner| inner.run(plan, sampled))
    }

    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        let in_follow = self.due(RunnerCall::Follow).is_some();
        self.around(RunnerCall::Draft, |inner| {
            inner.draft(plan, drafts, &mut |plan, drafts, made| {
                follow(plan, drafts, made);
                assert!(!in_follow, "a fault between draft passes");
            })
        })
    }

    fn recover(&mut self) -> Recovery {
        self.inner.recover()
    }

    fn shape(&self) -> StateShape {
        self.inner.shape()
    }

    fn copy_out(&mut self, part: Part, bytes: &mut [u8]) -> Result<(), EngineError> {
        self.around(RunnerCall::CopyOut, |inner| inner.copy_out(part, bytes))
    }

    fn copy_in(&mut self, parts: &[(Part, Bytes)]) -> Result<(), EngineError> {
        self.around(RunnerCall::CopyIn, |inner| inner.copy_in(parts))
    }
}

/// Allows every other token, and panics at one of its questions.
struct PanickingConstraint {
    taken: usize,
    panics_at: Option<usize>,
    asked: usize,
}

impl PanickingConstraint {
    fn new(panics_at: Option<usize>) -> Self {
        Self { taken: 0, panics_at, asked: 0 }
    }

    fn ask(&mut self) {
        self.asked += 1;
        assert!(Some(self.asked) != self.panics_at, "the constraint is broken");
    }
}

impl Constraint for PanickingConstraint {
    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        self.ask();
        mask.fill(0x5555_5555);
        Ok(Allowed::Some)
    }

    fn take(&mut self, token: Token) -> bool {
        self.ask();
        self.taken += usize::from(token.is_multiple_of(2));
        token.is_multiple_of(2)
    }

    fn back(&mut self, count: usize) {
        self.taken -= count;
    }

    fn forced(&mut self, _: usize, _: &mut Vec<Token>) {
        self.ask();
    }

    fn is_done(&mut self) -> bool {
        self.ask();
        false
    }
}

const MODEL: &str = "qwen3_5";

fn engine() -> Engine<PanickingRunner> {
    let blueprint = Blueprint::open(Golden::open(MODEL).checkpoint()).expect("a model");
    let mut backend: Box<dyn Backend> = Box::new(tuned(Some(1)));
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {}).expect("a model");
    let cache = CacheSettings { bytes: 64 << 20, interval: Some(16) };
    let settings = Settings {
        context: 192,
        sequences: 2,
        prefill_chunk: 16,
        speculation: Speculation { text: true, ..Speculation::mtp(3) },
        cache,
        ..Settings::default()
    };
    let inner = ModelRunner::new(backend, model, &settings).expect("memory");
    let (limits, vocabulary) = (*inner.limits(), inner.model().spec.vocabulary);
    let scheduler = Scheduler::new(limits, vocabulary, inner.speculation());
    let runner = PanickingRunner { inner, fault: None };
    Engine::with_parts(scheduler, StateStore::new(&limits), runner).with_cache(&cache)
}

/// Three requests of different kinds, the last of which waits for a lease.
fn requests(panics_at: Option<usize>) -> Vec<Request> {
    let prompt = Golden::open(MODEL).tokens("input_ids");
    let warm = Sampling { temperature: 0.9, seed: 7, ..Sampling::default() };
    let penalised = Sampling { presence_penalty: 0.5, ..warm.clone() };
    let evens: Option<Box<dyn Constraint>> = Some(Box::new(PanickingConstraint::new(panics_at)));
    let depth = Depth::Fixed(2);
    vec![
        Request { sampling: warm, depth, ..Request::greedy(prompt[..20].to_vec(), 24) },
        Request { constraint: evens, depth, ..Request::greedy(prompt[3..25].to_vec(), 20) },
        Request { sampling: penalised, ..Request::greedy(prompt[..18].to_vec(), 16) },
    ]
}

type EndedAnswer = (Vec<Token>, FinishReason);

/// Runs until idle; the answers of some sequences.
fn answers(engine: &mut Engine<PanickingRunner>, ids: &[SeqId]) -> Vec<EndedAnswer> {
    let (mut events, mut steps) = (Vec::new(), 0);
    while !engine.is_idle() {
        engine.step(&mut events);
        steps += 1;
        assert!(steps < 2000, "the engine goes on without an end");
    }
    let answer = |id: &SeqId| {
        let tokens = events.iter().filter_map(|event| match event {
            Event::Token { seq, token, .. } if seq == id => Some(*token),
            _ => None,
        });
        let mut ends = events.iter().filter_map(|event| match event {
            Event::Finished { seq, reason, .. } if seq == id => Some(reason.clone()),
            _ => None,
        });
        let end = ends.next().expect("every answer ends");
        assert!(ends.next().is_none(), "and ends once");
        (tokens.collect(), end)
    };
    ids.iter().map(answer).collect()
}

fn submit(engine: &mut Engine<PanickingRunner>, requests: Vec<Request>) -> Vec<SeqId> {
    requests.into_iter().map(|request| engine.submit(request).expect("fits")).collect()
}

/// Each request alone, in an engine that has seen nothing.
fn alone() -> Vec<EndedAnswer> {
    let one = |i: usize| {
        let mut engine = engine();
        let ids = submit(&mut engine, vec![requests(None).swap_remove(i)]);
        answers(&mut engine, &ids).remove(0)
    };
    (0..3).map(one).collect()
}

/// One fault in a run: those it ended say so, the others and those who ask again answer as if alone.
fn holds(
    engine: &mut Engine<PanickingRunner>,
    asked: Vec<Request>,
    alone: &[EndedAnswer],
    says: &str,
    case: &str,
) -> usize {
    let ids = submit(engine, asked);
    let mut failed = 0;
    for ((tokens, reason), expected) in answers(engine, &ids).iter().zip(alone) {
        match reason {
            FinishReason::Failed(why) => {
                assert!(why.contains(says), "{case}: {why}");
                assert!(expected.0.starts_with(tokens), "{case}: what was said before holds");
                failed += 1;
            }
            _ => assert_eq!((tokens, reason), (&expected.0, &expected.1), "{case}"),
        }
    }
    let ids = submit(engine, requests(None));
    assert_eq!(answers(engine, &ids), alone, "{case}, asked again");
    assert_eq!(engine.states.free(), engine.states.size(), "{case}: leases and blocks came back");
    failed
}

#[test]
fn a_panic_at_any_stage_of_a_step_ends_its_requests_and_no_others() {
    let alone = alone();
    let stages = [
        Stage::Admit,
        Stage::Start,
        Stage::Plan,
        Stage::Constrain,
        Stage::Run,
        Stage::Judge,
        Stage::Commit,
        Stage::Draft,
        Stage::Publish,
        Stage::Sweep,
    ];
    let mut engine = engine();
    for stage in stages {
        for reached_before in [0, 1, 5] {
            engine.place.fault = Some((stage, reached_before));
            let case = format!("{stage:?} after {reached_before}");
            let failed = holds(&mut engine, requests(None), &alone, stage.name(), &case);
            assert!(engine.place.fault.is_none(), "{case} was reached");
            assert!(failed > 0 || stage == Stage::Admit, "{case}");
        }
    }
}

#[test]
fn a_panic_in_the_device_is_contained_before_and_after_its_work() {
    let alone = alone();
    let mut engine = engine();
    for call in [
        RunnerCall::Run,
        RunnerCall::Draft,
        RunnerCall::Follow,
        RunnerCall::CopyOut,
        RunnerCall::CopyIn,
    ] {
        for (calls_before, after) in [(0, false), (0, true), (2, false), (2, true)] {
            let case = format!("{call:?} after {calls_before}, {after}");
            if call == RunnerCall::CopyOut {
                engine.clear_cache();
            }
            engine.runner.fault = Some((call, calls_before, after));
            let failed = holds(&mut engine, requests(None), &alone, "a fault", &case);
            // Whatever was published is copied in at most once a request.
            let reached = engine.runner.fault.take().is_none();
            assert!(reached || call == RunnerCall::CopyIn, "{case} was reached");
            assert!(failed > 0 || !reached, "{case}");
        }
    }
}

#[test]
fn a_constraint_that_panics_at_any_question_ends_only_the_requests_of_its_step() {
    let alone = alone();
    let mut engine = engine();
    for asked in 1..=12 {
        let case = format!("question {asked}");
        let failed =
            holds(&mut engine, requests(Some(asked)), &alone, "the constraint is broken", &case);
        assert!(failed > 0, "{case}");
    }
}

#[test]
fn a_watch_that_panics_ends_only_the_requests_of_its_step() {
    let alone = alone();
    let mut engine = engine();
    for heard in [1, 2, 9] {
        let mut asked = requests(None);
        let mut left = heard;
        asked[0].watch = Some(Box::new(move |_| {
            left -= 1;
            assert!(left > 0, "the watch is broken");
            false
        }));
        let case = format!("token {heard}");
        assert!(holds(&mut engine, asked, &alone, "the watch is broken", &case) > 0, "{case}");
    }
}
