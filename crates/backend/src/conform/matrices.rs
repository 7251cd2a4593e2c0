//! Random weight matrices in every canonical format.

use super::Rng;
use forerun_base::{
    Codes, DType, Format, Matrix, MatrixError, Nesting, SUPERBLOCK, ScaleKind, ScaleType,
    f32_to_bf16, f32_to_f16,
};

/// The integers of MXFP4, doubled: a table that a real format uses.
const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// An irregular table.
const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

const SCALES: [ScaleKind; 3] = [ScaleKind::F32, ScaleKind::F16, ScaleKind::BF16];

/// One format of each kind, for sweeps over sizes.
pub fn typical_formats() -> Vec<Format> {
    let grouped = |codes, group, scale, offset| Format::Grouped { codes, group, scale, offset };
    vec![
        Format::Dense(DType::F32),
        Format::Dense(DType::BF16),
        grouped(Codes::Uint { bits: 4 }, 64, ScaleKind::BF16, true),
        grouped(Codes::Uint { bits: 8 }, 32, ScaleKind::F16, true),
        grouped(Codes::Int { bits: 6 }, 16, ScaleKind::F32, false),
        grouped(Codes::Table { values: FP4 }, 32, ScaleKind::F32, false),
        grouped(Codes::E4m3, 128, ScaleKind::F32, false),
        grouped(Codes::Uint { bits: 4 }, 32, ScaleKind::Nested, true),
        grouped(Codes::Int { bits: 6 }, 16, ScaleKind::Nested, false),
    ]
}

/// Every format a kernel must know.
pub fn all_formats() -> Vec<Format> {
    let mut formats: Vec<Format> =
        [DType::F32, DType::F16, DType::BF16].into_iter().map(Format::Dense).collect();
    for scale in SCALES {
        for group in [32, 64, 128] {
            for bits in [2, 3, 4, 5, 6, 8] {
                let codes = Codes::Uint { bits };
                for offset in [true, false] {
                    formats.push(Format::Grouped { codes, group, scale, offset });
                }
            }
            formats.push(Format::Grouped { codes: Codes::E4m3, group, scale, offset: false });
        }
        for (bits, group) in [(2, 32), (3, 16), (4, 32), (5, 32), (6, 16), (8, 32)] {
            let codes = Codes::Int { bits };
            formats.push(Format::Grouped { codes, group, scale, offset: false });
        }
        for (values, group) in [(FP4, 16), (FP4, 32), (IQ4, 32), (IQ4, 64)] {
            let codes = Codes::Table { values };
            formats.push(Format::Grouped { codes, group, scale, offset: false });
        }
    }
    formats.extend(nested_formats());
    formats
}

/// Those with nested scales; their rows are whole superblocks, see [`fitting_columns`].
fn nested_formats() -> Vec<Format> {
    let mut formats = Vec::new();
    for group in [16, 32] {
        let mut push = |codes, offset| {
            formats.push(Format::Grouped { codes, group, scale: ScaleKind::Nested, offset });
        };
        for bits in [2, 3, 4, 5, 6, 8] {
            push(Codes::Uint { bits }, true);
            push(Codes::Int { bits }, false);
        }
        push(Codes::Uint { bits: 4 }, false);
        push(Codes::Table { values: IQ4 }, false);
    }
    let (codes, scale) = (Codes::Uint { bits: 8 }, ScaleKind::Nested);
    formats.extend([64, 256].map(|group| Format::Grouped { codes, group, scale, offset: true }));
    formats
}

/// The least number of columns from `wanted` on that a format can have.
pub fn fitting_columns(format: Format, wanted: usize) -> usize {
    match format {
        Format::Grouped { scale: ScaleKind::Nested, .. } => wanted.next_multiple_of(SUPERBLOCK),
        _ => wanted,
    }
}

/// A name that tells all formats apart.
pub(super) fn format_name(format: Format) -> String {
    match format {
        Format::Dense(_) => format.name(),
        Format::Grouped { codes, scale, offset, .. } => {
            let table = if codes == (Codes::Table { values: IQ4 }) { ", uneven table" } else { "" };
            let offset = if offset { " + offset" } else { "" };
            let scale = match scale {
                ScaleKind::Float(float) => format!("{float:?}"),
                ScaleKind::Nested => "nested".into(),
            };
            format!("{} {scale} scales{offset}{table}", format.name())
        }
    }
}

