//! The kernels' sources.

use super::layout::{BLOCK, CodeFamily, PackedFormat, ScaleForm};
use super::{expert_gemv, gemm, gemv};
use crate::driver::KernelSource;
use crate::kernels::{ASYNC, LIMBS, MMA, PRELUDE, ROW_NORM, WEIGHT};

const PRODUCT: &str = include_str!("../../kernels/product.cuh");

const PACKED_FORMAT: &str = include_str!("../../kernels/packed_format.cuh");
const WGMMA: &str = include_str!("../../kernels/wgmma.cuh");

/// Rows of activations to columns.
pub const SPLIT: KernelSource = KernelSource::new(
    "product_split",
    &[PRELUDE, ROW_NORM, LIMBS, include_str!("../../kernels/product_split.cu")],
);

/// The general kernel: any weight, any number of columns.
pub const GENERAL: KernelSource = KernelSource::new(
    "product_general",
    &[PRELUDE, WEIGHT, ASYNC, MMA, PRODUCT, include_str!("../../kernels/product_general.cu")],
);

/// GEMV: few columns, for one packed format.
pub const GEMV: KernelSource = KernelSource::new(
    "product_gemv",
    &[
        PRELUDE,
        WEIGHT,
        ASYNC,
        MMA,
        PRODUCT,
        PACKED_FORMAT,
        ROW_NORM,
        LIMBS,
        include_str!("../../kernels/product_gemv.cu"),
    ],
);

/// GEMV for the experts that rows chose, for one packed format.
pub const EXPERT_GEMV: KernelSource = KernelSource::new(
    "product_expert_gemv",
    &[
        PRELUDE,
        WEIGHT,
        ASYNC,
        MMA,
        PRODUCT,
        PACKED_FORMAT,
        include_str!("../../kernels/product_expert_gemv.cu"),
    ],
);

/// GEMM with wgmma: many columns on Hopper, for one packed format.
pub const GEMM: KernelSource = KernelSource::new(
    "product_gemm",
    &[
        PRELUDE,
        WEIGHT,
        ASYNC,
        MMA,
        PRODUCT,
        PACKED_FORMAT,
        WGMMA,
        include_str!("../../kernels/product_gemm.cu"),
    ],
);

/// Routing: pairs sorted by expert, and the weighted sum of the experts' rows.
pub const ROUTE: KernelSource = KernelSource::new(
    "product_route",
    &[PRELUDE, WEIGHT, ASYNC, include_str!("../../kernels/product_route.cu")],
);

/// The kernels of an architecture such as `sm_90a` beyond those that all architectures share, for typical packed
/// formats: to compile them without a device.
pub fn of_arch(arch: &str) -> Vec<KernelSource> {
    let kind = |family, group, scales, offset| PackedFormat {
        family,
        group,
        scales,
        offset,
        ..PackedFormat::BF16
    };
    let kinds = [
        PackedFormat::BF16,
        kind(CodeFamily::E4m3, BLOCK, ScaleForm::Tile, false),
        kind(CodeFamily::I8, 64, ScaleForm::Bf16, false),
        kind(CodeFamily::I8, 16, ScaleForm::F32, false),
        kind(CodeFamily::U4, 64, ScaleForm::Bf16, true),
        kind(CodeFamily::U4, 32, ScaleForm::F32, true),
    ];
    let number = arch.trim_start_matches("sm_").trim_end_matches('a').parse().unwrap_or(0);
    let mut all = Vec::new();
    for kind in kinds.into_iter().filter(|_| number >= 90) {
        let beside = i64::from(kind.family == CodeFamily::E4m3);
        let gemv = |(stage, tiles)| gemv::source(kind, stage, tiles).with("BESIDE", beside);
        all.extend([(2, 1), (1, 2), (1, 4)].map(gemv));
        all.extend([(2, 1), (1, 2)].map(|(stage, tiles)| expert_gemv::source(kind, stage, tiles)));
        if arch == "sm_90a" {
            let segments = if kind.family == CodeFamily::Bf16 { 1 } else { 4 };
            let widest = if kind.family == CodeFamily::Bf16 { 256 } else { 128 };
            all.extend([64, widest].map(|columns| gemm::source(kind, segments, columns)));
        }
    }
    all
}
