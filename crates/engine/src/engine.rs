//! The step loop.

use crate::{
    EngineError, Event, FinishReason, ModelRunner, Picks, RejectError, Request, Runner, Scheduler,
    StateStore, StepPlan, judge,
};
use forerun_base::{SeqId, Token};

/// Sequences, their state, and a device to run them on. One thread owns it.
pub struct Engine<R> {
    scheduler: Scheduler,
    pub(crate) states: StateStore,
    pub(crate) runner: R,
    plan: StepPlan,
    picks: Picks,
}

impl Engine<ModelRunner> {
    /// An engine over a loaded model.
    pub fn new(runner: ModelRunner) -> Self {
        let (limits, vocabulary) = (*runner.limits(), runner.model().spec.vocabulary);
        let scheduler = Scheduler::new(limits, vocabulary);
        Self::with_parts(scheduler, StateStore::new(&limits), runner)
    }
}

impl<R: Runner> Engine<R> {
    /// An engine of given parts.
    pub fn with_parts(scheduler: Scheduler, states: StateStore, runner: R) -> Self {
        Self { scheduler, states, runner, plan: StepPlan::default(), picks: Picks::default() }
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

    /// Continues a parked sequence with more tokens; only those are read.
    pub fn resume(&mut self, seq: SeqId, request: Request) -> Result<(), RejectError> {
        self.scheduler.resume(seq, request)?;
        self.make_room();
        Ok(())
    }

    /// Requests bring their own needs; steps must not allocate for them.
    fn make_room(&mut self) {
        self.plan.clear();
        let room = self.scheduler.history_room();
        self.plan.history.reserve(room);
    }

    /// Ends a sequence now, or forgets a parked one. Its blocks are free for the next step.
    pub fn cancel(&mut self, seq: SeqId, events: &mut Vec<Event>) {
        if self.scheduler.remove(seq, &mut self.states) {
            events.push(Event::Finished { seq, reason: FinishReason::Cancelled });
        }
    }

    /// Tokens of a sequence so far and the length of its prompt, while the engine knows it.
    pub fn tokens(&self, seq: SeqId) -> Option<(&[Token], usize)> {
        self.scheduler.tokens(seq)
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// One step, read top to bottom. Each line consumes the line above it.
    ///
    /// A failed step ends the sequences it held, with the reason, and no others.
    pub fn step(&mut self, events: &mut Vec<Event>) {
        self.scheduler.plan(&mut self.states, &mut self.plan); // choose and reserve; no device
        if self.plan.spans.is_empty() {
            return;
        }
        match self.runner.run(&self.plan, &mut self.picks) {
            Ok(()) => self.settle(events),
            Err(error) => self.fail(&error, events),
        }
    }

    /// Judges every span and commits what is kept: the only place state becomes real.
    fn settle(&mut self, events: &mut Vec<Event>) {
        for (i, span) in self.plan.spans.iter().enumerate() {
            let (certain, picks) = (span.certain(), self.picks.of(i));
            let kept = match span.sample {
                Some(_) => {
                    let verdict = judge(certain, self.plan.guesses(span), picks);
                    self.scheduler.apply(span, verdict, picks, events)
                }
                None => self.scheduler.read(span),
            };
            self.states.commit(span.lease, kept.keep, certain);
        }
        self.scheduler.sweep(&mut self.states);
    }

    fn fail(&mut self, error: &EngineError, events: &mut Vec<Event>) {
        self.scheduler.fail(&self.plan, &error.to_string(), &mut self.states, events);
    }
}
