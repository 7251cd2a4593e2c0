//! A checkpoint on disk: its config and its tensors by name.

use crate::config::{self, WeightsConfig};
use crate::files::{TensorLocation, WeightFile, WeightFiles};
use crate::gguf::Metadata;
use crate::gguf::set::GgufShards;
use crate::shards::{self, FoundCheckpoint, Need, Shards};
use crate::tensor::{BlockTensor, StoredBytes, Tensor, TensorLookup, TensorOrigin, decode};
use crate::translation::{Axes, Selection, TensorView, Translation};
use crate::{Info, Storage, TensorSource, WeightsError, json, read};
use forerun_base::{Bytes, Matrix, MatrixParts};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CONFIG: &str = "config.json";
const SIDECAR_MANIFEST: &str = "mtp/manifest.json";

/// Places of a tensor that are looked at for [`Checkpoint::fingerprint`], and bytes at each.
const SAMPLES: usize = 16;
const SAMPLE: usize = 256;

/// An opened checkpoint. All headers are checked; weight bytes are mapped, not read.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: WeightsConfig,
    files: Vec<WeightFile>,
    /// Tensors by their stored names.
    places: BTreeMap<String, TensorLocation>,
    /// Tensors by the names they are requested by; `None` when these are the stored ones.
    views: Option<BTreeMap<String, TensorView>>,
    sidecar_gamma: bool,
    gguf: Option<Metadata>,
    /// Where tensors come from when there are no files.
    source: Option<Arc<dyn TensorSource>>,
}

/// Who wrote the checkpoint, and so which names and axis orders to expect.
///
/// It says nothing certain about norms: a file may carry MLX metadata and published norms.
/// For Qwen3-Next and Qwen3.5 the shape of `conv1d.weight` decides (`[C, K, 1]` means norms
/// are stored as `1 + w`), which the model crate looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointLayout {
    /// As the model's authors publish it.
    Published,
    /// Converted by MLX: a trunk file says `format: mlx`, or the config has `quantization`.
    Mlx,
    /// Converted to GGUF: other names, norms and orders, which a translation mends.
    Gguf,
}

