//! The journal as a file: made once, never over another one, locked while it is open, and replaced
//! by a rename only by whoever has it locked.

use super::{JournalTerms, Replayed, encode_base, replay};
use crate::live::bits::ChunkBits;
use crate::live::parts::JournalLog;
use crate::live::volume::locked;
use chunkstore::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A journal that is open, and ours alone.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl JournalFile {
    /// Makes a journal of a volume of which nothing is done. What is there already is refused,
    /// whatever it is.
    pub fn create(path: &Path, terms: JournalTerms) -> Result<(Self, Replayed)> {
        let fail = |e: io::Error| failed("create", path, e);
        let base = encode_base(&terms, &ChunkBits::none(terms.chunks()), 0);
        // under a name of its own until it is whole: a crash leaves no half of a journal
        let beside = beside(path, &format!("{}.new", hex::encode(terms.token)));
        let file = fresh(&beside).map_err(fail)?;
        let made = lock(&file)
            .and_then(|()| file.write_all_at(&base, 0))
            .and_then(|()| file.sync_all())
            // unlike a rename, this never replaces
            .and_then(|()| std::fs::hard_link(&beside, path))
            .and_then(|()| std::fs::remove_file(&beside))
            .and_then(|()| sync_dir(path));
        if let Err(e) = made {
            // ours, under a name that nobody else has
            let _ = std::fs::remove_file(&beside);
            return Err(match e.kind() {
                io::ErrorKind::AlreadyExists => fail(e).hint(
                    "if it is the journal of this very volume, run the command that goes on with \
                     it; else name another file",
                ),
                _ => fail(e),
            });
        }
        let read = replay(&base).map_err(|e| Error::caused(ErrorKind::Bug, "make a journal", e))?;
        Ok((Self { path: path.to_owned(), file: Arc::new(Mutex::new(file)) }, read))
    }

    /// Opens a journal and reads it; a torn end is cut. Refused while another process has it open.
    pub fn open(path: &Path) -> Result<(Self, Replayed)> {
        let fail = |e: io::Error| failed("open", path, e);
        let mut file = open_locked(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(fail)?;
        let read = replay(&bytes).map_err(|e| {
            Error::caused(ErrorKind::Corrupt, format!("read journal {}", path.display()), e).hint(
                "without it nobody knows which bytes of the target are newer than the backup: bring \
                 the file back as it was, or give the target up and restore anew",
            )
        })?;
        if read.torn_bytes > 0 {
            tracing::info!(
                "journal {}: the last {} bytes are of a record that was never finished, and are cut",
                path.display(),
                read.torn_bytes
            );
            file.set_len(read.end).and_then(|()| file.sync_all()).map_err(fail)?;
        }
        Ok((Self { path: path.to_owned(), file: Arc::new(Mutex::new(file)) }, read))
    }

    /// Gives a journal up, durably. Refused while another process has it open.
    pub fn remove(path: &Path) -> Result<()> {
        let _locked = open_locked(path)?;
        let removed = std::fs::remove_file(path).and_then(|()| sync_dir(path));
        removed.map_err(|e| failed("remove", path, e))
    }

    /// As the user named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn blocking(
        &self,
        act: impl FnOnce(&mut File, &Path) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let (file, path) = (Arc::clone(&self.file), self.path.clone());
        let task = tokio::task::spawn_blocking(move || act(&mut locked(&file), &path));
        task.await.unwrap_or_else(|e| Err(io::Error::other(e)))
    }
}

impl JournalLog for JournalFile {
    async fn append(&self, at: u64, bytes: Vec<u8>) -> io::Result<()> {
        self.blocking(move |file, _| {
            // what a record that did not fit has left
            if file.metadata()?.len() > at {
                file.set_len(at)?;
            }
            file.write_all_at(&bytes, at)
        })
        .await
    }

    async fn sync(&self) -> io::Result<()> {
        self.blocking(|file, _| file.sync_all()).await
    }

    async fn replace(&self, bytes: Vec<u8>) -> io::Result<()> {
        self.blocking(move |file, path| {
            let beside = beside(path, "next");
            // ours alone: we hold the lock of the journal that it is made for
            match std::fs::remove_file(&beside) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            let next = fresh(&beside)?;
            // it is locked before it has its name, so nobody gets between
            lock(&next)?;
            next.write_all_at(&bytes, 0)?;
            next.sync_all()?;
            std::fs::rename(&beside, path)?;
            *file = next;
            sync_dir(path).map_err(unsure)
        })
        .await
    }
}

