//! Opening the device that was named, and saying which it is where that was left open.

use crate::args::DeviceArgs;
use crate::terminal;
use anyhow::bail;
use forerun_backend::Backend;
use forerun_devices::DeviceName;
pub(crate) use forerun_devices::{Machine, return_freed_memory};

/// Opens the device to run on.
pub(crate) fn open(args: DeviceArgs) -> anyhow::Result<Box<dyn Backend>> {
    let opened = forerun_devices::open(&args.options())?;
    if let Some(note) = opened.note {
        terminal::note(&format!("device: {note}"));
    }
    Ok(opened.backend)
}

/// What the device's processor could do at best; takes about a second.
pub(crate) fn measure(args: DeviceArgs) -> anyhow::Result<Machine> {
    Ok(forerun_devices::measure(args.threads)?)
}

/// Opens the CPU for what sets its figures beside the processor's.
pub(crate) fn open_measured(args: DeviceArgs) -> anyhow::Result<Box<dyn Backend>> {
    if let DeviceName::Cuda(_) = args.device {
        bail!("--device cuda: this benchmark compares with what the CPU can do; give --device cpu");
    }
    Ok(forerun_devices::open_cpu(&args.options())?)
}
