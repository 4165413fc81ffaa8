//! Running a command under a memory limit, with cgroup v1 or v2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const V1_ROOT: &str = "/sys/fs/cgroup/memory";
const V2_ROOT: &str = "/sys/fs/cgroup";

/// A memory cgroup of its own; removed when dropped.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    version: u8,
}

impl Cgroup {
    /// With a limit on memory, page cache and kernel buffers included. Needs root.
    ///
    /// Panics where no memory controller can be had: a test that needs one must not pass without.
    pub fn with_memory_limit(limit_bytes: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("mover-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let v1 = Path::new(V1_ROOT).join("memory.limit_in_bytes").exists();
        let (root, version) = if v1 { (V1_ROOT, 1) } else { (V2_ROOT, 2) };
        if version == 2 {
            // Fails harmlessly where the controller is on already.
            let _ = fs::write(Path::new(root).join("cgroup.subtree_control"), "+memory");
        }
        let directory = Path::new(root).join(name);
        fs::create_dir(&directory)
            .unwrap_or_else(|error| panic!("create the cgroup {}: {error}", directory.display()));
        let cgroup = Self { directory, version };
        cgroup.write(cgroup.pick("memory.limit_in_bytes", "memory.max"), limit_bytes);
        cgroup
    }

    /// A command that runs inside.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", r#"echo $$ > "$0" && exec "$@""#])
            .arg(self.directory.join("cgroup.procs"))
            .arg(program);
        command
    }

    /// The most that was ever charged, page cache included. On v2 it needs Linux 5.19.
    pub fn peak_bytes(&self) -> u64 {
        self.read(self.pick("memory.max_usage_in_bytes", "memory.peak"))
    }

    /// Whether the kernel killed something in here for want of memory.
    pub fn killed_for_memory(&self) -> bool {
        let file = self.pick("memory.oom_control", "memory.events");
        let text = fs::read_to_string(self.directory.join(file)).expect("read the cgroup");
        text.lines()
            .any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
    }

    fn pick<'a>(&self, v1: &'a str, v2: &'a str) -> &'a str {
        if self.version == 1 { v1 } else { v2 }
    }

    fn write(&self, file: &str, value: u64) {
        let path = self.directory.join(file);
        fs::write(&path, value.to_string())
            .unwrap_or_else(|error| panic!("write {value} to {}: {error}", path.display()));
    }

    fn read(&self, file: &str) -> u64 {
        let path = self.directory.join(file);
        let text = fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
        text.trim().parse().expect("the kernel writes a number")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Whoever is left in here keeps it; then it shows up below /sys/fs/cgroup by its name.
        let _ = fs::remove_dir(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_and_the_peak_is_seen() {
        crate::require_root!();
        let cgroup = Cgroup::with_memory_limit(64 << 20);
        let status =
            cgroup.command(Path::new("/bin/sh")).args(["-c", "true"]).status().expect("run");
        assert!(status.success());
        assert!(!cgroup.killed_for_memory());
        let hungry = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x} >/dev/null";
        let output =
            cgroup.command(Path::new("/bin/sh")).args(["-c", hungry]).output().expect("run");
        assert!(!output.status.success(), "200 MB went through a limit of 64 MiB");
        assert!(cgroup.killed_for_memory());
        assert!(cgroup.peak_bytes() <= 64 << 20);
        assert!(cgroup.peak_bytes() > 32 << 20);
    }
}
