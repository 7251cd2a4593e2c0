//! An engine whose device is a recording: texts say what is sampled and accepted, costs say how long it takes.

use crate::trace::{Costs, TracedText};
use forerun_base::DType;
use forerun_engine::{
    Busy, Depth, DraftPlan, DraftTokens, Engine, EngineError, Event, ExpertCost, Follow, Request,
    Runner, SampledTokens, Scheduler, Speculation, StateCopies, StateShape, StateStore, StepPlan,
};
use forerun_model::Limits;
use std::sync::Arc;
use std::time::Duration;

/// Deepest draft that was recorded.
pub(crate) const DEPTH: usize = 8;
const VOCABULARY: usize = 1 << 13;

/// Plays recorded texts, by the number of their sequence, at recorded costs.
pub(crate) struct Replay {
    costs: Arc<Costs>,
    /// By sequence; ids count from 0.
    texts: Vec<Arc<TracedText>>,
    busy: Busy,
    /// Seconds since the engine was made.
    clock: f64,
    turn: usize,
}

impl Runner for Replay {
    fn run(&mut self, plan: &StepPlan, sampled: &mut SampledTokens) -> Result<(), EngineError> {
        sampled.reset(plan);
        for (span, of) in plan.spans.iter().zip(&sampled.of_span) {
            // What is timed at load belongs to no sequence.
            let Some(text) = self.texts.get(span.seq.0 as usize) else { continue };
            for (i, token) in sampled.tokens[of.clone()].iter_mut().enumerate() {
                *token = text.token(span.start as usize + span.confirmed() + i);
            }
        }
        self.turn += 1;
        let seconds = self.costs.step(plan.spans.len(), plan.rows(), self.turn);
        self.busy.step += Duration::from_secs_f64(seconds);
        self.busy.steps += 1;
        self.clock += seconds;
        Ok(())
    }

    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        _follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        drafts.reset(plan);
        let mut passes = vec![0; plan.deepest()];
        for (i, entry) in plan.entries.iter().enumerate() {
            passes[..entry.depth].iter_mut().for_each(|entries| *entries += 1);
            let text = self.texts.get(entry.seq.0 as usize);
            let newest = entry.start as usize + entry.tokens.len();
            for k in 1..=entry.depth {
                let (token, accepted) =
                    text.map_or((0, 0), |text| (text.token(newest + k), text.accepted(newest)));
                drafts.push(i, if k <= accepted { token } else { token ^ 1 });
            }
        }
        // A round's own tokens are part of what a chain takes.
        let rows = plan.tokens.len().saturating_sub(plan.entries.len() * (DEPTH + 1));
        let seconds = self.costs.chain(&passes, rows, self.turn);
        self.busy.other += Duration::from_secs_f64(seconds);
        self.clock += seconds;
        Ok(passes.len())
    }

    fn take_busy(&mut self) -> Option<Busy> {
        Some(std::mem::take(&mut self.busy))
    }

    fn experts(&self) -> Option<ExpertCost> {
        self.costs.experts
    }

    fn shape(&self) -> StateShape {
        StateShape::default()
    }

    fn copies(&mut self) -> &mut dyn StateCopies {
        unreachable!("there is no cache")
    }
}

/// An engine for so many sequences, its costs timed at load.
pub(crate) fn engine(costs: &Arc<Costs>, sequences: usize) -> Engine<Replay> {
    let rows = 512;
    let limits = Limits {
        context: 512,
        sequences,
        rows,
        sampled: (sequences * (DEPTH + 1)).min(rows),
        log_rows: DEPTH,
        kv: DType::F16,
        mtp: true,
        window: 0,
    };
    let speculation = Speculation { text: true, ..Speculation::mtp(DEPTH) };
    let runner = Replay {
        costs: Arc::clone(costs),
        texts: Vec::new(),
        busy: Busy::default(),
        clock: 0.0,
        turn: 0,
    };
    let scheduler = Scheduler::new(limits, VOCABULARY, speculation);
    let mut engine = Engine::with_parts(scheduler, StateStore::new(&limits), runner);
    // Timed on the recording's clock; the host's only bounds it.
    engine.calibrate(Duration::from_secs(3600)).expect("a recording has no errors");
    engine
}

/// Seconds of decoding texts together, from when each has its first token to the last one's end.
pub(crate) fn seconds(engine: &mut Engine<Replay>, texts: &[Arc<TracedText>], depth: Depth) -> f64 {
    for text in texts {
        engine.runner().texts.push(Arc::clone(text));
        let request = Request::greedy(text.prompt.clone(), text.answer.len());
        engine.submit(Request { depth, ..request }).expect("accepted");
    }
    let (mut events, mut began, mut answering) = (Vec::new(), None, vec![]);
    while !engine.is_idle() {
        engine.step(&mut events);
        for event in events.drain(..) {
            if let Event::Token { seq, .. } = event
                && !answering.contains(&seq)
            {
                answering.push(seq);
            }
        }
        if began.is_none() && answering.len() == texts.len() {
            began = Some(engine.runner().clock);
        }
    }
    engine.runner().clock - began.expect("every text has an answer")
}
