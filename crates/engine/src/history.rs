//! What the committed part of a sequence says of each token, for penalties and biases.

use crate::Sampling;
use forerun_backend::op::HistoryEntry;
use forerun_base::Token;

/// Entries sorted by token. Empty unless the sampling asks for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    entries: Vec<HistoryEntry>,
    counting: bool,
}

impl History {
    /// A history with the request's biases and space for `capacity` distinct tokens.
    pub(crate) fn new(sampling: &Sampling, capacity: usize) -> Self {
        let counting = sampling.has_penalties();
        let capacity = sampling.logit_bias.len() + if counting { capacity } else { 0 };
        let mut history = Self { entries: Vec::with_capacity(capacity), counting };
        for &(token, bias) in &sampling.logit_bias {
            history.entry(token).bias = bias;
        }
        history
    }

    /// Counts a committed token.
    pub(crate) fn push(&mut self, token: Token, generated: bool) {
        if self.counting {
            let entry = self.entry(token);
            entry.seen = true;
            entry.generated += u32::from(generated);
        }
    }

    /// Entries it can ever hold.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    pub(crate) fn entries(&self) -> &[HistoryEntry] {
        &self.entries
    }

    fn entry(&mut self, token: Token) -> &mut HistoryEntry {
        let at = match self.entries.binary_search_by_key(&token, |e| e.token) {
            Ok(at) => at,
            Err(at) => {
                let new = HistoryEntry { token, seen: false, generated: 0, bias: 0.0 };
                self.entries.insert(at, new);
                at
            }
        };
        &mut self.entries[at]
    }
}
