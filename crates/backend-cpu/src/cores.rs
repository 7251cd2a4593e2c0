//! Which cores to use.
//!
//! By default there is a thread for each core of the fastest kind in one part of the machine. Two hyper-threads share a
//! core's arithmetic units, so the second gains nothing. A slow core keeps all others waiting at the end of every
//! operation. Cores of another socket read our memory at a fraction of the speed, and what they write comes back as
//! slowly.

use std::path::Path;
use std::sync::LazyLock;
use std::{fs, process, thread};

/// Where Linux describes processors.
const DEVICES: &str = "/sys/devices";

/// Number of threads by default, and the processors they are pinned to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    pub(crate) count: usize,
    /// Logical processors; empty where all that we may use are alike.
    pub(crate) affinity: Vec<usize>,
}

impl Cores {
    /// The choice for this machine and process, made once.
    pub(crate) fn of_machine() -> &'static Self {
        static FOUND: LazyLock<Cores> = LazyLock::new(Cores::find);
        &FOUND
    }

    fn find() -> Self {
        let logical = thread::available_parallelism().map_or(1, usize::from);
        let allowed = allowed();
        let best = allowed.and_then(|allowed| {
            let cores = Core::all(Path::new(DEVICES), &allowed)?;
            Some(best(cores, allowed.len()))
        });
        let Self { count, affinity } = best.unwrap_or_else(|| {
            // macOS schedules busy threads on performance cores by itself.
            let count = if cfg!(target_os = "macos") { fast_cores_of_a_mac() } else { None };
            Self { count: count.unwrap_or(logical), affinity: Vec::new() }
        });
        // A container may have a CPU quota below its number of processors.
        Self { count: count.clamp(1, logical), affinity }
    }
}

/// A physical core.
struct Core {
    /// Logical processors of it that we may use.
    cpus: Vec<usize>,
    /// Speed relative to the others.
    capacity: i64,
    node: usize,
    package: i64,
}

impl Core {
    /// The physical cores of the logical processors `allowed`, if the system describes them.
    fn all(devices: &Path, allowed: &[usize]) -> Option<Vec<Self>> {
        let slow = list(&devices.join("cpu_atom/cpus")).unwrap_or_default();
        let nodes = nodes(devices);
        let mut cores: Vec<(Vec<usize>, Self)> = Vec::new();
        for &cpu in allowed {
            let about = devices.join(format!("system/cpu/cpu{cpu}"));
            let siblings = list(&about.join("topology/thread_siblings_list"))?;
            if let Some((_, core)) = cores.iter_mut().find(|(known, _)| *known == siblings) {
                core.cpus.push(cpu);
                continue;
            }
            let number =
                |name: &str| fs::read_to_string(about.join(name)).ok()?.trim().parse().ok();
            let capacity = number("cpu_capacity").unwrap_or(1024);
            let node = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu));
            let core = Self {
                cpus: vec![cpu],
                capacity: if slow.contains(&cpu) { capacity.min(512) } else { capacity },
                node: node.map_or(0, |&(number, _)| number),
                package: number("topology/physical_package_id").unwrap_or(0),
            };
            cores.push((siblings, core));
        }
        Some(cores.into_iter().map(|(_, core)| core).collect())
    }

    /// Whether the two are in one socket or memory node. A virtual machine may show a socket for every core in one
    /// node, and a socket may be divided into several nodes.
    fn is_near(&self, other: &Self) -> bool {
        self.node == other.node || self.package == other.package
    }
}

/// Memory nodes and their logical processors.
fn nodes(devices: &Path) -> Vec<(usize, Vec<usize>)> {
    let Ok(entries) = fs::read_dir(devices.join("system/node")) else { return Vec::new() };
    let node = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, list(&entry.path().join("cpulist"))?))
    };
    entries.flatten().filter_map(node).collect()
}

/// The largest group of fast cores that are near each other.
fn best(cores: Vec<Core>, allowed: usize) -> Cores {
    let fastest = cores.iter().map(|core| core.capacity).max().unwrap_or(0);
    let mut regions: Vec<Vec<Core>> = Vec::new();
    for core in cores.into_iter().filter(|core| 3 * core.capacity >= 2 * fastest) {
        let (near, mut far): (Vec<_>, Vec<_>) =
            regions.into_iter().partition(|region| region.iter().any(|known| known.is_near(&core)));
        let mut region: Vec<Core> = near.into_iter().flatten().collect();
        region.push(core);
        far.push(region);
        regions = far;
    }
    // The first of equal groups, where this process most likely has its memory.
    regions.sort_by_key(|region| (usize::MAX - region.len(), region[0].cpus[0]));
    let region = regions.into_iter().next().unwrap_or_default();
    let count = region.len();
    let mut affinity: Vec<usize> = region.into_iter().flat_map(|core| core.cpus).collect();
    affinity.sort_unstable();
    if affinity.len() == allowed {
        affinity.clear();
    }
    Cores { count, affinity }
}

/// Logical processors that this process may use, if the system tells.
fn allowed() -> Option<Vec<usize>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    parse_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

fn list(path: &Path) -> Option<Vec<usize>> {
    parse_list(&fs::read_to_string(path).ok()?)
}

/// A list of numbers as Linux writes it: `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(numbers)
}

/// By running `sysctl`, since the standard library has no call for it.
fn fast_cores_of_a_mac() -> Option<usize> {
    let mut command = process::Command::new("/usr/sbin/sysctl");
    let output = command.args(["-n", "hw.perflevel0.physicalcpu"]).output().ok()?;
    std::str::from_utf8(&output.stdout).ok()?.trim().parse().ok()
}

