//! One answer under a compiled grammar, as the engine's thread holds it. The work is done elsewhere.

use crate::compiled::Compiled;
use crate::limits::{CAUTION, PATIENCE, SLOW};
use crate::pool::MaskPool;
use crate::walk::{Cancel, GrammarParser};
use crate::way::{NextTokens, PositionId, TokenPath};
use forerun_base::Token;
use forerun_engine::{Allowed, Constraint};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// What comes back from a thread: the walk, and what it learned of the place it was sent to.
type ParserResult = (Box<GrammarParser>, PositionId, Option<NextTokens>);

/// Where the walk is.
enum ParserHandle {
    Here(Box<GrammarParser>),
    Away(Receiver<ParserResult>),
}

/// A grammar and how far an answer has come in it.
pub(crate) struct GrammarConstraint {
    start: Arc<Compiled>,
    pool: MaskPool,
    walker: ParserHandle,
    cancel: Arc<Cancel>,
    /// All tokens taken, those of drafts included.
    tokens: Vec<Token>,
    way: TokenPath,
    /// Whether the latest mask took longer than one is waited for.
    slow: bool,
    /// Length of the text up to which nothing is asked about drafts.
    cautious: usize,
}

impl GrammarConstraint {
    pub(crate) fn new(start: Arc<Compiled>, pool: MaskPool) -> Self {
        let walk = GrammarParser::new(Arc::clone(&start));
        let (cancel, way) = (Arc::clone(&walk.cancel), TokenPath::new(Arc::clone(&start.first)));
        let walker = ParserHandle::Here(Box::new(walk));
        Self { start, pool, walker, cancel, tokens: Vec::new(), way, slow: false, cautious: 0 }
    }

    /// Takes what a thread sent back; false if it has not within the time.
    fn receive(&mut self, timeout: Option<Duration>) -> bool {
        let ParserHandle::Away(from) = &self.walker else { return true };
        let said = match timeout {
            Some(timeout) => from.recv_timeout(timeout),
            None => from.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match said {
            Ok((walk, place, learned)) => {
                self.slow = walk.took > PATIENCE;
                if learned.is_none() || self.slow {
                    self.cautious = self.tokens.len() + CAUTION;
                }
                if let Some(learned) = learned {
                    self.way.learn(place, Arc::new(learned));
                }
                self.walker = ParserHandle::Here(walk);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                // The thread is gone with the walk; a new one begins with the text.
                let walk = GrammarParser::new(Arc::clone(&self.start));
                self.cancel = Arc::clone(&walk.cancel);
                self.walker = ParserHandle::Here(Box::new(walk));
                true
            }
        }
    }

    /// Sends the walk to the present place.
    fn send(&mut self, confirmed: bool) {
        let (tell, from) = channel();
        let ParserHandle::Here(mut walk) =
            std::mem::replace(&mut self.walker, ParserHandle::Away(from))
        else {
            unreachable!("what is away is received first")
        };
        let (place, tokens, pool) = (self.way.place(), self.tokens.clone(), self.pool.clone());
        self.pool.run(Box::new(move || {
            let cancel = Arc::clone(&walk.cancel);
            let _lane = (walk.took > SLOW).then(|| pool.slow_lane(|| cancel.is_asked()));
            let learned = walk.learn(&tokens, confirmed);
            // Nobody may be left to hear it.
            let _ = tell.send((walk, place, learned));
        }));
    }

    /// What the grammar says here, if that is known within the time. A place that only a draft leads to may be
    /// declined.
    fn learn(&mut self, confirmed: bool, timeout: Option<Duration>) -> Option<&Arc<NextTokens>> {
        if self.way.here().is_none() && self.receive(timeout) && self.way.here().is_none() {
            if !confirmed && (!self.start.rolls_back || self.tokens.len() <= self.cautious) {
                return None;
            }
            self.send(confirmed);
            self.receive(timeout);
        }
        self.way.here()
    }

    /// What is said where an end token came: nothing follows, whatever the grammar says.
    fn has_ended(&self) -> bool {
        self.tokens.last().is_some_and(|token| self.start.ends.contains(token))
    }

    fn lay(learned: Option<&Arc<NextTokens>>, mask: &mut [u32]) -> Result<Allowed, String> {
        let learned = learned.ok_or("not known in time")?;
        let known = learned.mask.as_ref().map_err(String::clone)?;
        mask.iter_mut().zip(known).for_each(|(to, from)| *to |= *from);
        Ok(Allowed::Some)
    }
}

impl Drop for GrammarConstraint {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Constraint for GrammarConstraint {
    fn ready(&mut self, timeout: Duration) -> bool {
        if matches!(self.walker, ParserHandle::Here(_)) {
            self.way.settle();
        }
        self.has_ended() || self.learn(true, Some(timeout)).is_some()
    }

    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        if self.has_ended() {
            return Err("nothing may follow an end token".to_owned());
        }
        while self.learn(true, None).is_none() {}
        Self::lay(self.way.here(), mask)
    }

    fn glimpse(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        if self.has_ended() {
            return Err("nothing may follow an end token".to_owned());
        }
        Self::lay(self.learn(false, Some(PATIENCE)), mask)
    }

    fn take(&mut self, token: Token) -> bool {
        let allowed = !self.has_ended()
            && self.learn(false, Some(PATIENCE)).is_some_and(|here| here.allows(token));
        if allowed {
            self.way.step(token);
            self.tokens.push(token);
        }
        allowed
    }

    fn back(&mut self, count: usize) {
        self.way.back(count);
        self.tokens.truncate(self.tokens.len().saturating_sub(count));
    }

    fn forced(&mut self, most: usize, tokens: &mut Vec<Token>) {
        if let Some(here) = self.way.here() {
            tokens.extend(here.forced.iter().take(most));
        }
    }

    fn is_decided(&mut self) -> bool {
        self.has_ended() || self.way.here().is_some()
    }

    fn is_done(&mut self) -> bool {
        let timeout = if self.slow { Duration::ZERO } else { PATIENCE };
        self.has_ended() || self.learn(true, Some(timeout)).is_some_and(|here| here.done)
    }

    fn is_done_ahead(&mut self) -> bool {
        self.has_ended() || self.learn(false, Some(PATIENCE)).is_some_and(|here| here.done)
    }
}
