//! One answer under a compiled grammar.

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
    /// The mask of the present state, if it is known: it is asked for when a guess is made and again when it is checked.
    mask: Vec<u32>,
    known: bool,
}

impl GrammarConstraint {
    pub(crate) fn new(start: Arc<TokenParser>) -> Self {
        let matcher = Matcher::new(Ok(start.deep_clone()));
        Self { start, matcher, taken: Vec::new(), mask: Vec::new(), known: false }
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
        if !self.known {
            let allowed = self.matcher.compute_mask_or_eos().map_err(|why| reason(&why))?;
            self.mask.clear();
            self.mask.extend_from_slice(allowed.as_slice());
            self.known = true;
        }
        mask.iter_mut().zip(&self.mask).for_each(|(to, from)| *to |= from);
        Ok(Allowed::Some)
    }

    fn take(&mut self, token: Token) -> bool {
        match self.matcher.try_consume_tokens(&[token]) {
            Ok(1..) => {
                self.known = false;
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
        self.known &= count == 0;
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
