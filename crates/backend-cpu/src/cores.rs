//! How many threads are worth having.

use std::collections::HashSet;
use std::fs;

/// Physical cores this process may use, where the system tells (Linux); else its logical ones.
///
/// Two threads of one core share its arithmetic units, so the second brings nothing here.
pub(crate) fn cores() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    physical().map_or(logical, |cores| cores.clamp(1, logical))
}

fn physical() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cores = HashSet::new();
    for range in allowed.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for cpu in first.parse::<usize>().ok()?..=last.parse::<usize>().ok()? {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            cores.insert(fs::read_to_string(path).ok()?);
        }
    }
    Some(cores.len())
}
