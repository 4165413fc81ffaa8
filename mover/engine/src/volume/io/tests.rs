//! All engines against plain reads and writes, on files; `tests/device.rs` does the same on block
//! devices.

use super::op::WaitFor;
use super::transfer::InFlight;
use super::uring::Uring;
use super::*;
use crate::volume::device::{DirectIo, Source, SourceOptions, Target, TargetOptions};
use proptest::prelude::*;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

mod forbidden;

const CHOICES: [EngineChoice; 3] =
    [EngineChoice::Uring, EngineChoice::UringPlain, EngineChoice::Blocking];

fn us(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

/// Different at every offset, and for every seed.
fn pattern(seed: u64, offset: u64, out: &mut [u8]) {
    for (i, b) in out.iter_mut().enumerate() {
        let n = (offset + i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed);
        *b = n.to_be_bytes()[0];
    }
}

fn patterned_file(dir: &Path, size: usize, seed: u64) -> std::path::PathBuf {
    let path = dir.join(format!("image-{size}-{seed}"));
    let mut bytes = vec![0; size];
    pattern(seed, 0, &mut bytes);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn source(path: &Path, direct: DirectIo) -> Source {
    Source::open(path, SourceOptions { direct }).unwrap()
}

/// Reads everything with an engine, `unit` bytes at a time, and compares it with the pattern.
fn read_all(engine: &mut Engine, arena: &Arc<Arena>, size: u64, unit: u32, seed: u64) {
    let mut next = 0;
    let mut seen = 0;
    let mut want = vec![0; unit as usize];
    while seen < size {
        while next < size && engine.has_room() {
            let Some(slot) = arena.take() else { break };
            let len = u32::try_from((size - next).min(u64::from(unit))).unwrap();
            engine.submit(Op::read(slot, next, len, next / u64::from(unit))).unwrap();
            next += u64::from(len);
        }
        let done = engine.wait().unwrap();
        let Span { dir, offset, memory, len } = done.op.span;
        assert_eq!((done.op.tag, dir, memory), (offset / u64::from(unit), Direction::Read, 0));
        let len = len as usize;
        let slot = done.into_slot(Path::new("image")).unwrap();
        pattern(seed, offset, &mut want[..len]);
        assert!(slot[..len] == want[..len], "wrong bytes at {offset}");
        seen += len as u64;
    }
    assert_eq!(engine.in_flight(), 0);
}

#[test]
fn every_engine_reads_every_byte_of_files_of_odd_sizes() {
    let dir = tempfile::tempdir().unwrap();
    for size in [1, 511, 512, 513, 4096, 65_536 + 512, (1 << 20) + 7, (3 << 20) + 4095] {
        let path = patterned_file(dir.path(), size, 3);
        for (choice, direct) in
            CHOICES.iter().flat_map(|c| [(*c, DirectIo::Auto), (*c, DirectIo::Never)])
        {
            let source = source(&path, direct);
            let arena = Arena::new(6, 64 << 10).unwrap();
            let mut engine = Engine::start(choice, &arena, source.io_file(), 4).unwrap();
            assert!(engine.capacity() == 4 && engine.notes().is_empty());
            read_all(&mut engine, &arena, size as u64, 64 << 10, 3);
            drop(engine);
            assert!(arena.all_home(), "{choice} {direct}");
        }
    }
}

#[test]
fn every_engine_writes_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    for (n, choice) in CHOICES.into_iter().enumerate() {
        for (size, direct) in
            [(100, DirectIo::Auto), ((1 << 20) + 700, DirectIo::Auto), (77_777, DirectIo::Never)]
        {
            let path = dir.path().join(format!("out-{n}-{size}"));
            let mut options = TargetOptions::new(size);
            options.direct = direct;
            let target = Target::open(&path, &options).unwrap();
            assert!(target.created());
            let arena = Arena::new(3, 32 << 10).unwrap();
            let mut engine = Engine::start(choice, &arena, target.io_file(), 8).unwrap();
            assert_eq!(engine.capacity(), 3, "no more than there are slots");
            let mut at = 0;
            while at < size {
                let Some(mut slot) = arena.take() else {
                    drop(engine.wait().unwrap().into_slot(&path).unwrap());
                    continue;
                };
                let len = u32::try_from((size - at).min(32 << 10)).unwrap();
                pattern(9, at, &mut slot[..len as usize]);
                engine.submit(Op::write(slot, at, len, 0)).unwrap();
                at += u64::from(len);
            }
            while engine.in_flight() > 0 {
                drop(engine.wait().unwrap().into_slot(&path).unwrap());
            }
            target.flush().unwrap();
            drop(engine);
            assert!(arena.all_home());
            let mut want = vec![0; us(size)];
            pattern(9, 0, &mut want);
            assert!(std::fs::read(&path).unwrap() == want, "{choice} {size}");
        }
    }
}

#[test]
fn a_part_of_a_slot_can_be_moved() {
    let dir = tempfile::tempdir().unwrap();
    let path = patterned_file(dir.path(), 1 << 20, 5);
    for choice in CHOICES {
        for (slot_offset, offset, len) in
            [(4096u32, 8192u64, 4096u32), (512, 0, 1024), (5, 7, 9000)]
        {
            let source = source(&path, DirectIo::Auto);
            let arena = Arena::new(1, 16 << 10).unwrap();
            let mut engine = Engine::start(choice, &arena, source.io_file(), 1).unwrap();
            let mut slot = arena.take().unwrap();
            slot.fill(0xAA);
            let op = Op::read(slot, offset, len, 1).from_slot_offset(slot_offset);
            engine.submit(op).unwrap();
            let slot = engine.wait().unwrap().into_slot(&path).unwrap();
            let (start, end) = (slot_offset as usize, (slot_offset + len) as usize);
            let mut want = vec![0xAA; 16 << 10];
            pattern(5, offset, &mut want[start..end]);
            assert!(*slot == want[..], "{choice} {slot_offset} {offset} {len}");
        }
    }
}

#[test]
fn a_file_that_ends_too_early_is_an_error_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    for choice in CHOICES {
        for direct in [DirectIo::Auto, DirectIo::Never] {
            let path = patterned_file(dir.path(), 10_000, 1);
            let source = source(&path, direct);
            let arena = Arena::new(2, 64 << 10).unwrap();
            let mut engine = Engine::start(choice, &arena, source.io_file(), 2).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
            engine.submit(Op::read(arena.take().unwrap(), 4096, 5904, 8)).unwrap();
            let done = engine.wait().unwrap();
            assert_eq!(done.op.tag, 8);
            let kind = done.result.as_ref().unwrap_err().kind();
            assert_eq!(kind, std::io::ErrorKind::UnexpectedEof);
            let text = done.into_slot(source.path()).unwrap_err().to_string();
            assert!(text.contains("read 5904 bytes at offset 4096 of /"), "{text}");
            assert!(text.contains("it ends at offset 5000"), "{text}");
            drop(engine);
            assert!(arena.all_home());
        }
    }
}

