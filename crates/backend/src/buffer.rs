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
    /// Elements of the largest vectors that a device reads and writes an operand by.
    pub const VECTOR: usize = 16;

    /// What the start of a view of numbers is a multiple of, as an operand: [`Self::VECTOR`], or of its length the
    /// largest power of two where that is less. So rows of whole vectors begin with one, rows that are shorter can be
    /// cut off at any power of two, and a single row anywhere.
    pub const fn alignment(self) -> usize {
        if self.len == 0 {
            return 1;
        }
        let power = 1 << self.len.trailing_zeros();
        if power < Self::VECTOR { power } else { Self::VECTOR }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_cut_off_at_powers_of_two_begin_with_a_vector_or_a_row() {
        for (width, rows) in [(1, 37_usize), (4, 5), (7, 9), (16, 3), (64, 6), (24, 11)] {
            // As they are cut: a power of two first, then the rest in the same way.
            let mut first: usize = 0;
            while first < rows {
                let count = match rows - first {
                    1 => 1,
                    left => left.next_power_of_two() / 2,
                };
                for (first, count) in [(first, count), (first, rows - first), (first, 1)] {
                    let view =
                        View::head(BufferId(0), rows * width).part(first * width, count * width);
                    assert_eq!(
                        view.start % view.alignment(),
                        0,
                        "{first}, {count} of {rows} x {width}"
                    );
                }
                first += count;
            }
        }
        let view = |start, len| View { buffer: BufferId(0), start, len };
        assert_eq!(view(3, 64).alignment(), 16);
        assert_eq!(view(3, 24).alignment(), 8);
        assert_eq!(view(3, 7).alignment(), 1);
        assert_eq!(view(3, 0).alignment(), 1);
    }
}
