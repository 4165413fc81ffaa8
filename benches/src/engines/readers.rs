//! The readers that are compared.

use crate::failed;
use crate::stop::Stop;
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::volume::device::Source;
use mover_engine::volume::io::{Arena, Engine, EngineChoice, Op, Slot};
use serde::Serialize;
use std::cell::Cell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use tokio_uring::buf::{BoundedBuf, IoBuf, IoBufMut};

const PAGE_BYTES: usize = 4096;

/// What reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reader {
    /// Ours: io_uring with registered buffers and files.
    Uring,
    /// Ours: io_uring without.
    UringPlain,
    /// Ours: `pread` on threads.
    Blocking,
    /// The crate of that name. Its registered buffers fail with EFAULT on many kernels; plain ones
    /// are used.
    TokioUring,
    /// The page cache, mapped.
    Mmap,
}

impl Reader {
    pub(crate) const ALL: [Self; 5] =
        [Self::Uring, Self::UringPlain, Self::Blocking, Self::TokioUring, Self::Mmap];

    fn as_str(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::UringPlain => "uring-plain",
            Self::Blocking => "blocking",
            Self::TokioUring => "tokio-uring",
            Self::Mmap => "mmap",
        }
    }

    /// Whether several reads are under way at a time.
    pub(crate) fn has_depth(self) -> bool {
        self != Self::Mmap
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Reader {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == text).ok_or_else(|| {
            let detail = format!("{text:?} is none");
            Error::new(ErrorKind::Usage, "choose a reader", detail)
                .hint("use uring, uring-plain, blocking, tokio-uring or mmap")
        })
    }
}

/// One way to read a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) reader: Reader,
    pub(crate) size_bytes: u64,
    pub(crate) depth: usize,
}

/// Reads the first `bytes` of `source`, a multiple of 4 KiB; ends early without an error once
/// stopped.
pub(crate) fn read(case: Case, source: &Source, bytes: u64, stop: &Stop) -> Result<()> {
    match case.reader {
        Reader::Uring => own(EngineChoice::Uring, case, source, bytes, stop),
        Reader::UringPlain => own(EngineChoice::UringPlain, case, source, bytes, stop),
        Reader::Blocking => own(EngineChoice::Blocking, case, source, bytes, stop),
        Reader::TokioUring => tokio_uring_reads(case, source, bytes, stop),
        Reader::Mmap => mapped(case, source, bytes, stop),
    }
}

fn slot_bytes(case: Case) -> usize {
    usize::try_from(case.size_bytes).unwrap_or(usize::MAX)
}

fn own(choice: EngineChoice, case: Case, source: &Source, bytes: u64, stop: &Stop) -> Result<()> {
    let arena = Arena::new(case.depth, slot_bytes(case))?;
    let mut engine = Engine::start(choice, &arena, source.io_file(), case.depth)?;
    let mut next = 0;
    loop {
        while next < bytes && engine.has_room() && !stop.stopped() {
            let Some(slot) = arena.take() else { break };
            let len = u32::try_from(case.size_bytes.min(bytes - next)).unwrap_or(u32::MAX);
            engine.submit(Op::read(slot, next, len, 0)).map_err(|rejected| rejected.error)?;
            next += u64::from(len);
        }
        if engine.in_flight() == 0 {
            return Ok(());
        }
        drop(engine.wait()?.into_slot(source.path())?);
    }
}

/// A slot as tokio-uring wants buffers.
struct Buffer(Slot);