impl Checkpoint {
    /// Opens a folder, one `.safetensors` file whose folder has a `config.json`, or a GGUF file
    /// together with the parts that belong to it.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        Self::open_found(shards::find(path, Need::All)?)
    }

    /// The same for the sake of an MTP head: where there is one, shards that hold nothing of it may be missing.
    pub fn open_head(path: &Path) -> Result<Self, WeightsError> {
        Self::open_found(shards::find(path, Need::Head)?)
    }

    fn open_found(found: FoundCheckpoint) -> Result<Self, WeightsError> {
        match found {
            FoundCheckpoint::Safetensors(shards) => Self::open_safetensors(shards),
            FoundCheckpoint::Gguf(set) => Self::open_gguf(set),
        }
    }

    fn open_safetensors(shards: Shards) -> Result<Self, WeightsError> {
        let config_path = shards.folder.join(CONFIG);
        if !config_path.is_file() {
            return Err(WeightsError::checkpoint(&shards.folder, "no config.json in the folder"));
        }
        let config = config::parse(&json::read(&config_path)?)
            .map_err(|why| WeightsError::json(&config_path, why))?;
        let WeightFiles { files, places } = WeightFiles::open(&shards)?;
        let sidecar_gamma = manifest_says_gamma(&shards.folder.join(SIDECAR_MANIFEST))?;
        let folder = shards.folder;
        Ok(Self {
            folder,
            config,
            files,
            places,
            views: None,
            sidecar_gamma,
            gguf: None,
            source: None,
        })
    }

    fn open_gguf(set: GgufShards) -> Result<Self, WeightsError> {
        let (WeightFiles { files, places }, metadata) = WeightFiles::open_gguf(&set)?;
        Ok(Self {
            folder: set.folder,
            config: WeightsConfig::absent(),
            files,
            places,
            views: None,
            sidecar_gamma: false,
            gguf: Some(metadata),
            source: None,
        })
    }

    pub(crate) fn of_source(
        folder: &Path,
        config: WeightsConfig,
        file: WeightFile,
        places: BTreeMap<String, TensorLocation>,
        source: Arc<dyn TensorSource>,
    ) -> Self {
        Self {
            folder: folder.into(),
            config,
            files: vec![file],
            places,
            views: None,
            sidecar_gamma: false,
            gguf: None,
            source: Some(source),
        }
    }

    /// Where tensors come from when there are no files.
    pub(crate) fn source(&self) -> Option<&Arc<dyn TensorSource>> {
        self.source.as_ref()
    }

    /// The same checkpoint under other names, with the given config. It replaces an earlier
    /// translation, and stored tensors that it does not name cannot be read any more.
    pub fn translated(self, translation: Translation) -> Result<Self, WeightsError> {
        let config = config::check(translation.config)
            .map_err(|why| WeightsError::json(&self.folder, why))?;
        let mut views = BTreeMap::new();
        for renamed in translation.tensors {
            let name = renamed.name.clone();
            let Some(place) = self.places.get(&renamed.stored) else {
                return Err(WeightsError::Missing {
                    tensor: renamed.stored,
                    path: self.folder.clone(),
                });
            };
            let file = self.files[place.file].path();
            let fault =
                |why| TensorOrigin { name: &name, stored: &renamed.stored, file }.fault(why);
            let view = TensorView::new(renamed.clone(), &place.entry.shape).map_err(fault)?;
            if views.insert(name.clone(), view).is_some() {
                return Err(fault("is named twice by the translation".into()));
            }
        }
        Ok(Self { config, views: Some(views), ..self })
    }

    /// The metadata of a GGUF checkpoint.
    pub fn gguf(&self) -> Option<&Metadata> {
        self.gguf.as_ref()
    }

    /// Stored tensors that no name of the translation leads to, sorted; without a translation,
    /// none.
    pub fn untranslated(&self) -> impl Iterator<Item = &str> {
        let used: Option<BTreeSet<&str>> =
            self.views.as_ref().map(|views| views.values().map(|v| v.stored.as_str()).collect());
        self.places
            .keys()
            .map(String::as_str)
            .filter(move |name| used.as_ref().is_some_and(|used| !used.contains(name)))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `config.json`, with Python's `Infinity` and `NaN` as `null`, or the translation's config.
    /// Null for a GGUF file that is not translated.
    pub fn config(&self) -> &serde_json::Value {
        self.config.value()
    }

    /// Who wrote it. See [`CheckpointLayout`] for what this does not say.
    pub fn layout(&self) -> CheckpointLayout {
        if self.gguf.is_some() {
            return CheckpointLayout::Gguf;
        }
        let mlx = self.files.iter().any(|file| file.mlx && !file.is_sidecar());
        if mlx || self.config.is_mlx_packed() {
            CheckpointLayout::Mlx
        } else {
            CheckpointLayout::Published
        }
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

    /// Bytes in all weight files, or of all tensors where there are none.
    pub fn total_bytes(&self) -> u64 {
        match self.source {
            Some(_) => self.places.values().map(|place| place.entry.range.len() as u64).sum(),
            None => self.files.iter().map(|file| file.bytes().len() as u64).sum(),
        }
    }

    /// Names what it holds without reading all of it: the config, every tensor's name, type and shape, and some
    /// bytes of each. Two checkpoints of one network that were trained differently have different names.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.config.value().to_string());
        for (name, place) in &self.places {
            let (entry, bytes) = (&place.entry, self.sampled(name, place));
            let what = format!("{name} {:?} {:?} {}", entry.storage, entry.shape, bytes.len());
            hash.update((what.len() as u64).to_le_bytes());
            hash.update(what);
            let stride = bytes.len().div_ceil(SAMPLES).max(SAMPLE);
            bytes.chunks(stride).for_each(|part| hash.update(&part[..part.len().min(SAMPLE)]));
            hash.update(&bytes[bytes.len().saturating_sub(SAMPLE)..]);
        }
        hash.finalize().into()
    }

    /// What a fingerprint looks at: all bytes of a tensor in a file; the first row of one that is made.
    fn sampled(&self, name: &str, place: &TensorLocation) -> Bytes {
        let TensorLocation { file, entry } = place;
        match &self.source {
            Some(source) => source.rows(name, 0..1).into(),
            None => self.files[*file].bytes_of(entry),
        }
    }

    /// Tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let views = self.views.iter().flat_map(BTreeMap::keys);
        let stored = self.views.is_none().then_some(&self.places);
        views.chain(stored.into_iter().flat_map(BTreeMap::keys)).map(String::as_str)
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The file a tensor lies in.
    pub fn file_of(&self, name: &str) -> Option<&WeightFile> {
        self.find(name).map(|(place, _)| &self.files[place.file])
    }

    /// How a tensor is stored, without reading it.
    pub fn info(&self, name: &str) -> Result<Info, WeightsError> {
        let (TensorLocation { entry, .. }, view) = self.found(name)?;
        let shape = view.map_or(&entry.shape, |view| &view.shape);
        let count = |shape: &[usize]| shape.iter().fold(1u128, |all, &n| all * n as u128).max(1);
        let bytes = entry.range.len() as u128 * count(shape) / count(&entry.shape);
        Ok(Info { storage: entry.storage, shape: shape.clone(), bytes: bytes as u64 })
    }

    /// A tensor of plain elements; its bytes are a window into the mapped file unless a
    /// translation reorders them.
    pub fn tensor(&self, name: &str) -> Result<Tensor, WeightsError> {
        self.read(name)?.plain()
    }

    /// The stored tensor behind a name, and how it is seen.
    fn find(&self, name: &str) -> Option<(&TensorLocation, Option<&TensorView>)> {
        match &self.views {
            None => Some((self.places.get(name)?, None)),
            Some(views) => {
                let view = views.get(name)?;
                Some((self.places.get(&view.stored)?, Some(view)))
            }
        }
    }

    fn found(&self, name: &str) -> Result<(&TensorLocation, Option<&TensorView>), WeightsError> {
        let missing = || WeightsError::Missing { tensor: name.into(), path: self.folder.clone() };
        self.find(name).ok_or_else(missing)
    }

    pub(crate) fn read<'a>(&'a self, name: &'a str) -> Result<TensorLookup<'a>, WeightsError> {
        let StoredBytes { origin, storage, shape, axes, selection, bytes } = self.bytes_of(name)?;
        Ok(match storage {
            Storage::Plain(dtype) => {
                let all_rows = axes.stacks.saturating_mul(axes.rows);
                let row_bytes = bytes.len().checked_div(all_rows).unwrap_or(0);
                let bytes = selection.take_rows(axes, row_bytes, &bytes);
                TensorLookup::Plain(Tensor {
                    name: name.into(),
                    stored: origin.stored.into(),
                    dtype,
                    shape: shape.into(),
                    bytes: selection.take_columns(axes.cols, dtype.size(), bytes),
                    file: origin.file.into(),
                })
            }
            Storage::Block(block) => {
                TensorLookup::Blocks(BlockTensor { origin, block, shape, bytes, axes, selection })
            }
        })
    }

    /// A tensor as it lies in its file, and what of it is meant.
    pub(crate) fn bytes_of<'a>(&'a self, name: &'a str) -> Result<StoredBytes<'a>, WeightsError> {
        let (TensorLocation { file, entry }, view) = self.found(name)?;
        let file = &self.files[*file];
        let stored = view.map_or(name, |view| &view.stored);
        let axes = Axes::of(&entry.shape);
        let bytes = match &self.source {
            Some(source) => source.rows(stored, 0..axes.stacks * axes.rows).into(),
            None => file.bytes_of(entry),
        };
        Ok(StoredBytes {
            origin: TensorOrigin { name, stored, file: file.path() },
            storage: entry.storage,
            shape: view.map_or(&entry.shape, |view| &view.shape),
            axes,
            selection: view.map_or(Selection::ALL, TensorView::selection),
            bytes,
        })
    }

    /// What is known of a tensor of plain elements, and none of its bytes.
    pub(crate) fn header(&self, name: &str) -> Result<Tensor, WeightsError> {
        let (TensorLocation { file, entry }, view) = self.found(name)?;
        let file = self.files[*file].path();
        let stored = view.map_or(name, |view| &view.stored);
        let Storage::Plain(dtype) = entry.storage else {
            return Err(TensorOrigin { name, stored, file }.fault("is stored in blocks"));
        };
        Ok(Tensor {
            name: name.into(),
            stored: stored.into(),
            dtype,
            shape: view.map_or(&entry.shape, |view| &view.shape).clone(),
            bytes: Vec::new().into(),
            file: file.into(),
        })
    }

    /// Whether `path.weight` or a bare `path` exists.
    pub fn has_matrix(&self, path: &str) -> bool {
        self.contains(&format!("{path}.weight")) || self.contains(path)
    }

    /// The weight of module `path`, `[rows, cols]`, in whatever format it is stored.
    pub fn matrix(&self, path: &str, shape: [usize; 2]) -> Result<Matrix, WeightsError> {
        Ok(self.parts(path, &shape)?.whole())
    }

    /// A stack `[experts, rows, cols]` as one tall matrix `[experts · rows, cols]`. The weight
    /// is `path.weight` or, for fused published experts, `path` itself.
    pub fn stacked(&self, path: &str, shape: [usize; 3]) -> Result<Matrix, WeightsError> {
        Ok(self.parts(path, &shape)?.whole())
    }

    /// A weight `[rows, cols]`, or a stack as one tall matrix, whose rows are read and converted when they are asked
    /// for. What may be wrong with them is found here.
    pub fn parts(&self, path: &str, shape: &[usize]) -> Result<MatrixParts, WeightsError> {
        read::parts(self, path, shape)
    }

    /// A tensor of floats or of ggml blocks, of exactly this shape, widened to f32.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        match self.read(name)? {
            TensorLookup::Plain(tensor) => {
                tensor.check_shape(shape)?;
                read::widen(&tensor)
            }
            TensorLookup::Blocks(blocks) => {
                blocks.origin.check_shape(blocks.shape, shape)?;
                Ok(decode(&blocks.parts()?.whole()))
            }
        }
    }

    /// The config as it was parsed, for what it says about packed modules.
    pub fn parsed_config(&self) -> &WeightsConfig {
        &self.config
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

/// The weight whose codes a scale, a bias or a factor belongs to.
pub fn scaled_weight(checkpoint: &Checkpoint, name: &str) -> Option<String> {
    let packed = [".scales", ".biases", ".global_scale"]
        .iter()
        .find_map(|suffix| Some(format!("{}.weight", name.strip_suffix(suffix)?)));
    let fp8 = ["_scale_inv", "_scale"].iter().find_map(|suffix| name.strip_suffix(suffix));
    packed.or(fp8.map(str::to_owned)).filter(|weight| checkpoint.contains(weight))
}
