//! The shape of the matrix that a stored weight stands for.

use crate::config::{Declared, QuantMode, Scheme};
use crate::{Checkpoint, Storage, Tensor, WeightsError};
use forerun_base::DType;

/// The shape of the weight of module `path` once decoded: `[rows, cols]`, or
/// `[experts, rows, cols]` for a stack.
///
/// Packed words say how many columns there are only together with the width of a code. The
/// config says that; where it does not bind (expert stacks, sidecars) and the shapes contradict
/// it, they must leave one possibility.
pub fn logical_shape(checkpoint: &Checkpoint, path: &str) -> Result<Vec<usize>, WeightsError> {
    let dotted = format!("{path}.weight");
    let name = if checkpoint.contains(&dotted) { &dotted } else { path };
    let info = checkpoint.info(name)?;
    let scales = format!("{path}.scales");
    if info.storage != Storage::Plain(DType::U32) || !checkpoint.contains(&scales) {
        return Ok(info.shape);
    }
    let weight = checkpoint.tensor(name)?;
    let scales = checkpoint.tensor(&scales)?;
    let (Some((&words, lead)), Some(&groups)) = (weight.shape.split_last(), scales.shape.last())
    else {
        return Err(weight.fault("packed codes and scales have at least one axis"));
    };
    let fits = |scheme: &Scheme| fits(*scheme, words, groups, scales.dtype);
    let said = match checkpoint.parsed_config().declared(path) {
        Declared::Listed(scheme) | Declared::Default(scheme) => Some(scheme),
        Declared::Plain | Declared::Nothing => None,
    };
    let scheme = match said.filter(fits) {
        Some(scheme) => scheme,
        None => only_one(&weight, every_scheme().filter(fits))?,
    };
    let cols = groups.checked_mul(scheme.group).ok_or_else(|| weight.fault("columns overflow"))?;
    Ok([lead, &[cols]].concat())
}

fn fits(scheme: Scheme, words: usize, groups: usize, scales: DType) -> bool {
    let bits = groups.checked_mul(scheme.group * scheme.bits);
    scheme.is_known()
        && (scheme.mode == QuantMode::Affine) == (scales != DType::U8)
        && bits.is_some_and(|bits| words.checked_mul(32) == Some(bits))
}

fn only_one(
    weight: &Tensor,
    mut schemes: impl Iterator<Item = Scheme>,
) -> Result<Scheme, WeightsError> {
    match (schemes.next(), schemes.next()) {
        (Some(scheme), None) => Ok(scheme),
        (Some(one), Some(other)) => Err(weight.fault(format!(
            "could be {one} or {other}; say which under `quantization` in config.json"
        ))),
        (None, _) => Err(weight.fault("words and scales fit no scheme of MLX")),
    }
}

fn every_scheme() -> impl Iterator<Item = Scheme> {
    [QuantMode::Affine, QuantMode::Mxfp4, QuantMode::Mxfp8, QuantMode::Nvfp4].into_iter().flat_map(
        |mode| {
            [2, 3, 4, 5, 6, 8].into_iter().flat_map(move |bits| {
                [16, 32, 64, 128].into_iter().map(move |group| Scheme { mode, bits, group })
            })
        },
    )
}
