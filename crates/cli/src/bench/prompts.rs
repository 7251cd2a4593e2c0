//! What is continued: what was typed, or a mixed set of openings with one of random tokens.

use crate::args::BenchArgs;
use crate::ids;
use crate::load::Source;
use anyhow::{Context, bail};
use forerun_base::Token;
use forerun_engine::check_tokens;

/// Story and dialogue, of which a small story model knows the most.
const OPENINGS: [&str; 5] = [
    "Once upon a time there was a little fox who lived beside the river.",
    "The old woman looked at the two children and said,",
    "It was a cold winter morning, and the snow lay deep upon the ground.",
    "\"Where are you going?\" asked the boy.",
    "<|im_start|>user\nI want to book a table for two tonight.<|im_end|>\n<|im_start|>assistant\n",
];
/// Length of the prompt that no drafter can know anything about.
const RANDOM_TOKENS: usize = 32;
const LABEL_CHARACTERS: usize = 40;

#[derive(Debug)]
pub(super) struct Prompt {
    /// For people and CSV.
    pub(super) label: String,
    pub(super) ids: Vec<Token>,
}

/// The prompts to measure, checked before weights are read.
pub(super) fn prompts(args: &BenchArgs, source: &Source) -> anyhow::Result<Vec<Prompt>> {
    let mut prompts = typed(args, source)?;
    if prompts.is_empty() {
        prompts = defaults(source)?;
    }
    for Prompt { label, ids } in &prompts {
        if ids.is_empty() {
            bail!("the prompt {label} is empty");
        }
        check_tokens(ids, source.blueprint.spec.vocabulary)?;
    }
    Ok(prompts)
}

fn typed(args: &BenchArgs, source: &Source) -> anyhow::Result<Vec<Prompt>> {
    let mut prompts = Vec::new();
    for text in &args.prompt {
        prompts.push(Prompt { label: label(text), ids: source.text.encode_raw(text)? });
    }
    for path in &args.file {
        let label = path.display().to_string();
        let text = forerun_base::read_regular_text(path).with_context(|| label.clone())?;
        prompts.push(Prompt { label, ids: source.text.encode_raw(&text)? });
    }
    for (i, given) in args.ids.iter().enumerate() {
        prompts.push(Prompt { label: format!("ids {}", i + 1), ids: ids::read(given)? });
    }
    Ok(prompts)
}

/// Without a tokenizer there is nothing but random tokens.
fn defaults(source: &Source) -> anyhow::Result<Vec<Prompt>> {
    let mut prompts = Vec::new();
    if let Some(tokenizer) = &source.text.tokenizer {
        for text in OPENINGS {
            prompts.push(Prompt { label: label(text), ids: tokenizer.encode(text, true)? });
        }
    }
    let ids = random_tokens(RANDOM_TOKENS, source.blueprint.spec.vocabulary);
    prompts.push(Prompt { label: "random tokens".to_owned(), ids });
    Ok(prompts)
}

/// The beginning of a text on one line.
fn label(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LABEL_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The same tokens on every machine, so that runs can be compared.
pub(super) fn random_tokens(count: usize, vocabulary: usize) -> Vec<Token> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        // Xorshift64: any generator would do that does not repeat within a context.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) % vocabulary.max(1) as u64
    };
    (0..count).map(|_| next() as Token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_stay_in_the_vocabulary_and_do_not_repeat_as_a_run() {
        let tokens = random_tokens(4096, 400);
        assert!(tokens.iter().all(|&t| t < 400));
        let mut runs: Vec<&[Token]> = tokens.windows(4).collect();
        runs.sort_unstable();
        assert!(runs.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_label_is_one_short_line() {
        assert_eq!(label("a\n b"), "a b");
        assert_eq!(label(&"ä".repeat(41)), format!("{}…", "ä".repeat(40)));
    }
}
