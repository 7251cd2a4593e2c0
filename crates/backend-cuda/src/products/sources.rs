//! The kernels' texts.

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
