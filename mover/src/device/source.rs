//! A volume that is read.

use super::geometry::{DeviceKind, Facts};
use super::mounts::InUse;
use super::open::{Access, DirectIo, Opened, open_buffered, with_direct};
use super::signatures;
use super::state;
use crate::io::{Direction, IoFile, transfer_error};
use chunkstore::{Error, ErrorKind, Result, VolumeName};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to open a source.
#[derive(Debug, Clone, Copy, Default)]
pub struct SourceOptions {
    /// Whether to bypass the page cache.
    pub direct: DirectIo,
}

/// An open volume to read from.
#[derive(Debug)]
pub struct Source {
    io: Arc<IoFile>,
    facts: Facts,
}

impl Source {
    /// Opens a block device or a regular file for reading. It takes no claim: the device may be in use.
    pub fn open(path: impl AsRef<Path>, options: SourceOptions) -> Result<Self> {
        let path = path.as_ref();
        let (buffered, facts) = open_buffered(path, Access::Read)?;
        if facts.size_bytes == 0 {
            let what = format!("read {}", path.display());
            return Err(Error::new(ErrorKind::Usage, what, "it is empty")
                .hint("check that the device is attached and the path is right"));
        }
        let Opened { io, facts } =
            with_direct(path, Access::Read, options.direct, buffered, facts)?;
        Ok(Self { io, facts })
    }

    /// Size of the volume.
    pub fn size_bytes(&self) -> u64 {
        self.facts.size_bytes
    }

    /// Smallest unit of the device; 512 for files.
    pub fn logical_block_bytes(&self) -> u32 {
        self.facts.logical_block_bytes
    }

    /// Device or file.
    pub fn kind(&self) -> DeviceKind {
        self.facts.kind
    }

    /// Whether the page cache is bypassed.
    pub fn direct(&self) -> bool {
        self.io.is_direct()
    }

    /// As the user named it.
    pub fn path(&self) -> &Path {
        self.io.path()
    }

    /// For an engine.
    pub fn io_file(&self) -> &Arc<IoFile> {
        &self.io
    }

    /// Byte ranges of a file that may hold data, ascending; all others are holes and read as zeros. `None` for a block device,
    /// which cannot tell.
    pub fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>> {
        match self.facts.kind {
            DeviceKind::Block => Ok(None),
            DeviceKind::File => {
                data_ranges(self.io.unaligned(), self.facts.size_bytes).map(Some).map_err(|e| {
                    let what = format!("look for holes in {}", self.path().display());
                    Error::new(ErrorKind::Device, what, "").caused_by(e)
                })
            }
        }
    }

    /// What to call this volume if the user does not say: the UUID of the file system (or encrypted container) on it, else its
    /// file name.
    pub fn default_volume_name(&self) -> Result<VolumeName> {
        let head = signatures::read_head(&self.io, self.facts.size_bytes)?;
        if let Some(uuid) = signatures::filesystem_uuid(&head) {
            return VolumeName::new(uuid);
        }
        let name = self.path().file_name().unwrap_or(self.path().as_os_str()).to_string_lossy();
        VolumeName::new(name)
    }

    /// What is on the volume besides a file system of the ext family, as its first and last bytes say.
    pub(crate) fn signature_besides_ext(&self) -> Result<Option<&'static str>> {
        signatures::look_besides_ext(&self.io, self.facts.size_bytes)
    }

    /// Where a file system on this volume is mounted for writing, if it is: what is read then changes under the reader.
    pub fn mounted_read_write(&self) -> Result<Option<PathBuf>> {
        Ok(InUse::of(self.facts.identity)?.mounts.into_iter().find(|m| m.read_write).map(|m| m.at))
    }

    /// Equal texts, from two processes at two times: nothing was written to the volume in between, as far as this kernel can
    /// tell. `None` where it cannot.
    pub fn state(&self) -> Option<String> {
        let meta = self.io.unaligned().metadata().ok()?;
        state::state_of(self.facts.identity, &meta)
    }

    /// When a file's data was changed last, in nanoseconds; `None` for a block device.
    pub fn file_modified_ns(&self) -> Option<i128> {
        let meta = self.io.unaligned().metadata().ok()?;
        let ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        (self.facts.kind == DeviceKind::File).then_some(ns)
    }

    /// Fills `buf` on the caller's thread: for small reads beside an engine's.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.io.read_exact_at(buf, offset).map_err(|e| {
            let len = u32::try_from(buf.len()).unwrap_or(u32::MAX);
            transfer_error(Direction::Read, self.path(), offset, len, e)
        })
    }
}

fn data_ranges(file: &File, size_bytes: u64) -> std::io::Result<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < size_bytes => start,
            // no more data
            Ok(_) | Err(Errno::NXIO) => break,
            // the file system cannot tell
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(e) => return Err(e.into()),
        };
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) if end > start => end.min(size_bytes),
            // the file grew a hole just now, or was cut: take the rest as data, reading will tell
            Ok(_) | Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => size_bytes,
            Err(e) => return Err(e.into()),
        };
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
        at = end;
    }
    Ok(ranges)
}
