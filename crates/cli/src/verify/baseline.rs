//! The requests and the answers everything is held to: each alone, no drafts.

use super::case::{self, Case, Turn};
use super::prompt::{Ids, Prompts};
use super::record::Record;
use super::witness::Witness;
use crate::args::VerifyArgs;
use crate::load::Source;
use anyhow::bail;
use forerun_engine::Depth;

/// Prompts of second turns are none of the first.
const SECOND_TURN: u64 = 0x7475_726e;

/// Plain answers.
pub(super) struct Baseline {
    pub(super) cases: Vec<Case>,
    pub(super) answers: Vec<Record>,
    pub(super) turns: Vec<Turn>,
    /// Of the second turns, read cold.
    pub(super) turn_answers: Vec<Record>,
    /// Rows of the whole texts. Those of the answers are the rows they were sampled from.
    pub(super) scores: Vec<Record>,
}

/// The requests that need no answer to be made, and the context that all requests need.
pub(super) struct Opening {
    cases: Vec<Case>,
    pub(super) context: usize,
}

impl Opening {
    pub(super) fn new(args: &VerifyArgs, source: &Source) -> anyhow::Result<Self> {
        let vocabulary = source.blueprint.spec.vocabulary;
        let prompts = Prompts::new(&source.text, vocabulary, args.seed);
        let cases = case::openings(&prompts, vocabulary, args.tokens, args.seed);
        let longest = cases.iter().map(Case::positions).max().unwrap_or(0);
        // A second turn adds to what the first came to.
        let context = longest.saturating_add(case::MORE).saturating_add(args.tokens);
        let most = source.blueprint.spec.max_positions;
        if context > most {
            bail!(
                "--tokens {} needs {context} positions; this model was made for {most}; give fewer",
                args.tokens
            );
        }
        Ok(Self { cases, context })
    }
}

impl Baseline {
    pub(super) fn new(opening: Opening, witness: &mut Witness, seed: u64) -> anyhow::Result<Self> {
        let plain = Depth::Fixed(0);
        let mut cases = opening.cases;
        let mut answers = witness.alone(&cases, plain)?;
        let early = case::early_stops(&cases[0], &answers[0].tokens);
        answers.extend(witness.alone(&early, plain)?);
        cases.extend(early);
        let mut ids = Ids::new(witness.vocabulary(), seed ^ SECOND_TURN);
        let turns = case::second_turns(&cases, &answers, &mut ids);
        let cold: Vec<Case> = turns.iter().map(|turn| turn.cold.clone()).collect();
        let turn_answers = witness.alone(&cold, plain)?;
        let mut scores = witness.scored(&cases, &answers)?;
        for (score, answer) in scores.iter_mut().zip(&answers) {
            score.rows.truncate(answer.first_row);
            score.rows.extend(&answer.rows);
        }
        Ok(Self { cases, answers, turns, turn_answers, scores })
    }
}
