//! What speculation did for an answer, for people and for JSON.

use forerun::Receipt;
use serde::Serialize;

/// A receipt as JSON has it. Lists are by position in the round, up to the deepest used.
#[derive(Debug, Serialize)]
pub(crate) struct ReceiptReport {
    /// Why no drafts were made, or null.
    off: Option<&'static str>,
    rounds: u64,
    drafted: u64,
    accepted: u64,
    unchecked: u64,
    drafted_from_text: u64,
    rounds_with_host: u64,
    drafted_by_position: Vec<u64>,
    accepted_by_position: Vec<u64>,
    tokens_per_round: f64,
    /// Rounds by number of drafts, from 0.
    depth_histogram: Vec<u64>,
}

impl ReceiptReport {
    pub(crate) fn new(off: Option<&'static str>, receipt: &Receipt) -> Self {
        let used = |counts: &[u64]| {
            let len = counts.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
            counts[..len].to_vec()
        };
        let drafted_by_position = used(&receipt.drafted_at);
        let accepted_by_position = receipt.accepted_at[..drafted_by_position.len()].to_vec();
        Self {
            off,
            rounds: receipt.rounds,
            drafted: receipt.drafted,
            accepted: receipt.accepted,
            unchecked: receipt.unchecked,
            drafted_from_text: receipt.from_text,
            rounds_with_host: receipt.rounds_with_host,
            drafted_by_position,
            accepted_by_position,
            tokens_per_round: receipt.tokens_per_round(),
            depth_histogram: used(&receipt.depths),
        }
    }
}

/// The part of the stats line that speaks of drafts; empty when none were made.
pub(crate) fn line(receipt: &Receipt) -> String {
    let per_round = receipt.tokens_per_round();
    match (receipt.drafted, receipt.unchecked) {
        (0, 0) => String::new(),
        (0, taken) => format!(" · {taken} drafts unchecked, {per_round:.1} tok/round"),
        (drafted, _) => {
            let accepted = receipt.accepted;
            format!(" · {accepted} of {drafted} drafts accepted, {per_round:.1} tok/round")
        }
    }
}
