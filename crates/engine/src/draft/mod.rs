//! Drafting: drafts for the next step, from the model's own MTP head or from the text itself.
//!
//! A drafter's only product is tokens. Whether they are right is decided by [`crate::accept`] on the
//! model's own sampled tokens, so nothing here can change a text; it only decides how many drafts ride
//! along, and which.

mod calibrate;
mod cost;
mod depth;
mod ngram;
mod plan;
mod policy;
mod receipt;
mod schedule;

pub use plan::{DraftEntry, DraftPlan, DraftTokens};
pub use policy::{Depth, DraftVocabulary, Mode, Speculation};
pub use receipt::Receipt;

pub(crate) use cost::{BANDS, CostTable, band, blend};
pub(crate) use depth::{Acceptance, Usual};
pub(crate) use ngram::NgramIndex;
pub(crate) use schedule::DraftScratch;
