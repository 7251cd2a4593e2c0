//! The engine: requests in, tokens out, one step at a time.
//!
//! A step reads as a sentence ([`Engine::step`]): plan, run, accept, commit, apply. Planning and accepting
//! are pure; [`Runner`] is the only thing that touches a device; [`StateStore::commit`] is the only
//! moment at which tentative state becomes real.
#![forbid(unsafe_code)]

mod accept;
mod bounded;
mod busy;
mod cache;
mod constrain;
mod constraint;
mod copies;
mod draft;
mod draft_runner;
mod engine;
mod error;
mod finite;
mod history;
mod logprobs;
mod model_runner;
mod pace;
mod plan;
mod programs;
mod recover;
mod reopen;
mod request;
mod runner;
mod sampling;
mod scheduler;
mod score;
mod script;
mod sequence;
mod settings;
mod share;
mod state;
mod stats;
mod submissions;

pub use accept::{Verdict, accept};
pub use busy::{Busy, BusyTimes};
pub use cache::{
    CacheFile, CacheReport, CacheSalt, CacheSettings, CacheStats, CacheUse, DiskSettings,
    DiskStats, Miss, MissReason, StatePart, StateShape, TierStats,
};
pub use constraint::{Allowed, Constraint, Masks};
pub use draft::{
    Depth, DraftEntry, DraftPlan, DraftTokens, DraftVocabulary, ExpertCost, Receipt, Speculation,
    SpeculationMode,
};
pub use engine::Engine;
pub use error::{EngineError, RejectError};
pub use logprobs::{MAX_LOGPROBS, TokenLogprobs, log_probability};
pub use model_runner::{ModelRunner, Tap};
pub use plan::{SampleSpec, Span, StepPlan};
pub use recover::panic_text;
pub use reopen::Reload;
pub use request::{Event, FinishReason, Request, Watch, check_tokens};
pub use runner::{Follow, Recovery, Runner, SampledTokens, SpanTokens, StateCopies};
pub use sampling::Sampling;
pub use scheduler::Scheduler;
pub use score::{Reading, ReadingProgress, RowKind};
pub use script::ScriptedAcceptance;
pub use settings::{Settings, SubmissionBudget};
pub use state::{Admission, Lease, StateStore};
pub use stats::Stats;
