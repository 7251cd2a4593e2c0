//! Packing on the host, and the decoding of packed bytes that tests hold the device's kernels to.

use super::layout::{
    BLOCK, CodeFamily, PackedFormat, PackedLayout, STEP, ScaleForm, TILE, packed_code, packed_value,
};
use super::scales::MatrixScales;
use forerun_base::{
    Codes, DType, Format, Matrix, MatrixParts, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16,
};
use std::ops::Range;

/// Byte and bit of the code of row `r` of a tile and column `k` of a block.
///
/// Lane `4g + t` of an `mma.m16n8k16` holds rows `g` and `g + 8` of columns `2t`, `2t + 1`, `2t + 8` and `2t + 9`, as
/// pairs. A lane's steps follow each other until they are 16 bytes.
pub(super) fn code_place(family: CodeFamily, r: usize, k: usize) -> (usize, usize) {
    let (step, k) = (k / STEP, k % STEP);
    let (lane, odd, pair) = (r % 8 * 4 + k % 8 / 2, k % 2, r / 8 + k / 8 * 2);
    match family {
        CodeFamily::Bf16 => (step * 512 + lane * 16 + pair * 4 + odd * 2, 0),
        CodeFamily::I8 | CodeFamily::E4m3 => {
            let word = (step / 2) * 512 + lane * 16 + step % 2 * 8 + pair / 2 * 4;
            (word + pair % 2 + odd * 2, 0)
        }
        CodeFamily::U4 => {
            let word = (step / 4) * 512 + lane * 16 + step % 4 * 4;
            // Pair 3 is rotated around the word's end.
            let bit = (3 + pair * 4 + odd * 16) % 32;
            (word, bit)
        }
    }
}

/// Codes of FP8 are kept so that a mask and a product make them bfloat16: of two codes in a half word the first has its
/// sign in bit 15 and the rest in bits 4 to 10, the second its sign in bit 11, four bits at 0 and three at 12.
fn e4m3_half(first: u8, second: u8) -> u16 {
    let (a, b) = (u16::from(first), u16::from(second));
    (a & 127) << 4 | (a >> 7) << 15 | (b & 15) | (b >> 7) << 11 | ((b >> 4) & 7) << 12
}

/// The two codes of such a half word.
fn e4m3_codes(half: u16) -> [u8; 2] {
    let a = (half >> 4 & 127) | (half >> 15) << 7;
    let b = (half & 15) | (half >> 12 & 7) << 4 | (half >> 11 & 1) << 7;
    [a as u8, b as u8]
}

/// Packs a range of tiles into room for as many. Rows are asked for a tile at a time.
pub fn pack(matrix: &MatrixParts, layout: &PackedLayout, tiles: Range<usize>, out: &mut [u8]) {
    let kind = layout.kind;
    let mut codes = vec![0; layout.cols];
    out.fill(0);
    for (tile, out) in tiles.zip(out.chunks_exact_mut(layout.tile_bytes().max(1))) {
        let rows = matrix.block(tile * TILE..layout.rows.min((tile + 1) * TILE));
        for r in 0..rows.rows() {
            match rows.format() {
                Format::Dense(dtype) => put_dense(&rows, dtype, r, layout, out),
                Format::Grouped { codes: format, .. } => {
                    row_codes(&rows, format, r, &mut codes);
                    put_codes(&codes, r, layout, out);
                }
            }
        }
        if let Some(scales) = MatrixScales::of(&rows) {
            put_scales(&scales, rows.rows(), layout, out);
        }
        if kind.family == CodeFamily::E4m3 {
            for block in out.chunks_exact_mut(kind.block_bytes()) {
                for half in block[..kind.code_bytes()].chunks_exact_mut(2) {
                    half.copy_from_slice(&e4m3_half(half[0], half[1]).to_le_bytes());
                }
            }
        }
    }
}

/// The packed codes of a row.
fn row_codes(matrix: &Matrix, format: Codes, row: usize, out: &mut [u8]) {
    let stride = matrix.format().row_bytes(matrix.cols());
    let line = &matrix.codes()[row * stride..(row + 1) * stride];
    let (bits, mask) = (format.bits(), (1_u32 << format.bits()) - 1);
    for (col, out) in out.iter_mut().enumerate() {
        let (first, shift) = (col * bits / 8, col * bits % 8);
        let high = line.get(first + 1).map_or(0, |&byte| u32::from(byte));
        let code = ((u32::from(line[first]) | high << 8) >> shift) & mask;
        *out = packed_code(format, code as u8);
    }
}

