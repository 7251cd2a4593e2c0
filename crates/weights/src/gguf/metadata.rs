//! The typed key-value part of a GGUF file.
//!
//! Arrays of numbers stay as the bytes of the file and are widened when read, because a
//! vocabulary brings a quarter of a million of them.

use super::GgufError;
use super::cursor::{Cursor, GgufLocation};

/// Arrays inside arrays that are followed. Files in use have none.
const MAX_DEPTH: usize = 4;
/// The least bytes of a key with its value: a length, a type, one byte.
const LEAST_ENTRY: u64 = 13;
/// The least bytes of a text: its length.
const LEAST_TEXT: u64 = 8;
/// The least bytes of an array: element type and count.
const LEAST_ARRAY: u64 = 12;

/// The metadata of a GGUF file: typed values in file order.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, MetadataValue)>,
    /// Numbers of the entries, sorted by key.
    order: Vec<usize>,
}

#[derive(Clone, Debug)]
enum MetadataValue {
    Number(ScalarValue),
    Flag(bool),
    Text(String),
    Numbers(NumberList),
    Flags(Vec<bool>),
    Texts(Vec<String>),
    /// Arrays of arrays are checked but nobody reads them.
    Nested,
}

/// One number, widened without loss.
#[derive(Clone, Copy, Debug)]
enum ScalarValue {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
}

impl ScalarValue {
    fn wide(self) -> f64 {
        match self {
            Self::Unsigned(n) => n as f64,
            Self::Signed(n) => n as f64,
            Self::Float(x) => x,
        }
    }

    fn integer(self) -> Option<i64> {
        match self {
            Self::Unsigned(n) => i64::try_from(n).ok(),
            Self::Signed(n) => Some(n),
            Self::Float(_) => None,
        }
    }

    fn count(self) -> Option<u64> {
        match self {
            Self::Unsigned(n) => Some(n),
            Self::Signed(n) => u64::try_from(n).ok(),
            Self::Float(_) => None,
        }
    }
}

/// Many numbers of one type, as they stand in the file.
#[derive(Clone, Debug)]
struct NumberList {
    kind: NumberKind,
    bytes: Vec<u8>,
}

impl NumberList {
    fn iter(&self) -> impl Iterator<Item = ScalarValue> {
        self.bytes.chunks_exact(self.kind.size()).map(|bytes| self.kind.read(bytes))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

impl NumberKind {
    const fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Reads one number from exactly [`NumberKind::size`] bytes.
    fn read(self, bytes: &[u8]) -> ScalarValue {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(wide);
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => ScalarValue::Unsigned(raw),
            Self::I8 => ScalarValue::Signed(i64::from(raw as i8)),
            Self::I16 => ScalarValue::Signed(i64::from(raw as i16)),
            Self::I32 => ScalarValue::Signed(i64::from(raw as i32)),
            Self::I64 => ScalarValue::Signed(raw as i64),
            Self::F32 => ScalarValue::Float(f64::from(f32::from_bits(raw as u32))),
            Self::F64 => ScalarValue::Float(f64::from_bits(raw)),
        }
    }
}

/// The type of a value, by its number in the file.
enum MetadataKind {
    Number(NumberKind),
    Flag,
    Text,
    Array,
}

impl MetadataKind {
    fn read(cursor: &mut Cursor<'_>, place: GgufLocation<'_>) -> Result<Self, GgufError> {
        Ok(match cursor.u32(place)? {
            0 => Self::Number(NumberKind::U8),
            1 => Self::Number(NumberKind::I8),
            2 => Self::Number(NumberKind::U16),
            3 => Self::Number(NumberKind::I16),
            4 => Self::Number(NumberKind::U32),
            5 => Self::Number(NumberKind::I32),
            6 => Self::Number(NumberKind::F32),
            7 => Self::Flag,
            8 => Self::Text,
            9 => Self::Array,
            10 => Self::Number(NumberKind::U64),
            11 => Self::Number(NumberKind::I64),
            12 => Self::Number(NumberKind::F64),
            other => {
                return Err(place.fault(format!("unknown value type {other}; known are 0 to 12")));
            }
        })
    }
}

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor<'_>, claimed: u64) -> Result<Self, GgufError> {
        let count = cursor.fits(claimed, "keys", LEAST_ENTRY, GgufLocation::Header)?;
        let mut entries = Vec::with_capacity(count);
        for number in 0..count as u64 {
            let key = cursor.text(GgufLocation::KeyNumber(number))?;
            let place = GgufLocation::Key(key);
            let kind = MetadataKind::read(cursor, place)?;
            entries.push((key.to_owned(), value(cursor, kind, place)?));
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|&a, &b| entries[a].0.cmp(&entries[b].0));
        if let Some(pair) = order.windows(2).find(|pair| entries[pair[0]].0 == entries[pair[1]].0) {
            return Err(GgufLocation::Key(&entries[pair[0]].0).fault("appears twice"));
        }
        Ok(Self { entries, order })
    }

    fn get(&self, key: &str) -> Option<&MetadataValue> {
        let found = self.order.binary_search_by(|&i| self.entries[i].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.order[found]].1)
    }

    /// All keys, in file order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(key, _)| key.as_str())
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<&str> {
        if let MetadataValue::Text(text) = self.get(key)? { Some(text) } else { None }
    }

    /// A number of any integer type that is not negative.
    pub fn count(&self, key: &str) -> Option<u64> {
        if let MetadataValue::Number(number) = self.get(key)? { number.count() } else { None }
    }

    /// A number of any type.
    pub fn number(&self, key: &str) -> Option<f64> {
        if let MetadataValue::Number(number) = self.get(key)? { Some(number.wide()) } else { None }
    }

    /// A truth value.
    pub fn flag(&self, key: &str) -> Option<bool> {
        if let MetadataValue::Flag(flag) = self.get(key)? { Some(*flag) } else { None }
    }

    /// An array of texts.
    pub fn texts(&self, key: &str) -> Option<&[String]> {
        if let MetadataValue::Texts(texts) = self.get(key)? { Some(texts) } else { None }
    }

    /// An array of numbers of any type. One number alone is not an array.
    pub fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        let MetadataValue::Numbers(numbers) = self.get(key)? else { return None };
        Some(numbers.iter().map(ScalarValue::wide).collect())
    }

    /// An array of integers of any type, all of which fit.
    pub fn integers(&self, key: &str) -> Option<Vec<i64>> {
        let MetadataValue::Numbers(numbers) = self.get(key)? else { return None };
        let floats = matches!(numbers.kind, NumberKind::F32 | NumberKind::F64);
        if floats { None } else { numbers.iter().map(ScalarValue::integer).collect() }
    }

    /// An array of truth values.
    pub fn flags(&self, key: &str) -> Option<&[bool]> {
        if let MetadataValue::Flags(flags) = self.get(key)? { Some(flags) } else { None }
    }
}