/// The journal is another one now, and may be the old one again after a crash. This must not look
/// like a full disk, which leaves the old one as it is.
fn unsure(e: io::Error) -> io::Error {
    io::Error::other(format!("sync the directory of the journal: {e}"))
}

fn fresh(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn lock(file: &File) -> io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from)
}

/// Opens and locks what has this name, and goes on having it.
fn open_locked(path: &Path) -> Result<File> {
    let fail = |e: io::Error| failed("open", path, e);
    loop {
        let options = &mut OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path).map_err(fail)?;
        lock(&file).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Error::new(
                ErrorKind::Usage,
                format!("open journal {}", path.display()),
                "another process has it open",
            )
            .hint("end that process first"),
            _ => fail(e),
        })?;
        let (ours, named) = (file.metadata().map_err(fail)?, path.metadata().map_err(fail)?);
        if !ours.is_file() {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("open journal {}", path.display()),
                "it is no regular file",
            )
            .hint("name another file"));
        }
        // whoever can write it can say that all of a volume is there
        let context = || format!("open journal {}", path.display());
        if ours.uid() != geteuid().as_raw() {
            let what = format!("it belongs to another user, {}", ours.uid());
            return Err(Error::new(ErrorKind::Denied, context(), what)
                .hint("keep it in a directory where nobody else may make files"));
        }
        if ours.mode() & 0o077 != 0 {
            let what = "others may read or write it";
            return Err(Error::new(ErrorKind::Denied, context(), what)
                .hint(format!("chmod 600 {}", path.display())));
        }
        // else it was replaced just before it was locked
        if (ours.dev(), ours.ino()) == (named.dev(), named.ino()) {
            return Ok(file);
        }
    }
}

fn sync_dir(path: &Path) -> io::Result<()> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    File::open(dir)?.sync_all()
}

fn failed(what: &str, path: &Path, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    };
    Error::caused(kind, format!("{what} journal {}", path.display()), e)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges, of one too
mod tests {
    use super::*;
    use crate::live::encode_record;

    fn terms() -> JournalTerms {
        JournalTerms {
            chunk_bytes: 4096,
            size_bytes: 40 * 4096,
            token: [3; 16],
            identity: Vec::new(),
        }
    }

    #[test]
    fn a_journal_is_made_once_and_open_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (made, read) = JournalFile::create(&path, terms()).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let e = JournalFile::open(&path).unwrap_err();
        assert!(e.to_string().contains("another process has it open"), "{e}");
        drop(made);
        let e = JournalFile::create(&path, terms()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(JournalFile::open(&path).unwrap().1, read);
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        JournalFile::open(&dir.path().join("link")).unwrap_err();
    }

    #[test]
    fn what_fails_once_the_journal_is_replaced_is_no_full_disk() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let e = unsure(kind.into());
            assert_eq!(e.kind(), io::ErrorKind::Other);
            assert!(e.to_string().contains("sync the directory"), "{e}");
        }
    }

    #[tokio::test]
    async fn a_journal_that_was_replaced_stays_locked_and_a_torn_end_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (made, read) = JournalFile::create(&path, terms()).unwrap();
        let mut done = ChunkBits::none(40);
        done.insert(5..9);
        let base = encode_base(&terms(), &done, 7);
        std::fs::write(dir.path().join("journal.next"), b"left by a crash").unwrap();
        made.replace(base.clone()).await.unwrap();
        JournalFile::open(&path).unwrap_err();
        let end = base.len() as u64;
        made.append(end, vec![1; 900]).await.unwrap();
        let record = encode_record(&terms(), 8, &[0..2]);
        made.append(end, record.clone()).await.unwrap();
        made.append(end + record.len() as u64, b"cowr torn".to_vec()).await.unwrap();
        made.sync().await.unwrap();
        drop(made);
        let (_, again) = JournalFile::open(&path).unwrap();
        assert_eq!((again.number, again.torn_bytes, again.done.ones()), (8, 9, 6));
        assert_eq!(path.metadata().unwrap().len(), again.end);
        assert_ne!(again, read);
    }
}