#[test]
fn what_cannot_be_taken_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = patterned_file(dir.path(), 4096, 1);
    let source = source(&path, DirectIo::Auto);
    let (arena, other) = (Arena::new(3, 4096).unwrap(), Arena::new(1, 4096).unwrap());
    for choice in CHOICES {
        let mut engine = Engine::start(choice, &arena, source.io_file(), 2).unwrap();
        let mut refused = |op| engine.submit(op).unwrap_err().error.to_string();
        let take = || arena.take().unwrap();
        assert!(refused(Op::read(other.take().unwrap(), 0, 1, 0)).contains("another arena"));
        for (at, len) in [(0, 0), (0, 4097), (4096, 1), (u32::MAX, u32::MAX)] {
            let text = refused(Op::read(take(), 0, len, 0).from_slot_offset(at));
            assert!(text.contains("in a slot of 4096"), "{text}");
        }
        assert!(refused(Op::read(take(), u64::MAX - 2, 4096, 0)).contains("offset"));
        assert!(engine.wait().unwrap_err().to_string().contains("none is in flight"));
        assert!(engine.try_wait().unwrap().is_none());
        engine.submit(Op::read(take(), 0, 4096, 0)).unwrap();
        engine.submit(Op::read(take(), 0, 4096, 1)).unwrap();
        let rejected = engine.submit(Op::read(take(), 0, 4096, 2)).unwrap_err();
        assert!(rejected.error.to_string().contains("all 2 places are taken"));
        drop((rejected, engine));
        assert!(arena.all_home() && other.all_home());
    }
}

#[test]
fn dropping_an_engine_brings_its_slots_home() {
    let dir = tempfile::tempdir().unwrap();
    let path = patterned_file(dir.path(), 8 << 20, 1);
    for choice in CHOICES {
        for taken in [0, 1, 7] {
            let source = source(&path, DirectIo::Auto);
            let arena = Arena::new(8, 1 << 20).unwrap();
            let mut engine = Engine::start(choice, &arena, source.io_file(), 8).unwrap();
            for n in 0..8 {
                engine.submit(Op::read(arena.take().unwrap(), n << 20, 1 << 20, n)).unwrap();
            }
            for _ in 0..taken {
                engine.wait().unwrap();
            }
            drop(engine);
            assert!(arena.all_home(), "{choice} after {taken}");
        }
    }
}

