//! Tensors from a checkpoint to the device, in canonical form.

use crate::ModelError;
use crate::names::ModuleNames;
use forerun_backend::{Backend, WeightId};
use forerun_base::{DType, Format, Matrix, MatrixParts};
use forerun_weights::Checkpoint;
use std::ops::Range;

/// Bytes up to which plain numbers are searched for NaN and infinity at load.
const SEARCHED: usize = 32 << 20;

/// Called with the bytes brought to the device so far.
pub type Progress<'a> = dyn FnMut(u64) + 'a;

/// Where a checkpoint keeps its parts, and how it stores norms.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// Prefix of the trunk.
    pub(crate) trunk: &'static str,
    /// The head's module, when stored.
    pub(crate) head: Option<&'static str>,
    /// Prefix of the MTP part, when stored.
    pub(crate) mtp: Option<&'static str>,
    /// Path of the MTP block, when it is stored as one more layer of the trunk.
    pub(crate) mtp_layer: Option<String>,
    /// Whether the file format itself stores norms as the factor, whatever the family publishes.
    pub(crate) gamma: bool,
    /// Added to the trunk's norm weights: 1 where files hold `w − 1`.
    pub(crate) norm_offset: f32,
    /// The same for the MTP part.
    pub(crate) mtp_norm_offset: f32,
}

impl Layout {
    /// Finds prefixes by what is there. Norms are taken as stored.
    pub(crate) fn find(checkpoint: &Checkpoint) -> Self {
        let holds = |suffix: &str, prefixes: &[&'static str]| {
            prefixes.iter().copied().find(|p| checkpoint.contains(&format!("{p}{suffix}")))
        };
        let trunks = ["model.language_model", "language_model.model", "model"];
        let trunk = holds(".embed_tokens.weight", &trunks)
            .or_else(|| holds(".embeddings.weight", &["backbone", "model"]))
            .unwrap_or("model");
        let layers = |config: &serde_json::Value| config.get("num_hidden_layers")?.as_u64();
        let config = checkpoint.config();
        let layers = layers(config).or_else(|| layers(config.get("text_config")?));
        let behind = layers.map(|layers| format!("{trunk}.layers.{layers}"));
        Self {
            trunk,
            head: holds(".weight", &["lm_head", "language_model.lm_head"]),
            mtp: holds(".fc.weight", &["mtp", "language_model.mtp", "model.mtp"]),
            mtp_layer: behind.filter(|path| checkpoint.contains(&format!("{path}.eh_proj.weight"))),
            gamma: checkpoint.layout() == forerun_weights::CheckpointLayout::Gguf,
            norm_offset: 0.0,
            mtp_norm_offset: 0.0,
        }
    }

    /// Whether an MTP head is stored.
    pub(crate) fn has_mtp(&self) -> bool {
        self.mtp.is_some() || self.mtp_layer.is_some()
    }

    /// Decides the norm convention of a Qwen hybrid.
    ///
    /// Published files store `w − 1`; converted ones store `w` and turn the convolution's axes, which
    /// is the one sign that tells them apart. MTP sidecars come in both conventions and rarely say
    /// so; a norm weight scatters around 1, so the mean tells.
    ///
    /// GGUF files store `w` throughout.
    pub(crate) fn decide_norms(&mut self, checkpoint: &Checkpoint) -> Result<(), ModelError> {
        if self.gamma {
            return Ok(());
        }
        let conv = checkpoint
            .names()
            .find(|n| n.starts_with(self.trunk) && n.ends_with(".linear_attn.conv1d.weight"));
        let converted = match conv {
            Some(name) => {
                let shape = checkpoint.info(name)?.shape;
                matches!(shape[..], [_, taps, 1] if taps > 1)
            }
            None => checkpoint.layout() == forerun_weights::CheckpointLayout::Mlx,
        };
        self.norm_offset = if converted { 0.0 } else { 1.0 };
        self.mtp_norm_offset = self.norm_offset;
        let Some(mtp) = self.mtp else { return Ok(()) };
        let in_sidecar =
            checkpoint.file_of(&format!("{mtp}.fc.weight")).is_some_and(|f| f.is_sidecar());
        if checkpoint.sidecar_norms_are_gamma() && in_sidecar {
            self.mtp_norm_offset = 0.0;
        } else if in_sidecar || converted {
            let name = format!("{mtp}.norm.weight");
            let shape = checkpoint.info(&name)?.shape;
            let values = checkpoint.values(&name, &shape)?;
            let mean = values.iter().sum::<f32>() / values.len().max(1) as f32;
            self.mtp_norm_offset = if mean < 0.5 { 1.0 } else { 0.0 };
        }
        Ok(())
    }
}

