//! `forerun verify`: proves on the user's machine and model that speed changes nothing.
//!
//! The requests ([`case`]) are answered plainly once ([`baseline`]) and then again in every other way
//! ([`arm`]); [`compare`] holds token ids and the bits of logits against each other. Ctrl-C ends the
//! program at once: a proof that is not finished is none.

mod arm;
mod baseline;
mod case;
mod compare;
mod prompt;
mod proof;
mod record;
mod report;
mod table;
mod witness;

use crate::args::VerifyArgs;
use crate::exit::Outcome;
use crate::load::Source;
use crate::{bundled, terminal};
use anyhow::bail;
use proof::Proof;
use report::Report;

pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<Outcome> {
    let path = args.model.clone().map_or_else(bundled::find, Ok)?;
    let source = Source::open(&path)?;
    let proof = Proof::find(args, &source)?;
    if args.json {
        terminal::show_json(&Report::new(args, &source, &proof))?;
    } else {
        terminal::aside(&format!("{} on {}", source.path, proof.device));
        terminal::show(&table::page(&proof))?;
    }
    match proof.differing() {
        0 => Ok(Outcome::Done),
        n => bail!("{n} of {} arms differ from plain decoding", proof.compared().count()),
    }
}
