//! Weights in device memory.

use super::layout::{PackedLayout, TILE};
use super::pack::pack;
use crate::driver::{Address, Args, Driver, DriverError, STAGE};
use forerun_base::{Format, MatrixParts, on_threads, threads_for};
use std::ops::Range;

/// Columns up to which a weight is kept as f32: its tiles would be mostly padding.
const NARROW: usize = 16;

/// A weight in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWeight {
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub cols: usize,
    /// The format it came in.
    pub format: Format,
    /// Bytes in device memory.
    pub bytes: usize,
    /// Its address.
    pub at: Address,
    /// Its packed layout; without one it is f32, row-major.
    pub layout: Option<PackedLayout>,
}

impl DeviceWeight {
    /// Uploads a matrix a few tiles at a time and releases what was uploaded. Vectors and narrow matrices become f32,
    /// others are packed.
    pub fn upload(driver: &mut dyn Driver, matrix: &MatrixParts) -> Result<Self, DriverError> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let layout = (rows > 1 && cols > NARROW).then(|| PackedLayout::of(matrix));
        let bytes = layout.map_or(rows * cols * 4, |layout| layout.bytes());
        let at = driver.alloc(bytes as u64)?;
        let weight = Self { rows, cols, format: matrix.format(), bytes, at, layout };
        let unit = layout.map_or(cols * 4, |layout| layout.tile_bytes());
        let units = layout.map_or(rows, |layout| layout.tiles());
        let unit_rows = if layout.is_some() { TILE } else { 1 };
        let step = STAGE / unit.max(1);
        let mut whole = Vec::new();
        for first in (0..units).step_by(step.max(1)) {
            let range = first..units.min(first + step.max(1));
            let bytes = range.len() * unit;
            let to = at.offset((first * unit) as u64);
            let fill = |part: &mut [u8]| stage(matrix, layout, range.clone(), part);
            // SAFETY: unit `i` begins at `i · unit`, and `units · unit` bytes were allocated.
            let copied =
                unsafe { send(driver, to, bytes, (step == 0).then_some(&mut whole), fill) };
            if let Err(error) = copied {
                // SAFETY: `at` was just allocated, and its address was given to nobody.
                unsafe { driver.free(at)? };
                return Err(error);
            }
            matrix.release(range.start * unit_rows..rows.min(range.end * unit_rows));
        }
        Ok(weight)
    }

    /// The packed format's name, for `inspect` and tests.
    pub fn form(&self) -> String {
        self.layout.map_or_else(|| "f32".into(), |layout| layout.name())
    }

    /// The fields of a kernel's `DeviceWeight`.
    pub fn fields(&self, args: Args) -> Args {
        let Some(layout) = self.layout else {
            let args = args.with(self.at).size(self.rows).size(self.cols).size(self.cols);
            let args = args.with(4_u32).with(1_u32).with(128_u32).with(0_u32).with(0_u32);
            return args.with(0_i32).with(0_u32);
        };
        let kind = layout.kind;
        args.with(self.at)
            .size(self.rows)
            .size(self.cols)
            .size(layout.depth())
            .with(kind.family as u32)
            .size(kind.planes)
            .size(kind.group)
            .with(kind.scales as u32)
            .with(u32::from(kind.offset))
            .with(kind.bias)
            .with(0_u32)
    }

    /// Units of 16 rows among `rows` of them.
    pub(super) fn units(rows: usize) -> u32 {
        rows.div_ceil(TILE) as u32
    }
}

/// Copies what `fill` makes to the device: through the driver's pinned memory, or through `whole` where it is too much
/// for that, a unit that is larger than any known weight's.
///
/// # Safety
/// The `bytes` bytes at `to` are memory of the driver.
unsafe fn send(
    driver: &mut dyn Driver,
    to: Address,
    bytes: usize,
    whole: Option<&mut Vec<u8>>,
    fill: impl Fn(&mut [u8]),
) -> Result<(), DriverError> {
    let Some(whole) = whole else {
        fill(driver.stage(bytes)?);
        // SAFETY: the contract of this function.
        return unsafe { driver.copy_staged(to, bytes) };
    };
    whole.resize(bytes, 0);
    fill(whole);
    // SAFETY: the contract of this function.
    unsafe { driver.copy_in(to, whole) }
}

/// Fills `out` with tiles, or rows of f32 where there is no layout. All cores share the work: a checkpoint has billions
/// of numbers.
fn stage(matrix: &MatrixParts, layout: Option<PackedLayout>, units: Range<usize>, out: &mut [u8]) {
    let each = units.len().div_ceil(threads_for(out.len())).max(1);
    let unit = out.len().checked_div(units.len()).unwrap_or(0);
    let parts = units.clone().step_by(each).map(|first| first..units.end.min(first + each));
    let shares = parts.zip(out.chunks_mut((each * unit).max(1))).collect();
    on_threads(shares, |(part, out): (Range<usize>, &mut [u8])| match &layout {
        Some(layout) => pack(matrix, layout, part, out),
        None => plain(matrix, part, out),
    });
}

fn plain(matrix: &MatrixParts, rows: Range<usize>, out: &mut [u8]) {
    let mut line = vec![0.0; matrix.cols()];
    for (row, out) in rows.zip(out.chunks_exact_mut((matrix.cols() * 4).max(1))) {
        matrix.block(row..row + 1).decode_row(0, &mut line);
        let words = out.as_chunks_mut::<4>().0.iter_mut().zip(&line);
        words.for_each(|(to, value)| *to = value.to_le_bytes());
    }
}
