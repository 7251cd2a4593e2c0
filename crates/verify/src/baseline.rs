//! The requests and the answers everything is held to: each alone, no drafts.

use crate::prompt::{TokenIdStream, VerifyPrompts};
use crate::record::AnswerRecord;
use crate::recording::RecordingEngine;
use crate::request::{self, SecondTurn, VerifyRequest};
use crate::{VerifiedModel, VerifyError, VerifyOptions};
use forerun_engine::Depth;

/// VerifyPrompts of second turns are none of the first.
const SECOND_TURN: u64 = 0x7475_726e;

/// Plain answers.
pub(crate) struct PlainAnswers {
    pub(crate) cases: Vec<VerifyRequest>,
    pub(crate) answers: Vec<AnswerRecord>,
    pub(crate) turns: Vec<SecondTurn>,
    /// Of the second turns, read cold.
    pub(crate) turn_answers: Vec<AnswerRecord>,
    /// Rows of the whole texts. Those of the answers are the rows they were sampled from.
    pub(crate) scores: Vec<AnswerRecord>,
}

/// The requests that need no answer to be made, and the context that all requests need.
pub(crate) struct OpeningRequests {
    cases: Vec<VerifyRequest>,
    pub(crate) context: usize,
}

impl OpeningRequests {
    pub(crate) fn new(
        options: &VerifyOptions,
        model: &VerifiedModel<'_>,
    ) -> Result<Self, VerifyError> {
        let vocabulary = model.spec.vocabulary;
        let prompts = VerifyPrompts::new(model.tokenizer, vocabulary, options.seed);
        let cases = request::openings(&prompts, vocabulary, options.tokens, options.seed);
        let longest = cases.iter().map(VerifyRequest::positions).max().unwrap_or(0);
        // A second turn adds to what the first came to.
        let context = longest.saturating_add(request::MORE).saturating_add(options.tokens);
        let most = model.spec.max_positions;
        if context > most {
            return Err(VerifyError::Context { tokens: options.tokens, context, most });
        }
        Ok(Self { cases, context })
    }
}

impl PlainAnswers {
    pub(crate) fn new(
        opening: OpeningRequests,
        engine: &mut RecordingEngine,
        seed: u64,
    ) -> Result<Self, VerifyError> {
        let plain = Depth::Fixed(0);
        let mut cases = opening.cases;
        let mut answers = engine.alone(&cases, plain)?;
        let early = request::early_stops(&cases[0], &answers[0].tokens);
        answers.extend(engine.alone(&early, plain)?);
        cases.extend(early);
        let mut ids = TokenIdStream::new(engine.vocabulary(), seed ^ SECOND_TURN);
        let turns = request::second_turns(&cases, &answers, &mut ids);
        let cold: Vec<VerifyRequest> = turns.iter().map(|turn| turn.cold.clone()).collect();
        let turn_answers = engine.alone(&cold, plain)?;
        let mut scores = engine.scored(&cases, &answers)?;
        for (score, answer) in scores.iter_mut().zip(&answers) {
            score.rows.truncate(answer.first_row);
            score.rows.extend(&answer.rows);
        }
        Ok(Self { cases, answers, turns, turn_answers, scores })
    }
}
