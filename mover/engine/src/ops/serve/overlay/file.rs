//! An overlay's file: made once, never in place of another one, this user's alone, locked while it
//! is open, and gone on with only over the backup that it was made for.
//!
//! Two files belong together, FILE and FILE.journal, by a random token that both have. The journal
//! is made first: as long as it has no record, nothing was ever flushed, so a FILE that is missing
//! then is made, too. A FILE or a journal that is missing in any other case is an error: without
//! one of them nobody knows what clients had written.
//!
//! Others may write to the directory. No symbolic link is followed at the two names, what belongs to
//! another user is refused, and neither name is ever replaced by this module.

use super::header::{HEADER_BYTES, HeaderFault, OverlayHeader};
use crate::live::{JournalFile, JournalTerms, Replayed};
use crate::ops::below::BelowIdentity;
use crate::volume::nameless::nameless_file;
use chunkstore::{Error, ErrorKind, Result, Setting, random_bytes};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What an overlay is opened for.
#[derive(Debug, Clone)]
pub(super) struct OverlayTerms {
    pub(super) identity: BelowIdentity,
    pub(super) size_bytes: u64,
    pub(super) chunk_bytes: u32,
}

/// What was opened.
#[derive(Debug)]
pub(super) struct OverlayFile {
    pub(super) file: File,
    pub(super) journal: JournalFile,
    pub(super) read: Replayed,
    /// It was there before.
    pub(super) is_old: bool,
}

/// Of FILE.
pub(super) fn journal_path(path: &Path) -> PathBuf {
    beside(path, "journal")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// Opens an overlay, or makes one where there is none.
pub(super) fn open_or_make(path: &Path, terms: &OverlayTerms) -> Result<OverlayFile> {
    let there = Existing::open(path)?;
    let journal_path = journal_path(path);
    let (journal, read) = match (&there, exists(&journal_path)?) {
        (_, true) => JournalFile::open(&journal_path)?,
        (None, false) => JournalFile::create(&journal_path, terms.journal(random_bytes()))?,
        (Some(there), false) => {
            // its own faults are told first
            there.header(path)?;
            return Err(refused(path, "its journal is missing").hint(format!(
                "bring {} back to its place; or remove the overlay, and with it all that was \
                 written to it",
                journal_path.display()
            )));
        }
    };
    let token = read.terms.token;
    let others = BelowIdentity::from_bytes(&read.terms.identity);
    let identity = read.terms.identity.clone();
    let same = JournalTerms { identity, ..terms.journal(token) };
    if read.terms != same || !others.is_same_backup(&terms.identity) {
        return Err(foreign(&journal_path, &others, terms));
    }
    let is_old = there.is_some();
    let file = match there {
        Some(there) => there.checked(path, terms, token)?,
        None if read.number == 0 => {
            make(path, &OverlayHeader { token, identity: terms.identity.clone() }, terms)?
        }
        None => {
            return Err(refused(path, "it is missing, and its journal is there").hint(format!(
                "bring the file back to its place; or remove {} too, to begin with nothing written",
                journal_path.display()
            )));
        }
    };
    Ok(OverlayFile { file, journal, read, is_old })
}

/// A file without a name, for as long as it is open.
pub(super) fn make_temporary(directory: &Path, terms: &OverlayTerms) -> Result<File> {
    let fail = |e: io::Error| {
        failed("make a temporary overlay in", directory, e)
            .hint(format!("choose a directory on a disk with room, with {}", Setting("scratch")))
    };
    let file = nameless_file(directory).map_err(fail)?;
    file.set_len(HEADER_BYTES + terms.size_bytes).map_err(fail)?;
    Ok(file)
}

impl OverlayTerms {
    pub(super) fn journal(&self, token: [u8; 16]) -> JournalTerms {
        let Self { identity, size_bytes, chunk_bytes } = self;
        JournalTerms {
            chunk_bytes: *chunk_bytes,
            size_bytes: *size_bytes,
            token,
            identity: identity.as_bytes().to_vec(),
        }
    }
}

/// A file that is there, this user's, and locked.
#[derive(Debug)]
struct Existing(File);

impl Existing {
    fn open(path: &Path) -> Result<Option<Self>> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match open(path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(refused(path, "it is a symbolic link")),
            Err(Errno::ISDIR) => return Err(refused(path, "it is a directory")),
            Err(e) => return Err(failed("open", path, e.into())),
        };
        let stat = file.metadata().map_err(|e| failed("open", path, e))?;
        if !stat.is_file() {
            return Err(refused(path, "it is no regular file"));
        }
        if stat.uid() != geteuid().as_raw() {
            let what = format!("it belongs to another user, number {}", stat.uid());
            return Err(refused(path, &what));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Err(refused(path, "another process serves it")
                .hint("end that process, or name another file")),
            Err(e) => Err(failed("lock", path, e.into())),
        }
    }

    fn header(&self, path: &Path) -> Result<OverlayHeader> {
        let mut bytes = vec![0; usize::try_from(HEADER_BYTES).unwrap_or(0)];
        let mut len = 0;
        while len < bytes.len() {
            let read = self.0.read_at(&mut bytes[len..], len as u64);
            match read.map_err(|e| failed("read", path, e))? {
                0 => break,
                read => len += read,
            }
        }
        OverlayHeader::decode(&bytes[..len]).map_err(|fault| match fault {
            HeaderFault::NoOverlay => {
                refused(path, "it exists, and is no overlay").hint("name a file that is not there")
            }
            HeaderFault::Version(version) => Error::new(
                ErrorKind::Unsupported,
                format!("open overlay {}", path.display()),
                format!("it has version {version}, this program knows 1"),
            )
            .hint("use the program that made it, or a newer one"),
            HeaderFault::Damaged => Error::new(
                ErrorKind::Corrupt,
                format!("open overlay {}", path.display()),
                "its header does not check",
            )
            .hint("bring the file back as it was, or name another one"),
        })
    }

    /// The file, if it lies over this backup and belongs to this journal.
    fn checked(self, path: &Path, terms: &OverlayTerms, token: [u8; 16]) -> Result<File> {
        let header = self.header(path)?;
        if !header.identity.is_same_backup(&terms.identity) {
            return Err(foreign(path, &header.identity, terms));
        }
        if header.token != token {
            return Err(refused(path, "the journal beside it is another overlay's")
                .hint("bring back the two files that belong together"));
        }
        let stat = self.0.metadata().map_err(|e| failed("open", path, e))?;
        if stat.len() != HEADER_BYTES + terms.size_bytes {
            let what =
                format!("it has {} bytes, and not {}", stat.len(), HEADER_BYTES + terms.size_bytes);
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("open overlay {}", path.display()),
                what,
            )
            .hint("bring the file back as it was, or name another one"));
        }
        if stat.mode() & 0o077 != 0 {
            return Err(Error::new(
                ErrorKind::Denied,
                format!("open overlay {}", path.display()),
                "others may read or write it",
            )
            .hint(format!("chmod 600 {}", path.display())));
        }
        Ok(self.0)
    }
}

