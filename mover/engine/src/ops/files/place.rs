//! One name that is made, beneath a directory that is open. No path is followed: a name is one part,
//! and what has the name already is nothing that is written to.
//!
//! Directories apart, all is made under another name first, `.mover-` and 16 digits, and gets its
//! own once it is whole. Until then nobody finds half of it, and what has the name keeps it. Only
//! what was made here is ever removed.

use super::FileKind;
use chunkstore::{Error, ErrorKind, Result, Setting, random_bytes};
use rustix::fs::{
    AtFlags, Dev, FileType, Mode, OFlags, RenameFlags, Stat, fstat, ftruncate, linkat, makedev,
    mkdirat, mknodat, openat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Before it has its own: nobody else reads it meanwhile.
const FIRST_MODE: u32 = 0o600;
const FIRST_MODE_OF_DIRECTORIES: u32 = 0o700;

/// A name in an open directory.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// For messages.
    pub(super) shown: &'a Path,
}

impl<'a> Spot<'a> {
    pub(super) fn failed(&self, doing: &str, e: Errno) -> Error {
        let kind = match e {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::Denied,
            Errno::NOSPC | Errno::DQUOT => ErrorKind::NoSpace,
            Errno::EXIST => ErrorKind::AlreadyExists,
            Errno::NOENT => ErrorKind::NotFound,
            // the target has no such files: others it has
            Errno::FBIG | Errno::NAMETOOLONG => ErrorKind::Unsupported,
            _ => ErrorKind::Device,
        };
        let error = Error::caused(kind, format!("{doing} {}", self.shown.display()), e);
        match e {
            Errno::EXIST => error
                .hint(format!("give {} to put it in the place of what is there", Setting("force"))),
            _ => error,
        }
    }

    /// What has the name, if something has.
    pub(super) fn there(&self) -> Result<Option<Stat>> {
        match statat(self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.failed("look at", e)),
        }
    }

    /// A new file, empty, of that size.
    pub(super) fn file(self, size: u64) -> Result<Draft<'a>> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = temporary();
        let fd = openat(self.directory, &name, flags, Mode::from(FIRST_MODE))
            .map_err(|e| self.failed("create", e))?;
        let draft = Draft { spot: self, made: Made { directory: self.directory, name }, fd };
        ftruncate(&draft.fd, size).map_err(|e| self.failed("create", e))?;
        Ok(draft)
    }

    /// A directory, a new one or the one that has the name.
    pub(super) fn directory(&self) -> Result<OwnedFd> {
        match mkdirat(self.directory, self.name, Mode::from(FIRST_MODE_OF_DIRECTORIES)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(self.failed("create", e)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(self.directory, self.name, flags, Mode::empty()).map_err(|e| self.failed("open", e))
    }

    pub(super) fn symlink(self, target: &[u8]) -> Result<Draft<'a>> {
        if target.is_empty() || target.contains(&0) {
            let context = format!("create {}", self.shown.display());
            return Err(Error::new(ErrorKind::Corrupt, context, "no link leads there"));
        }
        let name = temporary();
        symlinkat(OsStr::from_bytes(target), self.directory, &name)
            .map_err(|e| self.failed("create", e))?;
        self.named(name, FileType::Symlink, 0)
    }

    /// A pipe, a socket, a device.
    pub(super) fn special(self, kind: FileKind) -> Result<Draft<'a>> {
        let (kind, device) = match kind {
            FileKind::Fifo => (FileType::Fifo, 0),
            FileKind::Socket => (FileType::Socket, 0),
            FileKind::Characters(major, minor) => {
                (FileType::CharacterDevice, makedev(major, minor))
            }
            FileKind::Blocks(major, minor) => (FileType::BlockDevice, makedev(major, minor)),
            FileKind::File | FileKind::Directory | FileKind::Symlink => {
                return Err(self.failed("create", Errno::INVAL));
            }
        };
        let name = temporary();
        mknodat(self.directory, &name, kind, Mode::from(FIRST_MODE), device)
            .map_err(|e| self.failed("create", e))?;
        self.named(name, kind, device)
    }

    /// Another name of a file that is there already.
    pub(super) fn link(self, of: (&OwnedFd, &OsStr)) -> rustix::io::Result<Draft<'a>> {
        let name = temporary();
        linkat(of.0, of.1, self.directory, &name, AtFlags::empty())?;
        let made = Made { directory: self.directory, name };
        let fd = opened(&made)?;
        Ok(Draft { spot: self, made, fd })
    }

    /// What was just made by a name, and not opened. From here on only what is open counts, wherever
    /// the name leads by then; and it has to be ours: nobody else's is dressed, nor removed.
    fn named(self, name: OsString, kind: FileType, device: Dev) -> Result<Draft<'a>> {
        let made = Made { directory: self.directory, name };
        let looked = opened(&made).and_then(|fd| fstat(&fd).map(|stat| (fd, stat)));
        let (fd, stat) = looked.map_err(|e| self.failed("look at", e))?;
        let is_link = kind == FileType::Symlink;
        // a target that is mounted for one user gives links to that one
        let is_ours = is_link || stat.st_uid == geteuid().as_raw() && stat.st_rdev == device;
        if FileType::from_raw_mode(stat.st_mode) != kind || stat.st_nlink != 1 || !is_ours {
            std::mem::forget(made);
            let context = format!("create {}", self.shown.display());
            let what = "somebody else has put another file in its place";
            return Err(Error::new(ErrorKind::Device, context, what));
        }
        Ok(Draft { spot: self, made, fd })
    }
}

