//! What is known of the processor.

use forerun_backend::Backend;
use forerun_backend_cpu::{Level, tuned};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, thread};

/// The processor as a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Processor {
    /// The maker's name, if the system tells.
    pub model: Option<String>,
    /// Of the instruction set: `x86_64`, `aarch64`.
    pub architecture: &'static str,
    /// The device as it would run: kernels and threads.
    pub device: String,
    /// Sets of kernels that this processor can run, best first.
    pub kernels: Vec<&'static str>,
    /// Instruction sets that kernels care about and this processor has.
    pub features: Vec<&'static str>,
    /// Instruction sets that kernels care about and this processor lacks.
    pub missing: Vec<&'static str>,
    /// Processors that this process may use.
    pub logical_cores: usize,
    /// Of them, different cores, if the system tells.
    pub physical_cores: Option<usize>,
    /// The system's power policy for the first core, if it has one.
    pub governor: Option<String>,
}

/// Describes the processor with so many threads.
pub fn processor(threads: Option<usize>) -> Processor {
    let (features, missing) = features();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    Processor {
        model: model(&cpuinfo),
        architecture: std::env::consts::ARCH,
        device: tuned(threads).name(),
        kernels: Level::ALL.into_iter().filter(|l| l.available()).map(Level::name).collect(),
        features,
        missing,
        logical_cores: thread::available_parallelism().map_or(1, usize::from),
        physical_cores: physical_cores(Path::new("/sys/devices/system/cpu")),
        governor: fs::read_to_string(governor).ok().map(|text| text.trim().to_owned()),
    }
}

/// The first processor's name in Linux's words.
fn model(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let part =
        || Some(format!("implementer {}, part {}", field("CPU implementer")?, field("CPU part")?));
    field("model name").or_else(|| field("Model")).or_else(part)
}

/// Different cores among the processors of the system.
fn physical_cores(cpus: &Path) -> Option<usize> {
    let mut cores = BTreeSet::new();
    for entry in fs::read_dir(cpus).ok()?.flatten() {
        let siblings = entry.path().join("topology/thread_siblings_list");
        if let Ok(siblings) = fs::read_to_string(siblings) {
            cores.insert(siblings.trim().to_owned());
        }
    }
    (!cores.is_empty()).then_some(cores.len())
}

/// Instruction sets that kernels care about: those this processor has, and those it lacks.
fn features() -> (Vec<&'static str>, Vec<&'static str>) {
    let known = known_features();
    let names = |has: bool| known.iter().filter(|f| f.1 == has).map(|f| f.0).collect();
    (names(true), names(false))
}

#[cfg(target_arch = "x86_64")]
fn known_features() -> Vec<(&'static str, bool)> {
    vec![
        ("avx", is_x86_feature_detected!("avx")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx-vnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vl", is_x86_feature_detected!("avx512vl")),
        ("avx512dq", is_x86_feature_detected!("avx512dq")),
        ("avx512vbmi", is_x86_feature_detected!("avx512vbmi")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
        ("avx512fp16", is_x86_feature_detected!("avx512fp16")),
        ("amx", Level::Amx.available()),
    ]
}

#[cfg(target_arch = "aarch64")]
fn known_features() -> Vec<(&'static str, bool)> {
    use std::arch::is_aarch64_feature_detected;
    vec![
        ("neon", is_aarch64_feature_detected!("neon")),
        ("fp16", is_aarch64_feature_detected!("fp16")),
        ("dotprod", is_aarch64_feature_detected!("dotprod")),
        ("i8mm", is_aarch64_feature_detected!("i8mm")),
        ("bf16", is_aarch64_feature_detected!("bf16")),
        ("sve", is_aarch64_feature_detected!("sve")),
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn known_features() -> Vec<(&'static str, bool)> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_processor_is_found_in_every_way_linux_writes_it() {
        let cases = [
            ("processor\t: 0\nmodel name\t: A Chip @ 2 GHz\nflags\t: x\n", Some("A Chip @ 2 GHz")),
            ("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n", Some("implementer 0x41, part 0xd40")),
            ("Hardware\t: b\nModel\t\t: A Board\n", Some("A Board")),
            ("model name\t:\n", None),
            ("", None),
        ];
        for (text, name) in cases {
            assert_eq!(model(text).as_deref(), name, "{text:?}");
        }
    }

    #[test]
    fn threads_of_a_core_are_one_core() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(physical_cores(folder.path()), None);
        for cpu in 0..4 {
            let topology = folder.path().join(format!("cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            let siblings = format!("{},{}\n", cpu % 2, cpu % 2 + 2);
            fs::write(topology.join("thread_siblings_list"), siblings).unwrap();
        }
        assert_eq!(physical_cores(folder.path()), Some(2));
    }

    #[test]
    fn the_kernels_in_use_are_among_those_available() {
        let processor = processor(Some(1));
        assert!(processor.device.contains(processor.kernels[0]), "{processor:?}");
        assert!(processor.kernels.contains(&"portable") && processor.logical_cores >= 1);
    }
}
