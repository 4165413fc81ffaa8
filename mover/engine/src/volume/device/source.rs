//! A volume that is read.

use super::cache;
use super::geometry::{DeviceKind, Facts};
use super::mounts::InUse;
use super::open::{Access, DirectIo, Opened};
use super::open::{
    is_exclusively_open, open_buffered, open_export, stays_exclusively_open, with_direct,
};
use super::signatures;
use super::state;
use crate::volume::io::{Direction, IoFile, transfer_error};
use chunkstore::{Error, ErrorKind, Result, VolumeName};
use mover_nbd::{BASE_ALLOCATION, Export, STATE_ZERO, is_nbd};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

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
    /// Of an export; a snapshot's do not change while it is read.
    data: OnceLock<Option<Vec<Range<u64>>>>,
    stale: Option<String>,
}

/// Ranges of data of an export that are kept apart: 4 MiB of them. What is behind the last counts
/// as data.
const RANGES_MAX: usize = 1 << 18;
/// How often a server is asked for them.
const QUESTIONS_MAX: u32 = 1 << 20;

impl Source {
    /// Opens a block device, a regular file or an NBD export for reading. It takes no claim: the
    /// device may be in use. The page cache of a device that is read through it is emptied.
    pub fn open(path: impl AsRef<Path>, options: SourceOptions) -> Result<Self> {
        Self::open_for(path.as_ref(), options, None)
    }

    /// As [`open`](Self::open), where only the first `size_bytes` are read: their end may be within
    /// a block, and is read through the page cache then.
    pub(crate) fn open_for(
        path: &Path,
        options: SourceOptions,
        size_bytes: Option<u64>,
    ) -> Result<Self> {
        let empty = || {
            let what = format!("read {}", path.display());
            Err(Error::new(ErrorKind::Usage, what, "it is empty")
                .hint("check that the device is attached and the path is right"))
        };
        if is_nbd(path) {
            let Opened { io, facts } = open_export(path)?;
            return if facts.size_bytes == 0 { empty() } else { Ok(Self::of(io, facts)) };
        }
        let (buffered, facts) = open_buffered(path, Access::Read)?;
        if facts.size_bytes == 0 {
            return empty();
        }
        let Opened { io, facts } =
            with_direct(path, Access::Read, options.direct, buffered, facts)?;
        let stale = cache::empty(&io, &facts, size_bytes.unwrap_or(facts.size_bytes));
        Ok(Self { stale, ..Self::of(io, facts) })
    }

    pub(super) fn of(io: Arc<IoFile>, facts: Facts) -> Self {
        Self { io, facts, data: OnceLock::new(), stale: None }
    }

    /// Why what is read here may be older than what is on the device, if it may be.
    pub fn stale(&self) -> Option<&str> {
        self.stale.as_deref()
    }

