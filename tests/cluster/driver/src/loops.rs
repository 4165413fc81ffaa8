//! Loop devices over the files of volumes.
//!
//! They use direct I/O: a write that the device has acknowledged is in the file, and nothing of a
//! volume waits in a cache between the two. Their sectors have 4096 bytes: XFS writes files that share
//! blocks directly in whole blocks only, so a device over a copy could not have smaller ones, and the
//! filesystem of its origin must fit. The kernel says which device lies over which file, so
//! nothing about devices is remembered, and a driver that starts again finds them.

use crate::system::{Context, run, text};
use std::fs;
use std::path::{Path, PathBuf};
use tonic::Status;

/// The device over `file`. One that leaves with its last user does not count.
pub(crate) fn attached(file: &Path) -> Result<Option<PathBuf>, Status> {
    let folder = Path::new("/sys/block");
    for entry in fs::read_dir(folder).context(|| "list /sys/block".to_owned())? {
        let entry = entry.context(|| "list /sys/block".to_owned())?;
        let about = entry.path().join("loop");
        // Most devices are no loop devices, or over no file.
        let Ok(over) = fs::read_to_string(about.join("backing_file")) else { continue };
        let leaves = fs::read_to_string(about.join("autoclear")).is_ok_and(|it| it.trim() == "1");
        if Path::new(over.trim_end_matches('\n')) == file && !leaves {
            return Ok(Some(Path::new("/dev").join(entry.file_name())));
        }
    }
    Ok(None)
}

/// The device over `file`, made if there is none.
pub(crate) fn attach(file: &Path, read_only: bool) -> Result<PathBuf, Status> {
    if let Some(device) = attached(file)? {
        return Ok(device);
    }
    let mut args = vec!["--find", "--show", "--direct-io=on", "--sector-size=4096"];
    if read_only {
        args.push("--read-only");
    }
    args.push(text(file)?);
    // The printed name is the device; a guessed number would be somebody else's.
    let device = PathBuf::from(run("losetup", &args)?);
    if !device.starts_with("/dev") {
        let text = format!("losetup printed {} for {}", device.display(), file.display());
        return Err(Status::internal(text));
    }
    Ok(device)
}

/// Takes the device over `file` away, if there is one.
pub(crate) fn detach(file: &Path) -> Result<(), Status> {
    match attached(file)? {
        Some(device) => run("losetup", &["--detach", text(&device)?]).map(drop),
        None => Ok(()),
    }
}

/// Tells the device over `file`, if there is one, that the file has grown.
pub(crate) fn grow(file: &Path) -> Result<(), Status> {
    match attached(file)? {
        Some(device) => run("losetup", &["--set-capacity", text(&device)?]).map(drop),
        None => Ok(()),
    }
}

/// Writes what the kernel still holds for the device over `file`, if there is one: writes past
/// `O_DIRECT` to the device itself. A filesystem's own dirty data is above the device and stays.
pub(crate) fn flush(file: &Path) -> Result<(), Status> {
    let Some(device) = attached(file)? else { return Ok(()) };
    let opened = fs::File::open(&device).context(|| format!("open {}", device.display()))?;
    opened.sync_all().context(|| format!("flush {}", device.display()))
}
