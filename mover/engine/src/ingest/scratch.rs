//! Plain copies of dedup segments in a scratch directory, memory-mapped.
//!
//! The directory is 0700 and this user's own, since the copies are not encrypted: they tell which
//! chunk ids exist, not what the chunks hold. What is above it may be anybody's, `/tmp` for one. So
//! no symbolic link is followed to it or in it, a directory of another owner is not used, and each
//! file is reached by the directory's descriptor, however its path may change.
//!
//! A copy is written under a temporary name, drawn at random, and renamed, so a half-written one is
//! never found; what a copy says is checked by the index on every use, so a damaged one costs time,
//! not data. Who writes one holds a lock on it: what is not locked was left by a killed run, and
//! goes. Nothing here is ever needed to read a backup.

use chunkstore::{
    Error, ErrorKind, RepositoryId, Result, Setting,
    dedup::{Scratch, ScratchBytes, ScratchWriter},
    ids::SegmentId,
    random_bytes,
};
use memmap2::Mmap;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, openat, renameat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const COPY: &str = ".segment";
const DRAFT: &str = ".tmp";
/// Of files and directories below the user's own.
const NEVER_A_LINK: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Copies of one repository's segments.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    dir: Arc<OwnedFd>,
    /// For messages.
    path: PathBuf,
}

#[derive(Debug)]
struct Mapped(Mmap);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl ScratchDir {
    /// As [`open`](Self::open), for a run that was given `root`. One that is refused, such as a
    /// volume that another user had first, is left alone, with a warning: the run needs none.
    pub(crate) fn for_run(
        root: Option<&Path>,
        repository: &RepositoryId,
    ) -> Result<Option<Box<dyn Scratch>>> {
        let Some(root) = root else { return Ok(None) };
        match Self::open(root, repository) {
            Ok(scratch) => Ok(Some(Box::new(scratch))),
            Err(e) if e.kind() == ErrorKind::Denied => {
                tracing::warn!("goes on without scratch: {e}");
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Uses `root/<repository id>`, made 0700 where it is missing. One that is a link, of another
    /// owner, or open to others is `Denied`.
    pub(crate) fn open(root: &Path, repository: &RepositoryId) -> Result<Self> {
        let name = repository.to_hex();
        let path = root.join(&name);
        let context = || format!("open scratch directory {}", path.display());
        let hint = format!(
            "choose another one with {scratch}, or {scratch} none",
            scratch = Setting("scratch")
        );
        let failed = |e: io::Error| Error::caused(kind(&e), context(), e).hint(hint.as_str());
        let refused = |detail: &str| Err(Error::new(ErrorKind::Denied, context(), detail));
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed)?;
        let above = File::open(root).map_err(failed)?;
        match mkdirat(&above, &name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed(e.into())),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | NEVER_A_LINK;
        let dir = match openat(&above, &name, flags, Mode::empty()) {
            Ok(dir) => dir,
            // what a link is said to be depends on the kernel
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return refused("it is a symbolic link or a file")
                    .map_err(|e| e.hint(hint.as_str()));
            }
            Err(e) => return Err(failed(e.into())),
        };
        let stat = fstat(&dir).map_err(|e| failed(e.into()))?;
        if stat.st_uid != geteuid().as_raw() {
            let detail = format!("it belongs to another user, number {}", stat.st_uid);
            return refused(&detail).map_err(|e| e.hint(hint.as_str()));
        }
        if stat.st_mode & 0o077 != 0 {
            return refused("others may read or write it")
                .map_err(|e| e.hint(format!("chmod 700 {}", path.display())));
        }
        Ok(Self { dir: Arc::new(dir), path })
    }

    fn failed(&self, segment: &SegmentId, e: impl Into<io::Error>) -> Error {
        failed(&self.path.join(copy_name(segment)), e.into())
    }

    /// Removes a draft that nobody writes any more.
    fn remove_abandoned(&self, name: &str) {
        let Ok(file) = openat(&*self.dir, name, OFlags::RDWR | NEVER_A_LINK, Mode::empty()) else {
            return;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = unlinkat(&*self.dir, name, AtFlags::empty());
        }
    }
}

fn copy_name(segment: &SegmentId) -> String {
    format!("{segment}{COPY}")
}

/// A copy under its temporary name.
#[derive(Debug)]
struct Writing {
    dir: Arc<OwnedFd>,
    file: File,
    draft: String,
    name: String,
    path: PathBuf,
}

impl Writing {
    fn failed(&self, e: impl Into<io::Error>) -> Error {
        failed(&self.path, e.into())
    }
}

impl ScratchWriter for Writing {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| self.failed(e))
    }

    fn finish(self: Box<Self>) -> Result<ScratchBytes> {
        let dir = &*self.dir;
        renameat(dir, &self.draft, dir, &self.name).map_err(|e| self.failed(e))?;
        Ok(Arc::new(map(&self.file).map_err(|e| self.failed(e))?))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // there is none after a rename; else a full disk must not stay full because of us
        let _ = unlinkat(&*self.dir, &self.draft, AtFlags::empty());
    }
}

fn failed(path: &Path, e: io::Error) -> Error {
    Error::caused(kind(&e), format!("write scratch copy {}", path.display()), e)
        .hint(format!("make room there, or use {scratch} none", scratch = Setting("scratch")))
}

