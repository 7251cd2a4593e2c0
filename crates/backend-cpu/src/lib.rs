//! The CPU device.
//!
//! `reference` defines every operation by plain loops: safe Rust, one thread. `simd` has the tuned versions, `gemm`
//! their matrix products. [`Kernels`] lists the operations with the reference as default body; [`Cpu`] runs any
//! implementation of it. [`plain()`] is the device that only uses definitions, [`tuned()`] the fast one. [`Machine`]
//! measures the machine's roofline.

mod aligned_buf;
mod cores;
mod cpu;
mod freed;
mod gemm;
mod huge_page_buf;
mod kernels;
mod machine;
mod memory;
mod pool;
mod reference;
mod simd;
mod small_weights;
mod tuned;
mod weight;

pub use aligned_buf::AlignedBuf;
pub use cpu::{Cpu, plain};
pub use freed::return_freed_memory;
pub use kernels::{Kernels, Plain};
pub use machine::Machine;
pub use memory::{BufferStorage, Memory};
pub use simd::Level;
pub use tuned::{Tuned, tuned};
pub use weight::Weight;
