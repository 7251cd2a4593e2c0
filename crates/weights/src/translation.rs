//! A checkpoint under other names: which stored tensor is meant, which of its rows and columns
//! in which order, and what shape comes of it.

use forerun_base::{Bytes, MatrixParts};
use std::ops::Range;

/// How a checkpoint's tensors are to be called and read.
#[derive(Clone, Debug)]
pub struct Translation {
    /// What the checkpoint is to answer as its config.
    pub config: serde_json::Value,
    /// All tensors that are to be seen.
    pub tensors: Vec<Renamed>,
}

/// One tensor under a new name: rows and columns of `stored`, then reshaped.
///
/// Empty lists mean all, as stored; otherwise ranges in the new order, which may leave some
/// out. They count along the **stored** axes, before `shape` is applied.
#[derive(Clone, Debug, Default)]
pub struct Renamed {
    /// The new name.
    pub name: String,
    /// The name in the file.
    pub stored: String,
    /// The shape of the result; `None`: that of the stored tensor with the axes that were
    /// selected from. It must hold exactly the selected values.
    pub shape: Option<Vec<usize>>,
    /// Along the second to last axis, the same for each index before it. For a tensor of one
    /// axis: its elements.
    pub rows: Vec<Range<usize>>,
    /// Along the last of at least two axes.
    pub columns: Vec<Range<usize>>,
}

/// A checked [`Renamed`].
#[derive(Clone, Debug)]
pub(crate) struct TensorView {
    pub(crate) stored: String,
    /// The shape of the result.
    pub(crate) shape: Vec<usize>,
    selection: Selection,
}

impl TensorView {
    /// Checks what is requested against the stored shape.
    pub(crate) fn new(renamed: Renamed, found: &[usize]) -> Result<Self, String> {
        let Renamed { stored, shape, rows, columns, .. } = renamed;
        let mut selected = found.to_vec();
        let (rows, columns) = match &mut selected[..] {
            [] if rows.is_empty() && columns.is_empty() => (rows, columns),
            [elements] if columns.is_empty() => (Vec::new(), narrow(elements, rows, "elements")?),
            [.., down, across] => {
                (narrow(down, rows, "rows")?, narrow(across, columns, "columns")?)
            }
            _ => return Err(format!("has shape {found:?}; it has no such axis to select from")),
        };
        let count = |shape: &[usize]| shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
        let shape = shape.unwrap_or_else(|| selected.clone());
        if count(&shape) != count(&selected) || count(&shape).is_none() {
            return Err(format!("{selected:?} of shape {found:?} cannot be reshaped to {shape:?}"));
        }
        Ok(Self { stored, shape, selection: Selection { rows, columns } })
    }

    pub(crate) fn selection(&self) -> &Selection {
        &self.selection
    }
}

/// Checks ranges against an axis, joins those that follow each other, and shortens the axis.
/// What amounts to the whole axis becomes empty.
fn narrow(
    axis: &mut usize,
    ranges: Vec<Range<usize>>,
    what: &str,
) -> Result<Vec<Range<usize>>, String> {
    let length = *axis;
    if ranges.is_empty() {
        return Ok(ranges);
    }
    let mut joined: Vec<Range<usize>> = Vec::new();
    let mut total = 0usize;
    for range in ranges {
        if range.start > range.end || range.end > length {
            return Err(format!("{what} {range:?} are requested; it has {length}"));
        }
        total = total.checked_add(range.len()).ok_or_else(|| format!("too many {what}"))?;
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    *axis = total;
    if joined.len() == 1 && total == length {
        joined.clear();
    }
    Ok(joined)
}

/// Rows and columns of a stored tensor; an empty list is all of them.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) rows: Vec<Range<usize>>,
    pub(crate) columns: Vec<Range<usize>>,
}

/// A stored shape as stacks of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axes {
    /// All axes before the last two, run together.
    pub(crate) stacks: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Axes {
    /// The shape was checked against a file, so products are bounded unless it has a zero.
    pub(crate) fn of(shape: &[usize]) -> Self {
        let product = |axes: &[usize]| axes.iter().fold(1, |all: usize, &n| all.saturating_mul(n));
        match shape {
            [] => Self { stacks: 1, rows: 1, cols: 1 },
            [cols] => Self { stacks: 1, rows: 1, cols: *cols },
            [stacks @ .., rows, cols] => Self { stacks: product(stacks), rows: *rows, cols: *cols },
        }
    }
}

impl Selection {
    /// Everything, in stored order.
    pub(crate) const ALL: &'static Self = &Self { rows: Vec::new(), columns: Vec::new() };

    /// Whether anything is left out or moved.
    pub(crate) fn is_all(&self) -> bool {
        self.rows.is_empty() && self.columns.is_empty()
    }

    /// The selected rows of all stacks, run together.
    fn row_runs(&self, axes: Axes) -> impl Iterator<Item = Range<usize>> {
        let run = move |stack: usize, r: &Range<usize>| {
            stack * axes.rows + r.start..stack * axes.rows + r.end
        };
        (0..axes.stacks).flat_map(move |stack| self.rows.iter().map(move |r| run(stack, r)))
    }

    /// The selected rows and columns of a matrix of all stacks; `None` when they are outside.
    pub(crate) fn take(&self, axes: Axes, stored: MatrixParts) -> Option<MatrixParts> {
        let rows = match self.rows.is_empty() {
            true => stored,
            false => stored.select_rows(&self.row_runs(axes).collect::<Vec<_>>())?,
        };
        if self.columns.is_empty() { Some(rows) } else { rows.select_columns(&self.columns) }
    }

    /// The bytes of the selected rows, each of `row_bytes`. A single run is not copied.
    pub(crate) fn take_rows(&self, axes: Axes, row_bytes: usize, bytes: &Bytes) -> Bytes {
        let mut runs = self.row_runs(axes).map(|r| r.start * row_bytes..r.end * row_bytes);
        match &self.rows[..] {
            [] => bytes.clone(),
            [_] if axes.stacks == 1 => runs
                .next()
                .and_then(|run| bytes.slice(run))
                .expect("ranges were checked against the shape"),
            _ => {
                let mut out = Vec::new();
                runs.for_each(|run| out.extend_from_slice(&bytes[run]));
                out.into()
            }
        }
    }

    /// The bytes of the selected columns of every row; elements have `size` bytes.
    pub(crate) fn take_columns(&self, cols: usize, size: usize, bytes: Bytes) -> Bytes {
        if self.columns.is_empty() {
            return bytes;
        }
        let mut out = Vec::new();
        for row in bytes.chunks_exact((cols * size).max(1)) {
            for range in &self.columns {
                out.extend_from_slice(&row[range.start * size..range.end * size]);
            }
        }
        out.into()
    }
}
