//! Filesystems of volumes: made, mounted, bound to pods' paths, grown, and taken away again.

use crate::system::{Context, output, run, text, tied_output, tied_run};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tonic::Status;

/// The filesystems that a volume may have; the first one if nobody asks.
pub(crate) const FILESYSTEMS: [&str; 2] = ["ext4", "xfs"];

/// The uppermost mount at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPoint {
    pub(crate) path: PathBuf,
    pub(crate) filesystem: String,
    /// The part of the filesystem that is seen there.
    pub(crate) root: String,
    pub(crate) device: String,
}

/// What is mounted at `path`, if anything.
pub(crate) fn at(path: &Path) -> Result<Option<MountPoint>, Status> {
    let table = fs::read_to_string("/proc/self/mountinfo")
        .context(|| "read /proc/self/mountinfo".to_owned())?;
    Ok(parse(&table).into_iter().rfind(|mount| mount.path == path))
}

/// The lines of a mountinfo file; see proc(5).
fn parse(table: &str) -> Vec<MountPoint> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, path) = (unescape(before.next()?), unescape(before.next()?));
        let mut after = after.split(' ');
        let (filesystem, device) = (after.next()?.to_owned(), unescape(after.next()?));
        Some(MountPoint { path: PathBuf::from(path), filesystem, root, device })
    };
    table.lines().filter_map(mount).collect()
}

