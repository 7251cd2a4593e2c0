//! Memory of this machine, and what a container leaves of it. Only Linux tells; elsewhere nothing is known.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

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
    /// What they use now, without files whose pages can be dropped.
    pub memory_used_bytes: Option<u64>,
    /// Most processor time, in processors.
    pub cpus: Option<f64>,
}

impl MemorySizes {
    /// Asks the system.
    pub fn read() -> Self {
        Self::under(Path::new("/"), &ContainerLimits::read())
    }

    /// The same with another root folder, within limits.
    pub fn under(root: &Path, container: &ContainerLimits) -> Self {
        let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let field = |name: &str| -> Option<u64> {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let left = container.left();
        let available = field("MemAvailable");
        Self {
            total_bytes: field("MemTotal"),
            available_bytes: available.map(|bytes| bytes.min(left.unwrap_or(bytes))).or(left),
        }
    }
}

impl ContainerLimits {
    /// Asks the system.
    pub fn read() -> Self {
        Self::under(Path::new("/"))
    }

    /// The tightest limits of this process's control group and those above it, with another root folder.
    pub fn under(root: &Path) -> Self {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mut limits = Self::default();
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
}

/// The first line of a file.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// A group's folder and all above it. Inside a container the group may be mounted as the root, so that its path is not
/// there.
fn group_folders(mount: &Path, path: &str) -> Vec<PathBuf> {
    let group = mount.join(path.trim_start_matches('/'));
    group.ancestors().take_while(|at| at.starts_with(mount)).map(Path::to_owned).collect()
}

impl ContainerLimits {
    /// What is left of the limit.
    fn left(&self) -> Option<u64> {
        Some(self.memory_bytes?.saturating_sub(self.memory_used_bytes.unwrap_or(0)))
    }

    fn tighten(&mut self, other: Self) {
        // A wide limit that is nearly used up leaves less than a narrow one that is not.
        if other.left().is_some_and(|left| self.left().is_none_or(|known| left < known)) {
            let memory = other.memory_bytes;
            self.memory_bytes = memory;
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

/// What a group uses, without the pages of files that the system drops when memory is short: those of a model's file
/// that was read are most of what a group seems to use.
fn working_set(folder: &Path, used: &str, droppable: &str) -> Option<u64> {
    let used = number(&folder.join(used))?;
    let about = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let pages = about.lines().find_map(|line| line.strip_prefix(droppable)?.parse::<u64>().ok());
    Some(used.saturating_sub(pages.unwrap_or(0)))
}

/// Limits of a group of version 2; `max` is none.
fn unified(folder: &Path) -> ContainerLimits {
    let cpus = line(&folder.join("cpu.max")).and_then(|text| {
        let (quota, period) = text.split_once(' ')?;
        share(quota.parse().ok()?, period.parse().ok()?)
    });
    ContainerLimits {
        memory_bytes: number(&folder.join("memory.max")),
        memory_used_bytes: working_set(folder, "memory.current", "inactive_file "),
        cpus,
    }
}

fn first_version_memory(folder: &Path) -> ContainerLimits {
    // What means no limit is a number near 2^63.
    let limit = number(&folder.join("memory.limit_in_bytes")).filter(|&bytes| bytes < 1 << 60);
    let used = working_set(folder, "memory.usage_in_bytes", "total_inactive_file ");
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

        fn limits(&self) -> ContainerLimits {
            ContainerLimits::under(self.0.path())
        }

        fn memory(&self) -> MemorySizes {
            MemorySizes::under(self.0.path(), &self.limits())
        }
    }

    const MEMORY: (&str, &str) =
        ("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB");

    #[test]
    fn memory_is_what_is_left_within_the_tightest_limit_of_a_container() {
        let free = Described::new(&[MEMORY]);
        let sizes = |total: u64, available: u64| MemorySizes {
            total_bytes: Some(total * 1024),
            available_bytes: Some(available * 1024),
        };
        assert_eq!((free.memory(), free.limits()), (sizes(1000, 600), ContainerLimits::default()));
        let contained = Described::new(&[
            MEMORY,
            ("proc/self/cgroup", "0::/pod/box"),
            ("sys/fs/cgroup/pod/memory.max", "409600"),
            ("sys/fs/cgroup/pod/memory.current", "102400"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 4\ninactive_file 1024\nactive_file 5"),
            ("sys/fs/cgroup/pod/box/memory.max", "max"),
            ("sys/fs/cgroup/pod/box/cpu.max", "150000 100000"),
            ("sys/fs/cgroup/pod/cpu.max", "max 100000"),
        ]);
        assert_eq!(contained.memory(), sizes(1000, 301), "pages of files can be dropped");
        assert_eq!(contained.limits().memory_bytes, Some(409_600));
        assert_eq!(contained.limits().cpus, Some(1.5));
    }

    #[test]
    fn of_nested_limits_the_one_that_leaves_least_counts() {
        let nested = Described::new(&[
            MEMORY,
            ("proc/self/cgroup", "0::/pod/box"),
            ("sys/fs/cgroup/pod/memory.max", "512000"),
            ("sys/fs/cgroup/pod/memory.current", "409600"),
            ("sys/fs/cgroup/pod/box/memory.max", "204800"),
            ("sys/fs/cgroup/pod/box/memory.current", "1024"),
        ]);
        assert_eq!(nested.memory().available_bytes, Some(102_400));
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
        ]);
        assert_eq!(host.limits().memory_bytes, Some(204_800));
        assert_eq!(host.limits().cpus, Some(0.5));
        assert_eq!(host.memory().available_bytes, Some(202_752));
    }

    #[test]
    fn a_system_that_tells_nothing_is_described_by_nothing() {
        assert_eq!(Described::new(&[]).memory(), MemorySizes::default());
    }
}
