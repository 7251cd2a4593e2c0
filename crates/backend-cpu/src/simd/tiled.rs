//! Weights in the order of the units that multiply bytes or halves: made once at upload, in place of the canonical matrix.
//!
//! # Layout
//! A panel is sixteen rows of the matrix (output channels), the last one filled up. Channel `n` is the 32-bit lane `n` of
//! every vector of its codes, and columns past the end are zeros. Scales and offsets are `[panel][group][channel]` in their stored type;
//! nested ones are `[panel][superblock]` of a line of halves, then a line of bytes for each group.
//!
//! Whole numbers come in chunks of 32 columns: eight vectors of sixteen channels by four bytes, stored in one or two planes. In a
//! plane of `b` bits, a vector holds `8 / b` of the eight, the first one in the lowest bits of every byte; the first
//! plane has the low bits of a code (2, 4 or 8), the second what is left. The columns of a vector are those that lie in its place when
//! four-byte words of the canonical row become lanes ([`place`]).
//!
//! Halves (bfloat16, FP8) come in steps of 32 columns: sixteen lines of 32 words, word `j` of line `r` belonging to channel
//! `j / 2` and column `2r + j mod 2`. FP8 codes hold two lines in a vector.

use super::Scratch;
use super::amx::{self, Amx};
use super::crew::Crew;
use super::digits::{self, Units, place};
use super::elementwise::Normed;
use super::isa::{Isa, LANES, Task};
use super::product::{Input, Product};
use super::repack;
use crate::lines::Lines;
use forerun_base::{
    Codes, DType, Format, Matrix, Nesting, ScaleKind, ScaleType, bf16_to_f32, e4m3_to_f32,
};
use std::array::from_fn;

/// Columns of a step or chunk.
pub(super) const STEP: usize = 32;
/// Bytes of a vector.
pub(super) const VECTOR: usize = 64;
/// A dense table this much taller than wide is read row by row (embeddings, heads of chosen clusters), so
/// its rows are better left in one piece.
const TALL: usize = 512;

/// How the numbers of sixteen channels take turns in a plane: a line of numbers of `size` bytes, then `bytes` lines of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes {
    pub(super) size: usize,
    pub(super) bytes: usize,
}

impl Lanes {
    /// For scales and offsets, where there are some.
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

    /// Bytes of a channel in each turn.
    pub(super) fn turn(self) -> usize {
        self.size + self.bytes
    }
}

/// Who multiplies a weight.
#[derive(Clone, Copy, Debug)]
enum Multiplier {
    Digits(Units, digits::Recipe),
    Halves(Amx),
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Tiled {
    rows: usize,
    cols: usize,
    format: Format,
    by: Multiplier,
    codes: Lines,
    scales: Vec<u8>,
    offsets: Vec<u8>,
    /// Vectors of codes, and bytes of scales and offsets, of a panel: asked for at every panel, and found by divisions.
    panel: [usize; 3],
}

/// How activations must look for a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    Digits(digits::Recipe),
    Halves,
}

/// Activations brought into the order of a weight.
#[derive(Clone, Copy)]
pub(super) enum Packed<'a> {
    Digits(digits::Packed<'a>),
    Halves(amx::Packed<'a>),
}

impl<'a> Packed<'a> {
    /// Digits by a recipe, if that is what these are.
    pub(super) fn digits(self, recipe: digits::Recipe) -> Option<digits::Packed<'a>> {
        match self {
            Self::Digits(packed) => (packed.recipe() == recipe).then_some(packed),
            Self::Halves(_) => None,
        }
    }

    /// Halves, if that is what these are.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn halves(self) -> Option<amx::Packed<'a>> {
        match self {
            Self::Halves(packed) => Some(packed),
            Self::Digits(_) => None,
        }
    }
}

/// What brings activations into that order.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(clippy::large_enum_variant, reason = "nothing has the small one")
)]
pub(super) enum PackTask<'a> {
    Digits(digits::PackTask<'a>),
    Halves(amx::PackTask<'a>),
}

impl<'a> PackTask<'a> {
    /// The same of rows that are normed first, by the same tasks.
    pub(super) fn normed(self, norm: Normed<'a>) -> Self {
        match self {
            Self::Digits(task) => Self::Digits(task.normed(norm)),
            Self::Halves(task) => Self::Halves(task.normed(norm)),
        }
    }

    pub(super) fn tasks(&self) -> usize {
        match self {
            Self::Digits(task) => task.tasks(),
            Self::Halves(task) => task.tasks(),
        }
    }
}

impl Task for PackTask<'_> {
    fn run<S: Isa>(&self, simd: S, index: usize, scratch: &mut Scratch) {
        match self {
            Self::Digits(task) => task.run(simd, index, scratch),
            Self::Halves(task) => task.run(simd, index, scratch),
        }
    }
}

