//! The kernels' texts, one family of operations each. A family is one module of the driver, compiled together.

use crate::driver::Source;

/// What every family begins with: arithmetic with the same bits on a GPU and on the CPU, conversions, reductions, and the
/// only PTX there is.
pub const PRELUDE: &str = include_str!("../kernels/prelude.cuh");

/// Elementwise functions and gates.
pub(crate) const ELEMENTWISE: Source =
    Source::new("elementwise", &[PRELUDE, include_str!("../kernels/elementwise.cu")]);

/// All families, for whoever compiles them without a device.
pub const FAMILIES: [Source; 1] = [ELEMENTWISE];
