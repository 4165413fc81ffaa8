//! The io_uring engine, with or without registered buffers and files.
//!
//! Owns: the ring and the in-flight table, indexed by slot: an operation is in the table before the
//! kernel hears of it, and leaves it only when its last completion was seen, so its buffer cannot
//! be freed or read meanwhile.
//!
//! Each operation has at most one entry in the ring at a time, and the ring has room for `depth`,
//! so a push never fails and completions never overflow. Entries are handed over a quarter of the
//! depth at a time, so the device never runs dry while the owner works, and one system call serves
//! several.
//!
//! The ring is set up for any thread (no `SINGLE_ISSUER`): an engine may be moved. It has no thread
//! of its own and waits only for the kernel, so it cannot deadlock.

use super::arena::Arena;
use super::file::IoFile;
use super::op::{Completion, Direction, Op, WaitFor};
use super::transfer::{InFlight, TransferProgress, TransferStep, Via};
use chunkstore::{Error, ErrorKind, Result, Setting};
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// How long dropping waits for transfers that hang in the device.
const DROP_PATIENCE: Duration = Duration::from_secs(5);
/// Older kernels take no more buffers at once.
const BUFFERS_MAX: usize = 1024;
/// The kernel takes no larger buffer.
const BUFFER_BYTES_MAX: usize = 1 << 30;

pub(super) struct Uring {
    /// Dropped first: after that the kernel knows no address of ours, unless `drop` leaked it.
    ring: IoUring,
    table: Vec<Option<InFlight>>,
    /// Slots of the entries in the ring that the kernel has not taken yet, in the order of the
    /// ring.
    queued: VecDeque<usize>,
    /// Entries that are handed over together.
    batch: usize,
    in_flight: usize,
    /// Slots of one registered buffer; `None` if nothing is registered.
    registered: Option<usize>,
    drop_patience: Duration,
    /// Of the descriptors, the main one first.
    fds: [RawFd; 2],
    file: Arc<IoFile>,
    _arena: Arc<Arena>,
}

impl Uring {
    /// Sets up a ring, and tries it on the file's first bytes when a slot is free for that.
    pub(super) fn start(
        register: bool,
        arena: &Arc<Arena>,
        file: &Arc<IoFile>,
        depth: usize,
    ) -> io::Result<Self> {
        let fds = [file.via(Via::Main)?.as_raw_fd(), file.via(Via::Buffered)?.as_raw_fd()];
        refuse_fuse(file)?;
        let ring = build_ring(u32::try_from(depth).unwrap_or(u32::MAX)).map_err(explain)?;
        let registered = if register { Some(register_all(&ring, arena, &fds)?) } else { None };
        let mut this = Self {
            ring,
            table: (0..arena.slots()).map(|_| None).collect(),
            queued: VecDeque::with_capacity(depth),
            batch: (depth / 4).max(1),
            in_flight: 0,
            registered,
            drop_patience: DROP_PATIENCE,
            fds,
            file: Arc::clone(file),
            _arena: Arc::clone(arena),
        };
        this.try_out(arena)?;
        Ok(this)
    }

    pub(super) fn is_registered(&self) -> bool {
        self.registered.is_some()
    }

    /// Shortens what `drop` waits, for tests of what it does then.
    #[cfg(test)]
    pub(super) fn set_drop_patience(&mut self, wait_for: Duration) {
        self.drop_patience = wait_for;
    }

    /// One real read. Only an error that says "not this way" counts: a device that fails here fails
    /// every engine.
    fn try_out(&mut self, arena: &Arc<Arena>) -> io::Result<()> {
        let Some(slot) = arena.take() else { return Ok(()) };
        let len = self.file.align().max(512);
        self.submit(InFlight::new(Op::read(slot, 0, len, 0)));
        let done = self.next(WaitFor::Forever).map_err(io::Error::other)?;
        match done.map(|c| c.result) {
            Some(Err(e)) if is_no_way(&e) => Err(e),
            _ => Ok(()),
        }
    }

    /// The owner checked that there is room.
    pub(super) fn submit(&mut self, item: InFlight) {
        let index = item.index();
        self.table[index] = Some(item);
        self.in_flight += 1;
        self.push(index);
        if self.queued.len() >= self.batch {
            // Should it fail, the entries stay queued, and the next wait meets the same error and
            // reports it.
            let _ = self.enter(None);
        }
    }

    pub(super) fn submit_queued(&mut self) -> Result<()> {
        if self.queued.is_empty() {
            return Ok(());
        }
        self.enter(None).map_err(|e| self.failed(e))
    }

