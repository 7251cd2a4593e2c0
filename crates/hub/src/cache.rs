//! The cache on disk, as the hub's Python client lays it out:
//!
//! ```text
//! models--OWNER--NAME/refs/REVISION            the commit, as text
//! models--OWNER--NAME/blobs/ETAG               content; ETAG.incomplete while it comes
//! models--OWNER--NAME/snapshots/COMMIT/FILE    -> ../../blobs/ETAG
//! .locks/models--OWNER--NAME/ETAG.lock         held while a blob comes
//! ```
//!
//! Where links cannot be made, the file itself moves into the snapshot.

use crate::blob::BlobId;
use crate::listing::{ListedFile, Listing, is_commit};
use crate::retry::sleep;
use crate::{DownloadWatch, HubError, RepoId, link};
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folders inside a snapshot are followed this far.
const MAX_DEPTH: usize = 8;
/// More files than a snapshot has.
const MAX_FILES: usize = 100_000;
/// How often a held lock is tried.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// The part of the cache that belongs to one repository.
pub(crate) struct RepoCache {
    root: PathBuf,
    repo: RepoId,
}

/// Held until dropped.
pub(crate) struct Lock(
    #[expect(dead_code, reason = "closing the file ends the lock")] Option<File>,
);

impl RepoCache {
    pub(crate) fn new(root: &Path, repo: &RepoId) -> Self {
        Self { root: root.into(), repo: repo.clone() }
    }

    pub(crate) fn repo(&self) -> &RepoId {
        &self.repo
    }

    /// The folder of its locks.
    pub(crate) fn locks(&self) -> PathBuf {
        self.root.join(".locks").join(self.repo.folder())
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.root.join(self.repo.folder())
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// Where a file of a snapshot belongs. Names were checked when they were listed; a colon is
    /// refused here because on some systems it names a drive or a hidden stream.
    pub(crate) fn pointer(&self, commit: &str, name: &str) -> Result<PathBuf, HubError> {
        if name.contains(':') {
            let why = format!("the file name `{name}` holds a colon; refused");
            return Err(HubError::Unfit { repo: self.repo.clone(), why });
        }
        Ok(name.split('/').fold(self.snapshot(commit), |path, part| path.join(part)))
    }

    pub(crate) fn blob(&self, blob: &BlobId) -> PathBuf {
        self.folder().join("blobs").join(blob.as_str())
    }

    /// A file of a snapshot with this many bytes, if it is there.
    pub(crate) fn holds(&self, commit: &str, name: &str, size: u64) -> Result<bool, HubError> {
        Ok(has_size(&self.pointer(commit, name)?, size))
    }

    /// The commit of a revision; a commit is its own.
    pub(crate) fn commit_of(&self, revision: &str) -> Result<String, HubError> {
        if is_commit(revision) {
            return Ok(revision.into());
        }
        let path = self.reference(revision)?;
        let mut text = String::new();
        match forerun_base::open_regular(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(self.absent(revision, "it was not fetched"));
            }
            opened => opened
                .and_then(|file| file.take(256).read_to_string(&mut text))
                .map_err(|e| HubError::io(&path, e))?,
        };
        let commit = text.trim();
        if !is_commit(commit) {
            return Err(self.absent(revision, &format!("{} holds no commit", path.display())));
        }
        Ok(commit.into())
    }

