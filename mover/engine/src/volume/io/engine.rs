//! The engine that its user sees: which kinds there are, and how one is chosen.
//!
//! Must not: know how the kernel is asked; that is in `uring.rs` and `blocking.rs`.

use super::arena::Arena;
use super::blocking::Blocking;
use super::file::IoFile;
use super::op::{Completion, Op, Rejected, Span, WaitFor};
use super::transfer::InFlight;
use super::uring::Uring;
use chunkstore::{Error, ErrorKind, Result, Setting};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

/// More in flight has never been faster, and each costs a slot.
const DEPTH_MAX: usize = 1024;

/// Which engine moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// The best that works here: io_uring for `O_DIRECT`, registered if possible; else blocking.
    #[default]
    Auto,
    /// io_uring with registered buffers and files.
    Uring,
    /// io_uring without registering anything.
    UringPlain,
    /// `pread` and `pwrite` on worker threads.
    Blocking,
}

impl EngineChoice {
    /// As it is written on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "io_uring",
            Self::UringPlain => "io_uring-plain",
            Self::Blocking => "blocking",
        }
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EngineChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Auto, Self::Uring, Self::UringPlain, Self::Blocking]
            .into_iter()
            .find(|c| c.as_str() == text)
            .ok_or_else(|| {
                Error::new(ErrorKind::Usage, "choose an I/O engine", format!("{text:?} is none"))
                    .hint("use auto, io_uring, io_uring-plain or blocking")
            })
    }
}

/// Moves bytes between one file and the slots of one arena, many transfers at a time. Owned by one
/// thread at a time.
///
/// Transfers may be handed to the kernel in batches: they have been when a waiting call finds none
/// that ended, or [`Engine::submit_queued`] was called. Completions come in any order. Dropping an engine
/// with transfers in flight waits a few seconds for them; whether such a write reached the device
/// is not known. What does not end by then keeps its slot for ever.
#[derive(Debug)]
pub struct Engine {
    kind: Kind,
    arena: Arc<Arena>,
    depth: usize,
    in_flight: usize,
    over_nbd: bool,
    notes: Vec<String>,
}

#[derive(Debug)]
enum Kind {
    Uring(Box<Uring>),
    Blocking(Blocking),
}

impl Kind {
    fn start(
        choice: EngineChoice,
        arena: &Arc<Arena>,
        file: &Arc<IoFile>,
        depth: usize,
    ) -> io::Result<Self> {
        let register = match choice {
            EngineChoice::Auto | EngineChoice::Blocking => {
                return Ok(Self::Blocking(Blocking::start(file, depth)?));
            }
            EngineChoice::Uring => true,
            EngineChoice::UringPlain => false,
        };
        Ok(Self::Uring(Box::new(Uring::start(register, arena, file, depth)?)))
    }
}

