//! Products with weights.
//!
//! # Numerics
//! Weights are the 16-row operand of the tensor core, rows of activations its columns. Which sums are made in which
//! order follows from the weight alone (see `product.cuh`), and every kernel keeps to it, so a row has the same bits in
//! any number of rows, whichever kernel is chosen. In [`Precision::Half`] an activation is the bfloat16 nearest to it; in
//! [`Precision::Exact`] it is the sum of three, each a column of its own.

mod call;
pub mod chosen;
mod experts;
pub mod few;
mod gathered;
pub mod layout;
pub mod many;
pub mod pack;
mod room;
mod scales;
pub mod sources;
mod weight;

pub use call::{Input, Norm, Output};
pub use experts::{ExpertStack, Experts};
pub use gathered::Gathered;
pub use weight::Weight;

use crate::driver::{Args, Driver, DriverError, Kernel, Launch, Source};
use crate::kernels::KernelCache;
use room::Room;

/// How much of an activation a product takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 8 bits of significand.
    Half,
    /// All 24.
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
pub enum Choice {
    /// The fastest that fits.
    #[default]
    Fastest,
    /// The one that fits everything.
    Any,
}

/// The kernels of products, and room for what they make on the way.
#[derive(Debug, Default)]
pub struct Products {
    kernels: KernelCache,
    columns: Room,
    sums: Room,
    route: Room,
    hidden: Room,
    /// Which kernels may be used.
    pub choice: Choice,
}

impl Products {
    /// A kernel, compiled at its first use.
    fn kernel(
        &mut self,
        driver: &mut dyn Driver,
        source: &Source,
        name: &'static str,
    ) -> Result<Kernel, DriverError> {
        self.kernels.get(driver, source, name)
    }
}

/// A launch in one dimension that may start before the kernel ahead has ended. All kernels here wait for it by themselves.
fn after<'a>(kernel: Kernel, blocks: u32, threads: u32, args: &'a Args) -> Launch<'a> {
    Launch { dependent: true, ..Launch::line(kernel, blocks, threads, args) }
}
