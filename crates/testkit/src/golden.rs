//! Golden results: tiny checkpoints with what a reference implementation computed on them.
//!
//! A golden folder is a checkpoint, without the weights that a seed makes, plus `golden.safetensors`. What the names in
//! it stand for, and how to make the folders, is in `tests/goldens/README.md`.

mod draw;
mod encode;
mod unpack;

use forerun_base::DType;
use forerun_weights::safetensors::{SafetensorsHeader, TensorInfo, parse_header};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Every golden folder in this crate.
pub const GOLDENS: [&str; 47] = [
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
    "olmo_hybrid",
    "gemma3n",
    "glm4_moe",
    "deepseek_v3",
    "kimi_linear",
    "lfm2_moe",
    "granitemoehybrid",
    "nemotron_h",
    "qwen4_exp",
    "deepseek_v4",
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

/// Logits at some positions of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitRows {
    /// The prompt, then what the reference continued it with, but for the last token.
    pub text: Vec<u32>,
    /// Positions in `text`, ascending: some of the prompt, its last, and all after it.
    pub positions: Vec<usize>,
    /// A row of `[vocabulary]` for each of `positions`.
    pub values: Vec<f32>,
}

impl LogitRows {
    /// The rows at the same positions, of the logits at every position of `text`.
    ///
    /// # Panics
    /// When `all` does not hold a row for every token of the text.
    pub fn of(&self, all: &[f32]) -> Vec<f32> {
        let width = self.values.len() / self.positions.len();
        assert_eq!(all.len(), self.text.len() * width, "logits at every position of the text");
        self.positions.iter().flat_map(|p| &all[p * width..(p + 1) * width]).copied().collect()
    }
}

/// One golden folder.
#[derive(Debug)]
pub struct Golden {
    name: String,
    folder: PathBuf,
    checkpoint: OnceLock<PathBuf>,
    header: SafetensorsHeader,
    bytes: Vec<u8>,
}

impl Golden {
    /// Opens `goldens/<name>` of this crate.
    ///
    /// # Panics
    /// When it is not there or not readable: a test without its golden must fail, never skip.
    pub fn open(name: &str) -> Self {
        let folder = unpack::tracked(name);
        let path = folder.join("golden.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let header = parse_header(&bytes, bytes.len() as u64)
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self { name: name.to_owned(), folder, checkpoint: OnceLock::new(), header, bytes }
    }

    /// The checkpoint with all its weights, in `target/goldens/<name>`; made at the first call.
    ///
    /// # Panics
    /// When it cannot be made, or comes out different from what the reference implementation read.
    pub fn checkpoint(&self) -> &Path {
        self.checkpoint.get_or_init(|| unpack::checkpoint(&self.name))
    }

    /// Recorded logits: the rows kept of the prompt and one for each greedy token.
    ///
    /// # Panics
    /// When the folder records none.
    pub fn logits(&self) -> LogitRows {
        let mut text = self.tokens("input_ids");
        let prompt = text.len();
        let rows = self.f32("logits");
        let mut positions = match self.has("logits.rows") {
            true => self.tokens("logits.rows").into_iter().map(|row| row as usize).collect(),
            false => (0..prompt).collect::<Vec<usize>>(),
        };
        assert_eq!(positions.len(), rows.rows(), "rows in {}", self.folder.display());
        assert_eq!(positions.last(), Some(&(prompt - 1)), "the prompt's last row");
        let mut values = rows.values;
        let (ids, steps) = (self.tokens("greedy.ids"), self.f32("greedy.logits"));
        text.extend(&ids[..ids.len() - 1]);
        positions.extend(prompt..text.len());
        // The first greedy row is the prompt's last.
        (1..steps.rows()).for_each(|step| values.extend_from_slice(steps.row(step)));
        LogitRows { text, positions, values }
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
            let prompt = golden.tokens("input_ids").len();
            let (ids, steps) = (golden.tokens("greedy.ids"), golden.f32("greedy.logits"));
            assert_eq!((ids.len(), steps.rows()), (32, 32), "{name}");
            for (i, &id) in ids.iter().enumerate() {
                let row = steps.row(i);
                let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(row[id as usize], best, "{name}, greedy step {i}");
            }
            let logits = golden.logits();
            assert_eq!(logits.text.len(), prompt + 31, "{name}");
            assert_eq!(logits.values.len(), logits.positions.len() * steps.shape[1], "{name}");
            assert!(logits.positions.len() >= 10 + 31 && logits.positions[0] == 0, "{name}");
            let last = golden.f32("logits");
            assert_eq!(last.row(last.rows() - 1), steps.row(0), "{name}: the prompt's last row");
        }
    }

    #[test]
    fn goldens_stay_small_enough_to_be_tracked() {
        fn bytes(path: &Path) -> u64 {
            let meta = std::fs::metadata(path).unwrap();
            if meta.is_file() {
                return meta.len();
            }
            let entries = std::fs::read_dir(path).unwrap();
            entries.map(|entry| bytes(&entry.unwrap().path())).sum()
        }
        let found = bytes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens"));
        assert!(found < 13 << 20, "{found} bytes: pack new goldens with tests/goldens/pack.py");
    }

    #[test]
    fn rows_are_picked_at_the_recorded_positions() {
        let rows = LogitRows { text: vec![7, 8, 9], positions: vec![0, 2], values: vec![0.0; 4] };
        assert_eq!(rows.of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), [1.0, 2.0, 5.0, 6.0]);
    }
}
