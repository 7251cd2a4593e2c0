//! `forerun verify`: proves on the user's machine and model that speed changes nothing.
//!
//! The requests ([`case`]) are answered plainly once ([`baseline`]) and then again in every other
//! way ([`arm`]); [`compare`] holds token ids and the bits of logits against each other. Ctrl-C
//! ends the program at once: a proof that is not finished is none.

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
    let source = Source::open(&path, &args.model_options)?;
    let proof = Proof::find(args, &source)?;
    if args.json {
        terminal::show_json(&Report::new(args, &source, &proof))?;
    } else {
        terminal::aside(&format!("{} on {}", source.path, proof.device));
        terminal::show(&table::page(&proof))?;
    }
    conclude(&proof)
}

/// A difference is an error, so that scripts see it.
fn conclude(proof: &Proof) -> anyhow::Result<Outcome> {
    match proof.differing() {
        0 => Ok(Outcome::Done),
        n => bail!("{n} of {} arms differ from plain decoding", proof.compared().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::baseline::Baseline;
    use super::compare::compare;
    use super::proof::{ArmResult, Finding};
    use super::record::{DraftTokens, Record};
    use super::*;
    use forerun_engine::Settings;

    fn record(token: u32, row: u64) -> Record {
        let (name, tokens, rows) = ("greedy", vec![token], vec![row]);
        Record { name, tokens, ending: None, first_row: 4, rows, drafts: DraftTokens::default() }
    }

    /// One arm as it should be and one that found this.
    fn proof(found: Record) -> Proof {
        let arm = |found: Record| ArmResult {
            name: "arm".to_owned(),
            prefill_chunk: 1,
            finding: Finding::Compared {
                requests: 1,
                comparison: compare(&[record(7, 70)], &[found]),
                drafts: None,
            },
            seconds: 0.0,
        };
        Proof {
            device: String::new(),
            settings: Settings::default(),
            baseline: Baseline {
                cases: Vec::new(),
                answers: Vec::new(),
                turns: Vec::new(),
                turn_answers: Vec::new(),
                scores: Vec::new(),
            },
            results: vec![arm(record(7, 70)), arm(found)],
            seconds: 0.0,
        }
    }

    #[test]
    fn one_different_arm_spoils_the_proof_and_is_shown() {
        for (found, words) in [
            (record(8, 70), "token 0: expected 7, found 8"),
            (record(7, 71), "first logits difference at position 4"),
        ] {
            let proof = proof(found);
            let page = table::page(&proof);
            assert!(page.contains(words) && page.contains("1 of 2 arms differ"), "{page}");
            assert!(conclude(&proof).is_err());
        }
        let same = proof(record(7, 70));
        assert!(table::page(&same).contains("all 2 arms identical: 2 tokens, 2 rows"));
        assert_eq!(conclude(&same).ok(), Some(Outcome::Done));
    }
}
