//! Attachments that are copied before anything is moved: the files of a directory, put together, and
//! bytes that have to be of a given digest.
//!
//! The copy has no name and is this process's alone. So what was compared is what is stored, whoever
//! writes to the files meanwhile.

use crate::volume::nameless::nameless_file;
use chunkstore::limits::ATTACHMENT_BYTES_MAX;
use chunkstore::{Error, ErrorKind, Result, Setting};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const BUFFER_BYTES: usize = 1 << 16;

/// One of the files, and what tells whether it is another one or was written to.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    path: PathBuf,
    size_bytes: u64,
    state: (u64, u64, i64, i64, i64, i64),
}

/// The files of an attachment, in their order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts(Vec<Part>);

/// A copy, and what it has.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) file: File,
    pub(super) size_bytes: u64,
    pub(super) digest: [u8; 32],
}

impl Parts {
    /// A regular file, or the files of a directory by the bytes of their names. Names that begin
    /// with a dot are left out: a mounted Secret has its bookkeeping there.
    pub(super) fn of(path: &Path, context: &dyn Fn() -> String) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|e| failed(context, e))?;
        let refused = |what: String| Err(Error::new(ErrorKind::Usage, context(), what));
        let parts = match meta.is_dir() {
            false => vec![Part::of(path.to_owned(), &meta)],
            true => in_directory(path, context)?,
        };
        if let Some(wrong) = parts.iter().find(|part| part.size_bytes == u64::MAX) {
            return refused(match wrong.path == path {
                true => "it is no regular file".to_owned(),
                false => format!("{} is no regular file", wrong.path.display()),
            });
        }
        if parts.is_empty() {
            return refused("the directory has no files".to_owned());
        }
        let parts = Self(parts);
        match parts.size_bytes() {
            size if size > ATTACHMENT_BYTES_MAX => {
                refused(format!("it has {size} bytes, and {ATTACHMENT_BYTES_MAX} are possible"))
            }
            _ => Ok(parts),
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.0.iter().fold(0, |sum, part| sum.saturating_add(part.size_bytes))
    }

    /// Copies all of them, one after the other, into a file without a name in `directory`.
    pub(super) fn copy(
        &self,
        directory: Option<&Path>,
        context: &dyn Fn() -> String,
    ) -> Result<Copied> {
        let directory = directory.ok_or_else(|| {
            Error::new(ErrorKind::Usage, context(), "there is no place to put its bytes together")
        })?;
        let elsewhere = |e: io::Error| {
            let place = format!("copy it to a file in {}", directory.display());
            Error::caused(ErrorKind::Device, place, e)
                .within(context())
                .hint(format!("choose a directory with room by {}", Setting("scratch")))
        };
        let mut file = nameless_file(directory).map_err(elsewhere)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut size_bytes = 0_u64;
        for part in &self.0 {
            let mut left = part.size_bytes;
            let of_it = || format!("{}: read {}", context(), part.path.display());
            let mut from = part.open().map_err(|e| failed(&of_it, e))?.take(left);
            loop {
                let read = from.read(&mut buffer).map_err(|e| failed(&of_it, e))?;
                if read == 0 {
                    break;
                }
                hasher.update(&buffer[..read]);
                file.write_all(&buffer[..read]).map_err(elsewhere)?;
                left -= read as u64;
            }
            if left > 0 {
                return Err(changed(context(), &part.path));
            }
            size_bytes += part.size_bytes;
        }
        Ok(Copied { file, size_bytes, digest: *hasher.finalize().as_bytes() })
    }
}

impl Part {
    /// What is no regular file has an impossible size.
    fn of(path: PathBuf, meta: &Metadata) -> Self {
        let state = (
            meta.dev(),
            meta.ino(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        );
        Self { path, size_bytes: if meta.is_file() { meta.len() } else { u64::MAX }, state }
    }

    /// Nothing that would block is opened, whatever the name leads to by now.
    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(&self.path)
    }
}

fn in_directory(path: &Path, context: &dyn Fn() -> String) -> Result<Vec<Part>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| failed(context, e))? {
        let name = entry.map_err(|e| failed(context, e))?.file_name();
        if !name.as_bytes().starts_with(b".") {
            names.push(name);
        }
    }
    names.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
    let part = |name| {
        let path = path.join(name);
        // a mounted Secret has links there, to the files of its newest state
        let of_it = || format!("{}: read {}", context(), path.display());
        let meta = std::fs::metadata(&path).map_err(|e| failed(&of_it, e))?;
        Ok(Part::of(path, &meta))
    };
    names.into_iter().map(part).collect()
}

fn failed(context: &dyn Fn() -> String, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Device,
    };
    Error::caused(kind, context(), e)
}

pub(super) fn changed(context: String, path: &Path) -> Error {
    let what = format!("{} was written to while it was read", path.display());
    Error::new(ErrorKind::Device, context, what).hint("run it again when nobody writes to the file")
}