fn put_codes(codes: &[u8], r: usize, layout: &PackedLayout, out: &mut [u8]) {
    let kind = layout.kind;
    for (codes, block) in codes.chunks(BLOCK).zip(out.chunks_exact_mut(kind.block_bytes())) {
        for (k, &code) in codes.iter().enumerate() {
            let (byte, bit) = code_place(kind.family, r, k);
            if kind.family == CodeFamily::U4 {
                let word = &mut block[byte..byte + 4];
                let old = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                let new = old | u32::from(code).rotate_left(bit as u32);
                word.copy_from_slice(&new.to_le_bytes());
            } else {
                block[byte] = code;
            }
        }
    }
}

fn put_dense(matrix: &Matrix, dtype: DType, r: usize, layout: &PackedLayout, out: &mut [u8]) {
    let (cols, planes) = (layout.cols, layout.kind.planes);
    let size = dtype.size();
    let line = &matrix.codes()[r * cols * size..(r + 1) * cols * size];
    for (col, number) in line.chunks_exact(size).enumerate() {
        let mut rest = match *number {
            [a, b] if dtype == DType::BF16 => bf16_to_f32(u16::from_le_bytes([a, b])),
            [a, b] => f16_to_f32(u16::from_le_bytes([a, b])),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            _ => 0.0,
        };
        for plane in 0..planes {
            let term = f32_to_bf16(rest);
            rest -= bf16_to_f32(term);
            let (byte, _) = dense_place(layout, r, col, plane);
            out[byte..byte + 2].copy_from_slice(&term.to_le_bytes());
        }
    }
}

/// Byte and bit of a plane of a dense number in its tile.
fn dense_place(layout: &PackedLayout, r: usize, col: usize, plane: usize) -> (usize, usize) {
    let k = (col / STEP * layout.kind.planes + plane) * STEP + col % STEP;
    let (byte, bit) = code_place(CodeFamily::Bf16, r, k % BLOCK);
    (k / BLOCK * layout.kind.block_bytes() + byte, bit)
}

/// Byte of the scale (0) or offset (1) of row `r` and column `k` in a block.
fn scale_place(kind: PackedFormat, r: usize, k: usize, which: usize) -> usize {
    let each = if kind.scales == ScaleForm::F32 { 4 } else { 2 };
    let terms = 1 + usize::from(kind.offset);
    // A lane reads rows g and g + 8 at once: scale and offset of the one, then those of the other.
    let at = (r % 8 * 2 + r / 8) * terms + which;
    kind.code_bytes() + k / kind.group * kind.group_bytes() + at * each
}

/// Scales of the first rows of a tile.
fn put_scales(scales: &MatrixScales<'_>, rows: usize, layout: &PackedLayout, out: &mut [u8]) {
    let kind = layout.kind;
    for (b, block) in out.chunks_exact_mut(kind.block_bytes()).enumerate() {
        let cols = layout.cols.saturating_sub(b * BLOCK).min(BLOCK);
        if kind.scales == ScaleForm::Tile {
            let scale = scales.get(0, b * BLOCK)[0].to_le_bytes();
            block[kind.code_bytes()..].chunks_exact_mut(4).for_each(|c| c.copy_from_slice(&scale));
            continue;
        }
        for r in 0..rows {
            for k in (0..cols).step_by(kind.group) {
                let numbers = scales.get(r, b * BLOCK + k);
                for (which, &number) in numbers[..1 + usize::from(kind.offset)].iter().enumerate() {
                    let at = scale_place(kind, r, k, which);
                    match kind.scales {
                        ScaleForm::Bf16 => put(block, at, f32_to_bf16(number).to_le_bytes()),
                        ScaleForm::F16 => put(block, at, f32_to_f16(number).to_le_bytes()),
                        _ => put(block, at, number.to_le_bytes()),
                    }
                }
            }
        }
    }
}

fn put<const N: usize>(block: &mut [u8], at: usize, bytes: [u8; N]) {
    block[at..at + N].copy_from_slice(&bytes);
}

