//! Weights in device memory.

use super::layout::{PackedLayout, TILE};
use super::pack::pack;
use crate::driver::{Address, Args, Driver, DriverError};
use forerun_base::{Format, Matrix};
use std::ops::Range;

/// Columns up to which a weight is kept as f32: its tiles would be mostly padding.
const NARROW: usize = 16;
/// Bytes that are packed before they are copied: the size of the staging memory on the host.
const STAGED: usize = 256 << 20;
/// Bytes below which starting threads costs more than it saves.
const ALONE: usize = 1 << 20;

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
    /// Uploads a matrix. Vectors and narrow matrices become f32, others are packed.
    pub fn upload(driver: &mut dyn Driver, matrix: &Matrix) -> Result<Self, DriverError> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let layout = (rows > 1 && cols > NARROW).then(|| PackedLayout::of(matrix));
        let bytes = layout.map_or(rows * cols * 4, |layout| layout.bytes());
        let at = driver.alloc(bytes as u64)?;
        let weight = Self { rows, cols, format: matrix.format(), bytes, at, layout };
        let unit = layout.map_or(cols * 4, |layout| layout.tile_bytes());
        let units = layout.map_or(rows, |layout| layout.tiles());
        let step = (STAGED / unit.max(1)).max(1);
        for first in (0..units).step_by(step) {
            let range = first..units.min(first + step);
            let part = match &layout {
                Some(layout) => packed(matrix, layout, range),
                None => plain(matrix, range),
            };
            let to = at.offset((first * unit) as u64);
            // SAFETY: unit `i` begins at `i · unit`, and `units · unit` bytes were allocated.
            let copied = unsafe { driver.copy_in(to, &part) };
            if let Err(error) = copied {
                // SAFETY: `at` was just allocated, and its address was given to nobody.
                unsafe { driver.free(at)? };
                return Err(error);
            }
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

/// Tiles packed by all cores: a checkpoint has billions of numbers.
fn packed(matrix: &Matrix, layout: &PackedLayout, tiles: Range<usize>) -> Vec<u8> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let each = tiles.len().div_ceil(cores).max(1);
    if tiles.len() * layout.tile_bytes() < ALONE || each == tiles.len() {
        return pack(matrix, layout, tiles);
    }
    let parts = tiles.clone().step_by(each).map(|first| first..tiles.end.min(first + each));
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            parts.map(|part| scope.spawn(move || pack(matrix, layout, part))).collect();
        let mut all = Vec::with_capacity(tiles.len() * layout.tile_bytes());
        for thread in threads {
            // A panic of a thread is resumed here.
            all.append(&mut thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    })
}

fn plain(matrix: &Matrix, rows: Range<usize>) -> Vec<u8> {
    let mut line = vec![0.0; matrix.cols()];
    let mut out = Vec::with_capacity(rows.len() * matrix.cols() * 4);
    for row in rows {
        matrix.decode_row(row, &mut line);
        out.extend(line.iter().flat_map(|v| v.to_le_bytes()));
    }
    out
}
