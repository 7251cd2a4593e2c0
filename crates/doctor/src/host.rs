//! What the system says of the machine: memory, a container's limits, graphics adapters and their drivers.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The machine. It holds nothing that tells whose it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Host {
    /// `linux`, `macos`, `windows`.
    pub system: &'static str,
    /// Its version, if it tells.
    pub release: Option<String>,
    /// Main memory.
    pub memory: MemorySizes,
    /// What a container may use.
    pub container: ContainerLimits,
    /// Graphics adapters on the bus, with or without a driver (Linux).
    pub graphics: Vec<GraphicsAdapter>,
    /// Version of the kernel's NVIDIA driver, where it is loaded.
    pub nvidia_driver: Option<String>,
}

/// Main memory in bytes; null where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemorySizes {
    /// Of the machine.
    pub total_bytes: Option<u64>,
    /// That programs could still get, within a container's limit.
    pub available_bytes: Option<u64>,
}

/// Limits of the control group this process runs in; null where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ContainerLimits {
    /// Most memory of all its processes.
    pub memory_bytes: Option<u64>,
    /// What they use now.
    pub memory_used_bytes: Option<u64>,
    /// Most processor time, in processors.
    pub cpus: Option<f64>,
}

/// A graphics adapter on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphicsAdapter {
    /// The maker, where it is known.
    pub vendor: &'static str,
    /// Vendor and device as numbers.
    pub id: String,
    /// The kernel's driver for it; null where none is bound.
    pub driver: Option<String>,
}

impl Host {
    /// Asks the system.
    pub fn read() -> Self {
        Self::under(Path::new("/"))
    }

    /// The same, with another root folder.
    fn under(root: &Path) -> Self {
        let container = container(root);
        Self {
            system: std::env::consts::OS,
            release: line(&root.join("proc/sys/kernel/osrelease")),
            memory: memory(root, &container),
            container,
            graphics: graphics(root),
            nvidia_driver: line(&root.join("proc/driver/nvidia/version")),
        }
    }
}

/// The first line of a file.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

fn memory(root: &Path, container: &ContainerLimits) -> MemorySizes {
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let left = container.memory_bytes.zip(container.memory_used_bytes);
    let left = left.map(|(most, used)| most.saturating_sub(used));
    let available = field("MemAvailable");
    MemorySizes {
        total_bytes: field("MemTotal"),
        available_bytes: available.map(|bytes| bytes.min(left.unwrap_or(bytes))).or(left),
    }
}

/// The tightest limits of this process's control group and those above it.
fn container(root: &Path) -> ContainerLimits {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut limits = ContainerLimits::default();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let has = |name: &str| controllers.split(',').any(|controller| controller == name);
        if controllers.is_empty() {
            for folder in group_folders(&root.join("sys/fs/cgroup"), path) {
                limits.tighten(unified(&folder));
            }
        } else if has("memory") {
            for folder in group_folders(&root.join("sys/fs/cgroup/memory"), path) {
                limits.tighten(first_version_memory(&folder));
            }
        } else if has("cpu") {
            for folder in group_folders(&root.join("sys/fs/cgroup/cpu"), path) {
                limits.tighten(first_version_cpu(&folder));
            }
        }
    }
    limits
}

/// A group's folder and all above it. Inside a container the group may be mounted as the root, so that its path is not
/// there.
fn group_folders(mount: &Path, path: &str) -> Vec<PathBuf> {
    let group = mount.join(path.trim_start_matches('/'));
    group.ancestors().take_while(|at| at.starts_with(mount)).map(Path::to_owned).collect()
}

impl ContainerLimits {
    fn tighten(&mut self, other: Self) {
        if let Some(memory) = other.memory_bytes
            && self.memory_bytes.is_none_or(|known| memory < known)
        {
            self.memory_bytes = Some(memory);
            self.memory_used_bytes = other.memory_used_bytes;
        }
        if let Some(cpus) = other.cpus {
            self.cpus = Some(self.cpus.map_or(cpus, |known| known.min(cpus)));
        }
    }
}

fn number(path: &Path) -> Option<u64> {
    line(path)?.parse().ok()
}

/// Limits of a group of version 2; `max` is none.
fn unified(folder: &Path) -> ContainerLimits {
    let cpus = line(&folder.join("cpu.max")).and_then(|text| {
        let (quota, period) = text.split_once(' ')?;
        share(quota.parse().ok()?, period.parse().ok()?)
    });
    ContainerLimits {
        memory_bytes: number(&folder.join("memory.max")),
        memory_used_bytes: number(&folder.join("memory.current")),
        cpus,
    }
}

fn first_version_memory(folder: &Path) -> ContainerLimits {
    // What means no limit is a number near 2^63.
    let limit = number(&folder.join("memory.limit_in_bytes")).filter(|&bytes| bytes < 1 << 60);
    let used = number(&folder.join("memory.usage_in_bytes"));
    ContainerLimits { memory_bytes: limit, memory_used_bytes: used, cpus: None }
}

