//! The step loop.

use crate::cache::PrefixCache;
use crate::draft::{DepthChooser, RoundCosts};
use crate::pace::{Pace, StepTimes};
use crate::recover::{Stage, StepProgress};
use crate::{
    Busy, DraftPlan, DraftTokens, EngineError, Event, FinishReason, ModelRunner, Recovery,
    RejectError, Request, Runner, SampledTokens, Scheduler, ScriptedAcceptance, Speculation,
    SpeculationMode, StateStore, Stats, StepPlan, Verdict, accept,
};
use forerun_base::{SeqId, Token};
use std::time::{Duration, Instant};

/// A mask that is computed elsewhere is waited for so long before its sequence sits out a step.
const MASK_PATIENCE: Duration = Duration::from_millis(2);
/// The same where nobody else has anything to do; then the caller has a turn.
const IDLE_PATIENCE: Duration = Duration::from_millis(5);

/// Sequences, their state, and a device to run them on. One thread owns it.
pub struct Engine<R> {
    pub(crate) scheduler: Scheduler,
    pub(crate) states: StateStore,
    pub(crate) runner: R,
    pub(crate) plan: StepPlan,
    pub(crate) sampled: SampledTokens,
    pub(crate) draft_plan: DraftPlan,
    pub(crate) drafts: DraftTokens,
    pub(crate) costs: RoundCosts,
    pub(crate) pace: Pace,
    pub(crate) stats: Stats,
    pub(crate) cache: Option<PrefixCache>,
    pub(crate) place: StepProgress,
    depths: DepthChooser,
    /// Steps that the device has not reported yet.
    pub(crate) unpriced: Unpriced,
    /// Says how many drafts are taken, in place of the model.
    script: Option<ScriptedAcceptance>,
    /// Why the state of every sequence is gone, until they are ended.
    pub(crate) lost: Option<String>,
}

/// Steps whose time is not known yet, together.
#[derive(Debug, Default)]
pub(crate) struct Unpriced {
    pub(crate) steps: usize,
    prompt_rows: usize,
    context: usize,
    /// Seconds that their answers are thought to take.
    answers: f32,
    /// What the device has reported so far.
    reported: Busy,
}

impl Engine<ModelRunner> {
    /// An engine over a loaded model.
    pub fn new(runner: ModelRunner) -> Self {
        let (limits, vocabulary) = (*runner.limits(), runner.model().spec.vocabulary);
        let scheduler = Scheduler::new(limits, vocabulary, runner.speculation());
        let (step_budget, cache) = (runner.step_budget, runner.cache_settings());
        let mut engine =
            Self::with_parts(scheduler, StateStore::new(&limits), runner).with_cache(&cache);
        engine.set_step_budget(step_budget);
        engine
    }

    /// Why no drafts are made, if none are.
    pub fn speculation_off(&self) -> Option<&'static str> {
        let Speculation { mode, text, mtp, .. } = self.runner.speculation();
        let limits = self.runner.limits();
        match mode {
            SpeculationMode::Off => Some("turned off"),
            _ if limits.rows < 2 => Some("a prefill chunk of 1 leaves no row for drafts"),
            _ if self.scheduler.max_drafts() == 0 => Some("no drafts allowed"),
            _ if limits.mtp || text => None,
            _ if mtp => Some("the model has no MTP head and no drafter was given"),
            _ => Some("no drafter chosen"),
        }
    }
}

impl<R: Runner> Engine<R> {
    /// An engine of given parts.
    pub fn with_parts(scheduler: Scheduler, states: StateStore, runner: R) -> Self {
        let limits = scheduler.limits;
        Self {
            plan: StepPlan::with_capacity(&limits),
            sampled: SampledTokens::with_capacity(&limits),
            draft_plan: DraftPlan::with_capacity(&limits),
            drafts: DraftTokens::with_capacity(&limits, scheduler.max_drafts()),
            costs: RoundCosts::new(limits.rows.min(256), limits.sequences, runner.experts()),
            pace: Pace::new(Duration::ZERO),
            stats: Stats::default(),
            cache: None,
            place: StepProgress::default(),
            depths: DepthChooser::with_capacity(limits.sequences),
            unpriced: Unpriced::default(),
            script: None,
            lost: None,
            scheduler,
            states,
            runner,
        }
    }

