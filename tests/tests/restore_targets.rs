//! Restores onto real devices: sectors of 512 and 4096 bytes, odd volumes, dirty and larger
//! targets, every engine, targets that fail half way, and a volume far larger than its data.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use chunkstore::{
    BackupId, ChunkSize, Compression, Encryption, ErrorKind, InitOptions, KdfCost, Repository,
    Store, VolumeName, format::SnapshotInfo,
};
use mover_changes::ChangeRequest;
use mover_engine::ops::backup::{AuditAmount, BackupOptions, ParentChoice, backup};
use mover_engine::ops::restore::{RestoreOptions, RestoreSummary, RestoreTarget, restore};
use mover_engine::ops::verify::{VerifyOptions, verify};
use mover_engine::run::quota::Quota;
use mover_engine::run::{Cancel, MemoryBudget, Progress};
use mover_engine::volume::device::DirectIo;
use mover_engine::volume::io::EngineChoice;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tests::{LoopDevice, Rng, require_root, run_ok, volume_dir, work_dir};
use tokio::runtime::Runtime;

const MIB: u64 = 1 << 20;
const ENGINES: [EngineChoice; 3] =
    [EngineChoice::Uring, EngineChoice::UringPlain, EngineChoice::Blocking];

struct Place {
    rt: Runtime,
    repo: Arc<Repository>,
}

impl Place {
    fn new() -> Self {
        let rt = Runtime::new().unwrap();
        let options = InitOptions {
            chunk: ChunkSize::new(64 << 10).unwrap(),
            entry_chunks: 16,
            page_fanout: 128,
            encryption: Encryption::None,
            credential: None,
            label: String::new(),
            kdf: KdfCost::default(),
            created_by: "test".into(),
        };
        let store = Store::new(Arc::new(InMemory::new()), Key::default(), "memory:");
        let repo = rt.block_on(Repository::init(store, options)).unwrap();
        Self { rt, repo }
    }

    fn backup(&self, source: &Path, id: &str) {
        let options = BackupOptions {
            source: source.into(),
            volume: Some(VolumeName::new("vol").unwrap()),
            backup_id: Some(BackupId::new(id).unwrap()),
            changes: ChangeRequest::default(),
            parent: ParentChoice::None,
            base_snapshot: None,
            snapshot: SnapshotInfo::default(),
            volume_changed: false,
            compression: Compression::Zstd(1).into(),
            labels: BTreeMap::new(),
            attachments: Vec::new(),
            memory: MemoryBudget { total_bytes: 256 * MIB },
            engine: EngineChoice::Auto,
            direct: DirectIo::Auto,
            scratch: None,
            temporary: None,
            threads: None,
            checkpoint_bytes: None,
            limit_read: None,
            quota: Quota::default(),
            audit: AuditAmount::OFF,
            tool: "test".into(),
            host: "test".into(),
        };
        backup(self.rt.handle(), &self.repo, &options, &Progress::new(), &Cancel::new()).unwrap();
    }

    fn restore(&self, options: RestoreOptions) -> chunkstore::Result<RestoreSummary> {
        restore(self.rt.handle(), &self.repo, options, &Progress::new(), &Cancel::new())
    }
}

fn onto(target: &Path) -> RestoreOptions {
    RestoreOptions {
        backup: "one".into(),
        target: RestoreTarget::Path(target.into()),
        force: true,
        differential: false,
        verify: true,
        skip_damaged: false,
        range: None,
        lease: None,
        memory: MemoryBudget { total_bytes: 128 * MIB },
        engine: EngineChoice::Auto,
        direct: DirectIo::Auto,
        threads: None,
        source_paths_to_refuse: Vec::new(),
        journal_to_remove: None,
    }
}

/// An image with data, zeros and holes.
fn image(dir: &Path, size_bytes: u64) -> PathBuf {
    let mut rng = Rng::new(7);
    let path = dir.join("source.img");
    let file = File::create(&path).unwrap();
    file.set_len(size_bytes).unwrap();
    let mut at = 0;
    while at < size_bytes {
        let len = (1 + rng.below(300_000)).min(size_bytes - at);
        if rng.once_in(2) {
            let mut bytes = rng.bytes(usize::try_from(len).unwrap());
            let half = bytes.len() / 2;
            bytes[half..].fill(b'a');
            file.write_all_at(&bytes, at).unwrap();
        }
        at += len + rng.below(400_000);
    }
    path
}

