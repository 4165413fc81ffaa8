//! Devices and engines on real block devices: loop devices with 512- and 4096-byte sectors, zram,
//! swap, mounts. Needs root; without, each test says `SKIP` and passes.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, which clippy does not see")]

#[path = "device/caches.rs"]
mod caches;
#[path = "device/machine.rs"]
mod machine;
#[path = "device/refusals.rs"]
mod refusals;
#[path = "device/zeroing.rs"]
mod zeroing;

use machine::{Loop, image, is_root, pattern, run};
use mover_engine::volume::device::{
    DeviceKind, DirectIo, Source, SourceOptions, Target, TargetOptions,
};
use mover_engine::volume::io::{Arena, Direction, Engine, EngineChoice, IoFile, Op, Span};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHOICES: [EngineChoice; 3] =
    [EngineChoice::Uring, EngineChoice::UringPlain, EngineChoice::Blocking];
const NAMES: [&str; 3] = ["io_uring registered", "io_uring", "blocking"];

/// Writes the pattern over `size` bytes, or reads and compares it: `unit` bytes at a time, as many
/// as the engine takes.
fn move_all(
    choice: EngineChoice,
    arena: &Arc<Arena>,
    io: &Arc<IoFile>,
    dir: Direction,
    (size, unit, seed): (u64, u32, u64),
) -> &'static str {
    let mut engine = Engine::start(choice, arena, io, 8).unwrap();
    let mut want = vec![0; unit as usize];
    let mut next = 0;
    while next < size || engine.in_flight() > 0 {
        while next < size && engine.has_room() {
            let Some(mut slot) = arena.take() else { break };
            let len = u32::try_from((size - next).min(u64::from(unit))).unwrap();
            if dir == Direction::Write {
                pattern(seed, next, &mut slot[..len as usize]);
            }
            let span = Span { dir, offset: next, memory: 0, len };
            let op = Op { slot, span, tag: next };
            engine.submit(op).unwrap();
            next += u64::from(len);
        }
        let done = engine.wait().unwrap();
        let (at, len) = (done.op.span.offset, done.op.span.len as usize);
        assert_eq!(done.op.tag, at);
        let slot = done.into_slot(io.path()).unwrap();
        if dir == Direction::Read {
            pattern(seed, at, &mut want[..len]);
            assert!(slot[..len] == want[..len], "{choice}: wrong bytes at {at}");
        }
    }
    let name = engine.name();
    drop(engine);
    assert!(arena.all_home());
    name
}

#[test]
fn every_engine_writes_and_reads_every_byte_of_a_device() {
    if !is_root() {
        return;
    }
    for sector in [512u32, 4096] {
        let device = Loop::new(image(24 << 20), sector, &[]);
        for (choice, name) in CHOICES.into_iter().zip(NAMES) {
            // the volume ends in the middle of a sector, the device does not
            let size = (20 << 20) + 4096 + 100;
            let target = Target::open(device.path(), &TargetOptions::new(size)).unwrap();
            assert_eq!(target.kind(), DeviceKind::Block);
            assert_eq!(target.logical_block_bytes(), sector);
            assert!(target.direct() && target.device_bytes() == 24 << 20);
            let arena = Arena::new(10, 256 << 10).unwrap();
            let seed = u64::from(sector) + name.len() as u64;
            let all = (size, 256 << 10, seed);
            let used = move_all(choice, &arena, target.io_file(), Direction::Write, all);
            assert_eq!(used, name);
            target.flush().unwrap();
            drop(target);
            let options = SourceOptions { direct: DirectIo::Always };
            let source = Source::open(device.path(), options).unwrap();
            assert_eq!((source.size_bytes(), source.logical_block_bytes()), (24 << 20, sector));
            assert_eq!(source.data_ranges().unwrap(), None);
            move_all(choice, &arena, source.io_file(), Direction::Read, all);
            // by somebody else's eyes, and nothing behind the end
            let mut bytes = vec![0; 24 << 20];
            File::open(device.image()).unwrap().read_exact_at(&mut bytes, 0).unwrap();
            let end = usize::try_from(size).unwrap();
            let mut want = vec![0; end];
            pattern(seed, 0, &mut want);
            assert!(bytes[..end] == want[..] && bytes[end..].iter().all(|b| *b == 0));
        }
    }
}

#[test]
fn volumes_larger_than_32_bits_count_are_read_to_their_last_byte() {
    if !is_root() {
        return;
    }
    let size = (5u64 << 30) + 512;
    let image = image(size);
    let mut last = vec![0; 4096 + 512];
    pattern(1, size - 4608, &mut last);
    File::options().write(true).open(&*image).unwrap().write_all_at(&last, size - 4608).unwrap();
    let device = Loop::new(image, 512, &[]);
    for path in [device.path(), device.image()] {
        let source = Source::open(path, SourceOptions::default()).unwrap();
        assert_eq!(source.size_bytes(), size);
        for choice in CHOICES {
            let arena = Arena::new(1, 1 << 20).unwrap();
            let mut engine = Engine::start(choice, &arena, source.io_file(), 1).unwrap();
            let at = 5u64 << 30;
            engine.submit(Op::read(arena.take().unwrap(), at - 4096, 4608, 0)).unwrap();
            let slot = engine.wait().unwrap().into_slot(path).unwrap();
            assert!(slot[..4608] == last[..], "{choice}");
        }
    }
}

