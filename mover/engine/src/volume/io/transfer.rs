//! One transfer as a sequence of steps: which bytes next, through which descriptor, and when it is
//! done or has failed.
//!
//! Pure, and used by every engine, so that short transfers, odd ends and interrupted calls are
//! handled the same everywhere. The aligned front of a transfer goes through the main descriptor,
//! an unaligned rest through the buffered one, strictly one after the other: both may touch the
//! same page, and a buffered write rewrites its whole page.

use super::op::{Completion, Direction, Op, Span};
use std::io;
use std::ops::Range;

/// After so many refusals in a row (`EAGAIN`, `ECANCELED`) of one step the device is taken to be
/// failing.
const RETRIES_MAX: u16 = 1000;

/// Which descriptor of an `IoFile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    Main,
    Buffered,
}

/// The next system call of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransferStep {
    pub(crate) via: Via,
    /// In the file.
    pub(crate) offset: u64,
    /// From the transfer's first byte on.
    pub(crate) start: u32,
    pub(crate) len: u32,
}

impl TransferStep {
    pub(crate) fn buffer(&self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// What one system call's result means for its transfer.
#[derive(Debug)]
pub(crate) enum TransferProgress {
    /// Ask for the next step.
    More,
    Done,
    Failed(io::Error),
}

impl Span {
    /// Refuses what ends behind the largest file offset.
    pub(crate) fn check(&self) -> io::Result<()> {
        let bad = || io::Error::from_raw_os_error(libc::EINVAL);
        // one system call moves at most 2 GiB less a page; no slot is that large
        if self.len > 1 << 30 {
            return Err(bad());
        }
        let end = self.offset.checked_add(u64::from(self.len)).ok_or_else(bad)?;
        i64::try_from(end).map(|_| ()).map_err(|_| bad())
    }
}

/// How far the transfer of a [`Span`] is.
#[derive(Debug, Default)]
pub(crate) struct Transfer {
    done: u32,
    retries: u16,
}

impl Transfer {
    /// Bytes that were moved.
    pub(crate) fn done(&self) -> usize {
        self.done as usize
    }

    /// What to do next; `None` when all is done.
    pub(crate) fn step(&self, span: &Span, align: u32) -> Option<TransferStep> {
        let rest = span.len - self.done;
        if rest == 0 {
            return None;
        }
        let (offset, start) = (span.offset + u64::from(self.done), self.done);
        let misaligned = (offset | (span.memory + u64::from(start))) & (u64::from(align) - 1);
        let aligned = rest & !(align - 1);
        let (via, len) = if misaligned == 0 && aligned > 0 {
            (Via::Main, aligned)
        } else {
            (Via::Buffered, rest)
        };
        Some(TransferStep { via, offset, start, len })
    }

    /// Takes the result of the call that `step` asked for.
    pub(crate) fn advance(&mut self, span: &Span, result: io::Result<usize>) -> TransferProgress {
        let n = match result {
            Ok(n) => n,
            Err(e) => return self.refused(e),
        };
        self.retries = 0;
        if n == 0 {
            let at = span.offset + u64::from(self.done);
            return TransferProgress::Failed(match span.dir {
                Direction::Read => {
                    io::Error::new(io::ErrorKind::UnexpectedEof, format!("it ends at offset {at}"))
                }
                Direction::Write => io::Error::new(
                    io::ErrorKind::WriteZero,
                    format!("it takes nothing at offset {at}"),
                ),
            });
        }
        // The kernel never moves more than asked; should it claim so, the rest is what was asked.
        let n = u32::try_from(n).unwrap_or(u32::MAX).min(span.len - self.done);
        self.done += n;
        if self.done == span.len { TransferProgress::Done } else { TransferProgress::More }
    }

    fn refused(&mut self, e: io::Error) -> TransferProgress {
        match e.raw_os_error() {
            Some(libc::EINTR) => TransferProgress::More,
            // The kernel cancels requests of a thread that ends before they are done: the engine
            // may have moved on to another.
            Some(libc::EAGAIN | libc::ECANCELED) if self.retries < RETRIES_MAX => {
                self.retries += 1;
                TransferProgress::More
            }
            _ => TransferProgress::Failed(e),
        }
    }
}

/// An operation inside an engine, and how far it is.
#[derive(Debug)]
pub(super) struct InFlight {
    op: Op,
    transfer: Transfer,
}

impl InFlight {
    /// Of an operation that was checked.
    pub(super) fn new(op: Op) -> Self {
        Self { op, transfer: Transfer::default() }
    }

    /// Of its slot.
    pub(super) fn index(&self) -> usize {
        self.op.slot.index()
    }

    pub(super) fn dir(&self) -> Direction {
        self.op.span.dir
    }

    pub(super) fn step(&self, align: u32) -> Option<TransferStep> {
        self.transfer.step(&self.op.span, align)
    }

    /// The bytes of a step, in its slot.
    fn range(&self, step: &TransferStep) -> Range<usize> {
        // an engine takes no operation that does not lie in its slot
        let first = usize::try_from(self.op.span.memory).unwrap_or(usize::MAX);
        let Range { start, end } = step.buffer();
        first + start..first + end
    }

    pub(super) fn part(&mut self, step: &TransferStep) -> &mut [u8] {
        let range = self.range(step);
        &mut self.op.slot[range]
    }

    /// As [`part`](Self::part), for the kernel.
    pub(super) fn address(&mut self, step: &TransferStep) -> *mut u8 {
        let first = self.range(step).start;
        self.op.slot.as_ptr().wrapping_add(first)
    }

    pub(super) fn advance(&mut self, result: io::Result<usize>) -> TransferProgress {
        self.transfer.advance(&self.op.span, result)
    }

    pub(super) fn complete(self, result: io::Result<()>) -> Completion {
        Completion { op: self.op, result }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A transfer and its bytes.
    struct Moved(Span, Transfer);

    impl Moved {
        fn step(&self, align: u32) -> Option<TransferStep> {
            self.1.step(&self.0, align)
        }

        fn advance(&mut self, result: io::Result<usize>) -> TransferProgress {
            self.1.advance(&self.0, result)
        }
    }

    fn span(dir: Direction, offset: u64, memory: u64, len: u32) -> Span {
        Span { dir, offset, memory, len }
    }

    fn read(offset: u64, memory: u64, len: u32) -> Moved {
        let span = span(Direction::Read, offset, memory, len);
        span.check().unwrap();
        Moved(span, Transfer::default())
    }

    #[test]
    fn the_odd_end_goes_through_the_buffered_descriptor() {
        let mut t = read(1 << 20, 0, 4096 + 700);
        let first = t.step(512).unwrap();
        assert_eq!((first.via, first.len), (Via::Main, 4096 + 512));
        assert!(matches!(t.advance(Ok(4096 + 512)), TransferProgress::More));
        let second = t.step(512).unwrap();
        assert_eq!((second.via, second.len, second.start), (Via::Buffered, 188, 4608));
        assert!(matches!(t.advance(Ok(188)), TransferProgress::Done));
        assert_eq!(t.step(512), None);
    }

    #[test]
    fn unaligned_offsets_and_memory_are_never_direct() {
        assert_eq!(read(513, 0, 4096).step(512).unwrap().via, Via::Buffered);
        assert_eq!(read(512, 8, 4096).step(512).unwrap().via, Via::Buffered);
        assert_eq!(read(512, 0, 511).step(512).unwrap().via, Via::Buffered);
        assert_eq!(read(513, 8, 4096).step(1).unwrap().via, Via::Main);
    }

    #[test]
    fn refusals_are_retried_but_not_for_ever() {
        let mut t = read(0, 0, 4096);
        let errno = |n| Err(io::Error::from_raw_os_error(n));
        for _ in 0..10_000 {
            assert!(matches!(t.advance(errno(libc::EINTR)), TransferProgress::More));
        }
        let mut tries = 0;
        loop {
            match t.advance(errno(libc::EAGAIN)) {
                TransferProgress::More => tries += 1,
                TransferProgress::Failed(e) => {
                    assert_eq!(e.raw_os_error(), Some(libc::EAGAIN));
                    break;
                }
                TransferProgress::Done => panic!("nothing was moved"),
            }
        }
        assert_eq!(tries, RETRIES_MAX);
        let mut t = read(0, 0, 4096);
        let TransferProgress::Failed(e) = t.advance(errno(libc::EIO)) else {
            panic!("EIO is final")
        };
        assert_eq!(e.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn nothing_moved_is_an_error() {
        let TransferProgress::Failed(e) = read(0, 0, 10).advance(Ok(0)) else { panic!() };
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);
        let mut t = Moved(span(Direction::Write, 0, 0, 10), Transfer::default());
        let TransferProgress::Failed(e) = t.advance(Ok(0)) else { panic!() };
        assert_eq!(e.kind(), io::ErrorKind::WriteZero);
    }

    #[test]
    fn offsets_that_no_file_has_are_refused() {
        for (offset, len) in [(u64::MAX, 1), (i64::MAX as u64, 1), (0, u32::MAX)] {
            assert!(span(Direction::Read, offset, 0, len).check().is_err(), "{len} at {offset}");
        }
    }

    proptest! {
        /// However short each call is, every byte is moved once, in order, and direct steps are
        /// aligned.
        #[test]
        fn every_byte_is_moved_once(
            offset in 0u64..20_000, memory in 0u64..5000, len in 1u32..50_000,
            align_log in 9u32..13, shorts in proptest::collection::vec(1usize..9000, 1..20),
        ) {
            let align = 1u32 << align_log;
            let mut t = read(offset, memory, len);
            let (mut at, mut shorts) = (0usize, shorts.into_iter().cycle());
            while let Some(step) = t.step(align) {
                prop_assert_eq!(step.start as usize, at);
                prop_assert_eq!(step.offset, offset + at as u64);
                if step.via == Via::Main {
                    let a = u64::from(align);
                    prop_assert!(step.offset % a == 0 && u64::from(step.len) % a == 0);
                    prop_assert!((memory + u64::from(step.start)) % a == 0);
                }
                let n = (step.len as usize).min(shorts.next().unwrap());
                at += n;
                let done = matches!(t.advance(Ok(n)), TransferProgress::Done);
                prop_assert_eq!(done, at == len as usize);
            }
            prop_assert_eq!(at, len as usize);
        }
    }
}