    /// Remembers which commit a branch or tag stands for.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.reference(revision)?;
        make_parent(&path)?;
        std::fs::write(&path, commit).map_err(|e| HubError::write(&path, e, commit.len() as u64))
    }

    fn reference(&self, revision: &str) -> Result<PathBuf, HubError> {
        let plain = |part: &str| !matches!(part, "" | "." | "..");
        if !revision.split('/').all(plain) || revision.contains(['\\', ':', '\0']) {
            let revision = revision.into();
            return Err(HubError::NoRevision { repo: self.repo.clone(), revision });
        }
        Ok(revision.split('/').fold(self.folder().join("refs"), |path, part| path.join(part)))
    }

    /// What the snapshot of a revision holds.
    pub(crate) fn list(&self, revision: &str) -> Result<Listing, HubError> {
        let commit = self.commit_of(revision)?;
        let snapshot = self.snapshot(&commit);
        if !snapshot.is_dir() {
            return Err(self.absent(revision, "it was not fetched"));
        }
        let mut files = Vec::new();
        list_folder(&snapshot, "", 0, &mut files)?;
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing { repo: self.repo.clone(), commit, files, originals: Vec::new() })
    }

    pub(crate) fn absent(&self, revision: &str, why: &str) -> HubError {
        HubError::NotCached {
            repo: self.repo.clone(),
            revision: revision.into(),
            cache: self.root.clone(),
            why: why.into(),
        }
    }

    /// Waits until nobody else writes what `name` stands for.
    pub(crate) fn lock(&self, name: &str, watch: &mut dyn DownloadWatch) -> Result<Lock, HubError> {
        let path = self.locks().join(format!("{name}.lock"));
        make_parent(&path)?;
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|e| HubError::io(&path, e))?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock(Some(file))),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut told, true) {
                        watch.note("another program fetches the same file; waiting for it");
                    }
                    sleep(LOCK_POLL, watch)?;
                }
                // Some network disks know no locks; the checksum still guards the file.
                Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {
                    watch.note("this disk has no file locks; do not fetch twice at the same time");
                    return Ok(Lock(None));
                }
                Err(TryLockError::Error(e)) => return Err(HubError::io(&path, e)),
            }
        }
    }

    /// Makes a blob visible in a snapshot.
    pub(crate) fn show(&self, commit: &str, name: &str, blob: &BlobId) -> Result<(), HubError> {
        let pointer = self.pointer(commit, name)?;
        make_parent(&pointer)?;
        let up = "../".repeat(name.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{blob}"));
        place(&self.blob(blob), &pointer, |pointer| link::symlink(&target, pointer))
    }
}

/// Links, or else moves. What stands in the place is of no use, or this would not be called.
fn place(
    blob: &Path,
    pointer: &Path,
    symlink: impl Fn(&Path) -> io::Result<()>,
) -> Result<(), HubError> {
    match std::fs::remove_file(pointer) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(HubError::io(pointer, error));
        }
        _ => {}
    }
    if symlink(pointer).is_ok() {
        return Ok(());
    }
    std::fs::rename(blob, pointer).map_err(|e| HubError::io(pointer, e))
}

pub(crate) fn has_size(path: &Path, size: u64) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.is_file() && about.len() == size)
}

pub(crate) fn make_parent(path: &Path) -> Result<(), HubError> {
    let parent = path.parent().expect("every path of the cache lies in a folder");
    std::fs::create_dir_all(parent).map_err(|e| HubError::io(parent, e))
}

fn list_folder(
    folder: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<ListedFile>,
) -> Result<(), HubError> {
    let io = |e| HubError::io(folder, e);
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // Through the link; one that leads nowhere is an absent file.
        let Ok(about) = std::fs::metadata(entry.path()) else { continue };
        let name = format!("{prefix}{name}");
        if about.is_file() && files.len() < MAX_FILES {
            files.push(ListedFile { name, size: Some(about.len()), blob: None });
        } else if about.is_dir() && depth < MAX_DEPTH {
            list_folder(&entry.path(), &format!("{name}/"), depth + 1, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_links_the_file_moves_into_the_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let (blob, pointer) = (folder.path().join("blob"), folder.path().join("pointer"));
        std::fs::write(&blob, "content").unwrap();
        place(&blob, &pointer, |_| Err(io::ErrorKind::PermissionDenied.into())).unwrap();
        assert_eq!(std::fs::read(&pointer).unwrap(), b"content");
        assert!(!blob.exists());
    }

    #[test]
    fn revisions_that_leave_the_folder_are_refused() {
        let cache = RepoCache::new(Path::new("/c"), &"o/n".parse().unwrap());
        for bad in ["../x", "/etc/x", "a/../b", "", "a\\b", "c:x"] {
            assert!(matches!(cache.commit_of(bad), Err(HubError::NoRevision { .. })), "{bad}");
        }
        assert!(cache.reference("refs/pr/1").is_ok());
    }
}