#[test]
fn a_device_that_fails_names_itself_the_place_and_the_number() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(16 << 20), 512, &[]);
    // the device's second half vanishes
    File::options().write(true).open(device.image()).unwrap().set_len(8 << 20).unwrap();
    let source = Source::open(device.path(), SourceOptions::default()).unwrap();
    for choice in CHOICES {
        let arena = Arena::new(16, 1 << 20).unwrap();
        let mut engine = Engine::start(choice, &arena, source.io_file(), 16).unwrap();
        for n in 0..16 {
            engine.submit(Op::read(arena.take().unwrap(), n << 20, 1 << 20, n)).unwrap();
        }
        let mut failed = 0;
        while engine.in_flight() > 0 {
            let done = engine.wait().unwrap();
            let (tag, offset) = (done.op.tag, done.op.span.offset);
            let Err(e) = &done.result else {
                assert!(tag < 8, "{choice}: {tag}");
                continue;
            };
            failed += 1;
            assert_eq!(e.raw_os_error(), Some(libc::EIO), "{choice}: {tag}: {e}");
            let e = done.into_slot(source.path()).unwrap_err();
            let place =
                format!("read 1048576 bytes at offset {offset} of {}", device.path().display());
            assert!(e.to_string().contains(&place), "{e}");
            assert_eq!(e.kind(), chunkstore::ErrorKind::Device);
        }
        assert_eq!(failed, 8, "{choice}");
        drop(engine);
        assert!(arena.all_home());
    }
}

#[test]
fn dropping_an_engine_brings_slots_home_and_frees_the_device() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(64 << 20), 4096, &[]);
    for round in 0..12 {
        for choice in CHOICES {
            // claims the device: an engine that kept it open would show
            let target = Target::open(device.path(), &TargetOptions::new(64 << 20)).unwrap();
            let arena = Arena::new(32, 1 << 20).unwrap();
            let mut engine = Engine::start(choice, &arena, target.io_file(), 32).unwrap();
            for n in 0..32 {
                let slot = arena.take().unwrap();
                let op = if round % 2 == 0 {
                    Op::read(slot, n << 20, 1 << 20, n)
                } else {
                    Op::write(slot, n << 20, 1 << 20, n)
                };
                engine.submit(op).unwrap();
            }
            for _ in 0..round {
                engine.wait().unwrap().result.unwrap();
            }
            drop(engine);
            assert!(arena.all_home(), "{choice}");
            let begin = Instant::now();
            drop(target);
            drop(Target::open(device.path(), &TargetOptions::new(1)).unwrap());
            assert!(begin.elapsed().as_millis() < 1000, "{choice}: it was still claimed");
        }
    }
}

/// Writes hang as long as the file system under the device is frozen.
#[test]
fn a_device_that_hangs_does_not_hang_its_user() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = Loop::new(image(64 << 20), 512, &[]);
    run("mkfs.ext4", &["-q"], disk.path());
    let mount = machine::Mount::new(disk.path(), dir.path(), "rw");
    let devices: Vec<Loop> = CHOICES
        .iter()
        .map(|_| Loop::new(machine::image_in(mount.path(), 8 << 20), 512, &[]))
        .collect();
    let frozen = machine::Frozen::new(mount.path());
    let hang = |(choice, device): (EngineChoice, &Loop)| {
        let target = Target::open(device.path(), &TargetOptions::new(8 << 20)).unwrap();
        let arena = Arena::new(8, 1 << 20).unwrap();
        let mut engine = Engine::start(choice, &arena, target.io_file(), 8).unwrap();
        for n in 0..4 {
            engine.submit(Op::write(arena.take().unwrap(), n << 20, 1 << 20, n)).unwrap();
        }
        let none = engine.wait_timeout(Duration::from_millis(100)).unwrap();
        assert!(none.is_none() && engine.in_flight() == 4, "{choice}: the device does not hang");
        let begin = Instant::now();
        drop(engine);
        let took = begin.elapsed();
        assert!(took > Duration::from_secs(4) && took < Duration::from_secs(9), "{took:?}");
        assert_eq!(arena.free_slots(), 4, "{choice}: nobody else may use what is in flight");
        arena
    };
    let arenas: Vec<Arc<Arena>> = std::thread::scope(|s| {
        let all: Vec<_> =
            CHOICES.into_iter().zip(&devices).map(|one| s.spawn(move || hang(one))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    drop(frozen);
    // now the device answers, after all who asked are gone: only the memory is still there
    let blocking = arenas.last().unwrap();
    let slots: Vec<_> = (0..8).map(|_| blocking.take_timeout(Duration::from_secs(60))).collect();
    assert!(slots.iter().all(Option::is_some), "the threads bring their slots home");
}

#[test]
fn an_engine_may_move_between_threads_with_transfers_in_flight() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(32 << 20), 512, &[]);
    let source = Source::open(device.path(), SourceOptions::default()).unwrap();
    for choice in CHOICES {
        let arena = Arena::new(16, 1 << 20).unwrap();
        let mut engine = Some(Engine::start(choice, &arena, source.io_file(), 16).unwrap());
        // each thread submits, and the next one waits
        for turn in 0..8u64 {
            std::thread::scope(|s| {
                let mut mine = engine.take().unwrap();
                let work = || {
                    while mine.in_flight() > 0 {
                        mine.wait().unwrap().result.unwrap();
                    }
                    for n in 0..16 {
                        let at = ((turn + n) % 32) << 20;
                        mine.submit(Op::read(arena.take().unwrap(), at, 1 << 20, n)).unwrap();
                    }
                    mine.submit_queued().unwrap();
                    mine
                };
                engine = Some(s.spawn(work).join().unwrap());
            });
        }
        let mut engine = engine.unwrap();
        while engine.in_flight() > 0 {
            engine.wait().unwrap().result.unwrap();
        }
        drop(engine);
        assert!(arena.all_home());
    }
}

