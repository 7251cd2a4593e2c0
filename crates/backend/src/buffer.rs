//! Ids and views of device memory.

use forerun_base::{DType, Format};

/// A typed run of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// An uploaded weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub u32);

/// Part of a buffer, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The buffer looked into.
    pub buffer: BufferId,
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl View {
    /// The first `len` elements of a buffer.
    pub const fn head(buffer: BufferId, len: usize) -> Self {
        Self { buffer, start: 0, len }
    }

    /// `len` elements from `start`, counted from the start of this view.
    pub const fn part(self, start: usize, len: usize) -> Self {
        Self { buffer: self.buffer, start: self.start + start, len }
    }
}

/// How long the contents of a buffer mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferRole {
    /// Only within a step: the next step must not rely on it.
    Scratch,
    /// As long as the engine: caches and recurrent state.
    State,
}

/// A request for memory. Contents are unspecified until written.
#[derive(Clone, Copy, Debug)]
pub struct BufferSpec<'a> {
    /// A name for errors and the memory plan.
    pub label: &'a str,
    /// F32, F16, BF16, I8 or U32.
    pub dtype: DType,
    /// Elements.
    pub len: usize,
    /// Lifetime of the contents.
    pub role: BufferRole,
}

/// What a device knows of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferInfo {
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub len: usize,
}

/// What a device knows of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub cols: usize,
    /// Storage format.
    pub format: Format,
    /// Bytes that it takes in the device's memory.
    pub bytes: usize,
}

impl WeightInfo {
    /// Bytes of some of its rows; there are no more than all.
    pub const fn bytes_of(&self, rows: usize) -> u64 {
        if rows >= self.rows { self.bytes as u64 } else { (self.bytes / self.rows * rows) as u64 }
    }
}
