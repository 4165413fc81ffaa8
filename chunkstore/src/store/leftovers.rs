//! Other files than objects in a repository that is a directory: the temporary ones of killed
//! writers, which a collection removes, and those of others, beside which no repository is made.
//!
//! `object_store` writes a file under a temporary name, `KEY#NUMBER`, and renames or links it when
//! it is whole. A process that is killed in between leaves the temporary file: no listing shows it,
//! and nothing would ever remove it. A file that was written to recently may be somebody's at work,
//! so age decides, by the clock of the file system that stamped it. Who is slower than that has its
//! write fail, and tries again.
//!
//! A directory may hold what is not ours, or be one that others write to. So only the repository's
//! own prefixes are looked into, only what has the temporary name of a possible key is removed, no
//! symbolic link and no mount is followed, and each step goes by the descriptor of the directory
//! before it.

use super::Store;
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::{LEASES_PREFIX, NOT_OURS, PREFIXES, TOP_KEYS, is_key, lease_key};
use crate::ids::LeaseId;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Parts of the longest key, a manifest's.
const KEY_PARTS_MAX: usize = 4;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Temporary files that were removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Leftovers {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Store {
    /// Removes temporary files that were not written to for `idle`. Does nothing in a store that is
    /// no directory.
    pub(crate) fn remove_leftovers(&self, idle: Duration) -> Leftovers {
        let mut removed = Leftovers::default();
        // what cannot be looked at or removed stays: it harms nobody
        if let Some(root) = self.root()
            && let Ok(sweep) = Sweep::begin(root.as_fd(), idle)
        {
            sweep.files_of_keys(root.as_fd(), &mut removed);
        }
        removed
    }

    /// `Usage` where a directory holds something that is no part of a repository. What an `init`
    /// that failed leaves behind is one.
    pub(crate) fn refuse_other_things(&self, context: &str) -> Result<()> {
        let Some(root) = self.root() else { return Ok(()) };
        let mut others = Vec::new();
        each_entry(root.as_fd(), |name, kind| {
            let ours = match kind {
                // a link may lead to a larger disk
                FileType::Directory | FileType::Symlink => {
                    PREFIXES.iter().any(|p| p.trim_end_matches('/') == name)
                }
                _ => key_of(name).is_some_and(|key| TOP_KEYS.contains(&key)),
            };
            if !ours && !NOT_OURS.contains(&name) {
                others.push(name.to_owned());
            }
        })
        .map_err(|e| {
            Error::new(ErrorKind::Denied, context, "the directory cannot be read").caused_by(e)
        })?;
        others.sort_unstable();
        let Some(first) = others.first() else { return Ok(()) };
        let more = match others.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let detail = format!("the directory holds other things: {first:?}{more}");
        Err(Error::new(ErrorKind::Usage, context, detail)
            .hint("name a directory of its own for the repository, such as one below this one"))
    }

    /// Where the user has named a link, what that leads to.
    fn root(&self) -> Option<OwnedFd> {
        let directory = self.directory.as_ref()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, directory.as_ref(), flags, Mode::empty()).ok()
    }
}

/// What a removal goes by.
struct Sweep {
    /// Of the repository's directory.
    device: u64,
    /// What was written before this second is a leftover.
    before_seconds: i64,
}

impl Sweep {
    fn begin(root: BorrowedFd<'_>, idle: Duration) -> rustix::io::Result<Self> {
        let now_seconds = clock(root)?;
        let idle = i64::try_from(idle.as_secs()).unwrap_or(i64::MAX);
        let before_seconds = now_seconds.saturating_sub(idle);
        Ok(Self { device: fstat(root)?.st_dev, before_seconds })
    }

    fn files_of_keys(&self, root: BorrowedFd<'_>, removed: &mut Leftovers) {
        let _ = each_entry(root, |name, _| {
            let key = key_of(name).filter(|key| TOP_KEYS.contains(key));
            if key.is_some_and(|key| key != name) {
                self.remove(root, name, removed);
            }
        });
        for prefix in PREFIXES {
            self.below(root, prefix.trim_end_matches('/'), "", 1, removed);
        }
    }

    /// The files of one directory, then of those in it. `path` is where its parent is in the
    /// repository.
    fn below(
        &self,
        parent: BorrowedFd<'_>,
        name: &str,
        path: &str,
        parts: usize,
        removed: &mut Leftovers,
    ) {
        let Ok(directory) = openat(parent, name, DIRECTORY, Mode::empty()) else { return };
        if !fstat(&directory).is_ok_and(|stat| stat.st_dev == self.device) {
            return;
        }
        let path = format!("{path}{name}/");
        let mut directories = Vec::new();
        let _ = each_entry(directory.as_fd(), |name, kind| match kind {
            FileType::Directory if parts + 1 < KEY_PARTS_MAX => directories.push(name.to_owned()),
            FileType::RegularFile if is_leftover(&path, name) => {
                self.remove(directory.as_fd(), name, removed);
            }
            _ => {}
        });
        for name in directories {
            self.below(directory.as_fd(), &name, &path, parts + 1, removed);
        }
    }

    fn remove(&self, directory: BorrowedFd<'_>, name: &str, removed: &mut Leftovers) {
        let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return };
        let file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let old = stat.st_mtime < self.before_seconds && stat.st_dev == self.device;
        if file && old && unlinkat(directory, name, AtFlags::empty()).is_ok() {
            removed.files += 1;
            removed.bytes += bytes_of(&stat);
        }
    }
}

/// The second in which the file system says that a file is written now. The file has the temporary
/// name of a lease: should this process be killed here, a later collection removes it.
fn clock(root: BorrowedFd<'_>) -> rustix::io::Result<i64> {
    let directory = openat(root, LEASES_PREFIX.trim_end_matches('/'), DIRECTORY, Mode::empty())?;
    let key = lease_key(&LeaseId::random());
    let name = format!("{}#0", key.trim_start_matches(LEASES_PREFIX));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&directory, name.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
    let stat = fstat(&file);
    unlinkat(&directory, name.as_str(), AtFlags::empty())?;
    Ok(stat?.st_mtime)
}

/// Names that are not UTF-8 are shown as far as they are; no key has one.
fn each_entry(
    directory: BorrowedFd<'_>,
    mut seen: impl FnMut(&str, FileType),
) -> rustix::io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if [c".", c".."].contains(&entry.file_name()) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match kind_of(directory, entry.file_name()) {
                Err(Errno::NOENT) => continue,
                kind => kind?,
            },
            kind => kind,
        };
        seen(&entry.file_name().to_string_lossy(), kind);
    }
    Ok(())
}

/// For file systems whose directories do not say it.
fn kind_of(directory: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<FileType> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

fn bytes_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Whether this is the temporary name of a key. `path` is empty or ends with a slash.
fn is_leftover(path: &str, name: &str) -> bool {
    name.contains('#') && key_of(name).is_some_and(|key| is_key(&format!("{path}{key}")))
}

/// The name without what makes it a temporary one. `None`: it is neither that nor a key's.
fn key_of(name: &str) -> Option<&str> {
    let Some((key, number)) = name.split_once('#') else { return Some(name) };
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(key)
}

#[cfg(test)]
mod tests;
