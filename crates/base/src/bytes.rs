//! A cheaply cloned, shared run of bytes: a window into a mapped file or an owned buffer.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// What keeps bytes alive.
pub trait BytesOwner: AsRef<[u8]> + Send + Sync {
    /// Says that some of the bytes will not be read for now, so their memory may be used for something else. Whoever
    /// reads them later still finds the same bytes. By default nothing happens.
    fn release(&self, _part: Range<usize>) {}
}

/// An owner that keeps its memory until it is dropped.
struct KeptBytes<T>(T);

impl<T: AsRef<[u8]>> AsRef<[u8]> for KeptBytes<T> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl<T: AsRef<[u8]> + Send + Sync> BytesOwner for KeptBytes<T> {}

/// Shared bytes. Cloning and slicing copy nothing; the owner lives as long as any window.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn BytesOwner>,
    range: Range<usize>,
}

impl Bytes {
    /// Wraps something that keeps its bytes (a `Vec<u8>`) as a whole.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::owned_by(KeptBytes(owner))
    }

    /// Wraps an owner that may give memory back (a mapped file) as a whole.
    pub fn owned_by(owner: impl BytesOwner + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { owner: Arc::new(owner), range }
    }

    /// A window; `None` when it reaches outside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end)
            .then(|| Self { owner: self.owner.clone(), range: start..end })
    }

    /// Tells the owner that these bytes will not be read for now. See [`BytesOwner::release`].
    pub fn release(&self) {
        if !self.range.is_empty() {
            self.owner.release(self.range.clone());
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.range.len())
    }
}