/// Brings weights to a device.
pub(crate) struct Loader<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    /// What the family calls its modules.
    pub(crate) names: &'static ModuleNames,
    /// Tokens there are.
    pub(crate) vocabulary: usize,
    backend: &'a mut dyn Backend,
    progress: &'a mut Progress<'a>,
    norm_offset: f32,
    bytes: u64,
    parameters: u64,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        names: &'static ModuleNames,
        backend: &'a mut dyn Backend,
        progress: &'a mut Progress<'a>,
    ) -> Self {
        let (norm_offset, bytes, parameters, vocabulary) = (0.0, 0, 0, 0);
        Self { checkpoint, names, vocabulary, backend, progress, norm_offset, bytes, parameters }
    }

    /// What is added to norm weights from here on.
    pub(crate) fn set_norm_offset(&mut self, offset: f32) {
        self.norm_offset = offset;
    }

    /// Reads from another checkpoint from here on; its norms are taken as stored.
    pub(crate) fn read_from(&mut self, checkpoint: &'a Checkpoint) {
        self.checkpoint = checkpoint;
        self.norm_offset = 0.0;
    }

    /// Bytes and parameters uploaded so far.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.bytes, self.parameters)
    }

    pub(crate) fn upload(
        &mut self,
        label: &str,
        matrix: impl Into<MatrixParts>,
    ) -> Result<WeightId, ModelError> {
        let mut parts = matrix.into();
        // A large dense matrix would take as long again as it takes to map it, and shows in the first step. The
        // tables show in the tokens that are sampled, so they are always searched.
        let dense = matches!(parts.format(), Format::Dense(_));
        let tables = ["embed_tokens", "embeddings", "lm_head"];
        let table = tables.iter().any(|table| label.ends_with(table));
        let watch = (!dense || table || parts.bytes() <= SEARCHED).then(|| parts.watch());
        // The device reads every row once, and rows are searched as they are read.
        let uploaded = self.backend.upload_parts(label, &parts);
        if let Some((plane, row)) = watch.and_then(|watch| watch.found()) {
            return Err(ModelError::NotFinite { tensor: label.to_owned(), plane, row });
        }
        let weight = uploaded?;
        self.bytes += parts.bytes() as u64;
        self.parameters += (parts.rows() * parts.cols()) as u64;
        (self.progress)(self.bytes);
        Ok(weight)
    }

    /// The weight of module `path` as it is.
    pub(crate) fn matrix(&mut self, path: &str, shape: [usize; 2]) -> Result<WeightId, ModelError> {
        let matrix = self.checkpoint.parts(path, &shape)?;
        self.upload(path, matrix)
    }

    /// Whether two modules hold the same weight, byte for byte.
    pub(crate) fn is_copy(&self, path: &str, of: &str) -> bool {
        let tensor = |path: &str| self.checkpoint.tensor(&format!("{path}.weight"));
        match (tensor(path), tensor(of)) {
            (Ok(a), Ok(b)) => {
                (a.dtype, &a.shape) == (b.dtype, &b.shape) && a.bytes[..] == b.bytes[..]
            }
            _ => false,
        }
    }

    /// Some rows of a matrix, in the order of `ranges`.
    pub(crate) fn rows(
        &mut self,
        label: &str,
        matrix: &MatrixParts,
        ranges: &[Range<usize>],
    ) -> Result<WeightId, ModelError> {
        let part = matrix.select_rows(ranges).ok_or_else(|| {
            ModelError::Layout(format!(
                "{label}: rows {ranges:?} of {} do not exist",
                matrix.rows()
            ))
        })?;
        self.upload(label, part)
    }

    /// A norm weight, its convention resolved.
    pub(crate) fn norm(&mut self, path: &str, len: usize) -> Result<WeightId, ModelError> {
        let offset = self.norm_offset;
        self.vector(&format!("{path}.weight"), len, |w| w + offset)
    }

    /// The same, times a factor.
    pub(crate) fn scaled_norm(
        &mut self,
        path: &str,
        len: usize,
        factor: f32,
    ) -> Result<WeightId, ModelError> {
        let offset = self.norm_offset;
        self.vector(&format!("{path}.weight"), len, |w| (w + offset) * factor)
    }

    /// A norm weight that every convention stores as it is.
    pub(crate) fn plain_norm(&mut self, path: &str, len: usize) -> Result<WeightId, ModelError> {
        self.vector(&format!("{path}.weight"), len, |w| w)
    }

    /// The kernel of a depthwise convolution as `[channels, taps]`.
    pub(crate) fn conv_kernel(
        &mut self,
        name: &str,
        [channels, taps]: [usize; 2],
    ) -> Result<WeightId, ModelError> {
        let kernel = self.conv_values(name, [channels, taps])?;
        self.numbers(name, channels, &kernel)
    }

    /// The numbers of such a kernel.
    pub(crate) fn conv_values(
        &self,
        name: &str,
        [channels, taps]: [usize; 2],
    ) -> Result<Vec<f32>, ModelError> {
        // [C, 1, K] as published and [C, K, 1] as converted hold the same bytes.
        let converted = self.checkpoint.info(name)?.shape.last() == Some(&1);
        let stored = if converted { [channels, taps, 1] } else { [channels, 1, taps] };
        Ok(self.checkpoint.values(name, &stored)?)
    }

    /// A vector of `len` numbers, whatever axes of one it is stored with.
    pub(crate) fn flat(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let stored = self.checkpoint.info(name)?.shape;
        let whole = stored.iter().product::<usize>() == len && stored.contains(&len);
        let shape = if whole { &stored[..] } else { &[len] };
        Ok(self.checkpoint.values(name, shape)?)
    }

    /// A single stored number.
    pub(crate) fn number(&self, name: &str) -> Result<f32, ModelError> {
        Ok(self.checkpoint.values(name, &[1])?[0])
    }

    /// Stored integers that are places in a list of `len`.
    pub(crate) fn places(&self, name: &str, len: usize) -> Result<Vec<u32>, ModelError> {
        let wrong = |why: String| ModelError::Layout(format!("{name}: {why}"));
        let shape = self.checkpoint.info(name)?.shape;
        if shape != [len] {
            return Err(wrong(format!("has shape {shape:?}, expected [{len}]")));
        }
        let numbers = self.integers(name)?;
        let place = |n: i64| u32::try_from(n).ok().filter(|&n| (n as usize) < len);
        let places = numbers.into_iter().map(place).collect::<Option<_>>();
        places.ok_or_else(|| wrong(format!("holds a number outside 0..{len}")))
    }

    /// Stored integers.
    pub(crate) fn integers(&self, name: &str) -> Result<Vec<i64>, ModelError> {
        let tensor = self.checkpoint.tensor(name)?;
        match tensor.dtype {
            DType::I64 => {
                let words = tensor.bytes.as_chunks::<8>().0;
                Ok(words.iter().map(|b| i64::from_le_bytes(*b)).collect())
            }
            DType::I32 => {
                let words = tensor.bytes.as_chunks::<4>().0;
                Ok(words.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect())
            }
            _ => Err(ModelError::Layout(format!("{name}: is not I64 or I32"))),
        }
    }

    /// The weight of module `path` as f32; so small that no file quantises it.
    pub(crate) fn small_matrix(
        &mut self,
        path: &str,
        [rows, cols]: [usize; 2],
    ) -> Result<WeightId, ModelError> {
        let values = self.checkpoint.values(&format!("{path}.weight"), &[rows, cols])?;
        self.numbers(path, rows, &values)
    }

    /// A small vector as f32, each number mapped.
    pub(crate) fn vector(
        &mut self,
        name: &str,
        len: usize,
        map: impl Fn(f32) -> f32,
    ) -> Result<WeightId, ModelError> {
        let values: Vec<f32> = self.checkpoint.values(name, &[len])?.into_iter().map(map).collect();
        self.numbers(name, 1, &values)
    }

    /// Numbers as a dense matrix of `rows` rows.
    pub(crate) fn numbers(
        &mut self,
        label: &str,
        rows: usize,
        values: &[f32],
    ) -> Result<WeightId, ModelError> {
        let matrix = Matrix::from_f32(rows, values.len() / rows.max(1), values)
            .map_err(|e| ModelError::Layout(format!("{label}: {e}")))?;
        self.upload(label, matrix)
    }
}