/// Bits of a code in the first and in the second plane.
pub(super) const fn planes(format: Format) -> [usize; 2] {
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

impl Tiled {
    /// Repacks a matrix on all threads, where the crew has a unit for it; such a form is then faster.
    pub(crate) fn keep(crew: &mut Crew, matrix: &Matrix) -> Option<Self> {
        let (units, amx) = (crew.units(), crew.amx());
        let by = match matrix.format() {
            Format::Dense(DType::BF16) if matrix.rows() / TALL < matrix.cols() => {
                Multiplier::Halves(amx?)
            }
            Format::Dense(_) => return None,
            Format::Grouped { codes: Codes::E4m3, .. } => Multiplier::Halves(amx?),
            format @ Format::Grouped { .. } => {
                let units = units?;
                Multiplier::Digits(units, units.recipe(format, matrix.cols())?)
            }
        };
        let (rows, cols, format) = (matrix.rows(), matrix.cols(), matrix.format());
        let panels = rows.div_ceil(LANES);
        let empty = Self {
            rows,
            cols,
            format,
            by,
            codes: Lines::default(),
            scales: vec![],
            offsets: vec![],
            panel: [0; 3],
        };
        let codes = repack::codes(crew, matrix, panels * empty.vectors(), empty.words());
        let lanes = Lanes::of_scales(format);
        let [scales, offsets] = [matrix.scales(), matrix.offsets()]
            .map(|plane| repack::scales(crew, plane, rows, lanes));
        let bytes = |plane: &[u8]| plane.len().checked_div(panels).unwrap_or(0);
        let panel = [empty.vectors(), bytes(&scales), bytes(&offsets)];
        Some(Self { codes, scales, offsets, panel, ..empty })
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

    /// Whether codes are laid out as halves.
    fn words(&self) -> bool {
        matches!(self.by, Multiplier::Halves(_))
    }

    /// Steps of a panel.
    pub(super) fn steps(&self) -> usize {
        let step = match self.by {
            Multiplier::Digits(_, recipe) => recipe.unit().max(STEP),
            Multiplier::Halves(_) => STEP,
        };
        self.cols.next_multiple_of(step) / STEP
    }

    /// Vectors of a panel.
    fn vectors(&self) -> usize {
        self.steps() * planes(self.format).iter().sum::<usize>()
    }

    /// Bytes of a step's codes.
    pub(super) fn step_bytes(&self) -> usize {
        planes(self.format).iter().sum::<usize>() * VECTOR
    }

    /// A panel's codes, scales and offsets.
    pub(super) fn panel(&self, panel: usize) -> [&[u8]; 3] {
        let [codes, scales, offsets] = self.panel.map(|each| panel * each..(panel + 1) * each);
        let codes = &self.codes.all()[codes];
        // SAFETY: a line is 64 bytes without padding; the borrow of `self` covers them.
        let codes =
            unsafe { std::slice::from_raw_parts(codes.as_ptr().cast(), codes.len() * VECTOR) };
        [codes, &self.scales[scales], &self.offsets[offsets]]
    }

    /// Bytes from one panel to the next in codes, scales and offsets.
    pub(super) fn panel_bytes(&self) -> [usize; 3] {
        let [codes, scales, offsets] = self.panel;
        [codes * VECTOR, scales, offsets]
    }

    /// How channels take turns in codes, scales and offsets.
    pub(super) fn lanes(&self) -> [Lanes; 3] {
        let scales = Lanes::of_scales(self.format);
        [Lanes { size: 4, bytes: 0 }, scales, scales]
    }

    /// How activations must look.
    pub(super) fn recipe(&self) -> Recipe {
        match self.by {
            Multiplier::Digits(_, recipe) => Recipe::Digits(recipe),
            Multiplier::Halves(_) => Recipe::Halves,
        }
    }

    /// Rows of a thread from which on threads share rows rather than channels. Then each has its activations and results to itself, but
    /// reads all of the weight. Measured: where nothing is unpacked for many rows a tile of rows is enough.
    pub(super) fn rows_apart(&self) -> usize {
        match self.by {
            Multiplier::Digits(_, recipe) if recipe.as_tiles() || !recipe.has_tiles() => {
                recipe.tile_rows()
            }
            Multiplier::Digits(..) | Multiplier::Halves(_) => 6 * LANES,
        }
    }

    /// Most rows of a tile of packed rows.
    pub(super) fn tile_rows(&self) -> usize {
        match self.by {
            Multiplier::Digits(_, recipe) => recipe.tile_rows(),
            Multiplier::Halves(_) => LANES,
        }
    }

    /// Room for all rows of `input` in that order, in `room`, and what brings them there.
    pub(super) fn pack<'a>(
        &self,
        input: Input<'a>,
        room: &'a mut Scratch,
    ) -> (Packed<'a>, PackTask<'a>) {
        match self.by {
            Multiplier::Digits(units, recipe) => {
                let (packed, task) = units.pack(input, recipe, room);
                (Packed::Digits(packed), PackTask::Digits(task))
            }
            Multiplier::Halves(amx) => {
                let (packed, task) = amx.pack(input, self.cols, room);
                (Packed::Halves(packed), PackTask::Halves(task))
            }
        }
    }

    /// f32 of scratch for a product of `rows` rows; `packs` where they were not packed before.
    pub(super) fn scratch_len(&self, rows: usize, packs: bool) -> usize {
        match self.by {
            Multiplier::Digits(units, recipe) => units.scratch_len(self, recipe, rows, packs),
            Multiplier::Halves(amx) => amx.scratch_len(self, rows, packs),
        }
    }

    /// Computes and stores a product with this weight.
    ///
    /// # Safety
    /// As for [`Product::run`].
    pub(super) unsafe fn product(product: &Product<'_, Self>, scratch: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match product.matrix.by {
                Multiplier::Digits(units, recipe) => units.product(product, recipe, scratch),
                Multiplier::Halves(amx) => amx.product(product, scratch),
            }
        }
    }

    /// Where the codes of a channel lie in a step.
    fn fields(&self, channel: usize) -> Fields {
        let bits = planes(self.format);
        let at = |plane: usize, column: usize| {
            if bits[plane] == 0 {
                return (0, 0);
            }
            let (vector, place) = if self.words() {
                (column / 2, 2 * (2 * channel + column % 2))
            } else {
                let i = place(bits[0], column);
                (i / 4, 4 * channel + i % 4)
            };
            let each = if self.words() { 16 } else { 8 } / bits[plane];
            let from = plane * bits[0] * VECTOR + vector / each * VECTOR + place;
            (from, vector % each * bits[plane])
        };
        Fields {
            bits,
            words: self.words(),
            at: [0, 1].map(|plane| from_fn(|column| at(plane, column))),
        }
    }

    /// Decodes a row, to the numbers of [`Matrix::decode_row`].
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
            let factor = number(scale, group, scales, [i, channel]);
            let shift = if offset { number(scale, group, offsets, [i, channel]) } else { 0.0 };
            for (out, code) in out.iter_mut().zip(&mut codes) {
                *out = factor * value(kind, code) + shift;
            }
        }
    }
}

/// First byte and lowest bit of a channel's codes in the planes of a step.
struct Fields {
    bits: [usize; 2],
    words: bool,
    at: [[(usize, usize); STEP]; 2],
}

impl Fields {
    /// The codes of a step, their planes joined.
    fn all<'a>(&'a self, step: &'a [u8]) -> impl Iterator<Item = u16> + 'a {
        let [low, high] = self.bits;
        let field = move |plane: usize, column: usize, bits: usize| {
            let (from, shift) = self.at[plane][column];
            let above = if self.words { step[from + 1] } else { 0 };
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
fn number(kind: ScaleKind, columns: usize, plane: &[u8], [group, channel]: [usize; 2]) -> f32 {
    match kind {
        ScaleKind::Float(float) => float.get(plane, group * LANES + channel),
        ScaleKind::Nested => {
            let [d, s] = Nesting::new(columns).place(group).map(|at| &plane[at * LANES..]);
            ScaleType::F16.get(d, channel) * f32::from(s[channel] as i8)
        }
    }
}

/// What a code stands for, before scale and offset.
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