/// Element `[row, col]` of a packed weight.
pub fn decode(packed: &[u8], layout: &PackedLayout, row: usize, col: usize) -> f32 {
    let (kind, r) = (layout.kind, row % TILE);
    let tile = &packed[row / TILE * layout.tile_bytes()..][..layout.tile_bytes()];
    if kind.family == CodeFamily::Bf16 {
        let term = |plane| {
            let (byte, _) = dense_place(layout, r, col, plane);
            bf16_to_f32(u16::from_le_bytes([tile[byte], tile[byte + 1]]))
        };
        return (1..kind.planes).fold(term(0), |sum, plane| sum + term(plane));
    }
    let (block, k) = (&tile[col / BLOCK * kind.block_bytes()..], col % BLOCK);
    let (byte, bit) = code_place(kind.family, r, k);
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| block[at + i]));
    let code = match kind.family {
        CodeFamily::U4 => (word(byte).rotate_right(bit as u32) & 15) as u8,
        CodeFamily::E4m3 => {
            let half = byte & !1;
            e4m3_codes(u16::from_le_bytes([block[half], block[half + 1]]))[byte % 2]
        }
        _ => block[byte],
    };
    let number = |which| {
        let at = scale_place(kind, r, k, which);
        match kind.scales {
            ScaleForm::Tile => f32::from_bits(word(kind.code_bytes())),
            ScaleForm::F32 => f32::from_bits(word(at)),
            ScaleForm::F16 => f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]])),
            _ => bf16_to_f32(u16::from_le_bytes([block[at], block[at + 1]])),
        }
    };
    number(0) * packed_value(kind, code) + if kind.offset { number(1) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_backend::conform::{Rng, all_formats, fitting_columns, random_matrix};
    use forerun_base::ScaleKind;

    fn check(matrix: &Matrix) {
        let parts = MatrixParts::from(matrix.clone());
        let layout = PackedLayout::of(&parts);
        let split = layout.tiles() / 2;
        let mut packed = vec![1; layout.bytes()];
        let (first, second) = packed.split_at_mut(split * layout.tile_bytes());
        pack(&parts, &layout, 0..split, first);
        pack(&parts, &layout, split..layout.tiles(), second);
        let mut line = vec![0.0; matrix.cols()];
        for row in 0..matrix.rows() {
            matrix.decode_row(row, &mut line);
            for (col, expected) in line.iter().enumerate() {
                let found = decode(&packed, &layout, row, col);
                let name = matrix.format().name();
                assert_eq!(found.to_bits(), expected.to_bits(), "{name} [{row}, {col}]");
            }
        }
    }

    #[test]
    fn a_packed_weight_decodes_to_the_matrix_bit_for_bit() {
        let mut rng = Rng::named("pack 7");
        for format in all_formats() {
            for (rows, cols) in [(37, 200), (5, 16), (16, 129), (1, 1)] {
                let cols = fitting_columns(format, cols);
                check(&random_matrix(&mut rng, [rows, cols], format).unwrap());
            }
        }
    }

    #[test]
    fn groups_of_any_width_and_offsets_with_any_codes_are_kept() {
        let mut rng = Rng::named("pack 8");
        let table =
            Codes::Table { values: [-127, -8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 127] };
        for codes in [table, Codes::E4m3, Codes::Uint { bits: 8 }, Codes::Uint { bits: 3 }] {
            for group in [16, 48, 80, 256, 320, 1024] {
                for offset in [false, true] {
                    let scale = ScaleKind::BF16;
                    let format = Format::Grouped { codes, group, scale, offset };
                    check(&random_matrix(&mut rng, [18, 300], format).unwrap());
                }
            }
        }
    }

    #[test]
    fn scales_are_kept_as_narrow_as_they_are_exact() {
        let make = |numbers: [f32; 2], group: usize| {
            let rows = numbers.iter().flat_map(|_| [0_u8; 256]).collect::<Vec<u8>>();
            let scales = numbers.iter().flat_map(|v| [v.to_le_bytes(); 2]).flatten();
            let format =
                Format::Grouped { codes: Codes::E4m3, group, scale: ScaleKind::F32, offset: false };
            let planes = [rows.into(), scales.collect::<Vec<u8>>().into(), Vec::new().into()];
            PackedLayout::of(&Matrix::new([2, 256], format, planes).unwrap().into()).kind.scales
        };
        assert_eq!(make([0.3, 0.3], 128), ScaleForm::Tile);
        assert_eq!(make([0.5, 0.25], 128), ScaleForm::Bf16);
        assert_eq!(make([0.5, 1.0 + 1.0 / 1024.0], 128), ScaleForm::F16);
        assert_eq!(make([0.5, 0.3], 128), ScaleForm::F32);
    }
}
