//! Resident memory of this process.

/// In bytes, where the system tells (Linux).
pub(crate) fn bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_touched_becomes_resident() {
        const FILLER_BYTES: usize = 64 << 20;
        let before = bytes().expect("Linux tells");
        let filler = vec![1_u8; FILLER_BYTES];
        let after = bytes().expect("Linux tells");
        // Other tests run beside this one, and may free memory meanwhile.
        assert!(after >= before + FILLER_BYTES as u64 / 2, "{before} to {after}");
        assert!(std::hint::black_box(filler).len() == FILLER_BYTES);
    }
}