fn dirty(dir: &Path, size_bytes: u64) -> PathBuf {
    let path = dir.join("target.img");
    fs::write(&path, vec![0xd1; usize::try_from(size_bytes).unwrap()]).unwrap();
    path
}

#[test]
fn devices_of_both_sector_sizes_and_every_engine() {
    require_root!();
    let place = Place::new();
    let dir = volume_dir("restore-sectors");
    let size = 21 * MIB + 512;
    let source = image(dir.path(), size);
    place.backup(&source, "one");
    let expected = fs::read(&source).unwrap();
    for sector in [512, 4096] {
        for engine in ENGINES {
            let backing = dirty(dir.path(), 24 * MIB);
            let device = LoopDevice::attach_with_sectors(&backing, sector);
            let summary = place.restore(RestoreOptions { engine, ..onto(device.path()) }).unwrap();
            assert_eq!(summary.direct, Some(true));
            assert!(summary.verified.is_some_and(|v| v.direct && v.read_bytes == size));
            let mut whole = vec![0; usize::try_from(24 * MIB).unwrap()];
            File::open(device.path()).unwrap().read_exact_at(&mut whole, 0).unwrap();
            assert!(whole[..expected.len()] == expected, "{sector} {engine}");
            assert!(whole[expected.len()..].iter().all(|b| *b == 0xd1), "{sector} {engine}");
            // a piece of it, with edges that are not aligned to anything, on other bytes
            let range = 1_000_001..9_999_999_usize;
            fs::write(&backing, vec![0xe2; whole.len()]).unwrap();
            run_ok("blockdev", ["--flushbufs", device.path().to_str().unwrap()]);
            let piece = Some(range.start as u64..range.end as u64);
            place.restore(RestoreOptions { engine, range: piece, ..onto(device.path()) }).unwrap();
            File::open(device.path()).unwrap().read_exact_at(&mut whole, 0).unwrap();
            assert!(whole[range.clone()] == expected[range.clone()], "{sector} {engine}");
            let rest = whole[..range.start].iter().chain(&whole[range.end..]);
            assert!(rest.into_iter().all(|b| *b == 0xe2), "{sector} {engine}");
        }
    }
}

/// What differs lies anywhere, also in what is zero in the backup, and behind the last whole chunk. A
/// reader above has old bytes of it in its cache.
#[test]
fn a_device_that_is_compared_first_gets_what_differs() {
    require_root!();
    let place = Place::new();
    let dir = volume_dir("restore-differential");
    let size = 21 * MIB + 512;
    let source = image(dir.path(), size);
    place.backup(&source, "one");
    let expected = fs::read(&source).unwrap();
    let mut rng = Rng::new(11);
    for sector in [512, 4096] {
        for engine in ENGINES {
            let mut there = expected.clone();
            there.resize(usize::try_from(24 * MIB).unwrap(), 0xd1);
            let mut chunks = std::collections::BTreeSet::new();
            for _ in 0..20 {
                let at = usize::try_from(rng.below(size)).unwrap();
                there[at] ^= 0x11;
                chunks.insert(at / (64 << 10));
            }
            let backing = dir.path().join("target.img");
            fs::write(&backing, &there).unwrap();
            let device = LoopDevice::attach_with_sectors(&backing, sector);
            let options = RestoreOptions { engine, differential: true, ..onto(device.path()) };
            let summary = place.restore(options.clone()).unwrap();
            let wrote = summary.data_bytes + summary.zero_bytes;
            assert!(wrote <= chunks.len() as u64 * (64 << 10), "{sector} {engine}: {wrote}");
            assert_eq!(summary.same_bytes, Some(size - wrote));
            let mut whole = vec![0; there.len()];
            File::open(device.path()).unwrap().read_exact_at(&mut whole, 0).unwrap();
            assert!(whole[..expected.len()] == expected, "{sector} {engine}");
            assert!(whole[expected.len()..].iter().all(|b| *b == 0xd1), "{sector} {engine}");
            let again = place.restore(options).unwrap();
            assert_eq!((again.data_bytes, again.zero_bytes, again.reads), (0, 0, 0));
        }
    }
}

