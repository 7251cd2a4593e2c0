//! Symbolic links where the system has them.

use std::io;
use std::path::Path;

/// Makes `link` point to `target`, which is relative to the link's folder.
#[cfg(unix)]
pub(crate) fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Links to files may need a right that most users lack; the caller then moves the file.
#[cfg(windows)]
pub(crate) fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

/// There are no links here.
#[cfg(not(any(unix, windows)))]
pub(crate) fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