    /// Holds steps to another budget, whose prices are learned anew; zero is no limit.
    pub fn set_step_budget(&mut self, budget: Duration) {
        self.pace = Pace::new(budget);
    }

    /// From now on a script says how many drafts are taken, in place of the model: the text is not the model's any
    /// more. For measurements alone.
    pub fn script_acceptance(&mut self, script: Option<ScriptedAcceptance>) {
        self.script = script;
    }

    /// The device side.
    pub fn runner(&mut self) -> &mut R {
        &mut self.runner
    }

    /// Leases and blocks.
    pub fn states(&self) -> &StateStore {
        &self.states
    }

    /// Takes a request, or says why it can never run.
    pub fn submit(&mut self, request: Request) -> Result<SeqId, RejectError> {
        let seq = self.scheduler.submit(request)?;
        self.make_room();
        Ok(seq)
    }

    /// Continues a retained sequence with more tokens; only those are read.
    pub fn resume(&mut self, seq: SeqId, request: Request) -> Result<(), RejectError> {
        self.scheduler.resume(seq, request, &self.states)?;
        self.make_room();
        Ok(())
    }

    /// Requests bring their own needs; steps must not allocate for them.
    fn make_room(&mut self) {
        self.plan.clear();
        let capacity = self.scheduler.history_capacity();
        self.plan.history.reserve(capacity);
        self.draft_plan.clear();
        self.draft_plan.history.reserve(capacity);
        let (masked, vocabulary) = (self.scheduler.masked_rows(), self.scheduler.vocabulary);
        self.plan.masks.reserve(masked, vocabulary);
        self.draft_plan.masks.reserve(masked, vocabulary);
    }

    /// Ends a sequence now, or forgets a retained one. Its blocks are free for the next step.
    pub fn cancel(&mut self, seq: SeqId, events: &mut Vec<Event>) {
        self.place.seq = Some(seq);
        self.plan.clear();
        self.draft_plan.clear();
        self.contain(events, |this, _| {
            this.place.enter(Stage::Publish);
            this.place.seq.into_iter().for_each(|seq| this.publish_unfinished(seq));
        });
        self.place.seq = None;
        self.scheduler.end(seq, FinishReason::Cancelled, &mut self.states, events);
    }

    /// Tokens of a sequence so far and the length of its prompt, while the engine knows it.
    pub fn tokens(&self, seq: SeqId) -> Option<(&[Token], usize)> {
        self.scheduler.tokens(seq)
    }

    /// Positions of a sequence whose state the device holds: how much of its prompt was read, the prefix cache's part
    /// included.
    pub fn committed(&self, seq: SeqId) -> usize {
        self.scheduler.lease(seq).map_or(0, |lease| self.states.lease(lease).committed as usize)
    }

