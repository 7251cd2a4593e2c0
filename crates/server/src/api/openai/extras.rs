//! What chunks and choices tell besides text where a client asks for it: token ids, and usage so far.

use super::chat::add_usage;
use super::generation::UsageTold;
use crate::answer::{AnswerFinish, TokenUsage};
use crate::api::RequestFields;
use crate::error::ServerError;
use crate::wire::receipt::CompletionUsage;
use forerun::Token;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExtrasAsked {
    pub(super) ids: bool,
    pub(super) usage: UsageTold,
}

impl ExtrasAsked {
    pub(super) fn take(fields: &mut RequestFields, usage: UsageTold) -> Result<Self, ServerError> {
        Ok(Self { ids: fields.take("return_token_ids")?.unwrap_or(false), usage })
    }
}

/// What is known of all answers to a request.
pub(super) struct Extras {
    asked: ExtrasAsked,
    /// Answers to each prompt.
    per_prompt: usize,
    /// By answer: tokens that no chunk has told yet.
    fresh: Vec<Vec<Token>>,
    /// By answer.
    so_far: Vec<TokenUsage>,
    /// Of answers that are over, a prompt counted once.
    whole: TokenUsage,
}

impl Extras {
    pub(super) fn new(asked: ExtrasAsked, per_prompt: usize, answers: usize) -> Self {
        let (fresh, so_far) = (vec![Vec::new(); answers], vec![TokenUsage::default(); answers]);
        Self { asked, per_prompt, fresh, so_far, whole: TokenUsage::default() }
    }

    /// An answer has begun, with this much of its prompt.
    pub(super) fn start(&mut self, index: usize, usage: TokenUsage) {
        self.so_far[index] = usage;
    }

    pub(super) fn tokens(&mut self, index: usize, ids: Vec<Token>, reasoning: usize) {
        self.so_far[index].completion_tokens += ids.len();
        self.so_far[index].reasoning_tokens += reasoning;
        if self.asked.ids {
            self.fresh[index].extend(ids);
        }
    }

    pub(super) fn finish(&mut self, index: usize, finish: &AnswerFinish) {
        self.so_far[index] = finish.usage;
        add_usage(&mut self.whole, index % self.per_prompt, &finish.usage);
    }

    /// A prompt that got no answer.
    pub(super) fn read_only(&mut self, index: usize, prompt_tokens: usize) {
        self.so_far[index] = TokenUsage { prompt_tokens, ..TokenUsage::default() };
        add_usage(&mut self.whole, index % self.per_prompt, &self.so_far[index]);
    }

    /// The ids that an answer has got since they were last told, where they are asked for.
    pub(super) fn take_ids(&mut self, index: usize) -> Option<Vec<Token>> {
        self.asked.ids.then(|| std::mem::take(&mut self.fresh[index]))
    }

    /// Whether prompts are told as tokens.
    pub(super) const fn tells_ids(&self) -> bool {
        self.asked.ids
    }

    /// What a chunk says of usage: nothing, null, or that of its answer so far.
    pub(super) fn chunk_usage(&self, index: Option<usize>) -> Option<Option<CompletionUsage>> {
        match self.asked.usage {
            UsageTold::Never => None,
            UsageTold::AtEnd => Some(None),
            UsageTold::Always => Some(index.map(|index| self.so_far[index].into())),
        }
    }

    /// What the last chunk of a stream says, where it is asked for.
    pub(super) fn last_usage(&self) -> Option<CompletionUsage> {
        (self.asked.usage != UsageTold::Never).then(|| self.whole.into())
    }

    pub(super) fn whole(&self) -> TokenUsage {
        self.whole
    }
}
