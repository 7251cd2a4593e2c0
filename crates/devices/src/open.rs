//! Opening a device by name.

use crate::{Compute, DeviceName, Machine, wgpu};
use forerun_backend::{Backend, BackendError};
use forerun_backend_cpu::{Cpu, Level, Tuned};
use forerun_backend_cuda::Cuda;
use forerun_backend_cuda::products::Precision;

/// Which device, and how it computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The device.
    pub device: DeviceName,
    /// Threads of the CPU; `None` is one per fast core of one socket.
    pub threads: Option<usize>,
    /// What activations become in products; `None` is what the device does by itself.
    pub compute: Option<Compute>,
    /// Bytes that a GPU may use at most.
    pub gpu_memory: Option<u64>,
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
    /// An arithmetic that the device does not have.
    #[error("--compute {compute} is not of --device {device}; leave it out, or give --device {of}")]
    Compute {
        /// As it was typed.
        compute: Compute,
        /// The device.
        device: DeviceName,
        /// A device that has it.
        of: &'static str,
    },
    /// An option that only GPUs have.
    #[error("--gpu-memory is of a GPU; leave it out, or give --device cuda or --device wgpu")]
    GpuOption,
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
        threads.or((self.compute == Some(Compute::Int8)).then_some("--compute int8"))
    }

    /// Refuses an arithmetic that a device does not have.
    fn check_compute(&self, device: DeviceName) -> Result<(), DeviceError> {
        match self.compute {
            Some(Compute::Half) if !matches!(device, DeviceName::Cuda(_)) => {
                Err(DeviceError::Compute { compute: Compute::Half, device, of: "cuda" })
            }
            _ => Ok(()),
        }
    }
}

/// Opens the device to run on.
///
/// # Errors
/// When it is not there, or an option is not its own. `Auto` falls back to the CPU and says so in the note.
pub fn open(options: &DeviceOptions) -> Result<OpenedDevice, DeviceError> {
    let name = options.device;
    if let Some(option) = options.of_cpu().filter(|_| name.is_gpu()) {
        return Err(DeviceError::CpuOption { option });
    }
    if name != DeviceName::Auto {
        options.check_compute(name)?;
    }
    let failed = |source| DeviceError::Open { name, source };
    let memory = options.gpu_memory;
    let backend = match name {
        DeviceName::Auto => return auto(options),
        DeviceName::Cpu if memory.is_some() => return Err(DeviceError::GpuOption),
        DeviceName::Cpu => open_cpu(options)?,
        DeviceName::Cuda(number) => cuda(number, options).map_err(failed)?,
        DeviceName::Wgpu(choice) => wgpu::open(choice, memory).map_err(failed)?,
    };
    Ok(OpenedDevice { backend, name, note: None })
}

/// A GPU if there is one that is likely faster and no option is of the CPU, else the CPU.
fn auto(options: &DeviceOptions) -> Result<OpenedDevice, DeviceError> {
    let found = match options.of_cpu() {
        Some(option) => Err(format!("{option} is of the CPU")),
        None => first_gpu(options),
    };
    found.or_else(|why| {
        options.check_compute(DeviceName::Cpu)?;
        let (backend, name) = (open_cpu(options)?, DeviceName::Cpu);
        Ok(OpenedDevice { backend, name, note: Some(format!("cpu ({why})")) })
    })
}

/// The first CUDA device, else the first fast adapter of wgpu; or why there is neither.
fn first_gpu(options: &DeviceOptions) -> Result<OpenedDevice, String> {
    let cuda = match Cuda::count() {
        Ok(0) => Err("no CUDA device".to_owned()),
        Ok(_) => noted(DeviceName::Cuda(0), cuda(0, options)),
        Err(why) => Err(why.to_string()),
    };
    cuda.or_else(|no_cuda| {
        if options.compute == Some(Compute::Half) {
            return Err(no_cuda);
        }
        let memory = options.gpu_memory;
        let wgpu = wgpu::fast().and_then(|c| noted(DeviceName::Wgpu(c), wgpu::open(c, memory)));
        wgpu.map_err(|no_wgpu| format!("{no_cuda}; {no_wgpu}"))
    })
}

/// A device that was chosen for the user, who is told which.
fn noted(
    name: DeviceName,
    opened: Result<Box<dyn Backend>, BackendError>,
) -> Result<OpenedDevice, String> {
    let backend = opened.map_err(|why| format!("{name} cannot be used: {why}"))?;
    let note = Some(format!("{name}, {}", backend.name()));
    Ok(OpenedDevice { backend, name, note })
}

fn cuda(number: usize, options: &DeviceOptions) -> Result<Box<dyn Backend>, BackendError> {
    let precision = match options.compute {
        Some(Compute::Exact) => Precision::Exact,
        _ => Precision::Half,
    };
    let device = Cuda::open(number)?.with_memory_limit(options.gpu_memory);
    Ok(Box::new(device.with_precision(precision)))
}

/// Opens the CPU, whatever device is named.
///
/// # Errors
/// When activations are to be rounded and this processor gains nothing by it.
pub fn open_cpu(options: &DeviceOptions) -> Result<Box<dyn Backend>, DeviceError> {
    let kernels = Tuned::new(options.threads);
    let kernels = if options.compute == Some(Compute::Int8) {
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
        let limited = DeviceOptions { gpu_memory: Some(1 << 30), ..DeviceOptions::default() };
        assert!(matches!(open(&limited), Err(DeviceError::GpuOption)));
        assert_eq!(opened.note.as_deref(), Some("cpu (--threads is of the CPU)"));
        assert!(opened.backend.name().contains("1 thread"), "{}", opened.backend.name());
    }

    #[test]
    fn half_precision_is_refused_where_it_does_not_exist() {
        for device in [DeviceName::Cpu, DeviceName::Auto] {
            let half = Some(Compute::Half);
            let options = DeviceOptions { device, compute: half, ..DeviceOptions::default() };
            match open(&options) {
                Err(why) => {
                    let why = why.to_string();
                    assert!(
                        why.contains("--compute half") && why.contains("--device cuda"),
                        "{why}"
                    );
                }
                Ok(opened) => assert!(matches!(opened.name, DeviceName::Cuda(_)), "{device}"),
            }
        }
    }
}
