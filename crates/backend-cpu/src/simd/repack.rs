//! The canonical planes of a matrix into panels of sixteen channels. See [`super::tiled`] for the layout.

use super::Scratch;
use super::crew::{Crew, piece};
use super::isa::{Isa, LANES, Task};
use super::tiled::{Lanes, STEP, VECTOR, planes};
use crate::lines::{Line, Lines};
use crate::pool::Shared;
use forerun_base::Matrix;

/// Panels that a task makes.
const PANELS: usize = 4;
/// Vectors that are filled together, so that they stay near while all channels pass by.
const NEAR: usize = 64;

/// `vectors` vectors of codes in all; as halves where `words`.
pub(super) fn codes(crew: &mut Crew, matrix: &Matrix, vectors: usize, words: bool) -> Lines {
    let panels = matrix.rows().div_ceil(LANES);
    let mut codes = Lines::new(vectors);
    let pieces = panels.div_ceil(PANELS);
    let each = vectors.checked_div(panels).unwrap_or(0);
    let out = Shared::new(codes.all_mut());
    crew.run(pieces, &Repack { matrix, each, panels, pieces, words, out });
    codes
}

/// `[row]` numbers to `[panel]`, where channels take turns.
pub(super) fn scales(crew: &mut Crew, from: &[u8], rows: usize, lanes: Lanes) -> Vec<u8> {
    let bytes = from.len().checked_div(rows).unwrap_or(0);
    let panels = rows.div_ceil(LANES);
    let mut to = vec![0; panels * LANES * bytes];
    if bytes > 0 {
        let (pieces, out) = (panels.div_ceil(PANELS), Shared::new(&mut to));
        crew.run(pieces, &Interleave { from, bytes, lanes, panels, pieces, out });
    }
    to
}

struct Interleave<'a> {
    from: &'a [u8],
    /// Bytes of a row.
    bytes: usize,
    lanes: Lanes,
    panels: usize,
    pieces: usize,
    out: Shared<'a, u8>,
}

impl Task for Interleave<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let (each, size, turn) = (LANES * self.bytes, self.lanes.size, self.lanes.turn());
        for panel in piece(self.panels, self.pieces, 1, index) {
            let rows = self.from[panel * each..].chunks_exact(self.bytes).take(LANES);
            // SAFETY: a panel belongs to one task.
            let out = unsafe { self.out.part(panel * each, each) };
            for (channel, row) in rows.enumerate() {
                for (from, to) in row.chunks_exact(turn).zip(out.chunks_exact_mut(LANES * turn)) {
                    to[channel * size..][..size].copy_from_slice(&from[..size]);
                    let lines = to.chunks_exact_mut(LANES).zip(from).skip(size);
                    lines.for_each(|(to, &byte)| to[channel] = byte);
                }
            }
        }
    }
}

struct Repack<'a> {
    matrix: &'a Matrix,
    /// Vectors of a panel.
    each: usize,
    panels: usize,
    pieces: usize,
    words: bool,
    out: Shared<'a, Line>,
}

impl Task for Repack<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let format = self.matrix.format();
        let row_bytes = format.row_bytes(self.matrix.cols());
        for panel in piece(self.panels, self.pieces, 1, index) {
            let first = panel * LANES;
            let channels = LANES.min(self.matrix.rows() - first);
            let rows = &self.matrix.codes()[first * row_bytes..(first + channels) * row_bytes];
            let rows = rows.chunks_exact(row_bytes.max(1));
            // SAFETY: a panel belongs to one task.
            let out = as_bytes(unsafe { self.out.part(panel * self.each, self.each) });
            match (planes(format), self.words) {
                ([16, _], _) | ([_, 0], false) => turned(rows, out),
                ([_, 0], true) => halves(rows, out),
                ([2, _], _) => split::<2, 1>(rows, out),
                ([_, 1], _) => split::<4, 1>(rows, out),
                _ => split::<4, 2>(rows, out),
            }
        }
    }
}

/// Lines as vectors of bytes.
fn as_bytes(lines: &mut [Line]) -> &mut [[u8; VECTOR]] {
    const { assert!(size_of::<Line>() == VECTOR) };
    // SAFETY: a line is 64 bytes without padding, any of which may be anything; the borrow goes on.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len()) }
}

