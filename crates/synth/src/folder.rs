//! A drawn model as a folder of files.

use crate::tensor::SynthTensor;
use crate::{Synth, SynthError};
use forerun_base::{on_threads, threads_for};
use forerun_weights::safetensors::{NewTensor, WriteError, Writer};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::Path;

/// Bytes of a file.
const SHARD: u64 = 4 << 30;
/// Bytes that are drawn before they are written.
const STAGED: usize = 64 << 20;

/// What was written.
#[derive(Clone, Copy, Debug)]
pub struct FolderReport {
    /// Weight files.
    pub files: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Writes weights, their index and `config.json` into an existing folder; `progress` hears the bytes so far. The
/// config comes last, so nobody takes a half-written folder for a model.
///
/// # Errors
/// When a file cannot be written.
pub fn write_folder(
    synth: &Synth,
    folder: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<FolderReport, SynthError> {
    let shards = shards(synth);
    let (count, mut done) = (shards.len(), 0);
    let mut places = Map::new();
    for (number, shard) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{count:05}.safetensors", number + 1);
        let entry = |&(name, tensor): &(&String, &SynthTensor)| NewTensor {
            name: name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        };
        let entries: Vec<NewTensor> = shard.iter().map(entry).collect();
        let mut writer = Writer::create(&folder.join(&name), &entries, None)?;
        for (i, (tensor_name, tensor)) in shard.iter().enumerate() {
            places.insert((*tensor_name).clone(), name.clone().into());
            for part in pieces(tensor) {
                let bytes = draw(tensor, part);
                writer.append(i, &bytes)?;
                done += bytes.len() as u64;
                progress(done);
            }
        }
        writer.finish()?;
    }
    let index = json!({ "metadata": { "total_size": done }, "weight_map": Value::Object(places) });
    put(&folder.join("model.safetensors.index.json"), &index)?;
    put(&folder.join("config.json"), &synth.config)?;
    Ok(FolderReport { files: count, bytes: done })
}

fn put(path: &Path, value: &Value) -> Result<(), SynthError> {
    let written = std::fs::write(path, format!("{value:#}\n"));
    written.map_err(|source| WriteError::Io { path: path.into(), source }.into())
}

/// Tensors by file, in the order of their names.
fn shards(synth: &Synth) -> Vec<Vec<(&String, &SynthTensor)>> {
    let mut shards: Vec<Vec<_>> = vec![Vec::new()];
    let mut bytes = 0;
    for (name, tensor) in &synth.tensors {
        if bytes > 0 && bytes + tensor.bytes() > SHARD {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += tensor.bytes();
        shards.last_mut().expect("there is one").push((name, tensor));
    }
    shards
}

/// The rows of a tensor, a stage at a time.
fn pieces(tensor: &SynthTensor) -> impl Iterator<Item = Range<usize>> {
    let step = (STAGED / tensor.row_bytes().max(1)).max(1);
    let rows = tensor.rows();
    (0..rows).step_by(step).map(move |first| first..rows.min(first + step))
}

/// Rows drawn by all cores.
fn draw(tensor: &SynthTensor, rows: Range<usize>) -> Vec<u8> {
    let each = rows.len().div_ceil(threads_for(rows.len() * tensor.row_bytes())).max(1);
    let shares: Vec<_> =
        rows.clone().step_by(each).map(|first| first..rows.end.min(first + each)).collect();
    on_threads(shares, |rows| tensor.draw(rows)).concat()
}
