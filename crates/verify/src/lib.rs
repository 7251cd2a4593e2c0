//! Proves on a machine and a model that speed changes nothing.
//!
//! [`verify`] answers a set of requests (`request`) plainly once (`baseline`), and then again in every other way
//! (`arm`): with drafts, in other chunks, in one batch, continued, scored. `compare` holds token ids and the bits of
//! logits against each other. A [`Verification`] is only made when every arm has run: a proof that is not finished is
//! none.
//!
//! ```no_run
//! # use forerun_verify::{LoadEngine, VerifyError};
//! # fn example(spec: &forerun_model::ModelSpec, load: &mut LoadEngine<'_>) -> Result<(), VerifyError> {
//! use forerun_verify::{VerifiedModel, VerifyOptions, verify};
//!
//! let model = VerifiedModel { name: "qwen3.5", spec, tokenizer: None };
//! let verification = verify(&VerifyOptions::default(), &model, load, &mut |_| {})?;
//! print!("{}", verification.table());
//! verification.conclude()
//! # }
//! ```
#![forbid(unsafe_code)]

mod arm;
mod baseline;
mod compare;
mod prompt;
mod record;
mod recording;
mod report;
mod request;
mod table;
mod verification;

pub use report::VerifyReport;
pub use verification::Verification;

use forerun_base::DType;
use forerun_engine::{DraftVocabulary, Engine, EngineError, ModelRunner, RejectError, Settings};
use forerun_model::ModelSpec;
use forerun_text::Tokenizer;

/// How to verify.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Longest answer of a request.
    pub tokens: usize,
    /// Makes other prompts and keys the noise of sampling.
    pub seed: u64,
    /// Fewer arms: depths 1, 3 and 8, one small chunk.
    pub quick: bool,
    /// Element type of the key/value cache.
    pub kv: DType,
    /// Tokens that the MTP head drafts.
    pub draft_vocabulary: DraftVocabulary,
    /// Threads that the caller's devices have, for the report.
    pub threads: Option<usize>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            tokens: 48,
            seed: 1,
            quick: false,
            kv: DType::F16,
            draft_vocabulary: DraftVocabulary::Auto,
            threads: None,
        }
    }
}

/// The model that is verified.
#[derive(Clone, Copy)]
pub struct VerifiedModel<'a> {
    /// For the report.
    pub name: &'a str,
    /// The network.
    pub spec: &'a ModelSpec,
    /// Without one, prompts are token ids alone.
    pub tokenizer: Option<&'a Tokenizer>,
}

/// How far a verification has come.
#[derive(Clone, Copy, Debug)]
pub struct VerifyProgress<'a> {
    /// Arms that are done.
    pub done: usize,
    /// All of them.
    pub total: usize,
    /// What is being done.
    pub doing: &'a str,
}

/// Why the caller could not load the model.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// Makes an engine of the model for given settings; the one before has been dropped by then.
pub type LoadEngine<'a> = dyn FnMut(&Settings) -> Result<Engine<ModelRunner>, LoadError> + 'a;

/// Why nothing was proved, or what was disproved.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The requests do not fit the model.
    #[error(
        "--tokens {tokens} needs {context} positions; this model was made for {most}; give fewer"
    )]
    Context {
        /// Longest answer.
        tokens: usize,
        /// Positions it takes.
        context: usize,
        /// Positions there are.
        most: usize,
    },
    /// The model could not be loaded.
    #[error(transparent)]
    Load(LoadError),
    /// A request was refused.
    #[error(transparent)]
    Reject(#[from] RejectError),
    /// A text could not be scored.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device failed.
    #[error("the device failed at `{request}`: {why}")]
    Failed {
        /// Which request.
        request: &'static str,
        /// The device's words.
        why: String,
    },
    /// An engine went idle in the middle of an answer.
    #[error("`{request}`: an answer has no end")]
    NoEnd {
        /// Which request.
        request: &'static str,
    },
    /// A token was sampled from logits that nobody saw.
    #[error("`{request}` showed no logits at position {position}")]
    NoLogits {
        /// Which request.
        request: &'static str,
        /// Of the row.
        position: usize,
    },
    /// The promise is broken.
    #[error("{differing} of {arms} arms differ from plain decoding")]
    Differs {
        /// Arms that differ.
        differing: usize,
        /// Arms that were compared.
        arms: usize,
    },
}

/// Answers the requests in every way and compares. `watch` is told what is going on.
///
/// # Errors
/// When an arm cannot be run. A difference is none: see [`Verification::conclude`].
pub fn verify(
    options: &VerifyOptions,
    model: &VerifiedModel<'_>,
    load: &mut LoadEngine<'_>,
    watch: &mut dyn FnMut(VerifyProgress<'_>),
) -> Result<Verification, VerifyError> {
    Verification::run(options, model, load, watch)
}
