//! Keeps what the C library's allocator holds back within the memory budget.
//!
//! glibc gives each thread an arena of its own and raises the size from which memory goes back to
//! the system to as much as 32 MiB. With packs and ranges of many MiB passing through a dozen
//! threads that kept 50% over the budget resident (153 MB at `--memory 128MiB`, 115 with two
//! arenas).

/// To be called once, before threads are started.
#[cfg(target_env = "gnu")]
pub fn bound() {
    const ARENAS_MAX: libc::c_int = 2;
    const MMAP_BYTES_MIN: libc::c_int = 2 << 20;
    // SAFETY: plain settings of the allocator, made while the process has one thread. A refusal
    // changes nothing.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_BYTES_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MMAP_BYTES_MIN);
    }
}

/// Other C libraries give memory back by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn bound() {}
