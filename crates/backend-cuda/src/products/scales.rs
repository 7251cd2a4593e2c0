//! Scales and offsets of a matrix as the packed weight keeps them.

use super::layout::{BLOCK, CodeFamily, PackedFormat, ScaleForm, TILE, fits_bf16, fits_f16};
use forerun_base::{Format, Matrix, ScaleKind};

/// The scales and offsets of a matrix, by row and column.
pub(super) struct MatrixScales<'a> {
    matrix: &'a Matrix,
    group: usize,
    kind: ScaleKind,
    row_bytes: usize,
    offset: bool,
}

impl<'a> MatrixScales<'a> {
    /// `None` for a dense matrix.
    pub(super) fn of(matrix: &'a Matrix) -> Option<Self> {
        let Format::Grouped { group, scale, offset, .. } = matrix.format() else { return None };
        let row_bytes = matrix.format().row_scale_bytes(matrix.cols());
        Some(Self { matrix, group, kind: scale, row_bytes, offset })
    }

    /// Scale and offset of a column's group.
    pub(super) fn get(&self, row: usize, col: usize) -> [f32; 2] {
        let at = row * self.row_bytes..(row + 1) * self.row_bytes;
        let number = |plane: &[u8]| self.kind.get(&plane[at.clone()], self.group, col / self.group);
        let offset = if self.offset { number(self.matrix.offsets()) } else { 0.0 };
        [number(self.matrix.scales()), offset]
    }

    fn all(&self) -> impl Iterator<Item = f32> + '_ {
        let (rows, cols) = (self.matrix.rows(), self.matrix.cols());
        (0..rows).flat_map(move |row| {
            (0..cols).step_by(self.group).flat_map(move |col| self.get(row, col))
        })
    }
}

/// The narrowest form that holds every scale and offset of `matrix` exactly.
pub(super) fn form(matrix: &Matrix, kind: PackedFormat) -> ScaleForm {
    let Some(scales) = MatrixScales::of(matrix) else { return ScaleForm::None };
    if kind.family == CodeFamily::E4m3 && !kind.offset && kind.group == BLOCK {
        let same = |tile: usize, col: usize| {
            let first = scales.get(tile * TILE, col)[0].to_bits();
            let rows = tile * TILE..matrix.rows().min((tile + 1) * TILE);
            rows.into_iter().all(|row| scales.get(row, col)[0].to_bits() == first)
        };
        let mut tiles = 0..matrix.rows().div_ceil(TILE);
        if tiles.all(|tile| (0..matrix.cols()).step_by(BLOCK).all(|col| same(tile, col))) {
            return ScaleForm::Tile;
        }
    }
    if scales.all().all(fits_bf16) {
        ScaleForm::Bf16
    } else if scales.all().all(fits_f16) {
        ScaleForm::F16
    } else {
        ScaleForm::F32
    }
}
