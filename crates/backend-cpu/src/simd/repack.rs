//! The canonical planes of a matrix into panels of sixteen channels. See [`super::tiled`] for the layout.

use super::Scratch;
use super::crew::{Crew, piece};
use super::digits::place;
use super::isa::{Isa, LANES, Task};
use super::tiled::{STEP, VECTOR, planes};
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

/// `[rows][groups]` numbers to `[panel][group][channel]`.
pub(super) fn scales(from: &[u8], [rows, groups]: [usize; 2]) -> Vec<u8> {
    let size = from.len().checked_div(rows * groups).unwrap_or(0);
    let mut to = vec![0; rows.next_multiple_of(LANES) * groups * size];
    if size == 0 {
        return to;
    }
    for (row, line) in from.chunks_exact(groups * size).enumerate() {
        let first = row / LANES * groups * LANES + row % LANES;
        for (group, number) in line.chunks_exact(size).enumerate() {
            let at = (first + group * LANES) * size;
            to[at..at + size].copy_from_slice(number);
        }
    }
    to
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
                (bits, _) => split(rows, bits, out),
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

/// Codes of two planes.
fn split<'a>(
    rows: impl Iterator<Item = &'a [u8]>,
    [low, high]: [usize; 2],
    out: &mut [[u8; VECTOR]],
) {
    let bits = low + high;
    let places: [usize; STEP] = std::array::from_fn(|column| place(low, column));
    for (channel, row) in rows.enumerate() {
        for (chunk, from) in row.chunks(4 * bits).enumerate() {
            // Eight bytes more, so that a code may be read as a whole word.
            let mut bytes = [0_u8; VECTOR];
            bytes[..from.len()].copy_from_slice(from);
            let out = &mut out[chunk * bits..(chunk + 1) * bits];
            for (column, place) in places.iter().enumerate() {
                let at = column * bits;
                let pair = u16::from_le_bytes([bytes[at / 8], bytes[at / 8 + 1]]);
                let code = pair >> (at % 8) & ((1 << bits) - 1);
                let (vector, byte) = (place / 4, 4 * channel + place % 4);
                let (a, b) = (8 / low, 8 / high);
                out[vector / a][byte] |= ((code & ((1 << low) - 1)) << (vector % a * low)) as u8;
                out[low + vector / b][byte] |= ((code >> low) << (vector % b * high)) as u8;
            }
        }
    }
}
