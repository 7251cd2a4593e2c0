//! What an answer cost: tokens, times, drafts.

use crate::answer::{self, AnswerFinish};
use serde::Serialize;
use std::time::Duration;

/// OpenAI's `usage`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CompletionUsage {
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) total_tokens: usize,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: usize,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: usize,
}

impl From<answer::TokenUsage> for CompletionUsage {
    fn from(usage: answer::TokenUsage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: usage.reasoning_tokens,
            },
        }
    }
}

/// The receipt of one answer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReceiptTimings {
    /// Until the request was first worked on.
    pub(crate) queue_ms: f64,
    /// From then to the first token.
    pub(crate) prompt_ms: f64,
    /// From the first token to the end.
    pub(crate) predicted_ms: f64,
    pub(crate) prompt_per_second: f64,
    pub(crate) predicted_per_second: f64,
    pub(crate) cached_tokens: usize,
    pub(crate) speculation: DraftReceipt,
    pub(crate) cache: CacheReceipt,
}

/// What the prefix cache had of the prompt.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CacheReceipt {
    pub(crate) cached_tokens: usize,
    pub(crate) from_disk: usize,
    /// Why no more was found; `/debug/cache` tells with text.
    pub(crate) miss: Option<CacheMissReceipt>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct CacheMissReceipt {
    pub(crate) reason: &'static str,
    /// The first position that differs, or where what is known ends.
    pub(crate) at: usize,
}

/// What drafting did. Lists are by position in the round, up to the deepest used.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DraftReceipt {
    pub(crate) rounds: u64,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
    pub(crate) unchecked: u64,
    pub(crate) drafted_from_text: u64,
    pub(crate) rounds_with_host: u64,
    pub(crate) drafted_at: Vec<u64>,
    pub(crate) accepted_at: Vec<u64>,
    /// Rounds by number of drafts, from 0.
    pub(crate) depths: Vec<u64>,
    pub(crate) tokens_per_round: f64,
}

impl From<&AnswerFinish> for ReceiptTimings {
    fn from(finish: &AnswerFinish) -> Self {
        let (times, usage) = (&finish.end.times, &finish.usage);
        let prompt = times.first_token.saturating_sub(times.started);
        let predicted = times.end.saturating_sub(times.first_token);
        let read = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
        Self {
            queue_ms: milliseconds(times.started),
            prompt_ms: milliseconds(prompt),
            predicted_ms: milliseconds(predicted),
            prompt_per_second: rate(read, prompt),
            // The first token belongs to the prompt's time.
            predicted_per_second: rate(usage.completion_tokens.saturating_sub(1), predicted),
            cached_tokens: usage.cached_tokens,
            speculation: DraftReceipt::from(&finish.end.receipt),
            cache: CacheReceipt::from(&finish.end.cached),
        }
    }
}

impl From<&forerun_engine::CacheReport> for CacheReceipt {
    fn from(report: &forerun_engine::CacheReport) -> Self {
        Self {
            cached_tokens: report.cached_tokens,
            from_disk: report.from_disk,
            miss: report
                .miss
                .map(|miss| CacheMissReceipt { reason: miss.reason.as_str(), at: miss.at }),
        }
    }
}

impl From<&forerun_engine::Receipt> for DraftReceipt {
    fn from(receipt: &forerun_engine::Receipt) -> Self {
        let used = |counts: &[u64]| counts.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        let positions = used(&receipt.drafted_at);
        Self {
            rounds: receipt.rounds,
            drafted: receipt.drafted,
            accepted: receipt.accepted,
            unchecked: receipt.unchecked,
            drafted_from_text: receipt.from_text,
            rounds_with_host: receipt.rounds_with_host,
            drafted_at: receipt.drafted_at[..positions].to_vec(),
            accepted_at: receipt.accepted_at[..positions].to_vec(),
            depths: receipt.depths[..used(&receipt.depths)].to_vec(),
            tokens_per_round: receipt.tokens_per_round(),
        }
    }
}

/// Milliseconds to the microsecond: more digits would be noise.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Tokens per second; 0 when there is nothing to divide.
fn rate(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if tokens == 0 || seconds <= 0.0 {
        0.0
    } else {
        (tokens as f64 / seconds * 100.0).round() / 100.0
    }
}
