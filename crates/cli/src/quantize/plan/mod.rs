//! What the new checkpoint consists of: one [`Job`] per module or tensor, in the order of names.
//!
//! MLX's layout differs from the published one in names (`names`), in that experts are stacked
//! (`experts`), offset norms are stored as `1 + w`, and the convolution's axes are turned. The MTP
//! head is kept, always as `mtp.*`, which MLX itself leaves aside.

mod experts;
mod names;

use crate::inspect;
use anyhow::{Context, bail};
use experts::Experts;
use forerun_base::{DType, ScaleType};
use forerun_model::Storage;
use forerun_weights::quantize::logical_shape;
use forerun_weights::{Checkpoint, WeightsError};
use names::{Names, Place};
use std::ops::Range;

/// The new checkpoint.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) jobs: Vec<Job>,
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
pub(super) struct Job {
    /// Path of the module, or name of the tensor.
    pub(super) target: String,
    pub(super) source: Source,
}

/// Where it comes from.
#[derive(Debug, PartialEq)]
pub(super) enum Source {
    /// One tensor of plain numbers.
    Tensor {
        name: String,
        /// Its new shape; the order of elements is the same.
        shape: Vec<usize>,
        /// Added to every number.
        add: f32,
    },
    /// A matrix or a stack of them, all rows of `parts` in order.
    Matrix { shape: Vec<usize>, parts: Vec<Part> },
}

/// Some rows of a stored weight.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    /// Path of the module.
    pub(super) path: String,
    /// Its shape once decoded: `[rows, cols]` or `[experts, rows, cols]`.
    pub(super) shape: Vec<usize>,
    /// Rows in order, all leading axes run together.
    pub(super) rows: Vec<Range<usize>>,
}

impl Part {
    /// All rows of a module.
    fn whole(path: &str, shape: &[usize]) -> anyhow::Result<Self> {
        let all = 0..row_count(path, shape)?;
        Ok(Self { path: path.to_owned(), shape: shape.to_vec(), rows: Vec::from([all]) })
    }
}

/// Rows of a weight, all leading axes run together. An empty axis is refused: it would let a
/// header of a few bytes claim any number of rows.
fn row_count(path: &str, shape: &[usize]) -> anyhow::Result<usize> {
    if shape.contains(&0) {
        bail!("{path}: shape {shape:?} holds nothing");
    }
    let lead = shape.split_last().map(|(_, lead)| lead).unwrap_or_default();
    let rows = lead.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
    rows.with_context(|| format!("{path}: shape {shape:?} overflows"))
}

/// Plans the new checkpoint.
pub(super) fn plan(checkpoint: &Checkpoint, storage: &Storage) -> anyhow::Result<Plan> {
    let names = Names::new(checkpoint, storage);
    let mtp_add = mtp_norm_change(checkpoint, storage)?;
    let mut experts = Experts::default();
    let mut plan = Plan {
        jobs: Vec::new(),
        tied: storage.tied,
        float: float_type(checkpoint, storage)?,
        dropped: 0,
        repacked: false,
    };
    for name in checkpoint.names() {
        if inspect::owner(checkpoint, name).is_some() {
            continue;
        }
        let Some(place) = names.place(name) else {
            plan.dropped += 1;
            continue;
        };
        let module = name.strip_suffix(".weight").unwrap_or(name);
        if experts.take(checkpoint, module, &place)? {
            plan.repacked |= is_packed(checkpoint, module)?;
            continue;
        }
        let shape = logical_shape(checkpoint, module)?;
        let is_matrix = place.target.ends_with(".weight") && shape.len() >= 2;
        let is_conv = place.target.ends_with(".conv1d.weight");
        let (target, source) = if is_matrix && !is_conv {
            plan.repacked |= is_packed(checkpoint, module)?;
            let target = place.target.trim_end_matches(".weight").to_owned();
            (target, Source::Matrix { parts: vec![Part::whole(module, &shape)?], shape })
        } else {
            let add = match &place {
                place if !place.is_offset_norm() => 0.0,
                Place { mtp: true, .. } => mtp_add,
                _ => storage.norm_offset,
            };
            let shape = if is_conv { turned(name, &shape)? } else { shape };
            (place.target, Source::Tensor { name: name.to_owned(), shape, add })
        };
        plan.jobs.push(Job { target, source });
    }
    plan.jobs.extend(experts.into_jobs()?);
    plan.jobs.sort_by(|a, b| a.target.cmp(&b.target));
    if let Some(pair) = plan.jobs.windows(2).find(|pair| pair[0].target == pair[1].target) {
        bail!("{}: stored twice, under two names", pair[0].target);
    }
    Ok(plan)
}

/// `[channels, 1, taps]` as published or `[channels, taps, 1]` as converted: the same bytes.
fn turned(name: &str, shape: &[usize]) -> anyhow::Result<Vec<usize>> {
    match *shape {
        [channels, 1, taps] | [channels, taps, 1] => Ok(vec![channels, taps, 1]),
        _ => bail!("{name}: shape {shape:?}; expected [channels, 1, taps]"),
    }
}

/// What is added to the norms of the MTP head.
///
/// They are written as `1 + w` like all others. A reader tells the conventions apart by the mean
/// of the last norm, so one whose factors lie nearer to zero than to one is written as `w`.
fn mtp_norm_change(checkpoint: &Checkpoint, storage: &Storage) -> Result<f32, WeightsError> {
    let offset = storage.mtp_norm_offset;
    let Some(mtp) = storage.mtp else { return Ok(offset) };
    let name = format!("{mtp}.norm.weight");
    if !checkpoint.contains(&name) {
        return Ok(offset);
    }
    let shape = checkpoint.tensor(&name)?.shape;
    let values = checkpoint.values(&name, &shape)?;
    let mean = values.iter().sum::<f32>() / values.len().max(1) as f32;
    Ok(if mean + offset < 0.5 { offset - 1.0 } else { offset })
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
    let tensor = checkpoint.tensor(if checkpoint.contains(&dotted) { &dotted } else { module })?;
    Ok(matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16).then_some(tensor.dtype))
}

/// The model's float type: that of its embedding, or of the embedding's scales where it is
/// packed. Wide numbers are narrowed as the config says, codes without float scales mean BF16.
fn float_type(checkpoint: &Checkpoint, storage: &Storage) -> Result<ScaleType, WeightsError> {
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
