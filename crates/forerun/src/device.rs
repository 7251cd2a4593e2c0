//! Devices by name, and opening one.

use forerun_backend::{Backend, BackendError};
use forerun_backend_cpu::{Cpu, Level, Tuned};
use forerun_backend_cuda::Cuda;
use std::fmt;
use std::str::FromStr;

/// A device by name: `auto`, `cpu`, `cuda`, `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// A GPU if there is one and no option of the CPU is given, else the CPU.
    Auto,
    /// The processor.
    #[default]
    Cpu,
    /// A CUDA device by its number.
    Cuda(usize),
}

/// Which device, and how it computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The device.
    pub device: DeviceName,
    /// CPU threads; one per fast core of one socket by default.
    pub threads: Option<usize>,
    /// Whether the CPU rounds activations to 8 bits where they meet quantised weights: faster, and answers differ.
    pub int8: bool,
}

/// A device that is ready.
pub struct OpenedDevice {
    /// The backend that runs on it.
    pub backend: Box<dyn Backend>,
    /// Which device [`DeviceName::Auto`] chose, and why.
    pub note: Option<String>,
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// An option that only the CPU has.
    #[error("{option} is of the CPU; leave it out, or run on the CPU")]
    CpuOption {
        /// Its name.
        option: &'static str,
    },
    /// This processor gains nothing by rounding.
    #[error("int8: this processor {why}; leave the option out")]
    Int8 {
        /// What it has or lacks.
        why: &'static str,
    },
    /// The device refused.
    #[error("{name}: {cause}")]
    Open {
        /// Which.
        name: DeviceName,
        /// What its driver said.
        cause: BackendError,
    },
}

impl DeviceOptions {
    /// The option that only the CPU has, if one is given.
    fn cpu_option(&self) -> Option<&'static str> {
        self.threads.map(|_| "threads").or(self.int8.then_some("int8"))
    }
}

/// Opens the device to run on.
pub(crate) fn open(options: &DeviceOptions) -> Result<OpenedDevice, DeviceError> {
    let opened = |backend| OpenedDevice { backend, note: None };
    match options.device {
        DeviceName::Cpu => cpu(options).map(opened),
        DeviceName::Cuda(number) => cuda(options, number).map(opened),
        DeviceName::Auto => auto(options),
    }
}

fn auto(options: &DeviceOptions) -> Result<OpenedDevice, DeviceError> {
    let why = match (options.cpu_option(), Cuda::count()) {
        (Some(option), _) => format!("{option} is of the CPU"),
        (None, Ok(0)) => "no CUDA device".to_owned(),
        (None, Err(why)) => why.to_string(),
        (None, Ok(_)) => match Cuda::open(0) {
            Ok(device) => {
                let note = Some(format!("cuda:0, {}", device.name()));
                return Ok(OpenedDevice { backend: Box::new(device), note });
            }
            Err(why) => format!("cuda:0 cannot be used: {why}"),
        },
    };
    Ok(OpenedDevice { backend: cpu(options)?, note: Some(format!("cpu ({why})")) })
}

fn cuda(options: &DeviceOptions, number: usize) -> Result<Box<dyn Backend>, DeviceError> {
    if let Some(option) = options.cpu_option() {
        return Err(DeviceError::CpuOption { option });
    }
    let name = DeviceName::Cuda(number);
    let device = Cuda::open(number).map_err(|cause| DeviceError::Open { name, cause })?;
    Ok(Box::new(device))
}

fn cpu(options: &DeviceOptions) -> Result<Box<dyn Backend>, DeviceError> {
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

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                number.parse().map(Self::Cuda).map_err(|why| why.to_string())
            }
            _ => Err("expected auto, cpu, cuda or cuda:N".to_owned()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_cpu_are_refused_elsewhere_and_decide_an_automatic_choice() {
        let threads = DeviceOptions { threads: Some(1), ..DeviceOptions::default() };
        let gpu = DeviceOptions { device: DeviceName::Cuda(0), ..threads };
        assert!(matches!(open(&gpu), Err(DeviceError::CpuOption { option: "threads" })));
        let opened = open(&DeviceOptions { device: DeviceName::Auto, ..threads }).ok().unwrap();
        assert_eq!(opened.note.as_deref(), Some("cpu (threads is of the CPU)"));
    }

    #[test]
    fn a_device_reads_its_own_name() {
        for name in [DeviceName::Auto, DeviceName::Cpu, DeviceName::Cuda(3)] {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
    }
}
