//! Scratch memory, one per thread, grown before a job and kept.

use super::isa::LANES;
use crate::huge_page_buf::HugePageBuf;

/// The least words reserved: enough that steps of a few rows more never reallocate.
const FIRST_WORDS: usize = 4096;
/// The same in cache lines of f32: a tile of decoded channels, whose size varies a little with the number of rows.
const FIRST_LINES: usize = (1 << 17) / LANES;

/// See the module's text. Contents are unspecified between tasks.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    lines: HugePageBuf,
    words: Vec<u32>,
}

impl Scratch {
    /// Reserves `floats` and `words`; allocates only if a call needs more than any before.
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
        // SAFETY: `CacheLine` is sixteen f32 without padding, so the lines are `len` contiguous f32, borrowed
        // exclusively with `self`.
        let floats = unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) };
        (floats, &mut self.words)
    }

    /// The floats alone.
    pub(crate) fn floats(&mut self) -> &mut [f32] {
        self.parts().0
    }
}
