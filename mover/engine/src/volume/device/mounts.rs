//! Who uses a device or file: mounts, swap, loop devices, and devices built on it. From `/proc` and
//! `/sys`; nothing is opened.
//!
//! The kernel's own exclusive claim (`O_EXCL`) is the last word for block devices. This is for what
//! that cannot see (a file behind a mounted loop device, a volume that is its own source) and for
//! messages that say what is in the way.

use super::geometry::{DeviceNo, Identity};
use chunkstore::{Error, ErrorKind, Result};
use std::collections::HashSet;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// As the file system reports it; not the device's number for some (btrfs).
    pub(super) device: Option<DeviceNo>,
    /// What was mounted, usually a device's path.
    pub(super) source: PathBuf,
    pub(super) at: PathBuf,
    /// Its type, as the kernel names it.
    pub(super) kind: String,
    /// Whether the file system itself (not only this mount of it) may be written.
    pub(super) read_write: bool,
}

/// Types of file systems whose server may be gone: whoever asks for a file there then waits, for
/// ever perhaps. A part of such a type's name may follow a dot. Their files have the device number
/// of the mount.
const MAY_HANG: [&str; 15] = [
    "fuse", "fuseblk", "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "virtiofs", "autofs", "lustre",
    "beegfs", "gpfs", "afs", "orangefs",
];

impl Mount {
    fn may_hang(&self) -> bool {
        let kind = self.kind.split('.').next().unwrap_or_default();
        MAY_HANG.contains(&kind)
    }
}

/// Who uses a device or file, directly or through partitions, loop devices and what is built on
/// them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InUse {
    pub(super) mounts: Vec<Mount>,
    pub(super) swap: Vec<PathBuf>,
    /// Names of devices built on it (`dm-0`, `md1`).
    pub(super) holders: Vec<String>,
    /// Loop devices over it, or over a part of it.
    pub(super) loops: Vec<PathBuf>,
}

impl InUse {
    pub(super) fn of(identity: Identity) -> Result<Self> {
        System::default().users_of(identity)
    }

    /// In the user's words; `None` if nobody uses it.
    pub(super) fn describe(&self) -> Option<String> {
        let mount = self.mounts.first().map(|m| {
            format!("a file system on it ({}) is mounted at {}", m.source.display(), m.at.display())
        });
        let swap = self.swap.first().map(|s| format!("it is swap ({})", s.display()));
        let holder = self.holders.first().map(|h| format!("the device {h} is built on it"));
        mount.or(swap).or(holder)
    }
}

/// Whether two are the same, or one is a part of the other or lies on it: a partition and its disk,
/// a loop device and its file.
pub(super) fn overlap(a: Identity, b: Identity) -> bool {
    let system = System::default();
    system.below(a).contains(&b) || system.below(b).contains(&a)
}

/// Whether a file system is mounted on this very device: not on a partition of it.
pub(super) fn is_mounted(identity: Identity) -> bool {
    let system = System::default();
    let text = std::fs::read(system.proc.join("self/mountinfo")).unwrap_or_default();
    parse_mountinfo(&text).iter().any(|mount| {
        let by_number = mount.device.map(Identity::Block) == Some(identity);
        let on_device = || mount.source.starts_with("/dev");
        by_number || (on_device() && Identity::of_path(&mount.source) == Some(identity))
    })
}

/// Where something is mounted.
pub(super) fn mount_points() -> Vec<PathBuf> {
    let text = std::fs::read(System::default().proc.join("self/mountinfo")).unwrap_or_default();
    parse_mountinfo(&text).into_iter().map(|mount| mount.at).collect()
}

/// The partitions and loop devices above this one, and what is built on them, each with its node.
pub(super) fn devices_above(identity: Identity) -> Vec<(DeviceNo, PathBuf)> {
    let system = System::default();
    let text = std::fs::read(system.proc.join("self/mountinfo")).unwrap_or_default();
    let family = system.above(identity, &parse_mountinfo(&text), &mut Vec::new());
    let others = family.into_iter().filter(|one| *one != identity);
    others
        .filter_map(|one| {
            let Identity::Block(number) = one else { return None };
            let name = system.block(number).canonicalize().ok()?;
            Some((number, Path::new("/dev").join(name.file_name()?)))
        })
        .collect()
}

