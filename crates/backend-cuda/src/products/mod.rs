//! Products with weights.
//!
//! # Numerics
//! Weights are the 16-row operand of the tensor core, rows of activations its columns. Which sums are made in which
//! order follows from the weight alone (see `product.cuh`), and every kernel keeps to it, so a row has the same bits
//! in any number of rows, whichever kernel is chosen. In [`Precision::Half`] an activation is the bfloat16 nearest to
//! it; in [`Precision::Exact`] it is the sum of three, each a column of its own.
//!
//! # Safety
//! A kernel checks no sizes, so the functions that launch one are unsafe. Their operands are *valid* when all of this
//! lies in memory of the driver that they are given (see [`Driver`]):
//!
//! - [`ProductInput`]: `rows · dim` f32 at `at`, at the gate and at `into`, if there are such; as many f32 at the
//!   norm's weight as are normed together, with heads of one of the widths in [`HEADS`] that divides `dim`.
//! - [`DeviceWeight`]: made by [`DeviceWeight::upload`] on this driver.
//! - [`ProductOutput`]: `weight.cols` is the input's `dim`, `channels <= weight.rows`; `rows · channels` f32 at `at`,
//!   which no other operand of the call overlaps; `channels` f32 at `bias`, if there is one.
//! - [`ExpertsCall`] and [`GatheredRows`]: arrays of the types and sizes that the fields state, of which those that are
//!   written overlap no other operand; `fault` is a fault report, and every stack holds `first + experts · stride`
//!   rows.

mod call;
pub mod expert_gemv;
mod experts;
mod gathered;
pub mod gemm;
pub mod gemv;
pub mod layout;
pub mod pack;
mod rows;
mod scales;
pub mod sources;
mod weight;

pub use call::{GatedOutcome, ProductOutput};
pub use experts::{ExpertStack, ExpertsCall};
pub use gathered::GatheredRows;
pub use rows::{ChangeKind, Columns, HEADS, ProductInput, ProductNorm, RowChange};
pub use weight::DeviceWeight;

use crate::driver::{Driver, DriverError, KernelId, KernelSource};
use crate::growing_buffer::GrowingBuffer;
use crate::kernels::KernelCache;

/// The precision of activations in a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// One bfloat16: 8 bits of significand.
    Half,
    /// Three bfloat16 limbs: all 24 bits of significand.
    Exact,
}

impl Precision {
    /// Columns of the tensor core for a row.
    pub const fn parts(self) -> usize {
        match self {
            Self::Half => 1,
            Self::Exact => 3,
        }
    }
}

/// Which kernels may be used, for tests and benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum KernelChoice {
    /// The fastest that fits.
    #[default]
    Fastest,
    /// The one that fits everything.
    General,
}

/// The kernels of products, and buffers for their intermediate results.
#[derive(Debug, Default)]
pub struct Products {
    kernels: KernelCache,
    columns: GrowingBuffer,
    sums: GrowingBuffer,
    /// What `columns` and `sums` were made of, while it is unchanged.
    split: Option<rows::SplitRows>,
    keeps_columns: bool,
    route: GrowingBuffer,
    hidden: GrowingBuffer,
    /// Which kernels may be used.
    pub choice: KernelChoice,
}

impl Products {
    /// A kernel, compiled at its first use.
    fn kernel(
        &mut self,
        driver: &mut dyn Driver,
        source: &KernelSource,
        name: &'static str,
    ) -> Result<KernelId, DriverError> {
        self.kernels.get(driver, source, name)
    }
}
