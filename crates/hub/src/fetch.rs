//! One file into the cache: resumed, retried, checked.

use crate::blob::Hasher;
use crate::cache::{RepoCache, has_size, make_parent};
use crate::http::{HttpClient, HttpReply, Query, text_of};
use crate::listing::{FileIdentity, Listing, file_url, refusal};
use crate::retry::{Tries, TryError};
use crate::{DownloadWatch, HubError};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CHUNK: usize = 256 << 10;
/// A server that sends less than this in [`PACE_WINDOW`] is as good as gone.
const PACE_BYTES: u64 = 4 << 10;
const PACE_WINDOW: Duration = Duration::from_secs(60);

/// The file to fetch.
pub(crate) struct FileDownload<'a> {
    pub(crate) http: &'a HttpClient,
    pub(crate) cache: &'a RepoCache,
    pub(crate) listing: &'a Listing,
    pub(crate) name: &'a str,
    pub(crate) identity: &'a FileIdentity,
    /// Bytes of the plan that were there before this file.
    pub(crate) before: u64,
}

/// What is on disk of a blob that is still coming.
struct PartialBlob {
    path: PathBuf,
    file: File,
    len: u64,
    hasher: Hasher,
}

impl FileDownload<'_> {
    /// Brings the file into its snapshot; gives the bytes that came over the network.
    pub(crate) fn run(&self, watch: &mut dyn DownloadWatch) -> Result<u64, HubError> {
        let FileIdentity { size, blob } = self.identity;
        if self.cache.holds(&self.listing.commit, self.name, *size)? {
            return Ok(0);
        }
        let path = self.cache.blob(blob);
        make_parent(&path)?;
        let _lock = self.cache.lock(blob.as_str(), watch)?;
        let mut came = 0;
        // Somebody else may have fetched it while this one waited.
        if !has_size(&path, *size) {
            let mut partial = self.open_partial(&path, watch)?;
            came = self.download(&mut partial, watch)?;
            self.finish(partial, &path)?;
        }
        self.cache.show(&self.listing.commit, self.name, blob)?;
        Ok(came)
    }

    /// Opens what an earlier run left and takes it into the checksum.
    fn open_partial(
        &self,
        blob: &Path,
        watch: &mut dyn DownloadWatch,
    ) -> Result<PartialBlob, HubError> {
        let path = PathBuf::from(format!("{}.incomplete", blob.display()));
        let io = |e| HubError::io(&path, e);
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io)?;
        let mut hasher = self.identity.blob.hasher(self.identity.size);
        let mut len = file.metadata().map_err(io)?.len();
        if len > self.identity.size {
            file.set_len(0).map_err(io)?;
            len = 0;
        }
        let mut buffer = vec![0; CHUNK];
        let mut read = 0;
        while read < len {
            if watch.stop() {
                return Err(HubError::Stopped);
            }
            let n = file.read(&mut buffer).map_err(io)?;
            if n == 0 {
                len = read;
            }
            hasher.update(&buffer[..n]);
            read += n as u64;
        }
        Ok(PartialBlob { path, file, len, hasher })
    }

    fn download(
        &self,
        partial: &mut PartialBlob,
        watch: &mut dyn DownloadWatch,
    ) -> Result<u64, HubError> {
        let url = file_url(self.http, &self.listing.repo, &self.listing.commit, self.name);
        let mut tries = Tries::new(self.name, self.http.patience);
        let mut came = 0;
        watch.bytes(self.before + partial.len);
        while partial.len < self.identity.size {
            let before = came;
            if let Err(fault) = self.try_once(&url, partial, watch, &mut came) {
                tries.gain(came - before);
                tries.after(fault, watch)?;
            }
        }
        Ok(came)
    }

    /// One connection: appends what it brings.
    fn try_once(
        &self,
        url: &str,
        partial: &mut PartialBlob,
        watch: &mut dyn DownloadWatch,
        came: &mut u64,
    ) -> Result<(), TryError> {
        let range = (partial.len > 0).then_some((partial.len, None));
        let reply = self.http.send(&Query { url, head: false, range, within: None })?;
        match reply.status {
            206 if range.is_some() => self.check_range(&reply, partial.len)?,
            // A server without ranges begins at the beginning; so does one that no longer has
            // the requested bytes.
            200 | 416 => self.restart(partial)?,
            _ => return Err(refusal(self.http, &self.listing.repo, None, &reply)),
        }
        if reply.status == 416 {
            return Err(TryError::passing("the server does not know the rest of the file"));
        }
        self.append(reply, partial, watch, came)
    }

    fn check_range(&self, reply: &HttpReply, start: u64) -> Result<(), HubError> {
        let size = self.identity.size;
        let said = text_of(&reply.headers, "content-range").unwrap_or_default();
        let expected = format!("bytes {start}-{}/{size}", size - 1);
        if said == expected {
            return Ok(());
        }
        let why = format!("requested `{expected}`, the server sends `{said}`");
        Err(HubError::answer(self.name, why))
    }

    fn restart(&self, partial: &mut PartialBlob) -> Result<(), HubError> {
        if partial.len == 0 {
            return Ok(());
        }
        partial.file.set_len(0).map_err(|e| HubError::io(&partial.path, e))?;
        partial.len = 0;
        partial.hasher = self.identity.blob.hasher(self.identity.size);
        Ok(())
    }

    fn append(
        &self,
        reply: HttpReply,
        partial: &mut PartialBlob,
        watch: &mut dyn DownloadWatch,
        came: &mut u64,
    ) -> Result<(), TryError> {
        let size = self.identity.size;
        let PartialBlob { path, file, len, hasher } = partial;
        // By offset and not at the end: on a disk without locks, two writers write the same bytes.
        file.seek(SeekFrom::Start(*len)).map_err(|e| HubError::io(path, e))?;
        let mut body = reply.body;
        let mut buffer = vec![0; CHUNK];
        let mut pace = MinimumRate::new();
        loop {
            if watch.stop() {
                return Err(HubError::Stopped.into());
            }
            let n = body.read(&mut buffer).map_err(TryError::passing)?;
            if n == 0 {
                break;
            }
            if n as u64 > size - *len {
                let why = format!("the server sends more than the {size} bytes it lists");
                return Err(HubError::answer(self.name, why).into());
            }
            file.write_all(&buffer[..n]).map_err(|e| HubError::write(path, e, size - *len))?;
            hasher.update(&buffer[..n]);
            *len += n as u64;
            *came += n as u64;
            watch.bytes(self.before + *len);
            pace.check(n)?;
        }
        if *len < size {
            return Err(TryError::passing(format!(
                "the connection ends after {len} of {size} bytes"
            )));
        }
        Ok(())
    }

    fn finish(&self, partial: PartialBlob, blob: &Path) -> Result<(), HubError> {
        let PartialBlob { path, file, hasher, .. } = partial;
        let found = hasher.finish();
        if found != self.identity.blob {
            drop(file);
            std::fs::remove_file(&path).map_err(|e| HubError::io(&path, e))?;
            return Err(HubError::Checksum {
                file: self.name.into(),
                expected: self.identity.blob.to_string(),
                found: found.to_string(),
            });
        }
        file.sync_all().map_err(|e| HubError::write(&path, e, 0))?;
        drop(file);
        std::fs::rename(&path, blob).map_err(|e| HubError::io(blob, e))
    }
}

/// Ends connections that only pretend to live.
pub(crate) struct MinimumRate {
    began: Instant,
    bytes: u64,
}

impl MinimumRate {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), bytes: 0 }
    }

    pub(crate) fn check(&mut self, came: usize) -> Result<(), TryError> {
        self.bytes += came as u64;
        if self.began.elapsed() < PACE_WINDOW {
            return Ok(());
        }
        let slow = self.bytes < PACE_BYTES;
        *self = Self::new();
        if slow { Err(TryError::passing("the server hardly sends anything")) } else { Ok(()) }
    }
}
