//! Folders and files for their owner alone: 0700 and 0600 where a system has modes.
//!
//! What is made is made so, whatever the umask. What was there before is narrowed where it is the process's own; where
//! it is not, the system refuses and the owner's choice stands.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::path::Path;

/// Makes a folder and those above it that are missing.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    modes::folder(&mut builder);
    builder.create(path)
}

/// Makes an empty file.
pub(super) fn create_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    modes::file(&mut options);
    let file = options.open(path)?;
    narrow_file(path);
    Ok(file)
}

/// Takes the rights of others from a file that was there before.
pub(super) fn narrow_file(path: &Path) {
    modes::narrow(path, 0);
}

/// The same for a folder; not for one that many may write to, as `/tmp`.
pub(super) fn narrow_folder(path: &Path) {
    const STICKY: u32 = 0o1000;
    modes::narrow(path, STICKY);
}

#[cfg(unix)]
mod modes {
    use std::fs::{self, DirBuilder, OpenOptions, Permissions};
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
    use std::path::Path;

    const OTHERS: u32 = 0o077;

    pub(super) fn folder(builder: &mut DirBuilder) {
        builder.mode(0o700);
    }

    pub(super) fn file(options: &mut OpenOptions) {
        options.mode(0o600);
    }

    /// Takes away the rights of others, unless the mode has a bit of `unless`.
    pub(super) fn narrow(path: &Path, unless: u32) {
        let Ok(meta) = fs::metadata(path) else { return };
        let mode = meta.permissions().mode();
        if mode & OTHERS != 0 && mode & unless == 0 {
            // Refused where somebody else owns it, and then it is for them to decide.
            let _ = fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS));
        }
    }
}

#[cfg(not(unix))]
mod modes {
    use std::fs::{DirBuilder, OpenOptions};
    use std::path::Path;

    pub(super) fn folder(_builder: &mut DirBuilder) {}

    pub(super) fn file(_options: &mut OpenOptions) {}

    pub(super) fn narrow(_path: &Path, _unless: u32) {}
}