fn value(
    cursor: &mut Cursor<'_>,
    kind: MetadataKind,
    place: GgufLocation<'_>,
) -> Result<MetadataValue, GgufError> {
    Ok(match kind {
        MetadataKind::Number(kind) => {
            MetadataValue::Number(kind.read(cursor.take(kind.size() as u64, place)?))
        }
        MetadataKind::Flag => MetadataValue::Flag(flag(cursor.take(1, place)?[0], place)?),
        MetadataKind::Text => MetadataValue::Text(cursor.text(place)?.to_owned()),
        MetadataKind::Array => array(cursor, place, 1)?,
    })
}

fn array(
    cursor: &mut Cursor<'_>,
    place: GgufLocation<'_>,
    depth: usize,
) -> Result<MetadataValue, GgufError> {
    let kind = MetadataKind::read(cursor, place)?;
    let claimed = cursor.u64(place)?;
    Ok(match kind {
        MetadataKind::Number(kind) => {
            let size = kind.size() as u64;
            let count = cursor.fits(claimed, "numbers", size, place)?;
            let bytes = cursor.take(count as u64 * size, place)?.to_vec();
            MetadataValue::Numbers(NumberList { kind, bytes })
        }
        MetadataKind::Flag => {
            let bytes = cursor.take(claimed, place)?;
            MetadataValue::Flags(
                bytes.iter().map(|&byte| flag(byte, place)).collect::<Result<_, _>>()?,
            )
        }
        MetadataKind::Text => {
            let count = cursor.fits(claimed, "texts", LEAST_TEXT, place)?;
            let mut texts = Vec::with_capacity(count);
            for _ in 0..count {
                texts.push(cursor.text(place)?.to_owned());
            }
            MetadataValue::Texts(texts)
        }
        MetadataKind::Array => {
            if depth == MAX_DEPTH {
                return Err(place.fault(format!("arrays nest deeper than {MAX_DEPTH}")));
            }
            for _ in 0..cursor.fits(claimed, "arrays", LEAST_ARRAY, place)? {
                array(cursor, place, depth + 1)?;
            }
            MetadataValue::Nested
        }
    })
}

fn flag(byte: u8, place: GgufLocation<'_>) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(place.fault(format!("a truth value of {other}; expected 0 or 1"))),
    }
}
