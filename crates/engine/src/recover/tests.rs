//! Panics at every stage of a step, over a real model: others answer as ever, and nothing leaks.

use super::Stage;
use crate::cache::DiskTier;
use crate::{
    Allowed, CacheSettings, Constraint, Depth, DiskSettings, DraftPlan, DraftTokens, Engine,
    EngineError, Event, FinishReason, Follow, ModelRunner, Recovery, Request, Runner,
    SampledTokens, Sampling, Scheduler, Settings, Speculation, StateCopies, StatePart, StateShape,
    StateStore, StepPlan,
};
use forerun_backend::{Backend, StashId};
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
    Stash,
    Unstash,
    Submit,
    ReadStash,
}

/// A real runner that panics once: at a call, after so many of its kind, before or after the work.
struct PanickingRunner {
    inner: ModelRunner,
    fault: Option<(RunnerCall, usize, bool)>,
}

impl PanickingRunner {
    /// Whether this is the call to fail: `Some(true)` after its work.
    fn due(fault: &mut Option<(RunnerCall, usize, bool)>, call: RunnerCall) -> Option<bool> {
        let (_, left, after) = fault.as_mut().filter(|(at, ..)| *at == call)?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let after = *after;
        *fault = None;
        Some(after)
    }

    fn around<T>(&mut self, call: RunnerCall, work: impl FnOnce(&mut ModelRunner) -> T) -> T {
        let due = Self::due(&mut self.fault, call);
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
        let mut fault = self.fault.take_if(|(at, ..)| *at == RunnerCall::Follow);
        let done = self.around(RunnerCall::Draft, |inner| {
            inner.draft(plan, drafts, &mut |plan, drafts, made| {
                follow(plan, drafts, made);
                assert!(
                    Self::due(&mut fault, RunnerCall::Follow).is_none(),
                    "a fault between draft passes"
                );
            })
        });
        self.fault = self.fault.take().or(fault);
        done
    }

    fn recover(&mut self) -> Recovery {
        self.inner.recover()
    }

    fn shape(&self) -> StateShape {
        self.inner.shape()
    }

    fn copies(&mut self) -> &mut dyn StateCopies {
        self
    }
}

impl StateCopies for PanickingRunner {
    fn limit(&mut self, bytes: u64) {
        self.inner.copies().limit(bytes);
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn stash(&mut self, part: StatePart) -> Result<StashId, EngineError> {
        self.around(RunnerCall::Stash, |inner| inner.copies().stash(part))
    }

    fn stash_host(&mut self, bytes: Bytes) -> Result<StashId, EngineError> {
        self.inner.stash_host(bytes)
    }

    fn unstash(&mut self, parts: &[(StatePart, StashId)]) -> Result<(), EngineError> {
        self.around(RunnerCall::Unstash, |inner| inner.unstash(parts))
    }

    fn submit(&mut self) -> Result<(), EngineError> {
        self.around(RunnerCall::Submit, |inner| inner.copies().submit())
    }

    fn read(&mut self, stash: StashId) -> Result<Bytes, EngineError> {
        self.around(RunnerCall::ReadStash, |inner| inner.copies().read(stash))
    }

    fn release(&mut self, stash: StashId) {
        self.inner.copies().release(stash);
    }

    fn release_all(&mut self) {
        self.inner.release_all();
    }

    fn is_settled(&self) -> bool {
        self.inner.is_settled()
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
    no_leaks(engine, case);
    failed
}

/// Everything that the device has put aside belongs to an entry of the cache, and its bytes are counted there.
fn no_leaks(engine: &mut Engine<PanickingRunner>, case: &str) {
    let cache = engine.cache.as_ref().expect("a cache");
    let counted = cache.stash_bytes();
    assert_eq!(engine.runner.bytes(), counted, "{case}: bytes that no entry has");
    assert!(counted <= cache.stats().memory.bytes, "{case}");
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
    let calls = [
        RunnerCall::Run,
        RunnerCall::Draft,
        RunnerCall::Follow,
        RunnerCall::Stash,
        RunnerCall::Unstash,
        RunnerCall::Submit,
    ];
    for call in calls {
        for (calls_before, after) in [(0, false), (0, true), (2, false), (2, true)] {
            let case = format!("{call:?} after {calls_before}, {after}");
            if matches!(call, RunnerCall::Stash | RunnerCall::Submit) {
                engine.clear_cache();
            }
            engine.runner.fault = Some((call, calls_before, after));
            let failed = holds(&mut engine, requests(None), &alone, "a fault", &case);
            // Whatever was published is copied in at most once a request.
            let reached = engine.runner.fault.take().is_none();
            assert!(reached || call == RunnerCall::Unstash, "{case} was reached");
            assert!(failed > 0 || !reached, "{case}");
        }
    }
    engine.clear_cache();
    assert_eq!(engine.runner.bytes(), 0);
}

/// What the disk reads when there is nothing else to do.
#[test]
fn a_panic_while_the_disk_reads_leaves_the_cache_empty_and_the_engine_working() {
    let alone = alone();
    for (calls_before, after) in [(0, false), (3, true)] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut engine = engine();
        let cache = engine.cache.as_mut().expect("a cache");
        let settings = DiskSettings {
            folder: folder.path().to_owned(),
            bytes: 1 << 30,
            identity: "a test".to_owned(),
        };
        cache.disk = Some(DiskTier::open(&settings, [3; 32]).expect("a folder"));
        engine.runner.fault = Some((RunnerCall::ReadStash, calls_before, after));
        let case = format!("{calls_before}, {after}");
        holds(&mut engine, requests(None), &alone, "a fault", &case);
        assert!(engine.runner.fault.is_none(), "{case} was reached");
        engine.flush_cache();
        assert!(engine.cache_stats().disk.is_some_and(|disk| disk.written_bytes > 0), "{case}");
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
