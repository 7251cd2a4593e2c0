//! Records what the tests of draft depths replay: which drafts a model accepts, and what its steps cost here.
//!
//! ```text
//! cargo run --release -p forerun-engine --example draft_trace -- texts MODEL FILE
//! cargo run --release -p forerun-engine --example draft_trace -- costs MODEL FILE "device in words"
//! ```
//!
//! `texts` reads prompts (label, temperature and token ids, as `forerun tokenize` prints them) from FILE and writes
//! each with its answer and, for every position of the answer, how many of eight drafts by the MTP head the model
//! accepts there. Drafts depend on the text alone, so this is all that any sequence of depths can meet. `costs` writes
//! times of steps by sequences and rows, and of chains of draft passes by entries and depth, in microseconds.

use forerun_backend::Backend;
use forerun_backend_cpu::tuned;
use forerun_base::Token;
use forerun_engine::{
    Busy, Depth, DraftPlan, DraftTokens, Engine, EngineError, Event, Follow, ModelRunner, Request,
    Runner, SampledTokens, Sampling, Scheduler, Settings, Speculation, StateCopies, StateShape,
    StateStore, StepPlan,
};
use forerun_model::{Blueprint, Model};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Deepest draft that is recorded.
const DEPTH: usize = 8;
/// Tokens of a recorded answer.
const ANSWER: usize = 192;
/// Tokens of the prompts whose rounds are timed.
const PROMPT: usize = 24;
/// Sequences that are run together, the drafts that they share, and how often each number of drafts is timed.
const BATCHES: [(usize, &[usize], usize); 3] = [
    (1, &[0, 1, 2, 3, 4, 5, 6, 7, 8], 12),
    (4, &[0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 28, 32], 8),
    (16, &[0, 1, 2, 4, 8, 12, 16, 17, 24, 32, 33, 48], 6),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (file, recorded) = match args[..] {
        ["texts", model, file] => (file, texts(model, file)),
        ["costs", model, file, device] => (file, costs(model, device)),
        _ => panic!("usage: draft_trace texts MODEL FILE | costs MODEL FILE DEVICE"),
    };
    std::fs::write(file, recorded).expect("a file that can be written");
}

fn load(folder: &str, sequences: usize) -> ModelRunner {
    let blueprint = Blueprint::open(Path::new(folder)).expect("a model");
    let mut backend: Box<dyn Backend> = Box::new(tuned(None));
    let model = Model::load(&blueprint, &mut *backend, &mut |_| {}).expect("a model");
    let speculation = Speculation::mtp(DEPTH);
    let settings = Settings { context: 512, sequences, speculation, ..Settings::default() };
    ModelRunner::new(backend, model, &settings).expect("memory")
}

/// Tokens of an answer by step.
fn steps<R: Runner>(engine: &mut Engine<R>, request: Request, most: usize) -> Vec<Vec<Token>> {
    let seq = engine.submit(request).expect("accepted");
    let (mut steps, mut events) = (Vec::new(), Vec::new());
    while !engine.is_idle() && steps.len() < most {
        engine.step(&mut events);
        let tokens = events.drain(..).filter_map(|event| match event {
            Event::Token { token, .. } => Some(token),
            _ => None,
        });
        let tokens: Vec<Token> = tokens.collect();
        if !tokens.is_empty() {
            steps.push(tokens);
        }
    }
    engine.cancel(seq, &mut events);
    steps
}

fn texts(model: &str, file: &str) -> String {
    let mut engine = Engine::new(load(model, 1));
    let prompts = std::fs::read_to_string(file).expect("a file of prompts");
    let prompts: Value = serde_json::from_str(&prompts).expect("JSON");
    let mut lines = Vec::new();
    for text in prompts["texts"].as_array().expect("texts") {
        let ids = text["prompt"].as_array().expect("token ids").iter();
        let prompt: Vec<Token> = ids.map(|id| id.as_u64().expect("an id") as Token).collect();
        let temperature = text["temperature"].as_f64().unwrap_or(0.0) as f32;
        let request = |prompt, tokens, depth| Request {
            sampling: Sampling { temperature, seed: 1, ..Sampling::default() },
            depth: Depth::Fixed(depth),
            ..Request::greedy(prompt, tokens)
        };
        let answer = steps(&mut engine, request(prompt.clone(), ANSWER, 0), usize::MAX).concat();
        let accepted: Vec<usize> = (0..answer.len())
            .map(|newest| {
                let before = [&prompt[..], &answer[..newest]].concat();
                let steps = steps(&mut engine, request(before, DEPTH + 2, DEPTH), 2);
                assert_eq!(steps[0], [answer[newest]], "the answer is the same from anywhere");
                steps[1].len() - 1
            })
            .collect();
        eprintln!("{}: {:.2} accepted", text["label"], mean(&accepted));
        lines.push(json!({
            "label": text["label"],
            "temperature": text["temperature"],
            "prompt": prompt,
            "answer": answer,
            "accepted": accepted,
        }));
    }
    format!("{{\"model\": {},\n\"texts\": [\n{}\n]}}\n", json!(name(model)), joined(&lines))
}

fn mean(numbers: &[usize]) -> f64 {
    numbers.iter().sum::<usize>() as f64 / numbers.len().max(1) as f64
}