    /// Whether there is nothing to do: no request waits or runs, and nothing published waits to go to disk.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && !self.cache.as_ref().is_some_and(PrefixCache::has_backlog)
    }

    /// One step, read top to bottom. Each line consumes the line above it.
    ///
    /// A failed step ends the sequences it held, with the reason, and no others; so does one that panics. Where the
    /// device itself is lost, it ends all that had state there.
    pub fn step(&mut self, events: &mut Vec<Event>) {
        self.end_lost(events);
        self.contain(events, Self::step_through);
        if let Some(why) = self.runner.lost().map(str::to_owned) {
            // Copies for the prefix cache may fail without ending anything.
            self.recover_device(&why);
        }
        self.end_lost(events);
    }

    fn step_through(&mut self, events: &mut Vec<Event>) {
        self.plan.clear();
        self.draft_plan.clear();
        self.place.enter(Stage::Admit);
        self.scheduler.admit(&mut self.states); // reserve; no device
        self.start(events); // device: what the cache has of new prompts
        let started = Instant::now();
        self.place.enter(Stage::Constrain);
        self.scheduler.await_masks(MASK_PATIENCE, events); // whose turn it can be
        self.report(Busy::default()); // copies for the cache are no price of rows
        self.place.enter(Stage::Plan);
        let times = StepTimes { pace: &self.pace, costs: &self.costs };
        self.scheduler.plan(&self.states, times, &mut self.plan); // choose; no device
        self.place.enter(Stage::Constrain);
        self.scheduler.constrain(&mut self.states, &mut self.plan, events); // what may be sampled
        if self.plan.spans.is_empty() {
            if !self.write_behind() {
                self.scheduler.wait_for_mask(IDLE_PATIENCE);
            }
            self.scheduler.sweep(&mut self.states);
            return;
        }
        let done = self
            .run() // device: tentative state, samples
            .map(|()| self.settle(events)) // accept and commit
            .and_then(|()| self.draft(events)); // device: next drafts
        match done {
            Ok(()) => {
                self.note_step(started.elapsed());
                self.place.enter(Stage::Publish);
                self.publish(); // device: what prompts to come may want
            }
            Err(error) => self.fail(&error, events),
        }
        self.place.enter(Stage::Sweep);
        self.scheduler.sweep(&mut self.states); // bookkeeping; no device
    }

    fn run(&mut self) -> Result<(), EngineError> {
        self.place.enter(Stage::Run);
        self.take_in_before()?;
        let start = Instant::now();
        self.runner.run(&self.plan, &mut self.sampled)?;
        let (step, submissions) = (start.elapsed(), 1);
        let other = self.report(Busy { step, steps: 1, submissions, ..Busy::default() });
        self.unpriced.reported.other += other;
        Ok(())
    }

    /// Lets the head take in what it still lacks of sequences whose next rows it takes in with the step: what was
    /// restored or continued ends with a row that had no successor yet.
    fn take_in_before(&mut self) -> Result<(), EngineError> {
        self.draft_plan.clear();
        for span in self.plan.spans.iter().filter(|span| span.taken > 0) {
            let Some(at) = self.scheduler.find(span.seq) else { continue };
            self.scheduler.add_entry(&mut self.draft_plan, at, &self.states, 0, 0);
        }
        let busy = self.take_in()?;
        self.unpriced.reported.other += busy;
        Ok(())
    }

    /// Runs a plan that drafts nothing, if there is anything in it; the time the device is known to have taken.
    pub(crate) fn take_in(&mut self) -> Result<Duration, EngineError> {
        if self.draft_plan.entries.is_empty() {
            return Ok(Duration::ZERO);
        }
        let start = Instant::now();
        let Self { runner, draft_plan, drafts, .. } = self;
        // Nothing is drafted, so nothing follows.
        let submissions = runner.draft(draft_plan, drafts, &mut |_, _, _| {})?;
        Ok(self.report(Busy { other: start.elapsed(), submissions, ..Busy::default() }))
    }

    /// Takes what the device has done since the last call; `host` is what the host's clock says where there is none of
    /// the device's. Steps are kept for their price whoever hears of them first; the time of all else is the answer.
    pub(crate) fn report(&mut self, host: Busy) -> Duration {
        let busy = self.runner.take_busy().unwrap_or(host);
        self.stats.note_submissions(&busy);
        self.unpriced.reported.step += busy.step;
        self.unpriced.reported.steps += busy.steps;
        busy.other
    }

    /// Accepts every span's tokens and commits what is kept: the only place state becomes real.
    fn settle(&mut self, events: &mut Vec<Event>) {
        for (i, span) in self.plan.spans.iter().enumerate() {
            self.place.enter(Stage::Judge);
            let scripted = self.script.as_ref().filter(|_| span.sample.is_some());
            let scripted = scripted.map(|script| script.accepted(span));
            if let Some(taken) = scripted {
                self.sampled.put(i, &self.plan.drafts(span)[..taken]);
            }
            let (confirmed, sampled) = (span.confirmed(), self.sampled.of(i));
            let kept = match span.sample {
                Some(_) => {
                    let verdict = match scripted {
                        Some(taken) => Verdict { keep: confirmed + taken, emit: taken + 1 },
                        None => accept(confirmed, self.plan.drafts(span), sampled.tokens),
                    };
                    self.scheduler.apply(span, verdict, sampled, events)
                }
                None => self.scheduler.read(span),
            };
            self.place.enter(Stage::Commit);
            self.states.commit(span.lease, kept.keep, confirmed);
        }
    }

    /// Makes the drafts of the next step.
    fn draft(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        self.place.enter(Stage::Draft);
        if self.scheduler.max_drafts() == 0 {
            return Ok(());
        }
        let Self { scheduler, states, costs, depths, plan, draft_plan, .. } = self;
        scheduler.plan_drafts(plan, states, costs, depths, draft_plan);
        if !self.draft_plan.entries.is_empty() {
            let start = Instant::now();
            let Self { scheduler, runner, draft_plan, drafts, .. } = self;
            let drafted = runner.draft(draft_plan, drafts, &mut |plan, drafts, made| {
                scheduler.follow(plan, drafts, made);
            });
            scheduler.look_back();
            let submissions = drafted?;
            let other = start.elapsed();
            let drafting = self.report(Busy { other, submissions, ..Busy::default() });
            self.unpriced.reported.other += drafting;
            if self.draft_plan.deepest() > 0
                && self.draft_plan.tokens.len() <= 2 * self.drafts.len()
            {
                // A pass that only takes in what is new belongs to the price of drafts.
                self.costs.note_chain(&self.drafts, drafting);
            }
        }
        self.scheduler.take_drafts(&self.draft_plan, &self.drafts, events);
        Ok(())
    }

    /// Brings the device to rest behind a step that broke off: what is queued belongs to requests that end here, and
    /// must not run under those that follow.
    pub(crate) fn recover_device(&mut self, why: &str) {
        if self.runner.recover() == Recovery::Lost {
            self.stats.devices_lost += 1;
            self.lost = Some(why.to_owned());
            if let Some(cache) = &mut self.cache {
                cache.forget_unsettled(self.runner.copies());
            }
        }
        self.runner.take_busy();
        self.unpriced = Unpriced::default();
    }

    /// Prices what the device has passed. A chunk in the middle of a prompt is not waited for, so its time comes with a
    /// later step's, and both are priced together.
    fn note_step(&mut self, wall: Duration) {
        let (rows, prompt_rows, context) =
            (self.plan.rows(), self.plan.prompt_rows, self.plan.context());
        self.stats.note_step(rows, prompt_rows, wall);
        let open = &mut self.unpriced;
        open.steps += 1;
        open.prompt_rows += prompt_rows;
        open.context = open.context.max(context);
        open.answers += self.costs.answers(&self.plan);
        if open.reported.steps < open.steps {
            return;
        }
        let Unpriced { steps, prompt_rows, context, answers, reported } = std::mem::take(open);
        let spans = &self.plan.spans;
        let decodes = spans.iter().all(|span| span.sample.is_some() && span.confirmed() == 1);
        // What drafts left to be folded is their price, not that of the step without drafts that follows.
        let drafts = spans.iter().any(|span| span.drafts > 0);
        if steps == 1 && decodes && (drafts || spans.iter().all(|span| span.pending == 0)) {
            self.costs.note_step(rows, context, reported.step);
        }
        self.pace.note(prompt_rows, context, answers, reported.step + reported.other);
    }

    fn fail(&mut self, error: &EngineError, events: &mut Vec<Event>) {
        let why = error.to_string();
        self.recover_device(&why);
        self.recover_cache();
        for span in &self.plan.spans {
            // An answer that ended before the device failed has its reason already.
            if self.scheduler.is_running(span.seq) {
                let reason = FinishReason::Failed(why.clone());
                self.scheduler.end(span.seq, reason, &mut self.states, events);
            }
        }
    }
}

#[cfg(test)]
mod tests;
