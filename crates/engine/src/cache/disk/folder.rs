//! A folder of entries: opening it, reading and writing files, keeping to a size.

use super::file::{FileError, HEADER, Header, Key, MOST_TOKENS, Record};
use super::index::Index;
use crate::EngineError;
use forerun_base::Bytes;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// A folder for the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// Where the files are; made if it is not there. One process uses it at a time.
    pub folder: PathBuf,
    /// Most bytes of files.
    pub bytes: u64,
    /// The model: whatever changes its numbers must change this. Device and types of elements are added.
    pub identity: String,
}

const EXTENSION: &str = "prefix";
const UNFINISHED: &str = "unfinished";

/// An open folder. The lock is held as long as it lives.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    identity: [u8; 32],
    limit: u64,
    _lock: File,
}

/// What opening a folder found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) index: Index,
    /// Files that were removed because they are no entries.
    pub(super) bad: u64,
}

impl Folder {
    /// Opens a folder and reads what it holds.
    pub(super) fn open(
        settings: &DiskSettings,
        identity: [u8; 32],
    ) -> Result<(Self, Scan), EngineError> {
        let path = &settings.folder;
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            EngineError::Cache(format!("{what} {}: {error}", path.display()))
        };
        fs::create_dir_all(path).map_err(|error| failed("cannot make folder", &error))?;
        let lock =
            File::create(path.join("lock")).map_err(|error| failed("cannot lock", &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(failed(
                    "cannot lock",
                    &"another process uses it; choose another folder",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed("cannot lock", &error)),
        }
        let folder = Self { path: path.clone(), identity, limit: settings.bytes, _lock: lock };
        let mut scan = folder.scan().map_err(|error| failed("cannot read folder", &error))?;
        folder.make_room(&mut scan.index, 0);
        Ok((folder, scan))
    }

    /// Headers of all files, in the order they were written. What is no entry is removed; names that are not ours are
    /// left alone.
    fn scan(&self) -> io::Result<Scan> {
        let mut scan = Scan::default();
        let mut headers = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(EXTENSION) => {}
                Some(UNFINISHED) => {
                    // A write that never ended.
                    fs::remove_file(&path)?;
                    continue;
                }
                _ => continue,
            }
            match read_header(&path) {
                Ok(Some((header, meta))) => headers.push((meta.modified()?, header, meta.len())),
                Ok(None) | Err(_) => {
                    fs::remove_file(&path)?;
                    scan.bad += 1;
                }
            }
        }
        headers.sort_by_key(|(written, ..)| *written);
        for (_, header, len) in headers {
            scan.index.insert(header, len);
        }
        scan.index.settle();
        Ok(scan)
    }

    fn path_of(&self, key: &Key, extension: &str) -> PathBuf {
        self.path.join(key.name()).with_extension(extension)
    }

    /// Removes files until `more` bytes fit; how many. A file that cannot be removed counts as gone: it is found
    /// again when the folder is next opened.
    pub(super) fn make_room(&self, index: &mut Index, more: u64) -> u64 {
        let mut removed = 0;
        while index.bytes().saturating_add(more) > self.limit {
            let Some(key) = index.oldest() else { break };
            self.remove(index, &key);
            removed += 1;
        }
        removed
    }

    /// Removes a file.
    pub(super) fn remove(&self, index: &mut Index, key: &Key) {
        index.remove(key);
        // Nothing depends on whether it is still there.
        drop(fs::remove_file(self.path_of(key, EXTENSION)));
    }

    /// Bytes the folder may hold.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Writes an entry whole or not at all; what the index is to know of it.
    pub(super) fn write(&self, record: &Record) -> io::Result<Header> {
        let key = record.key();
        let unfinished = self.path_of(&key, UNFINISHED);
        let written = self.write_to(record, &unfinished);
        let renamed = written.and_then(|()| fs::rename(&unfinished, self.path_of(&key, EXTENSION)));
        if renamed.is_err() {
            drop(fs::remove_file(&unfinished));
        }
        renamed?;
        Ok(record.header(&self.identity))
    }

    fn write_to(&self, record: &Record, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        record.write(&self.identity, &mut file)?;
        file.flush()?;
        file.get_ref().sync_all()
    }

    /// Reads an entry and checks all of it.
    pub(super) fn read(&self, key: &Key, len: u64) -> Result<Record, String> {
        let path = self.path_of(key, EXTENSION);
        let read = || -> io::Result<Vec<u8>> {
            let file = forerun_base::open_regular(&path)?;
            let mut bytes = Vec::new();
            let room = usize::try_from(len).map_err(io::Error::other)?;
            bytes.try_reserve_exact(room).map_err(io::Error::other)?;
            // One byte more than known tells a file that grew.
            file.take(len.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = Bytes::from(read().map_err(|error| error.to_string())?);
        let record = Record::parse(&bytes, &self.identity).map_err(|error| error.to_string())?;
        if record.key() == *key { Ok(record) } else { Err("another entry's name".to_owned()) }
    }
}

/// The header of a file whose name fits it.
fn read_header(path: &Path) -> io::Result<Option<(Header, fs::Metadata)>> {
    let file = forerun_base::open_regular(path)?;
    let meta = file.metadata()?;
    let mut bytes = Vec::with_capacity(HEADER + 4 * MOST_TOKENS);
    file.take((HEADER + 4 * MOST_TOKENS) as u64).read_to_end(&mut bytes)?;
    let header: Result<Header, FileError> = Header::parse(&bytes, meta.len());
    let name = path.file_stem().and_then(|name| name.to_str());
    let fits = |header: &Header| name == Some(&header.key().name());
    Ok(header.ok().filter(fits).map(|header| (header, meta)))
}
