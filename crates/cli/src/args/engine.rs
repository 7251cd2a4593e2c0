//! Options that size the engine. None of them changes a token, except the precision of the cache.

use clap::{Args, ValueEnum};
use forerun::{DeviceName, free_host_memory};
use forerun_base::DType;
use forerun_engine::SubmissionBudget;
use std::time::Duration;

#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Context in tokens: prompt and answer together
    ///
    /// Sizes the key/value cache. `run`, `serve` and `inspect` take the model's own context, at most 8192 and
    /// what fits into memory; `score` takes what the text needs, `bench` what its longest measurement needs.
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) ctx: Option<usize>,

    /// Memory that weights, caches and work may take: 12GiB, 800MiB, or `any` [default: what is free]
    ///
    /// What is free counts within a container's limit. Without --ctx the context is shortened to what fits; a plan that
    /// does not fit is refused with the longest context that does.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<MemoryLimit>,

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
    /// Bytes that may be used on a device; `None` is any number, or what it tells once it is open.
    pub(crate) fn room(&self, device: DeviceName) -> Option<u64> {
        match self.memory {
            Some(MemoryLimit::Bytes(bytes)) => Some(bytes),
            Some(MemoryLimit::Any) => None,
            None => free_host_memory(device),
        }
    }

    /// The same beside models that take `others` of it. What is free is less already; a limit is for all together.
    pub(crate) fn room_beside(&self, device: DeviceName, others: u64) -> Option<u64> {
        let taken = if self.memory.is_some() { others } else { 0 };
        self.room(device).map(|room| room.saturating_sub(taken))
    }

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

/// How much memory may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    Bytes(u64),
    /// Whatever it takes.
    Any,
}

/// A size with its unit; a bare number could mean any.
fn memory(text: &str) -> Result<MemoryLimit, String> {
    if text == "any" {
        return Ok(MemoryLimit::Any);
    }
    let (number, unit) =
        text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let factor = match unit.to_ascii_lowercase().as_str() {
        "mib" | "m" => 1_u64 << 20,
        "gib" | "g" => 1 << 30,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err("expected any, or a size such as 12GiB or 800MiB".to_owned()),
    };
    match number.trim().parse::<f64>() {
        Ok(number) if number > 0.0 && number < 1e6 => {
            Ok(MemoryLimit::Bytes((number * factor as f64) as u64))
        }
        _ => Err("expected any, or a size such as 12GiB or 800MiB".to_owned()),
    }
}

/// A count that cannot be zero.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
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
