//! One conversation: its tokens, how it is sampled, when it ends.

use crate::history::History;
use crate::{FinishReason, Request, Sampling, Watch};
use forerun_base::{LeaseId, SeqId, Token};

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No lease yet.
    Waiting,
    /// In every plan.
    Running(LeaseId),
    /// Ended, its state kept for a continuation.
    Parked(LeaseId),
}

pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    /// Prompt and answer.
    pub(crate) tokens: Vec<Token>,
    pub(crate) prompt_len: usize,
    /// Length at which the answer ends.
    pub(crate) end: usize,
    pub(crate) standing: Standing,
    pub(crate) sampling: Sampling,
    pub(crate) history: History,
    pub(crate) park: bool,
    end_tokens: Vec<Token>,
    watch: Option<Watch>,
}

impl Sequence {
    /// A sequence for a checked request. Everything it will need is reserved here.
    pub(crate) fn new(id: SeqId, request: Request, context: usize, vocabulary: usize) -> Self {
        let prompt_len = request.prompt.len();
        let end = prompt_len.saturating_add(request.max_tokens).min(context);
        let mut tokens = request.prompt;
        tokens.reserve_exact(end - prompt_len);
        let history = History::new(&request.sampling, end.min(vocabulary));
        Self {
            id,
            tokens,
            prompt_len,
            end,
            standing: Standing::Waiting,
            sampling: request.sampling,
            history,
            park: request.park,
            end_tokens: request.end_tokens,
            watch: request.watch,
        }
    }

    /// Takes one decided token; the reason if it is the last.
    pub(crate) fn push(&mut self, token: Token) -> Option<FinishReason> {
        self.tokens.push(token);
        // The watch sees every token, also one that ends the answer for another reason.
        let watched = self.watch.as_mut().is_some_and(|watch| watch(token));
        if self.end_tokens.contains(&token) {
            Some(FinishReason::EndToken)
        } else if watched {
            Some(FinishReason::Watched)
        } else if self.tokens.len() >= self.end {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Counts tokens that just became part of the state.
    pub(crate) fn note_committed(&mut self, from: usize, to: usize) {
        for position in from..to {
            self.history.push(self.tokens[position], position >= self.prompt_len);
        }
    }
}
