//! The devices that tests run on: the kernels on the CPU, and a GPU.

use forerun_backend_cuda::Cuda;
use forerun_backend_cuda::driver::Emulated;
use forerun_backend_cuda::products::KernelChoice;
use std::path::Path;

/// The emulated device, with the general kernels only: each weight format of the others is a text of its own to
/// compile, and `tests/products` holds them to the same bits.
pub(crate) fn on_the_cpu() -> Cuda {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
    let device = Cuda::with_driver(Box::new(Emulated::new(&folder)));
    device.expect("a device of the CPU's memory").with_choice(KernelChoice::General)
}

pub(crate) fn on_a_gpu() -> Cuda {
    Cuda::open(0).expect("a GPU")
}
