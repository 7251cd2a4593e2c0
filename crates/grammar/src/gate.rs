//! Free thoughts first: anything may come until reasoning ends, then a grammar takes over.

use forerun_base::Token;
use forerun_engine::{Allowed, Constraint};
use std::sync::Arc;
use std::time::Duration;

/// The bytes of single tokens, as a text has them.
pub(crate) type Spelling = Arc<dyn Fn(Token) -> Vec<u8> + Send + Sync>;

/// What ends reasoning.
pub(crate) struct ReasoningEnd {
    /// Its canonical tokens.
    pub(crate) tokens: Vec<Token>,
    /// Its text, for those who spell it in other tokens.
    pub(crate) bytes: Vec<u8>,
    pub(crate) spelling: Spelling,
}

/// A constraint that opens when a mark has come.
pub(crate) struct ReasoningGate {
    pub(crate) mark: ReasoningEnd,
    /// Tokens after which the mark must come.
    pub(crate) budget: Option<usize>,
    /// What the answer must not end with before the gate opens; all ones where it may.
    pub(crate) unless_ended: Option<Arc<[u32]>>,
    pub(crate) inner: Option<Box<dyn Constraint>>,
    pub(crate) before: Vec<Token>,
    /// Tokens that came through the open gate; `None` while it is closed.
    pub(crate) behind: Option<usize>,
}

impl ReasoningGate {
    /// The token of the mark that must come now, if the budget is spent.
    fn due(&self) -> Option<&[Token]> {
        let late = self.before.len().checked_sub(self.budget?)?;
        self.mark.tokens.get(late..)
    }

    /// Whether what came ends with the mark, in whatever tokens.
    fn has_mark(&self) -> bool {
        let ReasoningEnd { tokens, bytes, spelling } = &self.mark;
        if self.before.ends_with(tokens) {
            return true;
        }
        // The newest token may end past the mark, so all of it is looked at, and before it as much as can belong to the
        // mark.
        let mut tail = Vec::new();
        let mut newest = 0;
        for (i, &token) in self.before.iter().rev().enumerate() {
            let piece = spelling(token);
            if i == 0 {
                newest = piece.len();
            }
            tail.splice(0..0, piece);
            if tail.len() >= newest + bytes.len() {
                break;
            }
        }
        tail.windows(bytes.len()).any(|part| part == bytes)
    }

    fn allows(&self, token: Token) -> bool {
        match (self.due(), &self.unless_ended) {
            (Some(due), _) => due.first() == Some(&token),
            (None, Some(mask)) => {
                mask.get(token as usize / 32).is_some_and(|word| (word >> (token % 32)) & 1 == 1)
            }
            (None, None) => true,
        }
    }
}

impl Constraint for ReasoningGate {
    fn ready(&mut self, timeout: Duration) -> bool {
        let open = self.behind.is_some();
        !open || self.inner.as_mut().is_none_or(|inner| inner.ready(timeout))
    }

    fn glimpse(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        match &mut self.inner {
            Some(inner) if self.behind.is_some() => inner.glimpse(mask),
            _ => self.mask(mask),
        }
    }

    fn is_decided(&mut self) -> bool {
        let open = self.behind.is_some();
        !open || self.inner.as_mut().is_none_or(|inner| inner.is_decided())
    }

    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        if self.behind.is_some() {
            return self.inner.as_mut().map_or(Ok(Allowed::Any), |inner| inner.mask(mask));
        }
        match (self.due(), &self.unless_ended) {
            (Some(due), _) => {
                let token = due.first().copied().ok_or("the mark that ends reasoning is spent")?;
                mask[token as usize / 32] |= 1 << (token % 32);
            }
            (None, Some(unless)) => {
                mask.iter_mut().zip(unless.iter()).for_each(|(to, from)| *to |= from);
            }
            (None, None) => return Ok(Allowed::Any),
        }
        Ok(Allowed::Some)
    }

    fn take(&mut self, token: Token) -> bool {
        if let Some(behind) = &mut self.behind {
            let taken = self.inner.as_mut().is_none_or(|inner| inner.take(token));
            *behind += usize::from(taken);
            return taken;
        }
        if !self.allows(token) {
            return false;
        }
        self.before.push(token);
        if self.has_mark() {
            self.behind = Some(0);
        }
        true
    }

    fn back(&mut self, count: usize) {
        let behind = self.behind.unwrap_or(0).min(count);
        if let Some(inner) = &mut self.inner {
            inner.back(behind);
        }
        self.behind = self.behind.map(|all| all - behind).filter(|_| count == behind);
        self.before.truncate(self.before.len().saturating_sub(count - behind));
    }

    fn forced(&mut self, most: usize, tokens: &mut Vec<Token>) {
        if self.behind.is_none() {
            tokens.extend(self.due().unwrap_or_default().iter().take(most));
        } else if let Some(inner) = &mut self.inner {
            inner.forced(most, tokens);
        }
    }

    fn is_done_ahead(&mut self) -> bool {
        let open = self.behind.is_some();
        open && self.inner.as_mut().is_some_and(|inner| inner.is_done_ahead())
    }

    fn is_done(&mut self) -> bool {
        let open = self.behind.is_some();
        open && self.inner.as_mut().is_some_and(|inner| inner.is_done())
    }
}
