//! Options for speculative decoding. In verified mode none of them changes a token.

use clap::{Args, ValueEnum};
use forerun::{Depth, DraftVocabulary, Drafting, MtpUse};
use forerun_engine::Speculation;

#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct SpeculationArgs {
    /// Drafts per round: `auto` follows measured cost and acceptance, 0 turns drafting off
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = depth)]
    pub(crate) draft: Depth,

    /// What becomes of drafts by the model's own MTP head
    #[arg(long, value_enum, default_value_t = MtpChoice::Verified)]
    pub(crate) mtp: MtpChoice,

    /// Draft from the text itself where a run of tokens repeats; needs no MTP head
    #[arg(long, value_enum, default_value_t = Switch::On)]
    pub(crate) ngram: Switch,

    #[command(flatten)]
    pub(crate) vocabulary: DraftVocabularyArgs,
}

#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Speculation")]
pub(crate) struct DraftVocabularyArgs {
    /// Tokens the MTP head drafts: the first N of the vocabulary, which are the frequent ones
    ///
    /// A draft costs less, and a token outside is never drafted; the model samples from all tokens always. `auto` takes
    /// half of them, at least 4096 and at most 32768, while nearly all of the latest text is made of those.
    #[arg(long, value_name = "N|all|auto", default_value = "auto", value_parser = vocabulary)]
    pub(crate) draft_vocabulary: DraftVocabulary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MtpChoice {
    /// Checked by the model: the text is exactly the same, only sooner
    Verified,
    /// Taken unchecked: faster and lossy, the text is not what the model would say
    Optimistic,
    /// The head is not used
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

impl Default for SpeculationArgs {
    fn default() -> Self {
        let vocabulary = DraftVocabularyArgs { draft_vocabulary: DraftVocabulary::Auto };
        Self { draft: Depth::Auto, mtp: MtpChoice::Verified, ngram: Switch::On, vocabulary }
    }
}

impl SpeculationArgs {
    /// The same as the library has it.
    pub(crate) fn drafting(&self) -> Drafting {
        let mtp = match self.mtp {
            MtpChoice::Verified => MtpUse::Verified,
            MtpChoice::Optimistic => MtpUse::Optimistic,
            MtpChoice::Off => MtpUse::Off,
        };
        let (ngram, vocabulary) = (self.ngram == Switch::On, self.vocabulary.draft_vocabulary);
        Drafting { depth: self.draft, mtp, ngram, vocabulary }
    }

    /// The same as the engine has it.
    pub(crate) fn speculation(&self) -> Speculation {
        self.drafting().speculation()
    }
}

fn vocabulary(text: &str) -> Result<DraftVocabulary, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(DraftVocabulary::Auto),
        ("all", _) => Ok(DraftVocabulary::All),
        (_, Ok(tokens @ 1..)) => Ok(DraftVocabulary::First(tokens)),
        _ => Err("expected auto, all or an integer of at least 1".to_owned()),
    }
}

fn depth(text: &str) -> Result<Depth, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Depth::Auto),
        (_, Ok(depth)) if depth <= Depth::MOST => Ok(Depth::Fixed(depth)),
        _ => Err(format!("expected auto or an integer from 0 to {}", Depth::MOST)),
    }
}
