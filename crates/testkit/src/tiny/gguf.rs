//! A small GGUF writer. It writes what it is told, also what no reader should accept.

use super::file::write;
use std::path::Path;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the types of the format")]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    U64(u64),
    I64(i64),
    F64(f64),
    /// Elements of the type with this number; each must have it.
    Array(u32, Vec<GgufValue>),
}

impl GgufValue {
    /// A text.
    pub fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    /// An array of texts.
    pub fn texts(texts: &[&str]) -> Self {
        Self::Array(8, texts.iter().map(|text| Self::text(text)).collect())
    }

    /// An array of 32-bit floats.
    pub fn f32s(numbers: &[f32]) -> Self {
        Self::Array(6, numbers.iter().map(|&x| Self::F32(x)).collect())
    }

    /// An array of 32-bit signed integers.
    pub fn i32s(numbers: &[i32]) -> Self {
        Self::Array(5, numbers.iter().map(|&n| Self::I32(n)).collect())
    }

    /// An array of truth values.
    pub fn flags(flags: &[bool]) -> Self {
        Self::Array(7, flags.iter().map(|&flag| Self::Bool(flag)).collect())
    }

    /// The number of its type in a file.
    pub fn kind(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) => 8,
            Self::Array(..) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(n) => out.push(*n),
            Self::I8(n) => out.extend(n.to_le_bytes()),
            Self::U16(n) => out.extend(n.to_le_bytes()),
            Self::I16(n) => out.extend(n.to_le_bytes()),
            Self::U32(n) => out.extend(n.to_le_bytes()),
            Self::I32(n) => out.extend(n.to_le_bytes()),
            Self::F32(x) => out.extend(x.to_le_bytes()),
            Self::Bool(flag) => out.push(u8::from(*flag)),
            Self::Text(text) => put_text(out, text),
            Self::U64(n) => out.extend(n.to_le_bytes()),
            Self::I64(n) => out.extend(n.to_le_bytes()),
            Self::F64(x) => out.extend(x.to_le_bytes()),
            Self::Array(kind, elements) => {
                out.extend(kind.to_le_bytes());
                out.extend((elements.len() as u64).to_le_bytes());
                elements.iter().for_each(|element| element.put(out));
            }
        }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// One tensor of a GGUF file.
#[derive(Clone, Debug)]
pub struct TinyGgufTensor {
    /// Its name.
    pub name: String,
    /// ggml's number of its element type.
    pub kind: u32,
    /// Axes, slowest first; the file gets them the other way round.
    pub shape: Vec<u64>,
    /// Its blocks.
    pub bytes: Vec<u8>,
    /// Where it is said to begin in the data; `None` for where it does.
    pub offset: Option<u64>,
}

/// A GGUF file in the making.
#[derive(Clone, Debug)]
pub struct GgufFile {
    /// The version it states.
    pub version: u32,
    /// What data and tensors are aligned to. Another number than 32 is to be stated as well, by
    /// [`GgufFile::aligned`].
    pub alignment: usize,
    /// Keys and values, in order.
    pub metadata: Vec<(String, GgufValue)>,
    /// Tensors, in order.
    pub tensors: Vec<TinyGgufTensor>,
}

impl Default for GgufFile {
    fn default() -> Self {
        Self { version: 3, alignment: 32, metadata: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufFile {
    /// Adds a key.
    #[must_use]
    pub fn with(mut self, key: &str, value: GgufValue) -> Self {
        self.metadata.push((key.into(), value));
        self
    }

    /// Adds a tensor of any type.
    #[must_use]
    pub fn tensor(mut self, name: &str, kind: u32, shape: &[u64], bytes: &[u8]) -> Self {
        let (name, shape, bytes) = (name.into(), shape.to_vec(), bytes.to_vec());
        self.tensors.push(TinyGgufTensor { name, kind, shape, bytes, offset: None });
        self
    }

    /// Adds a tensor of 32-bit floats.
    #[must_use]
    pub fn f32s(self, name: &str, shape: &[u64], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, 0, shape, &bytes)
    }

    /// Aligns to another number and says so.
    #[must_use]
    pub fn aligned(mut self, alignment: u32) -> Self {
        self.alignment = alignment as usize;
        self.with("general.alignment", GgufValue::U32(alignment))
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            out.extend(value.kind().to_le_bytes());
            value.put(&mut out);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            pad(&mut data, self.alignment);
            put_text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend_from_slice(&tensor.bytes);
        }
        pad(&mut out, self.alignment);
        out.extend(data);
        out
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        write(path, &self.bytes());
    }

    /// The file as `count` parts that share its tensors; the first has the metadata.
    pub fn split(&self, count: usize) -> Vec<Self> {
        assert!(count > 0, "a file has at least one part");
        let each = self.tensors.len().div_ceil(count).max(1);
        let mut rest = self.tensors.chunks(each);
        let part = |number: usize| {
            let metadata = if number == 0 { self.metadata.clone() } else { Vec::new() };
            let tensors = rest.next().unwrap_or_default().to_vec();
            Self { metadata, tensors, ..self.clone() }
                .with("split.no", GgufValue::U16(number as u16))
                .with("split.count", GgufValue::U16(count as u16))
                .with("split.tensors.count", GgufValue::I32(self.tensors.len() as i32))
        };
        (0..count).map(part).collect()
    }

    /// The name of part `number`, counted from 1.
    pub fn part_name(stem: &str, number: usize, count: usize) -> String {
        format!("{stem}-{number:05}-of-{count:05}.gguf")
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: usize) {
    bytes.resize(bytes.len().next_multiple_of(alignment.max(1)), 0);
}
