//! Answers, and what makes two of them differ.

use forerun_base::Token;
use forerun_engine::{FinishReason, TokenLogprobs};

/// What came of one request.
#[derive(Clone, Debug)]
pub(crate) struct ObservedAnswer {
    pub(crate) tokens: Vec<Token>,
    pub(crate) logprobs: Vec<Option<Box<TokenLogprobs>>>,
    pub(crate) text: String,
    pub(crate) reason: ObservedEnding,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObservedEnding {
    /// Still running.
    None,
    /// By the engine's word.
    Finished(FinishReason),
    /// Never began.
    Refused(String),
    /// By the trace: a cancel or a restart.
    Interrupted,
}

/// How an answer differs from the one given alone. One that was interrupted must be its beginning.
pub(crate) fn differs(found: &ObservedAnswer, alone: &ObservedAnswer) -> Option<String> {
    let interrupted = found.reason == ObservedEnding::Interrupted;
    for (i, token) in found.tokens.iter().enumerate() {
        match alone.tokens.get(i) {
            None => return Some(format!("token {i} is {token}; alone it ends before")),
            Some(other) if other != token => {
                return Some(format!("token {i} is {token}, alone {other}"));
            }
            _ => {}
        }
        if bits(&found.logprobs[i]) != bits(&alone.logprobs[i]) {
            return Some(format!("log-probabilities of token {i} have other bits than alone"));
        }
    }
    if interrupted {
        return None;
    }
    if found.tokens.len() != alone.tokens.len() {
        return Some(format!("{} tokens, alone {}", found.tokens.len(), alone.tokens.len()));
    }
    if found.reason != alone.reason {
        return Some(format!("ends with {:?}, alone with {:?}", found.reason, alone.reason));
    }
    (found.text != alone.text).then(|| format!("says {:?}, alone {:?}", found.text, alone.text))
}

fn bits(logprobs: &Option<Box<TokenLogprobs>>) -> Option<Vec<(Token, u32)>> {
    let told = logprobs.as_deref()?;
    let all = told.top.iter().copied().chain([(told.token, told.logprob)]);
    Some(all.map(|(token, logprob)| (token, logprob.to_bits())).collect())
}
