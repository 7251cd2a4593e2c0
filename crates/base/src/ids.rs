//! Newtypes for the things the engine counts.

/// A vocabulary id.
pub type Token = u32;

/// One conversation known to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// A sequence's KV blocks and recurrent slot, owned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u32);
