//! The kernels' texts.

use crate::PRELUDE;
use crate::driver::Source;

const WEIGHT: &str = include_str!("../../kernels/weight.cuh");
const PRODUCT: &str = include_str!("../../kernels/product.cuh");

/// Activations made columns.
pub const SPLIT: Source = Source::new(
    "product_split",
    &[PRELUDE, WEIGHT, include_str!("../../kernels/product_split.cu")],
);

/// Any product.
pub const ANY: Source = Source::new(
    "product_any",
    &[PRELUDE, WEIGHT, PRODUCT, include_str!("../../kernels/product_any.cu")],
);

/// What experts need besides products.
pub const EXPERTS: Source = Source::new(
    "product_experts",
    &[PRELUDE, WEIGHT, include_str!("../../kernels/product_experts.cu")],
);
