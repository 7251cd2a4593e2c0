//! Scales and offsets of a matrix as the packed weight keeps them.

use super::layout::{BLOCK, CodeFamily, PackedFormat, ScaleForm, TILE, fits_bf16, fits_f16};
use forerun_base::{Format, Matrix, MatrixParts, ScaleKind, on_threads, threads_for};
use std::ops::Range;

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

    /// The numbers of a row.
    fn of_row(&self, row: usize) -> impl Iterator<Item = f32> + '_ {
        (0..self.matrix.cols()).step_by(self.group).flat_map(move |col| self.get(row, col))
    }
}

/// Which narrow forms hold every scale and offset of some tiles exactly.
#[derive(Clone, Copy)]
struct Fitting {
    tile: bool,
    bf16: bool,
    f16: bool,
}

impl Fitting {
    const ALL: Self = Self { tile: true, bf16: true, f16: true };

    fn and(self, other: Self) -> Self {
        Self {
            tile: self.tile && other.tile,
            bf16: self.bf16 && other.bf16,
            f16: self.f16 && other.f16,
        }
    }

    fn is_none(self) -> bool {
        !(self.tile || self.bf16 || self.f16)
    }

    /// Of the rows of one tile.
    fn of(scales: &MatrixScales<'_>) -> Self {
        let rows = 0..scales.matrix.rows();
        let same = |col: usize| {
            let first = scales.get(0, col)[0].to_bits();
            rows.clone().all(|row| scales.get(row, col)[0].to_bits() == first)
        };
        let all = |fits: fn(f32) -> bool| rows.clone().all(|row| scales.of_row(row).all(fits));
        let mut blocks = (0..scales.matrix.cols()).step_by(BLOCK);
        Self { tile: blocks.all(same), bf16: all(fits_bf16), f16: all(fits_f16) }
    }
}

/// The narrowest form that holds every scale and offset of `matrix` exactly. All cores look, a tile at a time.
pub(super) fn form(matrix: &MatrixParts, kind: PackedFormat) -> ScaleForm {
    let Format::Grouped { scale, .. } = matrix.format() else { return ScaleForm::None };
    let by_tile = kind.family == CodeFamily::E4m3 && !kind.offset && kind.group == BLOCK;
    if scale == ScaleKind::BF16 && !by_tile {
        return ScaleForm::Bf16;
    }
    let tiles = matrix.rows().div_ceil(TILE);
    let each = tiles.div_ceil(threads_for(matrix.bytes())).max(1);
    let shares = (0..tiles).step_by(each).map(|first| first..tiles.min(first + each)).collect();
    let fitting = on_threads(shares, |tiles: Range<usize>| {
        let mut fitting = Fitting { tile: by_tile, ..Fitting::ALL };
        for tile in tiles {
            let rows = matrix.block(tile * TILE..matrix.rows().min((tile + 1) * TILE));
            match MatrixScales::of(&rows) {
                Some(scales) if !fitting.is_none() => fitting = fitting.and(Fitting::of(&scales)),
                _ => break,
            }
        }
        fitting
    });
    match fitting.into_iter().fold(Fitting { tile: by_tile, ..Fitting::ALL }, Fitting::and) {
        Fitting { tile: true, .. } => ScaleForm::Tile,
        Fitting { bf16: true, .. } => ScaleForm::Bf16,
        Fitting { f16: true, .. } => ScaleForm::F16,
        _ => ScaleForm::F32,
    }
}
