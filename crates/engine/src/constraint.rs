//! What an answer may say next, decided token by token.

use forerun_backend::op::Sample;
use forerun_base::Token;
use std::ops::Range;
use std::time::Duration;

/// What a constraint says of the next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Any token may come; the mask is untouched.
    Any,
    /// Those in the mask.
    Some,
}

/// A say in which tokens may come, for the length of one answer.
///
/// What it answers is a function of the tokens it took and did not give back, and of nothing else: that is what makes a
/// constrained answer the same with and without drafts.
pub trait Constraint: Send {
    /// Makes the mask of the present place ready, waiting at most `patience` for work that goes on elsewhere. While
    /// this is false the sequence sits out its steps, and nothing else is asked of the constraint.
    fn ready(&mut self, patience: Duration) -> bool {
        let _ = patience;
        true
    }

    /// Adds the tokens that may come next to a mask of zeros (bit `t % 32` of word `t / 32`). An error ends the answer.
    fn mask(&mut self, mask: &mut [u32]) -> Result<Allowed, String>;

    /// The same for a place that only a draft leads to. It may refuse, where telling would take long: a row that
    /// is not laid costs nothing but the draft.
    fn glimpse(&mut self, mask: &mut [u32]) -> Result<Allowed, String> {
        self.mask(mask)
    }

    /// Takes the token that came; false, and nothing changes, if it may not come.
    fn take(&mut self, token: Token) -> bool;

    /// Gives the last `count` tokens back, which were taken to look ahead.
    fn back(&mut self, count: usize);

    /// Adds up to `most` tokens that must come next whatever the model says. They become drafts that cost no draft.
    fn forced(&mut self, most: usize, tokens: &mut Vec<Token>);

    /// Whether the answer is whole and nothing may follow. False also where that is not known before the next
    /// [`Self::ready`].
    fn is_done(&mut self) -> bool;

    /// The same for a place that only a draft leads to.
    fn is_done_ahead(&mut self) -> bool {
        self.is_done()
    }

    /// Whether it is known if the answer is whole; otherwise that is asked again after the next [`Self::ready`].
    fn is_decided(&mut self) -> bool {
        true
    }
}

/// The masks of a plan's rows. Reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct Masks {
    words: Vec<u32>,
    /// Of each row that was laid: as [`forerun_backend::op::SampleRow::mask`].
    rows: Vec<u32>,
    width: usize,
}

impl Masks {
    /// Empties it and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.rows.clear();
    }

    /// Makes room for so many masks over a vocabulary.
    pub(crate) fn reserve(&mut self, rows: usize, vocabulary: usize) {
        self.words.reserve(rows * Sample::mask_words(vocabulary));
        self.rows.reserve(rows);
    }

    /// Rows laid.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// All masks, one after the other.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The mask of row number `at` of some rows, as a sample row names it. Empty rows are those of a sequence without
    /// a constraint; a constrained row without a mask would be sampled as if it had none, so it is an error of the
    /// caller.
    pub fn number(&self, rows: &Range<usize>, at: usize) -> u32 {
        assert!(rows.is_empty() || at < rows.len(), "a constrained row has a mask");
        rows.clone().nth(at).map_or(0, |row| self.rows[row])
    }

    /// Lays down what a constraint allows for the confirmed row.
    pub(crate) fn lay(
        &mut self,
        constraint: &mut dyn Constraint,
        vocabulary: usize,
    ) -> Result<(), String> {
        self.lay_as(vocabulary, |mask| constraint.mask(mask))
    }

    /// Lays down what a constraint allows after a draft.
    pub(crate) fn lay_ahead(
        &mut self,
        constraint: &mut dyn Constraint,
        vocabulary: usize,
    ) -> Result<(), String> {
        self.lay_as(vocabulary, |mask| constraint.glimpse(mask))
    }

    fn lay_as(
        &mut self,
        vocabulary: usize,
        ask: impl FnOnce(&mut [u32]) -> Result<Allowed, String>,
    ) -> Result<(), String> {
        self.width = Sample::mask_words(vocabulary);
        let first = self.words.len();
        self.words.resize(first + self.width, 0);
        let mask = &mut self.words[first..];
        let said = ask(mask).and_then(|allowed| {
            // Bits past the vocabulary are no tokens.
            if let (Some(last), rest @ 1..) = (mask.last_mut(), vocabulary % 32) {
                *last &= (1 << rest) - 1;
            }
            let none = allowed == Allowed::Some && mask.iter().all(|&word| word == 0);
            if none { Err("its grammar allows no token here".to_owned()) } else { Ok(allowed) }
        });
        match said {
            Ok(Allowed::Some) => self.rows.push((self.words.len() / self.width) as u32),
            Ok(Allowed::Any) => self.rows.push(0),
            Err(_) => {}
        }
        if said != Ok(Allowed::Some) {
            self.words.truncate(first);
        }
        said.map(|_| ())
    }

    /// Whether the row laid last may sample a token.
    fn last_allows(&self, token: Token) -> bool {
        let Some(&number @ 1..) = self.rows.last() else { return true };
        let at = (number as usize - 1) * self.width + token as usize / 32;
        self.words.get(at).is_some_and(|word| (word >> (token % 32)) & 1 == 1)
    }
}

/// Lays the masks of a confirmed row and of each draft after it, up to the first draft that could not be sampled or
/// need not be drafted; how many drafts remain. The constraint is left as it was.
pub(crate) fn walk(
    constraint: &mut dyn Constraint,
    drafts: &[Token],
    vocabulary: usize,
    masks: &mut Masks,
) -> Result<usize, String> {
    masks.lay(constraint, vocabulary)?;
    let (mut taken, mut kept) = (0, 0);
    for &draft in drafts {
        if !masks.last_allows(draft) || !constraint.take(draft) {
            break;
        }
        taken += 1;
        // The row before a last token samples it and ends the answer. A row that cannot be laid is no reason to fail:
        // nobody knows yet whether the model goes there.
        if constraint.is_done_ahead() || masks.lay_ahead(constraint, vocabulary).is_err() {
            break;
        }
        kept += 1;
    }
    constraint.back(taken);
    Ok(kept)
}

/// How many of some tokens may come, one after the other. The constraint is left as it was.
pub(crate) fn allowed(constraint: &mut dyn Constraint, tokens: &[Token]) -> usize {
    let mut count = 0;
    while count < tokens.len() && constraint.take(tokens[count]) {
        count += 1;
        if constraint.is_done_ahead() {
            break;
        }
    }
    constraint.back(count);
    count
}
