//! A weight as the device keeps it.

use crate::gemm::packed_weight::PackedWeight;
use forerun_base::{Format, Matrix, MatrixParts};

/// See the module's text. The form of a weight is decided at upload, never by a call.
#[derive(Debug)]
pub struct Weight(pub(crate) WeightForm);

/// The forms of a weight.
#[derive(Debug)]
pub(crate) enum WeightForm {
    /// The canonical matrix.
    Canonical(Matrix),
    /// In the layout of the integer and bf16 kernels.
    Packed(PackedWeight),
}

impl From<Matrix> for Weight {
    fn from(matrix: Matrix) -> Self {
        Self(WeightForm::Canonical(matrix))
    }
}

macro_rules! either {
    ($weight:expr, $form:ident => $value:expr) => {
        match &$weight.0 {
            WeightForm::Canonical($form) => $value,
            WeightForm::Packed($form) => $value,
        }
    };
}

impl Weight {
    /// As it is stored. What lies in a mapped file stays there, and is in memory from here on.
    pub(crate) fn canonical(parts: &MatrixParts) -> Self {
        let matrix = parts.whole();
        matrix.touch();
        matrix.into()
    }

    /// Output channels (for an embedding: vocabulary entries).
    pub fn rows(&self) -> usize {
        either!(self, form => form.rows())
    }

    /// Input channels.
    pub fn cols(&self) -> usize {
        either!(self, form => form.cols())
    }

    /// The storage format.
    pub fn format(&self) -> Format {
        either!(self, form => form.format())
    }

    /// Bytes in all planes.
    pub fn bytes(&self) -> usize {
        either!(self, form => form.bytes())
    }

    /// Decodes row `row` into `out`, as [`Matrix::decode_row`] does.
    ///
    /// # Panics
    /// When `row` or the length of `out` does not fit the weight.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        either!(self, form => form.decode_row(row, out));
    }
}