/// Pins the calling thread to these logical processors, if there are any and the system supports it. A failure only
/// costs speed.
pub(crate) fn pin_thread(affinity: &[usize]) {
    #[cfg(target_os = "linux")]
    if !affinity.is_empty() {
        // SAFETY: an all-zero `cpu_set_t` is the empty set; `CPU_SET` gets numbers below `CPU_SETSIZE`; pid 0 is the
        // calling thread, and the size passed is that of the set.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for &cpu in affinity.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
                libc::CPU_SET(cpu, &mut set);
            }
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = affinity;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine as Linux describes it.
    struct Described(tempfile::TempDir);

    impl Described {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn put(&self, file: &str, text: &str) -> &Self {
            let file = self.0.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
            self
        }

        fn cpu(&self, cpu: usize, siblings: &str, package: usize) -> &Self {
            let about = format!("system/cpu/cpu{cpu}/topology");
            self.put(&format!("{about}/thread_siblings_list"), siblings)
                .put(&format!("{about}/physical_package_id"), &package.to_string())
        }

        fn best(&self, allowed: &str) -> Option<(usize, Vec<usize>)> {
            let allowed = parse_list(allowed).unwrap();
            let Cores { count, affinity } =
                best(Core::all(self.0.path(), &allowed)?, allowed.len());
            Some((count, affinity))
        }
    }

    #[test]
    fn two_threads_of_a_core_count_once() {
        let machine = Described::new();
        for cpu in 0..8 {
            machine.cpu(cpu, &format!("{},{}", cpu % 4, cpu % 4 + 4), 0);
        }
        assert_eq!(machine.best("0-7"), Some((4, vec![])));
        assert_eq!(machine.best("0,1,5"), Some((2, vec![])), "of a process that may use three");
    }

    #[test]
    fn slow_cores_are_left_out() {
        // Two fast cores of two threads each and four slow ones, as Intel's are told apart.
        let machine = Described::new();
        for cpu in 0..4 {
            machine.cpu(cpu, if cpu < 2 { "0-1" } else { "2-3" }, 0);
        }
        for cpu in 4..8 {
            machine.cpu(cpu, &cpu.to_string(), 0);
        }
        machine.put("cpu_core/cpus", "0-3").put("cpu_atom/cpus", "4-7");
        assert_eq!(machine.best("0-7"), Some((2, vec![0, 1, 2, 3])));
        assert_eq!(machine.best("4-6"), Some((3, vec![])), "where there is nothing else");
        // One core above two fast ones, and five slow ones, by capacity.
        let machine = Described::new();
        for (cpu, capacity) in [290, 290, 290, 290, 290, 871, 871, 1024].into_iter().enumerate() {
            machine.cpu(cpu, &cpu.to_string(), 0);
            machine.put(&format!("system/cpu/cpu{cpu}/cpu_capacity"), &capacity.to_string());
        }
        assert_eq!(machine.best("0-7"), Some((3, vec![5, 6, 7])));
    }

    #[test]
    fn threads_stay_on_one_socket() {
        let machine = Described::new();
        for cpu in 0..8 {
            machine.cpu(cpu, &cpu.to_string(), cpu / 4);
        }
        assert_eq!(machine.best("0-7"), Some((8, vec![])), "memory is all alike");
        machine.put("system/node/node0/cpulist", "0-3").put("system/node/node1/cpulist", "4-7");
        assert_eq!(machine.best("0-7"), Some((4, vec![0, 1, 2, 3])));
        assert_eq!(machine.best("2-7"), Some((4, vec![4, 5, 6, 7])), "the larger part");
        assert_eq!(machine.best("5-7"), Some((3, vec![])));
        // Two nodes in each socket.
        machine.put("system/node/node0/cpulist", "0-1").put("system/node/node1/cpulist", "2-3");
        machine.put("system/node/node2/cpulist", "4-5").put("system/node/node3/cpulist", "6-7");
        machine.put("system/node/has_cpu", "0-3");
        assert_eq!(machine.best("0-7"), Some((4, vec![0, 1, 2, 3])));
    }

    #[test]
    fn a_virtual_machine_with_a_socket_for_every_core_uses_all_of_them() {
        let machine = Described::new();
        for cpu in 0..4 {
            machine.cpu(cpu, &cpu.to_string(), cpu);
        }
        machine.put("system/node/node0/cpulist", "0-3");
        assert_eq!(machine.best("0-3"), Some((4, vec![])));
    }

    #[test]
    fn a_system_that_does_not_tell_is_not_drafted_at() {
        assert_eq!(Described::new().best("0-3"), None);
        for text in ["x", "1-", "0-3,y", "-1"] {
            assert_eq!(parse_list(text), None, "{text}");
        }
        assert_eq!(parse_list("\t0-2,7\n"), Some(vec![0, 1, 2, 7]));
        assert!(Cores::of_machine().count >= 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_stays_where_it_was_told_to() {
        let here = || {
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
            parse_list(list.unwrap()).unwrap()
        };
        thread::spawn(move || {
            let before = here();
            pin_thread(&[]);
            assert_eq!(here(), before);
            pin_thread(&before[..1]);
            assert_eq!(here(), before[..1]);
            pin_thread(&[usize::MAX]);
            assert_eq!(here(), before[..1], "a set of nothing is refused");
        })
        .join()
        .unwrap();
    }
}