    /// The NBD export, if it is one.
    pub fn export(&self) -> Option<&Export> {
        self.io.export().map(|export| &**export)
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

    /// Whether the page cache is bypassed; there is none before an export.
    pub fn direct(&self) -> bool {
        self.io.is_direct() || self.export().is_some()
    }

    /// As the user named it.
    pub fn path(&self) -> &Path {
        self.io.path()
    }

    /// The same wherever it is read: of a device or file from the root on, of an export its
    /// address.
    pub fn absolute_path(&self) -> String {
        let path = match self.facts.kind {
            DeviceKind::Nbd => None,
            _ => std::path::absolute(self.path()).ok(),
        };
        path.as_deref().unwrap_or(self.path()).display().to_string()
    }

    /// For an engine.
    pub fn io_file(&self) -> &Arc<IoFile> {
        &self.io
    }

    /// Byte ranges of a file or export that may hold data, ascending; all others are holes and read
    /// as zeros. `None` for a block device, which cannot tell, and for an export whose server does
    /// not.
    pub fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>> {
        let found = match self.facts.kind {
            DeviceKind::Block => return Ok(None),
            DeviceKind::File => {
                self.io.unaligned().and_then(|file| data_ranges(file, self.facts.size_bytes))
            }
            DeviceKind::Nbd => return Ok(self.data.get_or_init(|| self.data_of_export()).clone()),
        };
        found.map(Some).map_err(|e| {
            let what = format!("look for holes in {}", self.path().display());
            Error::caused(ErrorKind::Device, what, e)
        })
    }

    /// Knowing the holes only saves reading: a server that fails here may read well, and if not,
    /// the read says so.
    fn data_of_export(&self) -> Option<Vec<Range<u64>>> {
        let export = self.export()?;
        export.contexts().find(|context| *context == BASE_ALLOCATION)?;
        let (mut ranges, mut at): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
        let mut questions = 0;
        while at < self.facts.size_bytes {
            if questions == QUESTIONS_MAX {
                tracing::warn!(
                    "{} tells its holes in tiny pieces, from {at} on all is read",
                    export.uri()
                );
                ranges.push(at..self.facts.size_bytes);
                break;
            }
            questions += 1;
            let found = match export.block_status(BASE_ALLOCATION, at) {
                Ok(found) => found,
                Err(e) => {
                    tracing::warn!("{} does not tell its holes, all is read: {e}", export.uri());
                    return None;
                }
            };
            for (range, state) in found {
                at = range.end;
                match ranges.last_mut() {
                    _ if state & STATE_ZERO != 0 => {}
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => ranges.push(range),
                }
            }
            if ranges.len() > RANGES_MAX {
                ranges.push(at..self.facts.size_bytes);
                break;
            }
        }
        ranges.retain(|range| !range.is_empty());
        Some(ranges)
    }

    /// What to call this volume if the user does not say: the UUID of the file system (or encrypted
    /// container) on it, else its file name.
    pub fn default_volume_name(&self) -> Result<VolumeName> {
        let head = signatures::read_names(&self.io, self.facts.size_bytes)?;
        if let Some(uuid) = mover_fsmap::signatures::filesystem_uuid(&head) {
            return VolumeName::new(uuid);
        }
        if let Some(export) = self.export() {
            return VolumeName::new(export.uri().name());
        }
        let name = self.path().file_name().unwrap_or(self.path().as_os_str()).to_string_lossy();
        VolumeName::new(name)
    }

    /// What names the disk or the file system on it, if anything known does.
    pub fn identity(&self) -> Result<Option<String>> {
        Ok(mover_fsmap::identity(&signatures::read_names(&self.io, self.facts.size_bytes)?))
    }

    /// Where a file system on this volume is mounted for writing, if it is: what is read then
    /// changes under the reader.
    pub fn mounted_read_write(&self) -> Result<Option<PathBuf>> {
        // who uses an export is not known here
        if self.facts.kind == DeviceKind::Nbd {
            return Ok(None);
        }
        Ok(InUse::of(self.facts.identity)?.mounts.into_iter().find(|m| m.read_write).map(|m| m.at))
    }

    /// Whether the kernel has given the device, or a partition of it, to somebody, mounts that are
    /// listed here apart: those of other containers are not.
    pub fn is_claimed_unseen(&self) -> Result<bool> {
        self.is_unseen_claim(is_exclusively_open)
    }

    /// The same, of a claim that lasts: who only looks, as this does, has one for a moment, and so
    /// has a mount that is just being removed.
    pub fn stays_claimed_unseen(&self) -> Result<bool> {
        self.is_unseen_claim(stays_exclusively_open)
    }

    fn is_unseen_claim(&self, is_claimed: fn(&Path) -> bool) -> Result<bool> {
        if !self.is_block_device() || !is_claimed(self.path()) {
            return Ok(false);
        }
        let InUse { mounts, swap, holders, .. } = InUse::of(self.facts.identity)?;
        Ok(mounts.is_empty() || !swap.is_empty() || !holders.is_empty())
    }

    /// Whether it is a block device of this machine.
    pub fn is_block_device(&self) -> bool {
        self.facts.kind == DeviceKind::Block
    }

    /// Equal texts, from two processes at two times: nothing was written to the volume in between,
    /// as far as this kernel can tell. `None` where it cannot.
    pub fn state(&self) -> Option<String> {
        let meta = self.io.unaligned().ok()?.metadata().ok()?;
        state::state_of(self.facts.identity, &meta)
    }

    /// Equal texts, from one run: nothing was written to the volume in between. What the page cache
    /// of a block device holds from before is written back first: reading would do that, too, and
    /// it would look as if somebody had written meanwhile.
    pub fn written(&self) -> Option<String> {
        let file = self.io.unaligned().ok()?;
        if self.is_block_device()
            && let Err(e) = file.sync_data()
        {
            tracing::info!("cannot flush {}: {e}", self.path().display());
        }
        state::written_of(self.facts.identity, &file.metadata().ok()?)
    }

    /// When a file's data was changed last, in nanoseconds; `None` for a block device.
    pub fn file_modified_ns(&self) -> Option<i128> {
        let meta = self.io.unaligned().ok()?.metadata().ok()?;
        let ns = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
        (self.facts.kind == DeviceKind::File).then_some(ns)
    }

    /// Fills `buf` on the caller's thread, from any offset: for reads beside an engine's, which see
    /// the same bytes.
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
