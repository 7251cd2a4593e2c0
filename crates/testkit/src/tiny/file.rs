//! A small safetensors writer.

use forerun_base::DType;
use forerun_weights::safetensors::{NewTensor, header};
use serde_json::{Map, Value, json};
use std::path::Path;

/// One tensor, ready to be stored.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Axes, slowest first.
    pub shape: Vec<usize>,
    /// Its elements, little-endian.
    pub bytes: Vec<u8>,
}

pub(super) fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// One file, or several with an index.
pub(super) fn write_checkpoint(folder: &Path, tensors: &[StoredTensor], shards: usize) {
    assert!(shards > 0 && shards <= tensors.len(), "{shards} shards of {} tensors", tensors.len());
    if shards == 1 {
        return write(&folder.join("model.safetensors"), &safetensors(tensors));
    }
    let mut places = Map::new();
    let (each, larger) = (tensors.len() / shards, tensors.len() % shards);
    let mut rest = tensors;
    for shard in 0..shards {
        let (part, after) = rest.split_at(each + usize::from(shard < larger));
        rest = after;
        let name = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        write(&folder.join(&name), &safetensors(part));
        places.extend(part.iter().map(|t| (t.name.clone(), Value::from(name.as_str()))));
    }
    let index = json!({ "metadata": {}, "weight_map": places }).to_string();
    write(&folder.join("model.safetensors.index.json"), index.as_bytes());
}

/// What a file's header says of tensors.
fn described(tensors: &[StoredTensor]) -> Vec<NewTensor> {
    let entry = |tensor: &StoredTensor| NewTensor {
        name: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
    };
    tensors.iter().map(entry).collect()
}

/// A file that ends in a hole where the tensors' numbers would be.
pub(super) fn write_hollow(path: &Path, tensors: &[StoredTensor]) {
    let entries = described(tensors);
    let head = header(&entries, Some("pt")).expect("tensors of a model have a size");
    let numbers: usize = entries.iter().map(|entry| entry.bytes().unwrap_or(0)).sum();
    write(path, &head);
    let file = std::fs::OpenOptions::new().write(true).open(path);
    let grown = file.and_then(|file| file.set_len((head.len() + numbers) as u64));
    grown.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &[StoredTensor]) -> Vec<u8> {
    let entries = described(tensors);
    let mut file = header(&entries, Some("pt")).expect("tensors in memory have a size");
    for (tensor, entry) in tensors.iter().zip(&entries) {
        assert_eq!(Some(tensor.bytes.len()), entry.bytes(), "{}: bytes and shape", tensor.name);
        file.extend_from_slice(&tensor.bytes);
    }
    file
}
