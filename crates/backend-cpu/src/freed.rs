//! Memory that was freed, back to the system.

/// Gives memory that the allocator keeps for later back to the system, where it offers a way. Takes some milliseconds.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes any padding and may be called by any thread at any time (malloc_trim(3): MT-Safe).
    unsafe {
        libc::malloc_trim(0);
    }
}