/// Devices that this one lies on, and that a loop device in between reads through their page cache.
pub(super) fn read_through_cache(identity: Identity) -> Vec<PathBuf> {
    System::default().cached_below(identity)
}

/// Where the kernel tells about itself.
#[derive(Debug)]
struct System {
    proc: PathBuf,
    sys: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into() }
    }
}

impl System {
    fn users_of(&self, identity: Identity) -> Result<InUse> {
        let mut used = InUse::default();
        let text = |name: &str| {
            std::fs::read(self.proc.join(name)).map_err(|e| {
                let what = format!("read {}", self.proc.join(name).display());
                Error::caused(ErrorKind::Unsupported, what, e).hint(
                    "mount /proc: what is mounted must be known before a volume is read or written",
                )
            })
        };
        let mounts = parse_mountinfo(&text("self/mountinfo")?);
        let family = self.above(identity, &mounts, &mut used.holders);
        let is_ours = |path: &Path| Identity::of_path(path).is_some_and(|i| family.contains(&i));
        for mount in mounts {
            let by_number = mount.device.is_some_and(|d| family.contains(&Identity::Block(d)));
            if by_number || (mount.source.starts_with("/dev") && is_ours(&mount.source)) {
                used.mounts.push(mount);
            }
        }
        // a kernel without swap has no such file
        let swaps = std::fs::read(self.proc.join("swaps")).unwrap_or_default();
        used.swap = parse_swaps(&swaps).into_iter().filter(|p| is_ours(p)).collect();
        let names = self.entries(&self.sys.join("block")).into_iter().filter(|device| {
            let is_loop = device.join("loop/backing_file").exists();
            let no = device_no(device).map(Identity::Block).filter(|no| *no != identity);
            is_loop && no.is_some_and(|no| family.contains(&no))
        });
        let node = |device: PathBuf| Some(Path::new("/dev").join(device.file_name()?));
        used.loops = names.filter_map(node).collect();
        Ok(used)
    }

    /// It, and all devices that lie on it: partitions, loop devices, what holds it.
    fn above(
        &self,
        identity: Identity,
        mounts: &[Mount],
        holders: &mut Vec<String>,
    ) -> HashSet<Identity> {
        let loops: Vec<_> = self
            .loops()
            .filter(|(_, backing)| may_be(backing, identity, mounts))
            .filter_map(|(no, backing)| Some((no, Identity::of_path(&backing)?)))
            .collect();
        let mut family = HashSet::new();
        let mut todo = vec![identity];
        while let Some(one) = todo.pop() {
            if !family.insert(one) {
                continue;
            }
            todo.extend(loops.iter().filter(|l| l.1 == one).map(|l| Identity::Block(l.0)));
            let Identity::Block(no) = one else { continue };
            for entry in self.entries(&self.block(no)) {
                if entry.join("partition").exists() {
                    todo.extend(device_no(&entry).map(Identity::Block));
                }
            }
            for holder in self.entries(&self.block(no).join("holders")) {
                holders.extend(holder.file_name().map(|n| n.to_string_lossy().into_owned()));
                todo.extend(device_no(&holder).map(Identity::Block));
            }
        }
        family
    }

    /// It, and all that it lies on: its disk, a loop device's file, what it is built of.
    fn below(&self, identity: Identity) -> HashSet<Identity> {
        let mut family = HashSet::new();
        let mut todo = vec![identity];
        while let Some(one) = todo.pop() {
            if !family.insert(one) {
                continue;
            }
            let Identity::Block(no) = one else { continue };
            let ours = self.loops().filter(|l| l.0 == no);
            todo.extend(ours.filter_map(|(_, backing)| Identity::of_path(&backing)));
            let here = self.block(no);
            if here.join("partition").exists()
                && let Ok(full) = here.canonicalize()
                && let Some(disk) = full.parent().and_then(device_no)
            {
                todo.push(Identity::Block(disk));
            }
            for slave in self.entries(&here.join("slaves")) {
                todo.extend(device_no(&slave).map(Identity::Block));
            }
        }
        family
    }

