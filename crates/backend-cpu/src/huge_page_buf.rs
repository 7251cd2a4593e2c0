//! Room in whole cache lines, in large pages where the system has them.
//!
//! A product walks through many small pages at once. With small pages it is a matter of luck whether they fall on
//! different sets of the second-level cache; measured on a Sapphire Rapids core, unlucky ones made tile products three
//! times slower. Large pages leave nothing to luck, and a prefetcher need not stop at their ends.

use memmap2::MmapMut;

/// f32 of a line.
const LANES: usize = 16;
/// Bytes of a large page.
const LARGE: usize = 2 << 20;
/// Bytes from which on large pages are asked for.
const SMALLEST: usize = 2 * LARGE;

/// One cache line, so that whole-vector loads never cross two.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheLine(pub(crate) [f32; LANES]);

/// Lines that start as zeros.
#[derive(Debug)]
pub(crate) struct HugePageBuf(Backing);

#[derive(Debug)]
enum Backing {
    Small(Vec<CacheLine>),
    /// Lines from byte `first` on.
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

    /// Memory of its own, from a large page's start on.
    fn large(bytes: usize, len: usize) -> Option<Backing> {
        let map = MmapMut::map_anon(bytes.checked_add(LARGE)?).ok()?;
        let first = map.as_ptr().align_offset(LARGE);
        if first > LARGE {
            return None;
        }
        // What does not fill a large page stays in small ones. A system without large pages has small ones alone, which
        // is no error.
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
            // SAFETY: the mapping has room for `len` lines from `first` on, which is aligned to more than a line; every
            // bit pattern is a line, and the borrow of `self` covers them.
            Backing::Large { map, first, len } => unsafe {
                std::slice::from_raw_parts(map.as_ptr().add(*first).cast(), *len)
            },
        }
    }

    /// All lines, to be written.
    pub(crate) fn all_mut(&mut self) -> &mut [CacheLine] {
        match &mut self.0 {
            Backing::Small(lines) => lines,
            // SAFETY: as in `all`.
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
