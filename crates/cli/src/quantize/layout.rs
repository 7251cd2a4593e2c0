//! The new weight files: which tensors they hold and where each job writes.

use super::plan::{Job, Part, Plan, Source, plain_type};
use super::policy::Choice;
use anyhow::{Context, anyhow};
use forerun_base::{DType, ScaleType};
use forerun_weights::quantize::Encoder;
use forerun_weights::safetensors::Entry;
use forerun_weights::{Checkpoint, Storage, WeightsError};

/// The file of the MTP head.
pub(super) const SIDECAR: &str = "mtp/weights.safetensors";

/// One job with its outputs.
#[derive(Debug)]
pub(super) struct Task<'a> {
    pub(super) job: &'a Job,
    pub(super) action: Action,
    /// Numbers of its tensors in the file: codes, scales and biases, or one.
    pub(super) entries: Vec<usize>,
}

/// How a job's numbers become bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Encode(Encoder),
    /// Plain numbers of this type.
    Plain(DType),
}

/// One file.
#[derive(Debug)]
pub(super) struct Shard<'a> {
    pub(super) name: String,
    pub(super) entries: Vec<Entry>,
    pub(super) tasks: Vec<Task<'a>>,
    /// Bytes of all its tensors.
    pub(super) bytes: u64,
}

impl Shard<'_> {
    /// Whether it is the file of the MTP head.
    pub(super) fn is_sidecar(&self) -> bool {
        self.name == SIDECAR
    }
}

/// Cuts the plan into files of at most `limit` bytes, unless one job alone is larger. The MTP head
/// is one file of its own, since other readers refuse its tensors among the model's.
pub(super) fn shards<'a>(
    checkpoint: &Checkpoint,
    plan: &'a Plan,
    choices: &[Option<Choice>],
    limit: u64,
) -> anyhow::Result<Vec<Shard<'a>>> {
    let mut files: Vec<(u64, Vec<Output<'a>>)> = Vec::new();
    let mut head: Option<(u64, Vec<Output<'a>>)> = None;
    for (job, choice) in plan.jobs.iter().zip(choices) {
        let output = Output::new(checkpoint, plan.float, job, *choice)?;
        let bytes = output.bytes().with_context(|| format!("{}: size overflows", job.target))?;
        let open = if job.is_mtp() {
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
    let file = |(i, (bytes, outputs)): (usize, (u64, Vec<Output<'a>>))| {
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        shard(name, bytes, outputs)
    };
    let mut shards: Vec<Shard<'_>> = files.into_iter().enumerate().map(file).collect();
    shards.extend(head.map(|(bytes, outputs)| shard(SIDECAR.to_owned(), bytes, outputs)));
    Ok(shards)
}

/// Puts wide elements first, so that every tensor lies where its elements like it.
fn shard(name: String, bytes: u64, outputs: Vec<Output<'_>>) -> Shard<'_> {
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (task, output) in outputs.iter().enumerate() {
        order.extend((0..output.entries.len()).map(|entry| (task, entry)));
    }
    let size = |&(task, entry): &(usize, usize)| outputs[task].entries[entry].dtype.size();
    order.sort_by_key(|place| std::cmp::Reverse(size(place)));
    let entries = order.iter().map(|&(t, e)| outputs[t].entries[e].clone()).collect();
    let mut tasks: Vec<Task<'_>> = outputs
        .into_iter()
        .map(|Output { job, action, entries }| Task {
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
struct Output<'a> {
    job: &'a Job,
    action: Action,
    entries: Vec<Entry>,
}

impl<'a> Output<'a> {
    fn new(
        checkpoint: &Checkpoint,
        float: ScaleType,
        job: &'a Job,
        choice: Option<Choice>,
    ) -> anyhow::Result<Self> {
        let (action, entries) = match (&job.source, choice) {
            (Source::Tensor { name, shape, .. }, _) => {
                let dtype = match checkpoint.info(name)?.storage {
                    Storage::Plain(dtype) => dtype,
                    Storage::Block(_) => DType::F32,
                };
                (Action::Plain(dtype), vec![entry(job.target.clone(), dtype, shape.clone())])
            }
            (Source::Matrix { shape, .. }, Some(Choice::Encode(scheme))) => {
                let encoder = Encoder::new(scheme, float)
                    .ok_or_else(|| anyhow!("{}: {scheme} is not a scheme of MLX", job.target))?;
                (Action::Encode(encoder), packed(&job.target, shape, &encoder)?)
            }
            (Source::Matrix { shape, parts }, _) => {
                let dtype = common_type(checkpoint, parts)?.unwrap_or(dtype_of(float));
                let name = format!("{}.weight", job.target);
                (Action::Plain(dtype), vec![entry(name, dtype, shape.clone())])
            }
        };
        Ok(Self { job, action, entries })
    }

    fn bytes(&self) -> Option<u64> {
        self.entries.iter().try_fold(0u64, |all, entry| all.checked_add(entry.bytes()? as u64))
    }
}

fn packed(target: &str, shape: &[usize], encoder: &Encoder) -> anyhow::Result<Vec<Entry>> {
    let widths =
        shape.split_last().and_then(|(&cols, lead)| Some((encoder.row_bytes(cols)?, lead)));
    let Some(([codes, scales, _], lead)) = widths else {
        return Err(anyhow!("{target}: groups do not divide shape {shape:?}"));
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
fn common_type(checkpoint: &Checkpoint, parts: &[Part]) -> Result<Option<DType>, WeightsError> {
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

fn entry(name: String, dtype: DType, shape: Vec<usize>) -> Entry {
    Entry { name, dtype, shape }
}
