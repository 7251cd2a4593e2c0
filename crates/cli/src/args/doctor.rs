//! `forerun doctor`.

use super::engine::threads;
use clap::Args;
use forerun_devices::DeviceName;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forerun doctor                       examine the machine and every device that can be used
  forerun doctor --quick               fewer checks and smaller measurements, in some seconds
  forerun doctor --device cuda:0       one device
  forerun doctor --device wgpu         the GPU by way of Metal, Vulkan or DX12
  forerun doctor > report.txt          a page for a bug report
  forerun doctor --json

Exit status: 0 every check passed, 1 one failed or an error, 2 wrong usage, 130 cancelled.";

/// What this machine has, whether its devices compute correctly, and how fast they are
///
/// Lists the processor with its instruction sets, memory, a container's limits, and GPUs and their drivers, found or
/// why not. Every device that can be used runs the conformance suite against the reference (with the worst error of
/// each operation), is measured (bandwidth; GEMV and GEMM in the usual formats of weights), and generates a few tokens,
/// of which the longest submission is shown.
///
/// The page names no user, host or path, but for the model's, and can be pasted into a bug report.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// One device: cpu, cuda, cuda:N, wgpu, wgpu:N, wgpu:software, or auto for a GPU if there is one [default: every
    /// device that can be used]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<DeviceName>,

    /// CPU threads [default: one per fast core of one socket]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// Some of the conformance cases of each operation, and smaller measurements
    #[arg(long)]
    pub(crate) quick: bool,

    /// The model of the small run [default: the bundled model]
    #[arg(long, value_name = "PATH")]
    pub(crate) model: Option<PathBuf>,

    /// Print one JSON object and nothing else on stdout
    ///
    /// Keys: version, quick, healthy, host (system, release, memory, container, graphics, nvidia_driver), devices
    /// (name, state, and what is known or why it is unavailable), examined (name, description, conformance, rates,
    /// small_run, problems), seconds.
    #[arg(long)]
    pub(crate) json: bool,
}
