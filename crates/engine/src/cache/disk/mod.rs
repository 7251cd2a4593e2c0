//! The tier on disk: what memory evicts and what a restart would lose.
//!
//! Every entry is a file of its own, written under another name, synced and renamed, so a process that is killed
//! leaves whole files or none. A file names the entry it stands on by a key that covers all tokens before it; a
//! file whose predecessor is gone is just never reached. Headers are read when the folder is opened, contents are
//! checked against their hash when they are used.
//!
//! Entries hold what was said, so the folder and its files are for their owner alone ([`private`]).
//!
//! One thread writes. The engine hands entries over when it has time ([`Backlog`](super::backlog::Backlog)) and never
//! waits for it: what does not fit in the queue is dropped and counted. One process uses a folder at a time; a lock
//! says so.

mod file;
mod folder;
mod index;
mod private;
mod tier;

pub use file::CacheFile;
pub use folder::DiskSettings;

pub(crate) use file::{Key, Record, TailBytes};
pub(crate) use tier::DiskTier;
