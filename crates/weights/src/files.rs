//! The opened weight files of a checkpoint and the one table of tensors over them.

use crate::gguf::set::GgufShards;
use crate::gguf::{self, Metadata};
use crate::safetensors::parse_header;
use crate::shards::{SIDECARS, Shards};
use crate::{Storage, WeightsError, mmap};
use forerun_base::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One mapped weight file.
#[derive(Clone, Debug)]
pub struct WeightFile {
    path: PathBuf,
    bytes: Bytes,
    tensors: usize,
    sidecar: bool,
    pub(crate) mlx: bool,
}

impl WeightFile {
    fn safetensors(folder: &Path, name: &str) -> Result<(Self, TensorEntries), WeightsError> {
        let path = folder.join(name);
        let bytes = mmap::map(&path)?;
        let header = parse_header(&bytes, bytes.len() as u64)
            .map_err(|source| WeightsError::Header { path: path.clone(), source })?;
        let file = Self {
            path,
            bytes,
            tensors: header.tensors.len(),
            sidecar: SIDECARS.contains(&name),
            mlx: header.metadata.get("format").is_some_and(|format| format == "mlx"),
        };
        let entry = |info: crate::safetensors::TensorInfo| TensorEntry {
            storage: Storage::Plain(info.dtype),
            shape: info.shape,
            range: info.range,
        };
        let names = header.tensors.into_iter().map(|(name, info)| (name, entry(info))).collect();
        Ok((file, names))
    }

    fn gguf(path: &Path) -> Result<(Self, TensorEntries, Metadata), WeightsError> {
        let bytes = mmap::map(path)?;
        let header = gguf::parse(&bytes)
            .map_err(|source| WeightsError::Gguf { path: path.into(), source })?;
        let tensors = header.tensors.len();
        let file = Self { path: path.into(), bytes, tensors, sidecar: false, mlx: false };
        let entry = |tensor: gguf::GgufTensor| TensorEntry {
            storage: tensor.storage,
            shape: tensor.shape,
            range: tensor.range,
        };
        let names = header.tensors.into_iter().map(|(name, info)| (name, entry(info))).collect();
        Ok((file, names, header.metadata))
    }

    /// Stands for what has no file.
    pub(crate) fn made(name: &str, tensors: usize) -> Self {
        let bytes = Bytes::from(Vec::new());
        Self { path: name.into(), bytes, tensors, sidecar: false, mlx: false }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in the file, header included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes of a tensor, whose range was checked against the file when it was opened.
    pub(crate) fn bytes_of(&self, entry: &TensorEntry) -> Bytes {
        self.bytes.slice(entry.range.clone()).expect("ranges were checked against the file at open")
    }

    /// How many tensors it holds.
    pub fn tensors(&self) -> usize {
        self.tensors
    }

    /// Whether it is an MTP sidecar, not part of the trunk.
    pub fn is_sidecar(&self) -> bool {
        self.sidecar
    }
}

/// What a file's header says about a tensor, whatever kind of file it is.
#[derive(Clone, Debug)]
pub(crate) struct TensorEntry {
    pub(crate) storage: Storage,
    /// Axes, slowest first.
    pub(crate) shape: Vec<usize>,
    /// Where the bytes lie in the file; empty when the type is not known.
    pub(crate) range: Range<usize>,
}

type TensorEntries = BTreeMap<String, TensorEntry>;

/// Where a tensor is: the number of its file and what the header says.
#[derive(Clone, Debug)]
pub(crate) struct TensorLocation {
    pub(crate) file: usize,
    pub(crate) entry: TensorEntry,
}

/// All files and all tensors, checked against each other.
#[derive(Default)]
pub(crate) struct WeightFiles {
    pub(crate) files: Vec<WeightFile>,
    pub(crate) places: BTreeMap<String, TensorLocation>,
}

impl WeightFiles {
    /// Opens safetensors files and holds them against the index.
    pub(crate) fn open(shards: &Shards) -> Result<Self, WeightsError> {
        let mut all = Self::default();
        for name in &shards.files {
            let (file, names) = WeightFile::safetensors(&shards.folder, name)?;
            all.add(file, names)?;
        }
        for (tensor, name) in &shards.index {
            let file = all.places.get(tensor).map(|place| &shards.files[place.file]);
            if file != Some(name) {
                return Err(WeightsError::Tensor {
                    tensor: tensor.clone(),
                    path: shards.folder.join(name),
                    why: "the index places it in this file, but the file does not hold it".into(),
                });
            }
        }
        Ok(all)
    }

    /// Opens a set of GGUF files; the first one's metadata speaks for all.
    pub(crate) fn open_gguf(set: &GgufShards) -> Result<(Self, Metadata), WeightsError> {
        let mut all = Self::default();
        let mut parts = Vec::new();
        for path in &set.files {
            let (file, names, metadata) = WeightFile::gguf(path)?;
            parts.push((metadata, names.len()));
            all.add(file, names)?;
        }
        set.check(&parts)?;
        let (metadata, _) = parts.swap_remove(0);
        Ok((all, metadata))
    }

    fn add(&mut self, file: WeightFile, names: TensorEntries) -> Result<(), WeightsError> {
        for (tensor, entry) in names {
            if let Some(place) = self.places.get(&tensor) {
                let first = self.files[place.file].path.clone();
                return Err(WeightsError::Twice { tensor, first, second: file.path });
            }
            self.places.insert(tensor, TensorLocation { file: self.files.len(), entry });
        }
        self.files.push(file);
        Ok(())
    }
}
