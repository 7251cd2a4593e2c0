//! Engines over golden checkpoints on each device.

use forerun_backend::Backend;
use forerun_backend::op::CacheLayout;
use forerun_backend_cpu::{plain, tuned};
use forerun_base::{LeaseId, SeqId, Token};
use forerun_engine::{
    Admission, Engine, Event, FinishReason, ModelRunner, Request, Settings, Span, StateStore,
    StepPlan, SubmissionBudget,
};
use forerun_model::{Blueprint, KV_BLOCK, Model, StateKind};
use forerun_testkit::{Budget, Golden, Recorder};
use std::path::Path;

/// So little work a submission that no operation fits one.
pub(crate) const EVERYTHING_CUT: SubmissionBudget =
    SubmissionBudget::Work(Budget { bytes: 1, flops: 1 });

/// The devices every model test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// Definitions.
    Plain,
    /// What users run.
    Tuned,
    /// Behaves like a GPU, over the tuned kernels.
    Recorded,
    /// The tuned kernels, where every operation that can be cut is cut as small as it can be.
    Cut,
}

impl Device {
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Tuned, Self::Recorded, Self::Cut];

    fn settings(self, settings: &Settings) -> Settings {
        match self {
            Self::Plain | Self::Tuned | Self::Recorded => *settings,
            Self::Cut => Settings { submission_budget: EVERYTHING_CUT, ..*settings },
        }
    }

    fn open(self) -> Box<dyn Backend> {
        match self {
            Self::Plain => Box::new(plain()),
            Self::Tuned | Self::Cut => Box::new(tuned(Some(2))),
            Self::Recorded => {
                // Small enough that a step of the tiny models is cut into many submissions.
                let budget = Budget { bytes: 1 << 18, flops: 1 << 20 };
                Box::new(Recorder::with_budget(Box::new(tuned(Some(1))), budget))
            }
        }
    }
}

pub(crate) fn runner(folder: &Path, device: Device, settings: &Settings) -> ModelRunner {
    built(&Blueprint::open(folder).expect("a model"), device, settings)
}

/// A golden model; `model + drafter` takes the drafter from another golden folder.
pub(crate) fn golden_runner(name: &str, device: Device, settings: &Settings) -> ModelRunner {
    let (model, drafter) = match name.split_once(" + ") {
        Some((model, drafter)) => (model, Some(drafter)),
        None => (name, None),
    };
    let mut blueprint = Blueprint::open(Golden::open(model).checkpoint()).expect("a model");
    if let Some(drafter) = drafter {
        let drafter = Golden::open(drafter);
        blueprint.attach_drafter(drafter.checkpoint()).expect("a fitting drafter");
    }
    built(&blueprint, device, settings)
}

/// The first tokens of a golden model's prompt.
pub(crate) fn prompt(name: &str, len: usize) -> Vec<Token> {
    let model = name.split(" + ").next().unwrap_or(name);
    Golden::open(model).tokens("input_ids")[..len].to_vec()
}

/// A text of any length that does not repeat soon.
pub(crate) fn babble(len: usize, vocabulary: usize) -> Vec<Token> {
    (0..len as u32).map(|i| (i * i * 7 + i * 31 + 7) % vocabulary as u32).collect()
}

pub(crate) fn built(blueprint: &Blueprint, device: Device, settings: &Settings) -> ModelRunner {
    let mut backend = device.open();
    let settings = &device.settings(settings);
    let model = Model::load(blueprint, &mut *backend, &mut |_| {}).expect("a model");
    ModelRunner::new(backend, model, settings).expect("memory")
}

pub(crate) fn engine(name: &str, device: Device, settings: &Settings) -> Engine<ModelRunner> {
    Engine::new(golden_runner(name, device, settings))
}

/// Runs until idle; each sequence's tokens and reason, in order of id.
pub(crate) fn finish(engine: &mut Engine<ModelRunner>) -> Vec<(Vec<Token>, FinishReason)> {
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
    answers(&events)
}

/// Each sequence's tokens and reason, in order of id.
pub(crate) fn answers(events: &[Event]) -> Vec<(Vec<Token>, FinishReason)> {
    let mut ended: Vec<(SeqId, FinishReason)> = Vec::new();
    for event in events {
        if let Event::Finished { seq, reason, .. } = event {
            ended.push((*seq, reason.clone()));
        }
    }
    ended.sort_by_key(|(seq, _)| *seq);
    let tokens = |id: SeqId| {
        let own = |event: &Event| match event {
            Event::Token { seq, token, .. } if *seq == id => Some(*token),
            _ => None,
        };
        events.iter().filter_map(own).collect()
    };
    ended.into_iter().map(|(id, reason)| (tokens(id), reason)).collect()
}

/// All logits of a text.
pub(crate) fn score(engine: &mut Engine<ModelRunner>, tokens: &[Token]) -> Vec<f32> {
    let mut all = Vec::new();
    engine.score(tokens, &mut |row| all.extend_from_slice(row)).expect("scored");
    all
}

/// A greedy request whose state stays.
pub(crate) fn retained(prompt: Vec<Token>, max_tokens: usize) -> Request {
    Request { retain: true, ..Request::greedy(prompt, max_tokens) }
}

