//! Drafting: drafts for the next step, from the model's own MTP head or from the text itself.
//!
//! A drafter's only product is tokens. Whether they are accepted is decided by [`crate::accept`] on the
//! model's own sampled tokens, so nothing here can change a text; it only decides how many drafts ride
//! along, and which.
//!
//! ```text
//! cost         what steps and draft passes take      calibrate at load, then every round
//! experts      what rows cost in a mixture           a prior for cost
//! acceptance   how likely drafts are accepted        every round, by sequence and by all
//! tuning       every constant of these three and of
//! decision     depths, a pure function of the above
//! schedule     who may draft, from where (ngram, head), what the decision means for the next plan
//! ```

mod acceptance;
mod calibrate;
mod cost;
mod decision;
mod experts;
mod ngram;
mod plan;
mod policy;
mod receipt;
mod schedule;
mod tuning;

pub use experts::ExpertCost;
pub use plan::{DraftEntry, DraftPlan, DraftTokens};
pub use policy::{Depth, DraftVocabulary, Speculation, SpeculationMode};
pub use receipt::Receipt;

pub(crate) use acceptance::AcceptanceBySource;
pub(crate) use cost::{BANDS, Price, RoundCosts, band};
pub(crate) use ngram::NgramIndex;
pub(crate) use schedule::DepthChooser;
pub(crate) use tuning::Tuning;

/// Deepest draft that is counted and priced.
pub(crate) const MAX_DEPTH: usize = 16;
