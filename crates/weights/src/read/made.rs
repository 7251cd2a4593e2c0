//! Weights whose planes are made when a device asks for rows: dense, FP8 and MLX's affine codes.

use super::scaled::RowScales;
use super::{Target, fp8, mlx};
use crate::config::QuantMode;
use crate::{Checkpoint, TensorSource, WeightsError};
use forerun_base::{Bytes, DType, Format, Matrix, MatrixParts, RowSource};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The weight stored as `name`.
pub(super) fn read(
    checkpoint: &Checkpoint,
    target: Target<'_>,
    name: &str,
    source: &Arc<dyn TensorSource>,
) -> Result<MatrixParts, WeightsError> {
    let weight = checkpoint.header(name)?;
    let part = |plane: &str| format!("{}.{plane}", target.path);
    let (format, scales) = if checkpoint.contains(&part("scales")) {
        let (scales, biases) =
            (checkpoint.header(&part("scales"))?, checkpoint.header(&part("biases"))?);
        let scheme = mlx::scheme(checkpoint, target, &weight, &scales)?;
        if scheme.mode != QuantMode::Affine {
            return Err(weight.fault(format!("{scheme} weights are not made")));
        }
        (mlx::affine_format(scheme, &scales, &biases)?, Scales::Stored([scales.name, biases.name]))
    } else if weight.dtype == DType::F8E4M3 {
        let (format, of_row) = fp8::layout(checkpoint, target, &weight)?;
        (format, Scales::Expanded(of_row))
    } else {
        weight.check_shape(target.shape)?;
        (Format::Dense(weight.dtype), Scales::None)
    };
    let shape = [target.rows(), target.cols()];
    let rows = MadeRows { shape, format, name: name.to_owned(), scales, source: source.clone() };
    MatrixParts::made(Arc::new(rows)).map_err(|why| weight.fault(why.to_string()))
}

/// Where scales come from.
enum Scales {
    None,
    /// Tensors of scales and offsets.
    Stored([String; 2]),
    /// From a few numbers that are there.
    Expanded(RowScales),
}

struct MadeRows {
    shape: [usize; 2],
    format: Format,
    name: String,
    scales: Scales,
    source: Arc<dyn TensorSource>,
}

impl fmt::Debug for MadeRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MadeRows").field("name", &self.name).field("shape", &self.shape).finish()
    }
}

impl RowSource for MadeRows {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn format(&self) -> Format {
        self.format
    }

    fn make(&self, rows: Range<usize>) -> Matrix {
        let plane = |name: &str| self.source.rows(name, rows.clone());
        let [scales, offsets] = match &self.scales {
            Scales::None => [Vec::new(), Vec::new()],
            Scales::Stored(names) => names.each_ref().map(|name| plane(name)),
            Scales::Expanded(of_row) => {
                let mut scales = Vec::new();
                rows.clone().for_each(|row| of_row(row, &mut scales));
                [scales, Vec::new()]
            }
        };
        let planes = [plane(&self.name), scales, offsets].map(Bytes::from);
        Matrix::new([rows.len(), self.shape[1]], self.format, planes)
            .expect("a source makes rows of the shape and type it has announced")
    }

    fn release(&self, _rows: Range<usize>) {}
}
