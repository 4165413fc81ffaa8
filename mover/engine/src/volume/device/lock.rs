//! Who else writes to an image file. A block device has a claim for that (`O_EXCL`); a file has
//! locks, which keep off only those who ask for them.
//!
//! | lock | who has it | here |
//! |---|---|---|
//! | `fcntl`, a process's or an open file's | QEMU, while it has the image open | tried on the whole file and given back at once: it would end with any descriptor of the file |
//! | `flock` | another restore | held while the descriptor is open |

use rustix::fs::{FlockOperation, FsWord, fcntl_lock, flock, fstatfs};
use rustix::io::Errno;
use std::fs::File;
use std::io;

/// File systems of SMB servers, see statfs(2).
const SMB: [FsWord; 3] = [0x517b, 0xff53_4d42, 0xfe53_4d42];

/// Takes the lock, to be held as long as `file` is open; `ResourceBusy` if somebody else has one.
/// Where the file system knows no locks nobody is kept off.
pub(super) fn lock(file: &File) -> io::Result<()> {
    let tried = fcntl_lock(file, FlockOperation::NonBlockingLockExclusive);
    if none_else(tried)? {
        none_else(fcntl_lock(file, FlockOperation::NonBlockingUnlock))?;
    }
    // there a lock is one of bytes, and keeps off even our own other descriptors
    if fstatfs(file).is_ok_and(|fs| SMB.contains(&fs.f_type)) {
        return Ok(());
    }
    none_else(flock(file, FlockOperation::NonBlockingLockExclusive)).map(|_| ())
}

/// Whether the lock was had.
fn none_else(tried: rustix::io::Result<()>) -> io::Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN) => Err(Errno::BUSY.into()),
        // the last two are of security modules, which do not let us lock anything
        Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS | Errno::INVAL)
        | Err(Errno::ACCESS | Errno::PERM) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_locked_while_it_is_open_and_only_then() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(file.path()).unwrap();
        let first = open();
        lock(&first).unwrap();
        assert_eq!(lock(&open()).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        drop(first);
        lock(&open()).unwrap();
    }

    #[test]
    fn a_file_system_without_locks_is_none_that_is_locked() {
        let unknown = [Errno::NOTSUP, Errno::NOLCK, Errno::NOSYS, Errno::INVAL, Errno::ACCESS];
        for unknown in unknown {
            assert!(!none_else(Err(unknown)).unwrap());
        }
        let held = none_else(Err(Errno::AGAIN)).unwrap_err();
        assert_eq!(held.kind(), io::ErrorKind::ResourceBusy);
        assert!(none_else(Err(Errno::IO)).is_err());
    }
}
