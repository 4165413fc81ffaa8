//! Plain copies of dedup segments in a scratch directory, memory-mapped.
//!
//! The directory is 0700, since the copies are not encrypted: they tell which chunk ids exist, not what the chunks hold.
//! A copy is written under a temporary name and renamed, so a half-written one is never found; what a copy says is checked
//! by the index on every use, so a damaged one costs time, not data. Nothing here is ever needed to read a backup.

use chunkstore::{Error, ErrorKind, RepositoryId, Result, Scratch, ScratchBytes, SegmentId};
use memmap2::Mmap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copies of one repository's segments.
#[derive(Debug)]
pub struct ScratchDir {
    dir: PathBuf,
}

#[derive(Debug)]
struct Mapped(Mmap);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl ScratchDir {
    /// Uses `root/<repository id>`, made 0700 where it is missing.
    pub fn open(root: &Path, repository: &RepositoryId) -> Result<Self> {
        let dir = root.join(repository.to_hex());
        let context = || format!("open scratch directory {}", dir.display());
        let hint = "choose another one with --scratch, or --scratch none";
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(|e| Error::new(kind(&e), context(), "").caused_by(e).hint(hint))?;
        let meta = fs::metadata(&dir)
            .map_err(|e| Error::new(kind(&e), context(), "").caused_by(e).hint(hint))?;
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(Error::new(ErrorKind::Denied, context(), "others may read or write it")
                .hint(format!("chmod 700 {}", dir.display())));
        }
        Ok(Self { dir })
    }

    fn path(&self, segment: &SegmentId) -> PathBuf {
        self.dir.join(format!("{segment}.segment"))
    }

    fn write(&self, segment: &SegmentId, plain: &[u8]) -> io::Result<Mapped> {
        // the process id keeps two runs apart; whichever renames last wins, and both copies are right
        let temporary = self.dir.join(format!("{segment}.{}.tmp", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(plain));
        let renamed = written.and_then(|()| fs::rename(&temporary, self.path(segment)));
        if let Err(e) = renamed {
            // a full disk must not stay full because of us
            let _ = fs::remove_file(&temporary);
            return Err(e);
        }
        map(&self.path(segment))
    }
}

impl Scratch for ScratchDir {
    fn open(&self, segment: &SegmentId) -> Option<ScratchBytes> {
        map(&self.path(segment)).ok().map(|m| Arc::new(m) as ScratchBytes)
    }

    fn store(&self, segment: &SegmentId, plain: &[u8]) -> Result<ScratchBytes> {
        match self.write(segment, plain) {
            Ok(mapped) => Ok(Arc::new(mapped)),
            Err(e) => {
                let path = self.path(segment);
                Err(Error::new(kind(&e), format!("write scratch copy {}", path.display()), "")
                    .caused_by(e)
                    .hint("make room there, or use --scratch none"))
            }
        }
    }

    fn remove(&self, segment: &SegmentId) {
        let _ = fs::remove_file(self.path(segment));
    }

    fn retain(&self, listed: &dyn Fn(&SegmentId) -> bool) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let id = name.to_str().and_then(|n| n.strip_suffix(".segment"));
            if id.and_then(|id| SegmentId::from_hex(id).ok()).is_some_and(|id| !listed(&id)) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn map(path: &Path) -> io::Result<Mapped> {
    let file = File::open(path)?;
    // SAFETY: the file is ours, in a directory that only we may write; it is never changed after the rename, only
    // replaced or removed, which leaves the mapped inode as it is.
    let map = unsafe { Mmap::map(&file)? };
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

    #[test]
    fn a_copy_comes_back_and_goes_when_it_is_no_longer_listed() {
        let root = tempfile::tempdir().unwrap();
        let scratch = ScratchDir::open(root.path(), &RepositoryId::random()).unwrap();
        let (a, b) = (SegmentId::random(), SegmentId::random());
        assert!(scratch.open(&a).is_none());
        assert_eq!((*scratch.store(&a, b"one").unwrap()).as_ref(), b"one");
        scratch.store(&b, b"two").unwrap();
        assert_eq!((*scratch.open(&a).unwrap()).as_ref(), b"one");
        scratch.retain(&|id| *id == b);
        assert!(scratch.open(&a).is_none() && scratch.open(&b).is_some());
        scratch.remove(&b);
        assert!(scratch.open(&b).is_none());
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
}
