//! The machine: what it is, what all of it used, and its page cache.

use crate::failed;
use chunkstore::Result;
use serde::{Deserialize, Serialize};

/// What figures depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// Those that this process may use.
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) memory_bytes: u64,
    /// `release`, or `debug`: figures of which mean nothing.
    pub(crate) build: String,
}

impl Machine {
    pub(crate) fn look() -> Self {
        // what cannot be read is left empty; a figure is worth having all the same
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let model = |text: &str| {
            text.lines()
                .find(|l| l.starts_with("model name"))
                .and_then(|l| Some(l.split_once(':')?.1.trim().to_owned()))
        };
        Self {
            cpu: model(&read("/proc/cpuinfo")).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: field_kib(&read("/proc/meminfo"), "MemTotal:").unwrap_or(0),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
        }
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{}, {} cores, {} memory, Linux {}, {} build",
            self.cpu,
            self.cores,
            mover_engine::sizes::show_bytes(self.memory_bytes),
            self.kernel,
            self.build
        )
    }
}

/// Bytes of a line like `VmHWM:   1234 kB`.
fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Most memory that this process had resident since it was started. Unlike `ru_maxrss` it does not
/// begin with what the process that started it had.
pub(crate) fn own_peak_rss_bytes() -> Result<u64> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).map_err(|e| failed(format!("read {path}"), e))?;
    field_kib(&text, "VmHWM:").ok_or_else(|| {
        failed(format!("find VmHWM in {path}"), std::io::ErrorKind::Unsupported.into())
    })
}

/// CPU seconds that the whole machine has been busy, kernel threads included (those of loop
/// devices, for instance).
pub(crate) fn busy_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u32> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        // a machine that has been up for years may have more ticks than fit: then only differences
        // are right
        .map(|n| n.parse::<u64>().map(|n| u32::try_from(n % (1 << 32)).unwrap_or(0)))
        .collect::<std::result::Result<_, _>>()
        .ok()?;
    // user, nice, system, irq, softirq; not idle, iowait, steal
    let busy: f64 =
        [0, 1, 2, 5, 6].iter().filter_map(|i| ticks.get(*i)).map(|t| f64::from(*t)).sum();
    Some(busy / 100.0)
}

/// Whether the page cache was emptied, so that what is read next comes from the device.
pub(crate) fn drop_caches() -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_read() {
        assert_eq!(field_kib("VmPeak: 9 kB\nVmHWM:\t   12 kB\n", "VmHWM:"), Some(12_288));
        assert_eq!(field_kib("VmHWM: many kB", "VmHWM:"), None);
        assert!(own_peak_rss_bytes().unwrap() > 100_000);
        let machine = Machine::look();
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && machine.memory_bytes > 1 << 20);
        assert!(busy_seconds().unwrap() > 0.0);
    }
}