/// A device that does not answer: reads of a pipe end when something is written to it.
fn pipe() -> (Arc<IoFile>, File) {
    let (from, to) = std::io::pipe().unwrap();
    let (from, to) = (OwnedFd::from(from), OwnedFd::from(to));
    (Arc::new(IoFile::buffered("a pipe", File::from(from))), File::from(to))
}

/// An engine whose arena had no free slot when it started: it was not tried out, which would wait
/// for the pipe.
fn ring_on_pipe(register: bool, file: &Arc<IoFile>, arena: &Arc<Arena>) -> Uring {
    let all: Vec<Slot> = std::iter::from_fn(|| arena.take()).collect();
    let ring = Uring::start(register, arena, file, 4).unwrap();
    drop(all);
    ring
}

fn read_item(arena: &Arc<Arena>, len: u32) -> InFlight {
    InFlight::new(Op::read(arena.take().unwrap(), 0, len, 42))
}

#[test]
fn waiting_ends_when_the_time_is_up() {
    for register in [false, true] {
        let (file, mut to) = pipe();
        let arena = Arena::new(4, 4096).unwrap();
        let mut ring = ring_on_pipe(register, &file, &arena);
        ring.submit(read_item(&arena, 6));
        assert!(ring.next(WaitFor::None).unwrap().is_none());
        let begin = Instant::now();
        let end = begin + Duration::from_millis(30);
        assert!(ring.next(WaitFor::Until(end)).unwrap().is_none());
        assert!(begin.elapsed() >= Duration::from_millis(30));
        // comes in two pieces: a short read is continued
        to.write_all(b"abc").unwrap();
        assert!(ring.next(WaitFor::Until(begin)).unwrap().is_none());
        to.write_all(b"def").unwrap();
        let done = ring.next(WaitFor::Forever).unwrap().unwrap();
        assert_eq!((&done.op.slot[..6], done.op.tag), (&b"abcdef"[..], 42));
        drop((done, ring));
        assert!(arena.all_home());
    }
}

#[test]
fn a_transfer_that_never_ends_keeps_its_slot_and_the_memory() {
    for register in [false, true] {
        let (file, mut to) = pipe();
        let arena = Arena::new(4, 4096).unwrap();
        let mut ring = ring_on_pipe(register, &file, &arena);
        ring.submit(read_item(&arena, 4096));
        assert!(ring.next(WaitFor::None).unwrap().is_none());
        ring.set_drop_patience(Duration::from_millis(20));
        drop(ring);
        assert_eq!(arena.free_slots(), 3, "the slot is not given to anyone else");
        let weak = Arc::downgrade(&arena);
        drop(arena);
        assert!(weak.upgrade().is_some(), "the arena outlives all who know it");
        // the device answers at last; the kernel may or may not still care
        let _ = to.write_all(&[0xEE; 4096]);
    }
}

#[test]
fn an_engine_works_on_another_thread_and_after_its_first_one_ended() {
    let (file, mut to) = pipe();
    let arena = Arena::new(4, 4096).unwrap();
    let mut ring = std::thread::scope(|s| {
        s.spawn(|| {
            let mut ring = ring_on_pipe(true, &file, &arena);
            ring.submit(read_item(&arena, 3));
            assert!(ring.next(WaitFor::None).unwrap().is_none());
            ring
        })
        .join()
        .unwrap()
    });
    // the kernel cancels what a thread that ended had asked for; the engine asks again
    let soon = Instant::now() + Duration::from_millis(20);
    assert!(ring.next(WaitFor::Until(soon)).unwrap().is_none());
    to.write_all(b"xyz").unwrap();
    let done = ring.next(WaitFor::Forever).unwrap().unwrap();
    assert_eq!(&done.op.slot[..3], b"xyz");
    drop((done, ring));
    assert!(arena.all_home());
}

#[test]
fn more_slots_than_the_kernel_takes_buffers() {
    let dir = tempfile::tempdir().unwrap();
    let path = patterned_file(dir.path(), 3000 * 4096, 2);
    let source = source(&path, DirectIo::Auto);
    let arena = Arena::new(3000, 4096).unwrap();
    let mut engine = Engine::start(EngineChoice::Uring, &arena, source.io_file(), 1000).unwrap();
    assert_eq!(engine.name(), "io_uring registered");
    read_all(&mut engine, &arena, 3000 * 4096, 4096, 2);
    drop(engine);
    assert!(arena.all_home());
}

