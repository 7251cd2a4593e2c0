//! Headers nobody vouches for.
//!
//! [`parse_header`] accepts a header only when it describes the file completely: known
//! dtypes, at most eight axes, byte lengths that follow from shapes without overflow, and
//! tensors that tile the data with no overlap, no hole and no trailing byte, as the format
//! asks. Nothing is allocated beyond what the header's own length allows.
//!
//! Unknown keys inside a tensor's entry are ignored, as the format's own reader does.

use super::dtype;
use crate::json::{MAX_JSON_BYTES, UniqueMap};
use forerun_base::DType;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Bytes in front of the JSON that hold its length.
const PREFIX: usize = 8;
/// More axes than any weight has.
const MAX_AXES: usize = 8;

/// What a header says about one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type.
    pub dtype: DType,
    /// Axes, slowest first.
    pub shape: Vec<usize>,
    /// Where the bytes lie in the file, counted from its first byte.
    pub range: Range<usize>,
}

/// A checked header.
#[derive(Clone, Debug, Default)]
pub struct SafetensorsHeader {
    /// The `__metadata__` strings.
    pub metadata: BTreeMap<String, String>,
    /// Tensors by name.
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// Why bytes are not a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The file ends inside the length prefix.
    #[error("{found} bytes is too short for a safetensors file; expected at least 8")]
    Short {
        /// Bytes in the file.
        found: u64,
    },
    /// The length prefix reaches outside the file or past the cap.
    #[error(
        "the header claims {found} bytes; at most {limit} fit (not a safetensors file, or truncated)"
    )]
    Length {
        /// Bytes claimed.
        found: u64,
        /// Bytes possible.
        limit: u64,
    },
    /// The header is not the JSON it must be.
    #[error("header: {0}")]
    Json(String),
    /// The entry of one tensor contradicts itself, another entry, or the file.
    #[error("tensor `{tensor}`: {why}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Expected and found.
        why: String,
    },
    /// Bytes after the last tensor.
    #[error("tensors end at data byte {expected} but the file holds {found} data bytes")]
    Trailing {
        /// Where the last tensor ends.
        expected: usize,
        /// Data bytes in the file.
        found: usize,
    },
}

/// Parses and checks the header of a file of `file_len` bytes that begins with `head`.
/// `head` must reach at least to the end of the header; the whole file will do.
pub fn parse_header(head: &[u8], file_len: u64) -> Result<SafetensorsHeader, HeaderError> {
    let Some((prefix, rest)) = head.split_first_chunk::<PREFIX>() else {
        return Err(HeaderError::Short { found: head.len() as u64 });
    };
    let claimed = u64::from_le_bytes(*prefix);
    let limit = file_len.saturating_sub(PREFIX as u64).min(rest.len() as u64).min(MAX_JSON_BYTES);
    let outside = HeaderError::Length { found: claimed, limit };
    if claimed > limit {
        return Err(outside);
    }
    let length = usize::try_from(claimed).map_err(|_| outside)?;
    let raw: RawHeader =
        serde_json::from_slice(&rest[..length]).map_err(|e| HeaderError::Json(e.to_string()))?;
    let data_start = PREFIX + length;
    let data_len = usize::try_from(file_len - data_start as u64)
        .map_err(|_| HeaderError::Length { found: file_len, limit: usize::MAX as u64 })?;
    let mut tensors = BTreeMap::new();
    for (name, entry) in raw.tensors {
        let info = entry
            .check(data_len)
            .map_err(|why| HeaderError::Tensor { tensor: name.clone(), why })?;
        tensors.insert(name, info);
    }
    check_tiling(&tensors, data_len)?;
    for info in tensors.values_mut() {
        info.range = info.range.start + data_start..info.range.end + data_start;
    }
    Ok(SafetensorsHeader { metadata: raw.metadata.0, tensors })
}

