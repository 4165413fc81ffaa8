//! A volume that is written: everything that is refused, is refused here, before a byte changes.

use super::cache;
use super::geometry::{DeviceKind, Facts, Identity, examine};
use super::mounts::{InUse, overlap};
use super::open::{Access, DirectIo, Opened, changed, lock_target};
use super::open::{open_buffered, open_error, open_export, stays_exclusively_open, with_direct};
use super::signatures;
use super::source::{Source, SourceOptions};
use super::stable;
use super::zero::ZeroState;
use crate::volume::io::{Direction, IoFile, transfer_error};
use chunkstore::{Error, ErrorKind, Result, Setting};
use mover_nbd::is_nbd;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of an existing file, looked at at a time.
const LOOK_BYTES: usize = 1 << 20;

/// How to open a target.
#[derive(Debug, Clone)]
pub struct TargetOptions {
    /// Size of the volume that will be written.
    pub size_bytes: u64,
    /// Overwrite what is recognised on it (a file system, a partition table), and a file that holds
    /// anything but zeros. What is in use is refused all the same.
    pub force: bool,
    /// Whether to bypass the page cache.
    pub direct: DirectIo,
    /// It holds a part of the volume already: no file is created or extended.
    pub must_exist: bool,
    /// Devices and files that must not be written, nor a part of them, nor what they lie on: where
    /// the data comes from.
    pub source_paths: Vec<PathBuf>,
}

impl TargetOptions {
    /// For a volume of this size: no force, direct I/O where possible, nothing else to keep off.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            force: false,
            direct: DirectIo::Auto,
            must_exist: false,
            source_paths: Vec::new(),
        }
    }
}

/// An open volume to write to. What lies behind the volume's size is never touched.
#[derive(Debug)]
pub struct Target {
    io: Arc<IoFile>,
    facts: Facts,
    size_bytes: u64,
    created: bool,
    stale: Option<String>,
    pub(super) zero: ZeroState,
}

impl Target {
    /// Opens a block device or a regular file for writing; a file that does not exist is created,
    /// one that is shorter than the volume is extended. A block device is claimed, so that it
    /// cannot be mounted meanwhile; a file is locked until this is dropped.
    ///
    /// With `must_exist` no file is made or made longer.
    ///
    /// Refused: what is smaller than the volume, read-only, in use or locked, one of `source_paths`
    /// (or overlaps one), or, without `force`, holds something that is recognised, or is a file
    /// that holds anything but zeros.
    pub fn open(path: impl AsRef<Path>, options: &TargetOptions) -> Result<Self> {
        Self::open_if(path.as_ref(), options, &first_not_zero)
    }

