//! Reading a given text for what the model makes of it: logits or hidden states, row by row.
//!
//! A text is read in pieces, so that whoever has other answers to make can do so in between.

use crate::{Admission, Engine, EngineError, ModelRunner, RejectError, StepPlan, check_tokens};
use forerun_base::Token;

/// What is wanted of each row of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// Logits: row `i` predicts token `i + 1`.
    Logits,
    /// The hidden state behind the last norm, which the logits are a product of.
    Hidden,
}

/// A text that is being read.
#[derive(Debug)]
pub struct Reading {
    tokens: Vec<Token>,
    kind: RowKind,
    /// Its place on the device, once it has one.
    lease: Option<forerun_base::LeaseId>,
    /// Tokens that were read.
    read: usize,
    /// Losses of the device so far: its state is gone with another one.
    losses: u64,
}

/// How far a text was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadingProgress {
    /// Every place on the device is taken.
    Waits,
    /// There is more to read.
    Reads,
    /// It was read to its end.
    Done,
}

impl Engine<ModelRunner> {
    /// Runs `tokens` through the model and hands each row of logits to `sink`, in order: row `i`
    /// predicts token `i + 1`.
    pub fn score(
        &mut self,
        tokens: &[Token],
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        self.read_whole(tokens, RowKind::Logits, sink)
    }

    /// Runs `tokens` through the model and hands each row of a kind to `sink`, in order.
    pub fn read_whole(
        &mut self,
        tokens: &[Token],
        kind: RowKind,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        let mut reading = self.reading(tokens.to_vec(), kind)?;
        loop {
            match self.read_on(&mut reading, sink)? {
                ReadingProgress::Reads => {}
                ReadingProgress::Done => return Ok(()),
                ReadingProgress::Waits => {
                    return Err(EngineError::Settings(
                        "every sequence is taken; try later".to_owned(),
                    ));
                }
            }
        }
    }

    /// A text to be read in pieces, if it can be.
    pub fn reading(&self, tokens: Vec<Token>, kind: RowKind) -> Result<Reading, EngineError> {
        let context = self.runner.limits().context;
        if tokens.is_empty() {
            return Err(RejectError::EmptyPrompt.into());
        }
        if tokens.len() > context {
            return Err(RejectError::PromptTooLong { prompt: tokens.len(), context }.into());
        }
        check_tokens(&tokens, self.runner.model().spec.vocabulary)?;
        Ok(Reading { tokens, kind, lease: None, read: 0, losses: self.stats.devices_lost })
    }

    /// Reads the next piece of a text, once there is a place for it. What was begun is ended by
    /// [`Self::forget_reading`], unless this says that it is done or fails.
    pub fn read_on(
        &mut self,
        reading: &mut Reading,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<ReadingProgress, EngineError> {
        if reading.lease.is_none() {
            let Admission::Ready(lease) = self.states.acquire(reading.tokens.len()) else {
                return Ok(ReadingProgress::Waits);
            };
            (reading.lease, reading.losses) = (Some(lease), self.stats.devices_lost);
        }
        let done = if reading.losses == self.stats.devices_lost {
            self.read_piece(reading, sink)
        } else {
            Err(EngineError::Settings("the device was lost while a text was read".to_owned()))
        };
        if !matches!(done, Ok(ReadingProgress::Reads)) {
            self.forget_reading(reading);
        }
        done
    }

    fn read_piece(
        &mut self,
        reading: &mut Reading,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<ReadingProgress, EngineError> {
        let Some(lease) = reading.lease else { return Ok(ReadingProgress::Waits) };
        let limits = self.runner.limits();
        let most = match reading.kind {
            RowKind::Logits => limits.sampled.min(limits.rows),
            RowKind::Hidden => limits.rows,
        };
        let rest = &reading.tokens[reading.read..];
        let piece = &rest[..rest.len().min(most)];
        let mut plan = StepPlan::default();
        plan.set_single(lease, self.states.lease(lease), piece.iter().copied(), 0, None);
        let done = match reading.kind {
            RowKind::Logits => self.runner.logits(&plan, sink),
            RowKind::Hidden => self.runner.hidden(&plan, sink),
        };
        if let Err(error) = done {
            self.recover_device(&error.to_string());
            return Err(error);
        }
        self.states.commit(lease, piece.len(), piece.len());
        reading.read += piece.len();
        let whole = reading.read == reading.tokens.len();
        Ok(if whole { ReadingProgress::Done } else { ReadingProgress::Reads })
    }

    /// Gives back the place of a text that is read no further.
    pub fn forget_reading(&mut self, reading: &mut Reading) {
        if let Some(lease) = reading.lease.take() {
            self.states.release(lease);
        }
    }
}
