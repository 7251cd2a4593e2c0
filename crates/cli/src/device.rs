//! Opening the device that was named, and saying which it is where that was left open.

use crate::args::DeviceArgs;
use crate::terminal;
use forerun_backend::Backend;
pub(crate) use forerun_devices::return_freed_memory;

/// Opens the device to run on.
pub(crate) fn open(args: DeviceArgs) -> anyhow::Result<Box<dyn Backend>> {
    let opened = forerun_devices::open(&args.options())?;
    if let Some(note) = opened.note {
        terminal::note(&format!("device: {note}"));
    }
    Ok(opened.backend)
}
