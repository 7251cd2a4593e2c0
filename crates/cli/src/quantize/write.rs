//! Weight files, one after another, each a bounded piece of a matrix at a time.
//!
//! A file has another name until it is whole and on the disk, so a file under its own name needs
//! no further look.

use super::folder::partial_of;
use super::layout::{Action, Shard, Task};
use super::plan::{Change, Part, Source};
use crate::interrupt;
use anyhow::{Context, anyhow};
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
pub(super) enum End {
    Whole,
    /// By Ctrl-C, between two pieces.
    Interrupted,
}

/// A file that is removed unless it gets its name.
pub(super) struct Partial(pub(super) PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already when it was renamed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes one file.
pub(super) fn write(
    checkpoint: &Checkpoint,
    folder: &Path,
    shard: &Shard<'_>,
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> anyhow::Result<End> {
    let partial = Partial(partial_of(&folder.join(&shard.name)));
    if let Some(parent) = partial.0.parent() {
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    let file = Writer::create(&partial.0, &shard.entries, Some("mlx"))?;
    let mut output = Output { checkpoint, file, threads, progress };
    for task in &shard.tasks {
        let source = checkpoint.folder().display();
        let end = output.task(task).with_context(|| format!("{source}: {}", task.job.target))?;
        if end == End::Interrupted {
            return Ok(end);
        }
    }
    output.file.finish()?;
    rename(&partial.0, &folder.join(&shard.name))?;
    Ok(End::Whole)
}

/// Gives a finished file its name, for good.
pub(super) fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::rename(from, to).with_context(|| to.display().to_string())?;
    // Where folders can be opened, the new name is on the disk too; elsewhere there is no way.
    if let Some(folder) = to.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// Whether the file of an earlier run is there, as long and with the header that it must have.
pub(super) fn is_written(folder: &Path, shard: &Shard<'_>) -> bool {
    let Some(expected) = header(&shard.entries, Some("mlx")) else { return false };
    let Ok(mut file) = forerun_base::open_regular(folder.join(&shard.name)) else { return false };
    let length = file.metadata().map_or(0, |about| about.len());
    let mut found = vec![0; expected.len()];
    length == expected.len() as u64 + shard.bytes
        && file.read_exact(&mut found).is_ok()
        && found == expected
}

struct Output<'a> {
    checkpoint: &'a Checkpoint,
    file: Writer,
    threads: usize,
    progress: &'a mut dyn FnMut(u64),
}

impl Output<'_> {
    fn task(&mut self, task: &Task<'_>) -> anyhow::Result<End> {
        match &task.job.source {
            Source::Tensor { name, change, .. } => self.tensor(task, name, *change),
            Source::Matrix { parts, .. } => {
                for part in parts {
                    if self.part(task, part)? == End::Interrupted {
                        return Ok(End::Interrupted);
                    }
                }
                Ok(End::Whole)
            }
        }
    }

    fn tensor(&mut self, task: &Task<'_>, name: &str, change: Change) -> anyhow::Result<End> {
        let info = self.checkpoint.info(name)?;
        let bytes = match (change, info.storage, task.action) {
            (Change::Keep, Storage::Plain(_), _) => self.checkpoint.tensor(name)?.bytes,
            (_, _, Action::Plain(dtype)) => {
                let values = self.checkpoint.values(name, &info.shape)?;
                let changed = |x: f32| {
                    change.apply(x).with_context(|| format!("{name}: {x} cannot be converted"))
                };
                let values: anyhow::Result<Vec<f32>> = values.into_iter().map(changed).collect();
                narrowed(&values?, dtype)?.into()
            }
            (_, _, Action::Encode(_)) => return Err(anyhow!("{name} is no matrix")),
        };
        self.put(task.entries[0], &bytes)?;
        Ok(End::Whole)
    }

    fn part(&mut self, task: &Task<'_>, part: &Part) -> anyhow::Result<End> {
        let matrix = match part.shape[..] {
            [rows, cols] => self.checkpoint.matrix(&part.path, [rows, cols])?,
            [experts, rows, cols] => self.checkpoint.stacked(&part.path, [experts, rows, cols])?,
            _ => return Err(anyhow!("shape {:?} is no matrix and no stack", part.shape)),
        };
        let step = (PIECE / matrix.cols().max(1)).max(1);
        for range in &part.rows {
            for start in range.clone().step_by(step) {
                if interrupt::is_cancelled() {
                    return Ok(End::Interrupted);
                }
                self.rows(task, &matrix, start..range.end.min(start + step))?;
            }
        }
        Ok(End::Whole)
    }

    fn rows(&mut self, task: &Task<'_>, matrix: &Matrix, rows: Range<usize>) -> anyhow::Result<()> {
        match task.action {
            Action::Encode(encoder) => {
                let planes = encoder.encode(matrix, rows, self.threads)?;
                let planes = [planes.codes, planes.scales, planes.biases];
                for (&entry, plane) in task.entries.iter().zip(&planes) {
                    self.put(entry, plane)?;
                }
            }
            Action::Plain(dtype) => {
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

    fn put(&mut self, entry: usize, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.append(entry, bytes)?;
        (self.progress)(bytes.len() as u64);
        Ok(())
    }
}

/// Numbers as bytes of a float type.
fn narrowed(values: &[f32], dtype: DType) -> anyhow::Result<Vec<u8>> {
    Ok(match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&v| f32_to_f16(v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| f32_to_bf16(v).to_le_bytes()).collect(),
        other => return Err(anyhow!("{other} where F32, F16 or BF16 is expected")),
    })
}