impl Engine {
    /// Starts an engine for `file` with room for `depth` transfers. With a choice other than `Auto`
    /// it is that engine or an error.
    pub fn start(
        choice: EngineChoice,
        arena: &Arc<Arena>,
        file: &Arc<IoFile>,
        depth: usize,
    ) -> Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX).min(arena.slots());
        let mut notes = Vec::new();
        let mut kind = None;
        if let Some(export) = file.export() {
            export.add_connections(depth);
        }
        // Buffered transfers are copies by the CPU: on a ring they would all run on the thread that
        // submits them.
        let candidates: &[EngineChoice] = match choice {
            EngineChoice::Auto if file.is_direct() => {
                &[EngineChoice::Uring, EngineChoice::UringPlain, EngineChoice::Blocking]
            }
            EngineChoice::Auto => &[EngineChoice::Blocking],
            ref one => std::slice::from_ref(one),
        };
        for candidate in candidates {
            match Kind::start(*candidate, arena, file, depth) {
                Ok(started) => {
                    kind = Some(started);
                    break;
                }
                Err(e) => notes.push(format!("{candidate}: {e}")),
            }
        }
        let Some(kind) = kind else {
            let what = format!("start an I/O engine for {}", file.path().display());
            return Err(Error::new(ErrorKind::Unsupported, what, notes.join("; ")).hint(format!(
                "let the program choose: {engine} auto",
                engine = Setting("engine")
            )));
        };
        let over_nbd = file.export().is_some();
        Ok(Self { kind, arena: Arc::clone(arena), depth, in_flight: 0, over_nbd, notes })
    }

    /// `io_uring registered`, `io_uring`, `blocking`, or `nbd`.
    pub fn name(&self) -> &'static str {
        match &self.kind {
            Kind::Uring(ring) if ring.is_registered() => "io_uring registered",
            Kind::Uring(_) => "io_uring",
            Kind::Blocking(_) if self.over_nbd => "nbd",
            Kind::Blocking(_) => "blocking",
        }
    }

    /// Why better engines were not taken, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Most transfers at a time.
    pub fn capacity(&self) -> usize {
        self.depth
    }

    /// Transfers that were taken and have not been returned yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether another transfer would be taken.
    pub fn has_room(&self) -> bool {
        self.in_flight < self.depth
    }

    /// Takes a transfer. It does not block. The slot is in the error if the engine is full, the
    /// slot is of another arena, or the length is 0 or does not fit.
    pub fn submit(&mut self, op: Op) -> Result<(), Box<Rejected>> {
        if let Err(why) = self.check(&op) {
            let error = Error::new(ErrorKind::Bug, "submit a transfer to an I/O engine", why);
            return Err(Box::new(Rejected { op, error }));
        }
        let item = InFlight::new(op);
        self.in_flight += 1;
        match &mut self.kind {
            Kind::Uring(ring) => ring.submit(item),
            Kind::Blocking(b) => b.submit(item),
        }
        Ok(())
    }

    /// Why an operation is not taken.
    fn check(&self, op: &Op) -> Result<(), String> {
        let (slot, Span { offset, memory, len, .. }) = (&op.slot, op.span);
        if !self.has_room() {
            return Err(format!("all {} places are taken", self.depth));
        }
        if !Arc::ptr_eq(slot.arena(), &self.arena) {
            return Err("the slot is of another arena".into());
        }
        let end = memory.checked_add(len.into());
        if len == 0 || end.is_none_or(|end| end > slot.len() as u64) {
            return Err(format!("{len} bytes from {memory} on in a slot of {}", slot.len()));
        }
        op.span.check().map_err(|e| format!("{len} bytes at offset {offset}: {e}"))
    }

    /// Hands what was submitted to the kernel now, without waiting for anything: for an owner who
    /// will not wait for a while.
    pub fn submit_queued(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Uring(ring) => ring.submit_queued(),
            Kind::Blocking(_) => Ok(()),
        }
    }

    /// The next transfer that ends. An error means that the engine itself failed, or that nothing
    /// is in flight.
    pub fn wait(&mut self) -> Result<Completion> {
        self.next(WaitFor::Forever)?.ok_or_else(|| {
            Error::new(ErrorKind::Bug, "wait for a transfer", "none is in flight".to_owned())
        })
    }

    /// The next transfer that ends within this time; `None` if none does, or nothing is in flight.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<Completion>> {
        match Instant::now().checked_add(timeout) {
            Some(end) => self.next(WaitFor::Until(end)),
            None => self.next(WaitFor::Forever),
        }
    }

    /// A transfer that has ended already, if there is one.
    pub fn try_wait(&mut self) -> Result<Option<Completion>> {
        self.next(WaitFor::None)
    }

    fn next(&mut self, wait_for: WaitFor) -> Result<Option<Completion>> {
        if self.in_flight == 0 {
            return Ok(None);
        }
        let done = match &mut self.kind {
            Kind::Uring(ring) => ring.next(wait_for)?,
            Kind::Blocking(b) => b.next(wait_for)?,
        };
        self.in_flight -= usize::from(done.is_some());
        Ok(done)
    }
}
