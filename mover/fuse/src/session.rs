//! The kernel's requests: each one is asked of the tree by a task of its own.

use crate::caller::killed;
use crate::reply::{attributes, errno, file_type};
use crate::tree::{Answer, Attribute, Content, Entry, Handle, Tree};
use fuser::{
    FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyXattr, Request,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::runtime::Handle as Runtime;
use tokio::sync::Semaphore;

/// Memory of answers is counted in these.
const UNIT_BYTES: u64 = 4096;
/// Requests that the kernel sends ahead of readers.
const AHEAD_MAX: u16 = 64;
/// Longest name that is looked for; the kernel has the same bound.
const NAME_BYTES_MAX: u32 = 255;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// Inodes mean the same thing as long as they are mounted.
const GENERATION: Generation = Generation(0);

/// How much is under way at a time.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    /// Requests that are being answered.
    pub requests: usize,
    /// Bytes of answers to reads.
    pub answer_bytes: u64,
}

/// What was done so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests.
    pub requests: AtomicU64,
    /// Reads of files that were answered.
    pub reads: AtomicU64,
    /// Bytes of them.
    pub read_bytes: AtomicU64,
    /// Time that they took, all together.
    pub read_micros: AtomicU64,
    /// Requests that ended with an I/O error.
    pub errors: AtomicU64,
    /// Requests whose callers were killed.
    pub killed: AtomicU64,
}

struct Shared<T> {
    tree: Arc<T>,
    places: Semaphore,
    memory: Arc<Semaphore>,
    units: u32,
    counts: Arc<Counts>,
}

/// What reads requests hands them to this.
pub(crate) struct Requests<T> {
    rt: Runtime,
    shared: Arc<Shared<T>>,
}

impl<T: Tree> Requests<T> {
    pub(crate) fn new(
        rt: &Runtime,
        tree: Arc<T>,
        limits: SessionLimits,
        counts: Arc<Counts>,
    ) -> Self {
        let units = u32::try_from(limits.answer_bytes / UNIT_BYTES).unwrap_or(u32::MAX);
        let units = units.clamp(1, u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        let shared = Shared {
            tree,
            places: Semaphore::new(limits.requests.max(1)),
            memory: Arc::new(Semaphore::new(units as usize)),
            units,
            counts,
        };
        Self { rt: rt.clone(), shared: Arc::new(shared) }
    }

    /// Works on a request, unless its caller is killed meanwhile.
    fn ask<V, F>(
        &self,
        request: &Request,
        work: impl FnOnce(Arc<Shared<T>>) -> F + Send + 'static,
        reply: impl FnOnce(Answer<V>) + Send + 'static,
    ) where
        V: Send + 'static,
        F: Future<Output = Answer<V>> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let caller = request.pid();
        shared.counts.requests.fetch_add(1, Ordering::Relaxed);
        let task = async move {
            let work = async {
                // it is never closed
                let _place = shared.places.acquire().await;
                work(Arc::clone(&shared)).await
            };
            let answer = tokio::select! {
                biased;
                answer = Box::pin(work) => answer,
                () = killed(caller) => {
                    shared.counts.killed.fetch_add(1, Ordering::Relaxed);
                    Err(Errno::INTR)
                }
            };
            if matches!(answer, Err(Errno::IO)) {
                shared.counts.errors.fetch_add(1, Ordering::Relaxed);
            }
            reply(answer);
        };
        drop(self.rt.spawn(task));
    }

    fn attribute_bytes(
        &self,
        request: &Request,
        inode: INodeNo,
        size: u32,
        reply: ReplyXattr,
        bytes: impl FnOnce(Vec<Attribute>) -> Answer<Vec<u8>> + Send + 'static,
    ) {
        self.ask(
            request,
            move |shared| async move { bytes(shared.tree.attributes(inode.0).await?) },
            move |answer| match answer {
                Err(e) => reply.error(errno(e)),
                Ok(bytes) => match u32::try_from(bytes.len()) {
                    Ok(len) if size == 0 => reply.size(len),
                    Ok(len) if len <= size => reply.data(&bytes),
                    _ => reply.error(fuser::Errno::ERANGE),
                },
            },
        );
    }
}

impl<T: Tree> Shared<T> {
    async fn read(
        &self,
        file: Handle,
        offset: u64,
        size: u32,
    ) -> Answer<(Vec<u8>, tokio::sync::OwnedSemaphorePermit)> {
        let begun = Instant::now();
        let units = size.div_ceil(u32::try_from(UNIT_BYTES).unwrap_or(u32::MAX)).min(self.units);
        let memory = Arc::clone(&self.memory).acquire_many_owned(units).await;
        let memory = memory.map_err(|_| Errno::IO)?;
        let mut bytes = vec![0; size as usize];
        let len = self.tree.read(file, offset, &mut bytes).await?;
        bytes.truncate(len);
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.counts.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.counts.read_micros.fetch_add(micros, Ordering::Relaxed);
        Ok((bytes, memory))
    }

    /// Fills an answer with names from an offset on: `.` is at 0, `..` at 1, the others behind.
    async fn names(
        &self,
        inode: INodeNo,
        directory: Handle,
        offset: u64,
        reply: &mut ReplyDirectory,
    ) -> Answer<()> {
        for (at, name) in [(0, "."), (1, "..")] {
            if offset <= at && reply.add(inode, at + 1, fuser::FileType::Directory, name) {
                return Ok(());
            }
        }
        let mut place = offset.saturating_sub(2);
        let mut first = true;
        loop {
            let entries = match self.tree.names(directory, place).await {
                Ok(entries) => entries,
                // what is in the answer already is not lost; the next one begins with the error
                Err(e) if first => return Err(e),
                Err(_) => return Ok(()),
            };
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                place += 1;
                let name = OsStr::from_bytes(&entry.name);
                let kind = file_type(entry.kind);
                if reply.add(INodeNo(entry.inode), place + 2, kind, name) {
                    return Ok(());
                }
                first = false;
            }
        }
    }
}

