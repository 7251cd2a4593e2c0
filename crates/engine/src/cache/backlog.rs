//! Entries that are to go to disk, oldest first, until their bytes are read from the device.

use super::disk::Key;
use super::tree::EntryId;
use std::collections::{BTreeMap, HashMap};

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// When each was added, and the key of the entry before it.
    waiting: HashMap<EntryId, (u64, Key)>,
    order: BTreeMap<u64, EntryId>,
    added: u64,
}

impl Backlog {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Adds an entry that follows the one of this key, unless it waits already.
    pub(crate) fn add(&mut self, entry: EntryId, parent: Key) {
        if !self.waiting.contains_key(&entry) {
            self.added += 1;
            self.waiting.insert(entry, (self.added, parent));
            self.order.insert(self.added, entry);
        }
    }

    /// Takes the oldest entry, with the key of the one before it.
    pub(crate) fn take_oldest(&mut self) -> Option<(EntryId, Key)> {
        let (_, entry) = self.order.pop_first()?;
        self.waiting.remove(&entry).map(|(_, parent)| (entry, parent))
    }

    /// Takes an entry, if it waits.
    pub(crate) fn take(&mut self, entry: EntryId) -> Option<Key> {
        let (added, parent) = self.waiting.remove(&entry)?;
        self.order.remove(&added);
        Some(parent)
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        (self.waiting, self.order) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_once_in_order_or_out_of_turn() {
        let mut backlog = Backlog::default();
        let key = Key::root(&[1; 32], None);
        for entry in [3, 1, 2, 1, 3] {
            backlog.add(entry, key.next(false, &[entry as u32]));
        }
        assert_eq!(backlog.take(1), Some(key.next(false, &[1])));
        assert_eq!(backlog.take(1), None);
        backlog.add(1, key);
        let left: Vec<EntryId> =
            std::iter::from_fn(|| backlog.take_oldest()).map(|e| e.0).collect();
        assert_eq!(left, [3, 2, 1]);
        backlog.add(4, key);
        backlog.clear();
        assert!(backlog.is_empty() && backlog.take(4).is_none());
    }
}