/// Four-byte words of a row become lanes of vectors.
fn turned<'a>(rows: impl Iterator<Item = &'a [u8]> + Clone, out: &mut [[u8; VECTOR]]) {
    for (block, out) in out.chunks_mut(NEAR).enumerate() {
        for (channel, row) in rows.clone().enumerate() {
            let row = row.get(block * NEAR * 4..).unwrap_or(&[]);
            let (words, rest) = row.as_chunks::<4>();
            for (to, word) in out.iter_mut().zip(words) {
                to[4 * channel..4 * channel + 4].copy_from_slice(word);
            }
            if let Some(to) = out.get_mut(words.len()) {
                to[4 * channel..4 * channel + rest.len()].copy_from_slice(rest);
            }
        }
    }
}

/// Codes of a byte as halves: two lines of sixteen pairs in a vector.
fn halves<'a>(rows: impl Iterator<Item = &'a [u8]>, out: &mut [[u8; VECTOR]]) {
    for (channel, row) in rows.enumerate() {
        for (step, codes) in row.chunks(STEP).enumerate() {
            for (column, &code) in codes.iter().enumerate() {
                let (line, word) = (column / 2, 2 * channel + column % 2);
                out[step * STEP / 4 + line / 2][2 * word + line % 2] = code;
            }
        }
    }
}

/// Codes of `LOW + HIGH` bits in two planes.
///
/// The columns whose low bits fill a word of the first plane lie in less than eight bytes of a row: they are
/// taken at once, and the fields of each plane pushed together inside them.
fn split<'a, const LOW: usize, const HIGH: usize>(
    rows: impl Iterator<Item = &'a [u8]> + Clone,
    out: &mut [[u8; VECTOR]],
) {
    let bits = LOW + HIGH;
    // Words of a chunk, and how many of them have their high bits in one word.
    let (words, shared) = (LOW, LOW / HIGH);
    for (near, out) in out.chunks_mut(NEAR / bits * bits).enumerate() {
        for (channel, row) in rows.clone().enumerate() {
            let row = row.get(near * (NEAR / bits) * bits * 4..).unwrap_or(&[]);
            let channel = 4 * channel..4 * channel + 4;
            for (chunk, out) in out.chunks_exact_mut(bits).enumerate() {
                let mut high = 0;
                for word in 0..words {
                    let codes = load(row, (chunk * words + word) * bits * 4 / LOW);
                    let low = fields::<LOW, LOW, HIGH>(codes);
                    out[word][channel.clone()].copy_from_slice(&low.to_le_bytes());
                    let above = fields::<HIGH, LOW, HIGH>(codes >> LOW);
                    high |= above << (word % shared * (8 / shared));
                    if word % shared == shared - 1 {
                        let to = &mut out[LOW + word / shared][channel.clone()];
                        to.copy_from_slice(&high.to_le_bytes());
                        high = 0;
                    }
                }
            }
        }
    }
}

/// Eight bytes of a row from `at` on, zeros past its end.
#[inline(always)]
fn load(row: &[u8], at: usize) -> u64 {
    let rest = row.get(at..).unwrap_or(&[]);
    let bytes = rest.first_chunk().copied().unwrap_or_else(|| {
        let mut padded = [0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        padded
    });
    u64::from_le_bytes(bytes)
}

/// The low `WIDTH` bits of the codes in a stream, in four bytes of `8 / LOW` fields each.
#[inline(always)]
fn fields<const WIDTH: usize, const LOW: usize, const HIGH: usize>(codes: u64) -> u32 {
    let (bits, each) = const { (LOW + HIGH, 8 / LOW) };
    let kept = codes & const { every(LOW + HIGH, 0, 1, WIDTH) };
    // Fields to neighbours inside a byte.
    let mut pushed = push(kept, const { odd(LOW + HIGH) }, bits - WIDTH);
    if each > 2 {
        pushed = push(pushed, const { odd(2 * (LOW + HIGH)) }, 2 * (bits - WIDTH));
    }
    // Bytes to neighbours.
    let gap = each * bits - 8;
    let pairs = push(pushed, const { odd(8 / LOW * (LOW + HIGH)) }, gap);
    push(pairs, const { odd(16 / LOW * (LOW + HIGH)) }, 2 * gap) as u32
}

/// Moves the bits of `mask` down.
#[inline(always)]
fn push(word: u64, mask: u64, by: usize) -> u64 {
    (word & !mask) | ((word & mask) >> by)
}

/// Every second stretch of `stride` bits, without the first.
const fn odd(stride: usize) -> u64 {
    every(stride, 1, 2, stride)
}

/// The first `width` bits of every `step`th stretch of `stride` bits, from stretch `first` on.
const fn every(stride: usize, first: usize, step: usize, width: usize) -> u64 {
    let (mut mask, mut at) = (0, first * stride);
    while at < 64 {
        mask |= ((1 << width) - 1) << at;
        at += step * stride;
    }
    mask
}
