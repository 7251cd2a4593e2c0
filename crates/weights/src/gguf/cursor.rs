//! Reading forward through bytes nobody vouches for. Every length is compared with what is
//! left before anything is taken or allocated.

use super::GgufError;
use std::fmt;

/// What is being read, for errors.
#[derive(Clone, Copy)]
pub(super) enum GgufLocation<'a> {
    Header,
    KeyNumber(u64),
    Key(&'a str),
    TensorNumber(u64),
    Tensor(&'a str),
}

impl fmt::Display for GgufLocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "the header"),
            Self::KeyNumber(n) => write!(f, "key number {n}"),
            Self::Key(key) => write!(f, "key `{key}`"),
            Self::TensorNumber(n) => write!(f, "the entry of tensor number {n}"),
            Self::Tensor(name) => write!(f, "tensor `{name}`"),
        }
    }
}

impl GgufLocation<'_> {
    pub(super) fn fault(self, why: impl Into<String>) -> GgufError {
        GgufError::Fault { place: self.to_string(), why: why.into() }
    }
}

pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(super) fn take(
        &mut self,
        count: u64,
        place: GgufLocation<'_>,
    ) -> Result<&'a [u8], GgufError> {
        if count > self.left() {
            let (place, found) = (place.to_string(), self.left());
            return Err(GgufError::Ends { place, expected: count, found });
        }
        let taken = &self.bytes[self.at..self.at + count as usize];
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, place: GgufLocation<'_>) -> Result<[u8; N], GgufError> {
        let taken = self.take(N as u64, place)?;
        Ok(taken.try_into().expect("exactly N bytes were taken"))
    }

    pub(super) fn u32(&mut self, place: GgufLocation<'_>) -> Result<u32, GgufError> {
        self.array(place).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, place: GgufLocation<'_>) -> Result<u64, GgufError> {
        self.array(place).map(u64::from_le_bytes)
    }

    /// A text: its length, then UTF-8.
    pub(super) fn text(&mut self, place: GgufLocation<'_>) -> Result<&'a str, GgufError> {
        let length = self.u64(place)?;
        let bytes = self.take(length, place)?;
        std::str::from_utf8(bytes).map_err(|e| place.fault(format!("text is not UTF-8: {e}")))
    }

    /// A claimed number of `things`, each of at least `least` bytes, as far as they can exist.
    pub(super) fn fits(
        &self,
        claimed: u64,
        things: &str,
        least: u64,
        place: GgufLocation<'_>,
    ) -> Result<usize, GgufError> {
        let most = self.left() / least;
        if claimed > most {
            return Err(place.fault(format!(
                "claims {claimed} {things}; at most {most} fit in the rest of the file"
            )));
        }
        Ok(claimed as usize)
    }
}
