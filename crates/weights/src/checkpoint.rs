//! A checkpoint on disk: its config and its tensors by name.

use crate::config::{self, Config};
use crate::files::{Files, Place, WeightFile};
use crate::shards::Shards;
use crate::{WeightsError, json, read};
use forerun_base::{Bytes, DType, Matrix};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const SIDECAR_MANIFEST: &str = "mtp/manifest.json";

/// An opened checkpoint. All headers are checked; weight bytes are mapped, not read.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: Config,
    files: Vec<WeightFile>,
    places: BTreeMap<String, Place>,
    sidecar_gamma: bool,
}

/// Who wrote the checkpoint, and so which names and axis orders to expect.
///
/// It says nothing certain about norms: a file may carry MLX metadata and published norms.
/// For Qwen3-Next and Qwen3.5 the shape of `conv1d.weight` decides (`[C, K, 1]` means norms
/// are stored as `1 + w`), which the model crate looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As the model's authors publish it.
    Published,
    /// Converted by MLX: a trunk file says `format: mlx`, or the config has `quantization`.
    Mlx,
}

/// One stored tensor.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its stored name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axes, slowest first.
    pub shape: Vec<usize>,
    /// Its bytes, little-endian, at no particular alignment.
    pub bytes: Bytes,
    /// The file it lies in.
    pub file: PathBuf,
}

impl Checkpoint {
    /// Opens a folder, or one `.safetensors` file whose folder has a `config.json`.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let shards = Shards::find(path)?;
        let config_path = shards.folder.join(CONFIG);
        if !config_path.is_file() {
            return Err(WeightsError::checkpoint(&shards.folder, "no config.json in the folder"));
        }
        let config = config::parse(&json::read(&config_path)?)
            .map_err(|why| WeightsError::json(&config_path, why))?;
        let Files { files, places } = Files::open(&shards)?;
        let sidecar_gamma = manifest_says_gamma(&shards.folder.join(SIDECAR_MANIFEST))?;
        Ok(Self { folder: shards.folder, config, files, places, sidecar_gamma })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `config.json`, with Python's `Infinity` and `NaN` as `null`.
    pub fn config(&self) -> &serde_json::Value {
        self.config.value()
    }

    /// Who wrote it. See [`Layout`] for what this does not say.
    pub fn layout(&self) -> Layout {
        let mlx = self.files.iter().any(|file| file.mlx && !file.is_sidecar());
        if mlx || self.config.is_mlx_packed() { Layout::Mlx } else { Layout::Published }
    }

    /// Whether `mtp/manifest.json` says that the norms in `mtp/weights.safetensors` are stored
    /// as the factor itself (`1 + w`, "mlx_gamma"). False means that nothing is said.
    pub fn sidecar_norms_are_gamma(&self) -> bool {
        self.sidecar_gamma
    }

    /// The weight files, MTP sidecars included.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// Bytes in all weight files.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes().len() as u64).sum()
    }

    /// Stored tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Whether a tensor of this stored name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The file a tensor lies in.
    pub fn file_of(&self, name: &str) -> Option<&WeightFile> {
        self.places.get(name).map(|place| &self.files[place.file])
    }

    /// A tensor by its stored name; its bytes are a window into the mapped file.
    pub fn tensor(&self, name: &str) -> Result<Tensor, WeightsError> {
        let Some(Place { file, info }) = self.places.get(name) else {
            return Err(WeightsError::Missing { tensor: name.into(), path: self.folder.clone() });
        };
        let file = &self.files[*file];
        let bytes = file.bytes().slice(info.range.clone());
        Ok(Tensor {
            name: name.into(),
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: bytes.expect("ranges were checked against the file at open"),
            file: file.path().into(),
        })
    }

    /// Whether `path.weight` or a bare `path` exists.
    pub fn has_matrix(&self, path: &str) -> bool {
        self.contains(&format!("{path}.weight")) || self.contains(path)
    }

    /// The weight of module `path`, `[rows, cols]`, in whatever format it is stored.
    pub fn matrix(&self, path: &str, shape: [usize; 2]) -> Result<Matrix, WeightsError> {
        read::matrix(self, path, &shape)
    }

    /// A stack `[experts, rows, cols]` as one tall matrix `[experts · rows, cols]`. The weight
    /// is `path.weight` or, for fused published experts, `path` itself.
    pub fn stacked(&self, path: &str, shape: [usize; 3]) -> Result<Matrix, WeightsError> {
        read::matrix(self, path, &shape)
    }

    /// A tensor of F32, F16 or BF16 of exactly this shape, widened to f32.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let tensor = self.tensor(name)?;
        tensor.check_shape(shape)?;
        read::widen(&tensor)
    }

    pub(crate) fn parsed_config(&self) -> &Config {
        &self.config
    }
}

impl Tensor {
    pub(crate) fn check_shape(&self, expected: &[usize]) -> Result<(), WeightsError> {
        if self.shape == expected {
            return Ok(());
        }
        Err(WeightsError::Shape {
            tensor: self.name.clone(),
            path: self.file.clone(),
            expected: expected.into(),
            found: self.shape.clone(),
        })
    }

    pub(crate) fn fault(&self, why: impl Into<String>) -> WeightsError {
        WeightsError::Tensor { tensor: self.name.clone(), path: self.file.clone(), why: why.into() }
    }
}

fn manifest_says_gamma(path: &Path) -> Result<bool, WeightsError> {
    if !path.is_file() {
        return Ok(false);
    }
    let manifest: serde_json::Value =
        serde_json::from_slice(&json::read(path)?).map_err(|why| WeightsError::json(path, why))?;
    Ok(manifest.get("rmsnorm_weight_format").is_some_and(|format| format == "mlx_gamma"))
}
