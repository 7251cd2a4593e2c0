//! Formats by name.

use forerun_base::{Codes, DType, Format, ScaleKind};

/// The formats that are measured.
pub(crate) fn formats() -> Vec<(&'static str, Format)> {
    let grouped = |codes, group, scale, offset| Format::Grouped { codes, group, scale, offset };
    vec![
        ("bf16", Format::Dense(DType::BF16)),
        ("fp8", grouped(Codes::E4m3, 128, ScaleKind::F32, false)),
        ("fp8-bf16", grouped(Codes::E4m3, 128, ScaleKind::BF16, false)),
        ("i8", grouped(Codes::Int { bits: 8 }, 64, ScaleKind::BF16, false)),
        ("u4", grouped(Codes::Uint { bits: 4 }, 64, ScaleKind::BF16, true)),
        ("i4", grouped(Codes::Int { bits: 4 }, 64, ScaleKind::BF16, false)),
        ("u4-nested", grouped(Codes::Uint { bits: 4 }, 32, ScaleKind::Nested, true)),
        ("i6-nested", grouped(Codes::Int { bits: 6 }, 16, ScaleKind::Nested, false)),
        ("f16", Format::Dense(DType::F16)),
        ("f32", Format::Dense(DType::F32)),
    ]
}
