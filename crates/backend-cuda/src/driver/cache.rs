//! Compiled kernels on disk, under the user's cache folder.
//!
//! A file's name is a hash of everything its contents follow from. Files appear whole, by renaming, so two processes
//! may write at once; what cannot be written is compiled again the next time.

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::{env, fs, io, process};

/// A name for what follows from `parts`.
pub(super) fn key(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The folder for compiled kernels, where the user has a cache folder.
pub(super) fn folder() -> Option<PathBuf> {
    let from = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = from("XDG_CACHE_HOME")
        .or_else(|| from("LOCALAPPDATA"))
        .or_else(|| from("HOME").map(|home| home.join(".cache")))?;
    cache.is_absolute().then(|| cache.join("forerun").join("kernels"))
}

/// The contents of a file, if there is one.
pub(super) fn read(folder: &Path, name: &str) -> Option<Vec<u8>> {
    fs::read(folder.join(name)).ok().filter(|bytes| !bytes.is_empty())
}

/// Writes a file that appears whole, in a folder that only the user can enter.
pub(super) fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    make_private(folder)?;
    let new = folder.join(format!("{name}.{}", process::id()));
    fs::write(&new, bytes).and_then(|()| fs::rename(&new, folder.join(name))).inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// Makes a folder that only the user can enter, because the code in it is executed.
pub(super) fn make_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_apart_where_one_part_ends() {
        // Pinned: another key would leave what earlier versions compiled unused.
        assert_eq!(key(&[b"ab", b"c"]), "43ee655579de01ca739b3f95c1c2d3f4");
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_eq!(key(&[]).len(), 32);
    }
}
