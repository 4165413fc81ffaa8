//! What a file is besides its bytes: owner, attributes, permissions, times. They are set in the
//! order in which none undoes another, and all before a new file gets its name.

use super::place::{Draft, Spot};
use super::{Attribute, FileKind, FileNode, FileTime};
use chunkstore::Result;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat, fchmod, fchown,
    fremovexattr, fsetxattr, futimens, removexattr, setxattr, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

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

/// Lists of who may do what. A directory gives them to what is made in it; there they would let in
/// others than those that the file's own permissions name.
const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// How one file is to be.
#[derive(Clone, Copy)]
pub(super) struct Dress<'a> {
    pub(super) node: &'a FileNode,
    pub(super) attributes: &'a [Attribute],
    pub(super) keep: Keep,
}

impl Dress<'_> {
    /// Sets all of it for something new.
    pub(super) fn of_draft(&self, draft: &Draft<'_>, lacks: &mut Lacks) -> Result<()> {
        match self.node.kind {
            FileKind::File => self.of_open(&draft.fd, &draft.spot, lacks),
            _ => self.of_special(draft, lacks),
        }
    }

    /// Sets all of it for a file or directory that is open.
    pub(super) fn of_open(&self, file: &OwnedFd, spot: &Spot<'_>, lacks: &mut Lacks) -> Result<()> {
        if let Some((uid, gid)) = self.owner(lacks) {
            fchown(file, Some(uid), Some(gid)).map_err(|e| spot.failed("give to its owner", e))?;
        }
        for list in self.lists() {
            unless_there_is_none(fremovexattr(file, *list))
                .map_err(|e| spot.failed("set attributes of", e))?;
        }
        // while it is ours to write to
        for one in self.kept() {
            let name = OsStr::from_bytes(&one.name);
            match fsetxattr(file, name, &one.value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(e) if is_not_taken(e) => lacks.attributes += 1,
                Err(e) => return Err(spot.failed("set attributes of", e)),
            }
        }
        fchmod(file, self.mode(lacks)).map_err(|e| spot.failed("set permissions of", e))?;
        futimens(file, &self.times()).map_err(|e| spot.failed("set times of", e))
    }

    /// The same for what cannot be opened: by the descriptor that looks at it, as its name may lead
    /// elsewhere by now.
    fn of_special(&self, draft: &Draft<'_>, lacks: &mut Lacks) -> Result<()> {
        let (spot, fd) = (&draft.spot, &draft.fd);
        // neither permissions nor attributes are set by such a descriptor; the path leads to what
        // is open itself, also if that is a link
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        if let Some((uid, gid)) = self.owner(lacks) {
            chownat(fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
                .map_err(|e| spot.failed("give to its owner", e))?;
        }
        for list in self.lists() {
            unless_there_is_none(removexattr(&path, *list))
                .map_err(|e| spot.failed("set attributes of", e))?;
        }
        for one in self.kept() {
            let name = OsStr::from_bytes(&one.name);
            match setxattr(&path, name, &one.value, XattrFlags::empty()) {
                Ok(()) => {}
                // without /proc none of it can be named
                Err(e) if is_not_taken(e) || e == Errno::NOENT => lacks.attributes += 1,
                Err(e) => return Err(spot.failed("set attributes of", e)),
            }
        }
        if self.node.kind != FileKind::Symlink {
            chmod(&path, self.mode(lacks)).map_err(|e| spot.failed("set permissions of", e))?;
        }
        match utimensat(fd, "", &self.times(), AtFlags::EMPTY_PATH) {
            // Linux before 5.8
            Err(Errno::INVAL) => utimensat(CWD, &path, &self.times(), AtFlags::empty()),
            done => done,
        }
        .map_err(|e| spot.failed("set times of", e))
    }

    /// Those that it may have of the directory that it is made in.
    fn lists(&self) -> &'static [&'static str] {
        match self.node.kind {
            FileKind::Directory => &LISTS,
            FileKind::Symlink => &[],
            _ => &LISTS[..1],
        }
    }

    fn owner(&self, lacks: &mut Lacks) -> Option<(Uid, Gid)> {
        if !self.keep.owners {
            lacks.owners += 1;
            return None;
        }
        Some((Uid::from_raw(self.node.uid), Gid::from_raw(self.node.gid)))
    }

    /// Attributes that say what a file may do, or what somebody found out about it, are the system's.
    fn kept(&self) -> impl Iterator<Item = &Attribute> {
        self.attributes.iter().filter(|one| {
            let of_system = one.name.starts_with(b"security.") || one.name.starts_with(b"trusted.");
            !of_system || self.keep.privileged
        })
    }

    /// Without `privileged` nobody becomes another by running what was copied; and a set-id bit is
    /// of no use to whoever is not its owner.
    fn mode(&self, lacks: &mut Lacks) -> Mode {
        const SET_IDS: u32 = 0o6000;
        let Self { node, keep, .. } = self;
        let of_directory = node.kind == FileKind::Directory;
        if node.mode & SET_IDS == 0 || of_directory || keep.privileged && keep.owners {
            return Mode::from(node.mode);
        }
        lacks.set_ids += 1;
        Mode::from(node.mode & !SET_IDS)
    }

    fn times(&self) -> Timestamps {
        let time =
            |time: FileTime| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
        let (accessed, modified) = (self.node.accessed, self.node.modified);
        Timestamps { last_access: time(accessed), last_modification: time(modified) }
    }
}

fn unless_there_is_none(removed: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match removed {
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        removed => removed,
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
