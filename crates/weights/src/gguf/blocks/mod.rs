//! Blocks of ggml as canonical matrices, without changing a decoded value.
//!
//! # Layout
//! A row is an integral number of blocks, and the codes of a block fill whole bytes of the
//! canonical stream. So each plane of a matrix is the planes of its blocks one after the other,
//! and rows are repacked independently, when a device asks for them.

mod bits;
pub(super) mod legacy;
pub(super) mod super_blocks;
pub(super) mod table;

use super::BlockType;
use super::kind::BlockTypeInfo;
use forerun_base::{Bytes, Codes, Format, Matrix, MatrixParts, RowSource, ScaleKind};
use std::ops::Range;
use std::sync::Arc;

/// The most values in a block.
const MAX_VALUES: usize = 256;

/// One block format.
pub(super) trait BlockFormat {
    /// Values in a block; a multiple of 32.
    const VALUES: usize;
    /// Bytes in a block.
    const BYTES: usize;
    /// What its codes mean.
    const CODES: Codes;
    /// Values that share a scale.
    const GROUP: usize;
    /// How scales and offsets are stored.
    const SCALE: ScaleKind;
    /// Whether groups have offsets.
    const OFFSET: bool;

    /// Takes a block apart: one byte for each code, in the order of the values, and the scales
    /// and offsets of its groups as they stand in a plane.
    fn unpack(block: &[u8], codes: &mut [u8], scales: &mut [u8], offsets: &mut [u8]);
}

/// How many blocks are repacked.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRepack {
    pub(super) format: Format,
    run: fn(&[u8], PlanesMut<'_>),
}

/// The entry of a block format in the table of types.
pub(super) const fn packed<B: BlockFormat>(id: u32, name: &'static str) -> BlockTypeInfo {
    let format =
        Format::Grouped { codes: B::CODES, group: B::GROUP, scale: B::SCALE, offset: B::OFFSET };
    let repack = Some(BlockRepack { format, run: run::<B> });
    BlockTypeInfo { id, name, values: B::VALUES, bytes: B::BYTES, repack }
}

/// Why blocks do not make a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BlockError(String);

/// A matrix from the blocks of its rows, which are repacked when they are asked for.
pub fn parts(
    block: BlockType,
    [rows, cols]: [usize; 2],
    bytes: Bytes,
) -> Result<MatrixParts, BlockError> {
    let Some((kind, repack)) = block.kind().and_then(|kind| Some((kind, kind.repack?))) else {
        return Err(BlockError(format!(
            "{block} cannot be decoded; readable are F32, F16, BF16 and {}",
            BlockType::readable().map(|block| block.to_string()).collect::<Vec<_>>().join(", ")
        )));
    };
    if !cols.is_multiple_of(kind.values) {
        return Err(BlockError(format!(
            "rows of {cols} values; {block} needs a multiple of {}",
            kind.values
        )));
    }
    let row_bytes = (cols / kind.values).checked_mul(kind.bytes);
    let Some(row_bytes) = row_bytes.filter(|n| n.checked_mul(rows) == Some(bytes.len())) else {
        return Err(BlockError(format!(
            "{} bytes for a shape of [{rows}, {cols}] of {block}",
            bytes.len()
        )));
    };
    let source = BlockRows { repack, shape: [rows, cols], row_bytes, bytes };
    MatrixParts::made(Arc::new(source)).map_err(|why| BlockError(why.to_string()))
}

/// Rows of blocks.
#[derive(Debug)]
struct BlockRows {
    repack: BlockRepack,
    shape: [usize; 2],
    row_bytes: usize,
    bytes: Bytes,
}

impl RowSource for BlockRows {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn format(&self) -> Format {
        self.repack.format
    }

    fn make(&self, rows: Range<usize>) -> Matrix {
        let input = &self.bytes[rows.start * self.row_bytes..rows.end * self.row_bytes];
        let (count, cols) = (rows.len(), self.shape[1]);
        let mut planes = self.repack.format.plane_bytes(cols).map(|each| vec![0; count * each]);
        let [codes, scales, offsets] = &mut planes;
        (self.repack.run)(input, PlanesMut { codes, scales, offsets });
        let planes = planes.map(Bytes::from);
        Matrix::new([count, cols], self.repack.format, planes)
            .expect("planes are as long as the format says, and no block has FP8 codes")
    }

    fn release(&self, rows: Range<usize>) {
        let part = self.bytes.slice(rows.start * self.row_bytes..rows.end * self.row_bytes);
        part.iter().for_each(Bytes::release);
    }
}

/// Bytes that one block fills in the planes of codes, scales and offsets.
#[derive(Clone, Copy)]
pub(super) struct PlaneSizes {
    codes: usize,
    scales: usize,
    offsets: usize,
}

impl PlaneSizes {
    pub(super) const fn new(format: Format, values: usize) -> Self {
        let scales = format.row_scale_bytes(values);
        let offset = matches!(format, Format::Grouped { offset: true, .. });
        Self { codes: format.row_bytes(values), scales, offsets: if offset { scales } else { 0 } }
    }

    /// In all planes.
    pub(super) const fn sum(self) -> usize {
        self.codes + self.scales + self.offsets
    }
}

/// The planes of some blocks.
struct PlanesMut<'a> {
    codes: &'a mut [u8],
    scales: &'a mut [u8],
    offsets: &'a mut [u8],
}

impl<'a> PlanesMut<'a> {
    /// Takes the planes of the first `blocks` blocks away.
    fn split_off(&mut self, sizes: PlaneSizes, blocks: usize) -> Self {
        let first = |plane: &mut &'a mut [u8], size: usize| {
            plane.split_off_mut(..blocks * size).expect("planes are as long as the blocks need")
        };
        Self {
            codes: first(&mut self.codes, sizes.codes),
            scales: first(&mut self.scales, sizes.scales),
            offsets: first(&mut self.offsets, sizes.offsets),
        }
    }
}

fn run<B: BlockFormat>(input: &[u8], mut planes: PlanesMut<'_>) {
    let format =
        Format::Grouped { codes: B::CODES, group: B::GROUP, scale: B::SCALE, offset: B::OFFSET };
    let sizes = PlaneSizes::new(format, B::VALUES);
    let mut codes = [0; MAX_VALUES];
    for block in input.chunks_exact(B::BYTES) {
        let out = planes.split_off(sizes, 1);
        let codes = &mut codes[..B::VALUES];
        B::unpack(block, codes, out.scales, out.offsets);
        bits::pack(B::CODES.bits(), codes, out.codes);
    }
}

/// The low nibbles of `bytes`, then the high ones.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}
