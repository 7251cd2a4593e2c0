//! Texts that are read for what the model makes of them: no answer, only rows.

use super::Place;
use crate::error::ServerError;
use forerun::Token;
use forerun_engine::{Engine, EngineError, ModelRunner, Reading, ReadingProgress, RowKind};
use tokio::sync::oneshot;

/// Something that is read in pieces on the engine's thread.
pub(super) trait ReadJob<R>: Send {
    /// Reads the next piece; whether it is over, or has to wait for a place on the device.
    fn go_on(&mut self, engine: &mut Engine<R>) -> ReadingProgress;

    /// Whether nobody waits for it any more.
    fn is_abandoned(&self) -> bool;

    /// Gives back what it has of the device.
    fn forget(&mut self, engine: &mut Engine<R>);
}

/// What becomes of a text: what was taken of its rows, and its place for the next one.
type Told<T> = oneshot::Sender<Result<(T, Place), ServerError>>;

/// A text, and what is taken of its rows.
pub(super) struct ReadText<T> {
    tokens: Vec<Token>,
    kind: RowKind,
    reading: Option<Reading>,
    take: fn(&mut T, &[f32]),
    /// Until it is told.
    outcome: Option<(T, Place, Told<T>)>,
}

impl<T> ReadText<T> {
    pub(super) fn new(
        (tokens, kind): (Vec<Token>, RowKind),
        place: Place,
        (taken, take): (T, fn(&mut T, &[f32])),
        tell: Told<T>,
    ) -> Self {
        Self { tokens, kind, reading: None, take, outcome: Some((taken, place, tell)) }
    }

    fn read(&mut self, engine: &mut Engine<ModelRunner>) -> Result<ReadingProgress, EngineError> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            None => {
                let fresh = engine.reading(std::mem::take(&mut self.tokens), self.kind)?;
                self.reading.insert(fresh)
            }
        };
        let (take, outcome) = (self.take, &mut self.outcome);
        engine.read_on(reading, &mut |row| {
            if let Some((taken, ..)) = outcome {
                take(taken, row);
            }
        })
    }
}

impl<T: Send> ReadJob<ModelRunner> for ReadText<T> {
    fn go_on(&mut self, engine: &mut Engine<ModelRunner>) -> ReadingProgress {
        let done = match self.read(engine) {
            Ok(ReadingProgress::Done) => Ok(()),
            Ok(more) => return more,
            Err(EngineError::Reject(error)) => Err(error.into()),
            Err(error) => Err(ServerError::Failed(error.to_string())),
        };
        if let Some((taken, place, tell)) = self.outcome.take() {
            // Nobody may be left to hear it.
            let _ = tell.send(done.map(|()| (taken, place)));
        }
        ReadingProgress::Done
    }

    fn is_abandoned(&self) -> bool {
        self.outcome.as_ref().is_none_or(|(.., tell)| tell.is_closed())
    }

    fn forget(&mut self, engine: &mut Engine<ModelRunner>) {
        if let Some(reading) = &mut self.reading {
            engine.forget_reading(reading);
        }
    }
}
