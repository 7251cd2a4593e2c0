//! Several answers at once.

use crate::{Answer, AnswerStream, Error, StreamEvent};

/// Answers that are generated together: an iterator of events, each with the number of its request.
///
/// ```
/// # fn main() -> Result<(), forerun::Error> {
/// use forerun::{GenerationOptions, Model};
///
/// let model = Model::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tales-28m"))?;
/// let options = || GenerationOptions::new().max_tokens(6).seed(3);
/// let answers = model.batch([("The king", options()), ("The fox", options())])?.answers();
/// assert!(answers.iter().all(Result::is_ok));
/// # Ok(())
/// # }
/// ```
pub struct Batch {
    streams: Vec<AnswerStream>,
    /// The stream whose turn it is.
    turn: usize,
}

impl Batch {
    pub(crate) fn new(streams: Vec<AnswerStream>) -> Self {
        Self { streams, turn: 0 }
    }

    /// The whole answers in the order of the requests. One that fails takes no other with it.
    pub fn answers(self) -> Vec<Result<Answer, Error>> {
        // Reading one steps the engine for all.
        self.streams.into_iter().map(AnswerStream::answer).collect()
    }
}

impl Iterator for Batch {
    type Item = (usize, Result<StreamEvent, Error>);

    fn next(&mut self) -> Option<Self::Item> {
        for _ in 0..self.streams.len() {
            let index = self.turn;
            self.turn = (self.turn + 1) % self.streams.len();
            if let Some(event) = self.streams[index].next() {
                return Some((index, event));
            }
        }
        None
    }
}