/// Every data byte belongs to exactly one tensor. Ranges are still relative to the data.
fn check_tiling(
    tensors: &BTreeMap<String, TensorInfo>,
    data_len: usize,
) -> Result<(), HeaderError> {
    let mut order: Vec<(&String, &Range<usize>)> = tensors
        .iter()
        .filter(|(_, info)| !info.range.is_empty())
        .map(|(name, info)| (name, &info.range))
        .collect();
    order.sort_by_key(|(_, range)| (range.start, range.end));
    let mut end = 0;
    let mut before = "";
    for (name, range) in order {
        let fault = |why| HeaderError::Tensor { tensor: name.clone(), why };
        if range.start < end {
            return Err(fault(format!(
                "begins at data byte {} inside `{before}`, which ends at {end}",
                range.start
            )));
        }
        if range.start > end {
            return Err(fault(format!(
                "begins at data byte {} and leaves a hole; expected {end}",
                range.start
            )));
        }
        (end, before) = (range.end, name);
    }
    if end != data_len {
        return Err(HeaderError::Trailing { expected: end, found: data_len });
    }
    Ok(())
}

/// The header as written, before any check against the file.
#[derive(Default)]
struct RawHeader {
    metadata: UniqueMap<String>,
    tensors: BTreeMap<String, RawEntry>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawHeader, A::Error> {
        let mut header = RawHeader::default();
        let mut seen_metadata = false;
        while let Some(name) = entries.next_key::<String>()? {
            let named = |e| A::Error::custom(format!("tensor `{name}`: {e}"));
            let repeated = if name == "__metadata__" {
                header.metadata = entries.next_value().map_err(named)?;
                std::mem::replace(&mut seen_metadata, true)
            } else {
                let entry = entries.next_value().map_err(named)?;
                header.tensors.insert(name.clone(), entry).is_some()
            };
            if repeated {
                return Err(A::Error::custom(format!("tensor `{name}` appears twice")));
            }
            if name.is_empty() {
                return Err(A::Error::custom("a tensor has an empty name"));
            }
        }
        Ok(header)
    }
}

#[derive(serde::Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Dims,
    data_offsets: [u64; 2],
}

impl RawEntry {
    /// The entry as numbers of this machine; the range is relative to the data.
    fn check(self, data_len: usize) -> Result<TensorInfo, String> {
        let dtype = dtype(&self.dtype).ok_or_else(|| format!("unknown dtype `{}`", self.dtype))?;
        let [begin, end] = self.data_offsets;
        let inside = begin <= end && end <= data_len as u64;
        let offsets = usize::try_from(begin).ok().zip(usize::try_from(end).ok());
        let Some((begin, end)) = offsets.filter(|_| inside) else {
            return Err(format!(
                "data_offsets [{begin}, {end}] do not lie in the {data_len} data bytes of the file"
            ));
        };
        let shape: Option<Vec<usize>> =
            self.shape.0.iter().map(|&n| usize::try_from(n).ok()).collect();
        let sized = shape.and_then(|shape| {
            let bytes = shape.iter().try_fold(dtype.size(), |all, &n| all.checked_mul(n))?;
            Some((shape, bytes))
        });
        let Some((shape, bytes)) = sized else {
            return Err(format!("shape {:?} of {dtype} overflows", self.shape.0));
        };
        if bytes != end - begin {
            return Err(format!(
                "shape {shape:?} of {dtype} needs {bytes} bytes; data_offsets hold {}",
                end - begin
            ));
        }
        Ok(TensorInfo { dtype, shape, range: begin..end })
    }
}

/// Axis lengths, refused past [`MAX_AXES`] before more are stored.
struct Dims(Vec<u64>);

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(DimsVisitor)
    }
}

struct DimsVisitor;

impl<'de> Visitor<'de> for DimsVisitor {
    type Value = Dims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_AXES} axis lengths")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut axes: A) -> Result<Dims, A::Error> {
        let mut dims = Vec::new();
        while let Some(axis) = axes.next_element()? {
            if dims.len() == MAX_AXES {
                return Err(A::Error::invalid_length(MAX_AXES + 1, &self));
            }
            dims.push(axis);
        }
        Ok(Dims(dims))
    }
}
