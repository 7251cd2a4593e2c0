//! The prefix cache: what sequences have read, kept for those that begin with the same tokens.
//!
//! It holds copies that the device has put aside (stashes), apart from its pool. Publishing copies out of a lease at a
//! position that is committed and folded; a hit copies into a fresh lease. Both are queued, and nobody waits for them.
//! Nothing is shared with a running sequence, so nothing the cache does can change one, and eviction is releasing
//! stashes.
//!
//! Tokens are compared one by one; no hash decides what matches. What a position needs besides keys and values
//! (recurrent state, rings of layers with a window, hidden states the drafter has yet to take in) exists only
//! where it was published, so prompts are cut there: see [`points`](self::points).

mod backlog;
mod disk;
mod flow;
mod points;
mod prefix;
mod report;
mod settings;
mod shape;
mod tree;

pub use disk::{CacheFile, DiskSettings};
pub use report::{CacheReport, CacheStats, DiskStats, Miss, MissReason, TierStats};
pub use settings::{CacheSalt, CacheSettings, CacheUse};
pub use shape::{StatePart, StateShape};

#[cfg(test)]
pub(crate) use disk::DiskTier;
pub(crate) use points::Published;
pub(crate) use prefix::PrefixCache;
