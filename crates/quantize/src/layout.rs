//! The new weight files: which tensors they hold and where each job writes.

use super::plan::{CheckpointPlan, JobSource, ModuleJob, StoredRows, plain_type};
use super::policy::ModulePrecision;
use crate::QuantizeError;
use forerun_base::{DType, ScaleType};
use forerun_weights::quantize::Encoder;
use forerun_weights::safetensors::NewTensor;
use forerun_weights::{Checkpoint, Storage, WeightsError};

/// The file of the MTP head.
pub(super) const SIDECAR: &str = "mtp/weights.safetensors";

/// One job with its outputs.
#[derive(Debug)]
pub(super) struct JobTask {
    pub(super) job: ModuleJob,
    pub(super) action: OutputForm,
    /// Indices of its tensors in the file: codes, scales and biases, or one.
    pub(super) entries: Vec<usize>,
}

/// How a job's numbers become bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum OutputForm {
    Encode(Encoder),
    /// Plain numbers of this type.
    Plain(DType),
}

/// One file.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) entries: Vec<NewTensor>,
    pub(super) tasks: Vec<JobTask>,
    /// Bytes of all its tensors.
    pub(super) bytes: u64,
}

impl Shard {
    /// Whether it is the file of the MTP head.
    pub(super) fn is_sidecar(&self) -> bool {
        self.name == SIDECAR
    }
}

/// Cuts the plan into files of at most `limit` bytes, unless one job alone is larger. The MTP head
/// is one file of its own, since other readers refuse its tensors among the model's.
pub(super) fn shards(
    checkpoint: &Checkpoint,
    plan: CheckpointPlan,
    choices: &[Option<ModulePrecision>],
    limit: u64,
) -> Result<Vec<Shard>, QuantizeError> {
    let mut files: Vec<(u64, Vec<JobTensors>)> = Vec::new();
    let mut head: Option<(u64, Vec<JobTensors>)> = None;
    for (job, choice) in plan.jobs.into_iter().zip(choices) {
        let output = JobTensors::new(checkpoint, plan.float, job, *choice)?;
        let too_large = || QuantizeError::Size(output.job.target.clone());
        let bytes = output.bytes().ok_or_else(too_large)?;
        let open = if output.job.is_mtp() {
            Some(head.get_or_insert_default())
        } else {
            files.last_mut().filter(|(all, _)| all.saturating_add(bytes) <= limit)
        };
        match open {
            Some((all, outputs)) => {
                *all = all.saturating_add(bytes);
                outputs.push(output);
            }
            None => files.push((bytes, vec![output])),
        }
    }
    let count = files.len();
    let file = |(i, (bytes, outputs)): (usize, (u64, Vec<JobTensors>))| {
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        shard(name, bytes, outputs)
    };
    let mut shards: Vec<Shard> = files.into_iter().enumerate().map(file).collect();
    shards.extend(head.map(|(bytes, outputs)| shard(SIDECAR.to_owned(), bytes, outputs)));
    Ok(shards)
}

/// Puts wide elements first, so that every tensor is aligned to its elements.
fn shard(name: String, bytes: u64, outputs: Vec<JobTensors>) -> Shard {
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (task, output) in outputs.iter().enumerate() {
        order.extend((0..output.entries.len()).map(|entry| (task, entry)));
    }
    let size = |&(task, entry): &(usize, usize)| outputs[task].entries[entry].dtype.size();
    order.sort_by_key(|tensor| std::cmp::Reverse(size(tensor)));
    let entries = order.iter().map(|&(t, e)| outputs[t].entries[e].clone()).collect();
    let mut tasks: Vec<JobTask> = outputs
        .into_iter()
        .map(|JobTensors { job, action, entries }| JobTask {
            job,
            action,
            entries: vec![0; entries.len()],
        })
        .collect();
    for (number, (task, entry)) in order.into_iter().enumerate() {
        tasks[task].entries[entry] = number;
    }
    Shard { name, entries, tasks, bytes }
}

/// The tensors that a job becomes.
struct JobTensors {
    job: ModuleJob,
    action: OutputForm,
    entries: Vec<NewTensor>,
}

impl JobTensors {
    fn new(
        checkpoint: &Checkpoint,
        float: ScaleType,
        job: ModuleJob,
        choice: Option<ModulePrecision>,
    ) -> Result<Self, QuantizeError> {
        let (action, entries) = match (&job.source, choice) {
            (JobSource::Tensor { name, shape, .. }, _) => {
                let dtype = match checkpoint.info(name)?.storage {
                    Storage::Plain(dtype) => dtype,
                    Storage::Block(_) => DType::F32,
                };
                (OutputForm::Plain(dtype), vec![entry(job.target.clone(), dtype, shape.clone())])
            }
            (JobSource::Matrix { shape, .. }, Some(ModulePrecision::Encode(scheme))) => {
                let unknown =
                    || QuantizeError::UnknownScheme { target: job.target.clone(), scheme };
                let encoder = Encoder::new(scheme, float).ok_or_else(unknown)?;
                (OutputForm::Encode(encoder), packed(&job.target, shape, &encoder)?)
            }
            (JobSource::Matrix { shape, parts }, _) => {
                let dtype = common_type(checkpoint, parts)?.unwrap_or(dtype_of(float));
                let name = format!("{}.weight", job.target);
                (OutputForm::Plain(dtype), vec![entry(name, dtype, shape.clone())])
            }
        };
        Ok(Self { job, action, entries })
    }

    fn bytes(&self) -> Option<u64> {
        self.entries.iter().try_fold(0u64, |all, entry| all.checked_add(entry.bytes()? as u64))
    }
}

fn packed(
    target: &str,
    shape: &[usize],
    encoder: &Encoder,
) -> Result<Vec<NewTensor>, QuantizeError> {
    let widths =
        shape.split_last().and_then(|(&cols, lead)| Some((encoder.row_bytes(cols)?, lead)));
    let Some(([codes, scales, _], lead)) = widths else {
        return Err(QuantizeError::Groups { target: target.to_owned(), shape: shape.to_vec() });
    };
    let plane = |name: &str, dtype: DType, bytes: usize| {
        let shape = [lead, &[bytes / dtype.size()]].concat();
        entry(format!("{target}.{name}"), dtype, shape)
    };
    let mut entries =
        vec![plane("weight", DType::U32, codes), plane("scales", encoder.scale_dtype(), scales)];
    if encoder.has_biases() {
        entries.push(plane("biases", encoder.scale_dtype(), scales));
    }
    Ok(entries)
}

/// The type that all parts share, if they are plain numbers of one type.
fn common_type(
    checkpoint: &Checkpoint,
    parts: &[StoredRows],
) -> Result<Option<DType>, WeightsError> {
    let mut found = None;
    for part in parts {
        let dtype = plain_type(checkpoint, &part.path)?;
        if dtype.is_none() || found.is_some_and(|other| Some(other) != dtype) {
            return Ok(None);
        }
        found = dtype;
    }
    Ok(found)
}

fn dtype_of(float: ScaleType) -> DType {
    match float {
        ScaleType::F32 => DType::F32,
        ScaleType::F16 => DType::F16,
        ScaleType::BF16 => DType::BF16,
    }
}

fn entry(name: String, dtype: DType, shape: Vec<usize>) -> NewTensor {
    NewTensor { name, dtype, shape }
}
