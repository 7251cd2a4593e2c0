//! An answer as text while its tokens come in: whole characters only, cut before a stop string.

use crate::{Detokenizer, StopMatcher, TextError, Tokenizer};
use forerun_base::Token;

/// The text of one answer.
pub struct Transcript {
    detokenizer: Option<Detokenizer>,
    stops: StopMatcher,
    /// Their spelling is no part of the text.
    end_tokens: Vec<Token>,
    text: String,
    shown: usize,
    broken: Option<TextError>,
}

impl Transcript {
    /// An empty text. Without a tokenizer it stays empty.
    pub fn new(
        tokenizer: Option<&Tokenizer>,
        stops: Vec<String>,
        end_tokens: Vec<Token>,
    ) -> Result<Self, TextError> {
        Ok(Self {
            detokenizer: tokenizer.map(|t| Detokenizer::new(t, true)),
            stops: StopMatcher::new(stops)?,
            end_tokens,
            text: String::new(),
            shown: 0,
            broken: None,
        })
    }

    /// Shows these special tokens, which are left out otherwise.
    #[must_use]
    pub fn showing(mut self, tokens: Vec<Token>) -> Self {
        self.detokenizer = self.detokenizer.map(|d| d.showing(tokens));
        self
    }

    /// Takes one token; true when the answer must end with it.
    pub fn take(&mut self, token: Token) -> bool {
        let Some(detokenizer) = &mut self.detokenizer else { return false };
        if self.end_tokens.contains(&token) {
            return false;
        }
        match detokenizer.push(token) {
            Ok(piece) => self.add(&piece),
            Err(error) => self.broken = Some(error),
        }
        self.broken.is_some() || self.stops.hit().is_some()
    }

    /// The answer is over: what was held back is text after all.
    pub fn finish(&mut self) -> Result<(), TextError> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        if let Some(detokenizer) = &mut self.detokenizer {
            let rest = detokenizer.finish()?;
            self.add(&rest);
            self.text.push_str(&self.stops.finish());
        }
        Ok(())
    }

    fn add(&mut self, piece: &str) {
        let released = self.stops.push(piece);
        self.text.push_str(&released.text);
    }

    /// Text that was not handed out before.
    pub fn fresh(&mut self) -> String {
        let fresh = self.text[self.shown..].to_owned();
        self.shown = self.text.len();
        fresh
    }

    /// All text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Which stop string ended it.
    pub fn hit(&self) -> Option<usize> {
        self.stops.hit()
    }
}
