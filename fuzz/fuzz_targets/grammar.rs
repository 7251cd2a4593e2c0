//! Any text as a grammar: it is refused, or followed, and drafts that lead nowhere change nothing.
//!
//! The first line of the input says what the rest is: `lark`, `regex`, `json`, or one text of a choice by line.
#![no_main]

use forerun_engine::Constraint;
use forerun_grammar::{GrammarSource, Grammars};
use forerun_text::Tokenizer;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use std::time::Duration;

const VOCABULARY: usize = 8192;

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
    let tokenizer = include_bytes!("../../models/tales-28m/tokenizer.json");
    let tokenizer = Tokenizer::from_bytes(tokenizer).expect("the bundled tokenizer");
    Grammars::new(&tokenizer, VOCABULARY, &[0, 2]).expect("the bundled vocabulary")
});

fn source(text: &str) -> Option<GrammarSource> {
    let (kind, rest) = text.split_once('\n')?;
    Some(match kind {
        "lark" => GrammarSource::Lark(rest.to_owned()),
        "regex" => GrammarSource::Regex(rest.to_owned()),
        "json" => GrammarSource::JsonSchema(serde_json::from_str(rest).ok()?),
        _ => GrammarSource::Choice(rest.lines().map(str::to_owned).collect()),
    })
}

fn mask(constraint: &mut dyn Constraint) -> Result<Vec<u32>, String> {
    let mut mask = vec![0; VOCABULARY.div_ceil(32)];
    constraint.mask(&mut mask).map(|_| mask)
}

/// An allowed token, another one each time.
fn token(mask: &[u32], turn: usize) -> Option<u32> {
    let allowed = |t: &u32| (mask[*t as usize / 32] >> (t % 32)) & 1 == 1;
    let all: Vec<u32> = (0..VOCABULARY as u32).filter(allowed).collect();
    (!all.is_empty()).then(|| all[(turn * 7919 + 13) % all.len()])
}

fuzz_target!(|text: &str| {
    let Some(source) = source(text) else { return };
    let Ok(mut straight) = GRAMMARS.compile(&source) else { return };
    let mut looking = GRAMMARS.compile(&source).expect("the same again");
    for turn in 0..24 {
        let known = mask(&mut *straight);
        let mut ahead = 0;
        for step in 0..turn % 4 {
            let Some(next) = mask(&mut *looking).ok().and_then(|m| token(&m, turn + 3 * step))
            else {
                break;
            };
            if !looking.take(next) {
                break;
            }
            ahead += 1;
        }
        looking.back(ahead);
        assert_eq!(mask(&mut *looking), known);
        let Some(next) = known.ok().and_then(|mask| token(&mask, turn)) else { return };
        assert!(straight.take(next) && looking.take(next));
        let minute = Duration::from_secs(60);
        assert!(straight.ready(minute) && looking.ready(minute));
        assert_eq!(straight.is_done(), looking.is_done());
        if straight.is_done() {
            return;
        }
    }
});
