//! The name of this program and of this machine, as they stand in what is stored.

/// Program and version.
pub fn tool() -> String {
    format!("mover {}", env!("CARGO_PKG_VERSION"))
}

/// Name of this machine or pod.
pub fn host() -> String {
    // the kernel's own answer; a name that cannot be had is not worth a failure
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}
