//! Files as shared bytes, without copying. The only unsafe code of the crate.

use crate::WeightsError;
use forerun_base::{Bytes, open_regular};
use memmap2::Mmap;
use std::path::Path;

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
    Ok(Bytes::new(map))
}
