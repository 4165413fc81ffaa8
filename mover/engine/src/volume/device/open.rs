//! Opening a device or file, once buffered and once with `O_DIRECT` where that works; or an NBD
//! export.

use super::geometry::{DeviceKind, Facts, Identity, direct_align, examine, wrong_type};
use super::lock::lock;
use super::nbd::from_nbd;
use crate::volume::io::{Arena, IoFile};
use chunkstore::{Error, ErrorKind, Result, Setting};
use mover_nbd::Export;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// What file systems want that do not say so.
const FILE_ALIGN_BYTES: u32 = 4096;

/// How long to wait for what somebody else has claimed or locked, and how often to look.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Whether the page cache is bypassed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DirectIo {
    /// Where the device or file system allows it.
    #[default]
    Auto,
    /// Or fail.
    Always,
    /// Use the page cache.
    Never,
}

impl DirectIo {
    /// As it is written on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

impl fmt::Display for DirectIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DirectIo {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Auto, Self::Always, Self::Never].into_iter().find(|c| c.as_str() == text).ok_or_else(
            || {
                Error::new(ErrorKind::Usage, "choose direct I/O", format!("{text:?} is no choice"))
                    .hint("use auto, always or never")
            },
        )
    }
}

/// How to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    /// Read and write; a block device is claimed, so that nobody else can mount it meanwhile, and a
    /// file is locked.
    Write,
}

/// An open device or file.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) io: Arc<IoFile>,
    pub(super) facts: Facts,
}

/// The buffered descriptor of something that exists, and what it is. Nothing that would block or
/// have effects (a pipe, a tape) is opened.
pub(super) fn open_buffered(path: &Path, access: Access) -> Result<(File, Facts)> {
    let meta = std::fs::metadata(path).map_err(|e| open_error(path, access, e))?;
    let Some(identity) = Identity::of(&meta) else { return Err(wrong_type(path, &meta)) };
    let claim = match (identity, access) {
        (Identity::Block(_), Access::Write) => libc::O_EXCL,
        _ => 0,
    };
    let file = open_claimed(path, access, claim).map_err(|e| open_error(path, access, e))?;
    let locked = matches!(identity, Identity::File { .. }) && access == Access::Write;
    if locked {
        lock_target(path, &file)?;
    }
    // not before: whoever had it until now may have made it longer, or removed it
    let facts = examine(&file, path)?;
    if facts.identity != identity || (locked && Identity::of_path(path) != Some(identity)) {
        return Err(changed(path));
    }
    Ok((file, facts))
}

/// Keeps other writers off a file as long as the descriptor is open; an error if there is one.
pub(super) fn lock_target(path: &Path, file: &File) -> Result<()> {
    patiently(|| lock(file)).map_err(|e| match e.kind() {
        io::ErrorKind::ResourceBusy => {
            let context = format!("write to {}", path.display());
            let why = "another process is writing to it, or has locked it";
            Error::new(ErrorKind::Usage, context, why).hint(
                "let that end first (lslocks or fuser show which it is), or choose another target",
            )
        }
        _ => Error::caused(ErrorKind::Device, format!("lock {}", path.display()), e),
    })
}

/// Whether somebody has claimed a block device now: a mount or the like, wherever it is seen.
pub(super) fn is_exclusively_open(path: &Path) -> bool {
    let claimed = open_with(path, Access::Read, libc::O_EXCL);
    claimed.is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
}

/// Whether somebody has, and does not let go of it in a moment.
pub(super) fn stays_exclusively_open(path: &Path) -> bool {
    let claimed = open_claimed(path, Access::Read, libc::O_EXCL);
    claimed.is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
}

/// Connects to an NBD server.
pub(super) fn open_export(path: &Path) -> Result<Opened> {
    let export = Arc::new(Export::open(path).map_err(from_nbd)?);
    let facts = Facts::of_export(&export);
    Ok(Opened { io: Arc::new(IoFile::nbd(path, export)), facts })
}

/// Adds the descriptor with `O_DIRECT`, as far as asked for and possible.
pub(super) fn with_direct(
    path: &Path,
    access: Access,
    direct: DirectIo,
    buffered: File,
    facts: Facts,
) -> Result<Opened> {
    let why_not = match direct {
        DirectIo::Never => None,
        _ => match open_direct(path, access, &facts)? {
            Ok((main, align)) => {
                let io = Arc::new(IoFile::direct(path, main, buffered, align));
                return Ok(Opened { io, facts });
            }
            Err(why) => Some(why),
        },
    };
    if let (DirectIo::Always, Some(why)) = (direct, why_not) {
        let what = format!("open {} for direct I/O", path.display());
        return Err(Error::caused(ErrorKind::Unsupported, what, why).hint(format!(
            "leave the choice to the program: {direct_io} auto",
            direct_io = Setting("direct-io")
        )));
    }
    Ok(Opened { io: Arc::new(IoFile::buffered(path, buffered)), facts })
}

