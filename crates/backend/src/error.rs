//! What can go wrong at the seam.

use crate::StashId;
use forerun_base::DType;

/// A refused or failed device call. Shape errors are ours to mend, memory is the operator's.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// An operand does not have the size the operation needs.
    #[error("{op}: `{operand}` has {found} elements, expected {expected}")]
    Length {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
        /// Elements needed.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// A weight does not have the shape the operation needs.
    #[error("{op}: weight `{operand}` is {found:?}, expected {expected:?}")]
    WeightShape {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
        /// `[rows, cols]` needed.
        expected: [usize; 2],
        /// `[rows, cols]` given.
        found: [usize; 2],
    },
    /// An operand holds another element type.
    #[error("{op}: `{operand}` is {found}, expected {expected}")]
    Type {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
        /// Type or types needed.
        expected: &'static str,
        /// Type given.
        found: DType,
    },
    /// A view reaches outside its buffer, or the buffer or weight does not exist.
    #[error("{op}: `{operand}` reaches outside device memory")]
    OutOfRange {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
    },
    /// A view begins where vectors of its elements do not.
    #[error("{op}: `{operand}` begins at element {start}, no multiple of {multiple}")]
    Alignment {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
        /// Where the view begins.
        start: usize,
        /// What that must be a multiple of.
        multiple: usize,
    },
    /// Two operands share memory that one of them writes.
    #[error("{op}: `{operand}` shares a buffer with another operand that is written")]
    Alias {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
    },
    /// A size parameter makes no sense (zero heads, rotary wider than the head, …).
    #[error("{op}: {what}")]
    Parameter {
        /// Operation.
        op: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// An operation that the device does not have: see [`Backend::missing`](crate::Backend::missing).
    #[error("{op}: this device does not have the operation")]
    Missing {
        /// Operation.
        op: &'static str,
    },
    /// An index held in device memory points nowhere.
    #[error("{op}: index {index} in `{operand}` is outside 0..{limit}")]
    Index {
        /// Operation.
        op: &'static str,
        /// Operand.
        operand: &'static str,
        /// The index.
        index: usize,
        /// One past the largest allowed.
        limit: usize,
    },
    /// The device has not enough memory.
    #[error("no memory for `{label}`: {bytes} bytes")]
    OutOfMemory {
        /// What was requested.
        label: String,
        /// Its size.
        bytes: usize,
    },
    /// A stash that was never made, or was released.
    #[error("{op}: there is no stash {}", stash.0)]
    NoStash {
        /// What was asked of it.
        op: &'static str,
        /// Which.
        stash: StashId,
    },
    /// Views that do not take what a stash holds.
    #[error("unstash: the views take {found} bytes, stash {} has {expected}", stash.0)]
    StashSize {
        /// Which.
        stash: StashId,
        /// Bytes that it has.
        expected: usize,
        /// Bytes of the views.
        found: usize,
    },
    /// Stashes would take more than they may.
    #[error("no room to put {bytes} bytes aside: {held} of {limit} are taken")]
    StashLimit {
        /// Bytes of the new stash.
        bytes: usize,
        /// Bytes of those there are.
        held: u64,
        /// Most bytes of all.
        limit: u64,
    },
    /// The caller broke the protocol of the seam (for example a read before completion).
    #[error("{0}")]
    Protocol(String),
    /// The device is gone, with everything on it: a driver was reset, an adapter was unplugged, work was stopped. Every
    /// call fails from then on, until [`Backend::reopen`](crate::Backend::reopen).
    #[error("the device was lost: {0}")]
    Lost(String),
    /// The device itself reported a failure.
    #[error("device: {0}")]
    Device(String),
}
