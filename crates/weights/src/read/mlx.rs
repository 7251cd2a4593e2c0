//! Weights packed by MLX: affine integers, and the mxfp4, mxfp8 and nvfp4 float codes.
//!
//! # Math
//! affine `w = scale · code + bias`; the others `w = scale · code`.
//!
//! # Layout
//! MLX's packed words are already the canonical bit stream, so codes, and the scales and
//! biases of affine, are used where they lie. Byte scales of the float modes are widened.
//!
//! # Numerics
//! E2M1 codes become twice their value (an integer) and the scale half of it. Both are
//! exact in bf16: E8M0 is a power of two down to 2⁻¹²⁸, e4m3 has four significant bits. Only a
//! `global_scale` rounds: it is multiplied into the scale in f32.
//!
//! Bits, group and mode follow from the shapes; the config must agree where it speaks.

use super::scaled::{self, RowScales};
use super::{RowFactors, Target, scale_type};
use crate::config::{Declared, QuantMode, Scheme};
use crate::{Checkpoint, Tensor, WeightsError};
use forerun_base::{
    Bytes, Codes, DType, Format, MatrixParts, ScaleKind, e4m3_to_f32, f32_to_bf16, find_first,
};

/// Twice the sixteen E2M1 values. Minus zero is zero.
pub(crate) const DOUBLED_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn read(
    checkpoint: &Checkpoint,
    target: Target<'_>,
    weight: &Tensor,
    scales: &Tensor,
) -> Result<MatrixParts, WeightsError> {
    let scheme = scheme(checkpoint, target, weight, scales)?;
    let part = |name: &str| format!("{}.{name}", target.path);
    let biases = part("biases");
    if scheme.mode == QuantMode::Affine {
        return affine(target, scheme, [weight, scales, &checkpoint.tensor(&biases)?]);
    }
    if checkpoint.contains(&biases) {
        return Err(weight.fault(format!("stored as {scheme}, which has no `{biases}`")));
    }
    let global_name = part("global_scale");
    let global = match checkpoint.contains(&global_name) {
        true if scheme.mode == QuantMode::Nvfp4 => Some(checkpoint.tensor(&global_name)?),
        true => return Err(weight.fault(format!("{scheme} has no `{global_name}`"))),
        false => None,
    };
    let (codes, factor) = match scheme.mode {
        QuantMode::Mxfp8 => (Codes::E4m3, 1.0),
        _ => (Codes::Table { values: DOUBLED_E2M1 }, 0.5),
    };
    let table = scale_values(scales, scheme.mode, factor)?;
    let (scale, of_row) = row_scales(target, scheme, scales, table, global)?;
    let format = Format::Grouped { codes, group: scheme.group, scale, offset: false };
    scaled::parts(target, weight, format, of_row)
}

/// How a weight is packed, as its shapes and the config say.
pub(super) fn scheme(
    checkpoint: &Checkpoint,
    target: Target<'_>,
    weight: &Tensor,
    scales: &Tensor,
) -> Result<Scheme, WeightsError> {
    let scheme = infer(target, weight, scales)?;
    check_config(checkpoint, target, weight, scheme)?;
    Ok(scheme)
}

/// The format of affine codes.
pub(super) fn affine_format(
    scheme: Scheme,
    scales: &Tensor,
    biases: &Tensor,
) -> Result<Format, WeightsError> {
    biases.check_shape(&scales.shape)?;
    let scale = ScaleKind::Float(scale_type(scales)?);
    if biases.dtype != scales.dtype {
        return Err(biases.fault(format!("{} beside scales of {}", biases.dtype, scales.dtype)));
    }
    let codes = Codes::Uint { bits: scheme.bits as u8 };
    Ok(Format::Grouped { codes, group: scheme.group, scale, offset: true })
}

fn affine(
    target: Target<'_>,
    scheme: Scheme,
    [weight, scales, biases]: [&Tensor; 3],
) -> Result<MatrixParts, WeightsError> {
    let format = affine_format(scheme, scales, biases)?;
    target.build(weight, format, [&weight.bytes, &scales.bytes, &biases.bytes].map(Bytes::clone))
}

/// The scheme that the stored shapes and types spell.
fn infer(target: Target<'_>, weight: &Tensor, scales: &Tensor) -> Result<Scheme, WeightsError> {
    if weight.dtype != DType::U32 {
        return Err(
            weight.fault(format!("{} beside `{}`; expected U32", weight.dtype, scales.name))
        );
    }
    let cols = target.cols();
    let words = last_axis(weight, target)?;
    let groups = last_axis(scales, target)?;
    let bits = exact_quotient(words.saturating_mul(32), cols).ok_or_else(|| {
        weight.fault(format!("{words} words in a row do not divide into {cols} columns"))
    })?;
    let group = exact_quotient(cols, groups).ok_or_else(|| {
        scales.fault(format!("{groups} scales in a row do not divide {cols} columns"))
    })?;
    let mode = match (scales.dtype, bits, group) {
        (DType::U8, 4, 16) => QuantMode::Nvfp4,
        (DType::U8, 8, 32) => QuantMode::Mxfp8,
        (DType::U8, ..) => QuantMode::Mxfp4,
        _ => QuantMode::Affine,
    };
    let scheme = Scheme { mode, bits, group };
    if !scheme.is_known() {
        return Err(weight.fault(format!(
            "shape {:?} with scales {:?} of {} for {cols} columns would be {scheme}, which MLX does not write",
            weight.shape, scales.shape, scales.dtype
        )));
    }
    Ok(scheme)
}

