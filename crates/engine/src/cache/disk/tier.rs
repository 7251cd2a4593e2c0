//! The folder as the engine sees it: look-ups at once, reads by and by, writes behind its back.

use super::folder::Folder;
use super::index::Index;
use super::{DiskSettings, Key, Record};
use crate::EngineError;
use crate::cache::{CacheSalt, DiskStats, StateShape};
use forerun_base::Token;
use forerun_model::KV_BLOCK;
use std::collections::HashSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes that may wait to be written.
const QUEUE: u64 = 256 << 20;

#[derive(Debug)]
struct TierState {
    folder: Folder,
    books: Mutex<Books>,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Books {
    index: Index,
    /// Bytes on their way, and whose they are.
    queued: u64,
    waiting: HashSet<Key>,
    stats: DiskStats,
}

impl TierState {
    fn books(&self) -> MutexGuard<'_, Books> {
        // What is in the books is whole between any two statements that can fail.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A folder, and the thread that writes to it.
#[derive(Debug)]
pub(crate) struct DiskTier {
    shared: Arc<TierState>,
    identity: [u8; 32],
    queue: Option<Sender<Record>>,
    writer: Option<JoinHandle<()>>,
}

/// What a prompt could have from disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Blocks, each with its number in the prompt.
    pub(crate) blocks: Vec<(usize, Key)>,
    /// The tail behind them, with the number of the block it begins with.
    pub(crate) tail: Option<(usize, Key)>,
    /// Where a sequence could go on then.
    pub(crate) position: usize,
    /// Bytes to be read.
    pub(crate) bytes: u64,
}

impl DiskTier {
    pub(crate) fn open(settings: &DiskSettings, identity: [u8; 32]) -> Result<Self, EngineError> {
        let (folder, scan) = Folder::open(settings, identity)?;
        let stats = DiskStats { bad_files: scan.bad, ..DiskStats::default() };
        let books = Mutex::new(Books { index: scan.index, stats, ..Books::default() });
        let shared = Arc::new(TierState { folder, books, written: Condvar::new() });
        let (queue, records) = channel();
        let writer = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("prefix cache".to_owned())
                .spawn(move || write_all(&shared, &records))
                .map_err(|error| EngineError::Cache(format!("no thread to write: {error}")))?
        };
        Ok(Self { shared, identity, queue: Some(queue), writer: Some(writer) })
    }

    /// Bytes it may hold.
    pub(crate) fn limit(&self) -> u64 {
        self.shared.folder.limit()
    }

    /// What everything of a salt stands on.
    pub(crate) fn root(&self, salt: Option<&CacheSalt>) -> Key {
        Key::root(&self.identity, salt)
    }

    pub(crate) fn stats(&self) -> DiskStats {
        let books = self.shared.books();
        let (blocks, states) = books.index.counts();
        let mut stats = books.stats;
        stats.queued_bytes = books.queued;
        stats.tier.bytes = books.index.bytes();
        stats.tier.limit = self.shared.folder.limit();
        (stats.tier.blocks, stats.tier.states) = (blocks, states);
        stats
    }

    /// Whether an entry is there or on its way.
    pub(crate) fn has(&self, key: &Key) -> bool {
        let books = self.shared.books();
        books.index.len(key).is_some() || books.waiting.contains(key)
    }

    /// Hands an entry to the writer, or drops it when too much waits already.
    pub(crate) fn offer(&self, record: Record) {
        let mut books = self.shared.books();
        let (key, len) = (record.key(), record.len());
        if books.index.len(&key).is_some() || books.waiting.contains(&key) {
            return;
        }
        let sent = books.queued.saturating_add(len) <= QUEUE
            && self.queue.as_ref().is_some_and(|queue| queue.send(record).is_ok());
        if sent {
            books.queued += len;
            books.waiting.insert(key);
        } else {
            books.stats.dropped += 1;
        }
    }

    /// Waits until everything handed over is written or given up.
    pub(crate) fn flush(&self) {
        let mut books = self.shared.books();
        while books.queued > 0 {
            books = self.shared.written.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The longest beginning of a prompt that memory, which has its first `known` blocks, and the folder have together.
    pub(crate) fn find(
        &self,
        salt: Option<&CacheSalt>,
        prompt: &[Token],
        known: usize,
        shape: &StateShape,
    ) -> Wanted {
        let (states, span) = (shape.needs_state(), KV_BLOCK + shape.ahead());
        let books = self.shared.books();
        let index = &books.index;
        let mut best = Wanted::default();
        // What lies on the way, and how much of it the best position needs.
        let (mut path, mut bytes, mut whole) = (Vec::new(), 0, 0);
        let mut at = self.root(salt);
        for (number, start) in (0..).zip((0..prompt.len()).step_by(KV_BLOCK)) {
            let rest = &prompt[start..];
            for (tokens, key) in index.tails(&at) {
                let common = tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
                let position = match states {
                    true if common < tokens.len() => continue,
                    true => start + common,
                    false => (start + common).min(prompt.len() - 1),
                };
                if position > best.position && position < prompt.len() {
                    let bytes = bytes + index.len(key).unwrap_or(0);
                    best =
                        Wanted { position, tail: Some((number, *key)), bytes, blocks: Vec::new() };
                    whole = path.len();
                }
            }
            let Some(tokens) = rest.get(..span) else { break };
            at = at.next(false, tokens);
            match index.len(&at) {
                _ if number < known => {}
                Some(len) => {
                    path.push((number, at));
                    bytes += len;
                }
                None => break,
            }
            let position = (start + KV_BLOCK).min(prompt.len() - 1);
            if !states && position > best.position {
                best = Wanted { position, bytes, ..Wanted::default() };
                whole = path.len();
            }
        }
        path.truncate(whole);
        Wanted { blocks: path, ..best }
    }

    /// Reads an entry; one that is damaged is removed, counted and not there.
    pub(crate) fn read(&self, key: &Key) -> Option<Record> {
        let len = self.shared.books().index.len(key)?;
        // Not under the lock: the writer goes on meanwhile, and may even remove the file.
        let read = self.shared.folder.read(key, len);
        let mut books = self.shared.books();
        match read {
            Ok(record) => {
                books.stats.read_bytes += len;
                books.index.touch(key);
                Some(record)
            }
            Err(_) => {
                if books.index.len(key).is_some() {
                    books.stats.bad_files += 1;
                    self.shared.folder.remove(&mut books.index, key);
                }
                None
            }
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take() {
            // What was handed over is written. A writer that panicked has nothing left to say.
            drop(writer.join());
        }
    }
}

/// Writes records until nobody hands over any more.
fn write_all(shared: &TierState, records: &Receiver<Record>) {
    for record in records {
        let len = record.len();
        write_one(shared, &record, len);
        let mut books = shared.books();
        books.queued -= len;
        books.waiting.remove(&record.key());
        drop(books);
        shared.written.notify_all();
    }
}

fn write_one(shared: &TierState, record: &Record, len: u64) {
    let key = record.key();
    {
        let mut books = shared.books();
        if len > shared.folder.limit() {
            books.stats.tier.refused += 1;
            return;
        }
        let removed = shared.folder.make_room(&mut books.index, len);
        books.stats.tier.evictions += removed;
    }
    let written = shared.folder.write(record);
    let mut books = shared.books();
    match written {
        Ok(header) => {
            books.stats.written_bytes += len;
            books.index.insert(header, len);
            if record.tail.is_some() {
                books.index.touch(&key);
            }
        }
        Err(_) => books.stats.failed_writes += 1,
    }
}
