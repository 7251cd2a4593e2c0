//! What the operator and a request say about speculation.

use super::MAX_DEPTH;
use crate::EngineError;
use forerun_base::Token;

/// What happens to drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeculationMode {
    /// No drafts.
    Off,
    /// The model checks every draft: the text is exactly what it would be without.
    Verified,
    /// Drafts are taken as they are. Faster and lossy: the text is not what the model would say.
    Optimistic,
}

/// How many drafts a round holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As many as measured cost and acceptance make worthwhile, 0 included.
    Auto,
    /// As many as fit, up to this.
    Fixed(usize),
}

impl Depth {
    /// Drafts a round may hold at all.
    pub const MOST: usize = MAX_DEPTH;

    /// Drafts a round may hold.
    pub const fn max_drafts(self) -> usize {
        match self {
            // Deeper drafts are accepted too rarely to be worth their log.
            Self::Auto => 8,
            Self::Fixed(depth) => depth,
        }
    }
}

/// Which tokens the MTP head chooses its drafts from. Low ids are those of frequent tokens, and a token that
/// is never drafted is still sampled by the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftVocabulary {
    /// The lower half, at least 4096 and at most 32768, while nearly all of the latest text is made of them; else all.
    Auto,
    /// Every token.
    All,
    /// The first so many.
    First(usize),
}

impl DraftVocabulary {
    /// Bounds of the frequent tokens: with fewer, the head is cheap beside its block already; more save too little.
    const FREQUENT: [usize; 2] = [1 << 12, 1 << 15];
    /// Tokens of the latest text that are looked at.
    const LATEST: usize = 256;
    /// One token in so many may lie outside.
    const RARE: usize = 16;

    /// Refuses what is no part of a vocabulary.
    pub fn check(self, vocabulary: usize) -> Result<(), EngineError> {
        match self {
            Self::First(tokens) if tokens == 0 || tokens > vocabulary => {
                Err(EngineError::Settings(format!(
                    "a draft vocabulary of {tokens} tokens; this model has {vocabulary}: choose auto, all or \
                     a number from 1 to {vocabulary}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// How many tokens of a vocabulary it is after a text.
    pub fn tokens(self, vocabulary: usize, text: &[Token]) -> usize {
        match self {
            Self::All => vocabulary,
            Self::First(tokens) => tokens,
            Self::Auto => {
                let [least, most] = Self::FREQUENT;
                let frequent = (vocabulary / 2).clamp(least, most).min(vocabulary);
                let latest = &text[text.len().saturating_sub(Self::LATEST)..];
                let outside = latest.iter().filter(|&&t| t as usize >= frequent).count();
                if outside * Self::RARE > latest.len() { vocabulary } else { frequent }
            }
        }
    }
}

/// How an engine speculates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// What happens to drafts.
    pub mode: SpeculationMode,
    /// Most drafts in a round; sizes the log.
    pub max_drafts: usize,
    /// Draft with the model's MTP head, where it has one.
    pub mtp: bool,
    /// Draft from the text itself where a long run of tokens repeats.
    pub text: bool,
    /// Tokens the MTP head drafts.
    pub vocabulary: DraftVocabulary,
}

impl Speculation {
    /// No drafts, no memory for them.
    pub const OFF: Self = Self {
        mode: SpeculationMode::Off,
        max_drafts: 0,
        mtp: false,
        text: false,
        vocabulary: DraftVocabulary::Auto,
    };

    /// Checked drafts from the MTP head.
    pub const fn mtp(max_drafts: usize) -> Self {
        Self { mode: SpeculationMode::Verified, max_drafts, mtp: true, ..Self::OFF }
    }

    /// Checked n-gram drafts.
    pub const fn text(max_drafts: usize) -> Self {
        Self { mode: SpeculationMode::Verified, max_drafts, text: true, ..Self::OFF }
    }
}
