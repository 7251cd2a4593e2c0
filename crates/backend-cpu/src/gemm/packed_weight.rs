//! A weight in the layout of the integer and bf16 kernels: packed once at upload, in place of the canonical matrix.
//!
//! # Layout
//! A panel is sixteen rows of the matrix (output channels), the last one padded with zeros. Channel `n` is the 32-bit
//! lane `n` of every vector of codes; columns past the end are zeros. Scales and offsets are `[panel][group][channel]`
//! in their stored type; the nested ones of K-quants are `[panel][superblock]`: a line of sixteen f16 `d`, then a line
//! of sixteen i8 sub-scales for each group.
//!
//! Integer codes come in chunks of 32 columns: eight vectors of sixteen channels by four columns, stored in one or two
//! bit planes. A plane of `b` bits packs `8 / b` of the eight vectors into one, the first in the lowest bits of every
//! byte; the first plane has the low bits of a code (2, 4 or 8), the second what is left:
//!
//! ```text
//! 5-bit codes, one chunk (32 columns × 16 channels) = 5 vectors of 64 bytes
//!
//! plane 0, 4 bits   ┌ v0 | v1 ┐┌ v2 | v3 ┐┌ v4 | v5 ┐┌ v6 | v7 ┐   low nibble | high nibble of each byte
//! plane 1, 1 bit    ┌ v0 v1 v2 v3 v4 v5 v6 v7 ┐                  bit i of each byte: code bit 4 of vector i
//! ```
//!
//! The 32-bit words of the canonical row become lanes unchanged (a transposition of words), which decides the four
//! columns of each vector: with `e = 8 / b` codes in a byte, vector `i` takes from word `i / e` the columns whose codes
//! lie `i mod e` fields from the bottom of a byte ([`code_place`]).
//!
//! bf16 and FP8 come in steps of 32 columns: sixteen lines of 32 bf16, element `j` of line `r` belonging to channel `j
//! / 2` and column `2r + j mod 2`, which is how an AMX tile takes pairs of bf16. FP8 codes hold two lines in a vector.

use super::amx::{self, Amx};
use super::int8::{self, Int8Gemm, code_place};
use super::pack_weight;
use super::pack_weight::{PackTarget, PanelPlanes};
use super::product::{GemmInput, Product};
use crate::huge_page_buf::HugePageBuf;
use crate::simd::Scratch;
use crate::simd::elementwise::FusedNorm;
use crate::simd::exec_ctx::ExecCtx;
use crate::simd::isa::{Isa, LANES, Task};
use forerun_base::{
    Codes, DType, Format, MatrixParts, Nesting, ScaleKind, ScaleType, bf16_to_f32, e4m3_to_f32,
};
use std::array::from_fn;

/// Columns of a step of bf16 or of a chunk of codes.
pub(crate) const STEP: usize = 32;
/// Bytes of a vector.
pub(crate) const VECTOR: usize = 64;
/// A dense table this much taller than wide is read row by row (embeddings, heads over chosen clusters), so its rows
/// stay contiguous.
const TALL: usize = 512;

/// How the scales of sixteen channels are interleaved: a line of sixteen numbers of `size` bytes, then `bytes` lines of
/// sixteen bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interleaving {
    pub(crate) size: usize,
    pub(crate) bytes: usize,
}

impl Interleaving {
    /// For the scales and offsets of a format, where it has some.
    fn of_scales(format: Format) -> Self {
        match format {
            Format::Grouped { scale: ScaleKind::Float(float), .. } => {
                Self { size: float.size(), bytes: 0 }
            }
            Format::Grouped { group, scale: ScaleKind::Nested, .. } => {
                Self { size: ScaleType::F16.size(), bytes: Nesting::new(group).groups() }
            }
            Format::Dense(_) => Self { size: 1, bytes: 0 },
        }
    }

    /// Bytes of a channel in each repetition of the pattern.
    pub(crate) fn stride(self) -> usize {
        self.size + self.bytes
    }
}

/// The kernels that multiply a weight.
#[derive(Clone, Copy, Debug)]
enum Multiplier {
    Int8(Int8Gemm, int8::PackLayout),
    Bf16(Amx),
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct PackedWeight {
    rows: usize,
    cols: usize,
    format: Format,
    by: Multiplier,
    codes: HugePageBuf,
    scales: Vec<u8>,
    offsets: Vec<u8>,
    /// Vectors of codes, and bytes of scales and offsets, of a panel. Kept, since they are needed for every panel and
    /// take divisions.
    panel: [usize; 3],
}

/// The layout that a weight's kernels want activations in. Weights with equal layouts share packed rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActivationLayout {
    Int8(int8::PackLayout),
    Bf16,
}

