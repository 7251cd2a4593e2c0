//! Room for intermediate numbers, one per thread, grown before a job and kept.

use super::isa::LANES;
use crate::huge_page_buf::HugePageBuf;

/// The first words asked for: enough that rounds of a few rows more or less never ask again.
const FIRST_WORDS: usize = 4096;
/// The same in lines of floats: a tile of decoded channels, which another number of rows cuts a little larger or
/// smaller.
const FIRST_LINES: usize = (1 << 17) / LANES;

/// See the module's text. Contents are unspecified between tasks.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    lines: HugePageBuf,
    words: Vec<u32>,
}

impl Scratch {
    /// Makes sure of `floats` and `words`; allocates only when a call asks for more than any before.
    pub(crate) fn reserve(&mut self, floats: usize, words: usize) {
        let lines = floats.div_ceil(LANES);
        if self.lines.len() < lines {
            self.lines = HugePageBuf::new(lines.max(FIRST_LINES));
        }
        if self.words.len() < words {
            self.words.resize(words.max(FIRST_WORDS), 0);
        }
    }

    /// Everything reserved: floats from a cache line on, and words.
    pub(crate) fn parts(&mut self) -> (&mut [f32], &mut [u32]) {
        let lines = self.lines.all_mut();
        let len = lines.len() * LANES;
        // SAFETY: `CacheLine` is sixteen f32 without padding, so the lines are `len` f32 in a row; the borrow
        // of `self` covers them.
        let floats = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) };
        (floats, &mut self.words)
    }

    /// The floats alone.
    pub(crate) fn floats(&mut self) -> &mut [f32] {
        self.parts().0
    }
}
