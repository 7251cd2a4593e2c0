//! Products with weights.
//!
//! # Numerics
//! Weights are the 16-row operand of the tensor core, rows of activations its columns. Which sums are made in which
//! order follows from the weight alone (see `product.cuh`), and every kernel keeps to it, so a row has the same bits in
//! any number of rows, whichever kernel is chosen. In [`Precision::Half`] an activation is the bfloat16 nearest to it;
//! in [`Precision::Exact`] it is the sum of three, each a column of its own.
//!
//! # Safety
//! A kernel checks no sizes, so the functions that launch one are unsafe. Their operands are *valid* when all of this
//! lies in memory of the driver that they are given (see [`Driver`]):
//!
//! - [`ProductInput`]: `rows · dim` f32 at `at`; `dim` f32 at the norm's weight, if there is one.
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
mod growing_buffer;
pub mod layout;
pub mod pack;
mod scales;
pub mod sources;
mod weight;

pub use call::{ProductInput, ProductNorm, ProductOutput};
pub use experts::{ExpertStack, ExpertsCall};
pub use gathered::GatheredRows;
pub use weight::DeviceWeight;

use crate::driver::{Args, Driver, DriverError, KernelId, KernelSource, Launch};
use crate::kernels::KernelCache;
use growing_buffer::GrowingBuffer;

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

/// A launch in one dimension with programmatic dependent launch: every kernel of products calls `wait_for_previous`.
fn after<'a>(kernel: KernelId, blocks: u32, threads: u32, args: &'a Args) -> Launch<'a> {
    Launch { dependent: true, ..Launch::line(kernel, blocks, threads, args) }
}
