//! Plain copies of dedup segments in a scratch directory, memory-mapped.
//!
//! The directory is 0700, since the copies are not encrypted: they tell which chunk ids exist, not
//! what the chunks hold. A copy is written under a temporary name and renamed, so a half-written
//! one is never found; what a copy says is checked by the index on every use, so a damaged one
//! costs time, not data. Nothing here is ever needed to read a backup.

use chunkstore::{
    Error, ErrorKind, RepositoryId, Result, Scratch, ScratchBytes, ScratchWriter, SegmentId,
};
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
}

/// A copy under its temporary name.
#[derive(Debug)]
struct Writing {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl Writing {
    fn failed(&self, e: io::Error) -> Error {
        failed(&self.path, e)
    }
}

impl ScratchWriter for Writing {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| self.failed(e))
    }

    fn finish(self: Box<Self>) -> Result<ScratchBytes> {
        fs::rename(&self.temporary, &self.path).map_err(|e| self.failed(e))?;
        Ok(Arc::new(map(&self.path).map_err(|e| self.failed(e))?))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // there is none after a rename; else a full disk must not stay full because of us
        let _ = fs::remove_file(&self.temporary);
    }
}

fn failed(path: &Path, e: io::Error) -> Error {
    Error::new(kind(&e), format!("write scratch copy {}", path.display()), "")
        .caused_by(e)
        .hint("make room there, or use --scratch none")
}

impl Scratch for ScratchDir {
    fn open(&self, segment: &SegmentId) -> Option<ScratchBytes> {
        map(&self.path(segment)).ok().map(|m| Arc::new(m) as ScratchBytes)
    }

    fn create(&self, segment: &SegmentId) -> Result<Box<dyn ScratchWriter>> {
        let path = self.path(segment);
        // the process id keeps two runs apart; whichever renames last wins, and both copies are
        // right
        let temporary = self.dir.join(format!("{segment}.{}.tmp", std::process::id()));
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let file = opened.map_err(|e| failed(&path, e))?;
        Ok(Box::new(Writing { file, temporary, path }))
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
    // SAFETY: the file is ours, in a directory that only we may write; it is never changed after
    // the rename, only replaced or removed, which leaves the mapped inode as it is.
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
        assert_eq!(fs::read_dir(&scratch.dir).unwrap().count(), 0);
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
