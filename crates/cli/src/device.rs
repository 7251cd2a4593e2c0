//! The one place that names backends.

use crate::args::{Compute, DeviceArgs, DeviceChoice};
use crate::terminal;
use anyhow::{Context, anyhow, bail};
use forerun_backend::Backend;
use forerun_backend_cpu::{Cpu, Level, Tuned};
pub(crate) use forerun_backend_cpu::{Machine, return_freed_memory};
use forerun_backend_cuda::Cuda;

/// Opens the device to run on.
pub(crate) fn open(args: DeviceArgs) -> anyhow::Result<Box<dyn Backend>> {
    match args.device {
        DeviceChoice::Cpu => cpu(args),
        DeviceChoice::Cuda(number) => cuda(args, number),
        DeviceChoice::Auto => auto(args),
    }
}

/// A GPU if there is one and nothing was asked of the CPU, else the CPU; says which and why.
fn auto(args: DeviceArgs) -> anyhow::Result<Box<dyn Backend>> {
    let why = match (of_cpu(args), Cuda::count()) {
        (Some(option), _) => format!("{option} is of the CPU"),
        (None, Ok(0)) => "no CUDA device".to_owned(),
        (None, Err(why)) => why.to_string(),
        (None, Ok(_)) => match Cuda::open(0) {
            Ok(device) => {
                terminal::note(&format!("device: cuda:0, {}", device.name()));
                return Ok(Box::new(device));
            }
            Err(why) => format!("cuda:0 cannot be used: {why}"),
        },
    };
    terminal::note(&format!("device: cpu ({why})"));
    cpu(args)
}

/// The option that only the CPU has, if one was given.
fn of_cpu(args: DeviceArgs) -> Option<&'static str> {
    let threads = args.threads.map(|_| "--threads");
    threads.or((args.compute == Compute::Int8).then_some("--compute int8"))
}

fn cuda(args: DeviceArgs, number: usize) -> anyhow::Result<Box<dyn Backend>> {
    if let Some(option) = of_cpu(args) {
        bail!("{option} is of the CPU; leave it out, or give --device cpu");
    }
    let device = Cuda::open(number).with_context(|| format!("--device cuda:{number}"))?;
    Ok(Box::new(device))
}

fn cpu(args: DeviceArgs) -> anyhow::Result<Box<dyn Backend>> {
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

/// Opens the CPU for what sets its figures beside the processor's.
pub(crate) fn open_measured(args: DeviceArgs) -> anyhow::Result<Box<dyn Backend>> {
    match args.device {
        DeviceChoice::Cuda(_) => {
            bail!(
                "--device cuda: this benchmark compares with what the CPU can do; give --device cpu"
            )
        }
        DeviceChoice::Auto | DeviceChoice::Cpu => cpu(args),
    }
}
