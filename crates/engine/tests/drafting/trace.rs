//! Recorded texts and costs. `cargo run --release -p forerun-engine --example draft_trace` makes them.

use forerun_base::Token;
use forerun_engine::ExpertCost;
use serde_json::Value;
use std::collections::BTreeMap;

/// A prompt, its answer, and how many drafts are accepted at each position of the answer.
#[derive(Clone, Debug)]
pub(crate) struct TracedText {
    pub(crate) label: String,
    pub(crate) prompt: Vec<Token>,
    pub(crate) answer: Vec<Token>,
    pub(crate) accepted: Vec<usize>,
}

impl TracedText {
    /// The token at a position of the whole.
    pub(crate) fn token(&self, position: usize) -> Token {
        let answer = position.checked_sub(self.prompt.len());
        answer.and_then(|at| self.answer.get(at)).copied().unwrap_or(0)
    }

    /// Drafts accepted behind the newest token, which stands at this position.
    pub(crate) fn accepted(&self, newest: usize) -> usize {
        let at = newest.checked_sub(self.prompt.len());
        at.and_then(|at| self.accepted.get(at)).copied().unwrap_or(0)
    }
}

fn number(value: &Value) -> usize {
    value.as_u64().expect("a number") as usize
}

fn list<T>(value: &Value, item: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().expect("a list").iter().map(item).collect()
}

/// The texts of a recording.
pub(crate) fn texts(json: &str) -> Vec<TracedText> {
    let recorded: Value = serde_json::from_str(json).expect("JSON");
    list(&recorded["texts"], |text| {
        let tokens = |name: &str| list(&text[name], |id| number(id) as Token);
        let label = text["label"].as_str().expect("a label");
        let label = format!("{label}, temperature {}", text["temperature"]);
        let accepted = list(&text["accepted"], number);
        TracedText { label, prompt: tokens("prompt"), answer: tokens("answer"), accepted }
    })
}

/// Times in seconds, in the order in which they were taken, by an index.
type Curve = BTreeMap<usize, Vec<f64>>;

/// What steps and draft chains take on a device.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) device: String,
    /// By sequences, then by rows. Those of no sequences stand for any number.
    steps: BTreeMap<usize, Curve>,
    /// The first pass of a chain by entries, and each further one.
    first_pass: Curve,
    next_pass: Curve,
    /// Of each row that the head takes in besides the one it drafts after.
    take_in: f64,
    /// The mixture that it runs, if it is one.
    pub(crate) experts: Option<ExpertCost>,
}

impl Costs {
    pub(crate) fn new(json: &str) -> Self {
        let recorded: Value = serde_json::from_str(json).expect("JSON");
        let curves = |name: &str, [first, second]: [&str; 2]| {
            let mut curves: BTreeMap<usize, Curve> = BTreeMap::new();
            for line in recorded[name].as_array().expect("a list") {
                let times = list(&line["us"], |us| us.as_f64().expect("microseconds") * 1e-6);
                curves
                    .entry(number(&line[first]))
                    .or_default()
                    .insert(number(&line[second]), times);
            }
            curves
        };
        let experts = recorded.get("experts").map(|mixture| ExpertCost {
            experts: number(&mixture["experts"]),
            top_k: number(&mixture["top_k"]),
            share: mixture["share"].as_f64().expect("a share") as f32,
        });
        let (first_pass, next_pass) = passes(&curves("chains", ["entries", "depth"]));
        Self {
            device: recorded["device"].as_str().expect("a device").to_owned(),
            steps: curves("steps", ["sequences", "rows"]),
            first_pass,
            next_pass,
            take_in: recorded["take_in_us"].as_f64().expect("microseconds") * 1e-6,
            experts,
        }
    }

    /// Whether so many sequences were recorded.
    pub(crate) fn knows(&self, sequences: usize) -> bool {
        self.steps.contains_key(&sequences) || self.steps.contains_key(&0)
    }

    /// A step of so many sequences and rows; `turn` chooses one of the times taken.
    pub(crate) fn step(&self, sequences: usize, rows: usize, turn: usize) -> f64 {
        let curve =
            self.steps.get(&0).or_else(|| self.steps.range(sequences..).next().map(|c| c.1));
        let curve = curve.unwrap_or_else(|| self.steps.values().next_back().expect("a curve"));
        let one = (1, &self.steps.values().next().expect("a curve")[&1]);
        at(curve, one, rows, turn)
    }

    /// A chain of passes of so many entries each, which takes in so many rows besides.
    pub(crate) fn chain(&self, entries: &[usize], rows: usize, turn: usize) -> f64 {
        let none = vec![0.0];
        let pass = |curve: &Curve, entries: usize| at(curve, (0, &none), entries, turn);
        let others = entries.iter().skip(1).map(|&entries| pass(&self.next_pass, entries));
        let first = entries.first().map_or(0.0, |&entries| pass(&self.first_pass, entries));
        first + others.sum::<f64>() + rows as f64 * self.take_in
    }
}

/// The first pass and a further one, by entries, from times of chains by entries and depth.
fn passes(chains: &BTreeMap<usize, Curve>) -> (Curve, Curve) {
    let first = chains.iter().map(|(&entries, chain)| (entries, chain[&1].clone()));
    let further = chains.iter().map(|(&entries, chain)| {
        let (&depth, last) = chain.iter().next_back().expect("a depth");
        let each = (median(last) - median(&chain[&1])) / (depth.max(2) - 1) as f64;
        (entries, vec![each.max(0.0)])
    });
    (first.collect(), further.collect())
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// A time off a curve, which begins with `first`: recorded, or on the line through its neighbours.
fn at(curve: &Curve, first: (usize, &Vec<f64>), x: usize, turn: usize) -> f64 {
    if let Some(times) = curve.get(&x) {
        return times[turn % times.len()];
    }
    let below = curve.range(..x).next_back().map_or(first, |(&x, times)| (x, times));
    let Some((&above, times)) = curve.range(x..).next() else {
        // As expensive as the last rows were.
        let (&x0, times) = curve.iter().nth_back(1).map_or((&first.0, first.1), |pair| pair);
        let each = (median(below.1) - median(times)) / (below.0 - x0).max(1) as f64;
        return median(below.1) + each.max(0.0) * (x - below.0) as f64;
    };
    let share = (x - below.0) as f64 / (above - below.0) as f64;
    let (from, to) = (median(below.1), median(times));
    let scatter = below.1[turn % below.1.len()] / from.max(f64::MIN_POSITIVE);
    (from + share * (to - from)) * if from > 0.0 { scatter } else { 1.0 }
}
