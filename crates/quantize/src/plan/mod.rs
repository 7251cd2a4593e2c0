//! What the new checkpoint consists of: one [`ModuleJob`] per module or tensor, in the order of names.
//!
//! MLX's layout differs from the published one in names (`names`), in that experts are stacked
//! (`experts`), the offset norms of Qwen hybrids are stored as `1 + w`, and the convolution's axes
//! are swapped. The MTP head is kept, always as `mtp.*`. GGUF files come with published names, but
//! hold every norm as the factor and decay rates as `−exp(A_log)`.

mod experts;
mod names;

use crate::QuantizeError;
use experts::ExpertStacks;
use forerun_base::{DType, ScaleType};
use forerun_model::{DELTA_RATE, StorageForm};
use forerun_weights::quantize::logical_shape;
use forerun_weights::{Checkpoint, Storage, WeightsError, scaled_weight};
use names::{Names, NewName};
use std::ops::Range;

/// The new checkpoint.
#[derive(Debug)]
pub(super) struct CheckpointPlan {
    pub(super) jobs: Vec<ModuleJob>,
    /// Whether the embedding is also the head.
    pub(super) tied: bool,
    /// The model's float type.
    pub(super) float: ScaleType,
    /// How many tensors do not belong to the text model.
    pub(super) dropped: usize,
    /// Whether some weights of the source are codes already.
    pub(super) repacked: bool,
}

/// One module or tensor to write.
#[derive(Debug, PartialEq)]
pub(super) struct ModuleJob {
    /// Path of the module, or name of the tensor.
    pub(super) target: String,
    pub(super) source: JobSource,
}

/// Where it comes from.
#[derive(Debug, PartialEq)]
pub(super) enum JobSource {
    /// One tensor of plain numbers.
    Tensor {
        name: String,
        /// Its new shape; the order of elements is the same.
        shape: Vec<usize>,
        change: Change,
    },
    /// A matrix or a stack of them, all rows of `parts` in order.
    Matrix { shape: Vec<usize>, parts: Vec<StoredRows> },
}

/// What becomes of the numbers of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Keep,
    Add(f32),
    /// `−exp(A_log)` to `A_log`.
    LogOfNegative,
}

impl Change {
    fn add(offset: f32) -> Self {
        if offset == 0.0 { Self::Keep } else { Self::Add(offset) }
    }

    /// The new number; `None` where there is none.
    pub(super) fn apply(self, x: f32) -> Option<f32> {
        let y = match self {
            Self::Keep => return Some(x),
            Self::Add(offset) => x + offset,
            Self::LogOfNegative => (-x).ln(),
        };
        y.is_finite().then_some(y)
    }
}

/// Some rows of a stored weight.
#[derive(Debug, PartialEq)]
pub(super) struct StoredRows {
    /// Path of the module.
    pub(super) path: String,
    /// Its shape once decoded: `[rows, cols]` or `[experts, rows, cols]`.
    pub(super) shape: Vec<usize>,
    /// Rows in order, all leading axes run together.
    pub(super) rows: Vec<Range<usize>>,
}

impl ModuleJob {
    /// Whether it belongs to the MTP head.
    pub(super) fn is_mtp(&self) -> bool {
        self.target.starts_with("mtp.")
    }
}

impl StoredRows {
    /// All rows of a module.
    fn all_rows(path: &str, shape: &[usize]) -> Result<Self, QuantizeError> {
        let all = 0..row_count(path, shape)?;
        Ok(Self { path: path.to_owned(), shape: shape.to_vec(), rows: Vec::from([all]) })
    }
}

/// Rows of a weight, all leading axes run together. An empty axis is refused: it would let a
/// header of a few bytes claim any number of rows.
fn row_count(path: &str, shape: &[usize]) -> Result<usize, QuantizeError> {
    if shape.contains(&0) {
        return Err(QuantizeError::shape(path, shape, " holds nothing"));
    }
    let lead = shape.split_last().map(|(_, lead)| lead).unwrap_or_default();
    let rows = lead.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
    rows.ok_or_else(|| QuantizeError::shape(path, shape, " overflows"))
}