/// Names of attributes as `listxattr(2)` has them. Those of the system are for root.
fn listed(attributes: &[Attribute], root: bool) -> Vec<u8> {
    let shown = |one: &&Attribute| root || !one.name.starts_with(b"trusted.");
    attributes.iter().filter(shown).flat_map(|one| [&one.name[..], &[0]].concat()).collect()
}

impl<T: Tree> Filesystem for Requests<T> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            // access lists count, as they would if the volume itself were mounted
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
        ];
        for flag in wanted {
            // a kernel that does not have it does without
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_background(AHEAD_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.ask(
            request,
            move |shared| async move { shared.tree.lookup(parent.0, &name).await },
            move |answer| match answer {
                Ok(Entry { node, valid }) => reply.entry(&valid, &attributes(&node), GENERATION),
                Err(e) => reply.error(errno(e)),
            },
        );
    }

    fn getattr(&self, request: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.ask(
            request,
            move |shared| async move { shared.tree.node(inode.0).await },
            move |answer| match answer {
                Ok(Entry { node, valid }) => reply.attr(&valid, &attributes(&node)),
                Err(e) => reply.error(errno(e)),
            },
        );
    }

    fn readlink(&self, request: &Request, inode: INodeNo, reply: ReplyData) {
        self.ask(
            request,
            move |shared| async move { shared.tree.target(inode.0).await },
            move |answer| match answer {
                Ok(path) => reply.data(&path),
                Err(e) => reply.error(errno(e)),
            },
        );
    }

    fn open(&self, request: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.ask(
            request,
            move |shared| async move { shared.tree.open(inode.0).await },
            move |answer| match answer {
                // what was read once stays true
                Ok(handle) => reply.opened(
                    FileHandle(handle),
                    FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
                ),
                Err(e) => reply.error(errno(e)),
            },
        );
    }

    fn read(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.ask(
            request,
            move |shared| async move { shared.read(file.0, offset, size).await },
            move |answer| match answer {
                Ok((bytes, _memory)) => reply.data(&bytes),
                Err(e) => reply.error(errno(e)),
            },
        );
    }

    fn lseek(
        &self,
        request: &Request,
        _: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let content = match whence {
            SEEK_DATA => Content::Data,
            SEEK_HOLE => Content::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
        self.ask(
            request,
            move |shared| async move { shared.tree.seek(file.0, offset, content).await },
            move |answer| match answer.and_then(|at| i64::try_from(at).or(Err(Errno::OVERFLOW))) {
                Ok(at) => reply.offset(at),
                Err(e) => reply.error(errno(e)),
            },
        );
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.shared.tree.close(file.0);
        reply.ok();
    }

    fn opendir(&self, request: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.ask(
            request,
            move |shared| async move { shared.tree.open_directory(inode.0).await },
            move |answer| match answer {
                Ok(open) => {
                    let kept = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
                    let flags = if open.kept { kept } else { FopenFlags::empty() };
                    reply.opened(FileHandle(open.handle), flags);
                }
                Err(e) => reply.error(errno(e)),
            },
        );
    }

    fn readdir(
        &self,
        request: &Request,
        inode: INodeNo,
        directory: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.ask(
            request,
            move |shared| async move {
                let mut reply = reply;
                let filled = shared.names(inode, directory.0, offset, &mut reply).await;
                match filled {
                    Ok(()) => reply.ok(),
                    Err(e) => reply.error(errno(e)),
                }
                filled
            },
            // one that is dropped answers EIO, which nobody who was killed reads
            drop,
        );
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        directory: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.shared.tree.close_directory(directory.0);
        reply.ok();
    }

    fn statfs(&self, request: &Request, inode: INodeNo, reply: ReplyStatfs) {
        self.ask(
            request,
            move |shared| async move { shared.tree.space(inode.0).await },
            move |answer| match answer {
                Ok(space) => {
                    let block = 4096;
                    let blocks = space.bytes.div_ceil(u64::from(block));
                    reply.statfs(blocks, 0, 0, 0, 0, block, NAME_BYTES_MAX, block);
                }
                Err(e) => reply.error(errno(e)),
            },
        );
    }

    fn getxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let name = name.as_bytes().to_vec();
        self.attribute_bytes(request, inode, size, reply, move |attributes| {
            let found = attributes.into_iter().find(|one| one.name == name);
            found.map(|one| one.value).ok_or(Errno::NODATA)
        });
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let root = request.uid() == 0;
        self.attribute_bytes(request, inode, size, reply, move |attributes| {
            Ok(listed(&attributes, root))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_the_system_are_listed_for_root_alone() {
        let named = |name: &[u8]| Attribute { name: name.to_vec(), value: Vec::new() };
        let all = [named(b"user.a"), named(b"trusted.b"), named(b"security.c")];
        assert_eq!(listed(&all, true), b"user.a\0trusted.b\0security.c\0");
        assert_eq!(listed(&all, false), b"user.a\0security.c\0");
        assert!(listed(&[], true).is_empty());
    }
}
