//! Why a benchmark cannot be run, or what it found wrong.

use forerun_devices::DeviceError;
use forerun_engine::{EngineError, RejectError};
use forerun_text::TextError;

/// Why the caller could not load the model.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// See the module's text.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "fields are named in the messages")]
pub enum BenchError {
    /// An arm is measured once.
    #[error("--arms names {arm} twice")]
    ArmTwice { arm: String },
    /// An arm drafts with a head that is not there.
    #[error("arm {arm}: the model has no MTP head and no drafter was given")]
    NoHead { arm: String },
    /// An engine that was to draft does not.
    #[error("arm {arm}: {why}")]
    ArmOff { arm: String, why: &'static str },
    /// A least gain without plain.
    #[error("a gain needs its baseline: add plain to --arms")]
    NoBaseline,
    /// A least gain without auto.
    #[error("--min-gain is about auto: add auto to --arms")]
    NoAuto,
    /// A prompt without tokens.
    #[error("the prompt {label} is empty")]
    EmptyPrompt { label: String },
    /// The given context is too small.
    #[error(
        "the longest measurement needs {reach} positions; give a larger --ctx, or smaller \
         --contexts, --tokens or --read"
    )]
    Context { reach: usize },
    /// The model's own context is too small.
    #[error(
        "the longest measurement needs {reach} positions; this model was made for {most}; give \
         smaller --contexts, --tokens or --read, or --ctx {reach} to go beyond anyway"
    )]
    BeyondModel { reach: usize, most: usize },
    /// The given context does not hold the long prompt.
    #[error("--long {tokens} needs {reach} positions; give a larger --ctx, or none")]
    LongContext { tokens: usize, reach: usize },
    /// More than one prompt to take apart.
    #[error("--roofline reads one prompt: give --read one length")]
    SeveralLengths,
    /// A figure of a GPU would stand beside the processor's best.
    #[error("this benchmark compares with what the CPU can do; give --device cpu")]
    NotTheCpu,
    /// All leases are taken.
    #[error("the engine has no room for {positions} positions")]
    DoesNotFit { positions: usize },
    /// Speed is worth nothing while answers differ.
    #[error(
        "arm {arm} gave other tokens than {reference} for the prompt `{prompt}` (context {context}, batch {batch}, \
         repetition {repetition})"
    )]
    OtherTokens {
        arm: String,
        reference: String,
        prompt: String,
        context: usize,
        batch: usize,
        repetition: usize,
    },
    /// Auto gained less than it should.
    #[error(
        "auto gained {gain:.3}× with the prompt `{prompt}` (context {context}, batch {batch}); \
         --min-gain asks for {least}"
    )]
    Gain { gain: f64, prompt: String, context: usize, batch: usize, least: f64 },
    /// There is no gain to hold to anything.
    #[error("--min-gain: the gain of auto could not be measured")]
    GainUnknown,
    /// A step failed.
    #[error("the device failed: {why}")]
    DeviceFailed { why: String },
    /// The model could not be loaded.
    #[error(transparent)]
    Load(LoadError),
    /// A device could not be opened or measured.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A request was refused.
    #[error(transparent)]
    Reject(#[from] RejectError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A prompt could not be encoded.
    #[error(transparent)]
    Text(#[from] TextError),
}
