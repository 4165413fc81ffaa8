//! The engine of worker threads that call `pread` and `pwrite`: for kernels, sandboxes and files
//! where io_uring is no option; and for NBD exports, whose calls share connections.
//!
//! Owns: its threads and two channels. An operation travels with its slot through `jobs` to a
//! worker and through `done` back.
//!
//! Cannot deadlock: at most `depth` operations are inside, and each channel has room for that many,
//! so no send ever waits. A worker waits only for jobs, which end when the engine drops its sender;
//! the engine waits only while something is inside.

use super::file::IoFile;
use super::op::{Completion, Direction, WaitFor};
use super::transfer::{InFlight, TransferProgress};
use chunkstore::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// More threads than this gain nothing: each has a transfer of about a MiB in flight.
const THREADS_MAX: usize = 32;
/// How long dropping waits for calls that hang in the device.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Blocking {
    /// `None` once the engine is being dropped: that ends the workers.
    jobs: Option<Sender<InFlight>>,
    done: Receiver<Completion>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    file: Arc<IoFile>,
    in_flight: usize,
}

impl Blocking {
    pub(super) fn start(file: &Arc<IoFile>, depth: usize) -> io::Result<Self> {
        let (jobs, inbox) = bounded::<InFlight>(depth);
        let (outbox, done) = bounded::<Completion>(depth);
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for n in 0..depth.min(THREADS_MAX) {
            let (inbox, outbox) = (inbox.clone(), outbox.clone());
            let (file, stop) = (Arc::clone(file), Arc::clone(&stop));
            let started = std::thread::Builder::new()
                .name(format!("io-{n}"))
                .spawn(move || work(&file, &inbox, &outbox, &stop));
            match started {
                Ok(t) => threads.push(t),
                // fewer do the same work, slower
                Err(_) if n > 0 => break,
                Err(e) => return Err(e),
            }
        }
        let file = Arc::clone(file);
        Ok(Self { jobs: Some(jobs), done, threads, stop, file, in_flight: 0 })
    }

    pub(super) fn submit(&mut self, item: InFlight) {
        self.in_flight += 1;
        if let Some(jobs) = &self.jobs {
            // The workers hold the other end as long as we live, and there is room: see above.
            // Should all of them be gone, the slot goes home here, and the next wait says so.
            let _ = jobs.send(item);
        }
    }

    pub(super) fn next(&mut self, wait_for: WaitFor) -> Result<Option<Completion>> {
        let gone = || Error::new(ErrorKind::Bug, "wait for a transfer", "all I/O threads are gone");
        let done = match wait_for {
            WaitFor::None => match self.done.try_recv() {
                Ok(c) => c,
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(gone()),
            },
            WaitFor::Until(end) => match self.done.recv_deadline(end) {
                Ok(c) => c,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            },
            WaitFor::Forever => self.done.recv().map_err(|_| gone())?,
        };
        self.in_flight -= 1;
        Ok(Some(done))
    }
}

/// One worker: until the jobs end. When stopping it only sends the slots back.
fn work(file: &IoFile, inbox: &Receiver<InFlight>, outbox: &Sender<Completion>, stop: &AtomicBool) {
    for mut item in inbox {
        let result = if stop.load(Ordering::Relaxed) {
            Err(io::Error::from_raw_os_error(libc::ECANCELED))
        } else {
            transfer(file, &mut item)
        };
        if outbox.send(item.complete(result)).is_err() {
            return;
        }
    }
}

fn transfer(file: &IoFile, item: &mut InFlight) -> io::Result<()> {
    while let Some(step) = item.step(file.align()) {
        let moved = match item.dir() {
            Direction::Read => file.read_step(&step, item.part(&step)),
            Direction::Write => file.write_step(&step, item.part(&step)),
        };
        if let TransferProgress::Failed(e) = item.advance(moved) {
            return Err(e);
        }
    }
    Ok(())
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jobs = None;
        if self.in_flight > 0
            && let Some(export) = self.file.export()
        {
            // its calls can be ended, and nobody wants their answers
            export.give_up();
        }
        let end = Instant::now() + DROP_PATIENCE;
        while self.in_flight > 0 && self.done.recv_deadline(end).is_ok() {
            self.in_flight -= 1;
        }
        // A thread that hangs in the device cannot be ended. It keeps its slot, and so the arena;
        // nothing of ours is freed under it.
        if self.in_flight == 0 {
            for thread in self.threads.drain(..) {
                // A worker has nothing to tell but its slots, and those are home.
                let _ = thread.join();
            }
        }
    }
}