    /// As [`open`](Self::open); `looking` tells of a file without a known signature where its first
    /// bytes are that must not be lost.
    pub(crate) fn open_if(
        path: &Path,
        options: &TargetOptions,
        looking: &Look<'_>,
    ) -> Result<Self> {
        if is_nbd(path) {
            return Self::open_nbd(path, options);
        }
        match std::fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && !options.must_exist => {
                return Self::create(path, options);
            }
            Err(e) => return Err(open_error(path, Access::Write, e)),
            Ok(meta) => {
                if let Some(identity) = Identity::of(&meta) {
                    check_free(path, identity, options)?;
                }
            }
        }
        let (buffered, facts) = open_buffered(path, Access::Write)?;
        check_room(path, &facts, options)?;
        let mut this = Self::with(path, buffered, facts, options)?;
        this.check_content(options.force)?;
        this.check_data(options.force, looking)?;
        this.extend()?;
        Ok(this)
    }

    /// Who else uses an export, only its server knows: many let one client in at a time.
    fn open_nbd(path: &Path, options: &TargetOptions) -> Result<Self> {
        let Opened { io, facts } = open_export(path)?;
        check_room(path, &facts, options)?;
        let zero = ZeroState::default();
        let size_bytes = options.size_bytes;
        let this = Self { io, facts, size_bytes, created: false, stale: None, zero };
        this.check_content(options.force)?;
        Ok(this)
    }

    fn create(path: &Path, options: &TargetOptions) -> Result<Self> {
        // A path of /dev that does not exist is a typing mistake: a file there would fill the
        // memory.
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            let absent = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(open_error(path, Access::Write, absent)
                .hint("check the path; no files are created in /dev"));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| open_error(path, Access::Write, e))?;
        // somebody who was quicker may have locked it: then the file is theirs, and stays
        lock_target(path, &file)?;
        let facts = examine(&file, path)?;
        if facts.size_bytes != 0 || Identity::of_path(path) != Some(facts.identity) {
            return Err(changed(path));
        }
        // the lock is held until it is removed, or another restore would write to what has no name
        let _held = file.try_clone();
        let made = Self::with(path, file, facts, options).and_then(|mut this| {
            this.created = true;
            this.extend()?;
            Ok(this)
        });
        if made.is_err() {
            // It is ours and empty. If it cannot be removed, the error that matters is the one
            // above.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    fn with(path: &Path, buffered: File, facts: Facts, options: &TargetOptions) -> Result<Self> {
        let Opened { io, facts } =
            with_direct(path, Access::Write, options.direct, buffered, facts)?;
        let (size_bytes, zero) = (options.size_bytes, ZeroState::default());
        let stale = cache::empty(&io, &facts, size_bytes);
        Ok(Self { io, facts, size_bytes, created: false, stale, zero })
    }

    fn check_content(&self, force: bool) -> Result<()> {
        if force {
            return Ok(());
        }
        let (is, should) = (self.facts.size_bytes, self.size_bytes);
        let why = match signatures::look(&self.io, is)? {
            Some(what) => format!("it holds {what}"),
            // a file of another size is something else than an earlier image of the volume
            None if self.facts.kind == DeviceKind::File && is != 0 && is != should => {
                format!("it is a file of {is} bytes, and the volume has {should}")
            }
            None => return Ok(()),
        };
        Err(self.needs_force(why))
    }

    /// Of a file on which nothing is recognised.
    fn check_data(&self, force: bool, looking: &Look<'_>) -> Result<()> {
        if force || self.facts.kind != DeviceKind::File || self.facts.size_bytes == 0 {
            return Ok(());
        }
        match looking(&Source::of(Arc::clone(&self.io), self.facts))? {
            None => Ok(()),
            Some(at) => {
                let why = format!("it holds data at offset {at} that is not the backup's");
                Err(self.needs_force(why))
            }
        }
    }

    fn needs_force(&self, why: String) -> Error {
        let context = format!("write to {}", self.path().display());
        Error::new(ErrorKind::Usage, context, why)
            .hint(format!("if it may be overwritten, add {force}", force = Setting("force")))
    }

    /// Makes a file at least as long as the volume.
    fn extend(&mut self) -> Result<()> {
        if self.facts.kind != DeviceKind::File || self.facts.size_bytes >= self.size_bytes {
            return Ok(());
        }
        self.io.unaligned().and_then(|file| file.set_len(self.size_bytes)).map_err(|e| {
            let kind = match e.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::FileTooLarge => ErrorKind::NoSpace,
                _ => ErrorKind::Device,
            };
            let place = self.path().display();
            Error::caused(kind, format!("extend {place} to {} bytes", self.size_bytes), e)
                .hint("choose a file system that takes files of this size")
        })?;
        self.facts.size_bytes = self.size_bytes;
        Ok(())
    }

    /// Size of the volume; the device or file may be larger.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Size of the device or file.
    pub fn device_bytes(&self) -> u64 {
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

    /// Whether it is a file that did not exist before: all of it reads as zeros.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Whether the page cache is bypassed.
    pub fn direct(&self) -> bool {
        self.io.is_direct()
    }

    /// Why blocks that are written in part may get old bytes back beside the new ones, if they may.
    pub fn stale(&self) -> Option<&str> {
        self.stale.as_deref()
    }

    /// Empties the page caches of partitions and loop devices above it, which hold what was there
    /// before; why it cannot, if so.
    pub(crate) fn empty_caches_above(&self) -> Option<String> {
        cache::empty_above(self.facts.identity)
    }

    /// What names it over restarts, whatever is written to it; `None` where nothing does.
    pub(crate) fn stable_name(&self) -> Option<String> {
        stable::name_of(self.facts.identity, self.io.unaligned().ok()?)
    }

    /// As the user named it.
    pub fn path(&self) -> &Path {
        self.io.path()
    }

    /// For an engine. It can read, too.
    pub fn io_file(&self) -> &Arc<IoFile> {
        &self.io
    }

    /// The same device, to be read. Of an export, through the same connections: its server may let
    /// nobody else in.
    pub fn reopen(&self, direct: DirectIo) -> Result<Source> {
        match self.facts.kind {
            DeviceKind::Nbd => Ok(Source::of(Arc::clone(&self.io), self.facts)),
            _ => Source::open_for(self.path(), SourceOptions { direct }, Some(self.size_bytes)),
        }
    }

    /// Writes `buf` on the caller's thread: for small writes beside an engine's.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.io.write_all_at(buf, offset).map_err(|e| {
            let len = u32::try_from(buf.len()).unwrap_or(u32::MAX);
            transfer_error(Direction::Write, self.path(), offset, len, e)
        })
    }

    /// Whether [`flush`](Self::flush) makes durable what was written: some NBD servers cannot.
    pub fn can_flush(&self) -> bool {
        self.io.export().is_none_or(|export| export.can_flush())
    }

    /// Makes all that was written durable. No write may be in flight.
    pub fn flush(&self) -> Result<()> {
        let fail = |e: io::Error| {
            let kind = match e.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
                _ => ErrorKind::Device,
            };
            Error::caused(kind, format!("flush {}", self.path().display()), e)
                .hint("what was written may be lost: restore again")
        };
        self.io.sync().map_err(fail)?;
        if self.created {
            // the file's name must last as long as its content
            let dir = match self.path().parent() {
                Some(dir) if !dir.as_os_str().is_empty() => dir,
                _ => Path::new("."),
            };
            File::open(dir).and_then(|d| d.sync_all()).map_err(fail)?;
        }
        Ok(())
    }
}

