//! Golden results: tiny checkpoints with what a reference implementation computed on them.
//!
//! A golden folder is a checkpoint plus `golden.safetensors`. Names in it: `input_ids`,
//! `hidden.embed`, `hidden.N`, `hidden.final`, `logits`, `greedy.ids`, `greedy.logits`,
//! `state.N.recurrent`, `state.N.conv`, `state.N.k`, `state.N.v`, `state_end.*`, `router.N.indices`,
//! `router.N.weights`, `mtp.prefill.*`, `mtp.draft.*`, and `peer.logits` in packed models.

use forerun_base::DType;
use forerun_weights::safetensors::{SafetensorsHeader, TensorInfo, parse_header};
use std::path::{Path, PathBuf};

/// Every golden folder in this crate.
pub const GOLDENS: [&str; 37] = [
    "llama",
    "qwen3",
    "qwen3_yarn",
    "qwen3_moe",
    "qwen3_fp8",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_odd",
    "qwen3_5_moe",
    "lfm2",
    "gemma3",
    "gemma4_dense",
    "gemma4_dense_2",
    "gemma4_e",
    "gemma4_moe",
    "gguf_gemma4_dense_f16",
    "gguf_gemma4_e_q8_0",
    "gguf_gemma4_moe_q4_0",
    "gguf_llama_q8_0",
    "gguf_qwen3_5_bf16",
    "gguf_qwen3_5_moe_mxfp4",
    "gguf_qwen3_5_q8_0",
    "gguf_qwen3_5_wide_q3_k",
    "gguf_qwen3_5_wide_q4_k",
    "gguf_qwen3_next_q8_0",
    "gguf_qwen3_q4_0",
    "mlx_gemma4_e_4bit",
    "mlx_gemma4_moe_8bit",
    "mlx_llama_5bit",
    "mlx_llama_nvfp4",
    "mlx_qwen3_3bit",
    "mlx_qwen3_5_4bit",
    "mlx_qwen3_5_bf16",
    "mlx_qwen3_5_moe_4bit",
    "mlx_qwen3_moe_mxfp4",
    "mlx_qwen3_mxfp8",
    "mlx_qwen3_next_6bit",
];

/// Numbers with a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    /// Axes, slowest first.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub values: Vec<T>,
}

impl<T> Array<T> {
    /// Row `i` along the first axis.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, i: usize) -> &[T] {
        let width = self.shape[1..].iter().product::<usize>();
        &self.values[i * width..(i + 1) * width]
    }

    /// Rows along the first axis.
    pub fn rows(&self) -> usize {
        self.shape[0]
    }
}

/// One golden folder.
#[derive(Debug)]
pub struct Golden {
    folder: PathBuf,
    header: SafetensorsHeader,
    bytes: Vec<u8>,
}

impl Golden {
    /// Opens `goldens/<name>` of this crate.
    ///
    /// # Panics
    /// When it is not there or not readable: a test without its golden must fail, never skip.
    pub fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens").join(name);
        let path = folder.join("golden.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let header = parse_header(&bytes, bytes.len() as u64)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self { folder, header, bytes }
    }

    /// The checkpoint: the folder itself.
    pub fn checkpoint(&self) -> &Path {
        &self.folder
    }

    /// Whether a tensor of this name was recorded.
    pub fn has(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    /// Recorded names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// A float tensor.
    ///
    /// # Panics
    /// When there is no float tensor of this name.
    pub fn f32(&self, name: &str) -> Array<f32> {
        self.array(name, DType::F32, f32::from_le_bytes)
    }

    /// An integer tensor.
    ///
    /// # Panics
    /// When there is no integer tensor of this name.
    pub fn i32(&self, name: &str) -> Array<i32> {
        self.array(name, DType::I32, i32::from_le_bytes)
    }

    /// An integer tensor of token ids.
    ///
    /// # Panics
    /// When there is none of this name, or one that holds a negative number.
    pub fn tokens(&self, name: &str) -> Vec<u32> {
        let id = |id: i32| u32::try_from(id).expect("token ids are not negative");
        self.i32(name).values.into_iter().map(id).collect()
    }

    fn array<T>(&self, name: &str, dtype: DType, decode: fn([u8; 4]) -> T) -> Array<T> {
        let info = self.info(name);
        assert_eq!(info.dtype, dtype, "type of `{name}` in {}", self.folder.display());
        let (words, rest) = self.bytes[info.range.clone()].as_chunks::<4>();
        assert!(rest.is_empty(), "the header was checked against the shape");
        Array { shape: info.shape.clone(), values: words.iter().map(|w| decode(*w)).collect() }
    }

    fn info(&self, name: &str) -> &TensorInfo {
        let found = self.header.tensors.get(name);
        found.unwrap_or_else(|| panic!("no golden `{name}` in {}", self.folder.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_weights::Checkpoint;

    #[test]
    fn every_golden_opens_with_its_checkpoint_and_agrees_with_itself() {
        for name in GOLDENS {
            let golden = Golden::open(name);
            Checkpoint::open(golden.checkpoint()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let logits = golden.f32("logits");
            assert_eq!(logits.rows(), golden.tokens("input_ids").len(), "{name}");
            if golden.has("greedy.ids") {
                let (ids, steps) = (golden.tokens("greedy.ids"), golden.f32("greedy.logits"));
                for (i, &id) in ids.iter().enumerate() {
                    let row = steps.row(i);
                    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert_eq!(row[id as usize], best, "{name}, greedy step {i}");
                }
            }
        }
    }
}
