//! What a device has put aside for later.

use crate::{Backend, BackendError, Catalog, HostData, HostDataMut, View};
use std::collections::HashMap;

/// Bytes that a device has put aside: see [`Backend::stash`]. Numbers are never given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StashId(pub u64);

/// The books of a device's stashes: their numbers, their sizes, and the limit. `T` is where the bytes are.
#[derive(Debug)]
pub struct Stashes<T> {
    kept: HashMap<StashId, KeptStash<T>>,
    made: u64,
    bytes: u64,
    limit: u64,
}

#[derive(Debug)]
struct KeptStash<T> {
    bytes: usize,
    place: T,
}

impl<T> Default for Stashes<T> {
    fn default() -> Self {
        Self { kept: HashMap::new(), made: 0, bytes: 0, limit: u64::MAX }
    }
}

impl<T> Stashes<T> {
    /// Sets the most bytes that may be put aside. What is there stays.
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// Bytes put aside.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Refuses what would pass the limit.
    pub fn require_room(&self, bytes: usize) -> Result<(), BackendError> {
        let (held, limit) = (self.bytes, self.limit);
        if held.saturating_add(bytes as u64) <= limit {
            return Ok(());
        }
        Err(BackendError::StashLimit { bytes, held, limit })
    }

    /// Adds a stash, within the limit.
    pub fn insert(&mut self, bytes: usize, place: T) -> Result<StashId, BackendError> {
        self.require_room(bytes)?;
        self.made += 1;
        self.bytes += bytes as u64;
        let id = StashId(self.made);
        self.kept.insert(id, KeptStash { bytes, place });
        Ok(id)
    }

    /// Where a stash is.
    pub fn get(&self, op: &'static str, stash: StashId) -> Result<&T, BackendError> {
        let kept = self.kept.get(&stash).ok_or(BackendError::NoStash { op, stash })?;
        Ok(&kept.place)
    }

    /// The same, to be changed; none where there is no such stash.
    pub fn get_mut(&mut self, stash: StashId) -> Option<&mut T> {
        self.kept.get_mut(&stash).map(|kept| &mut kept.place)
    }

    /// Where a stash of so many bytes is.
    pub fn get_sized(&self, stash: StashId, bytes: usize) -> Result<&T, BackendError> {
        let op = "unstash";
        let kept = self.kept.get(&stash).ok_or(BackendError::NoStash { op, stash })?;
        if kept.bytes != bytes {
            return Err(BackendError::StashSize { stash, found: bytes, expected: kept.bytes });
        }
        Ok(&kept.place)
    }

    /// Forgets a stash; where it was.
    pub fn remove(&mut self, stash: StashId) -> Result<T, BackendError> {
        let op = "release_stash";
        let KeptStash { bytes, place } =
            self.kept.remove(&stash).ok_or(BackendError::NoStash { op, stash })?;
        self.bytes -= bytes as u64;
        Ok(place)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.kept.len()
    }
}

/// Bytes of views together, each of which must lie inside its buffer.
pub fn bytes_of_views<C: Catalog + ?Sized>(
    catalog: &C,
    op: &'static str,
    views: &[View],
) -> Result<usize, BackendError> {
    views.iter().try_fold(0, |sum: usize, view| {
        let bytes = view_bytes(catalog, *view).and_then(|bytes| sum.checked_add(bytes));
        bytes.ok_or(BackendError::OutOfRange { op, operand: "view" })
    })
}

fn view_bytes<C: Catalog + ?Sized>(catalog: &C, view: View) -> Option<usize> {
    let info = catalog.buffer(view.buffer)?;
    let end = view.start.checked_add(view.len)?;
    (end <= info.len).then_some(view.len * info.dtype.size())
}

/// Reads views into bytes, one behind the other. Like every read, only where nothing is queued or in flight.
pub fn read_views<B: Backend + ?Sized>(
    backend: &mut B,
    views: &[View],
) -> Result<Vec<u8>, BackendError> {
    let mut bytes = vec![0; bytes_of_views(backend, "stash", views)?];
    let mut rest = &mut bytes[..];
    for &view in views {
        let (part, behind) = rest.split_at_mut(view_bytes(backend, view).unwrap_or(0));
        backend.read(view, HostDataMut::Bytes(part))?;
        rest = behind;
    }
    Ok(bytes)
}

/// Queues writes of bytes to views, one behind the other.
pub fn write_views<B: Backend + ?Sized>(
    backend: &mut B,
    views: &[View],
    bytes: &[u8],
) -> Result<(), BackendError> {
    let mut rest = bytes;
    for &view in views {
        let (part, behind) = rest.split_at(view_bytes(backend, view).unwrap_or(0));
        backend.write(view, HostData::Bytes(part))?;
        rest = behind;
    }
    Ok(())
}

/// The stashes of a device that keeps them as plain host memory: methods of its [`Backend`] implementation. `$stashes`
/// is its field of type `Stashes<Bytes>`, `$copied` a function that copies views to the host, as of this point of the
/// queue.
#[macro_export]
macro_rules! stashes_on_the_host {
    ($stashes:ident, $copied:path) => {
        fn stash(
            &mut self,
            views: &[$crate::View],
        ) -> Result<$crate::StashId, $crate::BackendError> {
            self.$stashes.require_room($crate::bytes_of_views(self, "stash", views)?)?;
            let bytes: Vec<u8> = $copied(self, views)?;
            self.$stashes.insert(bytes.len(), bytes.into())
        }

        fn stash_host(
            &mut self,
            bytes: $crate::Bytes,
        ) -> Result<$crate::StashId, $crate::BackendError> {
            self.$stashes.insert(bytes.len(), bytes)
        }

        fn unstash(
            &mut self,
            stash: $crate::StashId,
            views: &[$crate::View],
        ) -> Result<(), $crate::BackendError> {
            let size = $crate::bytes_of_views(self, "unstash", views)?;
            let bytes = self.$stashes.get_sized(stash, size)?.clone();
            $crate::write_views(self, views, &bytes)
        }

        fn read_stash(
            &mut self,
            stash: $crate::StashId,
        ) -> Result<$crate::Bytes, $crate::BackendError> {
            self.$stashes.get("read_stash", stash).cloned()
        }

        fn release_stash(&mut self, stash: $crate::StashId) -> Result<(), $crate::BackendError> {
            self.$stashes.remove(stash).map(drop)
        }

        fn limit_stashes(&mut self, bytes: u64) {
            self.$stashes.set_limit(bytes);
        }

        fn stash_bytes(&self) -> u64 {
            self.$stashes.bytes()
        }
    };
}