/// Activations packed in such a layout.
#[derive(Clone, Copy)]
pub(crate) enum PackedRows<'a> {
    Int8(int8::PackedLimbs<'a>),
    Bf16(amx::PackedBf16<'a>),
}

impl<'a> PackedRows<'a> {
    /// As limbs, if that is what these are and in this layout.
    pub(crate) fn limbs(self, layout: int8::PackLayout) -> Option<int8::PackedLimbs<'a>> {
        match self {
            Self::Int8(packed) => (packed.layout() == layout).then_some(packed),
            Self::Bf16(_) => None,
        }
    }

    /// As bf16 parts, if that is what these are.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn bf16(self) -> Option<amx::PackedBf16<'a>> {
        match self {
            Self::Bf16(packed) => Some(packed),
            Self::Int8(_) => None,
        }
    }
}

/// Packs activations.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(clippy::large_enum_variant, reason = "nothing has the small one")
)]
pub(crate) enum PackRowsTask<'a> {
    Int8(int8::PackLimbsTask<'a>),
    Bf16(amx::PackBf16Task<'a>),
}

impl<'a> PackRowsTask<'a> {
    /// The same, of rows that its tasks norm first.
    pub(crate) fn normed(self, norm: FusedNorm<'a>) -> Self {
        match self {
            Self::Int8(task) => Self::Int8(task.normed(norm)),
            Self::Bf16(task) => Self::Bf16(task.normed(norm)),
        }
    }

    pub(crate) fn tasks(&self) -> usize {
        match self {
            Self::Int8(task) => task.tasks(),
            Self::Bf16(task) => task.tasks(),
        }
    }
}

impl Task for PackRowsTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        match self {
            Self::Int8(task) => task.run(simd, index, scratch),
            Self::Bf16(task) => task.run(simd, index, scratch),
        }
    }
}

/// Bits of a code in the first and in the second plane.
pub(crate) const fn planes(format: Format) -> [usize; 2] {
    match format {
        Format::Dense(_) => [16, 0],
        Format::Grouped { codes, .. } => match codes.bits() {
            2 => [2, 0],
            3 => [2, 1],
            4 => [4, 0],
            5 => [4, 1],
            6 => [4, 2],
            _ => [8, 0],
        },
    }
}

impl PackedWeight {
    /// Packs a matrix on all threads, a panel at a time, and releases what it was packed from; `None` where the context
    /// has no kernels for the packed form of its format.
    pub(crate) fn keep(ctx: &mut ExecCtx, matrix: &MatrixParts) -> Option<Self> {
        let (int8, amx) = (ctx.int8_gemm(), ctx.amx());
        let by = match matrix.format() {
            Format::Dense(DType::BF16) if matrix.rows() / TALL < matrix.cols() => {
                Multiplier::Bf16(amx?)
            }
            Format::Dense(_) => return None,
            Format::Grouped { codes: Codes::E4m3, .. } => Multiplier::Bf16(amx?),
            format @ Format::Grouped { .. } => {
                let int8 = int8?;
                Multiplier::Int8(int8, int8.layout(format, matrix.cols())?)
            }
        };
        let (rows, cols, format) = (matrix.rows(), matrix.cols(), matrix.format());
        let panels = rows.div_ceil(LANES);
        let empty = Self {
            rows,
            cols,
            format,
            by,
            codes: HugePageBuf::default(),
            scales: vec![],
            offsets: vec![],
            panel: [0; 3],
        };
        let [_, scales, offsets] = format.plane_bytes(cols).map(|each| each * LANES);
        let panel = [empty.vectors(), scales, offsets];
        let mut packed = Self {
            codes: HugePageBuf::new(panels * panel[0]),
            scales: vec![0; panels * scales],
            offsets: vec![0; panels * offsets],
            panel,
            ..empty
        };
        packed.fill(ctx, matrix);
        matrix.release(0..rows);
        Some(packed)
    }

