//! The one place that names backends.

use anyhow::anyhow;
use forerun_backend::Backend;
pub(crate) use forerun_backend_cpu::Machine;

/// Opens the device to run on; `None` uses every core.
pub(crate) fn open(threads: Option<usize>) -> Box<dyn Backend> {
    Box::new(forerun_backend_cpu::tuned(threads))
}

/// What the device's processor could do at best; takes about a second.
pub(crate) fn measure(threads: Option<usize>) -> anyhow::Result<Machine> {
    Machine::measure(threads)
        .map_err(|bytes| anyhow!("no memory to measure the machine with: {bytes} bytes"))
}