#[test]
fn buffered_files_are_read_by_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = patterned_file(dir.path(), 100, 2);
    let source = source(&path, DirectIo::Never);
    let arena = Arena::new(2, 4096).unwrap();
    let engine = Engine::start(EngineChoice::Auto, &arena, source.io_file(), 2).unwrap();
    assert_eq!(engine.name(), "blocking");
}

#[test]
fn names_of_engines_are_understood() {
    for choice in CHOICES.into_iter().chain([EngineChoice::Auto]) {
        assert_eq!(choice.to_string().parse::<EngineChoice>().unwrap(), choice);
    }
    assert!("ring".parse::<EngineChoice>().is_err());
    fn sendable<T: Send>() {}
    sendable::<Engine>();
    sendable::<Slot>();
}

/// Tag, bytes, and whether it is a write.
type Flying = (u64, std::ops::Range<u64>, bool);

#[derive(Debug, Clone)]
struct Act {
    write: bool,
    block: u64,
    blocks: u64,
    odd: u64,
    wait: u8,
}

fn act() -> impl Strategy<Value = Act> {
    (any::<bool>(), 0u64..60, 1u64..5, 0u64..4096, 0u8..4)
        .prop_map(|(write, block, blocks, odd, wait)| Act { write, block, blocks, odd, wait })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any order of reads and writes that do not overlap in flight does what a byte array does.
    #[test]
    fn engines_behave_like_an_array(acts in proptest::collection::vec(act(), 1..60), which in 0usize..3, buffered: bool) {
        const SIZE: u64 = 64 * 4096 + 300;
        let dir = tempfile::tempdir().unwrap();
        let mut options = TargetOptions::new(SIZE);
        options.direct = if buffered { DirectIo::Never } else { DirectIo::Auto };
        let target = Target::open(dir.path().join("t"), &options).unwrap();
        let arena = Arena::new(5, 16 << 10).unwrap();
        let mut engine = Engine::start(CHOICES[which], &arena, target.io_file(), 4).unwrap();
        let mut model = vec![0u8; us(SIZE)];
        let mut flying: Vec<Flying> = Vec::new();
        for (n, act) in acts.iter().enumerate() {
            let tag = n as u64;
            let start = act.block * 4096;
            let end = (start + act.blocks * 4096 - if act.write { 0 } else { act.odd }).min(SIZE);
            let range = start..end.max(start + 1);
            let clash = |f: &Vec<Flying>| f.iter().any(|(_, r, w)| (*w || act.write)
                && r.start < range.end.next_multiple_of(4096) && range.start < r.end.next_multiple_of(4096));
            while clash(&flying) || !engine.has_room() {
                settle(engine.wait().unwrap(), &mut flying, &model);
            }
            let mut slot = arena.take().unwrap();
            let (s, e) = (us(range.start), us(range.end));
            let len = u32::try_from(e - s).unwrap();
            let op = if act.write {
                pattern(tag, range.start, &mut slot[..e - s]);
                model[s..e].copy_from_slice(&slot[..e - s]);
                Op::write(slot, range.start, len, tag)
            } else {
                Op::read(slot, range.start, len, tag)
            };
            engine.submit(op).unwrap();
            flying.push((tag, range, act.write));
            for _ in 0..act.wait {
                if let Some(done) = engine.try_wait().unwrap() {
                    settle(done, &mut flying, &model);
                }
            }
        }
        while engine.in_flight() > 0 {
            settle(engine.wait().unwrap(), &mut flying, &model);
        }
        drop(engine);
        prop_assert!(arena.all_home() && flying.is_empty());
        target.flush().unwrap();
        prop_assert!(std::fs::read(target.path()).unwrap() == model);
    }
}

fn settle(done: Completion, flying: &mut Vec<Flying>, model: &[u8]) {
    let at = flying.iter().position(|f| f.0 == done.op.tag).unwrap();
    let (_, range, write) = flying.swap_remove(at);
    let Span { offset, len, .. } = done.op.span;
    assert_eq!((offset, u64::from(len)), (range.start, range.end - range.start));
    let slot = done.into_slot(Path::new("t")).unwrap();
    if !write {
        let want = &model[us(range.start)..us(range.end)];
        assert!(slot[..want.len()] == *want, "{range:?}");
    }
}
