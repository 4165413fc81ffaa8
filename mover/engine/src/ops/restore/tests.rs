mod damaged;
mod differential;
mod model;
mod salvage;

use super::testkit::{Image, Kit, Shape};
use super::*;
use crate::live::JournalTerms;
use crate::run::MemoryBudget;
use crate::volume::device::DirectIo;
use crate::volume::io::EngineChoice;
use chunkstore::LeaseOptions;
use std::fs;
use std::os::unix::fs::MetadataExt;

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn options(backup: &str, target: &Path) -> RestoreOptions {
    RestoreOptions {
        backup: backup.into(),
        target: RestoreTarget::Path(target.into()),
        force: true,
        differential: false,
        verify: true,
        skip_damaged: false,
        range: None,
        lease: None,
        memory: MemoryBudget { total_bytes: 64 * MIB },
        engine: EngineChoice::Auto,
        direct: DirectIo::Auto,
        threads: Some(3),
        source_paths_to_refuse: Vec::new(),
        journal_to_remove: None,
    }
}

pub(super) fn run(kit: &Kit, options: RestoreOptions) -> Result<RestoreSummary> {
    restore(kit.rt.handle(), &kit.repo, options, &Progress::new(), &Cancel::new())
}

pub(super) fn run_out(
    kit: &Kit,
    options: &RestoreOptions,
    out: &mut (dyn Write + Send),
) -> Result<RestoreSummary> {
    let (progress, cancel) = (Progress::new(), Cancel::new());
    let run = RunContext { rt: kit.rt.handle(), cancel: &cancel, progress: &progress };
    let found = find(run, &kit.repo, &options.backup)?;
    restore_to(run, &kit.repo, options, found, To::Output(out))
}

/// 1000 chunks and a bit, some stored, some of them equal.
pub(super) fn some_image(kit: &Kit) -> Image {
    let mut image = kit.image(1000 * 4096 + 513);
    for chunk in (0..1001).filter(|c| c % 7 < 4 && c / 100 != 3) {
        image.set(chunk, chunk / 2 % 300);
    }
    image
}

#[test]
fn a_new_file_is_sparse_and_equal() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    let summary = run(&kit, options("one", &target)).unwrap();
    assert_eq!(fs::read(&target).unwrap(), image.bytes());
    assert!(summary.created && summary.verified.is_some());
    let data_bytes: u64 = image.chunks.values().map(|c| c.len() as u64).sum();
    assert_eq!(summary.data_bytes, data_bytes);
    assert_eq!(summary.data_bytes + summary.zero_bytes, image.size_bytes);
    assert!(fs::metadata(&target).unwrap().blocks() * 512 < image.size_bytes);
    let sum: u64 = summary.limits.iter().map(|l| l.bytes).sum();
    assert!(sum <= 64 * MIB);
}

#[test]
fn reading_back_is_a_part_with_its_own_bytes() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    for (verify, parts) in [(true, 2), (false, 1)] {
        let progress = Progress::new();
        let options = RestoreOptions { verify, ..options("one", &target) };
        restore(kit.rt.handle(), &kit.repo, options, &progress, &Cancel::new()).unwrap();
        assert_eq!((progress.parts.get(), progress.parts_done.get()), (parts, parts - 1));
        let (done, total) = (progress.done_bytes.get(), progress.total_bytes.get());
        assert_eq!((done, total), (image.size_bytes, image.size_bytes), "{verify}");
    }
}

#[test]
fn a_dirty_larger_file_keeps_its_tail_only() {
    let kit = Kit::new(Shape { encryption: chunkstore::Encryption::Aes256Gcm, ..Shape::default() });
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    for (engine, direct) in [
        (EngineChoice::Auto, DirectIo::Auto),
        (EngineChoice::Blocking, DirectIo::Auto),
        (EngineChoice::Blocking, DirectIo::Never),
    ] {
        let target = dir.path().join("dirty.img");
        let dirty = vec![0xa5; usize::try_from(image.size_bytes).unwrap() + 9999];
        fs::write(&target, &dirty).unwrap();
        let options = RestoreOptions { engine, direct, ..options("one", &target) };
        let summary = run(&kit, options).unwrap();
        let mut expected = image.bytes();
        expected.extend_from_slice(&dirty[expected.len()..]);
        assert!(fs::read(&target).unwrap() == expected, "{engine:?} {direct:?}");
        assert_eq!(summary.target_bytes, Some(dirty.len() as u64));
    }
}

