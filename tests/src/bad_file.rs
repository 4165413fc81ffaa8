//! A file that fails: one block of it cannot be read or written, or it is slow. Served over FUSE
//! from a sound file; a loop device over it is a block device that fails so. Needs root and
//! `/dev/fuse`.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

const NAME: &str = "image";
const FILE: INodeNo = INodeNo(2);
/// The kernel asks again each time.
const NO_TIME: Duration = Duration::ZERO;

/// What is wrong with it.
#[derive(Debug, Clone, Default)]
pub struct Badness {
    /// EIO for whatever touches this.
    pub broken: Option<Range<u64>>,
    /// How long each read and write takes.
    pub delay: Duration,
    /// A read is answered with no more than this, as a server may that is asked directly.
    pub answers_at_most: Option<u32>,
    /// Whatever touches this is not answered before it [becomes](BadFile::becomes) otherwise, or is
    /// dropped. Nor is what comes later.
    pub hangs: Option<Range<u64>>,
}

/// See the module. Unmounted when dropped: declare it before what is attached to it.
#[derive(Debug)]
pub struct BadFile {
    how: Arc<How>,
    _session: BackgroundSession,
    point: tempfile::TempDir,
}

#[derive(Debug)]
struct How {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    badness: Badness,
    /// Transfers that hang.
    hanging: usize,
}

impl How {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Badness {
        self.lock().badness.clone()
    }

    /// Returns once a transfer may be answered.
    fn hang(&self, place: &Range<u64>) {
        let hangs = |state: &State| state.badness.hangs.as_ref().is_some_and(|h| meet(h, place));
        let mut state = self.lock();
        if !hangs(&state) {
            return;
        }
        state.hanging += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_while(state, |state| hangs(state));
        waited.unwrap_or_else(PoisonError::into_inner).hanging -= 1;
    }
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl BadFile {
    /// Over `backing`.
    pub fn new(backing: &Path, how: Badness) -> Self {
        let file = File::options().read(true).write(true).open(backing).expect("open the file");
        let state = Mutex::new(State { badness: how, hanging: 0 });
        let how = Arc::new(How { state, changed: Condvar::new() });
        let point = crate::work_dir("bad-file");
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("bad-file".into())];
        let served = Served { file, how: Arc::clone(&how) };
        let session = fuser::spawn_mount(served, point.path(), &config).expect("mount over FUSE");
        Self { how, _session: session, point }
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.point.path().join(NAME)
    }

    /// From now on this is wrong with it.
    pub fn becomes(&self, how: Badness) {
        self.how.lock().badness = how;
        self.how.changed.notify_all();
    }

    /// Returns once a transfer hangs.
    #[track_caller]
    pub fn wait_for_hang(&self) {
        const LIMIT: Duration = Duration::from_secs(60);
        let (state, nobody) = (self.how.lock(), |state: &mut State| state.hanging == 0);
        let waited = self.how.changed.wait_timeout_while(state, LIMIT, nobody);
        let (state, result) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!result.timed_out(), "nothing hangs within {LIMIT:?}");
    }
}

impl Drop for BadFile {
    fn drop(&mut self) {
        // the session ends only once its thread does
        self.becomes(Badness::default());
    }
}

struct Served {
    file: File,
    how: Arc<How>,
}

impl Served {
    fn attributes(&self, inode: INodeNo) -> io::Result<FileAttr> {
        let directory = inode == INodeNo::ROOT;
        let size = if directory { 0 } else { self.file.metadata()?.len() };
        Ok(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Whether a transfer may be done.
    fn allowed(&self, offset: u64, len: usize) -> Result<(), Errno> {
        let how = self.how.now();
        std::thread::sleep(how.delay);
        let place = offset..offset + len as u64;
        self.how.hang(&place);
        match how.broken {
            Some(broken) if meet(&broken, &place) => Err(Errno::EIO),
            _ => Ok(()),
        }
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent != INodeNo::ROOT || name != NAME {
            return reply.error(Errno::ENOENT);
        }
        match self.attributes(FILE) {
            Ok(attributes) => reply.entry(&NO_TIME, &attributes, fuser::Generation(0)),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Ok(attributes) => reply.attr(&NO_TIME, &attributes),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // without the page cache, which would ask for the rest
        let flags = match self.how.now().answers_at_most {
            Some(_) => FopenFlags::FOPEN_DIRECT_IO,
            None => FopenFlags::empty(),
        };
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = size.min(self.how.now().answers_at_most.unwrap_or(u32::MAX));
        let mut bytes = vec![0; size as usize];
        if let Err(errno) = self.allowed(offset, bytes.len()) {
            return reply.error(errno);
        }
        match self.file.read_at(&mut bytes, offset) {
            Ok(read) => reply.data(&bytes[..read]),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.allowed(offset, data.len()) {
            Ok(()) => match self.file.write_all_at(data, offset) {
                Ok(()) => reply.written(u32::try_from(data.len()).expect("a request is small")),
                Err(_) => reply.error(Errno::EIO),
            },
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}
