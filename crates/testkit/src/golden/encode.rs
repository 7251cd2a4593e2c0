//! Encoders of the packed formats that `tests/goldens/pack.py` knows, row by row.
//!
//! Files made with them are compared with the digest of what mlx and ggml wrote.

use forerun_base::{f32_to_bf16, f32_to_f16};

/// How rows of a matrix are stored: one name of an encoding in `weights.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    F32,
    F16,
    Bf16,
    /// GGUF: 32 codes of 8 bits after an f16 scale.
    Q8,
    /// MLX's affine format.
    Affine {
        bits: usize,
        group: usize,
        part: AffinePart,
    },
}

/// The three tensors of an affine matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AffinePart {
    Codes,
    Scales,
    Biases,
}

impl Encoding {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut words = name.split(':');
        let kind = words.next()?;
        let encoding = match kind {
            "f32" => Self::F32,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "q8_0" => Self::Q8,
            "affine" => Self::Affine {
                bits: words.next()?.parse().ok()?,
                group: words.next()?.parse().ok()?,
                part: match words.next()? {
                    "codes" => AffinePart::Codes,
                    "scales" => AffinePart::Scales,
                    "biases" => AffinePart::Biases,
                    _ => return None,
                },
            },
            _ => return None,
        };
        words.next().is_none().then_some(encoding)
    }

    /// Appends a row as stored.
    pub(super) fn row(self, row: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend(row.iter().flat_map(|x| x.to_le_bytes())),
            Self::F16 => out.extend(row.iter().flat_map(|&x| f32_to_f16(x).to_le_bytes())),
            Self::Bf16 => out.extend(row.iter().flat_map(|&x| f32_to_bf16(x).to_le_bytes())),
            Self::Q8 => row.chunks_exact(32).for_each(|block| q8_0(block, out)),
            Self::Affine { bits, group, part } => {
                let mut packed = Packed::default();
                for values in row.chunks_exact(group) {
                    let (scale, bias) = affine(values, bits, &mut packed);
                    match part {
                        AffinePart::Codes => {}
                        AffinePart::Scales => out.extend(f32_to_bf16(scale).to_le_bytes()),
                        AffinePart::Biases => out.extend(f32_to_bf16(bias).to_le_bytes()),
                    }
                }
                if part == AffinePart::Codes {
                    out.append(&mut packed.bytes);
                }
            }
        }
    }
}

fn q8_0(block: &[f32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    out.extend(f32_to_f16(scale).to_le_bytes());
    out.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
}

/// Appends the codes of one group; its scale and bias.
fn affine(values: &[f32], bits: usize, packed: &mut Packed) -> (f32, f32) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let top = ((1_u32 << bits) - 1) as f32;
    // The edge of larger magnitude is met exactly: it becomes the bias, an integral number of steps from zero.
    let (edge, sign) = if low.abs() > high.abs() { (low, 1.0) } else { (high, -1.0) };
    let mut scale = sign * ((high - low) / top).max(1e-7);
    let steps = (edge / scale).round_ties_even();
    let mut bias = 0.0;
    if steps != 0.0 {
        (scale, bias) = (edge / steps, edge);
    }
    for x in values {
        let code = ((x - bias) / scale).round_ties_even().clamp(0.0, top);
        packed.push(code as u32, bits);
    }
    (scale, bias)
}

/// A little-endian stream of codes of a few bits.
#[derive(Default)]
struct Packed {
    bytes: Vec<u8>,
    pending: u32,
    filled: usize,
}

impl Packed {
    fn push(&mut self, code: u32, bits: usize) {
        self.pending |= code << self.filled;
        self.filled += bits;
        while self.filled >= 8 {
            self.bytes.push(self.pending as u8);
            self.pending >>= 8;
            self.filled -= 8;
        }
    }
}

/// `x` as an 8-bit float of 4 exponent and 3 mantissa bits without infinities, ties to even.
fn e4m3(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let x = x.abs();
    if x < 1.0 / 64.0 {
        return sign | (x * 512.0).round_ties_even() as u8;
    }
    let bits = x.to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    sign | (rounded - (120 << 3)) as u8
}

/// The codes of a matrix in square blocks of one scale each, and the scales, both row-major.
pub(super) fn fp8_blocks(matrix: &[f32], width: usize, block: usize) -> (Vec<u8>, Vec<f32>) {
    let (rows, columns) = (matrix.len() / width, width.div_ceil(block));
    let mut scales = vec![0.0_f32; rows.div_ceil(block) * columns];
    let of = |i: usize| i / width / block * columns + i % width / block;
    for (i, x) in matrix.iter().enumerate() {
        scales[of(i)] = scales[of(i)].max(x.abs() / 448.0);
    }
    let codes = matrix.iter().enumerate().map(|(i, x)| e4m3(x / scales[of(i)])).collect();
    (codes, scales)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_eight_bit_floats_are_those_of_the_format() {
        for (x, byte) in [
            (0.0, 0x00),
            (-0.0, 0x80),
            (1.0, 0x38),
            (-1.125, 0xb9),
            (448.0, 0x7e),
            (1.0 / 512.0, 0x01),
            (1.0 / 64.0, 0x08),
            // Halfway between two codes: the even one.
            (1.0625, 0x38),
            (1.1875, 0x3a),
        ] {
            assert_eq!(e4m3(x), byte, "{x}");
        }
    }

    #[test]
    fn unknown_encodings_are_refused() {
        assert_eq!(Encoding::parse("q8_0"), Some(Encoding::Q8));
        for name in ["q4_0", "affine:4:64", "affine:4:64:codes:more", "bf16:1", ""] {
            assert_eq!(Encoding::parse(name), None, "{name}");
        }
    }
}
