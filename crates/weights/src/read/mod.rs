//! Stored weights as canonical matrices, without changing a decoded value.
//!
//! A weight of shape `[.., cols]` becomes one matrix whose rows are all leading axes run
//! together: `[rows, cols]` for a module, `[experts, rows, cols]` for a stack.

mod fp8;
mod made;
mod mlx;
mod scaled;

pub(crate) use mlx::DOUBLED_E2M1;

use crate::tensor::TensorLookup;
use crate::{Checkpoint, Tensor, WeightsError};
use forerun_base::{Bytes, DType, Format, Matrix, MatrixParts, ScaleType};

/// The weight of module `path`, shape checked.
pub(crate) fn parts(
    checkpoint: &Checkpoint,
    path: &str,
    shape: &[usize],
) -> Result<MatrixParts, WeightsError> {
    let dotted = format!("{path}.weight");
    let bare = !checkpoint.contains(&dotted) && checkpoint.contains(path);
    let name = if bare { path } else { &dotted };
    let target = Target { path, shape };
    if let Some(source) = checkpoint.source() {
        return made::read(checkpoint, target, name, source);
    }
    let stored = checkpoint.bytes_of(name)?;
    if let Some(selected) = stored.selected_rows() {
        stored.origin.check_shape(stored.shape, shape)?;
        return Ok(selected);
    }
    let weight = match checkpoint.read(name)? {
        TensorLookup::Plain(tensor) => tensor,
        TensorLookup::Blocks(blocks) => {
            blocks.origin.check_shape(blocks.shape, shape)?;
            return blocks.parts();
        }
    };
    let scales = format!("{path}.scales");
    if checkpoint.contains(&scales) {
        return mlx::read(checkpoint, target, &weight, &checkpoint.tensor(&scales)?);
    }
    match weight.dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            weight.check_shape(shape)?;
            let empty = || Bytes::from(Vec::new());
            let format = Format::Dense(weight.dtype);
            target.build(&weight, format, [weight.bytes.clone(), empty(), empty()])
        }
        DType::F8E4M3 => fp8::read(checkpoint, target, &weight),
        DType::U32 => Err(weight.fault(format!("U32 codes without `{scales}`"))),
        other => Err(weight.fault(format!(
            "{other} is not supported as a weight; expected F32, F16, BF16, F8_E4M3 or MLX codes"
        ))),
    }
}

/// The module asked for and the shape it must have.
#[derive(Clone, Copy)]
struct Target<'a> {
    path: &'a str,
    /// At least one leading axis, then columns.
    shape: &'a [usize],
}

impl<'a> Target<'a> {
    /// The leading axes: `[rows]` or `[experts, rows]`.
    fn lead(self) -> &'a [usize] {
        &self.shape[..self.shape.len() - 1]
    }

    fn cols(self) -> usize {
        self.shape[self.shape.len() - 1]
    }

    /// All leading axes run together; `weight`'s shape has been compared with them, so the
    /// product is bounded by what its file holds unless the shape has a zero.
    fn rows(self) -> usize {
        self.lead().iter().fold(1, |all: usize, &n| all.saturating_mul(n))
    }

    fn build(
        self,
        weight: &Tensor,
        format: Format,
        planes: [Bytes; 3],
    ) -> Result<MatrixParts, WeightsError> {
        Matrix::new([self.rows(), self.cols()], format, planes)
            .map(MatrixParts::from)
            .map_err(|why| weight.fault(why.to_string()))
    }
}

/// A float tensor as f32.
pub(crate) fn widen(tensor: &Tensor) -> Result<Vec<f32>, WeightsError> {
    let kind = scale_type(tensor)?;
    let count = tensor.bytes.len() / kind.size();
    Ok((0..count).map(|i| kind.get(&tensor.bytes, i)).collect())
}

/// The type of a plane of plain floats.
fn scale_type(tensor: &Tensor) -> Result<ScaleType, WeightsError> {
    match tensor.dtype {
        DType::F32 => Ok(ScaleType::F32),
        DType::F16 => Ok(ScaleType::F16),
        DType::BF16 => Ok(ScaleType::BF16),
        other => Err(tensor.fault(format!("{other} where F32, F16 or BF16 is expected"))),
    }
}

/// A factor per row that the file may state once for all rows, per expert, or per row.
struct RowFactors {
    values: Vec<f32>,
    /// Consecutive rows that share a factor.
    shared_by: usize,
}

impl RowFactors {
    /// Reads factors whose shape is a prefix of the leading axes (trailing ones do not
    /// count); `None` when it is not.
    fn read(tensor: &Tensor, target: Target<'_>) -> Result<Option<Self>, WeightsError> {
        let lead = target.lead();
        let found = without_trailing_ones(&tensor.shape);
        let Some(axes) = (0..=lead.len()).find(|&n| without_trailing_ones(&lead[..n]) == found)
        else {
            return Ok(None);
        };
        let shared_by = lead[axes..].iter().product::<usize>().max(1);
        Ok(Some(Self { values: widen(tensor)?, shared_by }))
    }

    fn of_row(&self, row: usize) -> f32 {
        self.values[row / self.shared_by]
    }
}

fn without_trailing_ones(shape: &[usize]) -> &[usize] {
    let kept = shape.iter().rposition(|&n| n != 1).map_or(0, |last| last + 1);
    &shape[..kept]
}
