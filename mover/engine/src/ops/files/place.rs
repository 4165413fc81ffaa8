//! One name that is made, beneath a directory that is open. No path is followed: a name is one part,
//! and what has the name already is nothing that is written to.

use super::{Attribute, FileKind, FileNode, FileTime};
use chunkstore::{Error, ErrorKind, Result, Setting};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    fchmod, fchown, fsetxattr, ftruncate, futimens, lsetxattr, makedev, mkdirat, mknodat, openat,
    statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Before it has its own: nobody else reads it meanwhile.
const FIRST_MODE: u32 = 0o600;
const FIRST_MODE_OF_DIRECTORIES: u32 = 0o700;

/// What is kept of a file besides its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    /// Owners: only root may give files away.
    pub(super) owners: bool,
    /// Set-id bits, devices, attributes of the system.
    pub(super) privileged: bool,
}

/// What could not be kept.
#[derive(Debug, Default)]
pub(super) struct Lacks {
    pub(super) attributes: u64,
    pub(super) owners: u64,
    pub(super) set_ids: u64,
}

/// A name in an open directory.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// For messages.
    pub(super) shown: &'a Path,
}

impl Spot<'_> {
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

    /// Takes away what has the name and is no directory.
    pub(super) fn clear(&self) -> Result<()> {
        match unlinkat(self.directory, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.failed("replace", e)),
        }
    }

    /// A new file, empty, of that size.
    pub(super) fn file(&self, size: u64) -> Result<OwnedFd> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(self.directory, self.name, flags, Mode::from(FIRST_MODE))
            .map_err(|e| self.failed("create", e))?;
        ftruncate(&file, size).map_err(|e| self.failed("create", e))?;
        Ok(file)
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

    pub(super) fn symlink(&self, target: &[u8]) -> Result<()> {
        if target.is_empty() || target.contains(&0) {
            let context = format!("create {}", self.shown.display());
            return Err(Error::new(ErrorKind::Corrupt, context, "no link leads there"));
        }
        symlinkat(OsStr::from_bytes(target), self.directory, self.name)
            .map_err(|e| self.failed("create", e))
    }

    /// A pipe, a socket, a device.
    pub(super) fn special(&self, kind: FileKind) -> Result<()> {
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
        mknodat(self.directory, self.name, kind, Mode::from(FIRST_MODE), device)
            .map_err(|e| self.failed("create", e))
    }

    /// Owner, permissions, attributes and times of what is open, in the order in which none undoes
    /// another.
    pub(super) fn dress(
        &self,
        file: &OwnedFd,
        node: &FileNode,
        attributes: &[Attribute],
        keep: Keep,
        lacks: &mut Lacks,
    ) -> Result<()> {
        if keep.owners {
            let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
            fchown(file, Some(uid), Some(gid)).map_err(|e| self.failed("give to its owner", e))?;
        } else {
            lacks.owners += 1;
        }
        fchmod(file, Mode::from(self.mode(node, keep, lacks)))
            .map_err(|e| self.failed("set permissions of", e))?;
        for one in attributes.iter().filter(|one| is_kept(&one.name, keep)) {
            let name = OsStr::from_bytes(&one.name);
            match fsetxattr(file, name, &one.value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(e) if is_not_taken(e) => lacks.attributes += 1,
                Err(e) => return Err(self.failed("set attributes of", e)),
            }
        }
        futimens(file, &times(node)).map_err(|e| self.failed("set times of", e))
    }

    /// The same of what cannot be opened.
    pub(super) fn dress_special(
        &self,
        node: &FileNode,
        attributes: &[Attribute],
        keep: Keep,
        lacks: &mut Lacks,
    ) -> Result<()> {
        let here = AtFlags::SYMLINK_NOFOLLOW;
        if keep.owners {
            let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
            chownat(self.directory, self.name, Some(uid), Some(gid), here)
                .map_err(|e| self.failed("give to its owner", e))?;
        } else {
            lacks.owners += 1;
        }
        if node.kind != FileKind::Symlink {
            let mode = Mode::from(self.mode(node, keep, lacks));
            rustix::fs::chmodat(self.directory, self.name, mode, AtFlags::empty())
                .map_err(|e| self.failed("set permissions of", e))?;
        }
        for one in attributes.iter().filter(|one| is_kept(&one.name, keep)) {
            let path = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
            let path = Path::new(&path).join(self.name);
            match lsetxattr(&path, OsStr::from_bytes(&one.name), &one.value, XattrFlags::empty()) {
                Ok(()) => {}
                // without /proc none of it can be named
                Err(e) if is_not_taken(e) || e == Errno::NOENT => lacks.attributes += 1,
                Err(e) => return Err(self.failed("set attributes of", e)),
            }
        }
        utimensat(self.directory, self.name, &times(node), here)
            .map_err(|e| self.failed("set times of", e))
    }

    /// Without `privileged` nobody becomes another by running what was copied; and a set-id bit is
    /// of no use to whoever is not its owner.
    fn mode(&self, node: &FileNode, keep: Keep, lacks: &mut Lacks) -> u32 {
        const SET_IDS: u32 = 0o6000;
        let of_directory = node.kind == FileKind::Directory;
        if node.mode & SET_IDS == 0 || of_directory || keep.privileged && keep.owners {
            return node.mode;
        }
        lacks.set_ids += 1;
        node.mode & !SET_IDS
    }
}

/// The target has no such attributes, none of that class for us, or no room for one as long as that:
/// a full file system is noticed by what is written next.
fn is_not_taken(e: Errno) -> bool {
    matches!(
        e,
        Errno::NOTSUP | Errno::PERM | Errno::ACCESS | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE
    )
}

/// Attributes that say what a file may do, or what somebody found out about it, are the system's.
fn is_kept(name: &[u8], keep: Keep) -> bool {
    let of_system = name.starts_with(b"security.") || name.starts_with(b"trusted.");
    !of_system || keep.privileged
}

fn times(node: &FileNode) -> Timestamps {
    let time = |time: FileTime| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: time(node.accessed), last_modification: time(node.modified) }
}