#[test]
fn an_empty_backup_zeroes_everything() {
    let kit = Kit::new(Shape::default());
    let image = kit.image(300_001);
    kit.backup("vol", "zero", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("dirty.img");
    fs::write(&target, vec![1; 300_001]).unwrap();
    run(&kit, options("zero", &target)).unwrap();
    assert_eq!(fs::read(&target).unwrap(), vec![0; 300_001]);
    let mut out = Vec::new();
    run_out(&kit, &options("zero", &target), &mut out).unwrap();
    assert_eq!(out, vec![0; 300_001]);
}

#[test]
fn requests_are_merged_and_no_segment_is_read() {
    let kit = Kit::new(Shape { pack_bytes: 4 << 20, ..Shape::default() });
    let image = some_image(&kit);
    let manifest = kit.backup("vol", "one", &image);
    assert!(!kit.keys_of("dedup").is_empty());
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    let options = RestoreOptions { verify: false, ..options("vol@one", &target) };
    let summary = run(&kit, options).unwrap();
    let log = kit.store.take();
    assert!(log.iter().all(|(_, key)| !key.starts_with("dedup")), "{log:?}");
    assert!(log.iter().all(|(what, _)| *what != "put"), "no lease was asked for: {log:?}");
    let packs = log.iter().filter(|(_, key)| key.starts_with("packs/")).count();
    // 62 leaves under 4 pages and a root: each level is read once for the path to the first chunk,
    // before the target is opened, and once for all the rest; and all data is in one pack
    assert_eq!(manifest.map.depth, 3);
    assert!(packs <= 3 + 2 + 1, "{log:?}");
    assert_eq!(summary.reads, 1);
}

#[test]
fn a_lease_is_taken_and_given_back() {
    let kit = Kit::new(Shape::default());
    kit.backup("vol", "one", &some_image(&kit));
    let dir = tempfile::tempdir().unwrap();
    let lease = LeaseOptions { lease_seconds: 60, tool: "test".into(), host: "here".into() };
    let options =
        RestoreOptions { lease: Some(lease), ..options("one", &dir.path().join("new.img")) };
    run(&kit, options).unwrap();
    let log = kit.store.take();
    let first = log.iter().position(|(what, key)| *what == "put" && key.starts_with("leases/"));
    let pack = log.iter().position(|(_, key)| key.starts_with("packs/"));
    assert!(first.unwrap() < pack.unwrap());
    assert!(kit.keys_of("leases").is_empty());
}

#[test]
fn ranges_touch_nothing_else() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let whole = image.bytes();
    let size = image.size_bytes;
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("dirty.img");
    for range in [
        0..size,
        0..1,
        size - 1..size,
        5..4096,
        4096..8192,
        4000..4200,
        1234..3_000_001,
        1_228_799..1_228_801,
    ] {
        let dirty = vec![0x5a; whole.len() + 77];
        fs::write(&target, &dirty).unwrap();
        let options = RestoreOptions { range: Some(range.clone()), ..options("one", &target) };
        run(&kit, options.clone()).unwrap();
        let at = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
        let mut expected = dirty;
        expected[at.clone()].copy_from_slice(&whole[at.clone()]);
        assert!(fs::read(&target).unwrap() == expected, "{range:?}");
        let mut out = Vec::new();
        run_out(&kit, &options, &mut out).unwrap();
        assert!(out == whole[at], "{range:?}");
    }
    for (start, end) in [(0, 0), (5, 4), (0, size + 1), (size, size + 1)] {
        let range = start..end;
        let error = run(&kit, RestoreOptions { range: Some(range), ..options("one", &target) });
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Usage);
    }
}

/// Fails after some bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let taken = buf.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_output_that_fails_ends_the_run() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    for after in [0, 1, 5000, 1_000_000, 4_000_000] {
        let options = options("one", Path::new("-"));
        let error = run_out(&kit, &options, &mut Full(after)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        assert!(error.to_string().contains("standard output"), "{error}");
    }
}

#[test]
fn a_store_that_fails_at_any_read_ends_the_run() {
    let kit = Kit::new(Shape { pack_bytes: 30_000, ..Shape::default() });
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new.img");
    let memory = Limits::least(kit.repo.params());
    for reads in (0..1000).step_by(3) {
        kit.store.fail_after(Some(reads));
        let result = run(&kit, RestoreOptions { memory, ..options("one", &target) });
        let mut out = Vec::new();
        let options = RestoreOptions { memory, ..options("one", &target) };
        kit.store.fail_after(Some(reads));
        let result_out = run_out(&kit, &options, &mut out);
        assert!(image.bytes().starts_with(&out));
        match (result, result_out) {
            (Ok(_), Ok(_)) => {
                assert!(reads > 30 && fs::read(&target).unwrap() == image.bytes());
                return;
            }
            (a, b) => {
                for e in [a.err(), b.err()].into_iter().flatten() {
                    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
                }
            }
        }
    }
    panic!("a thousand reads are enough");
}

