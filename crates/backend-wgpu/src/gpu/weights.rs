//! Weights in panels of 16 channels: see `kernels/weight.wgsl`.

use crate::gpu::layout::{PANEL, WeightLayout, WeightPiece};
use crate::gpu::queue::Queue;
use forerun_backend::{BackendError, WeightId, WeightInfo};
use forerun_base::{Format, MatrixParts, SUPERBLOCK, ScaleKind};

/// Words that are copied at once.
const WORDS: usize = 4 << 20;

/// One weight.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) layout: WeightLayout,
    /// In the order of the layout's pieces.
    pub(crate) buffers: Vec<wgpu::Buffer>,
    /// The same numbers in f32, row by row, where an operation has asked for them.
    pub(crate) plain: Option<wgpu::Buffer>,
}

/// All weights.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    weights: Vec<Weight>,
}

impl Weights {
    pub(crate) fn info(&self, id: WeightId) -> Option<WeightInfo> {
        self.weights.get(id.0 as usize).map(|weight| weight.layout.info)
    }

    /// A weight; operands were checked, so it exists.
    pub(crate) fn get(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: WeightId) -> &mut Weight {
        &mut self.weights[id.0 as usize]
    }

    pub(crate) fn upload(
        &mut self,
        queue: &mut Queue,
        label: &str,
        matrix: &MatrixParts,
    ) -> Result<WeightId, BackendError> {
        let (rows, cols, format) = (matrix.rows(), matrix.cols(), matrix.format());
        let info = WeightInfo { rows, cols, format, bytes: matrix.bytes() };
        let layout = WeightLayout::of(info, queue.device.limits().max_storage_buffer_binding_size);
        let mut buffers = Vec::with_capacity(layout.pieces.len());
        for piece in &layout.pieces {
            let buffer = queue.storage(label, 4 * piece.words as u64)?;
            pack_piece(queue, matrix, (&layout, piece), &buffer)?;
            buffers.push(buffer);
        }
        self.weights.push(Weight { layout, buffers, plain: None });
        Ok(WeightId(self.weights.len() as u32 - 1))
    }
}

/// Writes the planes of a piece, a few rows of the matrix at a time.
fn pack_piece(
    queue: &mut Queue,
    matrix: &MatrixParts,
    (weight, piece): (&WeightLayout, &WeightPiece),
    buffer: &wgpu::Buffer,
) -> Result<(), BackendError> {
    let format = matrix.format();
    let cols = matrix.cols();
    let code_bytes = format.row_bytes(cols);
    let scale_bytes = format.row_scale_bytes(cols);
    let dense: Rearrange = &|bytes, to| to[..bytes.len()].copy_from_slice(bytes);
    let nested: Rearrange = &|bytes, to| nested_row(format, bytes, to);
    let is_nested = matches!(format, Format::Grouped { scale: ScaleKind::Nested, .. });
    let scales = if is_nested { nested } else { dense };
    let words_of_row = weight.code_words + 2 * weight.scale_words;
    let together = (WORDS / (words_of_row * PANEL).max(1)).max(1);
    let panels = piece.channels.div_ceil(PANEL);
    for first in (0..panels).step_by(together) {
        let count = together.min(panels - first);
        let start = piece.first + first * PANEL;
        let rows = start..(piece.first + piece.channels).min(start + count * PANEL);
        let block = matrix.block(rows.clone());
        for (plane, bytes, words, at, rearrange) in [
            (block.codes(), code_bytes, weight.code_words, 0, dense),
            (block.scales(), scale_bytes, weight.scale_words, piece.scales_at, scales),
            (block.offsets(), scale_bytes, weight.scale_words, piece.offsets_at, scales),
        ] {
            if plane.is_empty() || words == 0 {
                continue;
            }
            let packed = pack_panels(plane.chunks_exact(bytes), [count, words], rearrange);
            let to = (at + first * words * PANEL) * 4;
            queue.write(buffer, to as u64, &packed)?;
            if packed.len() >= 4 * WORDS / 2 {
                queue.flush_writes()?;
            }
        }
        matrix.release(rows);
    }
    Ok(())
}

/// Lays the bytes of a row as words.
type Rearrange<'a> = &'a dyn Fn(&[u8], &mut [u8]);

/// Rows side by side in panels.
fn pack_panels<'a>(
    rows: impl Iterator<Item = &'a [u8]>,
    [panels, words]: [usize; 2],
    rearrange: Rearrange<'_>,
) -> Vec<u8> {
    let mut out = vec![0; 4 * panels * words * PANEL];
    let mut line = vec![0; 4 * words];
    for (row, bytes) in rows.enumerate() {
        line.fill(0);
        rearrange(bytes, &mut line);
        let (panel, lane) = (row / PANEL, row % PANEL);
        let to = &mut out[4 * panel * words * PANEL..];
        for (word, bytes) in line.chunks_exact(4).enumerate() {
            to[4 * (word * PANEL + lane)..][..4].copy_from_slice(bytes);
        }
    }
    out
}

/// Nested scales of a row: all f16, then all i8, each from a word on.
fn nested_row(format: Format, bytes: &[u8], to: &mut [u8]) {
    let Format::Grouped { group, .. } = format else { return };
    let groups = SUPERBLOCK / group;
    let blocks = bytes.len() / (2 + groups);
    let numbers_at = 4 * blocks.div_ceil(2);
    for (block, bytes) in bytes.chunks_exact(2 + groups).enumerate() {
        to[2 * block..][..2].copy_from_slice(&bytes[..2]);
        to[numbers_at + groups * block..][..groups].copy_from_slice(&bytes[2..]);
    }
}
