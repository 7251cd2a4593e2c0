//! FP8 e4m3 weights with scales beside them.
//!
//! # Math
//! `w = code · scale`, also where the scale is called `weight_scale_inv`: the name
//! notwithstanding, it multiplies.
//!
//! # Layout
//! Codes are used where they lie. A scale per block of `weight_block_size` becomes a scale
//! per row and group of columns; one per tensor, expert or row becomes one group per row.

use super::scaled::{self, RowScales};
use super::{RowFactors, Target, widen};
use crate::{Checkpoint, Tensor, WeightsError};
use forerun_base::{Codes, Format, MatrixParts, ScaleKind};

pub(super) fn read(
    checkpoint: &Checkpoint,
    target: Target<'_>,
    weight: &Tensor,
) -> Result<MatrixParts, WeightsError> {
    let (format, scales) = layout(checkpoint, target, weight)?;
    scaled::parts(target, weight, format, scales)
}

/// The format, and the scales of a row.
pub(super) fn layout(
    checkpoint: &Checkpoint,
    target: Target<'_>,
    weight: &Tensor,
) -> Result<(Format, RowScales), WeightsError> {
    weight.check_shape(target.shape)?;
    let names = ["_scale_inv", "_scale"].map(|suffix| format!("{}{suffix}", weight.name));
    let Some(name) = names.iter().find(|name| checkpoint.contains(name)) else {
        return Err(weight.fault(format!("F8_E4M3 without `{}` or `{}`", names[0], names[1])));
    };
    let scale = checkpoint.tensor(name)?;
    let block = checkpoint.parsed_config().fp8_block();
    let (group, scales) = expand(&scale, target, block)?;
    let format =
        Format::Grouped { codes: Codes::E4m3, group, scale: ScaleKind::F32, offset: false };
    Ok((format, scales))
}

/// The columns that share a scale, and the scales of a row.
fn expand(
    scale: &Tensor,
    target: Target<'_>,
    [block_rows, block_cols]: [usize; 2],
) -> Result<(usize, RowScales), WeightsError> {
    let (lead, cols) = (target.lead(), target.cols());
    let (&rows, experts) = lead.split_last().expect("a target has rows");
    let (down, across) = (rows.div_ceil(block_rows), cols.div_ceil(block_cols));
    let blocks = [experts, &[down, across]].concat();
    if scale.shape == blocks {
        let values = widen(scale)?;
        let of_row = move |row: usize, out: &mut Vec<u8>| {
            let line = (row / rows * down + row % rows / block_rows) * across;
            out.extend(values[line..line + across].iter().flat_map(|v| v.to_le_bytes()));
        };
        return Ok((block_cols, Box::new(of_row)));
    }
    let Some(factors) = RowFactors::read(scale, target)? else {
        return Err(scale.fault(format!(
            "shape {:?} scales neither blocks {blocks:?} nor rows {lead:?} nor the tensor",
            scale.shape
        )));
    };
    let whole_row = cols.next_multiple_of(16).max(16);
    let of_row = move |row, out: &mut Vec<u8>| out.extend(factors.of_row(row).to_le_bytes());
    Ok((whole_row, Box::new(of_row)))
}
