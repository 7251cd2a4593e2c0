//! Formats by name.

use forerun_backend::conform::{Rng, random_matrix};
use forerun_base::{Codes, DType, Format, Matrix, MatrixError, ScaleKind};

/// The formats that are measured.
pub(crate) fn formats() -> Vec<(&'static str, Format)> {
    let grouped = |codes, group, scale, offset| Format::Grouped { codes, group, scale, offset };
    vec![
        ("bf16", Format::Dense(DType::BF16)),
        ("fp8", grouped(Codes::E4m3, 128, ScaleKind::F32, false)),
        ("fp8-rows", grouped(Codes::E4m3, 128, ScaleKind::F32, false)),
        ("i8", grouped(Codes::Int { bits: 8 }, 64, ScaleKind::BF16, false)),
        ("u4", grouped(Codes::Uint { bits: 4 }, 64, ScaleKind::BF16, true)),
        ("i4", grouped(Codes::Int { bits: 4 }, 64, ScaleKind::BF16, false)),
        ("u4-nested", grouped(Codes::Uint { bits: 4 }, 32, ScaleKind::Nested, true)),
        ("i6-nested", grouped(Codes::Int { bits: 6 }, 16, ScaleKind::Nested, false)),
        ("f16", Format::Dense(DType::F16)),
        ("f32", Format::Dense(DType::F32)),
    ]
}

/// A random matrix. That of `fp8` has a scale for each 128 × 128 block.
pub(crate) fn matrix(
    rng: &mut Rng,
    [rows, cols]: [usize; 2],
    (name, format): (&str, Format),
) -> Result<Matrix, MatrixError> {
    let matrix = random_matrix(rng, [rows, cols], format)?;
    if name != "fp8" {
        return Ok(matrix);
    }
    let groups = cols.div_ceil(128);
    let scales: Vec<u8> = (0..rows * groups)
        .flat_map(|i| (0.002 + 0.0001 * ((i % groups + i / groups / 128) as f32)).to_le_bytes())
        .collect();
    let none = matrix.offsets().clone();
    Matrix::new([rows, cols], format, [matrix.codes().clone(), scales.into(), none])
}
