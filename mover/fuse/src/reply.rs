//! An answer in the kernel's words.

use crate::tree::{Kind, Node, Time};
use fuser::{FileAttr, FileType, INodeNo};
use rustix::io::Errno;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn errno(e: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(e.raw_os_error())
}

pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::Characters(..) => FileType::CharDevice,
        Kind::Blocks(..) => FileType::BlockDevice,
    }
}

/// As `new_decode_dev()` of the kernel reads it.
fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds {
        0.. => UNIX_EPOCH.checked_add(whole),
        _ => UNIX_EPOCH.checked_sub(whole),
    };
    whole
        .and_then(|at| at.checked_add(Duration::from_nanos(time.nanoseconds.into())))
        .unwrap_or(UNIX_EPOCH)
}

pub(crate) fn attributes(node: &Node) -> FileAttr {
    let rdev = match node.kind {
        Kind::Characters(major, minor) | Kind::Blocks(major, minor) => device(major, minor),
        _ => 0,
    };
    FileAttr {
        ino: INodeNo(node.inode),
        size: node.size_bytes,
        blocks: node.sectors,
        atime: system_time(node.accessed),
        mtime: system_time(node.modified),
        ctime: system_time(node.changed),
        crtime: UNIX_EPOCH,
        kind: file_type(node.kind),
        perm: node.mode & 0o7777,
        nlink: node.links,
        uid: node.uid,
        gid: node.gid,
        rdev,
        blksize: node.preferred_bytes,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_beyond_all_clocks() {
        let at = |seconds, nanoseconds| system_time(Time { seconds, nanoseconds });
        assert_eq!(at(0, 5), UNIX_EPOCH + Duration::from_nanos(5));
        // half a second before 1970
        assert_eq!(at(-1, 500_000_000), UNIX_EPOCH - Duration::from_millis(500));
        assert_eq!(at(i64::MIN, 0), UNIX_EPOCH - Duration::from_secs(1 << 63));
        assert_eq!(at(i64::MAX, 4_000_000_000), UNIX_EPOCH);
    }

    #[test]
    fn device_numbers_are_the_kernels() {
        // as `stat -c %r` has them
        assert_eq!(device(1, 3), 0x103);
        assert_eq!(device(259, 70_000), 0x1111_0370);
    }
}
