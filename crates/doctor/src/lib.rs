//! What a machine has, whether its devices compute correctly, and how fast they are.
//!
//! [`examine`] describes the machine (`host`) and goes through the devices ([`forerun_devices::list`]). Each one that
//! can be used runs the conformance suite (`conformance`), bandwidth and matrix products (`rates`), and a short
//! generation whose longest submission is noted (`small_run`). The [`DoctorReport`] is data, for JSON; its
//! [`page`](DoctorReport::page) is plain text for a bug report. It holds no host name, user name or path but the
//! model's.
#![forbid(unsafe_code)]

mod conformance;
mod host;
mod page;
mod rates;
mod small_run;

pub use conformance::{ConformanceReport, OperationReport};
pub use forerun_devices::{ContainerLimits, MemorySizes};
pub use host::{GraphicsAdapter, Host};
pub use rates::{Bandwidth, ProductRate, RateReport};
pub use small_run::SmallRunReport;

use forerun_backend_cpu::plain;
use forerun_devices::{DeviceEntry, DeviceError, DeviceName, DeviceOptions, DeviceState};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// What to examine.
#[derive(Clone, Debug, Default)]
pub struct DoctorOptions {
    /// One device; `None` is every device that can be used.
    pub device: Option<DeviceName>,
    /// Threads of the CPU; `None` is one per fast core of one socket.
    pub threads: Option<usize>,
    /// Fewer conformance cases and smaller measurements.
    pub quick: bool,
    /// The model of the small run; `None` leaves it out.
    pub model: Option<PathBuf>,
}

/// How far an examination has come.
#[derive(Clone, Copy, Debug)]
pub struct DoctorProgress<'a> {
    /// Parts of the work that are done.
    pub done: usize,
    /// All of them.
    pub total: usize,
    /// What is being done.
    pub doing: &'a str,
}

/// Everything that was found. Serialized, this is the JSON output.
#[derive(Debug, Serialize)]
pub struct DoctorReport {
    /// Of this program.
    pub version: &'static str,
    /// Whether this was the short examination.
    pub quick: bool,
    /// Whether every check that ran passed.
    pub healthy: bool,
    /// The machine.
    pub host: Host,
    /// Every device this build knows.
    pub devices: Vec<DeviceEntry>,
    /// Those that were examined.
    pub examined: Vec<DeviceReport>,
    /// Of the whole examination.
    pub seconds: f64,
}

/// One device.
#[derive(Debug, Serialize)]
pub struct DeviceReport {
    /// As `--device` takes it.
    pub name: String,
    /// In its own words.
    pub description: String,
    /// Whether it computes what the reference does.
    pub conformance: ConformanceReport,
    /// How fast it is.
    pub rates: RateReport,
    /// A short generation; null where there was no model.
    pub small_run: Option<SmallRunReport>,
    /// What went wrong apart from conformance; the parts concerned are empty.
    pub problems: Vec<String>,
}

impl DeviceReport {
    /// Whether every check that ran passed.
    pub fn is_healthy(&self) -> bool {
        self.conformance.failed == 0 && self.problems.is_empty()
    }
}

/// Why nothing could be examined.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// The device that was named is not there.
    #[error("--device {name}: {why}")]
    Unavailable {
        /// Which.
        name: DeviceName,
        /// Why not.
        why: String,
    },
    /// A device that was there before does not open.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Examines the machine and its devices. `watch` is told what is going on.
