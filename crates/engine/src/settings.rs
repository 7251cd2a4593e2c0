//! What an engine is built for: sizes of memory and of steps. None of it changes a token.

use crate::{CacheSettings, DraftVocabulary, EngineError, Speculation, SpeculationMode};
use forerun_backend::Budget;
use forerun_base::DType;
use forerun_model::{DrafterSpec, Limits, ModelSpec};
use std::time::Duration;

/// Rows of logits that a step keeps at least, so that scoring is not row by row.
const LOGIT_BYTES: usize = 32 << 20;

/// Sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Positions a sequence can reach.
    pub context: usize,
    /// Sequences that run or are retained at a time.
    pub sequences: usize,
    /// Rows in a step: the longest prefill chunk.
    pub prefill_chunk: usize,
    /// How drafts are made.
    pub speculation: Speculation,
    /// Element type of the key/value cache: F32, F16, BF16, or I8 for codes with scales.
    pub kv: DType,
    /// Time a step may take while others wait for its end: prompts are read in chunks that fit, as far as
    /// is known. Zero is no limit.
    pub step_budget: Duration,
    /// The most work that one submission to the device may hold.
    pub submission_budget: SubmissionBudget,
    /// What is kept for prompts to come.
    pub cache: CacheSettings,
}

/// A bound on one submission, so that no watchdog fires and a cancel is quick. What is larger is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmissionBudget {
    /// By the time it is estimated to take, at rates learned from earlier submissions.
    Time(Duration),
    /// By bytes and flops.
    Work(Budget),
}

impl Default for SubmissionBudget {
    fn default() -> Self {
        Self::Time(Duration::from_millis(50))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            context: 4096,
            sequences: 1,
            prefill_chunk: 512,
            speculation: Speculation::OFF,
            kv: DType::F16,
            step_budget: Duration::ZERO,
            submission_budget: SubmissionBudget::default(),
            cache: CacheSettings::default(),
        }
    }
}

impl Settings {
    /// A step budget for those who answer many: text still flows, and a cancel is quick.
    pub const SHARED_STEP: Duration = Duration::from_millis(100);

    /// The sizes as the model understands them.
    pub fn limits(&self, spec: &ModelSpec) -> Result<Limits, EngineError> {
        let bad = |what: &str| Err(EngineError::Settings(what.to_owned()));
        if self.context == 0 || self.sequences == 0 || self.prefill_chunk == 0 {
            return bad("context, sequences and prefill chunk must be at least 1");
        }
        // Positions, rows and cache places are 32-bit on the device.
        let places = self.context.saturating_add(forerun_model::KV_BLOCK);
        if places.saturating_mul(self.sequences) > u32::MAX as usize {
            return bad("context times sequences is beyond what a cache can address");
        }
        if !matches!(self.kv, DType::F32 | DType::F16 | DType::BF16 | DType::I8) {
            return bad("the key/value cache is F32, F16, BF16 or I8");
        }
        let rows = self.prefill_chunk.min(self.context.saturating_mul(self.sequences));
        let speculation = &self.speculation;
        speculation.vocabulary.check(spec.vocabulary)?;
        if let (DraftVocabulary::First(_), Some(DrafterSpec::Assistant(drafter))) =
            (speculation.vocabulary, &spec.drafter)
            && drafter.clusters.is_some()
        {
            return bad("no draft vocabulary for this drafter, which drafts by clusters of tokens");
        }
        // Only drafts that may be rejected need a log. A smaller chunk lowers the depth of
        // drafts, never fails.
        let log_rows = match speculation.mode {
            SpeculationMode::Verified => speculation.max_drafts.min(rows - 1),
            SpeculationMode::Off | SpeculationMode::Optimistic => 0,
        };
        let decode = self.sequences.saturating_mul(log_rows + 1).min(rows);
        let affordable = LOGIT_BYTES / (4 * spec.vocabulary.max(1));
        Ok(Limits {
            context: self.context,
            sequences: self.sequences,
            rows,
            sampled: decode.max(affordable.min(rows)),
            log_rows,
            kv: self.kv,
            mtp: speculation.mtp
                && speculation.mode != SpeculationMode::Off
                && spec.drafter.is_some()
                && rows > 1,
            window: spec.widest_window().unwrap_or(0),
        })
    }
}
