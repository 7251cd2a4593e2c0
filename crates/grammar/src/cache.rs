//! Grammars that were compiled lately: clients send the same one with every request.

use crate::compiled::Compiled;
use crate::limits::{KEPT, KEPT_BYTES};
use std::sync::{Arc, Mutex, PoisonError};

/// The latest grammars, newest last.
#[derive(Default)]
pub(crate) struct GrammarCache(Mutex<Vec<(String, Arc<Compiled>)>>);

impl GrammarCache {
    /// A grammar by its text, now the newest.
    pub(crate) fn get(&self, key: &str) -> Option<Arc<Compiled>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(text, _)| text == key)?;
        let found = kept.remove(at);
        let compiled = found.1.clone();
        kept.push(found);
        Some(compiled)
    }

    /// Keeps a grammar, in place of the oldest ones where they are too many or too large. One that is larger than all
    /// of them may be is not kept.
    pub(crate) fn put(&self, key: String, compiled: Arc<Compiled>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(text, _)| *text != key);
        kept.push((key, compiled));
        while kept.len() > KEPT || bytes(&kept) > KEPT_BYTES {
            kept.remove(0);
        }
    }

    /// Grammars kept, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.len(), bytes(&kept))
    }
}

fn bytes(kept: &[(String, Arc<Compiled>)]) -> usize {
    kept.iter().map(|(text, compiled)| text.len() + compiled.bytes).sum()
}
