//! The page cache before a block device that is read or written through it.
//!
//! A disk, its partitions and what is built on them have a cache each. What the cache of a disk
//! holds stays there as long as anybody has the disk open, and nobody changes it when a partition
//! is written to. So a device that is open without `O_DIRECT`, be it for its last bytes alone, has
//! its cache written back and emptied when it is opened. What comes in later is of now.
//!
//! `BLKFLSBUF` empties it, for `CAP_SYS_ADMIN`; `POSIX_FADV_DONTNEED` does much the same for
//! anybody. Neither removes pages that a process has mapped. From Linux 6.5 on `cachestat` says
//! what is left. Before, `BLKFLSBUF` is taken at its word, and the advice is not.
//!
//! Unsafe code: two system calls that rustix does not have.

use super::geometry::{DeviceKind, Facts, Identity};
use super::mounts;
use super::open::{Access, open_buffered, pause};
use crate::volume::io::IoFile;
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// How often it is emptied if others read meanwhile.
const TRIES: u32 = 10;

/// Empties the cache of a volume, and of the device that a loop device is on, wherever bytes of it
/// go through one. The reason if that is not possible: what is read may be older than the device.
///
/// `size_bytes`: of what is read or written.
pub(super) fn empty(io: &IoFile, facts: &Facts, size_bytes: u64) -> Option<String> {
    let Identity::Block(_) = facts.identity else { return None };
    debug_assert_eq!(facts.kind, DeviceKind::Block);
    let align = u64::from(io.align());
    let cached = !io.is_direct()
        || !facts.size_bytes.is_multiple_of(align)
        || !size_bytes.is_multiple_of(align);
    let own = if cached { io.unaligned().and_then(empty_one) } else { Ok(()) };
    let own = own.or_else(|e| match is_kept(&e, || mounts::is_mounted(facts.identity)) {
        true => Ok(()),
        false => Err(e),
    });
    if let Err(e) = own {
        return Some(format!("the page cache of {} cannot be emptied: {e}", io.path().display()));
    }
    mounts::read_through_cache(facts.identity).into_iter().find_map(|below| {
        let emptied = open_buffered(&below, Access::Read)
            .map_err(io::Error::other)
            .and_then(|(file, _)| empty_one(&file));
        let (path, below) = (io.path().display(), below.display());
        let e = emptied.err()?;
        Some(format!("{path} reads {below} through a page cache, which cannot be emptied: {e}"))
    })
}

/// Whether pages stay because a file system on the device keeps those that it writes itself: they
/// are not old. Where nothing could be emptied, old pages may be among what is there.
fn is_kept(e: &io::Error, is_mounted: impl FnOnce() -> bool) -> bool {
    e.kind() == io::ErrorKind::ResourceBusy && is_mounted()
}

/// Empties the caches of the partitions and loop devices above a device or file, which nobody
/// changes when it is written to. The reason if that is not possible for one.
pub(super) fn empty_above(identity: Identity) -> Option<String> {
    mounts::devices_above(identity).into_iter().find_map(|(number, node)| {
        let emptied = match Identity::of_path(&node) {
            Some(found) if found == Identity::Block(number) => open_buffered(&node, Access::Read)
                .map_err(io::Error::other)
                .and_then(|(file, _)| empty_one(&file)),
            _ => Err(io::Error::new(io::ErrorKind::NotFound, "it is not seen there")),
        };
        let e = emptied.err()?;
        Some(format!("the page cache of {} cannot be emptied: {e}", node.display()))
    })
}

/// The cache of one device.
fn empty_one(file: &File) -> io::Result<()> {
    let mut tries = 0;
    loop {
        let flushed = match flush_buffers(file) {
            Ok(()) => true,
            Err(Errno::PERM | Errno::ACCESS | Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => {
                file.sync_data()?;
                fadvise(file, 0, None, Advice::DontNeed)?;
                false
            }
            Err(e) => return Err(e.into()),
        };
        match (pages_cached(file), flushed) {
            (Ok(0), _) | (Err(_), true) => return Ok(()),
            (Err(_), false) => {
                let why = "BLKFLSBUF needs the capability CAP_SYS_ADMIN";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            (Ok(_), _) if tries < TRIES => tries += 1,
            (Ok(pages), _) => {
                let why = format!("{pages} pages stay; has a process mapped it into its memory?");
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
        }
        pause();
    }
}

fn flush_buffers(file: &File) -> rustix::io::Result<()> {
    // _IO(0x12, 97), <linux/fs.h>
    const BLKFLSBUF: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 97);
    // SAFETY: BLKFLSBUF takes no argument.
    unsafe { rustix::ioctl::ioctl(file, rustix::ioctl::NoArg::<BLKFLSBUF>::new()) }
}

/// Pages that the cache holds of a file or device; an error where the kernel does not say.
fn pages_cached(file: &File) -> io::Result<u64> {
    /// The same on all architectures that it runs on.
    const SYS_CACHESTAT: libc::c_long = 451;
    // of all bytes; `struct cachestat_range` and `struct cachestat` of <linux/mman.h>
    let range = [0_u64; 2];
    let mut stat = [0_u64; 5];
    // SAFETY: the kernel reads two and writes five numbers of 64 bits through these pointers, which
    // are valid for that, and keeps neither.
    let done = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0_u32)
    };
    if done == 0 { Ok(stat[0]) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapOptions;
    use std::io::Write;

    #[test]
    fn what_is_cached_is_counted_and_dropped() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 100_000]).unwrap();
        let Ok(pages) = pages_cached(&file) else {
            println!("this kernel does not tell what is cached");
            return;
        };
        assert!(pages >= 100_000 / rustix::param::page_size() as u64, "{pages}");
        // a file takes the way of one without the capability
        empty_one(&file).unwrap();
        assert_eq!(pages_cached(&file).unwrap(), 0);
    }

    #[test]
    fn a_mount_excuses_pages_that_stay_and_nothing_else() {
        let error = |kind| io::Error::new(kind, "");
        assert!(is_kept(&error(io::ErrorKind::ResourceBusy), || true));
        assert!(!is_kept(&error(io::ErrorKind::ResourceBusy), || false));
        assert!(!is_kept(&error(io::ErrorKind::PermissionDenied), || true));
    }

    #[test]
    fn pages_that_are_mapped_stay_and_that_is_said() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 100_000]).unwrap();
        if pages_cached(&file).is_err() {
            println!("this kernel does not tell what is cached");
            return;
        }
        let mapped = MmapOptions::new().populate().map_raw_read_only(&file).unwrap();
        let why = empty_one(&file).unwrap_err().to_string();
        assert!(why.contains("pages stay"), "{why}");
        drop(mapped);
        empty_one(&file).unwrap();
    }
}
