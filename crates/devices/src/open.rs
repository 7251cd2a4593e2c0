//! Opening a device by name.

use crate::{DeviceName, Machine};
use forerun_backend::{Backend, BackendError};
use forerun_backend_cpu::{Cpu, Level, Tuned};
use forerun_backend_cuda::Cuda;

/// Which device, and how it computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The device.
    pub device: DeviceName,
    /// Threads of the CPU; `None` is one per fast core of one socket.
    pub threads: Option<usize>,
    /// Whether the CPU rounds activations to 8 bits where they meet quantised weights.
    pub int8: bool,
}

/// A device that is ready.
pub struct OpenedDevice {
    /// The device.
    pub backend: Box<dyn Backend>,
    /// Which it is; `Auto` has become another one.
    pub name: DeviceName,
    /// Of an automatic choice: what was chosen, and why it is the CPU where it is.
    pub note: Option<String>,
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// An option that only the CPU has.
    #[error("{option} is of the CPU; leave it out, or give --device cpu")]
    CpuOption {
        /// As it was typed.
        option: &'static str,
    },
    /// This processor gains nothing by rounding.
    #[error("--compute int8: this processor {why}; leave the option out")]
    Int8 {
        /// What it has or lacks.
        why: &'static str,
    },
    /// The device refused.
    #[error("--device {name}")]
    Open {
        /// Which.
        name: DeviceName,
        /// Its words.
        source: BackendError,
    },
    /// There is no memory to measure with.
    #[error("no memory to measure the machine with: {bytes} bytes")]
    Measure {
        /// How much it takes.
        bytes: usize,
    },
}

impl DeviceOptions {
    /// The option that only the CPU has, if one was given.
    fn of_cpu(&self) -> Option<&'static str> {
        let threads = self.threads.map(|_| "--threads");
        threads.or(self.int8.then_some("--compute int8"))
    }
}

/// Opens the device to run on.
///
/// # Errors
/// When it is not there, or an option is not its own. `Auto` falls back to the CPU and says so in the note.
pub fn open(options: &DeviceOptions) -> Result<OpenedDevice, DeviceError> {
    let opened = |backend| OpenedDevice { backend, name: options.device, note: None };
    match options.device {
        DeviceName::Cpu => open_cpu(options).map(opened),
        DeviceName::Cuda(number) => cuda(options, number).map(opened),
        DeviceName::Auto => auto(options),
    }
}

/// A GPU if there is one and no option is of the CPU, else the CPU.
fn auto(options: &DeviceOptions) -> Result<OpenedDevice, DeviceError> {
    let why = match (options.of_cpu(), Cuda::count()) {
        (Some(option), _) => format!("{option} is of the CPU"),
        (None, Ok(0)) => "no CUDA device".to_owned(),
        (None, Err(why)) => why.to_string(),
        (None, Ok(_)) => match Cuda::open(0) {
            Ok(device) => {
                let (name, note) = (DeviceName::Cuda(0), format!("cuda:0, {}", device.name()));
                return Ok(OpenedDevice { backend: Box::new(device), name, note: Some(note) });
            }
            Err(why) => format!("cuda:0 cannot be used: {why}"),
        },
    };
    let (backend, name) = (open_cpu(options)?, DeviceName::Cpu);
    Ok(OpenedDevice { backend, name, note: Some(format!("cpu ({why})")) })
}

fn cuda(options: &DeviceOptions, number: usize) -> Result<Box<dyn Backend>, DeviceError> {
    if let Some(option) = options.of_cpu() {
        return Err(DeviceError::CpuOption { option });
    }
    let name = DeviceName::Cuda(number);
    let device = Cuda::open(number).map_err(|source| DeviceError::Open { name, source })?;
    Ok(Box::new(device))
}

/// Opens the CPU, whatever device is named.
///
/// # Errors
/// When activations are to be rounded and this processor gains nothing by it.
pub fn open_cpu(options: &DeviceOptions) -> Result<Box<dyn Backend>, DeviceError> {
    let kernels = Tuned::new(options.threads);
    let kernels = if options.int8 {
        let why = if Level::Amx.available() {
            "has tiles, whose exact products are faster"
        } else {
            "has no products of bytes"
        };
        kernels.rounding().ok_or(DeviceError::Int8 { why })?
    } else {
        kernels
    };
    Ok(Box::new(Cpu::with_kernels(kernels)))
}

/// What the processor could do at best with so many threads; takes a second or two.
///
/// # Errors
/// When there is no memory for it.
pub fn measure(threads: Option<usize>) -> Result<Machine, DeviceError> {
    Machine::measure(threads).map_err(|bytes| DeviceError::Measure { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_cpu_are_refused_elsewhere_and_decide_an_automatic_choice() {
        let threads = DeviceOptions { threads: Some(1), ..DeviceOptions::default() };
        let gpu = DeviceOptions { device: DeviceName::Cuda(0), ..threads };
        assert!(matches!(open(&gpu), Err(DeviceError::CpuOption { option: "--threads" })));
        let opened = open(&DeviceOptions { device: DeviceName::Auto, ..threads }).ok().unwrap();
        assert_eq!(opened.name, DeviceName::Cpu);
        assert_eq!(opened.note.as_deref(), Some("cpu (--threads is of the CPU)"));
        assert!(opened.backend.name().contains("1 thread"), "{}", opened.backend.name());
    }
}