    fn fill(&mut self, ctx: &mut ExecCtx, matrix: &MatrixParts) {
        let is_bf16 = self.is_bf16();
        let planes = PanelPlanes {
            codes: self.codes.all_mut(),
            scales: &mut self.scales,
            offsets: &mut self.offsets,
        };
        let lanes = Interleaving::of_scales(self.format);
        pack_weight::pack(ctx, matrix, PackTarget { planes, panel: self.panel, lanes, is_bf16 });
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Bytes in all planes.
    pub(crate) fn bytes(&self) -> usize {
        self.codes.len() * VECTOR + self.scales.len() + self.offsets.len()
    }

    /// Whether codes are laid out as bf16 rather than as bytes.
    fn is_bf16(&self) -> bool {
        matches!(self.by, Multiplier::Bf16(_))
    }

    /// Steps of 32 columns in a panel.
    pub(crate) fn steps(&self) -> usize {
        let step = match self.by {
            Multiplier::Int8(_, layout) => layout.unit().max(STEP),
            Multiplier::Bf16(_) => STEP,
        };
        self.cols.next_multiple_of(step) / STEP
    }

    /// Vectors of a panel.
    fn vectors(&self) -> usize {
        self.steps() * planes(self.format).iter().sum::<usize>()
    }

    /// Bytes of a step's codes.
    pub(crate) fn step_bytes(&self) -> usize {
        planes(self.format).iter().sum::<usize>() * VECTOR
    }

    /// A panel's codes, scales and offsets.
    pub(crate) fn panel(&self, panel: usize) -> [&[u8]; 3] {
        let [codes, scales, offsets] = self.panel.map(|each| panel * each..(panel + 1) * each);
        let codes = &self.codes.all()[codes];
        // SAFETY: `CacheLine` is 64 bytes of f32 without padding, so `codes.len()` lines are that many times 64
        // initialised bytes, borrowed as long as `self`.
        let codes =
            unsafe { std::slice::from_raw_parts(codes.as_ptr().cast(), codes.len() * VECTOR) };
        [codes, &self.scales[scales], &self.offsets[offsets]]
    }

    /// Bytes from one panel to the next in codes, scales and offsets.
    pub(crate) fn panel_bytes(&self) -> [usize; 3] {
        let [codes, scales, offsets] = self.panel;
        [codes * VECTOR, scales, offsets]
    }

    /// How channels are interleaved in codes, scales and offsets.
    pub(crate) fn lanes(&self) -> [Interleaving; 3] {
        let scales = Interleaving::of_scales(self.format);
        [Interleaving { size: 4, bytes: 0 }, scales, scales]
    }

    /// The layout that the kernels want activations in.
    pub(crate) fn layout(&self) -> ActivationLayout {
        match self.by {
            Multiplier::Int8(_, layout) => ActivationLayout::Int8(layout),
            Multiplier::Bf16(_) => ActivationLayout::Bf16,
        }
    }

    /// From this many rows per thread on, threads split rows rather than channels: each keeps its activations and
    /// results to itself, but reads all of the weight. Measured: where nothing is unpacked for many rows, one tile of
    /// rows is enough.
    pub(crate) fn row_split_threshold(&self) -> usize {
        match self.by {
            Multiplier::Int8(_, layout) if layout.amx_native() || !layout.has_amx() => {
                layout.max_tile_rows()
            }
            Multiplier::Int8(..) | Multiplier::Bf16(_) => 6 * LANES,
        }
    }

    /// Most rows of a tile of packed activations.
    pub(crate) fn max_tile_rows(&self) -> usize {
        match self.by {
            Multiplier::Int8(_, layout) => layout.max_tile_rows(),
            Multiplier::Bf16(_) => LANES,
        }
    }

    /// Reserves memory for all rows of `input` in `scratch`: the packed rows, and the tasks that write them.
    pub(crate) fn pack<'a>(
        &self,
        input: GemmInput<'a>,
        scratch: &'a mut Scratch,
    ) -> (PackedRows<'a>, PackRowsTask<'a>) {
        match self.by {
            Multiplier::Int8(int8, layout) => {
                let (packed, task) = int8.pack(input, layout, scratch);
                (PackedRows::Int8(packed), PackRowsTask::Int8(task))
            }
            Multiplier::Bf16(amx) => {
                let (packed, task) = amx.pack(input, self.cols, scratch);
                (PackedRows::Bf16(packed), PackRowsTask::Bf16(task))
            }
        }
    }

    /// f32 of scratch for a product of `rows` rows; `packs` where they are not packed yet.
    pub(crate) fn scratch_len(&self, rows: usize, packs: bool) -> usize {
        match self.by {
            Multiplier::Int8(int8, layout) => int8.scratch_len(self, layout, rows, packs),
            Multiplier::Bf16(amx) => amx.scratch_len(self, rows, packs),
        }
    }

