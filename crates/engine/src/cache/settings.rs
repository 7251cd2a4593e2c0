//! What the operator and a request say about the prefix cache.

use super::StateShape;
use forerun_model::KV_BLOCK;
use std::fmt;

/// How much is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSettings {
    /// Most bytes in host memory; 0 turns the cache off.
    pub bytes: u64,
    /// Most tokens between two restore points of a long text. `None` chooses by what a state costs.
    pub interval: Option<usize>,
}

impl CacheSettings {
    /// The shortest interval chosen without being asked.
    const SHORT: usize = 256;
    /// The longest.
    const LONG: usize = 2048;

    /// Tokens between restore points: as many as make a state no larger than the keys and values it stands
    /// beside, within reason.
    pub(crate) fn interval(&self, shape: &StateShape) -> usize {
        let per_token = (shape.block / KV_BLOCK).max(1);
        let fair = (shape.late_state() / per_token).next_multiple_of(KV_BLOCK);
        self.interval.unwrap_or(fair.clamp(Self::SHORT, Self::LONG)).max(1)
    }
}

/// Isolates entries: what is published under a salt is found under the same salt only.
///
/// A caller derives it from what must not share a cache, an API key for example. It names files on disk, so
/// it must be the same after a restart, and nothing that has to stay secret may follow from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheSalt(pub [u8; 32]);

/// Never printed: whoever knows a salt may look up what lies under it.
impl fmt::Debug for CacheSalt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheSalt(..)")
    }
}

/// How one request uses the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheUse {
    /// Begin where the cache ends.
    pub read: bool,
    /// Leave behind what was read and said.
    pub write: bool,
    /// Positions of the prompt worth publishing at, ascending: ends of messages, marks of the client.
    pub marks: Vec<u32>,
    /// Evict what this request publishes last.
    pub keep: bool,
    /// With whom it shares entries: requests of the same salt, or those without one.
    pub salt: Option<CacheSalt>,
}

impl Default for CacheUse {
    fn default() -> Self {
        Self { read: true, write: true, marks: Vec::new(), keep: false, salt: None }
    }
}

impl CacheUse {
    /// Neither reads nor writes.
    pub const OFF: Self =
        Self { read: false, write: false, marks: Vec::new(), keep: false, salt: None };
}
