//! What the operator and a request say about the prefix cache.

use super::StateShape;
use forerun_model::KV_BLOCK;

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
}

impl Default for CacheUse {
    fn default() -> Self {
        Self { read: true, write: true, marks: Vec::new(), keep: false }
    }
}

impl CacheUse {
    /// Neither reads nor writes.
    pub const OFF: Self = Self { read: false, write: false, marks: Vec::new(), keep: false };
}
