//! One entry as a file.
//!
//! ```text
//! magic 8 · version u32 · kind u32 · identity 32 · key of the entry before 32
//! tokens u32 · filled u32 · bytes of keys and values u64 · bytes of state u64
//! tokens · keys and values · state · SHA-256 of all of it
//! ```
//!
//! Numbers are little-endian. The file's name is its key: a hash of the key before, the kind and the tokens.

use super::super::CacheSalt;
use crate::EngineError;
use forerun_base::{Bytes, Token};
use forerun_model::KV_BLOCK;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io;

const MAGIC: [u8; 8] = *b"FRPREFIX";
const VERSION: u32 = 1;
const HASH: usize = 32;
/// Tokens of an entry at most: a tail holds what is no block yet, which may be a block and some more.
pub(super) const MOST_TOKENS: usize = 2 * KV_BLOCK;
/// Bytes before the tokens.
pub(super) const HEADER: usize = 8 + 4 + 4 + HASH + HASH + 4 + 4 + 8 + 8;

/// Names an entry and, through the key before, every token up to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key([u8; HASH]);

impl Key {
    /// What all entries of one model and one salt stand on.
    pub(crate) fn root(identity: &[u8; HASH], salt: Option<&CacheSalt>) -> Self {
        let mut hash = Sha256::new().chain_update(b"prefix cache").chain_update(identity);
        if let Some(CacheSalt(salt)) = salt {
            hash.update(salt);
        }
        Self(hash.finalize().into())
    }

    /// The block or tail of these tokens after this one.
    pub(crate) fn next(&self, tail: bool, tokens: &[Token]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update([u8::from(tail)]);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        Self(hash.finalize().into())
    }

    /// The name of its file, without an extension.
    pub(super) fn name(&self) -> String {
        self.0.iter().fold(String::new(), |mut name, byte| {
            write!(name, "{byte:02x}").expect("a string takes everything");
            name
        })
    }
}

/// Why bytes are no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileError {
    #[error("not a file of the prefix cache")]
    Magic,
    #[error("version {0}; this one reads {VERSION}")]
    Version(u32),
    #[error("{0}")]
    Header(&'static str),
    #[error("{found} bytes, expected {expected}")]
    Length { found: u64, expected: u64 },
    #[error("the contents are not what was written")]
    Hash,
}

/// What a file says before its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) identity: [u8; HASH],
    pub(super) parent: Key,
    pub(super) tail: bool,
    pub(super) tokens: Vec<Token>,
    filled: u32,
    kv: u64,
    state: u64,
}

impl Header {
    /// Reads a header and its tokens from the beginning of a file of `len` bytes.
    pub(super) fn parse(bytes: &[u8], len: u64) -> Result<Self, FileError> {
        let mut rest = Fields(bytes);
        if rest.take::<8>()? != MAGIC {
            return Err(FileError::Magic);
        }
        let version = rest.u32()?;
        if version != VERSION {
            return Err(FileError::Version(version));
        }
        let tail = match rest.u32()? {
            0 => false,
            1 => true,
            _ => return Err(FileError::Header("unknown kind of entry")),
        };
        let (identity, parent) = (rest.take()?, Key(rest.take()?));
        let (count, filled, kv, state) =
            (rest.u32()? as usize, rest.u32()?, rest.u64()?, rest.u64()?);
        let most = if tail { MOST_TOKENS } else { KV_BLOCK + 1 };
        if count > most || (!tail && count < KV_BLOCK) {
            return Err(FileError::Header("a number of tokens that no entry has"));
        }
        if !tail && state > 0 {
            return Err(FileError::Header("a state where no entry has one"));
        }
        let fixed = (HEADER + 4 * count + HASH) as u64;
        let expected = kv.checked_add(state).and_then(|sum| sum.checked_add(fixed));
        let expected = expected.ok_or(FileError::Header("absurd sizes"))?;
        if expected != len {
            return Err(FileError::Length { found: len, expected });
        }
        let tokens = (0..count).map(|_| rest.u32()).collect::<Result<_, _>>()?;
        Ok(Self { identity, parent, tail, tokens, filled, kv, state })
    }

    /// The header and its tokens as they stand in a file.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + 4 * self.tokens.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.tail).to_le_bytes());
        bytes.extend_from_slice(&self.identity);
        bytes.extend_from_slice(&self.parent.0);
        bytes.extend_from_slice(&(self.tokens.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.filled.to_le_bytes());
        bytes.extend_from_slice(&self.kv.to_le_bytes());
        bytes.extend_from_slice(&self.state.to_le_bytes());
        self.tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        bytes
    }

    /// The key of the entry.
    pub(super) fn key(&self) -> Key {
        self.parent.next(self.tail, &self.tokens)
    }
}