///
/// # Errors
/// When a device that is named cannot be used. What a device gets wrong is in the report.
pub fn examine(
    options: &DoctorOptions,
    watch: &mut dyn FnMut(DoctorProgress<'_>),
) -> Result<DoctorReport, DoctorError> {
    let started = Instant::now();
    let host = Host::read();
    let devices = forerun_devices::list(options.threads);
    let chosen = choose(options, &devices)?;
    let mut steps = DoctorSteps { watch, done: 0, total: chosen.len() * parts(options) };
    let mut examined = Vec::new();
    for &name in &chosen {
        examined.push(examine_device(options, name, &host, &mut steps)?);
    }
    Ok(DoctorReport {
        version: env!("CARGO_PKG_VERSION"),
        quick: options.quick,
        healthy: examined.iter().all(DeviceReport::is_healthy),
        host,
        devices,
        examined,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// The devices to examine: the one that is named, or all that can be used.
fn choose(
    options: &DoctorOptions,
    devices: &[DeviceEntry],
) -> Result<Vec<DeviceName>, DoctorError> {
    let usable: Vec<DeviceName> = devices.iter().filter_map(DeviceEntry::usable).collect();
    let gpu = || usable.iter().copied().find(|&name| name != DeviceName::Cpu);
    match options.device {
        None => Ok(usable),
        Some(DeviceName::Auto) => Ok(vec![gpu().unwrap_or(DeviceName::Cpu)]),
        Some(name) if usable.contains(&name) => Ok(vec![name]),
        // Adapters have several names; opening one says what is wrong.
        Some(name @ DeviceName::Wgpu(_)) => Ok(vec![name]),
        Some(name) => Err(DoctorError::Unavailable { name, why: why_not(name, devices) }),
    }
}

fn why_not(name: DeviceName, devices: &[DeviceEntry]) -> String {
    let kind = name.to_string();
    let kind = kind.split(':').next().unwrap_or_default();
    let mut reasons = devices.iter().filter_map(|entry| match &entry.state {
        DeviceState::Unavailable { why } if entry.name.starts_with(kind) => Some(why.as_str()),
        _ => None,
    });
    reasons.next_back().map_or_else(|| "there is no such device".to_owned(), str::to_owned)
}

/// Parts of the work on one device.
fn parts(options: &DoctorOptions) -> usize {
    conformance::parts(options.quick) + rates::PARTS + usize::from(options.model.is_some())
}

/// Tells whoever watches.
struct DoctorSteps<'a> {
    watch: &'a mut dyn FnMut(DoctorProgress<'_>),
    done: usize,
    total: usize,
}

impl DoctorSteps<'_> {
    /// One more part begins.
    fn next(&mut self, doing: &str) {
        (self.watch)(DoctorProgress { done: self.done, total: self.total, doing });
        self.done += 1;
    }
}

fn examine_device(
    options: &DoctorOptions,
    name: DeviceName,
    host: &Host,
    steps: &mut DoctorSteps<'_>,
) -> Result<DeviceReport, DoctorError> {
    let threads = options.threads.filter(|_| name == DeviceName::Cpu);
    let device = DeviceOptions { device: name, threads, ..DeviceOptions::default() };
    let mut candidate = forerun_devices::open(&device)?.backend;
    let mut problems = Vec::new();
    let conformance = conformance::run(&mut *candidate, &mut plain(), options.quick, &mut |what| {
        steps.next(what)
    });
    let description = candidate.name();
    // Its buffers are never freed, so the measurements get a device of their own.
    drop(candidate);
    let sizes = rates::RateSizes::new(options.quick, host.memory.available_bytes);
    let (rates, failed) = rates::measure(&device, sizes, &mut |what| steps.next(what));
    problems.extend(failed);
    let small_run = options.model.as_deref().and_then(|model| {
        steps.next("small run");
        let run = small_run::run(model, &device, options.quick);
        run.map_err(|why| problems.push(format!("small run: {why}"))).ok()
    });
    Ok(DeviceReport {
        name: name.to_string(),
        description,
        conformance,
        rates,
        small_run,
        problems,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, why: Option<&str>) -> DeviceEntry {
        let state = match why {
            Some(why) => DeviceState::Unavailable { why: why.to_owned() },
            None => DeviceState::Gpu {
                description: String::new(),
                arithmetic: String::new(),
                free_bytes: None,
            },
        };
        DeviceEntry { name: name.to_owned(), state }
    }

    fn chosen(
        device: Option<DeviceName>,
        devices: &[DeviceEntry],
    ) -> Result<Vec<DeviceName>, String> {
        let options = DoctorOptions { device, ..DoctorOptions::default() };
        choose(&options, devices).map_err(|error| error.to_string())
    }

    #[test]
    fn every_usable_device_is_examined_unless_one_is_named() {
        let devices = [entry("cpu", None), entry("cuda:0", Some("broken")), entry("cuda:1", None)];
        let (cpu, second) = (DeviceName::Cpu, DeviceName::Cuda(1));
        assert_eq!(chosen(None, &devices), Ok(vec![cpu, second]));
        assert_eq!(chosen(Some(DeviceName::Auto), &devices), Ok(vec![second]));
        assert_eq!(chosen(Some(DeviceName::Auto), &devices[..2]), Ok(vec![cpu]));
        assert_eq!(chosen(Some(cpu), &devices), Ok(vec![cpu]));
        let broken = chosen(Some(DeviceName::Cuda(0)), &devices).unwrap_err();
        assert_eq!(broken, "--device cuda:0: broken");
        let metal = "metal".parse().ok();
        assert_eq!(chosen(metal, &devices), Ok(metal.into_iter().collect()));
        let missing = chosen(Some(second), &devices[..1]).unwrap_err();
        assert_eq!(missing, "--device cuda:1: there is no such device");
    }
}