/// The descriptor and its alignment, or why there is no direct I/O on it. What is behind the path
/// must not have changed.
fn open_direct(
    path: &Path,
    access: Access,
    facts: &Facts,
) -> Result<std::result::Result<(File, u32), io::Error>> {
    let file = match open_with(path, access, libc::O_DIRECT) {
        Ok(file) => file,
        Err(e) => return Ok(Err(e)),
    };
    let meta = file.metadata().map_err(|e| open_error(path, access, e))?;
    if Identity::of(&meta) != Some(facts.identity) {
        return Err(changed(path));
    }
    let align = match (direct_align(&file), facts.kind) {
        (Some(align), _) => align,
        (None, DeviceKind::Block) => facts.logical_block_bytes,
        (None, DeviceKind::File | DeviceKind::Nbd) => FILE_ALIGN_BYTES,
    };
    let unsupported = |why: &str| Ok(Err(io::Error::new(io::ErrorKind::Unsupported, why)));
    if align == 0 {
        return unsupported("the file system has none");
    }
    if !align.is_power_of_two() || align as usize > rustix::param::page_size() {
        return unsupported("it wants blocks larger than a page");
    }
    // Some file systems take the flag and refuse every transfer. A device that fails here is left
    // to fail where it is read.
    let mut block = Arena::new(1, align as usize)?.take_wait();
    match file.read_at(&mut block[..align as usize], 0) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => Ok(Err(e)),
        _ => Ok(Ok((file, align))),
    }
}

/// Opens, and waits a little for others to let go of a device: udev looks at new devices, and what
/// a killed process had open is closed some time after its end.
fn open_claimed(path: &Path, access: Access, claim: libc::c_int) -> io::Result<File> {
    patiently(|| open_with(path, access, claim))
}

fn patiently<T>(attempt: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + BUSY_PATIENCE;
    loop {
        match attempt() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && Instant::now() < end => pause(),
            other => return other,
        }
    }
}

/// A moment for others to end what they are doing.
pub(super) fn pause() {
    let end = Instant::now() + BUSY_PAUSE;
    let _ = crossbeam_channel::never::<()>().recv_deadline(end);
}

/// Not with `O_NONBLOCK`: io_uring would then refuse to wait for file systems that know no other
/// way.
fn open_with(path: &Path, access: Access, flags: libc::c_int) -> io::Result<File> {
    OpenOptions::new().read(true).write(access == Access::Write).custom_flags(flags).open(path)
}

pub(super) fn changed(path: &Path) -> Error {
    let what = format!("open {}", path.display());
    Error::new(ErrorKind::Device, what, "it changed, or another took its place meanwhile")
        .hint("try again")
}

/// Why something could not be opened, in the user's words.
pub(super) fn open_error(path: &Path, access: Access, e: io::Error) -> Error {
    let (kind, hint) = match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => {
            (ErrorKind::NotFound, "check the path; in a pod, see volumeDevices")
        }
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => (
            ErrorKind::Denied,
            match access {
                Access::Read => "run as a user who may read it",
                Access::Write => {
                    "run as a user who may write it, and check that it is not read-only"
                }
            },
        ),
        Some(libc::EBUSY) => (
            ErrorKind::Usage,
            "it is in use (mounted, swap, or part of a RAID, LVM or multipath device): see lsblk",
        ),
        Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM) => {
            (ErrorKind::Device, "no device answers behind it")
        }
        _ => (ErrorKind::Device, "look into the kernel's log for what the device reported"),
    };
    let goal = match access {
        Access::Read => "for reading",
        Access::Write => "for writing",
    };
    Error::caused(kind, format!("open {} {goal}", path.display()), e).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_opened_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none");
        let e = open_buffered(&none, Access::Read).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert!(e.to_string().contains("none"), "{e}");
        // a pipe would block its opener for ever
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        let e = open_buffered(&pipe, Access::Read).unwrap_err();
        assert!(e.to_string().contains("a pipe"), "{e}");
    }

    #[test]
    fn choices_have_one_spelling() {
        for d in [DirectIo::Auto, DirectIo::Always, DirectIo::Never] {
            assert_eq!(d.to_string().parse::<DirectIo>().unwrap(), d);
        }
        assert!("yes".parse::<DirectIo>().is_err());
    }
}