    pub(super) fn next(&mut self, wait_for: WaitFor) -> Result<Option<Completion>> {
        let mut looked = false;
        loop {
            if let Some(done) = self.reap() {
                if self.queued.len() >= self.batch {
                    self.enter(None).map_err(|e| self.failed(e))?;
                }
                return Ok(Some(done));
            }
            let wait = match wait_for {
                WaitFor::None if looked => return Ok(None),
                WaitFor::None => None,
                WaitFor::Forever => Some(None),
                WaitFor::Until(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if looked && left.is_zero() {
                        return Ok(None);
                    }
                    Some(Some(left))
                }
            };
            self.enter(wait).map_err(|e| self.failed(e))?;
            looked = true;
        }
    }

    fn failed(&self, e: io::Error) -> Error {
        let what = format!("hand transfers of {} to io_uring", self.file.path().display());
        Error::caused(ErrorKind::Device, what, e)
            .hint(format!("try {engine} blocking", engine = Setting("engine")))
    }

    /// Puts the next step of an operation in the table into the ring.
    fn push(&mut self, index: usize) {
        let Some(item) = self.table[index].as_mut() else { return };
        let Some(step) = item.step(self.file.align()) else { return };
        let (dir, address) = (item.dir(), item.address(&step));
        let entry = self.entry(index, dir, &step, address).user_data(index as u64);
        // SAFETY: the entry reads or writes `step.len` bytes from `address` on, which lie within
        // the slot (checked by `Engine::submit`). The slot is in `self.table` and nobody looks at
        // its bytes until `reap` takes it out, after the entry's only completion; if that never
        // comes, `drop` forgets the slot, which keeps the arena's memory for ever. The descriptors
        // are open as long as `self.file` is, and the kernel holds its own reference to files in
        // use.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has an entry for each of at most `depth` operations");
        self.queued.push_back(index);
    }

    fn entry(
        &self,
        index: usize,
        dir: Direction,
        step: &TransferStep,
        address: *mut u8,
    ) -> squeue::Entry {
        let (len, offset) = (step.len, step.offset);
        let which = if step.via == Via::Main { 0 } else { 1 };
        let Some(per_buffer) = self.registered else {
            let fd = Fd(self.fds[which as usize]);
            return match dir {
                Direction::Read => opcode::Read::new(fd, address, len).offset(offset).build(),
                Direction::Write => opcode::Write::new(fd, address, len).offset(offset).build(),
            };
        };
        let fd = Fixed(which);
        let buffer = u16::try_from(index / per_buffer).unwrap_or(u16::MAX);
        match dir {
            Direction::Read => {
                opcode::ReadFixed::new(fd, address, len, buffer).offset(offset).build()
            }
            Direction::Write => {
                opcode::WriteFixed::new(fd, address, len, buffer).offset(offset).build()
            }
        }
    }

    /// Takes completions until an operation has ended; continues those that were cut short.
    fn reap(&mut self) -> Option<Completion> {
        loop {
            let (index, result) = self.pop()?;
            let mut item = self.table.get_mut(index)?.take()?;
            let result = match item.advance(result) {
                TransferProgress::Done => Ok(()),
                TransferProgress::Failed(e) => Err(e),
                TransferProgress::More => {
                    self.table[index] = Some(item);
                    self.push(index);
                    continue;
                }
            };
            self.in_flight -= 1;
            return Some(item.complete(result));
        }
    }

    fn pop(&mut self) -> Option<(usize, io::Result<usize>)> {
        let entry = self.ring.completion().next()?;
        let index = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
        let result = usize::try_from(entry.result())
            .map_err(|_| io::Error::from_raw_os_error(entry.result().wrapping_neg()));
        Some((index, result))
    }