/// The last axis of a plane whose leading axes must be the target's.
fn last_axis(plane: &Tensor, target: Target<'_>) -> Result<usize, WeightsError> {
    match plane.shape.split_last() {
        Some((&last, lead)) if lead == target.lead() => Ok(last),
        _ => Err(plane.fault(format!(
            "has shape {:?}; expected {:?} and one axis along the {} columns",
            plane.shape,
            target.lead(),
            target.cols()
        ))),
    }
}

fn exact_quotient(dividend: usize, divisor: usize) -> Option<usize> {
    (divisor != 0 && dividend.is_multiple_of(divisor)).then(|| dividend / divisor)
}

/// Shapes alone can be read in more than one way, so what the config says must be the same.
/// Its default binds neither sidecars, which it does not know, nor expert stacks.
fn check_config(
    checkpoint: &Checkpoint,
    target: Target<'_>,
    weight: &Tensor,
    found: Scheme,
) -> Result<(), WeightsError> {
    let sidecar = checkpoint.file_of(&weight.name).is_some_and(|file| file.is_sidecar());
    let stack = target.lead().len() > 1;
    match checkpoint.parsed_config().declared(target.path) {
        Declared::Plain => Err(weight.fault(format!(
            "config.json says `{}` is not quantised, but it is stored as {found}",
            target.path
        ))),
        Declared::Default(_) if sidecar || stack => Ok(()),
        Declared::Listed(said) | Declared::Default(said) if said != found => {
            Err(weight.fault(format!("config.json says {said}, but the shapes say {found}")))
        }
        _ => Ok(()),
    }
}

/// What byte scales stand for, times `factor`, a power of two.
fn scale_values(scales: &Tensor, mode: QuantMode, factor: f32) -> Result<[f32; 256], WeightsError> {
    let decode = if mode == QuantMode::Nvfp4 { e4m3_to_f32 } else { e8m0_to_f32 };
    let mut table = [0.0; 256];
    for (code, value) in (0..=u8::MAX).zip(&mut table) {
        *value = decode(code) * factor;
    }
    let bad = |share: &[u8]| share.iter().position(|&code| table[usize::from(code)].is_nan());
    if find_first(&scales.bytes, 1, bad).is_some() {
        return Err(scales.fault("holds scales that are not numbers"));
    }
    Ok(table)
}

/// The scales of a row as bf16, or, where there is a `global_scale`, times that and as f32.
fn row_scales(
    target: Target<'_>,
    scheme: Scheme,
    scales: &Tensor,
    table: [f32; 256],
    global: Option<Tensor>,
) -> Result<(ScaleKind, RowScales), WeightsError> {
    let (bytes, groups) = (scales.bytes.clone(), target.cols() / scheme.group);
    let values = move |row: usize| {
        let line = bytes.slice(row * groups..(row + 1) * groups).expect("shapes were compared");
        (0..groups).map(move |i| table[usize::from(line[i])])
    };
    let Some(global) = global else {
        let of_row = move |row, out: &mut Vec<u8>| {
            out.extend(values(row).flat_map(|v| f32_to_bf16(v).to_le_bytes()));
        };
        return Ok((ScaleKind::BF16, Box::new(of_row)));
    };
    let Some(factors) = RowFactors::read(&global, target)? else {
        return Err(global.fault(format!(
            "shape {:?} scales neither the tensor nor the leading axes {:?}",
            global.shape,
            target.lead()
        )));
    };
    let of_row = move |row, out: &mut Vec<u8>| {
        out.extend(values(row).flat_map(|v| (v * factors.of_row(row)).to_le_bytes()));
    };
    Ok((ScaleKind::F32, Box::new(of_row)))
}

/// Decodes E8M0, a bare exponent: `2^(code - 127)`; 255 is NaN.
fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_base::bf16_to_f32;

    #[test]
    fn halved_byte_scales_are_exact_in_bf16() {
        for code in 0..=254 {
            for factor in [0.5, 1.0] {
                let value = e8m0_to_f32(code) * factor;
                assert!(value > 0.0);
                assert_eq!(bf16_to_f32(f32_to_bf16(value)), value, "E8M0 {code}");
                let value = e4m3_to_f32(code) * factor;
                if !value.is_nan() {
                    assert_eq!(bf16_to_f32(f32_to_bf16(value)), value, "e4m3 {code}");
                }
            }
        }
        assert_eq!(e8m0_to_f32(0), 2f32.powi(-127));
        assert_eq!(e8m0_to_f32(127), 1.0);
        assert_eq!(e8m0_to_f32(254), 2f32.powi(127));
    }
}
