//! An engine whose every sampled row is recorded, and the ways to run requests on it.

use crate::VerifyError;
use crate::record::{AnswerRecord, DraftCounts, fingerprint};
use crate::request::{SecondTurn, VerifyRequest};
use forerun_base::{SeqId, Token};
use forerun_engine::{Depth, Engine, Event, FinishReason, ModelRunner, Receipt};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Fingerprints by sequence and position. A rejected draft leaves one that the true row replaces.
type Seen = HashMap<(SeqId, u32), u64>;

/// An engine and what was seen of its logits.
pub(crate) struct RecordingEngine {
    engine: Engine<ModelRunner>,
    seen: Arc<Mutex<Seen>>,
}

impl RecordingEngine {
    pub(crate) fn new(mut engine: Engine<ModelRunner>) -> Self {
        let seen = Arc::new(Mutex::new(Seen::new()));
        let tapped = Arc::clone(&seen);
        engine.runner().set_tap(Some(Box::new(move |seq, position, row| {
            lock(&tapped).insert((seq, position), fingerprint(row));
        })));
        Self { engine, seen }
    }

    pub(crate) fn device(&mut self) -> String {
        self.engine.runner().device()
    }

    pub(crate) fn vocabulary(&mut self) -> usize {
        self.engine.runner().model().spec.vocabulary
    }

    /// Each request alone, one after the other.
    pub(crate) fn alone(
        &mut self,
        cases: &[VerifyRequest],
        depth: Depth,
    ) -> Result<Vec<AnswerRecord>, VerifyError> {
        let one = |case: &VerifyRequest| {
            let seq = self.engine.submit(case.request(depth))?;
            let events = self.finish();
            self.record(case, seq, &events)
        };
        cases.iter().map(one).collect()
    }

    /// All requests together, of every depth; the later ones join while the earlier ones are under
    /// way, some in the middle of a prompt.
    pub(crate) fn together(
        &mut self,
        cases: &[VerifyRequest],
    ) -> Result<Vec<AnswerRecord>, VerifyError> {
        let mut events = Vec::new();
        let mut ours = Vec::new();
        for (i, case) in cases.iter().enumerate() {
            let depth = if i % 3 == 0 { Depth::Auto } else { Depth::Fixed(i % 9) };
            ours.push(self.engine.submit(case.request(depth))?);
            (0..=i % 4).for_each(|_| self.engine.step(&mut events));
        }
        events.append(&mut self.finish());
        let each = cases.iter().zip(ours);
        each.map(|(case, seq)| self.record(case, seq, &events)).collect()
    }

    /// Second turns, each on the state its first turn left behind.
    pub(crate) fn continued(
        &mut self,
        turns: &[SecondTurn],
        depth: Depth,
    ) -> Result<Vec<AnswerRecord>, VerifyError> {
        let mut records = Vec::new();
        for turn in turns {
            let mut first = turn.first.request(depth);
            first.retain = true;
            let seq = self.engine.submit(first)?;
            self.finish();
            let mut second = turn.cold.request(depth);
            second.prompt.clone_from(&turn.more);
            self.engine.resume(seq, second)?;
            let events = self.finish();
            records.push(self.record(&turn.cold, seq, &events)?);
        }
        Ok(records)
    }

    /// The rows of whole texts, each a prompt and its answer, without the row after the last token.
    pub(crate) fn scored(
        &mut self,
        cases: &[VerifyRequest],
        answers: &[AnswerRecord],
    ) -> Result<Vec<AnswerRecord>, VerifyError> {
        let one = |(case, answer): (&VerifyRequest, &AnswerRecord)| {
            let mut text: Vec<Token> = [&case.prompt[..], &answer.tokens].concat();
            text.pop();
            let mut rows = Vec::with_capacity(text.len());
            self.engine.score(&text, &mut |row| rows.push(fingerprint(row)))?;
            Ok(AnswerRecord {
                name: case.name,
                tokens: Vec::new(),
                ending: None,
                first_row: 0,
                rows,
                drafts: DraftCounts::default(),
            })
        };
        cases.iter().zip(answers).map(one).collect()
    }

    fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while !self.engine.is_idle() {
            self.engine.step(&mut events);
        }
        events
    }

    /// What became of one sequence.
    fn record(
        &self,
        case: &VerifyRequest,
        seq: SeqId,
        events: &[Event],
    ) -> Result<AnswerRecord, VerifyError> {
        let mut tokens = Vec::new();
        let mut end: Option<(&FinishReason, &Receipt)> = None;
        for event in events {
            match event {
                Event::Token { seq: whose, token, .. } if *whose == seq => tokens.push(*token),
                Event::Finished { seq: whose, reason, receipt } if *whose == seq => {
                    end = Some((reason, receipt));
                }
                _ => {}
            }
        }
        let (reason, receipt) = end.ok_or(VerifyError::NoEnd { request: case.name })?;
        if let FinishReason::Failed(why) | FinishReason::Refused(why) = reason {
            return Err(VerifyError::Failed { request: case.name, why: why.clone() });
        }
        // The row at a position samples the token after it.
        let first_row = case.prompt.len() - 1;
        let seen = lock(&self.seen);
        let row = |position: usize| {
            let row = seen.get(&(seq, position as u32)).copied();
            row.ok_or(VerifyError::NoLogits { request: case.name, position })
        };
        let rows =
            (first_row..first_row + tokens.len()).map(row).collect::<Result<_, VerifyError>>()?;
        let drafts = DraftCounts { drafted: receipt.drafted, accepted: receipt.accepted };
        Ok(AnswerRecord {
            name: case.name,
            tokens,
            ending: Some(reason.clone()),
            first_row,
            rows,
            drafts,
        })
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;
    use crate::prompt::VerifyPrompts;
    use crate::request;
    use forerun_backend_cpu::tuned;
    use forerun_base::DType;
    use forerun_engine::{Settings, Speculation};
    use forerun_model::{Blueprint, Model};
    use forerun_testkit::Golden;
    use forerun_text::Tokenizer;

    fn answers(kv: DType, seed: u64) -> Vec<AnswerRecord> {
        let golden = Golden::open("qwen3_5");
        let blueprint = Blueprint::open(golden.checkpoint()).unwrap();
        let tokenizer = Tokenizer::open(golden.checkpoint()).unwrap();
        let speculation = Speculation::mtp(4);
        let settings = Settings { context: 192, kv, speculation, ..Settings::default() };
        let mut device = Box::new(tuned(Some(1)));
        let model = Model::load(&blueprint, &mut *device, &mut |_| {}).unwrap();
        let runner = ModelRunner::new(device, model, &settings).unwrap();
        let mut engine = RecordingEngine::new(Engine::new(runner));
        let vocabulary = blueprint.spec.vocabulary;
        let prompts = VerifyPrompts::new(Some(&tokenizer), vocabulary, 1);
        let cases = request::openings(&prompts, vocabulary, 12, seed);
        engine.alone(&cases, Depth::Fixed(4)).unwrap()
    }

    #[test]
    fn what_really_differs_is_seen_to_differ() {
        let plain = answers(DType::F16, 1);
        assert_eq!(compare(&plain, &answers(DType::F16, 1)).difference, None);
        let precise = compare(&plain, &answers(DType::F32, 1)).difference.unwrap();
        assert!(precise.logits_position.is_some(), "another cache, other bits: {precise}");
        let noise = compare(&plain, &answers(DType::F16, 2)).difference.unwrap();
        assert!(noise.token.is_some(), "another seed, other tokens: {noise}");
        assert!(noise.name.starts_with("temperature"), "{noise}");
    }

    #[test]
    fn drafts_are_both_accepted_and_rejected_on_a_model_that_drafts_badly() {
        let drafts: Vec<DraftCounts> = answers(DType::F16, 1).iter().map(|r| r.drafts).collect();
        assert!(drafts.iter().any(|g| g.drafted > 0 && g.accepted == 0), "{drafts:?}");
        assert!(drafts.iter().any(|g| g.accepted > 0 && g.accepted == g.drafted), "{drafts:?}");
    }
}
