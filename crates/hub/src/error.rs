//! Why a model does not come. Each message says what to do where anything can be done.

use crate::RepoId;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Something in the way of a model.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not the name of a repository.
    #[error("`{given}` is not a model on the hub: {why}")]
    Name {
        /// As it was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// An environment variable or file that cannot be used.
    #[error("{name}: {why}")]
    Setting {
        /// The variable or file.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The hub knows no such repository.
    #[error("{url}: there is no model {repo}; check the name (a private one needs HF_TOKEN)")]
    NoRepo {
        /// The repository.
        repo: RepoId,
        /// Where it was looked for.
        url: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repo} has no revision `{revision}`; --revision takes a branch, a tag or a commit")]
    NoRevision {
        /// The repository.
        repo: RepoId,
        /// The revision.
        revision: String,
    },
    /// The hub wants to know who asks, or does not let them in.
    #[error("{}", refused(.repo, .url, *.code, *.token))]
    Refused {
        /// The repository.
        repo: RepoId,
        /// Its page, where terms are accepted.
        url: String,
        /// 401 or 403.
        code: u16,
        /// Whether a token was sent.
        token: bool,
    },
    /// Another answer than the protocol has.
    #[error("{what}: {why}")]
    Answer {
        /// What was requested.
        what: String,
        /// What came.
        why: String,
    },
    /// The connection does not work.
    #[error("{what}: {why}{}", after(*.tries))]
    Network {
        /// What was requested.
        what: String,
        /// What went wrong, the last time.
        why: String,
        /// How often it was tried.
        tries: u32,
    },
    /// A file whose bytes are not those the hub lists.
    #[error(
        "{file}: checksum mismatch: expected {expected}, found {found}; the download is deleted, \
         run again to fetch it anew"
    )]
    Checksum {
        /// The file.
        file: String,
        /// What the hub lists.
        expected: String,
        /// What came.
        found: String,
    },
    /// No room.
    #[error("{}: the disk is full; {need} bytes are still to come, and a partial file is kept", path.display())]
    DiskFull {
        /// What was being written.
        path: PathBuf,
        /// Bytes to come.
        need: u64,
    },
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The repository holds nothing this program runs.
    #[error("{repo}: {why}")]
    Unfit {
        /// The repository.
        repo: RepoId,
        /// What is missing or in the way.
        why: String,
    },
    /// More than one file fits.
    #[error("{repo} holds {} files that fit; name one: {}", files.len(), listed(.files))]
    Several {
        /// The repository.
        repo: RepoId,
        /// Names and bytes; a split set counts once, under its first file.
        files: Vec<(String, Option<u64>)>,
    },
    /// Not in the cache, and the network may not be used.
    #[error("{repo} at `{revision}` is not in the cache {}: {why}", cache.display())]
    NotCached {
        /// The repository.
        repo: RepoId,
        /// The revision.
        revision: String,
        /// The cache.
        cache: PathBuf,
        /// What is missing.
        why: String,
    },
    /// [`crate::DownloadWatch::stop`] said so.
    #[error("stopped")]
    Stopped,
}

impl HubError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// An error of a write with `need` bytes still to come.
    pub(crate) fn write(path: &Path, source: io::Error, need: u64) -> Self {
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Self::DiskFull { path: path.into(), need }
            }
            _ => Self::io(path, source),
        }
    }

    pub(crate) fn answer(what: &str, why: impl ToString) -> Self {
        Self::Answer { what: what.into(), why: why.to_string() }
    }
}

fn refused(repo: &RepoId, url: &str, code: u16, token: bool) -> String {
    let advice = if token {
        "the token of HF_TOKEN or the token file does not open it"
    } else {
        "set HF_TOKEN to a token of your account"
    };
    format!(
        "{repo} is gated, private or unknown (status {code}): check the name, accept its terms at \
         {url}; {advice}"
    )
}

fn after(tries: u32) -> String {
    if tries > 1 { format!(" (tried {tries} times)") } else { String::new() }
}

fn listed(files: &[(String, Option<u64>)]) -> String {
    files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}
