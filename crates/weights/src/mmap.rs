//! Files as shared bytes, without copying. The only unsafe code of the crate.

use crate::WeightsError;
use forerun_base::{Bytes, BytesOwner, open_regular};
use memmap2::Mmap;
use std::path::Path;

/// A file mapped for reading.
struct MappedFile(Mmap);

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl BytesOwner for MappedFile {
    /// Takes the pages out of this process; they may stay in the system's file cache.
    #[cfg(unix)]
    fn release(&self, part: std::ops::Range<usize>) {
        // SAFETY: the map is read-only and backed by its file, so pages that were dropped are read again from there
        // with the same contents (see `map`). An error leaves the pages where they are.
        let _ = unsafe {
            self.0.unchecked_advise_range(
                memmap2::UncheckedAdvice::DontNeed,
                part.start,
                part.len(),
            )
        };
    }
}

/// Maps a whole file for reading. An empty file is refused here because it cannot be mapped.
pub(crate) fn map(path: &Path) -> Result<Bytes, WeightsError> {
    let file = open_regular(path).map_err(|e| WeightsError::io(path, e))?;
    let length = file.metadata().map_err(|e| WeightsError::io(path, e))?.len();
    if length == 0 {
        return Err(WeightsError::checkpoint(path, "the file is empty; download it again"));
    }
    // SAFETY: the map is read-only and private to this process. The bytes stay valid while
    // nobody truncates or rewrites the file underneath, which is the contract of every
    // engine that maps weights: replace a weight file by renaming, never in place.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| WeightsError::io(path, e))?;
    Ok(Bytes::owned_by(MappedFile(map)))
}
