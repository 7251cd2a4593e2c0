//! A matrix whose rows lie in several places or are made when they are asked for.
//!
//! What a checkpoint stores as one tensor a model may want in pieces, and the other way round: a query and a gate lie
//! in one projection, each expert of a stack is a module of its own, a block format has to be repacked. A device packs
//! a weight a few rows at a time, so it asks for these rows ([`MatrixParts::block`]) and the whole never exists on the
//! host.

use super::{FiniteWatch, Format, Matrix, MatrixError};
use crate::Bytes;
use crate::parallel::{on_threads, threads_for};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a thread makes at a time when a whole matrix is built.
const STAGED: usize = 1 << 18;

/// Rows of a matrix, made when they are asked for. Whoever implements it has checked before that this cannot fail.
pub trait RowSource: fmt::Debug + Send + Sync {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2];

    /// The format of every row.
    fn format(&self) -> Format;

    /// The rows of a range inside the shape, made by the calling thread. Threads ask for different rows at once.
    fn make(&self, rows: Range<usize>) -> Matrix;

    /// Says that what these rows are made from will not be read for now. See [`Bytes::release`].
    fn release(&self, rows: Range<usize>);

    /// Whether the codes of all rows lie in memory as they are, so that a matrix of all rows copies none.
    fn is_stored(&self) -> bool {
        false
    }
}

impl RowSource for Matrix {
    fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    fn format(&self) -> Format {
        self.format
    }

    fn make(&self, rows: Range<usize>) -> Matrix {
        self.select_rows(std::slice::from_ref(&rows)).expect("a range inside the shape")
    }

    fn release(&self, rows: Range<usize>) {
        let part = RowSource::make(self, rows);
        [part.codes, part.scales, part.offsets].iter().for_each(Bytes::release);
    }

    fn is_stored(&self) -> bool {
        true
    }
}

/// Some rows of a source.
#[derive(Clone, Debug)]
struct MatrixPart {
    source: Arc<dyn RowSource>,
    /// Of the source.
    rows: Range<usize>,
    /// The first of them in the whole.
    first: usize,
}

/// See the module's text. Cloning copies no row.
#[derive(Clone, Debug)]
pub struct MatrixParts {
    rows: usize,
    cols: usize,
    format: Format,
    /// In order and without empty ones.
    parts: Vec<MatrixPart>,
    watch: Option<Arc<FiniteWatch>>,
}

impl From<Matrix> for MatrixParts {
    fn from(matrix: Matrix) -> Self {
        Self::of(Arc::new(matrix))
    }
}

impl MatrixParts {
    /// All rows of a source, whose format is checked.
    pub fn made(source: Arc<dyn RowSource>) -> Result<Self, MatrixError> {
        source.format().check(source.shape()[1])?;
        Ok(Self::of(source))
    }

    fn of(source: Arc<dyn RowSource>) -> Self {
        let ([rows, cols], format) = (source.shape(), source.format());
        let mut all = Self { rows: 0, cols, format, parts: Vec::new(), watch: None };
        all.push(source, 0..rows);
        all
    }

    fn push(&mut self, source: Arc<dyn RowSource>, rows: Range<usize>) {
        let first = self.rows;
        self.rows += rows.len();
        match self.parts.last_mut() {
            _ if rows.is_empty() => {}
            Some(last) if Arc::ptr_eq(&last.source, &source) && last.rows.end == rows.start => {
                last.rows.end = rows.end;
            }
            _ => self.parts.push(MatrixPart { source, rows, first }),
        }
    }

    /// One tall matrix from several of equal width and format; `None` when they differ or there are none.
    pub fn stack(all: &[Self]) -> Option<Self> {
        let first = all.first()?;
        let mut stacked = Self { rows: 0, parts: Vec::new(), watch: None, ..*first };
        for part in all.iter().flat_map(|one| &one.parts) {
            stacked.push(part.source.clone(), part.rows.clone());
        }
        let same = |one: &Self| one.cols == first.cols && one.format == first.format;
        all.iter().all(same).then_some(stacked)
    }

    /// The rows in `ranges`, in that order; `None` when one lies outside.
    pub fn select_rows(&self, ranges: &[Range<usize>]) -> Option<Self> {
        let mut selected = Self { rows: 0, parts: Vec::new(), watch: None, ..*self };
        for range in ranges {
            if range.start > range.end || range.end > self.rows {
                return None;
            }
            for (part, rows) in self.overlapping(range.clone()) {
                selected.push(part.source.clone(), rows);
            }
        }
        Some(selected)
    }

    /// The columns in `ranges` of every row, in that order, as [`Matrix::select_columns`] takes them; `None` when one
    /// lies outside.
    pub fn select_columns(&self, ranges: &[Range<usize>]) -> Option<Self> {
        let none = self.block(0..0).select_columns(ranges)?;
        Some(Self::of(Arc::new(SomeColumns {
            of: Self { watch: None, ..self.clone() },
            ranges: ranges.to_vec(),
            cols: none.cols,
            format: none.format,
        })))
    }

