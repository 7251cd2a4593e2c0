//! Codes that are used where they lie, with scales that have to be brought to another form. That is done for the rows
//! that a device asks for, so that no plane of scales of the whole is made.

use super::Target;
use crate::{Tensor, WeightsError};
use forerun_base::{Bytes, Format, Matrix, MatrixParts, RowSource};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Appends the scales of a row as they stand in a plane.
pub(super) type RowScales = Box<dyn Fn(usize, &mut Vec<u8>) + Send + Sync>;

/// Checks the codes of `weight` and joins them with their scales.
pub(super) fn parts(
    target: Target<'_>,
    weight: &Tensor,
    format: Format,
    scales: RowScales,
) -> Result<MatrixParts, WeightsError> {
    let fault = |why: forerun_base::MatrixError| weight.fault(why.to_string());
    let (shape, codes) = ([target.rows(), target.cols()], weight.bytes.clone());
    let scale_bytes = shape[0].saturating_mul(format.row_scale_bytes(shape[1]));
    format.check_planes(shape, [codes.len(), scale_bytes, 0]).map_err(fault)?;
    format.check_codes(&codes).map_err(fault)?;
    MatrixParts::made(Arc::new(ScaledRows { shape, format, codes, scales })).map_err(fault)
}

struct ScaledRows {
    shape: [usize; 2],
    format: Format,
    codes: Bytes,
    scales: RowScales,
}

impl fmt::Debug for ScaledRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScaledRows")
            .field("shape", &self.shape)
            .field("format", &self.format)
            .finish()
    }
}

impl ScaledRows {
    fn codes_of(&self, rows: Range<usize>) -> Bytes {
        let each = self.format.row_bytes(self.shape[1]);
        self.codes.slice(rows.start * each..rows.end * each).expect("rows inside the shape")
    }
}

impl RowSource for ScaledRows {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn format(&self) -> Format {
        self.format
    }

    fn make(&self, rows: Range<usize>) -> Matrix {
        let shape = [rows.len(), self.shape[1]];
        let mut scales = Vec::with_capacity(rows.len() * self.format.row_scale_bytes(shape[1]));
        rows.clone().for_each(|row| (self.scales)(row, &mut scales));
        let planes = [self.codes_of(rows), scales.into(), Vec::new().into()];
        Matrix::new(shape, self.format, planes).expect("codes and shape were checked as a whole")
    }

    fn release(&self, rows: Range<usize>) {
        self.codes_of(rows).release();
    }

    fn is_stored(&self) -> bool {
        true
    }
}