fn first_version_cpu(folder: &Path) -> ContainerLimits {
    let quota = line(&folder.join("cpu.cfs_quota_us")).and_then(|text| text.parse().ok());
    let period = line(&folder.join("cpu.cfs_period_us")).and_then(|text| text.parse().ok());
    let cpus = quota.zip(period).and_then(|(quota, period)| share(quota, period));
    ContainerLimits { cpus, ..ContainerLimits::default() }
}

/// Processors' worth of time; a negative quota is none.
fn share(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// Adapters of the class of displays, by the system's list of the PCI bus.
fn graphics(root: &Path) -> Vec<GraphicsAdapter> {
    let Ok(devices) = fs::read_dir(root.join("sys/bus/pci/devices")) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = devices.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders.iter().filter_map(|folder| adapter(folder)).collect()
}

fn adapter(folder: &Path) -> Option<GraphicsAdapter> {
    let hex = |name: &str| line(&folder.join(name))?.strip_prefix("0x").map(str::to_owned);
    // Class 03 is displays and 3D controllers, 12 are processing accelerators.
    hex("class").filter(|class| class.starts_with("03") || class.starts_with("12"))?;
    let (vendor, device) = (hex("vendor")?, hex("device")?);
    let driver = fs::read_link(folder.join("driver")).ok();
    Some(GraphicsAdapter {
        vendor: match vendor.as_str() {
            "10de" => "NVIDIA",
            "1002" => "AMD",
            "8086" => "Intel",
            "1af4" => "virtio",
            _ => "unknown",
        },
        id: format!("{vendor}:{device}"),
        driver: driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine as Linux describes it.
    struct Described(tempfile::TempDir);

    impl Described {
        fn new(files: &[(&str, &str)]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            for (file, text) in files {
                let file = folder.path().join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, format!("{text}\n")).unwrap();
            }
            Self(folder)
        }

        fn host(&self) -> Host {
            Host::under(self.0.path())
        }
    }

    const MEMORY: (&str, &str) =
        ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB");

    #[test]
    fn memory_is_what_is_left_within_the_tightest_limit_of_a_container() {
        let free = Described::new(&[MEMORY]).host();
        let sizes = |total: u64, available: u64| MemorySizes {
            total_bytes: Some(total * 1024),
            available_bytes: Some(available * 1024),
        };
        assert_eq!((free.memory, free.container), (sizes(1000, 600), ContainerLimits::default()));
        let contained = Described::new(&[
            MEMORY,
            ("proc/self/cgroup", "0::/pod/box"),
            ("sys/fs/cgroup/pod/memory.max", "409600"),
            ("sys/fs/cgroup/pod/memory.current", "102400"),
            ("sys/fs/cgroup/pod/box/memory.max", "max"),
            ("sys/fs/cgroup/pod/box/cpu.max", "150000 100000"),
            ("sys/fs/cgroup/pod/cpu.max", "max 100000"),
        ])
        .host();
        assert_eq!(contained.memory, sizes(1000, 300));
        assert_eq!(contained.container.memory_bytes, Some(409_600));
        assert_eq!(contained.container.cpus, Some(1.5));
    }

    #[test]
    fn control_groups_of_the_first_version_have_limits_too() {
        let host = Described::new(&[
            MEMORY,
            ("proc/self/cgroup", "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "204800"),
            ("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "2048"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "50000"),
            ("sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000"),
        ])
        .host();
        assert_eq!(host.container.memory_bytes, Some(204_800));
        assert_eq!(host.container.cpus, Some(0.5));
        assert_eq!(host.memory.available_bytes, Some(202_752));
    }

    #[test]
    fn a_gpu_without_a_driver_is_listed_and_other_devices_are_not() {
        let pci = "sys/bus/pci/devices";
        let host = Described::new(&[
            (&format!("{pci}/0000:01:00.0/class"), "0x030200"),
            (&format!("{pci}/0000:01:00.0/vendor"), "0x10de"),
            (&format!("{pci}/0000:01:00.0/device"), "0x2335"),
            (&format!("{pci}/0000:02:00.0/class"), "0x020000"),
            (&format!("{pci}/0000:02:00.0/vendor"), "0x8086"),
            (&format!("{pci}/0000:02:00.0/device"), "0x1572"),
            ("proc/driver/nvidia/version", "NVRM version: NVIDIA 580.1"),
        ])
        .host();
        let adapter =
            GraphicsAdapter { vendor: "NVIDIA", id: "10de:2335".to_owned(), driver: None };
        assert_eq!(host.graphics, [adapter]);
        assert_eq!(host.nvidia_driver.as_deref(), Some("NVRM version: NVIDIA 580.1"));
    }

    #[test]
    fn a_system_that_tells_nothing_is_described_by_nothing() {
        let host = Described::new(&[]).host();
        assert_eq!((host.memory, host.graphics), (MemorySizes::default(), Vec::new()));
    }
}
