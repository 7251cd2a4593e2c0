//! A panic in a step ends the requests of that step and nothing else. A device that is lost ends those that had state
//! on it.
//!
//! Whatever a step was doing, three things can be left half done: the sequences it worked on, the pool of leases and
//! blocks, and the prefix cache. The first are ended with the reason, the second is made anew of what the others
//! hold, the third is forgotten where it was being written. Everything else is written from scratch by each step.

use crate::scheduler::lease_of;
use crate::sequence::Standing;
use crate::{Engine, Event, FinishReason, Runner};
use forerun_base::SeqId;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a step is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Admit,
    /// Copies in what the cache has of new prompts.
    Start,
    Plan,
    Constrain,
    Run,
    Judge,
    Commit,
    Draft,
    Publish,
    Sweep,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Admit => "admitting requests",
            Self::Start => "reading the prefix cache",
            Self::Plan => "planning",
            Self::Constrain => "computing masks",
            Self::Run => "running the model",
            Self::Judge => "accepting tokens",
            Self::Commit => "committing state",
            Self::Draft => "drafting",
            Self::Publish => "writing the prefix cache",
            Self::Sweep => "releasing what ended",
        }
    }
}

/// Where a step stands, for whoever has to clean up behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepProgress {
    pub(crate) stage: Stage,
    /// A sequence that is worked on though no plan holds it.
    pub(crate) seq: Option<SeqId>,
    /// The stage that panics, and how often it is reached before.
    #[cfg(test)]
    pub(crate) fault: Option<(Stage, usize)>,
}

impl Default for StepProgress {
    fn default() -> Self {
        Self {
            stage: Stage::Admit,
            seq: None,
            #[cfg(test)]
            fault: None,
        }
    }
}

impl StepProgress {
    /// Goes on to a stage.
    pub(crate) fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        #[cfg(test)]
        if let Some((_, left)) = self.fault.as_mut().filter(|(at, _)| *at == stage) {
            if *left == 0 {
                self.fault = None;
                panic!("a fault was injected");
            }
            *left -= 1;
        }
    }
}

/// What a panic says.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

impl<R: Runner> Engine<R> {
    /// Runs a part of a step; if it panics, ends what it worked on and makes the rest whole again.
    pub(crate) fn contain(
        &mut self,
        events: &mut Vec<Event>,
        work: fn(&mut Self, &mut Vec<Event>),
    ) {
        let done = catch_unwind(AssertUnwindSafe(|| work(self, events)));
        if let Err(panic) = done {
            self.recover(panic_text(&*panic), events);
        }
    }

    fn recover(&mut self, what: &str, events: &mut Vec<Event>) {
        let why = format!("the engine panicked while {}: {what}", self.place.stage.name());
        let _ = catch_unwind(AssertUnwindSafe(|| self.recover_device(&why)));
        let _ = catch_unwind(AssertUnwindSafe(|| self.recover_cache()));
        let touched = self.touched();
        self.scheduler.sequences.retain_mut(|sequence| {
            let stays = !touched.contains(&sequence.id);
            // An answer that ended before the panic has its reason already.
            if !stays && !matches!(sequence.standing, Standing::Retained(_)) {
                let reason = FinishReason::Failed(why.clone());
                let receipt = Box::new(std::mem::take(&mut sequence.drafting.receipt));
                events.push(Event::Finished { seq: sequence.id, reason, receipt });
            }
            stays
        });
        let held: Vec<_> = self.scheduler.sequences.iter().filter_map(lease_of).collect();
        self.states.keep_only(&held);
        self.plan.clear();
        self.draft_plan.clear();
        self.place.seq = None;
    }

    /// Ends every sequence whose state went with a device that was lost. Those that wait had none, and copies in the
    /// prefix cache are the host's.
    pub(crate) fn end_lost(&mut self, events: &mut Vec<Event>) {
        let Some(why) = self.lost.take() else { return };
        let held = self.scheduler.sequences.iter().filter(|s| lease_of(s).is_some());
        for seq in held.map(|sequence| sequence.id).collect::<Vec<_>>() {
            if self.scheduler.is_running(seq) {
                let reason = FinishReason::Failed(why.clone());
                self.scheduler.end(seq, reason, &mut self.states, events);
            } else {
                // Its answer is over; a continuation finds that it is unknown and reads everything.
                self.scheduler.remove(seq, &mut self.states);
            }
        }
    }

    /// Sequences whose state or bookkeeping may be half done. Where none can be told from the plans, all that run;
    /// where none run, all that wait: a step that panics for the same reason again and again must not go on for ever.
    fn touched(&self) -> Vec<SeqId> {
        let planned = self.plan.spans.iter().map(|span| span.seq);
        let drafted = self.draft_plan.entries.iter().map(|entry| entry.seq);
        let known = |seq: &SeqId| self.scheduler.find(*seq).is_some();
        let named = planned.chain(drafted).chain(self.place.seq).filter(known);
        let touched: Vec<SeqId> = named.collect();
        if !touched.is_empty() {
            return touched;
        }
        let standing = |wanted: fn(&Standing) -> bool| {
            let sequences = self.scheduler.sequences.iter();
            sequences.filter(|s| wanted(&s.standing)).map(|s| s.id).collect::<Vec<_>>()
        };
        let running = standing(|standing| matches!(standing, Standing::Running(_)));
        if running.is_empty() {
            standing(|standing| *standing == Standing::Waiting)
        } else {
            running
        }
    }
}

#[cfg(test)]
mod tests;
