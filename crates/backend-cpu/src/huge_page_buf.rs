//! Memory in whole cache lines, in huge pages where the system has them.
//!
//! A product streams many memory areas at once. With 4 KiB pages it is a matter of luck whether they fall on different
//! sets of the L2 cache; measured on a Sapphire Rapids core, unlucky ones made AMX products three times slower. Huge
//! pages are contiguous in physical memory, and hardware prefetchers need not stop at page boundaries.

use memmap2::MmapMut;

/// f32 of a cache line.
const LANES: usize = 16;
/// Bytes of a huge page.
const LARGE: usize = 2 << 20;
/// Buffers of at least this many bytes get huge pages.
const SMALLEST: usize = 2 * LARGE;

/// One cache line, so that whole-vector loads never cross two.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheLine(pub(crate) [f32; LANES]);

/// See the module's text. Initially zeros.
#[derive(Debug)]
pub(crate) struct HugePageBuf(Backing);

#[derive(Debug)]
enum Backing {
    Small(Vec<CacheLine>),
    /// Cache lines from byte `first` on.
    Large {
        map: MmapMut,
        first: usize,
        len: usize,
    },
}

impl Default for HugePageBuf {
    fn default() -> Self {
        Self(Backing::Small(Vec::new()))
    }
}

impl HugePageBuf {
    /// `len` lines of zeros.
    pub(crate) fn new(len: usize) -> Self {
        let bytes = len.saturating_mul(size_of::<CacheLine>());
        if bytes >= SMALLEST
            && let Some(place) = Self::large(bytes, len)
        {
            return Self(place);
        }
        Self(Backing::Small(vec![CacheLine([0.0; LANES]); len]))
    }

    /// A mapping of its own, used from the start of a huge page on.
    fn large(bytes: usize, len: usize) -> Option<Backing> {
        let map = MmapMut::map_anon(bytes.checked_add(LARGE)?).ok()?;
        let first = map.as_ptr().align_offset(LARGE);
        if first > LARGE {
            return None;
        }
        // A rest that does not fill a huge page stays in small ones. A system without huge pages ignores the advice,
        // which is no error.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, first, bytes / LARGE * LARGE);
        Some(Backing::Large { map, first, len })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Backing::Small(lines) => lines.len(),
            Backing::Large { len, .. } => *len,
        }
    }

    /// All lines.
    pub(crate) fn all(&self) -> &[CacheLine] {
        match &self.0 {
            Backing::Small(lines) => lines,
            // SAFETY: the mapping has `len` lines from byte `first` on, which is aligned to a huge page; every bit
            // pattern is a line, and the mapping is borrowed with `self`.
            Backing::Large { map, first, len } => unsafe {
                std::slice::from_raw_parts(map.as_ptr().add(*first).cast(), *len)
            },
        }
    }

    /// All lines, to be written.
    pub(crate) fn all_mut(&mut self) -> &mut [CacheLine] {
        match &mut self.0 {
            Backing::Small(lines) => lines,
            // SAFETY: the mapping has `len` lines from byte `first` on, which is aligned to a huge page; every bit
            // pattern is a line, and the mapping is borrowed exclusively with `self`.
            Backing::Large { map, first, len } => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().add(*first).cast(), *len)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_start_as_zeros_and_aligned_at_any_length() {
        for len in [0, 1, 100, SMALLEST / 64 - 1, SMALLEST / 64, LARGE / 64, LARGE / 64 + 1] {
            let mut lines = HugePageBuf::new(len);
            assert_eq!(lines.len(), len);
            assert_eq!(lines.all().as_ptr() as usize % 64, 0, "{len}");
            assert!(lines.all().iter().all(|line| line.0 == [0.0; LANES]), "{len}");
            for (i, line) in lines.all_mut().iter_mut().enumerate() {
                line.0 = [i as f32; LANES];
            }
            assert!(lines.all().iter().enumerate().all(|(i, line)| line.0[15] == i as f32));
        }
    }
}