/// Bytes still to be read.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let short = FileError::Header("cut short");
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(short)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u32(&mut self) -> Result<u32, FileError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, FileError> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

/// What makes a record a tail's.
#[derive(Clone, Debug)]
pub(crate) struct TailBytes {
    /// The state at its end, empty for networks that need none.
    pub(crate) state: Bytes,
    /// Positions the MTP head has taken in.
    pub(crate) filled: u32,
}

/// An entry on its way to disk, or back.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) parent: Key,
    /// Tokens since the entry before, and of a block perhaps the one after it.
    pub(crate) tokens: Vec<Token>,
    /// Keys and values, in as many parts as there are at hand.
    pub(crate) kv: Vec<Bytes>,
    /// None of a block.
    pub(crate) tail: Option<TailBytes>,
}

impl Record {
    pub(crate) fn key(&self) -> Key {
        self.parent.next(self.tail.is_some(), &self.tokens)
    }

    /// Bytes of keys and values, and of the state.
    pub(crate) fn sizes(&self) -> [usize; 2] {
        let kv = self.kv.iter().map(|part| part.len()).sum();
        [kv, self.tail.as_ref().map_or(0, |tail| tail.state.len())]
    }

    /// What its file says before the contents.
    pub(super) fn header(&self, identity: &[u8; HASH]) -> Header {
        let [kv, state] = self.sizes();
        Header {
            identity: *identity,
            parent: self.parent,
            tail: self.tail.is_some(),
            tokens: self.tokens.clone(),
            filled: self.tail.as_ref().map_or(0, |tail| tail.filled),
            kv: kv as u64,
            state: state as u64,
        }
    }

    /// Bytes of its file.
    pub(super) fn len(&self) -> u64 {
        let [kv, state] = self.sizes();
        (HEADER + 4 * self.tokens.len() + kv + state + HASH) as u64
    }

    /// Writes the file's contents.
    pub(super) fn write(&self, identity: &[u8; HASH], to: &mut dyn io::Write) -> io::Result<()> {
        let head = self.header(identity).bytes();
        let mut hash = Sha256::new();
        let state = self.tail.as_ref().map(|tail| &tail.state[..]);
        let kv = self.kv.iter().map(|part| &part[..]);
        for part in [&head[..]].into_iter().chain(kv).chain(state) {
            hash.update(part);
            to.write_all(part)?;
        }
        to.write_all(&hash.finalize())
    }

    /// Reads a whole file of this identity.
    pub(super) fn parse(bytes: &Bytes, identity: &[u8; HASH]) -> Result<Self, FileError> {
        let header = Header::parse(bytes, bytes.len() as u64)?;
        if header.identity != *identity {
            return Err(FileError::Header("made by another model or on another device"));
        }
        // The header's sizes add up to what is there.
        let (contents, hash) = bytes.split_at(bytes.len() - HASH);
        if Sha256::digest(contents)[..] != *hash {
            return Err(FileError::Hash);
        }
        let start = HEADER + 4 * header.tokens.len();
        let middle = start + header.kv as usize;
        let part = |range| bytes.slice(range).ok_or(FileError::Header("absurd sizes"));
        let kv = vec![part(start..middle)?];
        let (state, filled) = (part(middle..bytes.len() - HASH)?, header.filled);
        let tail = header.tail.then_some(TailBytes { state, filled });
        Ok(Self { parent: header.parent, tokens: header.tokens, kv, tail })
    }
}

/// A file of the prefix cache, whoever made it: for tools that look into a folder.
#[derive(Clone, Debug)]
pub struct CacheFile {
    identity: [u8; HASH],
    record: Record,
}

impl CacheFile {
    /// Reads a whole file and checks all of it.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, EngineError> {
        let bytes = Bytes::from(bytes);
        let refused = |why: FileError| EngineError::Cache(why.to_string());
        let identity = Header::parse(&bytes, bytes.len() as u64).map_err(refused)?.identity;
        let record = Record::parse(&bytes, &identity).map_err(refused)?;
        Ok(Self { identity, record })
    }

    /// Tokens whose keys and values it holds.
    pub fn tokens(&self) -> &[Token] {
        &self.record.tokens
    }

    /// Whether a sequence can go on from it: it holds a recurrent state.
    pub fn has_state(&self) -> bool {
        self.record.tail.is_some()
    }

    /// The name it must have, without an extension.
    pub fn name(&self) -> String {
        self.record.key().name()
    }

    /// The file again.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.record.len() as usize);
        self.record.write(&self.identity, &mut bytes).expect("a vector takes everything");
        bytes
    }
}

#[cfg(test)]
mod tests;
