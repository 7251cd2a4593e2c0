//! From a trace that fails to the smallest one found that still does.

use crate::run::Models;
use crate::trace::{Action, Ask, EngineChoice, ModelChoice, Trace};
use std::time::{Duration, Instant};

/// Tries ever smaller traces until none of them fails, or time is up. The trace and its difference.
pub(crate) fn shrink(
    models: &mut Models,
    mut trace: Trace,
    mut difference: String,
    budget: Duration,
) -> (Trace, String) {
    let started = Instant::now();
    loop {
        let smaller = candidates(&trace).into_iter().find_map(|smaller| {
            if smaller == trace || started.elapsed() > budget {
                return None;
            }
            Some(smaller.clone()).zip(models.difference(&smaller))
        });
        match smaller {
            Some((found, why)) => (trace, difference) = (found, why),
            None => return (trace, difference),
        }
    }
}

/// Smaller traces, the boldest cuts first.
fn candidates(trace: &Trace) -> Vec<Trace> {
    let mut all = Vec::new();
    let count = trace.actions.len();
    let mut piece = count / 2;
    while piece > 0 {
        for from in (0..count).step_by(piece) {
            let mut actions = trace.actions.clone();
            actions.drain(from..(from + piece).min(count));
            all.push(Trace { actions, ..trace.clone() });
        }
        piece /= 2;
    }
    all.extend(engines(&trace.engine).into_iter().map(|engine| Trace { engine, ..trace.clone() }));
    if trace.model == ModelChoice::Bundled {
        all.push(Trace { model: ModelChoice::Golden("qwen3_5".into()), ..trace.clone() });
    }
    for at in 0..count {
        let with = |action: Action| {
            let mut actions = trace.actions.clone();
            actions[at] = action;
            Trace { actions, ..trace.clone() }
        };
        match &trace.actions[at] {
            Action::Ask { id, ask } => {
                let asked = |ask: Ask| with(Action::Ask { id: *id, ask: Box::new(ask) });
                all.extend(asks(ask).into_iter().map(asked));
            }
            Action::Step(steps @ 2..) => all.push(with(Action::Step(steps / 2))),
            _ => {}
        }
    }
    all
}

/// The engine with one thing less.
fn engines(engine: &EngineChoice) -> Vec<EngineChoice> {
    let less = |change: fn(&mut EngineChoice)| {
        let mut smaller = engine.clone();
        change(&mut smaller);
        smaller
    };
    vec![
        less(|e| (e.cache, e.disk, e.interval) = (0, 0, 0)),
        less(|e| e.drafts = 0),
        less(|e| e.disk = 0),
        less(|e| e.sequences = e.sequences.min(1)),
        less(|e| e.sequences = e.sequences.min(2)),
        less(|e| e.chunk = 512),
        less(|e| e.drafts = e.drafts.min(1)),
        less(|e| e.ngram = false),
        less(|e| e.head = false),
        less(|e| e.optimistic = false),
        less(|e| e.draft_vocabulary = 0),
        less(|e| e.interval = 0),
        less(|e| e.calibrate = false),
        less(|e| e.budget = 0),
        less(|e| e.cut = false),
        less(|e| e.threads = e.threads.min(1)),
        less(|e| e.kv = "f32".into()),
    ]
}

/// The request with one thing less.
fn asks(ask: &Ask) -> Vec<Ask> {
    let less = |change: &dyn Fn(&mut Ask)| {
        let mut smaller = ask.clone();
        change(&mut smaller);
        smaller
    };
    let plain = Ask {
        prompt: ask.prompt.clone(),
        max_tokens: ask.max_tokens,
        depth: ask.depth,
        ..Ask::default()
    };
    let half = ask.prompt.len().div_ceil(2);
    vec![
        plain,
        less(&|a| a.form = None),
        less(&|a| a.stops.clear()),
        less(&|a| a.logprobs = None),
        less(&|a| a.bias.clear()),
        less(&|a| (a.repetition, a.presence, a.frequency) = (None, 0.0, 0.0)),
        less(&|a| (a.top_k, a.top_p, a.min_p) = (0, None, 0.0)),
        less(&|a| a.temperature = 0.0),
        less(&|a| a.ends = false),
        less(&|a| a.priority = 0),
        less(&|a| a.marks.clear()),
        less(&|a| a.depth = None),
        less(&|a| a.prompt.truncate(half)),
        less(&|a| drop(a.prompt.drain(..a.prompt.len() - half))),
        less(&|a| a.prompt.truncate(a.prompt.len().max(2) - 1)),
        less(&|a| a.max_tokens = a.max_tokens.div_ceil(2)),
        less(&|a| a.max_tokens = a.max_tokens.max(2) - 1),
    ]
}
