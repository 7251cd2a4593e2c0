//! Weights in panels of 16 channels: see `kernels/weight.wgsl`.

use crate::pipelines::Constant;
use crate::queue::Queue;
use forerun_backend::{BackendError, WeightId, WeightInfo};
use forerun_base::{Codes, DType, Format, Matrix, SUPERBLOCK, ScaleKind, ScaleType};

/// Channels of a panel.
pub(crate) const PANEL: usize = 16;
/// Columns that rows of codes are padded to.
const UNIT: usize = 32;
/// Words that are copied at once.
const WORDS: usize = 4 << 20;

/// Some channels of a weight, in a buffer that can be bound.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) first: usize,
    pub(crate) channels: usize,
    /// Where the planes of scales and of offsets begin, in words.
    pub(crate) scales_at: usize,
    pub(crate) offsets_at: usize,
}

/// One weight.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) info: WeightInfo,
    pub(crate) constants: Vec<Constant>,
    /// Words of a channel in the plane of codes, and in that of scales.
    pub(crate) code_words: usize,
    pub(crate) scale_words: usize,
    pub(crate) pieces: Vec<Piece>,
    /// The same numbers in f32, row by row, where an operation has asked for them.
    pub(crate) plain: Option<wgpu::Buffer>,
}

impl Weight {
    /// What a kernel is told of a piece's planes.
    pub(crate) fn planes(&self, piece: &Piece) -> [usize; 4] {
        [self.code_words, self.scale_words, piece.scales_at, piece.offsets_at]
    }
}

/// All weights.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    weights: Vec<Weight>,
}

impl Weights {
    pub(crate) fn info(&self, id: WeightId) -> Option<WeightInfo> {
        self.weights.get(id.0 as usize).map(|weight| weight.info)
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
        matrix: &Matrix,
    ) -> Result<WeightId, BackendError> {
        let (rows, cols, format) = (matrix.rows(), matrix.cols(), matrix.format());
        let (constants, bits) = constants(format);
        let code_words = cols.div_ceil(UNIT) * bits;
        let scale_words = scale_words(format, cols);
        let has_offset = matches!(format, Format::Grouped { offset: true, .. });
        let planes = 1 + usize::from(has_offset);
        let panel_words = PANEL * (code_words + planes * scale_words);
        let most = queue.device.limits().max_storage_buffer_binding_size as usize / 4;
        let panels = (most / panel_words.max(1)).max(1);
        let mut weight = Weight {
            info: WeightInfo { rows, cols, format, bytes: matrix.bytes() },
            constants,
            code_words,
            scale_words,
            pieces: Vec::new(),
            plain: None,
        };
        for first in (0..rows).step_by(panels * PANEL) {
            let channels = (rows - first).min(panels * PANEL);
            let height = channels.div_ceil(PANEL);
            let scales_at = height * PANEL * code_words;
            let offsets_at = scales_at + height * PANEL * scale_words;
            let buffer = queue.storage(label, 4 * (height * panel_words) as u64)?;
            let piece = Piece { buffer, first, channels, scales_at, offsets_at };
            pack_piece(queue, matrix, &weight, &piece)?;
            weight.pieces.push(piece);
        }
        self.weights.push(weight);
        Ok(WeightId(self.weights.len() as u32 - 1))
    }
}

/// A format as the constants of the kernels' text, and the bits of a code.
fn constants(format: Format) -> (Vec<Constant>, usize) {
    let (kind, bits) = match format {
        Format::Dense(DType::F16) => (5, 16),
        Format::Dense(DType::BF16) => (6, 16),
        Format::Dense(_) => (4, 32),
        Format::Grouped { codes, .. } => {
            let kind = match codes {
                Codes::Uint { .. } => 0,
                Codes::Int { .. } => 1,
                Codes::Table { .. } => 2,
                Codes::E4m3 => 3,
            };
            (kind, codes.bits())
        }
    };
    let mut constants = vec![("CODES", kind), ("BITS", bits as u32)];
    let Format::Grouped { codes, group, scale, offset } = format else {
        constants.push(("SCALE", 4));
        return (constants, bits);
    };
    let scale = match scale {
        ScaleKind::Float(ScaleType::F32) => 0,
        ScaleKind::Float(ScaleType::F16) => 1,
        ScaleKind::Float(ScaleType::BF16) => 2,
        ScaleKind::Nested => 3,
    };
    constants.extend([("GROUP", group as u32), ("SCALE", scale), ("OFFSET", u32::from(offset))]);
    if let Codes::Table { values } = codes {
        let (words, _) = values.as_chunks::<4>();
        let names = ["TABLE0", "TABLE1", "TABLE2", "TABLE3"];
        let word = |bytes: &[i8; 4]| u32::from_le_bytes(bytes.map(|byte| byte as u8));
        constants.extend(names.into_iter().zip(words.iter().map(word)));
    }
    (constants, bits)
}

/// Words of a channel in a plane of scales.
fn scale_words(format: Format, cols: usize) -> usize {
    let Format::Grouped { group, scale, .. } = format else { return 0 };
    let groups = format.row_groups(cols);
    match scale {
        ScaleKind::Float(ScaleType::F32) => groups,
        ScaleKind::Float(_) => groups.div_ceil(2),
        ScaleKind::Nested => {
            let blocks = cols / SUPERBLOCK;
            blocks.div_ceil(2) + (blocks * (SUPERBLOCK / group)).div_ceil(4)
        }
    }
}

/// Writes the planes of a piece.
fn pack_piece(
    queue: &mut Queue,
    matrix: &Matrix,
    weight: &Weight,
    piece: &Piece,
) -> Result<(), BackendError> {
    let format = matrix.format();
    let cols = matrix.cols();
    let code_bytes = format.row_bytes(cols);
    let scale_bytes = format.row_scale_bytes(cols);
    let dense: Rearrange = &|bytes, to| to[..bytes.len()].copy_from_slice(bytes);
    let nested: Rearrange = &|bytes, to| nested_row(format, bytes, to);
    let is_nested = matches!(format, Format::Grouped { scale: ScaleKind::Nested, .. });
    let scales = if is_nested { nested } else { dense };
    for (plane, bytes, words, at, rearrange) in [
        (matrix.codes(), code_bytes, weight.code_words, 0, dense),
        (matrix.scales(), scale_bytes, weight.scale_words, piece.scales_at, scales),
        (matrix.offsets(), scale_bytes, weight.scale_words, piece.offsets_at, scales),
    ] {
        if plane.is_empty() || words == 0 {
            continue;
        }
        let together = (WORDS / (words * PANEL)).max(1);
        let panels = piece.channels.div_ceil(PANEL);
        for first in (0..panels).step_by(together) {
            let count = together.min(panels - first);
            let rows = piece.first + first * PANEL..;
            let last = (piece.first + piece.channels).min(rows.start + count * PANEL);
            let lines = plane[rows.start * bytes..last * bytes].chunks_exact(bytes);
            let packed = pack_panels(lines, [count, words], rearrange);
            let to = (at + first * words * PANEL) * 4;
            queue.write(&piece.buffer, to as u64, &packed)?;
            if packed.len() >= 4 * WORDS / 2 {
                queue.flush_writes()?;
            }
        }
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

/// Nested scales of a row: all halves, then all i8, each from a word on.
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
