//! What an open descriptor or export is: its kind, size, block size, and which device or file it
//! is. No policy.

use chunkstore::{Error, ErrorKind, Result};
use mover_nbd::Export;
use rustix::fs::{AtFlags, FileType, SeekFrom, StatxFlags};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fmt, io};

/// Smallest block of any device.
const SECTOR_BYTES: u32 = 512;

/// What holds the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A block device.
    Block,
    /// A regular file: a raw image.
    File,
    /// An export of an NBD server.
    Nbd,
}

/// Number of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct DeviceNo {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl DeviceNo {
    pub(crate) fn of(number: u64) -> Self {
        Self { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
    }

    /// `MAJOR:MINOR`, as the kernel writes it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for DeviceNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Which device or file something is, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Identity {
    Block(DeviceNo),
    File {
        dev: u64,
        ino: u64,
    },
    /// Nothing that this kernel knows.
    Remote,
}

impl Identity {
    /// Of what is behind a path; `None` if it is neither a block device nor a regular file, or is
    /// not there.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        Self::of(&std::fs::metadata(path).ok()?)
    }

    pub(crate) fn of(meta: &std::fs::Metadata) -> Option<Self> {
        match FileType::from_raw_mode(meta.mode()) {
            FileType::BlockDevice => Some(Self::Block(DeviceNo::of(meta.rdev()))),
            FileType::RegularFile => Some(Self::File { dev: meta.dev(), ino: meta.ino() }),
            _ => None,
        }
    }
}

/// What an open device or file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) kind: DeviceKind,
    pub(crate) identity: Identity,
    pub(crate) size_bytes: u64,
    pub(crate) logical_block_bytes: u32,
    /// A block device that takes no writes.
    pub(crate) read_only: bool,
}

impl Facts {
    /// Of an export, as it was negotiated.
    pub(crate) fn of_export(export: &Export) -> Self {
        Self {
            kind: DeviceKind::Nbd,
            identity: Identity::Remote,
            size_bytes: export.size_bytes(),
            logical_block_bytes: export.block_bytes().max(SECTOR_BYTES),
            read_only: export.read_only(),
        }
    }
}

/// Looks at an open descriptor.
pub(crate) fn examine(file: &File, path: &Path) -> Result<Facts> {
    let fail = |e: io::Error| {
        Error::caused(ErrorKind::Device, format!("ask for the size of {}", path.display()), e)
    };
    let meta = file.metadata().map_err(fail)?;
    match Identity::of(&meta) {
        Some(identity @ Identity::File { .. }) => Ok(Facts {
            kind: DeviceKind::File,
            identity,
            size_bytes: meta.len(),
            logical_block_bytes: SECTOR_BYTES,
            read_only: false,
        }),
        Some(identity @ Identity::Block(_)) => Ok(Facts {
            kind: DeviceKind::Block,
            identity,
            // Nobody uses the descriptor's position: all transfers name their offset.
            size_bytes: rustix::fs::seek(file, SeekFrom::End(0)).map_err(|e| fail(e.into()))?,
            logical_block_bytes: rustix::fs::ioctl_blksszget(file).map_err(|e| fail(e.into()))?,
            read_only: is_read_only(file).map_err(fail)?,
        }),
        // what is behind a path is never remote
        Some(Identity::Remote) | None => Err(wrong_type(path, &meta)),
    }
}

/// The error for something that can hold no volume.
pub(crate) fn wrong_type(path: &Path, meta: &std::fs::Metadata) -> Error {
    let what = match FileType::from_raw_mode(meta.mode()) {
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    };
    Error::new(ErrorKind::Usage, format!("open {}", path.display()), format!("it is {what}"))
        .hint("name a block device or a raw image file")
}

fn is_read_only(file: &File) -> io::Result<bool> {
    // _IO(0x12, 94), <linux/fs.h>
    const BLKROGET: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 94);
    // SAFETY: BLKROGET writes one int through its argument and nothing else; `Getter` passes a
    // valid pointer to one.
    let value = unsafe {
        rustix::ioctl::ioctl(file, rustix::ioctl::Getter::<BLKROGET, libc::c_int>::new())
    };
    Ok(value? != 0)
}

/// What `O_DIRECT` transfers of an open file must be aligned to, as far as the kernel says (6.1 and
/// newer). `Some(0)`: there is no direct I/O on this file.
pub(crate) fn direct_align(file: &File) -> Option<u32> {
    let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if told.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    if told.stx_dio_offset_align == 0 {
        return Some(0);
    }
    Some(told.stx_dio_offset_align.max(told.stx_dio_mem_align).max(SECTOR_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_regular_file_is_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [1; 1000]).unwrap();
        let file = File::open(&path).unwrap();
        let facts = examine(&file, &path).unwrap();
        assert_eq!((facts.kind, facts.size_bytes), (DeviceKind::File, 1000));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let hard = dir.path().join("hard");
        std::fs::hard_link(&path, &hard).unwrap();
        for other in [link, hard] {
            assert_eq!(Identity::of_path(&other), Some(facts.identity));
        }
        assert_eq!(Identity::of_path(&dir.path().join("none")), None);
    }

    #[test]
    fn what_holds_no_volume_is_named() {
        for (path, what) in [("/dev/null", "a character device"), ("/", "a directory")] {
            let file = File::open(path).unwrap();
            let e = examine(&file, &PathBuf::from(path)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Usage);
            assert!(e.to_string().contains(what), "{e}");
        }
    }

    #[test]
    fn device_numbers_are_parsed_as_the_kernel_writes_them() {
        let no = DeviceNo::parse("259:70000\n").unwrap();
        assert_eq!(no, DeviceNo { major: 259, minor: 70000 });
        assert_eq!(no.to_string(), "259:70000");
        for bad in ["", "7", "7:", ":7", "a:b", "-1:0", "99999999999:0"] {
            assert_eq!(DeviceNo::parse(bad), None, "{bad:?}");
        }
    }
}
