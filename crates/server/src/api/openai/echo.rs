//! A prompt told back, with what the model thought of its tokens: what programs that measure models ask for.

use super::completions::logprobs;
use crate::api::RequestFields;
use crate::error::ServerError;
use crate::models::{ModelUse, ScoredPrompt};
use crate::wire::completions::TextChoice;
use crate::wire::logprobs::{TextLogprobs, prompt_logprobs};
use forerun::{PromptInput, Token};
use forerun_engine::TokenLogprobs;
use forerun_text::Tokenizer;
use serde_json::json;

/// What a request wants to hear of its prompts.
#[derive(Clone, Copy, Debug)]
pub(super) struct EchoAsked {
    /// The text begins with the prompt.
    pub(super) text: bool,
    /// vLLM's list, with so many of the likeliest tokens.
    prompt_logprobs: Option<usize>,
    /// Prompts get no answers.
    pub(super) silent: bool,
}

/// A prompt that is told back.
pub(super) struct Echo {
    pub(super) tokens: Vec<Token>,
    /// Where the text begins with it.
    text: Option<String>,
    scored: Option<ScoredPrompt>,
    /// How many of the likeliest are told in the lists of `logprobs` and in `prompt_logprobs`.
    listed: Option<usize>,
    by_id: Option<usize>,
}

impl EchoAsked {
    /// Takes `echo`, `prompt_logprobs`, and a `max_tokens` of 0 beside one of them.
    pub(super) fn take(fields: &mut RequestFields) -> Result<Self, ServerError> {
        let text = fields.take("echo")?.unwrap_or(false);
        let prompt_logprobs = logprobs(fields, "prompt_logprobs")?;
        let wanted = text || prompt_logprobs.is_some();
        let silent = wanted && fields.take_only("max_tokens", &json!(0));
        Ok(Self { text, prompt_logprobs, silent })
    }

    /// Reads the prompts, where that is asked for; and the prompts for answers, in tokens where they were read.
    pub(super) async fn read(
        &self,
        model: &ModelUse,
        prompts: Vec<PromptInput>,
        logprobs: Option<usize>,
    ) -> Result<(Vec<Echo>, Vec<PromptInput>), ServerError> {
        if !self.text && self.prompt_logprobs.is_none() {
            return Ok((Vec::new(), prompts));
        }
        let listed = logprobs.filter(|_| self.text);
        let most = listed.max(self.prompt_logprobs);
        let texts: Vec<Option<String>> = prompts.iter().map(text_of).collect();
        let mut echoes = Vec::with_capacity(prompts.len());
        let mut place = most.map(|_| model.place()).transpose()?;
        for (tokens, text) in model.encode(prompts).await?.into_iter().zip(texts) {
            let text = self.text.then(|| text.map_or_else(|| decoded(model, &tokens), Ok));
            let text = text.transpose()?;
            let mut scored = None;
            if let (Some(most), Some(free)) = (most, place.take()) {
                let (read, back) = model.score(tokens.clone(), most, free).await?;
                (scored, place) = (Some(read), Some(back));
            }
            echoes.push(Echo { tokens, text, scored, listed, by_id: self.prompt_logprobs });
        }
        let prompts = echoes.iter().map(|echo| PromptInput::Tokens(echo.tokens.clone())).collect();
        Ok((echoes, prompts))
    }
}

/// The text that a prompt is told as: its own.
fn text_of(prompt: &PromptInput) -> Option<String> {
    match prompt {
        PromptInput::Text(text) => Some(text.clone()),
        PromptInput::Tokens(_) | PromptInput::Messages(_) => None,
    }
}

fn decoded(model: &ModelUse, tokens: &[Token]) -> Result<String, ServerError> {
    Ok(model.tokenizer.decode(tokens, false)?)
}

impl Echo {
    /// Adds the prompt to a choice. The character at which the answer's tokens go on.
    pub(super) fn tell(&self, tokenizer: &Tokenizer, choice: &mut TextChoice) -> usize {
        choice.text.extend(self.text.as_deref());
        let Some(scored) = &self.scored else { return 0 };
        choice.prompt_logprobs =
            self.by_id.map(|most| prompt_logprobs(tokenizer, &cut(&scored.told, most)));
        let (Some(most), Some(&first)) = (self.listed, scored.tokens.first()) else { return 0 };
        let lists = choice.logprobs.get_or_insert_with(TextLogprobs::default);
        let offset = lists.first(tokenizer, first);
        let told: Vec<TokenLogprobs> =
            cut(&scored.told, most).into_iter().map(|(told, _)| told).collect();
        lists.add(tokenizer, &told, offset)
    }
}

/// The same with fewer of the likeliest.
fn cut(told: &[(TokenLogprobs, usize)], most: usize) -> Vec<(TokenLogprobs, usize)> {
    let mut told = told.to_vec();
    told.iter_mut().for_each(|(told, _)| told.top.truncate(most));
    told
}
