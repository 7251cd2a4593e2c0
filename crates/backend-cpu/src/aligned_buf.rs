//! Buffers that begin at a cache line.

use std::alloc::{Layout, alloc_zeroed};
use std::ops::{Deref, DerefMut};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Element types whose all-zero bit pattern is a value.
///
/// # Safety
/// A value of all zero bytes is valid, and the type's size divides 64 and is not zero.
pub unsafe trait Zeros: Copy {}
// SAFETY: zero bytes are 0.0; four bytes.
unsafe impl Zeros for f32 {}
// SAFETY: zero bytes are 0; the size is a power of two below 64.
unsafe impl Zeros for u32 {}
// SAFETY: zero bytes are 0; the size is a power of two below 64.
unsafe impl Zeros for u16 {}
// SAFETY: zero bytes are 0; the size is a power of two below 64.
unsafe impl Zeros for u8 {}

/// See the module's text. A vector that straddles two lines is loaded and stored at half the speed, and a line that two
/// threads write bounces between their caches (false sharing).
#[derive(Debug, Default)]
pub struct AlignedBuf<T> {
    /// One cache line more than what is used.
    all: Vec<T>,
    first: usize,
    len: usize,
}

impl<T: Zeros> AlignedBuf<T> {
    /// Zeros that take no memory before they are touched. `None` if the allocation fails: an absurd size is an error,
    /// not an abort.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        let all: Vec<T> = zeroed(len.checked_add(LINE / size_of::<T>())?)?;
        let first = all.as_ptr().align_offset(LINE);
        (first + len <= all.len()).then_some(Self { all, first, len })
    }
}

fn zeroed<T: Zeros>(len: usize) -> Option<Vec<T>> {
    let layout = Layout::array::<T>(len).ok()?;
    if layout.size() == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout has a nonzero size, and is that of `len` elements of `T`, for which zero bytes are a value;
    // the vector owns the allocation from here on.
    unsafe {
        let at = alloc_zeroed(layout).cast::<T>();
        (!at.is_null()).then(|| Vec::from_raw_parts(at, len, len))
    }
}

impl<T> Deref for AlignedBuf<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.all[self.first..self.first + self.len]
    }
}

impl<T> DerefMut for AlignedBuf<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[self.first..self.first + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds<T: Zeros + PartialEq + Default + std::fmt::Debug>(len: usize) {
        let buf = AlignedBuf::<T>::zeroed(len).expect("little memory");
        assert_eq!(buf.len(), len);
        assert_eq!(buf.as_ptr() as usize % LINE, 0, "{len} of {} bytes", size_of::<T>());
        assert!(buf.iter().all(|x| *x == T::default()));
    }

    #[test]
    fn zeros_begin_with_a_line_at_any_length() {
        for len in [0, 1, 15, 16, 17, 1000, 100_000] {
            holds::<f32>(len);
            holds::<u16>(len);
            holds::<u8>(len);
        }
        assert!(AlignedBuf::<f32>::zeroed(usize::MAX).is_none());
        assert!(AlignedBuf::<f32>::zeroed(usize::MAX / 8).is_none());
    }
}
