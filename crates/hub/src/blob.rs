//! Content addresses: what the hub calls the etag of a file, and how bytes are held to it.

use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::fmt;

/// Name of a blob in the cache and checksum of its bytes.
///
/// Large files have the SHA-256 of their content (64 digits); files in git have git's own
/// SHA-1 (40 digits), which covers the length as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlobId(String);

impl BlobId {
    /// Reads an etag, with or without quotes; `None` for anything but a checksum.
    pub(crate) fn parse(etag: &str) -> Option<Self> {
        let bare = etag.trim().trim_start_matches("W/").trim_matches('"');
        let hex = bare.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (hex && matches!(bare.len(), 40 | 64)).then(|| Self(bare.into()))
    }

    /// Begins a checksum of the same kind over `len` bytes.
    pub(crate) fn hasher(&self, len: u64) -> Hasher {
        if self.0.len() == 64 {
            return Hasher::Sha256(Sha256::new());
        }
        let mut sha1 = Sha1::new();
        sha1.update(format!("blob {len}\0"));
        Hasher::Git(sha1)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A checksum in the making.
#[derive(Clone)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sha) => sha.update(bytes),
            Self::Git(sha) => sha.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> BlobId {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        BlobId(match self {
            Self::Sha256(sha) => hex(&sha.finalize()),
            Self::Git(sha) => hex(&sha.finalize()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_checksum_are_those_of_the_tools() {
        // `printf 'hello\n' | git hash-object --stdin` and `| sha256sum`.
        for id in [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ] {
            let blob = BlobId::parse(&format!("\"{id}\"")).unwrap();
            let mut hasher = blob.hasher(6);
            hasher.update(b"hel");
            hasher.update(b"lo\n");
            assert_eq!(hasher.finish(), blob);
        }
    }

    #[test]
    fn what_is_no_checksum_names_no_file() {
        for bad in ["", "abc", "../../../etc/passwd", &"g".repeat(40), &"A".repeat(64)] {
            assert_eq!(BlobId::parse(bad), None, "{bad}");
        }
    }
}
