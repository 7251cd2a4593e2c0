//! Options that size the engine. None of them changes a token, except the precision of the cache.

use clap::{Args, ValueEnum};
use forerun_base::DType;
use forerun_engine::SubmissionBudget;
use std::time::Duration;

#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Context in tokens: prompt and answer together
    ///
    /// Sizes the key/value cache. `run` and `inspect` take the model's own context, at most 8192;
    /// `score` takes what the text needs, `bench` what its longest measurement needs.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) ctx: Option<usize>,

    /// Longest piece of a prompt read in one step
    #[arg(long, value_name = "TOKENS", default_value = "512", value_parser = at_least_one)]
    pub(crate) prefill_chunk: usize,

    /// Time that one run of the device may take, in milliseconds; 0 is no limit
    ///
    /// What is estimated to take longer is cut, which changes no result. A smaller limit cancels sooner and leaves room
    /// to whatever else uses the device; on a GPU that draws the screen it must stay below the system's watchdog.
    #[arg(long, value_name = "MS", default_value_t = 50, allow_negative_numbers = true)]
    pub(crate) submission_ms: u32,

    /// Element type of the key/value cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(crate) kv: Kv,
}

impl EngineArgs {
    /// The most work that one submission may hold.
    pub(crate) fn submission_budget(&self) -> SubmissionBudget {
        SubmissionBudget::Time(Duration::from_millis(self.submission_ms.into()))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kv {
    F32,
    F16,
    Bf16,
    /// Codes of 8 bits with a scale for every 32: half the memory of f16, and long contexts are read faster
    I8,
}

impl Kv {
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            Self::I8 => DType::I8,
        }
    }
}

/// A count that cannot be zero.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("expected an integer of at least 1".to_owned()),
    }
}

/// A number of threads. More than this is a slip of the finger and would exhaust the system.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    at_least_one(text)
        .ok()
        .filter(|&n| n <= 1024)
        .ok_or_else(|| "expected an integer from 1 to 1024".to_owned())
}