    /// One system call: hands over what is queued, and waits for a completion: not at all, for some
    /// time, or for ever.
    fn enter(&mut self, wait: Option<Option<Duration>>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let entered = match wait {
            None => submitter.submit(),
            Some(None) => submitter.submit_and_wait(1),
            Some(Some(time)) => {
                let time = Timespec::from(time);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        // the kernel takes entries from the front, also when it stops with an error
        let taken = self.queued.len().saturating_sub(self.ring.submission().len());
        self.queued.drain(..taken);
        match entered {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // the time is up, or a signal came
                Some(libc::ETIME | libc::EINTR) => Ok(()),
                // the kernel is short of memory, or wants completions taken first: the caller does
                // that and asks again
                Some(libc::EBUSY | libc::EAGAIN) => {
                    std::thread::yield_now();
                    Ok(())
                }
                _ => Err(e),
            },
        }
    }
}

/// A file served over FUSE without the page cache may answer with less than was asked for. Linux
/// (6.18) then goes on by itself without moving the offset, and reports all of it as read: the same
/// bytes stand in the buffer again and again, and nothing shows it. Blocking reads are told of the
/// short answer.
fn refuse_fuse(file: &IoFile) -> io::Result<()> {
    const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;
    let of = rustix::fs::fstatfs(file.unaligned()?)?;
    if of.f_type == FUSE_SUPER_MAGIC {
        let what = "io_uring misreads files that are served over FUSE";
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    Ok(())
}

/// A ring with what this engine needs; an error where the kernel, seccomp or a limit forbids it.
fn build_ring(depth: u32) -> io::Result<IoUring> {
    // Completions are then processed when we ask for them, instead of by an interrupt of this
    // thread.
    let ring = IoUring::builder().dontfork().setup_coop_taskrun().setup_taskrun_flag().build(depth);
    let ring = match ring {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().dontfork().build(depth)
        }
        other => other,
    }?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let codes = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
    ];
    let params = ring.params();
    if !params.is_feature_ext_arg()
        || !params.is_feature_nodrop()
        || codes.iter().any(|c| !probe.is_supported(*c))
    {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel is older than 5.11"));
    }
    Ok(ring)
}

/// Registers the files and the arena; returns how many slots one registered buffer has.
fn register_all(ring: &IoUring, arena: &Arc<Arena>, fds: &[RawFd]) -> io::Result<usize> {
    let per_buffer = arena.slots().div_ceil(BUFFERS_MAX);
    if per_buffer * arena.slot_bytes() > BUFFER_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the buffers are too large"));
    }
    let buffers: Vec<libc::iovec> = (0..arena.slots())
        .step_by(per_buffer)
        .map(|index| {
            let (base, len) = arena.region(index, per_buffer);
            libc::iovec { iov_base: base.cast(), iov_len: len }
        })
        .collect();
    let submitter = ring.submitter();
    // SAFETY: the buffers are parts of the arena's mapping, which the engine holds until after the
    // ring is gone, and for ever if it had to leak a slot.
    unsafe { submitter.register_buffers(&buffers) }.map_err(explain)?;
    submitter.register_files(fds)?;
    Ok(per_buffer)
}

/// Adds what usually is behind a refusal.
fn explain(e: io::Error) -> io::Error {
    let why = match e.raw_os_error() {
        Some(libc::ENOMEM) => "RLIMIT_MEMLOCK is too low",
        Some(libc::EPERM) => "seccomp or kernel.io_uring_disabled forbids it",
        Some(libc::ENOSYS) => "seccomp forbids it or the kernel has none",
        _ => return e,
    };
    io::Error::new(e.kind(), format!("{e}: {why}"))
}

/// Whether an error says that this way of asking is not possible, rather than that the device
/// failed.
fn is_no_way(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            libc::EINVAL
                | libc::EFAULT
                | libc::EOPNOTSUPP
                | libc::ENOSYS
                | libc::EPERM
                | libc::EACCES
                | libc::EBADF
        )
    )
}

impl Drop for Uring {
    fn drop(&mut self) {
        let end = Instant::now() + self.drop_patience;
        while self.in_flight > 0 {
            // Nothing is continued here: an operation ends with the completion of the step that it
            // is in.
            while let Some((index, _)) = self.pop() {
                if self.table.get_mut(index).and_then(Option::take).is_some() {
                    self.in_flight -= 1;
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            if self.in_flight == 0 || left.is_zero() || self.enter(Some(Some(left))).is_err() {
                break;
            }
        }
        // What the kernel never took it does not know.
        for index in self.queued.drain(..) {
            if self.table[index].take().is_some() {
                self.in_flight -= 1;
            }
        }
        for item in self.table.drain(..).flatten() {
            // The kernel may still write this memory whenever the device answers. A forgotten slot
            // holds the arena for ever.
            std::mem::forget(item);
        }
        if self.registered.is_some() && self.in_flight == 0 {
            // Closing the ring does this too, but some time later. Until then the device counts as
            // open, so that nobody can mount or claim it, and the buffers count against the limit
            // of the next engine.
            let _ = self.ring.submitter().unregister_files();
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring")
            .field("registered", &self.registered.is_some())
            .field("in_flight", &self.in_flight)
            .field("queued", &self.queued.len())
            .finish_non_exhaustive()
    }
}
