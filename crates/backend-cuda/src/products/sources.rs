//! The kernels' texts.

use super::layout::{BLOCK, Family, Kind, ScaleForm};
use super::{chosen, few, many};
use crate::driver::Source;
use crate::kernels::{PRELUDE, WEIGHT};

const PRODUCT: &str = include_str!("../../kernels/product.cuh");

const KIND: &str = include_str!("../../kernels/kind.cuh");
const WIDE: &str = include_str!("../../kernels/wide.cuh");
const ASYNC: &str = include_str!("../../kernels/async.cuh");

/// Activations made columns.
pub const SPLIT: Source = Source::new(
    "product_split",
    &[PRELUDE, WEIGHT, ASYNC, include_str!("../../kernels/product_split.cu")],
);

/// Any product.
pub const ANY: Source = Source::new(
    "product_any",
    &[PRELUDE, WEIGHT, ASYNC, PRODUCT, include_str!("../../kernels/product_any.cu")],
);

/// Few columns, for one kind of weight.
pub const FEW: Source = Source::new(
    "product_few",
    &[PRELUDE, WEIGHT, ASYNC, PRODUCT, KIND, include_str!("../../kernels/product_few.cu")],
);

/// Experts that a few rows chose, for one kind of weight.
pub const CHOSEN: Source = Source::new(
    "product_chosen",
    &[PRELUDE, WEIGHT, ASYNC, PRODUCT, KIND, include_str!("../../kernels/product_chosen.cu")],
);

/// Many columns on Hopper, for one kind of weight.
pub const MANY: Source = Source::new(
    "product_many",
    &[PRELUDE, WEIGHT, ASYNC, PRODUCT, KIND, WIDE, include_str!("../../kernels/product_many.cu")],
);

/// What experts need besides products.
pub const EXPERTS: Source = Source::new(
    "product_experts",
    &[PRELUDE, WEIGHT, ASYNC, include_str!("../../kernels/product_experts.cu")],
);

/// The kernels that an architecture such as `sm_90a` has besides those of every one, for typical kinds of weights: for whoever
/// compiles them without a device.
pub fn of_arch(arch: &str) -> Vec<Source> {
    let kind = |family, group, scales, offset| {
        let (planes, bias) = (1, 0);
        Kind { family, planes, group, scales, offset, bias }
    };
    let kinds = [
        kind(Family::Bf16, BLOCK, ScaleForm::None, false),
        kind(Family::E4m3, BLOCK, ScaleForm::Tile, false),
        kind(Family::I8, 64, ScaleForm::Bf16, false),
        kind(Family::I8, 16, ScaleForm::F32, false),
        kind(Family::U4, 64, ScaleForm::Bf16, true),
        kind(Family::U4, 32, ScaleForm::F32, true),
    ];
    let number = arch.trim_start_matches("sm_").trim_end_matches('a').parse().unwrap_or(0);
    let mut all = Vec::new();
    for kind in kinds.into_iter().filter(|_| number >= 90) {
        all.extend([(2, 1), (1, 2), (1, 4)].map(|(stage, tiles)| few::source(kind, stage, tiles)));
        all.extend([(2, 1), (1, 2)].map(|(stage, tiles)| chosen::source(kind, stage, tiles)));
        if arch == "sm_90a" {
            let segments = if kind.family == Family::Bf16 { 1 } else { 4 };
            let widest = if kind.family == Family::Bf16 { 256 } else { 128 };
            all.extend([64, widest].map(|columns| many::source(kind, segments, columns)));
        }
    }
    all
}
