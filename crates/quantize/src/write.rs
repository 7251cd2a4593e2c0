//! Weight files, one after another, each a bounded piece of a matrix at a time.
//!
//! A file has another name until it is complete and on the disk, so a file under its own name needs
//! no further look.

use super::folder::partial_of;
use super::layout::{JobTask, OutputForm, Shard};
use super::plan::{Change, JobSource, StoredRows};
use crate::{QuantizeError, WriteControl};
use forerun_base::{DType, Matrix, f32_to_bf16, f32_to_f16};
use forerun_weights::safetensors::{Writer, header};
use forerun_weights::{Checkpoint, Storage};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Numbers encoded at a time: what is in memory beside the mapped source is a few times this.
const PIECE: usize = 8 << 20;

/// How writing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardEnd {
    Complete,
    /// As the caller wished, between two pieces.
    Interrupted,
}

/// A file that is removed unless it gets its name.
pub(super) struct PartialFile(pub(super) PathBuf);

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Gone already when it was renamed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes the files of one folder.
pub(super) struct ShardWriter<'a, 'w> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) folder: &'a Path,
    pub(super) threads: usize,
    pub(super) watch: &'a mut WriteControl<'w>,
}

impl ShardWriter<'_, '_> {
    /// Writes one file.
    pub(super) fn write(&mut self, shard: &Shard) -> Result<ShardEnd, QuantizeError> {
        let path = self.folder.join(&shard.name);
        let partial = PartialFile(partial_of(&path));
        if let Some(parent) = partial.0.parent() {
            std::fs::create_dir_all(parent).map_err(QuantizeError::file(parent))?;
        }
        let (checkpoint, threads) = (self.checkpoint, self.threads);
        let file = Writer::create(&partial.0, &shard.entries, Some("mlx"))?;
        let mut file = ShardFile { checkpoint, file, threads, watch: &mut *self.watch };
        for task in &shard.tasks {
            let end = file.task(task).map_err(|cause| QuantizeError::At {
                place: format!("{}: {}", checkpoint.folder().display(), task.job.target),
                cause: Box::new(cause),
            })?;
            if end == ShardEnd::Interrupted {
                return Ok(end);
            }
        }
        file.file.finish()?;
        rename(&partial.0, &path)?;
        Ok(ShardEnd::Complete)
    }
}

/// Gives a finished file its name, for good.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    std::fs::rename(from, to).map_err(QuantizeError::file(to))?;
    // Where folders can be opened, the new name is on the disk too; elsewhere there is no way.
    if let Some(folder) = to.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Whether the file of an earlier run is there, as long and with the header that it must have.
pub(super) fn is_written(folder: &Path, shard: &Shard) -> bool {
    let Some(expected) = header(&shard.entries, Some("mlx")) else { return false };
    let Ok(mut file) = forerun_base::open_regular(folder.join(&shard.name)) else { return false };
    let length = file.metadata().map_or(0, |about| about.len());
    let mut found = vec![0; expected.len()];
    length == expected.len() as u64 + shard.bytes
        && file.read_exact(&mut found).is_ok()
        && found == expected
}

struct ShardFile<'a, 'w> {
    checkpoint: &'a Checkpoint,
    file: Writer,
    threads: usize,
    watch: &'a mut WriteControl<'w>,
}

impl ShardFile<'_, '_> {
    fn task(&mut self, task: &JobTask) -> Result<ShardEnd, QuantizeError> {
        match &task.job.source {
            JobSource::Tensor { name, change, .. } => self.tensor(task, name, *change),
            JobSource::Matrix { parts, .. } => {
                for part in parts {
                    if self.part(task, part)? == ShardEnd::Interrupted {
                        return Ok(ShardEnd::Interrupted);
                    }
                }
                Ok(ShardEnd::Complete)
            }
        }
    }

    fn tensor(
        &mut self,
        task: &JobTask,
        name: &str,
        change: Change,
    ) -> Result<ShardEnd, QuantizeError> {
        let info = self.checkpoint.info(name)?;
        let bytes = match (change, info.storage, task.action) {
            (Change::Keep, Storage::Plain(_), _) => self.checkpoint.tensor(name)?.bytes,
            (_, _, OutputForm::Plain(dtype)) => {
                let values = self.checkpoint.values(name, &info.shape)?;
                let changed = |x: f32| {
                    let wrong = || QuantizeError::Number { name: name.to_owned(), value: x };
                    change.apply(x).ok_or_else(wrong)
                };
                let values: Result<Vec<f32>, QuantizeError> =
                    values.into_iter().map(changed).collect();
                narrowed(&values?, dtype)?.into()
            }
            (_, _, OutputForm::Encode(_)) => unreachable!("`layout` encodes nothing but matrices"),
        };
        self.put(task.entries[0], &bytes)?;
        Ok(ShardEnd::Complete)
    }

    fn part(&mut self, task: &JobTask, part: &StoredRows) -> Result<ShardEnd, QuantizeError> {
        let matrix = match part.shape[..] {
            [rows, cols] => self.checkpoint.matrix(&part.path, [rows, cols])?,
            [experts, rows, cols] => self.checkpoint.stacked(&part.path, [experts, rows, cols])?,
            _ => {
                let problem = " is no matrix and no stack";
                return Err(QuantizeError::shape(&part.path, &part.shape, problem));
            }
        };
        let step = (PIECE / matrix.cols().max(1)).max(1);
        for range in &part.rows {
            for start in range.clone().step_by(step) {
                if (self.watch.cancelled)() {
                    return Ok(ShardEnd::Interrupted);
                }
                self.rows(task, &matrix, start..range.end.min(start + step))?;
            }
        }
        Ok(ShardEnd::Complete)
    }

    fn rows(
        &mut self,
        task: &JobTask,
        matrix: &Matrix,
        rows: Range<usize>,
    ) -> Result<(), QuantizeError> {
        match task.action {
            OutputForm::Encode(encoder) => {
                let planes = encoder.encode(matrix, rows, self.threads)?;
                let planes = [planes.codes, planes.scales, planes.biases];
                for (&entry, plane) in task.entries.iter().zip(&planes) {
                    self.put(entry, plane)?;
                }
            }
            OutputForm::Plain(dtype) => {
                let mut values = vec![0.0; matrix.cols()];
                let mut bytes = Vec::new();
                for row in rows {
                    matrix.decode_row(row, &mut values);
                    bytes.extend(narrowed(&values, dtype)?);
                }
                self.put(task.entries[0], &bytes)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, entry: usize, bytes: &[u8]) -> Result<(), QuantizeError> {
        self.file.append(entry, bytes)?;
        (self.watch.progress)(bytes.len() as u64);
        Ok(())
    }
}

/// Numbers as bytes of a float type.
fn narrowed(values: &[f32], dtype: DType) -> Result<Vec<u8>, QuantizeError> {
    Ok(match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&v| f32_to_f16(v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| f32_to_bf16(v).to_le_bytes()).collect(),
        other => return Err(QuantizeError::Type(other)),
    })
}
