//! What the prefix cache had of the latest requests, and why not more.

use crate::auth::Owner;
use crate::service::lock;
use forerun_base::Token;
use forerun_engine::{CacheReport, Miss};
use forerun_text::Tokenizer;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Requests that are remembered.
const REMEMBERED: usize = 128;
/// Tokens shown before the place where a prompt differs, and from it on.
const BEFORE: usize = 16;
const AFTER: usize = 8;

/// What the latest requests found in the cache, oldest first.
#[derive(Debug, Default)]
pub(crate) struct CacheTraces(Mutex<VecDeque<CacheTrace>>);

/// What one request found in the cache.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CacheTrace {
    #[serde(skip)]
    owner: Option<Owner>,
    request_id: String,
    prompt_tokens: usize,
    cached_tokens: usize,
    from_disk: usize,
    miss: Option<TraceMiss>,
}

/// Why no more was found.
#[derive(Clone, Debug, Serialize)]
struct TraceMiss {
    reason: &'static str,
    /// The first position that differs, or where what is known ends.
    at: usize,
    /// What the cache has there and what the prompt has.
    expected: Option<Spelled>,
    found: Option<Spelled>,
    /// The prompt around that place.
    before: String,
    after: String,
}

#[derive(Clone, Debug, Serialize)]
struct Spelled {
    token: Token,
    text: String,
}

impl CacheTraces {
    /// Remembers what a prompt found.
    pub(crate) fn note(
        &self,
        (owner, request_id): (Option<Owner>, &str),
        report: &CacheReport,
        prompt: &[Token],
        tokenizer: &Tokenizer,
    ) {
        let trace = CacheTrace {
            owner,
            request_id: request_id.to_owned(),
            prompt_tokens: report.prompt_tokens,
            cached_tokens: report.cached_tokens,
            from_disk: report.from_disk,
            miss: report.miss.map(|miss| TraceMiss::new(&miss, prompt, tokenizer)),
        };
        let mut traces = lock(&self.0);
        if traces.len() == REMEMBERED {
            traces.pop_front();
        }
        traces.push_back(trace);
    }

    /// All that are remembered, or those of one request.
    pub(crate) fn of(&self, request_id: Option<&str>) -> Vec<CacheTrace> {
        let wanted = |trace: &&CacheTrace| request_id.is_none_or(|id| trace.request_id == id);
        lock(&self.0).iter().filter(wanted).cloned().collect()
    }
}

impl CacheTrace {
    /// Whether it is of one of this owner's requests.
    pub(crate) fn is_of(&self, owner: Owner) -> bool {
        self.owner == Some(owner)
    }

    /// Leaves out what the cache has where the prompt differs.
    pub(crate) fn hide_expected(&mut self) {
        if let Some(miss) = &mut self.miss {
            miss.expected = None;
        }
    }
}

impl TraceMiss {
    fn new(miss: &Miss, prompt: &[Token], tokenizer: &Tokenizer) -> Self {
        let at = miss.at.min(prompt.len());
        let text = |tokens: &[Token]| tokenizer.decode(tokens, false).unwrap_or_default();
        let spelled = |token: Token| Spelled { token, text: text(&[token]) };
        Self {
            reason: miss.reason.as_str(),
            at: miss.at,
            expected: miss.expected.map(spelled),
            found: miss.found.map(spelled),
            before: text(&prompt[at.saturating_sub(BEFORE)..at]),
            after: text(&prompt[at..prompt.len().min(at + AFTER)]),
        }
    }
}
