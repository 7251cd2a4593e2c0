//! Which files a folder holds, by what they stand on and by when they were used.

use super::file::{Header, Key};
use forerun_base::Token;
use std::collections::{BTreeMap, HashMap};

#[derive(Debug)]
struct Stored {
    parent: Key,
    bytes: u64,
    stamp: u64,
    tail: bool,
}

/// Everything known of a folder without reading contents.
#[derive(Debug, Default)]
pub(super) struct Index {
    files: HashMap<Key, Stored>,
    /// Tails by what they stand on, with their tokens.
    tails: HashMap<Key, Vec<(Vec<Token>, Key)>>,
    /// Least recently used first.
    order: BTreeMap<u64, Key>,
    clock: u64,
    bytes: u64,
}

impl Index {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks and tails.
    pub(super) fn counts(&self) -> (usize, usize) {
        let tails = self.tails.values().map(Vec::len).sum();
        (self.files.len() - tails, tails)
    }

    /// Bytes of the file, if it is there.
    pub(super) fn len(&self, key: &Key) -> Option<u64> {
        self.files.get(key).map(|stored| stored.bytes)
    }

    /// Tails that stand on an entry.
    pub(super) fn tails(&self, parent: &Key) -> &[(Vec<Token>, Key)] {
        self.tails.get(parent).map_or(&[], Vec::as_slice)
    }

    /// Adds a file that is there, as used last.
    pub(super) fn insert(&mut self, header: Header, bytes: u64) {
        let key = header.key();
        self.remove(&key);
        let Header { parent, tail, tokens, .. } = header;
        let stamp = self.tick();
        self.bytes += bytes;
        self.order.insert(stamp, key);
        self.files.insert(key, Stored { parent, bytes, stamp, tail });
        if tail {
            self.tails.entry(parent).or_default().push((tokens, key));
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Notes that an entry and everything it stands on is used: what is stood on goes last.
    pub(super) fn touch(&mut self, key: &Key) {
        let mut at = *key;
        loop {
            let stamp = self.clock + 1;
            let Some(stored) = self.files.get_mut(&at) else { return };
            self.order.remove(&stored.stamp);
            stored.stamp = stamp;
            self.order.insert(stamp, at);
            self.clock = stamp;
            at = stored.parent;
        }
    }

    /// Everything the tails stand on was used when they were.
    pub(super) fn settle(&mut self) {
        let by_use: Vec<Key> = self.order.values().copied().collect();
        for key in by_use.iter().filter(|key| self.files[key].tail).collect::<Vec<_>>() {
            self.touch(key);
        }
    }

    /// The file to go first.
    pub(super) fn oldest(&self) -> Option<Key> {
        self.order.values().next().copied()
    }

    /// Forgets a file.
    pub(super) fn remove(&mut self, key: &Key) {
        let Some(stored) = self.files.remove(key) else { return };
        self.order.remove(&stored.stamp);
        self.bytes -= stored.bytes;
        if stored.tail
            && let Some(tails) = self.tails.get_mut(&stored.parent)
        {
            tails.retain(|(_, tail)| tail != key);
            if tails.is_empty() {
                self.tails.remove(&stored.parent);
            }
        }
    }
}
