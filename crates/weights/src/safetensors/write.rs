//! Files of known sizes: the header goes first, then each tensor is filled from front to back.
//!
//! Several tensors may grow at a time, because codes and scales of one weight come together
//! and neither should wait in memory. [`Writer::finish`] insists that all of them are whole
//! and on the disk.

use super::dtype_name;
use forerun_base::DType;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// One tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axes, slowest first.
    pub shape: Vec<usize>,
}

impl NewTensor {
    /// Bytes of its elements; `None` when that overflows.
    pub fn bytes(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.size(), |all, &n| all.checked_mul(n))
    }
}

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// What was written is not what was announced.
    #[error("{}: {why}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// Which tensor and by how much.
        why: String,
    },
}

/// The length prefix and the JSON of a file that holds `entries` one after another, padded so
/// that data begins on a multiple of eight. `None` when sizes overflow.
pub fn header(entries: &[NewTensor], format: Option<&str>) -> Option<Vec<u8>> {
    let mut all = Map::new();
    if let Some(format) = format {
        all.insert("__metadata__".into(), json!({ "format": format }));
    }
    let mut start = 0usize;
    for entry in entries {
        let end = start.checked_add(entry.bytes()?)?;
        let value = json!({
            "dtype": dtype_name(entry.dtype),
            "shape": entry.shape,
            "data_offsets": [start, end],
        });
        all.insert(entry.name.clone(), value);
        start = end;
    }
    let mut json = Value::Object(all).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    Some([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

/// A file being written.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    /// Where the file's cursor is.
    at: u64,
    slots: Vec<TensorSlot>,
}

/// Where a tensor's next byte goes, and where it ends.
#[derive(Debug)]
struct TensorSlot {
    name: String,
    next: u64,
    end: u64,
}

impl Writer {
    /// Creates or empties the file at `path` and writes the header.
    pub fn create(
        path: &Path,
        entries: &[NewTensor],
        format: Option<&str>,
    ) -> Result<Self, WriteError> {
        let io = |source| WriteError::Io { path: path.into(), source };
        let Some(header) = header(entries, format) else {
            return Err(WriteError::Contents { path: path.into(), why: "sizes overflow".into() });
        };
        let mut file = File::create(path).map_err(io)?;
        file.write_all(&header).map_err(io)?;
        let at = header.len() as u64;
        let mut end = at;
        let slots = entries.iter().map(|entry| {
            let next = end;
            end += entry.bytes().expect("the header was made from it") as u64;
            TensorSlot { name: entry.name.clone(), next, end }
        });
        let slots = slots.collect();
        Ok(Self { file, path: path.into(), at, slots })
    }

    /// Appends `bytes` to tensor number `tensor` of the entries.
    ///
    /// # Panics
    /// When there is no such tensor.
    pub fn append(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), WriteError> {
        let slot = &mut self.slots[tensor];
        let (from, to) = (slot.next, slot.next + bytes.len() as u64);
        if to > slot.end {
            let why = format!("{} bytes too many for tensor `{}`", to - slot.end, slot.name);
            return Err(WriteError::Contents { path: self.path.clone(), why });
        }
        let io = |source| WriteError::Io { path: self.path.clone(), source };
        if from != self.at {
            self.file.seek(SeekFrom::Start(from)).map_err(io)?;
        }
        self.file.write_all(bytes).map_err(io)?;
        (slot.next, self.at) = (to, to);
        Ok(())
    }

    /// Checks that every tensor is whole and brings the file to the disk.
    pub fn finish(self) -> Result<(), WriteError> {
        if let Some(slot) = self.slots.iter().find(|slot| slot.next != slot.end) {
            let why = format!("tensor `{}` lacks {} bytes", slot.name, slot.end - slot.next);
            return Err(WriteError::Contents { path: self.path, why });
        }
        self.file.sync_all().map_err(|source| WriteError::Io { path: self.path, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::parse_header;

    fn entries() -> Vec<NewTensor> {
        let entry = |name: &str, dtype, shape: &[usize]| NewTensor {
            name: name.into(),
            dtype,
            shape: shape.into(),
        };
        vec![
            entry("a.weight", DType::U32, &[2, 3]),
            entry("a.scales", DType::BF16, &[2, 1]),
            entry("empty", DType::F32, &[0, 4]),
            entry("codes", DType::F8E4M3, &[3]),
        ]
    }

    #[test]
    fn tensors_that_grow_together_are_read_back_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let mut writer = Writer::create(&path, &entries(), Some("mlx")).unwrap();
        for half in 0..2u8 {
            writer.append(0, &[half; 12]).unwrap();
            writer.append(1, &[half + 8; 2]).unwrap();
        }
        writer.append(3, b"xyz").unwrap();
        writer.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let header = parse_header(&bytes, bytes.len() as u64).unwrap();
        assert_eq!(header.metadata["format"], "mlx");
        for entry in entries() {
            let info = &header.tensors[&entry.name];
            assert_eq!((info.dtype, &info.shape), (entry.dtype, &entry.shape));
        }
        let data = |name: &str| &bytes[header.tensors[name].range.clone()];
        assert_eq!(data("a.weight"), [[0; 12], [1; 12]].concat());
        assert_eq!(data("a.scales"), [8, 8, 9, 9]);
        assert_eq!(data("codes"), b"xyz");
        assert_eq!(header.tensors["a.weight"].range.start % 8, 0);
    }

    #[test]
    fn a_header_may_be_longer_than_a_formatting_width() {
        let name = |n: usize| format!("model.layers.{n}.mlp.down_proj.weight");
        let one = |n| NewTensor { name: name(n), dtype: DType::F32, shape: vec![0] };
        let entries: Vec<NewTensor> = (0..1000).map(one).collect();
        let bytes = header(&entries, Some("mlx")).unwrap();
        assert!(bytes.len() > 1 << 16 && bytes.len().is_multiple_of(8));
        let parsed = parse_header(&bytes, bytes.len() as u64).unwrap();
        assert_eq!(parsed.tensors.len(), 1000);
    }

    #[test]
    fn too_few_and_too_many_bytes_are_refused_with_the_tensor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let mut writer = Writer::create(&path, &entries(), None).unwrap();
        let error = writer.append(3, b"four").unwrap_err().to_string();
        assert!(error.contains("`codes`") && error.contains("x.safetensors"), "{error}");
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("`a.weight` lacks 24 bytes"), "{error}");
    }

    #[test]
    fn every_element_type_survives_writing_and_reading() {
        for (dtype, name) in crate::safetensors::DTYPES {
            assert_eq!(crate::safetensors::dtype(name), Some(dtype));
            assert_eq!(dtype_name(dtype), name);
        }
        let huge = NewTensor { name: "x".into(), dtype: DType::F32, shape: vec![usize::MAX, 2] };
        assert!(header(&[huge], None).is_none());
    }
}
