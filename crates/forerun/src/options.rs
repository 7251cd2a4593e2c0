//! How a model is opened. Nothing here changes a token, but for the precision of the KV cache and of activations, the
//! rope, and drafts that are accepted unverified.

use forerun_base::DType;
use forerun_devices::DeviceOptions;
use forerun_engine::{
    CacheSettings, Depth, DraftVocabulary, Settings, Speculation, SpeculationMode,
};
use forerun_model::{ModelSpec, RopeScale};
use std::path::PathBuf;

/// How a model is opened. Every field has a default.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to run, and with how many threads.
    pub device: DeviceOptions,
    /// Positions a sequence can reach, prompt and answer together; by default the model's own, at most
    /// [`Options::DEFAULT_CONTEXT`]. Sizes the KV cache.
    pub context: Option<usize>,
    /// Sequences that run at a time; further requests wait. Sizes the KV cache.
    pub sequences: usize,
    /// Most tokens of a prompt that one step reads.
    pub prefill_chunk: usize,
    /// Element type of the KV cache: F32, F16, BF16, or I8 for codes with scales.
    pub kv: DType,
    /// How drafts are made.
    pub drafting: Drafting,
    /// Bytes of host memory for the prefix cache, which keeps what prompts have in common; 0 turns it off.
    pub cache_bytes: u64,
    /// A checkpoint to take the drafter from; the model's own MTP head by default.
    pub drafter: Option<PathBuf>,
    /// Reach further than the model was made for.
    pub rope: Option<RopeScale>,
}

/// How drafts are made. Verified drafts change no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafting {
    /// Drafts per round.
    pub depth: Depth,
    /// What becomes of the drafts of an MTP head or a drafter.
    pub mtp: MtpUse,
    /// Draft from the text itself where a run of tokens repeats; needs no MTP head.
    pub ngram: bool,
    /// Tokens the MTP head drafts.
    pub vocabulary: DraftVocabulary,
}

/// What becomes of the drafts of an MTP head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtpUse {
    /// The model verifies them: the text is exactly the same.
    #[default]
    Verified,
    /// They are accepted unverified: faster and lossy.
    Optimistic,
    /// The head is not used.
    Off,
}

impl Default for Drafting {
    fn default() -> Self {
        let (mtp, vocabulary) = (MtpUse::default(), DraftVocabulary::Auto);
        Self { depth: Depth::Auto, mtp, ngram: true, vocabulary }
    }
}

impl Drafting {
    /// No drafts.
    pub const OFF: Self = Self {
        depth: Depth::Fixed(0),
        mtp: MtpUse::Off,
        ngram: false,
        vocabulary: DraftVocabulary::Auto,
    };

    /// The same as the engine has it.
    pub fn speculation(&self) -> Speculation {
        let max_drafts = self.depth.max_drafts();
        let (mtp, text) = (self.mtp != MtpUse::Off, self.ngram);
        if max_drafts == 0 || !(mtp || text) {
            return Speculation::OFF;
        }
        let (mode, text) = match self.mtp {
            // A repetition that is accepted unverified would repeat for ever.
            MtpUse::Optimistic => (SpeculationMode::Optimistic, false),
            MtpUse::Verified | MtpUse::Off => (SpeculationMode::Verified, text),
        };
        Speculation { mode, max_drafts, mtp, text, vocabulary: self.vocabulary }
    }
}

impl Default for Options {
    fn default() -> Self {
        let Settings { prefill_chunk, kv, .. } = Settings::default();
        Self {
            device: DeviceOptions::default(),
            context: None,
            sequences: 4,
            prefill_chunk,
            kv,
            drafting: Drafting::default(),
            cache_bytes: 0,
            drafter: None,
            rope: None,
        }
    }
}

impl Options {
    /// A default context is no longer than this: a KV cache is allocated whole.
    pub const DEFAULT_CONTEXT: usize = 8192;

    /// The context of a model where none is given.
    pub fn default_context(spec: &ModelSpec) -> usize {
        spec.max_positions.min(Self::DEFAULT_CONTEXT)
    }

    /// The sizes of an engine for a model.
    pub fn settings(&self, spec: &ModelSpec) -> Settings {
        let shared = self.sequences > 1;
        Settings {
            context: self.context.unwrap_or_else(|| Self::default_context(spec)),
            sequences: self.sequences,
            prefill_chunk: self.prefill_chunk,
            kv: self.kv,
            speculation: self.drafting.speculation(),
            step_budget: if shared {
                Settings::SHARED_STEP
            } else {
                Settings::default().step_budget
            },
            cache: CacheSettings { bytes: self.cache_bytes, ..CacheSettings::default() },
            ..Settings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optimistic_drafts_never_come_from_the_text() {
        let optimistic = Drafting { mtp: MtpUse::Optimistic, ..Drafting::default() };
        let speculation = optimistic.speculation();
        assert_eq!((speculation.mode, speculation.text), (SpeculationMode::Optimistic, false));
    }

    #[test]
    fn without_a_drafter_or_without_drafts_speculation_is_off() {
        let neither = Drafting { mtp: MtpUse::Off, ngram: false, ..Drafting::default() };
        for drafting in [Drafting::OFF, neither] {
            assert_eq!(drafting.speculation(), Speculation::OFF);
        }
    }
}