/// Spaces and the like stand there as a backslash and three octal digits.
fn unescape(field: &str) -> String {
    let mut plain = String::new();
    let mut parts = field.split('\\');
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let digits = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match digits {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

/// The filesystem, or whatever else has a signature, on a device; `None` if it is blank.
fn found_on(device: &Path) -> Result<Option<String>, Status> {
    let output = output("blkid", &["--probe", "--output", "export", text(device)?])?;
    let found = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => {
            let kind = found.lines().find_map(|line| line.strip_prefix("TYPE="));
            Ok(Some(kind.unwrap_or("a partition table").to_owned()))
        }
        Some(2) => Ok(None),
        _ => Err(Status::internal(format!(
            "blkid {}: {}: {}",
            device.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

/// How a device is to be mounted.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) filesystem: &'a str,
    pub(crate) flags: &'a [String],
    pub(crate) read_only: bool,
}

/// Says if a device has the filesystem that is asked for. With something else on it, or with data
/// and no filesystem that is known, it is refused and left alone.
pub(crate) fn check(device: &Path, filesystem: &str) -> Result<(), Status> {
    let found = found_on(device)?;
    if found.as_deref() == Some(filesystem) {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "{} holds {}, not {filesystem}: ask for the filesystem that it has, or empty it",
        device.display(),
        found.as_deref().unwrap_or("data and no filesystem that is known")
    )))
}

/// Mounts the filesystem of a device, grown if it is smaller: the device may be a copy of something
/// smaller, or have grown. A mounted ext4 can be grown only with a capability that containers lack,
/// so it is grown before; XFS can only be grown mounted, see [`fill`].
///
/// The device can be written in any case, so that a journal is replayed: what is seen is what the
/// source would be after a crash. `ro` keeps everybody else from writing.
pub(crate) fn mount(device: &Path, place: &Path, plan: &Plan<'_>) -> Result<(), Status> {
    let filesystem = plan.filesystem;
    if filesystem == "ext4" && !plan.read_only {
        grow_ext4(device)?;
    }
    let mut options = plan.flags.to_vec();
    if filesystem == "xfs" {
        // A copy has the id of its source, and both may be mounted on one node.
        options.push("nouuid".to_owned());
    }
    if plan.read_only {
        options.push("ro".to_owned());
    }
    options.push("noatime".to_owned());
    let options = options.join(",");
    run("mount", &["-t", filesystem, "-o", &options, text(device)?, text(place)?]).map(drop)
}

/// Grows a mounted filesystem that is only grown mounted.
pub(crate) fn fill(place: &Path, plan: &Plan<'_>) -> Result<(), Status> {
    match at(place)?.filter(|_| plan.filesystem == "xfs" && !plan.read_only) {
        Some(mount) => grow(&mount),
        None => Ok(()),
    }
}

/// Makes a filesystem, whatever is on the device.
pub(crate) fn make(device: &Path, filesystem: &str) -> Result<(), Status> {
    let device = text(device)?;
    match filesystem {
        "xfs" => tied_run("mkfs.xfs", &["-q", "-f", device]),
        _ => tied_run("mkfs.ext4", &["-q", "-F", "-m", "0", device]),
    }
    .map(drop)
}

/// Whether the filesystem, or the device, of this number is mounted at `path`.
pub(crate) fn shows(path: &Path, number: u64) -> Result<bool, Status> {
    let about = fs::metadata(path).context(|| format!("look at {}", path.display()))?;
    Ok(if about.is_dir() { about.dev() == number } else { about.rdev() == number })
}

/// Grows a mounted filesystem to its device; nothing to do if it fills it.
pub(crate) fn grow(mount: &MountPoint) -> Result<(), Status> {
    match mount.filesystem.as_str() {
        "ext4" => run("resize2fs", &[mount.device.as_str()]).map(drop).map_err(|error| {
            if !error.message().contains("Permission denied to resize") {
                return error;
            }
            Status::failed_precondition(format!(
                "a mounted ext4 on {} cannot be grown without CAP_SYS_RESOURCE: end the pods that \
                 have it, and it is grown when it is staged again",
                mount.device
            ))
        }),
        "xfs" => run("xfs_growfs", &["-d", text(&mount.path)?]).map(drop),
        other => Err(Status::internal(format!(
            "{} at {} is {other}, which this driver cannot grow",
            mount.device,
            mount.path.display()
        ))),
    }
}

/// Grows an ext4 that is not mounted to its device, checked first, as it must be. One that a killed
/// driver began to grow says that it has errors until it is checked.
fn grow_ext4(device: &Path) -> Result<(), Status> {
    let device = text(device)?;
    let about = run("dumpe2fs", &["-h", device])?;
    let size = run("blockdev", &["--getsize64", device])?;
    let fills =
        ext4_bytes(&about).is_none_or(|bytes| size.parse().is_ok_and(|size: u64| bytes >= size));
    if fills && !has_errors(&about) {
        return Ok(());
    }
    let check = tied_output("e2fsck", &["-f", "-p", device])?;
    // 1: there were faults, such as a journal to replay, and all are mended.
    if !matches!(check.status.code(), Some(0 | 1)) {
        return Err(Status::internal(format!(
            "e2fsck {device}: {}: {}",
            check.status,
            String::from_utf8_lossy(&check.stdout).trim()
        )));
    }
    tied_run("resize2fs", &[device]).map(drop)
}

/// Whether a filesystem wants to be checked, by what dumpe2fs says of it.
fn has_errors(about: &str) -> bool {
    let state = about.lines().find_map(|line| line.strip_prefix("Filesystem state:"));
    state.is_some_and(|state| state.contains("with errors"))
}

/// The size of a filesystem, by what dumpe2fs says of it.
fn ext4_bytes(about: &str) -> Option<u64> {
    let field = |name: &str| {
        let value = about.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().parse::<u64>().ok()
    };
    field("Block count:")?.checked_mul(field("Block size:")?)
}

/// Shows `source`, a folder or a device, at `target` too, unless it is there already.
pub(crate) fn bind(source: &Path, target: &Path, read_only: bool) -> Result<(), Status> {
    if at(target)?.is_none() {
        run("mount", &["--bind", text(source)?, text(target)?])?;
    }
    // A driver that was killed in between has done the first step only.
    if read_only {
        run("mount", &["-o", "remount,bind,ro", text(target)?])?;
    }
    Ok(())
}

/// Takes away all that is mounted at `path`.
pub(crate) fn unmount(path: &Path) -> Result<(), Status> {
    while at(path)?.is_some() {
        run("umount", &[text(path)?])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_an_ext4_is_read() {
        let about = "Filesystem state: clean\nBlock count:              16384\n\
            Block size:               4096\n";
        assert_eq!(ext4_bytes(about), Some(64 << 20));
        assert_eq!(ext4_bytes("Block size: 4096\n"), None);
        assert!(!has_errors(about) && has_errors("Filesystem state:   clean with errors\n"));
    }

    #[test]
    fn mountinfo_is_read() {
        let table = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            90 22 7:3 / /var/a\\040b rw - xfs /dev/loop3 rw,nouuid\n\
            91 22 0:5 /loop3 /pods/x rw,nosuid - devtmpfs dev\\134tmpfs rw\n";
        let mounts = parse(table);
        let paths: Vec<_> = mounts.iter().map(|mount| mount.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["/", "/var/a b", "/pods/x"]);
        assert_eq!(
            (mounts[1].filesystem.as_str(), mounts[1].device.as_str()),
            ("xfs", "/dev/loop3")
        );
        assert_eq!((mounts[2].root.as_str(), mounts[2].device.as_str()), ("/loop3", "dev\\tmpfs"));
    }
}