/// Neither of these knows asynchronous I/O; the second has no direct I/O either.
#[test]
fn files_in_memory_work_too() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for kind in ["tmpfs", "ramfs"] {
        let mount = machine::Mount::memory(kind, dir.path());
        let image = machine::image_in(mount.path(), 5_000_001);
        for choice in CHOICES {
            let options = TargetOptions { force: true, ..TargetOptions::new(5_000_001) };
            let target = Target::open(&*image, &options).unwrap();
            let arena = Arena::new(8, 256 << 10).unwrap();
            let all = (5_000_001, 256 << 10, 5);
            move_all(choice, &arena, target.io_file(), Direction::Write, all);
            target.flush().unwrap();
            move_all(choice, &arena, target.io_file(), Direction::Read, all);
        }
    }
}

#[test]
fn another_kind_of_device_works_too() {
    if !is_root() {
        return;
    }
    let Some(device) = machine::Zram::new(32 << 20) else { return };
    for choice in CHOICES {
        let target = Target::open(device.path(), &TargetOptions::new(32 << 20)).unwrap();
        assert_eq!(target.logical_block_bytes(), 4096);
        let arena = Arena::new(8, 1 << 20).unwrap();
        let all = (32 << 20, 1 << 20, 77);
        move_all(choice, &arena, target.io_file(), Direction::Write, all);
        target.flush().unwrap();
        move_all(choice, &arena, target.io_file(), Direction::Read, all);
    }
}

#[test]
fn a_volume_is_named_by_its_file_system() {
    if !is_root() {
        return;
    }
    let uuid = "3e6be9de-8139-4a24-a106-a43f08d823a6";
    let mut tried = 0;
    for (tool, args, size) in [
        ("mkfs.ext4", vec!["-q", "-U", uuid], 32u64 << 20),
        ("mkfs.xfs", vec!["-q", "-m", "uuid=3e6be9de-8139-4a24-a106-a43f08d823a6"], 512 << 20),
        ("mkfs.btrfs", vec!["-q", "-U", uuid], 256 << 20),
    ] {
        let device = Loop::new(image(size), 512, &[]);
        let Some(()) = machine::try_run(tool, &args, device.path()) else { continue };
        tried += 1;
        let source = Source::open(device.path(), SourceOptions::default()).unwrap();
        assert_eq!(source.default_volume_name().unwrap().as_str(), uuid, "{tool}");
        let e = Target::open(device.path(), &TargetOptions::new(1)).unwrap_err().to_string();
        assert!(e.contains("file system") && e.contains("`force`"), "{tool}: {e}");
    }
    assert!(tried > 0, "not even mkfs.ext4 is there");
    let device = Loop::new(image(1 << 20), 512, &[]);
    let source = Source::open(device.path(), SourceOptions::default()).unwrap();
    let name = device.path().file_name().unwrap().to_string_lossy();
    assert_eq!(source.default_volume_name().unwrap().as_str(), name);
}

#[test]
fn a_mounted_source_says_where() {
    if !is_root() {
        return;
    }
    let device = Loop::new(image(32 << 20), 512, &[]);
    run("mkfs.ext4", &["-q"], device.path());
    let dir = tempfile::tempdir().unwrap();
    let mounted = |path: &Path| {
        Source::open(path, SourceOptions::default()).unwrap().mounted_read_write().unwrap()
    };
    assert_eq!(mounted(device.path()), None);
    for (options, want) in [("rw", Some(dir.path())), ("ro,noload", None)] {
        let _mount = machine::Mount::new(device.path(), dir.path(), options);
        assert_eq!(mounted(device.path()).as_deref(), want);
        assert_eq!(mounted(device.image()).as_deref(), want, "through its image, too");
    }
}