    fn cached_below(&self, identity: Identity) -> Vec<PathBuf> {
        let below = self.below(identity);
        let is_ours = |no: &DeviceNo| below.contains(&Identity::Block(*no));
        let cached = |no: DeviceNo| {
            let direct = std::fs::read_to_string(self.block(no).join("loop/dio"));
            direct.map_or(true, |direct| direct.trim() != "1")
        };
        self.loops()
            .filter(|(no, _)| is_ours(no) && cached(*no))
            .map(|(_, backing)| backing)
            .filter(|path| matches!(Identity::of_path(path), Some(Identity::Block(_))))
            .collect()
    }

    fn block(&self, no: DeviceNo) -> PathBuf {
        self.sys.join("dev/block").join(no.to_string())
    }

    /// All loop devices with the paths of what is behind them.
    fn loops(&self) -> impl Iterator<Item = (DeviceNo, PathBuf)> {
        self.entries(&self.sys.join("block")).into_iter().filter_map(|device| {
            let backing = std::fs::read(device.join("loop/backing_file")).ok()?;
            let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
            let backing = PathBuf::from(std::ffi::OsString::from_vec(backing.to_vec()));
            Some((device_no(&device)?, backing))
        })
    }

    /// Of a directory; none if it is not there.
    fn entries(&self, dir: &Path) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(dir).and_then(|d| {
            d.map(|entry| entry.map(|e| e.path())).collect::<io::Result<Vec<PathBuf>>>()
        });
        listed.unwrap_or_default()
    }
}

/// The paths of the files and devices behind all loop devices that this one is, or lies on.
pub(super) fn files_below(identity: Identity) -> Vec<PathBuf> {
    let system = System::default();
    let below = system.below(identity);
    let loops = system.loops();
    loops.filter(|l| below.contains(&Identity::Block(l.0))).map(|(_, backing)| backing).collect()
}

/// Whether what is at a path may be this one, or a device: `false` where the server of another file
/// system would have to say.
fn may_be(path: &Path, identity: Identity, mounts: &[Mount]) -> bool {
    let holds = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    // of two at one place the later one is seen
    let Some(mount) = holds.max_by_key(|mount| mount.at.components().count()) else { return true };
    let same = match identity {
        Identity::File { dev, .. } => mount.device == Some(DeviceNo::of(dev)),
        Identity::Block(_) | Identity::Remote => false,
    };
    same || !mount.may_hang()
}

/// The number in a device's directory in `/sys`.
fn device_no(dir: &Path) -> Option<DeviceNo> {
    DeviceNo::parse(&std::fs::read_to_string(dir.join("dev")).ok()?)
}

/// `/proc/self/mountinfo`, see proc_pid_mountinfo(5). Lines that are not understood are left out.
fn parse_mountinfo(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n').filter_map(parse_mount).collect()
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let number = fields.nth(2)?;
    let at = unescape(fields.nth(1)?);
    // optional fields end with a dash; then come the type, the source and the file system's options
    fields.find(|f| *f == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let options = fields.next()?;
    Some(Mount {
        device: std::str::from_utf8(number).ok().and_then(DeviceNo::parse),
        source,
        at,
        kind,
        read_write: options.split(|b| *b == b',').any(|o| o == b"rw"),
    })
}

/// The paths in `/proc/swaps`.
fn parse_swaps(text: &[u8]) -> Vec<PathBuf> {
    let lines = text.split(|b| *b == b'\n').skip(1);
    lines
        .filter_map(|line| line.split(|b| b.is_ascii_whitespace()).next())
        .filter(|path| !path.is_empty())
        .map(unescape)
        .collect()
}

/// Undoes the kernel's `\040` for characters that would break a line into wrong fields.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(code) if b == b'\\' => {
                out.push(code);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(b);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

#[cfg(test)]
mod tests;
