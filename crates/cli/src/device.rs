//! The one place that names backends.

use forerun_backend::Backend;

/// Opens the device to run on; `None` uses every core.
pub(crate) fn open(threads: Option<usize>) -> Box<dyn Backend> {
    Box::new(forerun_backend_cpu::tuned(threads))
}
