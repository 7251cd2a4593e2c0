//! One answer under a compiled grammar.

use crate::ahead::Ahead;
use crate::reason::reason;
use forerun_base::Token;
use forerun_engine::{Allowed, Constraint};
use llguidance::{Matcher, TokenParser};
use std::sync::Arc;

/// A grammar and how far an answer has come in it.
pub(crate) struct GrammarConstraint {
    /// The grammar at its start. It is copied whole for each answer, so that what one answer makes of it is not seen by
    /// another.
    start: Arc<TokenParser>,
    matcher: Matcher,
    taken: Vec<Token>,
    masks: Ahead,
}

impl GrammarConstraint {
    pub(crate) fn new(start: Arc<TokenParser>) -> Self {
        let matcher = Matcher::new(Ok(start.deep_clone()));
        Self { start, matcher, taken: Vec::new(), masks: Ahead::default() }
    }

    /// Starts over with the tokens taken. A matcher that met an error stays in it, also where the error lay on a way that
    /// was only looked at.
    fn replay(&mut self) {
        self.matcher = Matcher::new(Ok(self.start.deep_clone()));
        // What fails here fails again when it is asked.
        let _ = self.matcher.consume_tokens(&self.taken);
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        let known = self.masks.here();
        if known.is_empty() {
            let allowed = self.matcher.compute_mask_or_eos().map_err(|why| reason(&why))?;
            known.extend_from_slice(allowed.as_slice());
        }
        mask.iter_mut().zip(known).for_each(|(to, from)| *to |= *from);
        Ok(Allowed::Some)
    }

    fn take(&mut self, token: Token) -> bool {
        match self.matcher.try_consume_tokens(&[token]) {
            Ok(1..) => {
                self.masks.step(token);
                self.taken.push(token);
                true
            }
            Ok(0) => false,
            Err(_) => {
                self.replay();
                false
            }
        }
    }

    fn back(&mut self, count: usize) {
        self.masks.back(count);
        self.taken.truncate(self.taken.len().saturating_sub(count));
        if self.matcher.is_error() || self.matcher.rollback(count).is_err() {
            self.replay();
        }
    }

    fn forced(&mut self, most: usize, tokens: &mut Vec<Token>) {
        if !self.matcher.is_stopped() {
            tokens.extend(self.matcher.compute_ff_tokens().into_iter().take(most));
        }
    }

    fn is_done(&mut self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }
}
