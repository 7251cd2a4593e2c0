//! The one place that names backends.

use crate::args::{Compute, DeviceArgs};
use anyhow::anyhow;
use forerun_backend::Backend;
pub(crate) use forerun_backend_cpu::Machine;
use forerun_backend_cpu::{Cpu, Level, Tuned};

/// Opens the device to run on.
pub(crate) fn open(args: DeviceArgs) -> anyhow::Result<Box<dyn Backend>> {
    let exact = Tuned::new(args.threads);
    let kernels = match args.compute {
        Compute::Exact => exact,
        Compute::Int8 => exact.rounding().ok_or_else(|| {
            let why = if Level::Amx.available() {
                "has tiles, whose exact products are faster"
            } else {
                "has no products of bytes"
            };
            anyhow!("--compute int8: this processor {why}; leave the option out")
        })?,
    };
    Ok(Box::new(Cpu::with_kernels(kernels)))
}

/// What the device's processor could do at best; takes about a second.
pub(crate) fn measure(args: DeviceArgs) -> anyhow::Result<Machine> {
    Machine::measure(args.threads)
        .map_err(|bytes| anyhow!("no memory to measure the machine with: {bytes} bytes"))
}
