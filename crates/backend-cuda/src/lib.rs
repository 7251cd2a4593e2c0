//! The CUDA device.
//!
//! `driver` is what the rest of the crate knows of a GPU: memory, kernels compiled from text, a queue of launches. One
//! driver talks to CUDA, another compiles the same kernels with g++ and runs them on the CPU, so that tests
//! execute the kernels and their launches without a GPU. [`Cuda`] is the device on either of them.

mod cuda;
pub mod driver;
mod growing_buffer;
mod kernels;
mod mailbox;
mod memory;
mod ops;
pub mod products;
mod programs;
mod queue;
mod stashes;
mod weights;

pub use cuda::Cuda;
pub use kernels::{PRELUDE, families, families_of};
