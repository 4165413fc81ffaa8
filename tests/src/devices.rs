//! Loop devices and mounts, given back when they are dropped, on a panic too.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a program of the system and gives its output; panics when it cannot be started.
///
/// `/usr/sbin` is searched too: the tools for filesystems live there, and not every shell's `PATH`
/// has it.
pub fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Output {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    Command::new("env")
        .env("PATH", path)
        .env("LC_ALL", "C")
        .arg(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("start {program}: {error}"))
}

/// Like [`run`], and panics unless it succeeded; gives the trimmed standard output.
pub fn run_ok<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> String {
    let args: Vec<_> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
    let output = run(program, &args);
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A loop device over an image file, with direct I/O; detached when dropped.
#[derive(Debug)]
pub struct LoopDevice {
    device: PathBuf,
}

impl LoopDevice {
    /// With 512-byte sectors.
    pub fn attach(image: &Path) -> Self {
        Self::attach_with_sectors(image, 512)
    }

    /// With logical sectors of `sector_bytes` (512 or 4096).
    pub fn attach_with_sectors(image: &Path, sector_bytes: u32) -> Self {
        Self::losetup(image, sector_bytes, &["--direct-io=on"])
    }

    /// Read-only, with 512-byte sectors.
    pub fn attach_read_only(image: &Path) -> Self {
        Self::losetup(image, 512, &["--direct-io=on", "--read-only"])
    }

    /// Through the page cache of what it is over.
    pub fn attach_cached(image: &Path) -> Self {
        Self::losetup(image, 512, &["--direct-io=off"])
    }

    fn losetup(image: &Path, sector_bytes: u32, more: &[&str]) -> Self {
        let sectors = sector_bytes.to_string();
        let mut args = vec!["--find", "--show", "--sector-size", sectors.as_str()];
        args.extend(more);
        let mut args: Vec<&OsStr> = args.into_iter().map(OsStr::new).collect();
        args.push(image.as_os_str());
        // The printed name is the device; a remembered number would be somebody else's.
        let device = PathBuf::from(run_ok("losetup", args));
        assert!(device.starts_with("/dev"), "losetup printed {}", device.display());
        let this = Self { device };
        this.delete_partitions();
        // The kernel keeps a mark of the device's last user.
        if !more.contains(&"--read-only") {
            run_ok("blockdev", [OsStr::new("--setrw"), this.device.as_os_str()]);
        }
        this
    }

    /// The kernel keeps the partitions of the device's last user, too.
    fn delete_partitions(&self) {
        let name = self.device.file_name().expect("a device has a name").to_string_lossy();
        let entries = std::fs::read_dir(format!("/sys/block/{name}")).expect("list the device");
        for entry in entries.flatten() {
            let entry = entry.file_name().to_string_lossy().into_owned();
            if let Some(number) = entry.strip_prefix(&format!("{name}p")) {
                run_ok("delpart", [self.device.as_os_str(), OsStr::new(number)]);
            }
        }
    }

    /// Such as `/dev/loop3`.
    pub fn path(&self) -> &Path {
        &self.device
    }

    /// Takes over the image's new size.
    pub fn refresh_size(&self) {
        run_ok("losetup", [OsStr::new("--set-capacity"), self.device.as_os_str()]);
    }

    /// Size in bytes, as the kernel says.
    pub fn size_bytes(&self) -> u64 {
        run_ok("blockdev", [OsStr::new("--getsize64"), self.device.as_os_str()])
            .parse()
            .expect("blockdev prints a number")
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let output = run("losetup", [OsStr::new("--detach"), self.device.as_os_str()]);
        if !output.status.success() && !std::thread::panicking() {
            panic!("detach {}: {}", self.device.display(), String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// A mounted filesystem; unmounted when dropped. Declare it behind the device it is on: fields and
/// locals are dropped in an order that unmounts first only then.
#[derive(Debug)]
pub struct Mount {
    directory: PathBuf,
}

impl Mount {
    /// `options` as for `mount -o`.
    pub fn new(device: &Path, directory: &Path, kind: &str, options: &str) -> Self {
        std::fs::create_dir_all(directory).expect("make the mount point");
        run_ok(
            "mount",
            [
                OsStr::new("-t"),
                OsStr::new(kind),
                OsStr::new("-o"),
                OsStr::new(options),
                device.as_os_str(),
                directory.as_os_str(),
            ],
        );
        Self { directory: directory.to_owned() }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A process that another thread is starting holds all our files until it becomes its
        // program: the mount is busy for that moment. Each attempt is a process of its own, which
        // takes longer.
        let mut output = run("umount", [&self.directory]);
        for _ in 0..100 {
            if output.status.success() || !String::from_utf8_lossy(&output.stderr).contains("busy")
            {
                break;
            }
            output = run("umount", [&self.directory]);
        }
        if !output.status.success() {
            // Lazily, so that a failed test leaves no device attached for good.
            run("umount", [OsStr::new("--lazy"), self.directory.as_os_str()]);
            assert!(
                std::thread::panicking(),
                "unmount {}: {}",
                self.directory.display(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
