//! A small safetensors writer.

use forerun_base::DType;
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

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &[StoredTensor]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut data = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry = json!({
            "dtype": tensor.dtype.to_string(),
            "shape": tensor.shape,
            "data_offsets": [start, data.len()],
        });
        header.insert(tensor.name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.append(&mut data);
    file
}