    /// Computes and stores a product with this weight.
    ///
    /// # Safety
    /// As for [`Product::run`], with [`PackedWeight::scratch_len`] of scratch.
    pub(crate) unsafe fn product(product: &Product<'_, Self>, scratch: &mut [f32]) {
        // SAFETY: both functions have the contract of `Product::run`; the multiplier was chosen together with the
        // layout of the codes.
        unsafe {
            match product.matrix.by {
                Multiplier::Int8(int8, layout) => int8.product(product, layout, scratch),
                Multiplier::Bf16(amx) => amx.product(product, scratch),
            }
        }
    }

    /// Where the codes of a channel are in a step.
    fn fields(&self, channel: usize) -> CodeFields {
        let bits = planes(self.format);
        let at = |plane: usize, column: usize| {
            if bits[plane] == 0 {
                return (0, 0);
            }
            let (vector, code_place) = if self.is_bf16() {
                (column / 2, 2 * (2 * channel + column % 2))
            } else {
                let i = code_place(bits[0], column);
                (i / 4, 4 * channel + i % 4)
            };
            let each = if self.is_bf16() { 16 } else { 8 } / bits[plane];
            let from = plane * bits[0] * VECTOR + vector / each * VECTOR + code_place;
            (from, vector % each * bits[plane])
        };
        CodeFields {
            bits,
            is_bf16: self.is_bf16(),
            at: [0, 1].map(|plane| from_fn(|column| at(plane, column))),
        }
    }

    /// Decodes a row to the numbers of [`Matrix::decode_row`].
    pub(crate) fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "row or output outside the matrix");
        let (panel, channel) = (row / LANES, row % LANES);
        let [plane, scales, offsets] = self.panel(panel);
        let (fields, each) = (self.fields(channel), self.step_bytes());
        let mut codes = plane.chunks_exact(each).flat_map(|step| fields.all(step));
        let Format::Grouped { codes: kind, group, scale, offset } = self.format else {
            let numbers = out.iter_mut().zip(&mut codes);
            return numbers.for_each(|(out, code)| *out = bf16_to_f32(code));
        };
        for (i, out) in out.chunks_mut(group).enumerate() {
            let factor = number(scale, group, scales, i, channel);
            let shift = if offset { number(scale, group, offsets, i, channel) } else { 0.0 };
            for (out, code) in out.iter_mut().zip(&mut codes) {
                *out = factor * value(kind, code) + shift;
            }
        }
    }
}

/// First byte and lowest bit of each column's code in the planes of a step.
struct CodeFields {
    bits: [usize; 2],
    is_bf16: bool,
    at: [[(usize, usize); STEP]; 2],
}

impl CodeFields {
    /// The codes of a step, their planes joined.
    fn all<'a>(&'a self, step: &'a [u8]) -> impl Iterator<Item = u16> + 'a {
        let [low, high] = self.bits;
        let field = move |plane: usize, column: usize, bits: usize| {
            let (from, shift) = self.at[plane][column];
            let above = if self.is_bf16 { step[from + 1] } else { 0 };
            let all = u16::from_le_bytes([step[from], above]);
            all >> shift & (u32::from(u16::MAX) >> (16 - bits)) as u16
        };
        (0..STEP).map(move |column| {
            let code = field(0, column, low);
            if high == 0 { code } else { code | field(1, column, high) << low }
        })
    }
}

/// The scale or offset of a group of `columns` columns.
fn number(kind: ScaleKind, columns: usize, plane: &[u8], group: usize, channel: usize) -> f32 {
    match kind {
        ScaleKind::Float(float) => float.get(plane, group * LANES + channel),
        ScaleKind::Nested => {
            let [d, s] = Nesting::new(columns).place(group).map(|at| &plane[at * LANES..]);
            ScaleType::F16.get(d, channel) * f32::from(s[channel] as i8)
        }
    }
}

/// The value of a code, before scale and offset.
fn value(codes: Codes, code: u16) -> f32 {
    match codes {
        Codes::Uint { .. } => f32::from(code),
        Codes::Int { bits } => f32::from(code) - f32::from(1_u16 << (bits - 1)),
        Codes::Table { values } => f32::from(values[usize::from(code)]),
        Codes::E4m3 => e4m3_to_f32(code as u8),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
