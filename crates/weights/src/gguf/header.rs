//! The container: magic, version, metadata, tensor entries, data.

use super::cursor::{Cursor, GgufLocation};
use super::{GgufError, Metadata};
use crate::Storage;
use std::collections::BTreeMap;
use std::ops::Range;

const MAGIC: [u8; 4] = *b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
/// What the data and every tensor in it begin at a multiple of, unless the file says otherwise.
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT: &str = "general.alignment";
/// More axes than ggml has.
const MAX_AXES: u32 = 4;
/// The least bytes of a tensor's entry: an empty name, no axes, a type, an offset.
const LEAST_ENTRY: u64 = 24;

/// What a GGUF file says about one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufTensor {
    /// How its values are stored.
    pub storage: Storage,
    /// Axes, slowest first: the file has them the other way round.
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file; empty when the type is not known.
    pub range: Range<usize>,
}

/// A checked header.
#[derive(Clone, Debug)]
pub struct GgufHeader {
    /// Version of the container.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// Tensors by name.
    pub tensors: BTreeMap<String, GgufTensor>,
}

/// Parses and checks a whole file. What is accepted describes only bytes that exist, each of
/// them for one tensor at most.
pub fn parse(bytes: &[u8]) -> Result<GgufHeader, GgufError> {
    let mut cursor = Cursor::new(bytes);
    let version = version(&mut cursor)?;
    let tensor_count = cursor.u64(GgufLocation::Header)?;
    let key_count = cursor.u64(GgufLocation::Header)?;
    let metadata = Metadata::read(&mut cursor, key_count)?;
    let alignment = alignment(&metadata)?;
    let entries = entries(&mut cursor, tensor_count)?;
    let data = Data { start: cursor.at() as u64, file: bytes.len() as u64, alignment };
    let mut tensors = BTreeMap::new();
    for entry in entries {
        let tensor = entry.check(&data)?;
        if tensors.insert(entry.name.to_owned(), tensor).is_some() {
            return Err(GgufLocation::Tensor(entry.name).fault("appears twice"));
        }
    }
    check_overlap(&tensors)?;
    Ok(GgufHeader { version, metadata, tensors })
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic = cursor.take(MAGIC.len() as u64, GgufLocation::Header)?;
    if magic != MAGIC {
        return Err(GgufError::Magic { found: magic.to_vec() });
    }
    let found = cursor.u32(GgufLocation::Header)?;
    match found {
        _ if VERSIONS.contains(&found) => Ok(found),
        _ if (1..=VERSIONS[1]).contains(&found.swap_bytes()) => Err(GgufError::BigEndian),
        _ => Err(GgufError::Version { found }),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    if !metadata.keys().any(|key| key == ALIGNMENT) {
        return Ok(DEFAULT_ALIGNMENT);
    }
    let fault = |what: String| {
        GgufLocation::Key(ALIGNMENT).fault(format!("{what}; expected a power of two"))
    };
    match metadata.count(ALIGNMENT) {
        Some(stated) if stated.is_power_of_two() => Ok(stated),
        Some(stated) => Err(fault(format!("is {stated}"))),
        None => Err(fault("is not a count".into())),
    }
}

/// A tensor's entry as written.
struct HeaderEntry<'a> {
    name: &'a str,
    /// Fastest first.
    dims: Vec<u64>,
    storage: Storage,
    /// Relative to the data.
    offset: u64,
}

fn entries<'a>(cursor: &mut Cursor<'a>, claimed: u64) -> Result<Vec<HeaderEntry<'a>>, GgufError> {
    let count = cursor.fits(claimed, "tensors", LEAST_ENTRY, GgufLocation::Header)?;
    let mut entries = Vec::with_capacity(count);
    for number in 0..count as u64 {
        let name = cursor.text(GgufLocation::TensorNumber(number))?;
        let place = GgufLocation::Tensor(name);
        if name.is_empty() {
            return Err(GgufLocation::TensorNumber(number).fault("has an empty name"));
        }
        let axes = cursor.u32(place)?;
        if axes > MAX_AXES {
            return Err(place.fault(format!("has {axes} axes; expected at most {MAX_AXES}")));
        }
        let dims = (0..axes).map(|_| cursor.u64(place)).collect::<Result<_, _>>()?;
        let storage = Storage::from_ggml(cursor.u32(place)?);
        entries.push(HeaderEntry { name, dims, storage, offset: cursor.u64(place)? });
    }
    Ok(entries)
}

/// Where tensors may lie.
struct Data {
    /// The first byte after the entries.
    start: u64,
    /// Bytes in the file.
    file: u64,
    alignment: u64,
}

impl HeaderEntry<'_> {
    fn check(&self, data: &Data) -> Result<GgufTensor, GgufError> {
        let fault = |why: String| GgufLocation::Tensor(self.name).fault(why);
        let (bytes, shape) = self.size().map_err(fault)?;
        if !self.offset.is_multiple_of(data.alignment) {
            return Err(fault(format!(
                "begins at data byte {}; expected a multiple of {}",
                self.offset, data.alignment
            )));
        }
        let start = data.start.checked_next_multiple_of(data.alignment);
        let begin = start.and_then(|start| start.checked_add(self.offset));
        let end = begin.and_then(|begin| begin.checked_add(bytes));
        let (Some(begin), Some(end)) = (begin, end.filter(|&end| end <= data.file)) else {
            return Err(fault(format!(
                "{bytes} bytes at data byte {} reach past the end of the file of {} bytes (truncated, or not all of it was downloaded)",
                self.offset, data.file
            )));
        };
        Ok(GgufTensor { storage: self.storage, shape, range: begin as usize..end as usize })
    }

    /// Bytes, zero when the type is not known, and the shape.
    fn size(&self) -> Result<(u64, Vec<usize>), String> {
        let Self { dims, storage, .. } = self;
        if dims.contains(&0) {
            return Err(format!("has an axis of length 0 in {dims:?}"));
        }
        let shape: Option<Vec<usize>> =
            dims.iter().rev().map(|&n| usize::try_from(n).ok()).collect();
        let elements = dims.iter().try_fold(1u64, |all, &n| all.checked_mul(n));
        let overflow = || format!("axes {dims:?} of {storage} overflow");
        let (Some(shape), Some(elements)) = (shape, elements) else { return Err(overflow()) };
        let Some([values, bytes]) = storage.block() else { return Ok((0, shape)) };
        let row = dims.first().copied().unwrap_or(1);
        if !row.is_multiple_of(values as u64) {
            return Err(format!("rows of {row} values; {storage} needs a multiple of {values}"));
        }
        let bytes = (elements / values as u64).checked_mul(bytes as u64).ok_or_else(overflow)?;
        Ok((bytes, shape))
    }
}

fn check_overlap(tensors: &BTreeMap<String, GgufTensor>) -> Result<(), GgufError> {
    let mut order: Vec<(&String, &Range<usize>)> = tensors
        .iter()
        .filter(|(_, tensor)| !tensor.range.is_empty())
        .map(|(name, tensor)| (name, &tensor.range))
        .collect();
    order.sort_by_key(|(_, range)| range.start);
    for pair in order.windows(2) {
        let [(before, first), (name, second)] = [pair[0], pair[1]];
        if second.start < first.end {
            return Err(GgufLocation::Tensor(name).fault(format!(
                "begins at byte {} inside `{before}`, which ends at {}",
                second.start, first.end
            )));
        }
    }
    Ok(())
}