/// Tells where a file has its first bytes that must not be lost, if it has any.
pub(crate) type Look<'a> = dyn Fn(&Source) -> Result<Option<u64>> + 'a;

/// Where nothing is known of what may be there, only zeros may be lost.
fn first_not_zero(there: &Source) -> Result<Option<u64>> {
    let mut bytes = vec![0; LOOK_BYTES];
    let whole = std::iter::once(0..there.size_bytes()).collect();
    for range in there.data_ranges()?.unwrap_or(whole) {
        for start in range.clone().step_by(LOOK_BYTES) {
            let len = (range.end - start).min(LOOK_BYTES as u64);
            let part = &mut bytes[..usize::try_from(len).unwrap_or(0)];
            there.read_exact_at(part, start)?;
            if let Some(at) = part.iter().position(|byte| *byte != 0) {
                return Ok(Some(start + at as u64));
            }
        }
    }
    Ok(None)
}

/// Refuses what is in use, and what the data comes from.
fn check_free(path: &Path, identity: Identity, options: &TargetOptions) -> Result<()> {
    let refuse = |why: String, hint: &str| {
        Err(Error::new(ErrorKind::Usage, format!("write to {}", path.display()), why).hint(hint))
    };
    for source in &options.source_paths {
        if Identity::of_path(source).is_some_and(|s| overlap(s, identity)) {
            let why = format!("it is, or shares bytes with, {}, which must stay", source.display());
            return refuse(why, "choose another target");
        }
    }
    let used = InUse::of(identity)?;
    if let Some(why) = used.describe() {
        return refuse(why, "unmount or detach it first");
    }
    // Who has one open without a claim is known to nobody. Kubelets attach one to each block device
    // of a pod, and open it never.
    let is_file = matches!(identity, Identity::File { .. });
    let Some(over) = used.loops.first().filter(|_| is_file) else { return Ok(()) };
    let over_it = format!("the loop device {} is attached to it", over.display());
    if let Some(claimed) = used.loops.iter().find(|over| stays_exclusively_open(over)) {
        let why = format!("the loop device {} is attached to it, and in use", claimed.display());
        return refuse(why, "end that, then detach it (losetup --detach)");
    }
    if options.force {
        return Ok(());
    }
    let hint = format!(
        "write to the loop device, or detach it (losetup --detach); if nobody has it open, {} will do",
        Setting("force")
    );
    refuse(over_it, &hint)
}

fn check_room(path: &Path, facts: &Facts, options: &TargetOptions) -> Result<()> {
    let context = || format!("write to {}", path.display());
    if facts.read_only {
        let hint = match facts.kind {
            DeviceKind::Nbd => "let the server export it for writing, or choose another target",
            _ => "make it writable (blockdev --setrw), or choose another target",
        };
        return Err(Error::new(ErrorKind::Denied, context(), "the device is read-only").hint(hint));
    }
    let size_bytes = options.size_bytes;
    let can_grow = facts.kind == DeviceKind::File && !options.must_exist;
    if !can_grow && facts.size_bytes < size_bytes {
        let why = format!("it has {} bytes, the volume has {size_bytes}", facts.size_bytes);
        let hint = match options.must_exist {
            true => {
                "bring it back as it was; if it was cut off, what was there is lost: restore anew"
            }
            false => "choose a target of that size",
        };
        return Err(Error::new(ErrorKind::Usage, context(), why).hint(hint));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
