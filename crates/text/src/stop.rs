//! Stop strings over streamed text.
//!
//! Text arrives in pieces cut anywhere; a stop string may lie across several. The matcher
//! releases text as soon as no stop string can begin in it and holds the rest.
//!
//! The stop string that is *complete first* wins, because generation ends there and nothing
//! later may change the answer. Of several complete at the same character the longest wins, so
//! the cut is as early as possible. The result does not depend on how the text was cut.

use crate::error::TextError;

/// Watches streamed text for stop strings.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    hit: Option<usize>,
}

/// What a piece of text let go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// Text that is safe to show.
    pub text: String,
    /// Index of the stop string that was found; the text is cut before it and the answer ends.
    pub hit: Option<usize>,
}

impl StopMatcher {
    /// A matcher for these strings; none at all is fine, an empty one is an error.
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(TextError::EmptyStop { index });
        }
        Ok(Self { stops, held: String::new(), hit: None })
    }

    /// Takes the next piece. After a hit everything further is swallowed.
    pub fn push(&mut self, piece: &str) -> Released {
        if self.hit.is_some() {
            return Released { text: String::new(), hit: self.hit };
        }
        self.held.push_str(piece);
        if let Some((start, index)) = self.first_complete() {
            self.held.truncate(start);
            self.hit = Some(index);
            return Released { text: std::mem::take(&mut self.held), hit: self.hit };
        }
        let rest = self.held.split_off(self.held.len() - self.open_suffix());
        Released { text: std::mem::replace(&mut self.held, rest), hit: None }
    }

    /// The text ended without (further) hits: what was held back is ordinary text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Index of the stop string that ended the text.
    pub fn hit(&self) -> Option<usize> {
        self.hit
    }

    /// Start and stop index of the match that ends first; ties go to the longest.
    fn first_complete(&self) -> Option<(usize, usize)> {
        let matches = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            self.held.find(stop).map(|start| (start + stop.len(), start, index))
        });
        matches.min().map(|(_, start, index)| (start, index))
    }

    /// Bytes at the end of the held text that may yet become a stop string.
    fn open_suffix(&self) -> usize {
        let open = |stop: &String| {
            (1..stop.len())
                .rev()
                .filter(|&n| stop.is_char_boundary(n))
                .find(|&n| self.held.ends_with(&stop[..n]))
                .unwrap_or(0)
        };
        self.stops.iter().map(open).max().unwrap_or(0)
    }
}