/// A matrix with entries of about ±1.
pub fn random_matrix(
    rng: &mut Rng,
    [rows, cols]: [usize; 2],
    format: Format,
) -> Result<Matrix, MatrixError> {
    let empty = || Vec::new().into();
    match format {
        Format::Dense(dtype) => {
            let plane = narrow(rng.values(rows * cols), dense_scale(dtype));
            Matrix::new([rows, cols], format, [plane.into(), empty(), empty()])
        }
        Format::Grouped { codes, group, scale, offset } => {
            let bytes = rows * format.row_bytes(cols);
            let plane: Vec<u8> = (0..bytes).map(|_| random_code_byte(rng, codes)).collect();
            let spread = 1.0 / largest_code(codes);
            let [scales, offsets] = match scale {
                ScaleKind::Float(float) => {
                    let groups = rows * format.row_groups(cols);
                    let scales = (0..groups).map(|_| spread * (1.5 + 0.5 * rng.signed())).collect();
                    // Centred, so that sums stay small and errors show.
                    let offsets = (0..groups).map(|_| 0.2 * rng.signed() - 0.75).collect();
                    [scales, offsets].map(|numbers| narrow(numbers, float))
                }
                ScaleKind::Nested => {
                    let blocks = rows * cols / SUPERBLOCK;
                    let groups = Nesting::new(group).groups();
                    let signed = !matches!(codes, Codes::Uint { .. });
                    let scales = random_nested(rng, blocks, groups, 1.5 * spread, signed);
                    [scales, random_nested(rng, blocks, groups, -0.75, false)]
                }
            };
            let offsets = if offset { offsets } else { Vec::new() };
            Matrix::new([rows, cols], format, [plane.into(), scales.into(), offsets.into()])
        }
    }
}

/// Superblocks of numbers near `centre`; where `signed`, of every i8 with a half that leaves them below it.
fn random_nested(
    rng: &mut Rng,
    blocks: usize,
    groups: usize,
    centre: f32,
    signed: bool,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(blocks * (2 + groups));
    for _ in 0..blocks {
        let unit = if signed { 128.0 } else { 64.0 };
        let d = centre / unit * (1.0 + 0.1 * rng.signed());
        out.extend(f32_to_f16(d).to_le_bytes());
        out.extend(
            (0..groups).map(|_| {
                if signed { rng.bits() as u8 } else { (64.0 + 15.0 * rng.signed()) as u8 }
            }),
        );
    }
    out
}

fn dense_scale(dtype: DType) -> ScaleType {
    match dtype {
        DType::F16 => ScaleType::F16,
        DType::BF16 => ScaleType::BF16,
        _ => ScaleType::F32,
    }
}

/// Random bits; padding bits at the end of a row stay random, since no kernel may look at them.
fn random_code_byte(rng: &mut Rng, codes: Codes) -> u8 {
    let byte = rng.bits() as u8;
    let not_a_number = codes == Codes::E4m3 && byte & 0x7f == 0x7f;
    if not_a_number { byte & 0xf7 } else { byte }
}

fn largest_code(codes: Codes) -> f32 {
    match codes {
        Codes::Uint { bits } => ((1u32 << bits) - 1) as f32,
        Codes::Int { bits } => (1u32 << (bits - 1)) as f32,
        Codes::Table { values } => {
            values.iter().map(|v| f32::from(v.unsigned_abs())).fold(1.0, f32::max)
        }
        // Most codes are far below the largest, 448.
        Codes::E4m3 => 100.0,
    }
}

fn narrow(values: Vec<f32>, to: ScaleType) -> Vec<u8> {
    match to {
        ScaleType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        ScaleType::F16 => values.iter().flat_map(|&v| f32_to_f16(v).to_le_bytes()).collect(),
        ScaleType::BF16 => values.iter().flat_map(|&v| f32_to_bf16(v).to_le_bytes()).collect(),
    }
}
