//! Tiny checkpoints written to a temporary folder.

use forerun_testkit::tiny::GgufFile;
use forerun_weights::{Checkpoint, WeightsError};
use std::path::Path;
use tempfile::TempDir;

/// A tensor to be written.
#[derive(Clone)]
pub(crate) struct WrittenTensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl WrittenTensor {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

pub(crate) fn raw(name: &str, dtype: &'static str, shape: &[usize], bytes: &[u8]) -> WrittenTensor {
    WrittenTensor { name: name.into(), dtype, shape: shape.into(), bytes: bytes.into() }
}

pub(crate) fn f32s(name: &str, shape: &[usize], values: &[f32]) -> WrittenTensor {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    raw(name, "F32", shape, &bytes)
}

/// Wraps a header, whatever it says, and data into a file.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

/// A valid safetensors file.
pub(crate) fn safetensors(format: &str, tensors: &[WrittenTensor]) -> Vec<u8> {
    let mut header = serde_json::json!({"__metadata__": {"format": format}});
    let mut data = Vec::new();
    for tensor in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        header[&tensor.name] = serde_json::json!({
            "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()],
        });
    }
    with_header(&header.to_string(), &data)
}

/// A folder with these files, opened.
pub(crate) fn checkpoint(files: &[(&str, &[u8])]) -> (TempDir, Result<Checkpoint, WeightsError>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    }
    let opened = Checkpoint::open(folder.path());
    (folder, opened)
}

/// A one-file checkpoint that opens.
pub(crate) fn single(config: &str, tensors: &[WrittenTensor]) -> (TempDir, Checkpoint) {
    let file = safetensors("pt", tensors);
    let (folder, opened) =
        checkpoint(&[("config.json", config.as_bytes()), ("model.safetensors", &file)]);
    (folder, opened.expect("a good checkpoint"))
}

/// Checks that an error names everything in `words`.
pub(crate) fn assert_says<T>(result: Result<T, WeightsError>, words: &[&str], case: &str) {
    let error = result.err().unwrap_or_else(|| panic!("{case}: expected an error")).to_string();
    for word in words {
        assert!(error.contains(word), "{case}: no `{word}` in: {error}");
    }
}

/// A GGUF file in a folder of its own that opens.
pub(crate) fn gguf(file: &GgufFile) -> (TempDir, Checkpoint) {
    let (folder, opened) = checkpoint(&[("model.gguf", &file.bytes())]);
    (folder, opened.expect("a good file"))
}
