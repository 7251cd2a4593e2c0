//! Logits as a safetensors file, written row by row.
//!
//! All rows together may be larger than memory, so the header goes first and each row follows as
//! it is computed. The file has another name until it is whole.

use anyhow::{Context, anyhow};
use forerun_base::DType;
use forerun_weights::safetensors::{NewTensor, header};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

pub(super) struct LogitsFile {
    out: BufWriter<File>,
    partial: UnfinishedFile,
    path: PathBuf,
    bytes: Vec<u8>,
}

/// A file that is removed unless it is finished.
struct UnfinishedFile(PathBuf);

impl Drop for UnfinishedFile {
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
            partial: UnfinishedFile(partial),
            path: path.to_owned(),
            bytes: Vec::new(),
        };
        let entry =
            NewTensor { name: "logits".to_owned(), dtype: DType::F32, shape: shape.to_vec() };
        let header = header(&[entry], None).ok_or_else(|| anyhow!("--logits: too many rows"))?;
        new.write(|out| out.write_all(&header))?;
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