#[test]
fn a_request_to_stop_ends_the_run() {
    let kit = Kit::new(Shape::default());
    kit.backup("vol", "one", &some_image(&kit));
    let dir = tempfile::tempdir().unwrap();
    let cancel = Cancel::new();
    cancel.request();
    let target = dir.path().join("new.img");
    let options = options("one", &target);
    let error =
        restore(kit.rt.handle(), &kit.repo, options, &Progress::new(), &cancel).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(!target.exists());
}

#[test]
fn what_is_refused_changes_nothing() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("disk.img");
    let mut content = vec![7; 100_000];
    content[..4].copy_from_slice(b"XFSB");
    fs::write(&target, &content).unwrap();
    let no_force = RestoreOptions { force: false, ..options("one", &target) };
    assert_eq!(run(&kit, no_force).unwrap_err().kind(), ErrorKind::Usage);
    let own =
        RestoreOptions { source_paths_to_refuse: vec![target.clone()], ..options("one", &target) };
    assert_eq!(run(&kit, own).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(run(&kit, options("none", &target)).unwrap_err().kind(), ErrorKind::NotFound);
    let poor =
        RestoreOptions { memory: MemoryBudget { total_bytes: MIB }, ..options("one", &target) };
    assert_eq!(run(&kit, poor).unwrap_err().kind(), ErrorKind::Usage);
    assert_eq!(fs::read(&target).unwrap(), content);
}

/// Whoever went on with it would take what it says for the new content.
#[test]
fn a_journal_of_a_live_restore_goes_before_the_first_byte_is_written() {
    let kit = Kit::new(Shape::default());
    let image = some_image(&kit);
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let (target, journal) = (dir.path().join("disk.img"), dir.path().join("disk.img.journal"));
    let before = vec![7; image.bytes().len()];
    fs::write(&target, &before).unwrap();
    let terms = JournalTerms {
        chunk_bytes: 4096,
        size_bytes: image.size_bytes,
        token: [1; 16],
        identity: Vec::new(),
    };
    let (open, _) = JournalFile::create(&journal, terms).unwrap();
    let wanted =
        || RestoreOptions { journal_to_remove: Some(journal.clone()), ..options("one", &target) };
    let e = run(&kit, wanted()).unwrap_err();
    assert!(e.to_string().contains("another process has it open"), "{e}");
    assert!(fs::read(&target).unwrap() == before);
    drop(open);
    // nor is it given up for a restore that does not begin
    let none = RestoreOptions { backup: "none".into(), ..wanted() };
    assert_eq!(run(&kit, none).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(journal.exists());
    run(&kit, wanted()).unwrap();
    assert!(!journal.exists());
    assert_eq!(fs::read(&target).unwrap(), image.bytes());
}

/// A large file takes longer to look through than a run may stand still: each chunk is movement,
/// and it stops at the first that is somebody else's.
#[test]
fn each_chunk_of_an_existing_file_that_is_looked_at_is_movement() {
    let kit = Kit::new(Shape::default());
    let mut image = kit.image(1000 * 4096 + 513);
    let chunks = image.geometry().chunks();
    (0..chunks).for_each(|chunk| image.set(chunk, chunk + 1));
    kit.backup("vol", "one", &image);
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("there.img");
    let looked_at = |there: &[u8]| {
        fs::write(&target, there).unwrap();
        let options = RestoreOptions { force: false, ..options("one", &target) };
        let progress = Progress::new();
        let done = restore(kit.rt.handle(), &kit.repo, options, &progress, &Cancel::new());
        (done.map_err(|e| e.kind()).err(), progress.movement())
    };
    let ours = image.bytes();
    let (error, all) = looked_at(&ours);
    assert!(error.is_none() && all > chunks, "{error:?} {all}");
    // beside the chunks there is as much movement before each of these errors
    let mut beside = None;
    for (chunk, at) in [(0, 7), (400, 400 * 4096), (1000, ours.len() - 1)] {
        let mut theirs = ours.clone();
        theirs[at] ^= 1;
        let (error, movement) = looked_at(&theirs);
        assert_eq!(error, Some(ErrorKind::Usage), "chunk {chunk}");
        assert_eq!(movement, *beside.get_or_insert(movement) + chunk, "chunk {chunk}");
    }
}