// SAFETY: a slot's bytes lie in the mapping of its arena, which does not move with the slot and
// lives as long as it does. They were initialised by the kernel when they were mapped, all of them.
unsafe impl IoBuf for Buffer {
    fn stable_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.0.len()
    }

    fn bytes_total(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: as above; a slot has its bytes to itself, and all of them are initialised whatever a read
// wrote.
unsafe impl IoBufMut for Buffer {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    unsafe fn set_init(&mut self, _pos: usize) {}
}

fn tokio_uring_reads(case: Case, source: &Source, bytes: u64, stop: &Stop) -> Result<()> {
    let arena = Arena::new(case.depth, slot_bytes(case))?;
    // tokio-uring panics where there is no io_uring: ask first
    drop(Engine::start(EngineChoice::UringPlain, &arena, source.io_file(), 1)?);
    let file = open(source, if source.direct() { libc::O_DIRECT } else { 0 })?;
    let context = format!("read {} with tokio-uring", source.path().display());
    tokio_uring::start(all_tasks(case, arena, file, bytes, stop.clone()))
        .map_err(|e| failed(context, e))
}

async fn all_tasks(
    case: Case,
    arena: Arc<Arena>,
    file: File,
    bytes: u64,
    stop: Stop,
) -> io::Result<()> {
    let file = Rc::new(tokio_uring::fs::File::from_std(file));
    let next = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for _ in 0..case.depth {
        let Some(slot) = arena.take() else { break };
        let (file, next, stop) = (Rc::clone(&file), Rc::clone(&next), stop.clone());
        tasks.push(tokio_uring::spawn(async move {
            let mut buffer = Buffer(slot);
            while next.get() < bytes && !stop.stopped() {
                let at = next.get();
                let len = case.size_bytes.min(bytes - at);
                next.set(at + len);
                buffer = read_whole(&file, buffer, at, len).await?;
            }
            Ok::<(), io::Error>(())
        }));
    }
    for task in tasks {
        task.await.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Reads `len` bytes from `at` on into the buffer's start.
async fn read_whole(
    file: &tokio_uring::fs::File,
    mut buffer: Buffer,
    at: u64,
    len: u64,
) -> io::Result<Buffer> {
    let (mut done, len) = (0, usize::try_from(len).unwrap_or(usize::MAX));
    while done < len {
        let (read, slice) = file.read_at(buffer.slice(done..len), at + done as u64).await;
        buffer = slice.into_inner();
        match read? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => done += n,
        }
    }
    Ok(buffer)
}

fn mapped(case: Case, source: &Source, bytes: u64, stop: &Stop) -> Result<()> {
    let what = || format!("map {}", source.path().display());
    let file = open(source, 0)?;
    let len = usize::try_from(bytes).unwrap_or(usize::MAX);
    // SAFETY: a shared read-only mapping of what this harness only reads and that its user asked to
    // have read. Should the device fail or shrink meanwhile, the process ends by SIGBUS, which is
    // why `mover` itself maps no devices. Of the bytes only one a page is looked at, and nothing is
    // decided by it, so that another process may change them.
    let map = unsafe { memmap2::MmapOptions::new().len(len).map(&file) }
        .map_err(|e| failed(what(), e))?;
    // advice only: a kernel that does not take it reads all the same
    let _ = map.advise(memmap2::Advice::Sequential);
    for piece in map.chunks(slot_bytes(case)) {
        if stop.stopped() {
            break;
        }
        black_box(piece.iter().step_by(PAGE_BYTES).fold(0_u8, |all, byte| all ^ byte));
    }
    Ok(())
}

fn open(source: &Source, flags: i32) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(source.path())
        .map_err(|e| failed(format!("open {}", source.path().display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mover_engine::volume::device::{DirectIo, SourceOptions};

    #[test]
    fn every_reader_reads_to_an_odd_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![7; 5 * PAGE_BYTES]).unwrap();
        let source = Source::open(&path, SourceOptions { direct: DirectIo::Auto }).unwrap();
        for reader in Reader::ALL {
            for (size_bytes, depth) in [(4096, 1), (8192, 3), (1 << 20, 2)] {
                let case = Case { reader, size_bytes, depth };
                read(case, &source, 5 * 4096, &Stop::default()).unwrap();
                // what is not there must not count as read
                // (behind the end of a mapping there is SIGBUS)
                if reader != Reader::Mmap {
                    read(case, &source, 7 * 4096, &Stop::default()).unwrap_err();
                }
            }
        }
    }

    #[test]
    fn readers_are_named_as_they_are_shown() {
        for reader in Reader::ALL {
            assert_eq!(reader.to_string().parse::<Reader>().unwrap(), reader);
        }
        assert_eq!("aio".parse::<Reader>().unwrap_err().kind(), ErrorKind::Usage);
    }
}
