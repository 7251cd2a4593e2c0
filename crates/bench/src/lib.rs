//! Speed: with and without drafts side by side ([`compare`]), of each operation against what the machine could do
//! ([`roofline`]), and far into a context ([`long`]).
//!
//! Everything is checked first (`plan`), all weights are loaded (`engines`), arms take turns (`session`), and only what
//! was measured against its baseline is called a gain (`report`). Results are data, to be serialized; each also has its
//! tables for people and its CSV.
#![forbid(unsafe_code)]

mod arm;
mod chart;
mod comparison;
mod csv;
mod engines;
mod error;
mod long;
mod measure;
mod plan;
mod prompts;
mod report;
mod resident;
mod roofline;
mod session;
mod spread;
mod table;

pub use arm::{ArmDrafters, BenchArm};
pub use chart::chart_svg;
pub use comparison::{BenchComparison, compare};
pub use error::{BenchError, LoadError};
pub use long::{LongReport, long};
pub use prompts::BenchPrompt;
pub use report::BenchReport;
pub use roofline::{RooflineReport, roofline};

use forerun_backend::Backend;
use forerun_base::DType;
use forerun_devices::DeviceOptions;
use forerun_engine::{
    DraftVocabulary, Engine, ModelRunner, Sampling, ScriptedAcceptance, Settings, SubmissionBudget,
};
use forerun_model::ModelSpec;
use forerun_text::Tokenizer;

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Prompts to continue; without any, a mixed set of openings.
    pub prompts: Vec<BenchPrompt>,
    /// What is compared; without any, what suits the model.
    pub arms: Vec<BenchArm>,
    /// Length of each answer.
    pub tokens: usize,
    /// Repetitions.
    pub reps: usize,
    /// Random tokens to put before each prompt.
    pub contexts: Vec<usize>,
    /// Answers at a time.
    pub batch: Vec<usize>,
    /// Lengths of random prompts whose reading is timed.
    pub read: Vec<usize>,
    /// How answers are sampled.
    pub sampling: Sampling,
    /// The least gain that auto will be held to: its arms must be there.
    pub min_gain: Option<f64>,
    /// How many drafts are taken, where a script says so in place of the model: arms then give texts of their own.
    pub acceptance: Option<ScriptedAcceptance>,
    /// Tokens that the MTP head drafts.
    pub draft_vocabulary: DraftVocabulary,
    /// Context in tokens; `None` is what the longest measurement needs.
    pub context: Option<usize>,
    /// Longest piece of a prompt read in one step.
    pub prefill_chunk: usize,
    /// Element type of the key/value cache.
    pub kv: DType,
    /// Longest a submission to the device may take.
    pub submission_budget: SubmissionBudget,
    /// Of [`roofline`] and [`long`], which open their own.
    pub device: DeviceOptions,
}

/// The model that is measured.
#[derive(Clone, Copy)]
pub struct BenchModel<'a> {
    /// For the report.
    pub name: &'a str,
    /// The network.
    pub spec: &'a ModelSpec,
    /// Without one, prompts are random tokens.
    pub tokenizer: Option<&'a Tokenizer>,
}

/// Loads the model.
pub trait LoadModel {
    /// An engine on the caller's device.
    ///
    /// # Errors
    /// When the device or the model says so.
    fn engine(&mut self, settings: &Settings) -> Result<Engine<ModelRunner>, LoadError>;

    /// The model on this device, without an engine around it.
    ///
    /// # Errors
    /// When the device or the model says so.
    fn runner(
        &mut self,
        device: Box<dyn Backend>,
        settings: &Settings,
    ) -> Result<ModelRunner, LoadError>;
}

/// What the caller is told while measurements run.
#[derive(Clone, Copy, Debug)]
pub enum BenchEvent<'a> {
    /// A remark about the options.
    Note(&'a str),
    /// How far it has come; the last one is whole.
    Progress {
        /// Parts that are done.
        done: usize,
        /// All of them.
        total: usize,
        /// What comes next.
        doing: &'a str,
    },
}

/// The CPU, for what sets its figures beside the processor's.
fn open_measured(options: &BenchOptions) -> Result<Box<dyn Backend>, BenchError> {
    if options.device.device.is_gpu() {
        return Err(BenchError::NotTheCpu);
    }
    Ok(forerun_devices::open_cpu(&options.device)?)
}