/// A runner driven span by span, without a scheduler: for what only a test would do.
pub(crate) struct ByHand {
    pub(crate) runner: ModelRunner,
    pub(crate) states: StateStore,
    pub(crate) lease: LeaseId,
}

impl ByHand {
    pub(crate) fn new(runner: ModelRunner) -> Self {
        let limits = *runner.limits();
        let mut states = StateStore::new(&limits);
        let Admission::Ready(lease) = states.acquire(limits.context) else { panic!("no lease") };
        Self { runner, states, lease }
    }

    /// Another sequence beside the first.
    pub(crate) fn lend(&mut self) -> LeaseId {
        let Admission::Ready(lease) = self.states.acquire(self.runner.limits().context) else {
            panic!("no lease")
        };
        lease
    }

    /// Runs one span, the last `drafts` tokens of it as drafts, and commits `keep`; all rows' logits.
    pub(crate) fn feed(&mut self, tokens: &[Token], drafts: usize, keep: usize) -> Vec<f32> {
        let logits = self.run(&[(self.lease, tokens)], drafts);
        self.states.commit(self.lease, keep, tokens.len() - drafts);
        logits
    }

    /// Runs spans of several sequences in one step and commits them whole; all rows' logits.
    pub(crate) fn feed_together(&mut self, spans: &[(LeaseId, &[Token])]) -> Vec<f32> {
        let logits = self.run(spans, 0);
        for (lease, tokens) in spans {
            self.states.commit(*lease, tokens.len(), tokens.len());
        }
        logits
    }

    fn run(&mut self, spans: &[(LeaseId, &[Token])], drafts: usize) -> Vec<f32> {
        let mut plan = StepPlan::default();
        for &(id, tokens) in spans {
            let lease = self.states.lease(id);
            let (first, block) = (plan.tokens.len(), plan.blocks.len());
            plan.tokens.extend_from_slice(tokens);
            plan.blocks.extend_from_slice(&lease.blocks);
            plan.spans.push(Span {
                seq: SeqId(u64::from(id.0)),
                lease: id,
                start: lease.committed,
                tokens: first..plan.tokens.len(),
                drafts,
                pending: lease.pending,
                blocks: block..plan.blocks.len(),
                sample: None,
                next: None,
                taken: 0,
            });
        }
        let mut logits = Vec::new();
        self.runner.logits(&plan, &mut |row| logits.extend_from_slice(row)).expect("ran");
        logits
    }

    /// Folds what is pending, so that the recurrent state stands at the committed position.
    pub(crate) fn fold(&mut self) {
        self.feed(&[], 0, 0);
    }
}

/// One layer's state of a lease, in the shapes of the goldens.
pub(crate) struct Remembered {
    /// `state.N.…` suffix and numbers.
    pub(crate) parts: Vec<(&'static str, Vec<f32>)>,
}

/// Where an element lies in a cache: block, head, place in the block, element.
type ElementIndex = fn(&CacheLayout, usize, usize, usize, usize) -> usize;

/// Reads layer `layer` of a lease that holds `positions`.
pub(crate) fn remembered(
    runner: &mut ModelRunner,
    states: &StateStore,
    lease: LeaseId,
    layer: usize,
) -> Remembered {
    let slot = lease.0 as usize;
    let (limits, held) = (*runner.limits(), states.lease(lease));
    let mut parts = Vec::new();
    for buffer in runner.states().layers[layer].buffers().to_vec() {
        let (layout, ring) = match buffer.kind {
            StateKind::Paged(layout) => (layout, None),
            StateKind::Ring(layout) => (layout, Some(limits.ring_width())),
            StateKind::Slot => {
                parts.push((buffer.name, runner.read(buffer.piece(slot)).expect("state")));
                continue;
            }
            // What is made of keys shows in what is chosen, and so in logits.
            StateKind::Entries(_) | StateKind::Log => continue,
        };
        let kept = runner.read(buffer.view).expect("keys or values");
        let place: ElementIndex =
            if buffer.name == "k" { CacheLayout::key } else { CacheLayout::value };
        // A ring holds at least the window; what is older may be overwritten.
        let committed = held.committed as usize;
        let oldest = if ring.is_some() { committed.saturating_sub(limits.window) } else { 0 };
        let scales = if layout.coded { layout.groups() } else { 0 };
        let mut out = Vec::new();
        for head in 0..layout.kv_heads {
            for p in oldest..committed {
                let block = match ring {
                    Some(ring) => slot * ring + p / KV_BLOCK % ring,
                    None => held.blocks[p / KV_BLOCK] as usize,
                };
                let at = |i| place(&layout, block, head, p % KV_BLOCK, i);
                out.extend((0..layout.head_dim).map(|i| kept[at(i)]));
                let at = |i| layout.scale(block, head, p % KV_BLOCK, i);
                out.extend((0..scales).flat_map(|i| [kept[at(i)], kept[at(i) + 1]]));
            }
        }
        parts.push((buffer.name, out));
    }
    Remembered { parts }
}
