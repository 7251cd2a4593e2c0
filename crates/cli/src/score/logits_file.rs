//! Logits as a safetensors file, written row by row.
//!
//! All rows together may be larger than memory, so the header goes first and each row follows as
//! it is computed. The file has another name until it is whole.

use anyhow::{Context, anyhow};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

pub(super) struct LogitsFile {
    out: BufWriter<File>,
    partial: Partial,
    path: PathBuf,
    bytes: Vec<u8>,
}

/// A file that is removed unless it is finished.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already when it was finished.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl LogitsFile {
    /// Starts a file of `[rows, columns]` numbers.
    pub(super) fn create(path: &Path, shape: [usize; 2]) -> anyhow::Result<Self> {
        let name =
            path.file_name().ok_or_else(|| anyhow!("--logits {} names no file", path.display()))?;
        let mut partial = name.to_owned();
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(partial);
        let file =
            File::create(&partial).with_context(|| format!("--logits {}", path.display()))?;
        let mut new = Self {
            out: BufWriter::new(file),
            partial: Partial(partial),
            path: path.to_owned(),
            bytes: Vec::new(),
        };
        let header = header(shape);
        new.write(|out| {
            out.write_all(&(header.len() as u64).to_le_bytes())?;
            out.write_all(header.as_bytes())
        })?;
        Ok(new)
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: &[f32]) -> anyhow::Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
        let written = self.write(|out| out.write_all(&bytes));
        self.bytes = bytes;
        written
    }

    /// Gives the file its name.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        self.write(|out| out.flush())?;
        std::fs::rename(&self.partial.0, &self.path)
            .with_context(|| format!("--logits {}", self.path.display()))
    }

    fn write(
        &mut self,
        work: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        work(&mut self.out).with_context(|| format!("--logits {}", self.path.display()))
    }
}

/// The header, padded so that the numbers begin on a multiple of eight.
fn header([rows, columns]: [usize; 2]) -> String {
    let bytes = rows as u64 * columns as u64 * 4;
    let json = serde_json::json!({
        "logits": {"dtype": "F32", "shape": [rows, columns], "data_offsets": [0, bytes]},
    })
    .to_string();
    let padded = json.len().next_multiple_of(8);
    format!("{json:padded$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_padded_to_eight_bytes() {
        for columns in 1..20 {
            let header = header([3, columns]);
            assert_eq!(header.len() % 8, 0);
            let value: serde_json::Value = serde_json::from_str(&header).unwrap();
            assert_eq!(value["logits"]["data_offsets"][1], 12 * columns);
        }
    }
}