impl Scratch for ScratchDir {
    fn open(&self, segment: &SegmentId) -> Option<ScratchBytes> {
        let flags = OFlags::RDONLY | NEVER_A_LINK;
        let file = openat(&*self.dir, copy_name(segment), flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let own = stat.st_uid == geteuid().as_raw();
        if !own || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        map(&file.into()).ok().map(|m| Arc::new(m) as ScratchBytes)
    }

    fn create(&self, segment: &SegmentId) -> Result<Box<dyn ScratchWriter>> {
        let name = copy_name(segment);
        // whichever of two runs renames last wins, and both copies are right
        let draft = format!("{segment}.{}{DRAFT}", hex::encode(random_bytes::<8>()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | NEVER_A_LINK;
        let file = openat(&*self.dir, &draft, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|e| self.failed(segment, e))?;
        // without a lock, as on some network file systems, it may be taken for abandoned: then the
        // copy is not made
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let (dir, path) = (Arc::clone(&self.dir), self.path.join(&name));
        Ok(Box::new(Writing { dir, file: file.into(), draft, name, path }))
    }

    fn remove(&self, segment: &SegmentId) {
        let _ = unlinkat(&*self.dir, copy_name(segment), AtFlags::empty());
    }

    fn retain(&self, listed: &dyn Fn(&SegmentId) -> bool) {
        let Ok(entries) = Dir::read_from(&*self.dir) else { return };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name.ends_with(DRAFT) {
                self.remove_abandoned(name);
                continue;
            }
            let id = name.strip_suffix(COPY).and_then(|id| SegmentId::from_hex(id).ok());
            if let Some(id) = id.filter(|id| !listed(id)) {
                self.remove(&id);
            }
        }
    }
}

fn map(file: &File) -> io::Result<Mapped> {
    // SAFETY: the file is ours, in a directory that only we may write; it is never changed after
    // the rename, only replaced or removed, which leaves the mapped inode as it is.
    let map = unsafe { Mmap::map(file)? };
    Ok(Mapped(map))
}

fn kind(e: &io::Error) -> ErrorKind {
    match e.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn store(scratch: &ScratchDir, id: &SegmentId, parts: &[&[u8]]) -> ScratchBytes {
        let mut writer = scratch.create(id).unwrap();
        parts.iter().for_each(|part| writer.append(part).unwrap());
        writer.finish().unwrap()
    }

    #[test]
    fn a_copy_comes_back_and_goes_when_it_is_no_longer_listed() {
        let root = tempfile::tempdir().unwrap();
        let scratch = ScratchDir::open(root.path(), &RepositoryId::random()).unwrap();
        let (a, b) = (SegmentId::random(), SegmentId::random());
        assert!(scratch.open(&a).is_none());
        assert_eq!((*store(&scratch, &a, &[b"on", b"e"])).as_ref(), b"one");
        store(&scratch, &b, &[b"two"]);
        assert_eq!((*scratch.open(&a).unwrap()).as_ref(), b"one");
        scratch.retain(&|id| *id == b);
        assert!(scratch.open(&a).is_none() && scratch.open(&b).is_some());
        scratch.remove(&b);
        assert!(scratch.open(&b).is_none());
        let mut unfinished = scratch.create(&a).unwrap();
        unfinished.append(b"half").unwrap();
        assert!(scratch.open(&a).is_none());
        drop(unfinished);
        assert_eq!(fs::read_dir(&scratch.path).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_others_may_read_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let id = RepositoryId::random();
        let dir = root.path().join(id.to_hex());
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(ScratchDir::open(root.path(), &id).unwrap_err().kind(), ErrorKind::Denied);
    }

    #[test]
    fn drafts_of_killed_runs_go_and_those_of_living_ones_stay() {
        let root = tempfile::tempdir().unwrap();
        let scratch = ScratchDir::open(root.path(), &RepositoryId::random()).unwrap();
        let (a, b) = (SegmentId::random(), SegmentId::random());
        for name in [format!("{a}.17.tmp"), "unknown.tmp".to_owned()] {
            fs::write(scratch.path.join(name), "half").unwrap();
        }
        let mut at_work = scratch.create(&b).unwrap();
        at_work.append(b"whole").unwrap();
        scratch.retain(&|_| true);
        assert_eq!(fs::read_dir(&scratch.path).unwrap().count(), 1);
        assert_eq!((*at_work.finish().unwrap()).as_ref(), b"whole");
    }

    #[test]
    fn no_link_is_followed_to_the_directory_or_in_it() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::set_permissions(other.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let id = RepositoryId::random();
        symlink(other.path(), root.path().join(id.to_hex())).unwrap();
        let e = ScratchDir::open(root.path(), &id).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Denied, "{e}");

        let scratch = ScratchDir::open(root.path(), &RepositoryId::random()).unwrap();
        let (victim, segment) = (other.path().join("victim"), SegmentId::random());
        fs::write(&victim, "of somebody").unwrap();
        // as drafts were named once
        let draft = format!("{segment}.{}.tmp", std::process::id());
        symlink(&victim, scratch.path.join(draft)).unwrap();
        symlink(&victim, scratch.path.join(copy_name(&segment))).unwrap();
        assert!(scratch.open(&segment).is_none(), "another file is not a copy");
        assert_eq!((*store(&scratch, &segment, &[b"own"])).as_ref(), b"own");
        assert_eq!((*scratch.open(&segment).unwrap()).as_ref(), b"own");
        scratch.retain(&|_| false);
        assert_eq!(fs::read_to_string(victim).unwrap(), "of somebody");
    }

    #[test]
    fn a_directory_of_another_owner_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let id = RepositoryId::random();
        drop(ScratchDir::open(root.path(), &id).unwrap());
        if let Err(e) = chown(root.path().join(id.to_hex()), Some(12345), None) {
            println!("SKIP: needs the right to give a directory away: {e}");
            return;
        }
        let e = ScratchDir::open(root.path(), &id).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Denied);
        assert!(e.to_string().contains("12345"), "{e}");
        assert!(ScratchDir::for_run(Some(root.path()), &id).unwrap().is_none());
        let other = RepositoryId::random();
        assert!(ScratchDir::for_run(Some(root.path()), &other).unwrap().is_some());
    }
}
