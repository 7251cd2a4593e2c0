//! What is continued: what was typed, or a mixed set of openings with one of random tokens.

use crate::{BenchError, BenchModel, BenchOptions};
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

/// A prompt to measure with.
#[derive(Clone, Debug)]
pub struct BenchPrompt {
    /// For people and CSV.
    pub label: String,
    /// Its tokens.
    pub ids: Vec<Token>,
}

impl BenchPrompt {
    /// A text, labelled by its beginning.
    pub fn of_text(text: &str, ids: Vec<Token>) -> Self {
        Self { label: label(text), ids }
    }
}

/// The prompts to measure, checked before weights are read.
pub(crate) fn prompts(
    options: &BenchOptions,
    model: &BenchModel<'_>,
) -> Result<Vec<BenchPrompt>, BenchError> {
    let prompts = match &options.prompts[..] {
        [] => defaults(model)?,
        given => given.to_vec(),
    };
    for BenchPrompt { label, ids } in &prompts {
        if ids.is_empty() {
            return Err(BenchError::EmptyPrompt { label: label.clone() });
        }
        check_tokens(ids, model.spec.vocabulary)?;
    }
    Ok(prompts)
}

/// Without a tokenizer there is nothing but random tokens.
fn defaults(model: &BenchModel<'_>) -> Result<Vec<BenchPrompt>, BenchError> {
    let mut prompts = Vec::new();
    if let Some(tokenizer) = model.tokenizer {
        for text in OPENINGS {
            prompts.push(BenchPrompt::of_text(text, tokenizer.encode(text, true)?));
        }
    }
    let ids = random_tokens(RANDOM_TOKENS, model.spec.vocabulary);
    prompts.push(BenchPrompt { label: "random tokens".to_owned(), ids });
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
pub(crate) fn random_tokens(count: usize, vocabulary: usize) -> Vec<Token> {
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
