//! Conversations of the Responses API that a later request goes on from, in memory and for as long as there is room.
//!
//! Off unless the operator gives it memory: what was said is kept behind the answer, which nobody should find later.
//! Each API key has room of its own and finds only what it said itself.

use crate::auth::Owner;
use crate::service::lock;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Bytes a value of JSON takes at least, beside its text.
const VALUE: usize = 64;

/// What was said, by owner.
pub(crate) struct ResponsesStore {
    /// Bytes for each owner.
    most: usize,
    kept: Mutex<Vec<OwnedResponses>>,
}

/// What one owner said, the oldest first.
struct OwnedResponses {
    owner: Option<Owner>,
    bytes: usize,
    responses: VecDeque<StoredResponse>,
}

struct StoredResponse {
    id: String,
    bytes: usize,
    /// Input and output, as input items.
    items: Arc<[Value]>,
}

impl ResponsesStore {
    /// Nothing yet; none where no memory is given.
    pub(crate) fn new(most: usize) -> Option<Self> {
        (most > 0).then(|| Self { most, kept: Mutex::default() })
    }

    /// The conversation that ended with a response, if it is kept.
    pub(crate) fn get(&self, owner: Option<Owner>, id: &str) -> Option<Arc<[Value]>> {
        let kept = lock(&self.kept);
        let own = kept.iter().find(|kept| kept.owner == owner)?;
        let found = own.responses.iter().find(|response| response.id == id)?;
        Some(Arc::clone(&found.items))
    }

    /// Keeps a conversation, in the place of the owner's oldest where there is no room beside them.
    pub(crate) fn put(&self, owner: Option<Owner>, id: &str, items: Vec<Value>) {
        let bytes = id.len() + items.iter().map(weight).sum::<usize>();
        if bytes > self.most {
            return;
        }
        let mut kept = lock(&self.kept);
        let at = kept.iter().position(|kept| kept.owner == owner).unwrap_or_else(|| {
            kept.push(OwnedResponses { owner, bytes: 0, responses: VecDeque::new() });
            kept.len() - 1
        });
        let own = &mut kept[at];
        while own.bytes + bytes > self.most
            && let Some(oldest) = own.responses.pop_front()
        {
            own.bytes -= oldest.bytes;
        }
        own.bytes += bytes;
        own.responses.push_back(StoredResponse { id: id.to_owned(), bytes, items: items.into() });
    }
}

/// About what a value takes of memory.
fn weight(value: &Value) -> usize {
    VALUE
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(weight).sum(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| VALUE + name.len() + weight(value)).sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_oldest_go_first_and_what_is_too_long_is_not_kept() {
        let store = ResponsesStore::new(1000).unwrap();
        let item = || vec![json!("x".repeat(300))];
        for id in ["a", "b", "c"] {
            store.put(None, id, item());
        }
        let has = |id: &str| store.get(None, id).is_some();
        assert_eq!(["a", "b", "c"].map(has), [false, true, true]);
        store.put(None, "d", vec![json!("x".repeat(2000))]);
        assert_eq!(["b", "c", "d"].map(has), [true, true, false]);
        assert!(ResponsesStore::new(0).is_none());
    }
}
