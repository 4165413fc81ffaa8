//! Loop devices over the files of volumes.
//!
//! They use direct I/O: a write that the device has acknowledged is in the file, and nothing of a
//! volume waits in a cache between the two. Their sectors have 4096 bytes: XFS writes files that
//! share blocks directly in whole blocks only, so a device over a copy could not have smaller ones,
//! and the filesystem of its origin must fit. The kernel says which device lies over which file, so
//! nothing about devices is remembered, and a driver that starts again finds them.
//!
//! A file never has two devices: each would have a cache of its own. A device goes back writable:
//! the kernel keeps what `blockdev --setro` set over a detachment, for whoever attaches it next.

use crate::system::{Context, run, text, wait_until};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::Status;

/// How long a device may stay after it was taken away: somebody looks at it for a moment.
const LEAVE: Duration =
    if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(5) };

/// A device over a file.
#[derive(Debug)]
struct Loop {
    device: PathBuf,
    /// It goes with its last user.
    leaves: bool,
    read_only: bool,
}

fn over(file: &Path) -> Result<Option<Loop>, Status> {
    let folder = Path::new("/sys/block");
    for entry in fs::read_dir(folder).context(|| "list /sys/block".to_owned())? {
        let entry = entry.context(|| "list /sys/block".to_owned())?;
        let is_set = |name: &str| {
            fs::read_to_string(entry.path().join(name)).is_ok_and(|it| it.trim() == "1")
        };
        // Most devices are no loop devices, or over no file.
        let about = fs::read_to_string(entry.path().join("loop/backing_file"));
        let Ok(over) = about else { continue };
        if Path::new(over.trim_end_matches('\n')) == file {
            return Ok(Some(Loop {
                device: Path::new("/dev").join(entry.file_name()),
                leaves: is_set("loop/autoclear"),
                read_only: is_set("ro"),
            }));
        }
    }
    Ok(None)
}

fn still_held(device: &Path, file: &Path) -> Status {
    Status::aborted(format!(
        "somebody holds {} over {}, which goes with its last user: end that, and repeat",
        device.display(),
        file.display()
    ))
}

/// The device over `file`, if it is there to stay.
pub(crate) fn attached(file: &Path) -> Result<Option<PathBuf>, Status> {
    Ok(over(file)?.filter(|found| !found.leaves).map(|found| found.device))
}

/// The device over `file`, made if there is none, and made read-only or not.
pub(crate) fn attach(file: &Path, read_only: bool) -> Result<PathBuf, Status> {
    let gone = wait_until(LEAVE, || Ok(over(file)?.is_none_or(|found| !found.leaves)))?;
    let found = match over(file)? {
        Some(found) if !gone || found.leaves => return Err(still_held(&found.device, file)),
        Some(found) => found,
        None => {
            let file = text(file)?;
            let args = ["--find", "--show", "--direct-io=on", "--sector-size=4096", file];
            // The printed name is the device; a guessed number would be somebody else's.
            let device = PathBuf::from(run("losetup", &args)?);
            if !device.starts_with("/dev") {
                let text = format!("losetup printed {} for {file}", device.display());
                return Err(Status::internal(text));
            }
            // A device that was read-only for the file before is so still.
            over(Path::new(file))?.unwrap_or(Loop { device, leaves: false, read_only: false })
        }
    };
    if found.read_only != read_only {
        let how = if read_only { "--setro" } else { "--setrw" };
        run("blockdev", &[how, text(&found.device)?])?;
    }
    Ok(found.device)
}

/// Takes the device over `file` away, if there is one, and waits until it is gone: a second one
/// over the same file would have a cache of its own.
pub(crate) fn detach(file: &Path) -> Result<(), Status> {
    let Some(found) = over(file)? else { return Ok(()) };
    if !found.leaves {
        // The mark outlives the attachment, and the device is somebody else's next.
        if found.read_only {
            run("blockdev", &["--setrw", text(&found.device)?])?;
        }
        run("losetup", &["--detach", text(&found.device)?])?;
    }
    if wait_until(LEAVE, || Ok(over(file)?.is_none()))? {
        return Ok(());
    }
    Err(still_held(&found.device, file))
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

/// The number of a device, which files of its filesystem have, too.
pub(crate) fn number(device: &Path) -> Result<u64, Status> {
    let about = fs::metadata(device).context(|| format!("look at {}", device.display()))?;
    Ok(about.rdev())
}
