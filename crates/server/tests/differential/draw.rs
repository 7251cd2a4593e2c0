//! Traces drawn at random: small sizes, awkward ones among them, and everything an engine can be asked at once.

use crate::trace::{Action, Ask, EngineChoice, GrammarForm, ModelChoice, Trace};
use forerun_base::Token;
use serde_json::json;

/// Hybrids first, which have the most state to get wrong.
const GOLDENS: [&str; 8] = [
    "qwen3_5",
    "qwen3_next",
    "qwen3_5_odd",
    "qwen3_5_moe",
    "mlx_qwen3_5_4bit",
    "llama",
    "gemma4_e",
    "qwen3_moe",
];
const FAMILIES: [&str; 5] = ["qwen3_5", "qwen3_next", "qwen3_5_moe", "llama", "gemma3_text"];
const KV: [&str; 4] = ["f16", "f32", "bf16", "i8"];
/// Below the vocabulary of every model here.
const TOKENS: u64 = 370;

/// SplitMix64.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `below`, exclusive.
    fn below(&mut self, below: u64) -> u64 {
        self.next() % below
    }

    /// Between both, inclusive.
    fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below((to - from + 1) as u64) as usize
    }

    /// Once in `n` times.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize].clone()
    }

    fn tokens(&mut self, count: usize) -> Vec<Token> {
        (0..count).map(|_| self.below(TOKENS) as Token).collect()
    }
}

/// Trace number `number` of a seed.
pub(crate) fn trace(seed: u64, number: u64) -> Trace {
    let mut dice = Dice::new(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    let model = match dice.below(16) {
        0 => ModelChoice::Bundled,
        1..=5 => ModelChoice::Tiny {
            family: dice.one_of(&FAMILIES).to_owned(),
            seed: dice.below(4),
            layers: dice.between(1, 5),
        },
        _ => ModelChoice::Golden(dice.one_of(&GOLDENS).to_owned()),
    };
    let engine = engine(&mut dice);
    let stems: Vec<Vec<Token>> = (0..3)
        .map(|_| {
            let len = dice.between(1, engine.context * 2 / 3);
            dice.tokens(len)
        })
        .collect();
    let count = dice.between(2, 9);
    let mut actions = Vec::new();
    for id in 0..count {
        let ask = Box::new(ask(&mut dice, &stems, engine.context));
        actions.push(Action::Ask { id, ask });
        match dice.below(8) {
            0 | 1 => actions.push(Action::Step(dice.between(1, 30))),
            2 => {
                actions.push(Action::Step(dice.between(1, 6)));
                actions.push(Action::Cancel(dice.between(0, id)));
            }
            3 if engine.disk > 0 || dice.once_in(6) => {
                actions.push(Action::Step(dice.between(1, 60)));
                actions.push(Action::Restart);
            }
            _ => {}
        }
    }
    Trace { model, engine, actions, planted: false }
}

fn engine(dice: &mut Dice) -> EngineChoice {
    let cache = if dice.once_in(3) { 0 } else { dice.one_of(&[64, 512, 4096, 65_536]) };
    EngineChoice {
        context: dice.one_of(&[65, 128, 200, 320]),
        sequences: dice.between(1, 6),
        chunk: dice.one_of(&[1, 2, 7, 16, 33, 64, 512]),
        kv: dice.one_of(&KV).to_owned(),
        drafts: if dice.once_in(6) { 0 } else { dice.between(1, 8) },
        optimistic: dice.once_in(12),
        head: !dice.once_in(4),
        ngram: !dice.once_in(3),
        draft_vocabulary: if dice.once_in(4) { dice.between(1, 370) } else { 0 },
        cache,
        interval: if dice.once_in(2) { dice.between(1, 100) } else { 0 },
        disk: if cache > 0 && dice.once_in(3) { dice.one_of(&[256, 16_384]) } else { 0 },
        calibrate: dice.once_in(3),
        budget: if dice.once_in(4) { 1 } else { 0 },
        threads: dice.between(1, 2),
        cut: dice.once_in(4),
    }
}

fn ask(dice: &mut Dice, stems: &[Vec<Token>], context: usize) -> Ask {
    let stem = dice.one_of(stems);
    let mut prompt = match dice.below(4) {
        // A run that repeats gives the text drafter something to find.
        0 => {
            let len = dice.between(1, 9);
            let part = dice.tokens(len);
            part.repeat(dice.between(2, 6))
        }
        1 => stem,
        _ => stem[..dice.between(1, stem.len())].to_vec(),
    };
    let own = if dice.once_in(3) { 0 } else { dice.between(1, 20) };
    prompt.extend(dice.tokens(own));
    // Now and then one that does not fit.
    if !dice.once_in(40) {
        prompt.truncate(context - 1);
    }
    let temperature = dice.one_of(&[0.0, 0.0, 0.3, 0.8, 1.0, 1.7, 1e-39]);
    let form = dice.once_in(4).then(|| form(dice));
    let (marks, len) = (dice.once_in(3), prompt.len());
    Ask {
        max_tokens: dice.between(1, 48),
        temperature,
        top_k: if dice.once_in(3) { dice.between(1, 60) as u32 } else { 0 },
        top_p: dice.once_in(3).then(|| dice.one_of(&[0.5, 0.9, 0.99])),
        min_p: if dice.once_in(4) { 0.05 } else { 0.0 },
        repetition: dice.once_in(4).then(|| dice.one_of(&[0.8, 1.1, 1.5])),
        presence: if dice.once_in(5) { dice.one_of(&[0.6, -0.4]) } else { 0.0 },
        frequency: if dice.once_in(5) { dice.one_of(&[0.5, -0.2]) } else { 0.0 },
        bias: if dice.once_in(5) {
            (0..dice.between(1, 5))
                .map(|i| (dice.below(70) as Token * 5 + i as Token, 3.0))
                .collect()
        } else {
            Vec::new()
        },
        seed: dice.below(1 << 40),
        ends: dice.once_in(2),
        stops: stops(dice),
        form,
        depth: if dice.once_in(3) { Some(dice.between(0, 8)) } else { None },
        priority: dice.between(0, 2) as i32 - 1,
        logprobs: dice.once_in(4).then(|| dice.between(0, 8)),
        uncached: dice.once_in(6),
        marks: if marks { vec![dice.between(1, len) as u32] } else { Vec::new() },
        prompt,
    }
}

/// Texts short enough to turn up in what random weights say.
fn stops(dice: &mut Dice) -> Vec<String> {
    if !dice.once_in(4) {
        return Vec::new();
    }
    let texts = ["e", "th", " a", "\u{fffd}", "qz", "er s", "on"];
    (0..dice.between(1, 3)).map(|_| dice.one_of(&texts).to_owned()).collect()
}

fn form(dice: &mut Dice) -> GrammarForm {
    match dice.below(6) {
        0 => GrammarForm::Choice(vec!["yes".into(), "no".into(), "yesterday at noon".into()]),
        1 => GrammarForm::Regex("[a-z]{3,9}( [0-9]{2}){1,4}".into()),
        2 => GrammarForm::Regex("-?(ab|cd)+e?".into()),
        3 => GrammarForm::Lark("start: WORD (\" \" WORD)*\nWORD: /[a-z]{1,4}/\n".into()),
        4 => GrammarForm::Json(json!({
            "type": "object", "required": ["place", "seats"], "additionalProperties": false,
            "properties": {"place": {"enum": ["in", "out"]}, "seats": {"type": "integer"}}
        })),
        _ => {
            GrammarForm::Json(json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2}))
        }
    }
}
