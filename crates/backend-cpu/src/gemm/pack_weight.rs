//! Packs the canonical planes of a matrix into panels of sixteen channels. See [`packed_weight`](super::packed_weight)
//! for the layout.

use super::packed_weight::{Interleaving, STEP, VECTOR, planes};
use crate::huge_page_buf::CacheLine;
use crate::pool::SharedSlice;
use crate::simd::Scratch;
use crate::simd::exec_ctx::{ExecCtx, part_of};
use crate::simd::isa::{Isa, LANES, Task};
use forerun_base::{Matrix, MatrixParts};

/// Panels of a task.
const PANELS: usize = 4;
/// Vectors that are filled together: 4 KiB stay in L1 while all sixteen channels are scattered into them.
const VECTORS_AT_ONCE: usize = 64;

/// The planes of a packed weight, all zeros.
pub(crate) struct PanelPlanes<'a> {
    pub(crate) codes: &'a mut [CacheLine],
    pub(crate) scales: &'a mut [u8],
    pub(crate) offsets: &'a mut [u8],
}

/// Where a matrix is packed to.
pub(crate) struct PackTarget<'a> {
    pub(crate) planes: PanelPlanes<'a>,
    /// Vectors of codes, and bytes of scales and offsets, of a panel.
    pub(crate) panel: [usize; 3],
    /// How scales are interleaved.
    pub(crate) lanes: Interleaving,
    /// Whether codes are in bf16 order.
    pub(crate) is_bf16: bool,
}

/// Packs all rows. A task asks for the rows of one panel at a time, so that rows which have to be made first, or lie in
/// several places, are staged for as many panels as there are threads.
pub(crate) fn pack(ctx: &mut ExecCtx, matrix: &MatrixParts, target: PackTarget<'_>) {
    let PackTarget { planes, panel, lanes, is_bf16 } = target;
    let panels = matrix.rows().div_ceil(LANES);
    let parts = panels.div_ceil(PANELS);
    let task = PackTask {
        matrix,
        panels,
        parts,
        panel,
        lanes,
        is_bf16,
        codes: SharedSlice::new(planes.codes),
        scales: [SharedSlice::new(planes.scales), SharedSlice::new(planes.offsets)],
    };
    ctx.run(parts, &task);
}

struct PackTask<'a> {
    matrix: &'a MatrixParts,
    panels: usize,
    parts: usize,
    panel: [usize; 3],
    lanes: Interleaving,
    is_bf16: bool,
    codes: SharedSlice<'a, CacheLine>,
    /// Scales and offsets.
    scales: [SharedSlice<'a, u8>; 2],
}

impl Task for PackTask<'_> {
    fn run<S: Isa>(&self, _simd: S, index: usize, _scratch: &mut Scratch) {
        let [vectors, scale_bytes, offset_bytes] = self.panel;
        for panel in part_of(self.panels, self.parts, 1, index) {
            let first = panel * LANES;
            let rows = self.matrix.block(first..self.matrix.rows().min(first + LANES));
            // SAFETY: `part_of` gives every panel to exactly one task, so no other reference covers it.
            let codes = as_bytes(unsafe { self.codes.part(panel * vectors, vectors) });
            pack_codes(&rows, self.is_bf16, codes);
            let planes = [rows.scales(), rows.offsets()].into_iter().zip(self.scales);
            for ((from, out), bytes) in planes.zip([scale_bytes, offset_bytes]) {
                // SAFETY: as above.
                let out = unsafe { out.part(panel * bytes, bytes) };
                self.interleave(from, bytes / LANES, out);
            }
        }
    }
}

impl PackTask<'_> {
    /// Scales `[channel][group]` of so many bytes to `[group][channel]`.
    fn interleave(&self, from: &[u8], row_bytes: usize, out: &mut [u8]) {
        let (size, stride) = (self.lanes.size, self.lanes.stride());
        for (channel, row) in from.chunks_exact(row_bytes.max(1)).enumerate() {
            for (from, to) in row.chunks_exact(stride).zip(out.chunks_exact_mut(LANES * stride)) {
                to[channel * size..][..size].copy_from_slice(&from[..size]);
                let lines = to.chunks_exact_mut(LANES).zip(from).skip(size);
                lines.for_each(|(to, &byte)| to[channel] = byte);
            }
        }
    }
}