    /// Output channels (for an embedding: vocabulary entries).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input channels.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bytes in all planes of the whole.
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    fn row_bytes(&self) -> usize {
        self.format.plane_bytes(self.cols).iter().sum()
    }

    /// From now on every row that is read is searched for NaN and infinity; the watch says what was found.
    pub fn watch(&mut self) -> Arc<FiniteWatch> {
        self.watch.get_or_insert_default().clone()
    }

    /// Some rows of the whole. Rows that lie in one stored part are not copied.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn block(&self, rows: Range<usize>) -> Matrix {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows outside the matrix");
        let first = rows.start;
        let mut parts: Vec<Matrix> =
            self.overlapping(rows).map(|(part, rows)| part.source.make(rows)).collect();
        let block = match parts.len() {
            0 => self.unfilled(0),
            1 => parts.swap_remove(0),
            _ => Matrix::stack(&parts).expect("parts are of one width and format"),
        };
        if let Some(watch) = &self.watch {
            watch.search(&block, first);
        }
        block
    }

    /// The parts that hold rows of a range of the whole, and these rows of their sources.
    fn overlapping(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (&MatrixPart, Range<usize>)> {
        let from = self.parts.partition_point(|part| part.first + part.rows.len() <= range.start);
        let parts = self.parts[from..].iter().take_while(move |part| part.first < range.end);
        parts
            .map(move |part| {
                let inside = |at: usize| {
                    part.rows.start + at.clamp(part.first, part.first + part.rows.len())
                        - part.first
                };
                (part, inside(range.start)..inside(range.end))
            })
            .filter(|(_, rows)| !rows.is_empty())
    }

    /// All rows in one matrix: the codes of a stored part as they lie, others made by all cores.
    pub fn whole(&self) -> Matrix {
        match &self.parts[..] {
            [one] if one.source.is_stored() => self.block(0..self.rows),
            _ => self.build(),
        }
    }

    /// A matrix of so many rows whose planes are all zeros.
    fn unfilled(&self, rows: usize) -> Matrix {
        let planes =
            self.format.plane_bytes(self.cols).map(|each| Bytes::from(vec![0; rows * each]));
        let [codes, scales, offsets] = planes;
        Matrix { rows, cols: self.cols, format: self.format, codes, scales, offsets }
    }

    fn build(&self) -> Matrix {
        let each = self.format.plane_bytes(self.cols);
        let mut planes = each.map(|each| vec![0; self.rows * each]);
        let share = self.rows.div_ceil(threads_for(self.bytes())).max(1);
        let [codes, scales, offsets] = planes.each_mut();
        let mut rest = [&mut codes[..], scales, offsets];
        let mut shares = Vec::new();
        for first in (0..self.rows).step_by(share) {
            let rows = first..self.rows.min(first + share);
            let mut taken = [0, 1, 2].into_iter().map(|plane| {
                let bytes = rows.len() * each[plane];
                rest[plane].split_off_mut(..bytes).expect("planes hold all rows")
            });
            let planes = std::array::from_fn(|_| taken.next().expect("three planes"));
            shares.push((rows, planes));
        }
        on_threads(shares, |(rows, planes)| self.fill(rows, planes));
        let [codes, scales, offsets] = planes.map(Bytes::from);
        Matrix { rows: self.rows, cols: self.cols, format: self.format, codes, scales, offsets }
    }

    /// Copies rows to where they belong in the planes of a share.
    fn fill(&self, rows: Range<usize>, planes: [&mut [u8]; 3]) {
        let each = self.format.plane_bytes(self.cols);
        let step = (STAGED / self.row_bytes().max(1)).max(1);
        for first in rows.clone().step_by(step) {
            let block = self.block(first..rows.end.min(first + step));
            let from = [&block.codes, &block.scales, &block.offsets];
            for (plane, from) in from.into_iter().enumerate() {
                let at = (first - rows.start) * each[plane];
                planes[plane][at..at + from.len()].copy_from_slice(from);
            }
        }
    }

    /// Says that rows of the whole will not be read for now, so that the pages of a mapped file may go.
    pub fn release(&self, rows: Range<usize>) {
        self.overlapping(rows).for_each(|(part, rows)| part.source.release(rows));
    }
}

/// Some columns of every row.
#[derive(Debug)]
struct SomeColumns {
    of: MatrixParts,
    ranges: Vec<Range<usize>>,
    cols: usize,
    format: Format,
}

impl RowSource for SomeColumns {
    fn shape(&self) -> [usize; 2] {
        [self.of.rows, self.cols]
    }

    fn format(&self) -> Format {
        self.format
    }

    fn make(&self, rows: Range<usize>) -> Matrix {
        let block = self.of.block(rows);
        block.select_columns(&self.ranges).expect("ranges were checked when this was made")
    }

    fn release(&self, rows: Range<usize>) {
        self.of.release(rows);
    }
}

#[cfg(test)]
mod tests;