fn name(model: &str) -> String {
    Path::new(model).file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

fn joined(lines: &[Value]) -> String {
    lines.iter().map(Value::to_string).collect::<Vec<_>>().join(",\n")
}

/// Times by what was run, in microseconds.
type TimesByShape = BTreeMap<(usize, usize), Vec<u64>>;

/// A runner that writes down what it is asked and how long it was busy.
struct TimedRunner {
    inner: ModelRunner,
    /// What the engine has yet to hear.
    busy: Busy,
    sequences: usize,
    /// Steps by sequences and rows.
    steps: TimesByShape,
    /// Draft chains by entries and depth.
    chains: TimesByShape,
    /// The same where the head takes in a prompt on the way.
    after_prompts: TimesByShape,
}

impl TimedRunner {
    fn lap(&mut self) -> Busy {
        let busy = self.inner.take_busy().expect("a device with a clock");
        self.busy.step += busy.step;
        self.busy.steps += busy.steps;
        self.busy.other += busy.other;
        self.busy.submissions += busy.submissions;
        self.busy.times.add(&busy.times);
        self.busy.in_flight = busy.in_flight;
        busy
    }
}

impl Runner for TimedRunner {
    fn run(&mut self, plan: &StepPlan, sampled: &mut SampledTokens) -> Result<(), EngineError> {
        self.inner.run(plan, sampled)?;
        let micros = self.lap().step.as_micros() as u64;
        if plan.prompt_rows == 0 && plan.spans.len() == self.sequences {
            self.steps.entry((self.sequences, plan.rows())).or_default().push(micros);
        }
        Ok(())
    }

    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        let passes = self.inner.draft(plan, drafts, follow)?;
        let micros = self.lap().other.as_micros() as u64;
        let (entries, depth) = (plan.entries.len(), plan.deepest());
        if depth > 0 && entries == self.sequences && drafts.len() == entries * depth {
            let prompts = plan.tokens.len() == entries * PROMPT;
            let times = if prompts { &mut self.after_prompts } else { &mut self.chains };
            times.entry((entries, depth)).or_default().push(micros);
        }
        Ok(passes)
    }

    fn take_busy(&mut self) -> Option<Busy> {
        Some(std::mem::take(&mut self.busy))
    }

    fn shape(&self) -> StateShape {
        self.inner.shape()
    }

    fn copies(&mut self) -> &mut dyn StateCopies {
        self.inner.copies()
    }
}

fn costs(model: &str, device: &str) -> String {
    let most = BATCHES.iter().map(|&(sequences, ..)| sequences).max().unwrap_or(1);
    let inner = load(model, most);
    let (limits, speculation) = (*inner.limits(), inner.speculation());
    let vocabulary = inner.model().spec.vocabulary;
    let runner = TimedRunner {
        inner,
        busy: Busy::default(),
        sequences: 0,
        steps: TimesByShape::new(),
        chains: TimesByShape::new(),
        after_prompts: TimesByShape::new(),
    };
    let scheduler = Scheduler::new(limits, vocabulary, speculation);
    let mut engine = Engine::with_parts(scheduler, StateStore::new(&limits), runner);
    // Distinct tokens, so that a mixture of experts chooses as many as it would.
    let prompt: Vec<Token> =
        (0..PROMPT as u32).map(|i| (i * 7919 + 11) % vocabulary as u32).collect();
    for (sequences, drafts, times) in BATCHES {
        for time in 0..=times {
            // The first turn warms up.
            engine.runner().sequences = if time == 0 { 0 } else { sequences };
            for &drafts in drafts {
                run(&mut engine, &prompt, sequences, drafts);
            }
        }
    }
    let TimedRunner { steps, chains, after_prompts, .. } = engine.runner();
    let lines = |times: &TimesByShape, first: &str, second: &str| {
        let line = |(&(a, b), us): (&(usize, usize), &Vec<u64>)| {
            let us = fastest(us);
            format!("{{\"{first}\":{a},\"{second}\":{b},\"us\":{}}}", json!(us))
        };
        times.iter().map(line).collect::<Vec<_>>().join(",\n")
    };
    let heading = json!(format!("measured: {} on {device}", name(model)));
    format!(
        "{{\"device\": {heading},\n\"take_in_us\": {:.1},\n\"steps\": [\n{}\n],\n\"chains\": [\n{}\n]}}\n",
        take_in(chains, after_prompts),
        lines(steps, "sequences", "rows"),
        lines(chains, "entries", "depth"),
    )
}

/// What each further row costs that the head takes in: the median over depths, by the fastest times.
fn take_in(chains: &TimesByShape, after_prompts: &TimesByShape) -> f64 {
    let least = |us: &Vec<u64>| us.iter().copied().min().unwrap_or(0) as f64;
    let of = |(key, us): (&(usize, usize), &Vec<u64>)| {
        let more = least(us) - chains.get(key).map_or(0.0, least);
        more.max(0.0) / (key.0 * (PROMPT - 1)) as f64
    };
    let mut each: Vec<f64> = after_prompts.iter().map(of).collect();
    each.sort_by(f64::total_cmp);
    each.get(each.len() / 2).copied().unwrap_or(0.0)
}

/// The fastest quarter, three at least, in order.
fn fastest(us: &[u64]) -> Vec<u64> {
    let mut sorted = us.to_vec();
    sorted.sort_unstable();
    let limit = sorted[(us.len() / 4).clamp(2, 9).min(us.len() - 1)];
    us.iter().copied().filter(|&us| us <= limit).collect()
}

/// A few rounds of so many sequences that share so many drafts evenly.
fn run(engine: &mut Engine<TimedRunner>, prompt: &[Token], sequences: usize, drafts: usize) {
    for i in 0..sequences {
        let own = drafts / sequences + usize::from(i < drafts % sequences);
        let mut prompt = prompt.to_vec();
        prompt[0] = i as Token;
        let request = Request::greedy(prompt, 6 + 2 * own);
        engine.submit(Request { depth: Depth::Fixed(own), ..request }).expect("accepted");
    }
    let mut events = Vec::new();
    while !engine.is_idle() {
        engine.step(&mut events);
    }
}