#[test]
fn a_device_is_thin_again() {
    require_root!();
    let place = Place::new();
    let dir = volume_dir("restore-thin");
    let source = dir.path().join("source.img");
    let file = File::create(&source).unwrap();
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&vec![9; 300_000], 10 * MIB).unwrap();
    place.backup(&source, "one");
    let backing = dirty(dir.path(), 64 * MIB);
    let device = LoopDevice::attach(&backing);
    place.restore(onto(device.path())).unwrap();
    use std::os::unix::fs::MetadataExt;
    let allocated = fs::metadata(&backing).unwrap().blocks() * 512;
    assert!(allocated < 2 * MIB, "{allocated} bytes are allocated");
    assert!(fs::read(&backing).unwrap() == fs::read(&source).unwrap());
}

#[test]
fn a_device_that_fails_half_way_is_named() {
    require_root!();
    let place = Place::new();
    let dir = work_dir("restore-full");
    let size = 24 * MIB;
    let source = dir.path().join("source.img");
    let mut rng = Rng::new(3);
    fs::write(&source, rng.bytes(usize::try_from(size).unwrap())).unwrap();
    place.backup(&source, "one");
    // a file system of 8 MiB, as a file's and as a loop device's ground
    let mount = dir.path().join("small");
    fs::create_dir(&mount).unwrap();
    run_ok("mount", ["-t", "tmpfs", "-o", "size=8m", "tmpfs", mount.to_str().unwrap()]);
    let unmount = OnDrop(mount.clone());
    let target = mount.join("new.img");
    let error = place.restore(onto(&target)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let text = error.to_string();
    assert!(text.contains("new.img is incomplete") && text.contains("offset"), "{text}");
    fs::remove_file(&target).unwrap();

    let backing = mount.join("backing.img");
    File::create(&backing).unwrap().set_len(size).unwrap();
    let device = LoopDevice::attach(&backing);
    for engine in ENGINES {
        let begun = Instant::now();
        let error = place.restore(RestoreOptions { engine, ..onto(device.path()) }).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Device | ErrorKind::NoSpace), "{error}");
        assert!(error.to_string().contains(device.path().to_str().unwrap()), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    drop(device);
    drop(unmount);
}

/// Unmounts.
struct OnDrop(PathBuf);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _ = tests::run("umount", [self.0.as_os_str()]);
    }
}

#[test]
fn a_volume_far_larger_than_its_data() {
    let place = Place::new();
    // a file system that takes such files
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = dir.path().join("source.img");
    let size = 64 << 40;
    let file = File::create(&source).unwrap();
    file.set_len(size).unwrap();
    for at in [0, 3 << 40, size - 100] {
        file.write_all_at(&[5; 100], at).unwrap();
    }
    place.backup(&source, "one");
    let begun = Instant::now();
    let target = dir.path().join("target.img");
    let summary = place.restore(onto(&target)).unwrap();
    assert!(summary.data_bytes <= 3 * (64 << 10) && summary.reads <= 3);
    assert_eq!(summary.verified.unwrap().hole_bytes, size - summary.data_bytes);
    let options = VerifyOptions {
        backup: "one".into(),
        device: Some(source),
        lease: None,
        memory: MemoryBudget { total_bytes: 128 * MIB },
        engine: EngineChoice::Auto,
        direct: DirectIo::Auto,
        threads: None,
    };
    let compare =
        |options| verify(place.rt.handle(), &place.repo, options, &Progress::new(), &Cancel::new());
    compare(options.clone()).unwrap();
    compare(VerifyOptions { device: Some(target.clone()), ..options.clone() }).unwrap();
    compare(VerifyOptions { device: None, ..options.clone() }).unwrap();
    let found = File::options().write(true).open(&target).unwrap();
    found.write_all_at(&[1], 7 << 40).unwrap();
    let error = compare(VerifyOptions { device: Some(target.clone()), ..options }).unwrap_err();
    assert!(error.to_string().contains("offset 7696581394432 +65536"), "{error}");
    // a dirty target of that size: what is behind the data is deallocated
    found.write_all_at(&[1], size - 200_000).unwrap();
    place.restore(onto(&target)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}
