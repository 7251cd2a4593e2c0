//! What the model thought of its tokens, in both of OpenAI's forms.

use forerun_base::Token;
use forerun_engine::TokenLogprobs;
use forerun_text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// As chat answers have it.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<TokenLogprob>,
    pub(crate) refusal: Option<Vec<TokenLogprob>>,
}

/// One token.
#[derive(Debug, Serialize)]
pub(crate) struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<Alternative>,
}

#[derive(Debug, Serialize)]
struct Alternative {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    pub(crate) fn new(tokenizer: &Tokenizer, tokens: &[TokenLogprobs]) -> Self {
        let entry = |told: &TokenLogprobs| {
            let (token, bytes) = spelled(tokenizer, told.token);
            let alternative = |&(token, logprob): &(Token, f32)| {
                let (token, bytes) = spelled(tokenizer, token);
                Alternative { token, logprob: finite(logprob), bytes }
            };
            let top_logprobs = told.top.iter().map(alternative).collect();
            TokenLogprob { token, logprob: finite(told.logprob), bytes, top_logprobs }
        };
        Self { content: tokens.iter().map(entry).collect(), refusal: None }
    }
}

/// As completions have it: lists side by side.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of a prompt, as in the next list.
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Adds the first token of a prompt, which nothing predicts. Where the next would begin.
    pub(crate) fn first(&mut self, tokenizer: &Tokenizer, token: Token) -> usize {
        let (token, _) = spelled(tokenizer, token);
        let offset = token.chars().count();
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(0);
        self.tokens.push(token);
        offset
    }

    /// Adds tokens; the first begins at character `offset` of the answer. Where the next would begin.
    pub(crate) fn add(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: &[TokenLogprobs],
        mut offset: usize,
    ) -> usize {
        for told in tokens {
            let (token, _) = spelled(tokenizer, told.token);
            // The token that came is always among them, also where none of the likeliest was requested.
            let own = (told.token, told.logprob);
            let top = told.top.iter().filter(|(token, _)| *token != told.token).chain([&own]);
            let top = top.map(|&(token, logprob)| {
                (spelled(tokenizer, token).0, Value::from(finite(logprob)))
            });
            self.top_logprobs.push(Some(top.collect()));
            self.token_logprobs.push(Some(finite(told.logprob)));
            self.text_offset.push(offset);
            offset += token.chars().count();
            self.tokens.push(token);
        }
        offset
    }
}

/// A prompt as vLLM tells it: nothing for the first token, then by token id what was read and the likeliest.
pub(crate) type PromptLogprobs = Vec<Option<Map<String, Value>>>;

/// Of each token but the first, with its rank.
pub(crate) fn prompt_logprobs(
    tokenizer: &Tokenizer,
    told: &[(TokenLogprobs, usize)],
) -> PromptLogprobs {
    let one = |token: Token, logprob: f32, rank: usize| {
        let decoded = spelled(tokenizer, token).0;
        let value = json!({"logprob": finite(logprob), "rank": rank, "decoded_token": decoded});
        (token.to_string(), value)
    };
    let position = |(told, rank): &(TokenLogprobs, usize)| {
        let own = one(told.token, told.logprob, *rank);
        let top = (1..).zip(&told.top).filter(|(_, top)| top.0 != told.token);
        Some(std::iter::once(own).chain(top.map(|(at, top)| one(top.0, top.1, at))).collect())
    };
    std::iter::once(None).chain(told.iter().map(position)).collect()
}

/// A token as text and as bytes; half a character has no text of its own.
fn spelled(tokenizer: &Tokenizer, token: Token) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

/// JSON has no infinity; OpenAI says this for tokens that cannot come.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
