//! The CPU device.
//!
//! `reference` holds one plain-loop function per operation: the definition, safe Rust, one thread.
//! [`Kernels`] lists the operations with the reference as default body; [`Cpu`] runs any
//! implementation of it. [`plain`] is the device that only uses definitions, [`tuned`] the fast one.
//! [`Machine`] measures what a processor could do at best.

mod aligned_buf;
mod cores;
mod cpu;
mod gemm;
mod huge_page_buf;
mod kernels;
mod machine;
mod memory;
mod pool;
mod reference;
mod simd;
mod tuned;
mod weight;

pub use aligned_buf::AlignedBuf;
pub use cpu::{Cpu, plain};
pub use kernels::{Kernels, Plain};
pub use machine::Machine;
pub use memory::{Memory, Storage};
pub use simd::Level;
pub use tuned::{Tuned, tuned};
pub use weight::Weight;