/// Makes FILE under a name of its own, and gives it its name, which replaces nothing.
fn make(path: &Path, header: &OverlayHeader, terms: &OverlayTerms) -> Result<File> {
    let fail = |e: io::Error| failed("make", path, e);
    let draft = beside(path, &format!("{}.new", hex::encode(header.token)));
    // of a process that was killed; whoever has the journal locked is alone with its token
    match std::fs::remove_file(&draft) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
        _ => {}
    }
    let file = fresh(&draft).map_err(fail)?;
    let made = flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(io::Error::from)
        .and_then(|()| file.write_all_at(&header.encode(), 0))
        .and_then(|()| file.set_len(HEADER_BYTES + terms.size_bytes))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::hard_link(&draft, path));
    let removed = std::fs::remove_file(&draft);
    made.and(removed).and_then(|()| sync_directory(path)).map_err(fail)?;
    Ok(file)
}

fn private() -> Mode {
    Mode::RUSR | Mode::WUSR
}

fn fresh(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(open(path, flags, private())?))
}

fn exists(path: &Path) -> Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed("look for", path, e)),
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn refused(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("open overlay {}", path.display()), what)
        .hint("name another file; what is there stays as it is")
}

fn foreign(path: &Path, found: &BelowIdentity, terms: &OverlayTerms) -> Error {
    let what = format!("it lies over {}", found.shown());
    refused(path, &what)
        .hint(format!("name another file for {}, or serve that backup", terms.identity.shown()))
}

fn failed(what: &str, path: &Path, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Device,
    };
    Error::caused(kind, format!("{what} overlay {}", path.display()), e)
}