/// The codes of up to sixteen rows as a panel.
fn pack_codes(rows: &Matrix, is_bf16: bool, out: &mut [[u8; VECTOR]]) {
    let format = rows.format();
    let lines = rows.codes().chunks_exact(format.row_bytes(rows.cols()).max(1));
    match (planes(format), is_bf16) {
        ([16, _], _) | ([_, 0], false) => transpose_words(lines, out),
        ([_, 0], true) => spread_e4m3(lines, out),
        ([2, _], _) => split::<2, 1>(lines, out),
        ([_, 1], _) => split::<4, 1>(lines, out),
        _ => split::<4, 2>(lines, out),
    }
}

/// Cache lines as vectors of bytes.
fn as_bytes(lines: &mut [CacheLine]) -> &mut [[u8; VECTOR]] {
    const { assert!(size_of::<CacheLine>() == VECTOR) };
    // SAFETY: a line is 64 bytes of f32 without padding and every bit pattern is an f32, so its bytes may be written
    // freely; the exclusive borrow carries over.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len()) }
}

/// Transposes 32-bit words: word `j` of a channel's row becomes lane `channel` of vector `j`.
fn transpose_words<'a>(rows: impl Iterator<Item = &'a [u8]> + Clone, out: &mut [[u8; VECTOR]]) {
    for (block, out) in out.chunks_mut(VECTORS_AT_ONCE).enumerate() {
        for (channel, row) in rows.clone().enumerate() {
            let row = row.get(block * VECTORS_AT_ONCE * 4..).unwrap_or(&[]);
            let (is_bf16, rest) = row.as_chunks::<4>();
            for (to, word) in out.iter_mut().zip(is_bf16) {
                to[4 * channel..4 * channel + 4].copy_from_slice(word);
            }
            if let Some(to) = out.get_mut(is_bf16.len()) {
                to[4 * channel..4 * channel + rest.len()].copy_from_slice(rest);
            }
        }
    }
}

/// FP8 codes in the order of bf16 lines: two lines of sixteen pairs in a vector.
fn spread_e4m3<'a>(rows: impl Iterator<Item = &'a [u8]>, out: &mut [[u8; VECTOR]]) {
    for (channel, row) in rows.enumerate() {
        for (step, codes) in row.chunks(STEP).enumerate() {
            for (column, &code) in codes.iter().enumerate() {
                let (line, word) = (column / 2, 2 * channel + column % 2);
                out[step * STEP / 4 + line / 2][2 * word + line % 2] = code;
            }
        }
    }
}

/// Splits codes of `LOW + HIGH` bits into two planes.
///
/// The columns whose low bits fill a word of the first plane lie in less than eight bytes of a row: they are loaded at
/// once, and the fields of each plane are compacted inside them, like `pext` but portable.
fn split<'a, const LOW: usize, const HIGH: usize>(
    rows: impl Iterator<Item = &'a [u8]> + Clone,
    out: &mut [[u8; VECTOR]],
) {
    let bits = LOW + HIGH;
    // Words of a chunk, and how many of them have their high bits in one word.
    let (words, shared) = (LOW, LOW / HIGH);
    for (near, out) in out.chunks_mut(VECTORS_AT_ONCE / bits * bits).enumerate() {
        for (channel, row) in rows.clone().enumerate() {
            let row = row.get(near * (VECTORS_AT_ONCE / bits) * bits * 4..).unwrap_or(&[]);
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
    // First fields move next to each other inside a byte,
    let mut pushed = push(kept, const { odd(LOW + HIGH) }, bits - WIDTH);
    if each > 2 {
        pushed = push(pushed, const { odd(2 * (LOW + HIGH)) }, 2 * (bits - WIDTH));
    }
    // then bytes next to each other.
    let gap = each * bits - 8;
    let pairs = push(pushed, const { odd(8 / LOW * (LOW + HIGH)) }, gap);
    push(pairs, const { odd(16 / LOW * (LOW + HIGH)) }, 2 * gap) as u32
}

/// Moves the bits of `mask` down.
#[inline(always)]
fn push(word: u64, mask: u64, by: usize) -> u64 {
    (word & !mask) | ((word & mask) >> by)
}

/// A mask of every second run of `stride` bits, without the first.
const fn odd(stride: usize) -> u64 {
    every(stride, 1, 2, stride)
}

/// A mask of the first `width` bits of every `step`th run of `stride` bits, from run `first` on.
const fn every(stride: usize, first: usize, step: usize, width: usize) -> u64 {
    let (mut mask, mut at) = (0, first * stride);
    while at < 64 {
        mask |= ((1 << width) - 1) << at;
        at += step * stride;
    }
    mask
}