/// A name that nobody else comes upon.
fn temporary() -> OsString {
    format!(".mover-{:016x}", u64::from_le_bytes(random_bytes())).into()
}

/// What has a name, for looking at it and no more.
fn opened(made: &Made<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(made.directory, &made.name, flags, Mode::empty())
}

/// A name that was made, and goes again.
struct Made<'a> {
    directory: BorrowedFd<'a>,
    name: OsString,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
    }
}

/// By which a file is known again. The next file may have the inode of one that is gone: it has
/// another length or time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    size: i64,
    modified: i64,
}

/// Something that has not got its name yet. Without that it is gone when it is dropped.
pub(super) struct Draft<'a> {
    pub(super) spot: Spot<'a>,
    /// Open for writing if it is a file with bytes; for looking at it otherwise.
    pub(super) fd: OwnedFd,
    made: Made<'a>,
}

impl Draft<'_> {
    /// Who it is.
    pub(super) fn identity(&self) -> Result<Identity> {
        let stat = fstat(&self.fd).map_err(|e| self.spot.failed("look at", e))?;
        let (size, modified) = (stat.st_size, stat.st_mtime);
        Ok(Identity { device: stat.st_dev, inode: stat.st_ino, size, modified })
    }

    /// Gives it its name, if nothing has that.
    pub(super) fn place(self) -> Result<()> {
        let (at, name) = (self.spot.directory, self.spot.name);
        match renameat_with(at, &self.made.name, at, name, RenameFlags::NOREPLACE) {
            // not every file system can; a link takes nobody's place either
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                linkat(at, &self.made.name, at, name, AtFlags::empty())
            }
            done => done,
        }
        .map_err(|e| self.spot.failed("create", e))
    }

    /// Gives it its name, in the place of what has it and is no directory. Where both are names of
    /// one file already, a rename leaves both: the first one goes when this is dropped.
    pub(super) fn replace(self) -> Result<()> {
        let (at, name) = (self.spot.directory, self.spot.name);
        renameat(at, &self.made.name, at, name).map_err(|e| self.spot.failed("replace", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    /// A pipe that turned into a link to somebody's file, a file, and a pipe of two names.
    #[test]
    fn what_somebody_puts_in_the_place_of_a_special_is_not_taken_for_it() {
        let here = tempfile::tempdir().unwrap();
        let directory = fs::File::open(here.path()).unwrap();
        let shown = Path::new("pipe");
        let spot = Spot { directory: directory.as_fd(), name: shown.as_os_str(), shown };
        let at = |name: &str| here.path().join(name);
        fs::write(at("theirs"), "theirs").unwrap();
        symlink("theirs", at("link")).unwrap();
        drop(spot.special(FileKind::Fifo).unwrap());
        spot.special(FileKind::Fifo).unwrap().place().unwrap();
        fs::hard_link(at("pipe"), at("pipe again")).unwrap();
        for name in ["link", "theirs", "pipe"] {
            let e = spot.named(name.into(), FileType::Fifo, 0).err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Device, "{name}: {e}");
            assert!(fs::symlink_metadata(at(name)).is_ok(), "{name}");
        }
    }

    /// The name leads elsewhere as soon as it is made.
    #[test]
    fn a_special_is_dressed_by_what_is_open() {
        use super::super::dress::{Dress, Keep, Lacks};
        use super::super::{FileId, FileNode, FileTime};
        let here = tempfile::tempdir().unwrap();
        let directory = fs::File::open(here.path()).unwrap();
        let shown = Path::new("pipe");
        let spot = Spot { directory: directory.as_fd(), name: shown.as_os_str(), shown };
        let at = |name: &OsStr| here.path().join(name);
        let (theirs, ours) = (OsStr::new("theirs"), OsStr::new("ours"));
        fs::write(at(theirs), "theirs").unwrap();
        fs::set_permissions(at(theirs), fs::Permissions::from_mode(0o600)).unwrap();
        let draft = spot.special(FileKind::Fifo).unwrap();
        fs::rename(at(&draft.made.name), at(ours)).unwrap();
        symlink("theirs", at(&draft.made.name)).unwrap();
        let time = FileTime { seconds: 1_000_000_000, nanoseconds: 0 };
        let node = FileNode {
            id: FileId(1),
            kind: FileKind::Fifo,
            mode: 0o666,
            uid: 0,
            gid: 0,
            links: 1,
            size_bytes: 0,
            stored_bytes: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: None,
        };
        let keep = Keep { owners: geteuid().is_root(), privileged: false };
        let dress = Dress { node: &node, attributes: &[], keep };
        dress.of_draft(&draft, &mut Lacks::default()).unwrap();
        let mode = |name: &OsStr| fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(theirs), mode(ours)), (0o600, 0o666));
        let ours = fs::metadata(at(ours)).unwrap();
        assert!(ours.file_type().is_fifo());
        let since = ours.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(since.as_secs(), 1_000_000_000);
    }
}