/// Plans the new checkpoint.
pub(super) fn plan(
    checkpoint: &Checkpoint,
    storage: &StorageForm,
) -> Result<CheckpointPlan, QuantizeError> {
    if let Some(family) = storage.mlx.read_only {
        return Err(QuantizeError::Family(family));
    }
    let names = Names::new(storage);
    let mut experts = ExpertStacks::default();
    let mut plan = CheckpointPlan {
        jobs: Vec::new(),
        tied: storage.tied,
        float: float_type(checkpoint, storage)?,
        dropped: 0,
        repacked: false,
    };
    for name in checkpoint.names() {
        if scaled_weight(checkpoint, name).is_some() {
            continue;
        }
        let Some(new) = names.translate(name) else {
            plan.dropped += 1;
            continue;
        };
        let module = name.strip_suffix(".weight").unwrap_or(name);
        if experts.take(checkpoint, module, &new)? {
            plan.repacked |= is_packed(checkpoint, module)?;
            continue;
        }
        let shape = logical_shape(checkpoint, module)?;
        let is_matrix = new.target.ends_with(".weight") && shape.len() >= 2;
        let is_conv = ["conv1d.weight", ".conv.conv.weight"];
        let is_conv = is_conv.iter().any(|name| new.target.ends_with(name));
        let (target, source) = if is_matrix && !is_conv {
            plan.repacked |= is_packed(checkpoint, module)?;
            let target = new.target.trim_end_matches(".weight").to_owned();
            (
                target,
                JobSource::Matrix { parts: vec![StoredRows::all_rows(module, &shape)?], shape },
            )
        } else {
            let shape = if is_conv { taps_before_one(name, &shape)? } else { shape };
            let (target, change) = changed(new, storage);
            (target, JobSource::Tensor { name: name.to_owned(), shape, change })
        };
        plan.jobs.push(ModuleJob { target, source });
    }
    plan.jobs.extend(experts.into_jobs()?);
    plan.jobs.sort_by(|a, b| a.target.cmp(&b.target));
    if let Some(pair) = plan.jobs.windows(2).find(|pair| pair[0].target == pair[1].target) {
        return Err(QuantizeError::StoredTwice(pair[0].target.clone()));
    }
    Ok(plan)
}

/// `[channels, 1, taps]` as published or `[channels, taps, 1]` as converted: the same bytes.
fn taps_before_one(name: &str, shape: &[usize]) -> Result<Vec<usize>, QuantizeError> {
    match *shape {
        [channels, 1, taps] | [channels, taps, 1] => Ok(vec![channels, taps, 1]),
        _ => Err(QuantizeError::shape(name, shape, "; expected [channels, 1, taps]")),
    }
}

/// A tensor's new name, and what becomes of its numbers.
fn changed(new: NewName, storage: &StorageForm) -> (String, Change) {
    if let Some(path) = new.target.strip_suffix(DELTA_RATE) {
        return (format!("{path}A_log"), Change::LogOfNegative);
    }
    let change = match &new {
        new if !new.is_offset_norm() => Change::Keep,
        NewName { mtp: true, .. } => Change::add(storage.mtp_norm_offset),
        _ => Change::add(storage.norm_offset - storage.mlx.norm_offset),
    };
    (new.target, change)
}

/// Whether a weight is stored as codes.
fn is_packed(checkpoint: &Checkpoint, module: &str) -> Result<bool, WeightsError> {
    Ok(plain_type(checkpoint, module)?.is_none())
}

/// The type of a weight stored as plain numbers.
pub(super) fn plain_type(
    checkpoint: &Checkpoint,
    module: &str,
) -> Result<Option<DType>, WeightsError> {
    let dotted = format!("{module}.weight");
    let info = checkpoint.info(if checkpoint.contains(&dotted) { &dotted } else { module })?;
    Ok(match info.storage {
        Storage::Plain(dtype @ (DType::F32 | DType::F16 | DType::BF16)) => Some(dtype),
        Storage::Plain(_) | Storage::Block(_) => None,
    })
}

/// The model's float type: that of its embedding, or of the embedding's scales where it is
/// packed. Wide numbers are narrowed as the config says, codes without float scales mean BF16.
fn float_type(checkpoint: &Checkpoint, storage: &StorageForm) -> Result<ScaleType, WeightsError> {
    let module = format!("{}.embed_tokens", storage.trunk);
    let scales = format!("{module}.scales");
    let stored = match plain_type(checkpoint, &module)? {
        None if checkpoint.contains(&scales) => Some(checkpoint.tensor(&scales)?.dtype),
        stored => stored,
    };
    let config = checkpoint.config();
    let sections = [Some(config), config.get("text_config")];
    let said = sections
        .into_iter()
        .flatten()
        .find_map(|section| section.get("dtype").or(section.get("torch_dtype"))?.as_str());
    Ok(match (stored, said) {
        (Some(DType::F16), _) | (Some(DType::F32), Some("float16")) => ScaleType::F16,
        (Some(DType::F32), Some("float32") | None) => ScaleType::F32,
        _ => ScaleType::BF16,
    })
}

#[cfg(test)]
mod tests;
