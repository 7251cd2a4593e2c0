//! What the operator and a request say about speculation.

use super::depth::MAX_DEPTH;

/// What happens to guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No guesses.
    Off,
    /// The model checks every guess: the text is exactly what it would be without.
    Verified,
    /// Guesses are taken as they are. Faster and lossy: the text is not what the model would say.
    Optimistic,
}

/// How many guesses a round holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As many as measured cost and acceptance make worthwhile, 0 included.
    Auto,
    /// As many as fit, up to this.
    Fixed(usize),
}

impl Depth {
    /// Guesses a round may hold at all.
    pub const MOST: usize = MAX_DEPTH;

    /// Guesses a round may hold.
    pub const fn max_drafts(self) -> usize {
        match self {
            // Deeper guesses are right too rarely to be worth their log.
            Self::Auto => 8,
            Self::Fixed(depth) => depth,
        }
    }
}

/// How an engine speculates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// What happens to guesses.
    pub mode: Mode,
    /// Most guesses in a round; sizes the log.
    pub max_drafts: usize,
    /// Guess with the model's MTP head, where it has one.
    pub mtp: bool,
    /// Guess from the text itself where a long run of tokens repeats.
    pub text: bool,
}

impl Speculation {
    /// No guesses, no memory for them.
    pub const OFF: Self = Self { mode: Mode::Off, max_drafts: 0, mtp: false, text: false };

    /// Checked guesses from the MTP head.
    pub const fn mtp(max_drafts: usize) -> Self {
        Self { mode: Mode::Verified, max_drafts, mtp: true, text: false }
    }

    /// Checked guesses from the text.
    pub const fn text(max_drafts: usize) -> Self {
        Self { mode: Mode::Verified, max_drafts, mtp: false, text: true }
    }
}
