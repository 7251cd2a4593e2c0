//! Opening a device by name.

use crate::{DeviceName, Machine, wgpu};
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
        threads.or(self.int8.then_some("--compute int8"))
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
    let failed = |source| DeviceError::Open { name, source };
    let memory = options.gpu_memory;
    let backend = match name {
        DeviceName::Auto => return auto(options),
        DeviceName::Cpu if memory.is_some() => return Err(DeviceError::GpuOption),
        DeviceName::Cpu => open_cpu(options)?,
        DeviceName::Cuda(number) => cuda(number, memory).map_err(failed)?,
        DeviceName::Wgpu(choice) => wgpu::open(choice, memory).map_err(failed)?,
    };
    Ok(OpenedDevice { backend, name, note: None })
}

/// A GPU if there is one that is likely faster and no option is of the CPU, else the CPU.
fn auto(options: &DeviceOptions) -> Result<OpenedDevice, DeviceError> {
    let found = match options.of_cpu() {
        Some(option) => Err(format!("{option} is of the CPU")),
        None => first_gpu(options.gpu_memory),
    };
    found.or_else(|why| {
        let (backend, name) = (open_cpu(options)?, DeviceName::Cpu);
        Ok(OpenedDevice { backend, name, note: Some(format!("cpu ({why})")) })
    })
}

/// The first CUDA device, else the first fast adapter of wgpu; or why there is neither.
fn first_gpu(memory: Option<u64>) -> Result<OpenedDevice, String> {
    let cuda = match Cuda::count() {
        Ok(0) => Err("no CUDA device".to_owned()),
        Ok(_) => noted(DeviceName::Cuda(0), cuda(0, memory)),
        Err(why) => Err(why.to_string()),
    };
    cuda.or_else(|no_cuda| {
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

fn cuda(number: usize, memory: Option<u64>) -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(Cuda::open(number)?.with_memory_limit(memory)))
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
        let limited = DeviceOptions { gpu_memory: Some(1 << 30), ..DeviceOptions::default() };
        assert!(matches!(open(&limited), Err(DeviceError::GpuOption)));
        assert_eq!(opened.note.as_deref(), Some("cpu (--threads is of the CPU)"));
        assert!(opened.backend.name().contains("1 thread"), "{}", opened.backend.name());
    }
}
