//! Devices for these tests, given back when dropped, and the few commands that make them.

use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Says loudly that a test does nothing when it does nothing.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        skip("block devices need root");
    }
    root
}

/// Straight to standard error: the test harness hides what a passing test prints.
pub(crate) fn skip(why: &str) {
    let _ = writeln!(std::io::stderr().lock(), "\nSKIP: {why}");
}

/// Different at every offset, and for every seed.
pub(crate) fn pattern(seed: u64, offset: u64, out: &mut [u8]) {
    for (i, b) in out.iter_mut().enumerate() {
        let n = (offset + i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed);
        *b = n.to_be_bytes()[0];
    }
}

fn command(program: &str) -> Command {
    let mut command = Command::new("env");
    // file system tools are there, and not every shell looks there
    command.args(["LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]).arg(program);
    command
}

/// Runs `program args… path`, which must succeed; gives what it printed.
pub(crate) fn run(program: &str, args: &[&str], path: &Path) -> String {
    let out = command(program).args(args).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{program} {args:?} {}: {text}", path.display());
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

/// The same with a program that may not be installed.
pub(crate) fn try_run(program: &str, args: &[&str], path: &Path) -> Option<()> {
    let there =
        ["/usr/sbin", "/usr/bin", "/sbin"].iter().any(|d| Path::new(d).join(program).exists());
    if !there {
        skip(&format!("{program} is not installed"));
        return None;
    }
    run(program, args, path);
    Some(())
}

/// A sparse file.
#[derive(Debug)]
pub(crate) struct Image(tempfile::TempPath);

pub(crate) fn image(size: u64) -> Image {
    image_in(&std::env::temp_dir(), size)
}

pub(crate) fn image_in(dir: &Path, size: u64) -> Image {
    let file = tempfile::NamedTempFile::new_in(dir).unwrap();
    file.as_file().set_len(size).unwrap();
    Image(file.into_temp_path())
}

impl Deref for Image {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

/// A loop device over a file; detached when dropped.
#[derive(Debug)]
pub(crate) struct Loop {
    device: PathBuf,
    image: Image,
}

impl Loop {
    pub(crate) fn new(image: Image, sector: u32, more: &[&str]) -> Self {
        let sector = sector.to_string();
        let mut args = vec!["--find", "--show", "--sector-size", &sector];
        args.extend(more);
        // another process may take the device that was found
        let mut tries = 0;
        loop {
            let out = command("losetup").args(&args).arg(&*image).output().unwrap();
            if out.status.success() {
                let device = PathBuf::from(String::from_utf8(out.stdout).unwrap().trim());
                let this = Self { device, image };
                if more.is_empty() {
                    run("losetup", &["--direct-io=on"], &this.device);
                }
                // a mark of its last user would stay
                if !more.contains(&"--read-only") {
                    run("blockdev", &["--setrw"], &this.device);
                }
                return this;
            }
            tries += 1;
            assert!(tries < 20, "losetup: {}", String::from_utf8_lossy(&out.stderr));
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.device
    }

    pub(crate) fn image(&self) -> &Path {
        &self.image
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let out = command("losetup").arg("--detach").arg(&self.device).output().unwrap();
        if !out.status.success() && !std::thread::panicking() {
            panic!("detach {:?}: {}", self.device, String::from_utf8_lossy(&out.stderr));
        }
    }
}

/// A mount; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn new(device: &Path, at: &Path, options: &str) -> Self {
        let device = device.to_str().unwrap();
        run("mount", &["-o", options, device], at);
        Self(at.to_owned())
    }

    pub(crate) fn memory(kind: &str, at: &Path) -> Self {
        run("mount", &["-t", kind, kind], at);
        Self(at.to_owned())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The kernel closes what a ring had in flight some time after the ring is gone.
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let out = command("umount").arg(&self.0).output().unwrap();
            if out.status.success() {
                return;
            }
            let why = String::from_utf8_lossy(&out.stderr).into_owned();
            if Instant::now() > end {
                let _ = command("umount").arg("--lazy").arg(&self.0).output();
                assert!(std::thread::panicking(), "umount {:?}: {why}", self.0);
                return;
            }
            let pause = Duration::from_millis(50);
            let _ = crossbeam_channel::never::<()>().recv_timeout(pause);
        }
    }
}

/// A file system that takes no writes; thawed when dropped.
#[derive(Debug)]
pub(crate) struct Frozen(PathBuf);

impl Frozen {
    pub(crate) fn new(at: &Path) -> Self {
        run("fsfreeze", &["--freeze"], at);
        Self(at.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run("fsfreeze", &["--unfreeze"], &self.0);
    }
}

/// A compressed memory device of its own; removed when dropped.
#[derive(Debug)]
pub(crate) struct Zram {
    number: String,
    path: PathBuf,
}

impl Zram {
    /// `None`, and says so, where the kernel has no zram.
    pub(crate) fn new(size: u64) -> Option<Self> {
        let Ok(number) = std::fs::read_to_string("/sys/class/zram-control/hot_add") else {
            skip("this kernel has no zram");
            return None;
        };
        let number = number.trim().to_owned();
        let path = PathBuf::from(format!("/dev/zram{number}"));
        let this = Self { number, path };
        let disksize = format!("/sys/block/zram{}/disksize", this.number);
        std::fs::write(disksize, size.to_string()).unwrap();
        Some(this)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let removed = std::fs::write("/sys/class/zram-control/hot_remove", &self.number);
        assert!(removed.is_ok() || std::thread::panicking(), "remove {:?}", self.path);
    }
}
