//! Grammars that were compiled lately: clients send the same one with every request.

use llguidance::TokenParser;
use std::sync::{Arc, Mutex, PoisonError};

/// Grammars that are kept.
const MOST: usize = 32;

/// The latest grammars, newest last.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Vec<(String, Arc<TokenParser>)>>);

impl Cache {
    /// A grammar by its text, now the newest.
    pub(crate) fn get(&self, key: &str) -> Option<Arc<TokenParser>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(text, _)| text == key)?;
        let found = kept.remove(at);
        let parser = found.1.clone();
        kept.push(found);
        Some(parser)
    }

    /// Keeps a grammar, in place of the oldest where there are enough.
    pub(crate) fn put(&self, key: String, parser: Arc<TokenParser>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(text, _)| *text != key);
        if kept.len() >= MOST {
            kept.remove(0);
        }
        kept.push((key, parser));
    }
}
