//! The opened weight files of a checkpoint and the one table of tensors over them.

use crate::safetensors::{TensorInfo, parse_header};
use crate::shards::{SIDECARS, Shards};
use crate::{WeightsError, mmap};
use forerun_base::Bytes;
use std::collections::BTreeMap;
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
    fn open(folder: &Path, name: &str) -> Result<(Self, Names), WeightsError> {
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
        Ok((file, header.tensors))
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in the file, header included.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
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

type Names = BTreeMap<String, TensorInfo>;

/// Where a tensor is: the number of its file and what the header says.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) info: TensorInfo,
}

/// All files and all tensors, checked against each other and against the index.
pub(crate) struct Files {
    pub(crate) files: Vec<WeightFile>,
    pub(crate) places: BTreeMap<String, Place>,
}

impl Files {
    pub(crate) fn open(shards: &Shards) -> Result<Self, WeightsError> {
        let mut files: Vec<WeightFile> = Vec::new();
        let mut places: BTreeMap<String, Place> = BTreeMap::new();
        for name in &shards.files {
            let (file, names) = WeightFile::open(&shards.folder, name)?;
            for (tensor, info) in names {
                if let Some(place) = places.get(&tensor) {
                    let first = files[place.file].path.clone();
                    return Err(WeightsError::Twice { tensor, first, second: file.path });
                }
                places.insert(tensor, Place { file: files.len(), info });
            }
            files.push(file);
        }
        for (tensor, name) in &shards.index {
            let file = places.get(tensor).map(|place| &shards.files[place.file]);
            if file != Some(name) {
                return Err(WeightsError::Tensor {
                    tensor: tensor.clone(),
                    path: shards.folder.join(name),
                    why: "the index places it in this file, but the file does not hold it".into(),
                });
            }
        }
        Ok(Self { files, places })
    }
}
