//! A tensor that was looked up: its bytes, and where they came from for errors.

use crate::gguf::{self, BlockType};
use crate::translation::{Axes, Selection};
use crate::{Storage, WeightsError};
use forerun_base::{Bytes, DType, Matrix, MatrixParts};
use std::path::{Path, PathBuf};

/// One stored tensor of plain elements.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name it was requested by.
    pub name: String,
    /// The name in the file: another one only in a translated checkpoint.
    pub stored: String,
    /// Element type.
    pub dtype: DType,
    /// Axes, slowest first.
    pub shape: Vec<usize>,
    /// Its bytes, little-endian, at no particular alignment.
    pub bytes: Bytes,
    /// The file it lies in.
    pub file: PathBuf,
}

impl Tensor {
    fn origin(&self) -> TensorOrigin<'_> {
        TensorOrigin { name: &self.name, stored: &self.stored, file: &self.file }
    }

    pub(crate) fn check_shape(&self, expected: &[usize]) -> Result<(), WeightsError> {
        self.origin().check_shape(&self.shape, expected)
    }

    pub(crate) fn fault(&self, why: impl Into<String>) -> WeightsError {
        self.origin().fault(why)
    }
}

/// One stored tensor of ggml blocks, and which of its rows and columns are meant.
pub(crate) struct BlockTensor<'a> {
    pub(crate) origin: TensorOrigin<'a>,
    pub(crate) block: BlockType,
    /// The shape it is seen in.
    pub(crate) shape: &'a [usize],
    /// The blocks of all rows.
    pub(crate) bytes: Bytes,
    pub(crate) axes: Axes,
    pub(crate) selection: &'a Selection,
}

impl BlockTensor<'_> {
    /// All leading axes run together as rows. A shape whose last axis is not made of whole
    /// rows comes out as plain numbers.
    pub(crate) fn parts(&self) -> Result<MatrixParts, WeightsError> {
        let fault = |why: String| self.origin.fault(why);
        let stored = [self.axes.stacks.saturating_mul(self.axes.rows), self.axes.cols];
        let stored = gguf::parts(self.block, stored, self.bytes.clone())
            .map_err(|why| fault(why.to_string()))?;
        let selected = self.selection.take(self.axes, stored);
        let selected =
            selected.ok_or_else(|| fault("numbers outside the tensor are requested".into()))?;
        let cols = self.shape.last().copied().unwrap_or(1);
        if cols == selected.cols() {
            return Ok(selected);
        }
        let values = decode(&selected.whole());
        let rows = values.len().checked_div(cols).unwrap_or(0);
        let reshaped = Matrix::from_f32(rows, cols, &values);
        Ok(reshaped.map_err(|why| fault(why.to_string()))?.into())
    }
}

/// All values of a matrix.
pub(crate) fn decode(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, line) in values.chunks_exact_mut(matrix.cols().max(1)).enumerate() {
        matrix.decode_row(row, line);
    }
    values
}

/// A stored tensor before anything is selected from it.
pub(crate) struct StoredBytes<'a> {
    pub(crate) origin: TensorOrigin<'a>,
    pub(crate) storage: Storage,
    /// The shape it is seen in.
    pub(crate) shape: &'a [usize],
    /// The shape it is stored in.
    pub(crate) axes: Axes,
    pub(crate) selection: &'a Selection,
    pub(crate) bytes: Bytes,
}

impl StoredBytes<'_> {
    /// Rows and columns of a dense matrix, without a copy; `None` where it is none, all of it is meant, or a row of the
    /// shape is not a stored row.
    pub(crate) fn selected_rows(&self) -> Option<MatrixParts> {
        let Storage::Plain(dtype) = self.storage else { return None };
        if self.selection.is_all() {
            return None;
        }
        let rows = self.axes.stacks.saturating_mul(self.axes.rows);
        let stored = Matrix::dense(rows, self.axes.cols, dtype, self.bytes.clone()).ok()?;
        let selected = self.selection.take(self.axes, stored.into())?;
        (self.shape.last() == Some(&selected.cols())).then_some(selected)
    }
}

/// What a lookup gives.
pub(crate) enum TensorLookup<'a> {
    Plain(Tensor),
    Blocks(BlockTensor<'a>),
}

impl TensorLookup<'_> {
    pub(crate) fn plain(self) -> Result<Tensor, WeightsError> {
        match self {
            Self::Plain(tensor) => Ok(tensor),
            Self::Blocks(blocks) => Err(blocks.origin.fault(format!(
                "stored as {}; it can be read as a matrix or as values only",
                Storage::Block(blocks.block)
            ))),
        }
    }
}

/// Which tensor is meant, for errors.
#[derive(Clone, Copy)]
pub(crate) struct TensorOrigin<'a> {
    pub(crate) name: &'a str,
    pub(crate) stored: &'a str,
    pub(crate) file: &'a Path,
}

impl TensorOrigin<'_> {
    pub(crate) fn check_shape(
        self,
        found: &[usize],
        expected: &[usize],
    ) -> Result<(), WeightsError> {
        if found == expected {
            return Ok(());
        }
        Err(WeightsError::Shape {
            tensor: self.label(),
            path: self.file.into(),
            expected: expected.into(),
            found: found.into(),
        })
    }

    pub(crate) fn fault(self, why: impl Into<String>) -> WeightsError {
        WeightsError::Tensor { tensor: self.label(), path: self.file.into(), why: why.into() }
    }

    /// The requested name, and the one in the file, which a reader of the message can look up.
    fn label(self) -> String {
        if self.name == self.stored {
            return self.name.into();
        }
        format!("{}` from `{}", self.name, self.stored)
    }
}
