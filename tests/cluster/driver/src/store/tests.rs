//! The store on a real XFS, through real loop devices. Needs root.

use super::*;
use crate::extents::{allocated, delta, of_file};
use crate::{loops, mounts};
use proptest::test_runner::{RngAlgorithm, TestRng};
use rustix::fs::{FallocateFlags, fallocate};
use std::io::Write;
use std::os::unix::fs::FileExt;

const MIB: u64 = 1 << 20;

/// A store in a folder of its own; gone when dropped, on a panic too.
struct Place {
    folder: tempfile::TempDir,
    store: Store,
}

impl Place {
    /// `None`, said past the harness' capture, if this is not possible here.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            writeln!(std::io::stderr(), "SKIP: loop devices and mounts need root").expect("stderr");
            return None;
        }
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let store = Store::open(folder.path(), 2048 * MIB).expect("a store");
        Some(Self { folder, store })
    }

    fn read(&self, data: &Path, bytes: u64) -> Vec<u8> {
        let content = fs::read(data).expect("the data");
        assert_eq!(content.len() as u64, bytes);
        content
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let volumes: Vec<_> = self.store.volumes.all().map(|volume| volume.id.clone()).collect();
        let folder = self.folder.path().canonicalize().expect("the folder");
        drop(mounts::unmount(&folder.join("seen")));
        for id in &volumes {
            drop(loops::detach(&self.store.volumes.data(id)));
        }
        drop(mounts::unmount(&folder.join("store")));
        drop(loops::detach(&folder.join("store.img")));
    }
}

/// Writes, or gives back, a few random ranges of a device; `model` has what it holds then.
fn change(device: &File, model: &mut [u8], rng: &mut TestRng) {
    use proptest::prelude::Rng;
    let size = model.len() as u64;
    for _ in 0..24 {
        // Anything from a part of a sector to some blocks, at any place.
        let start = u64::from(rng.next_u32()) % size;
        let bytes = (u64::from(rng.next_u32()) % 40_000 + 1).min(size - start);
        if rng.next_u32().is_multiple_of(4) {
            let (first, last) = (start.next_multiple_of(4096), (start + bytes) / 4096 * 4096);
            if first < last {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(device, flags, first, last - first).expect("a hole");
                model[to_usize(first)..to_usize(last)].fill(0);
            }
        } else {
            let part = &mut model[to_usize(start)..to_usize(start + bytes)];
            rng.fill_bytes(part);
            device.write_all_at(part, start).expect("a write");
        }
    }
}

/// `MOVER_TEST_SEED`, or one of its own, which a failure shows.
fn rng() -> TestRng {
    let set = std::env::var_os("MOVER_TEST_SEED").and_then(|seed| seed.to_str()?.parse().ok());
    let seed: u64 = set.unwrap_or_else(|| getrandom::u64().expect("random bytes"));
    println!("MOVER_TEST_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("a small volume")
}

/// Plain writes to a device, snapshots between them: each snapshot has all writes before it, and
/// each pair of snapshots differs only where its delta says so.
#[test]
fn snapshots_and_deltas_are_right_on_a_real_store() {
    let Some(mut place) = Place::new() else { return };
    let size = 16 * MIB;
    let mut rng = rng();
    let volume = place.store.make_volume("v", size, None).expect("a volume");
    let data = place.store.volumes.data(&volume.id);
    let path = loops::attach(&data, false).expect("a device");
    let device = File::options().read(true).write(true).open(path).expect("the device");
    let mut model = vec![0; to_usize(size)];
    let mut taken = Vec::new();
    for round in 0..12 {
        let snapshot = place.store.make_snapshot(&format!("s{round}"), &volume.id);
        let data = place.store.snapshots.data(&snapshot.expect("a snapshot").id);
        let content = place.read(&data, size);
        assert!(content == model, "snapshot {round} is not what was written");
        let extents = of_file(&File::open(&data).expect("the data")).expect("extents");
        taken.push((content, extents));
        change(&device, &mut model, &mut rng);
    }
    let mut named = 0;
    for (older, (base, old)) in taken.iter().enumerate() {
        let mut covered = vec![false; base.len()];
        for range in allocated(old, size) {
            covered[to_usize(range.start)..to_usize(range.start + range.bytes)].fill(true);
        }
        assert!(base.iter().zip(&covered).all(|(byte, covered)| *covered || *byte == 0));
        for (target, new) in &taken[older..] {
            let mut changed = vec![false; base.len()];
            for range in delta(old, new, size) {
                changed[to_usize(range.start)..to_usize(range.start + range.bytes)].fill(true);
                named += range.bytes;
            }
            let differs = base.iter().zip(target).zip(&changed).find(|((a, b), c)| a != b && !**c);
            assert!(differs.is_none(), "a byte differs that the delta of {older} does not name");
        }
        assert!(delta(old, old, size).is_empty());
    }
    // A list that names everything would be right, and of no use.
    assert!(named > 0 && named < size * 66 / 2, "{named} bytes were named");
}

/// A copy has the bytes of its origin, and neither sees later writes to the other.
#[test]
fn copies_are_apart_and_a_new_start_finds_them() {
    let Some(mut place) = Place::new() else { return };
    let first = place.store.make_volume("a", MIB, None).expect("a volume");
    let write = |store: &Store, id: &str, byte: u8| {
        fs::write(store.volumes.data(id), vec![byte; to_usize(MIB)]).expect("a write");
    };
    write(&place.store, &first.id, 1);
    let snapshot = place.store.make_snapshot("s", &first.id).expect("a snapshot");
    let clone = Some(Origin::Volume(first.id.clone()));
    let clone = place.store.make_volume("b", MIB, clone).expect("a clone");
    let larger = Some(Origin::Snapshot(snapshot.id.clone()));
    let larger = place.store.make_volume("c", 2 * MIB, larger).expect("a copy");
    write(&place.store, &first.id, 2);
    write(&place.store, &clone.id, 3);
    let bytes = |store: &Store, id: &str| fs::read(store.volumes.data(id)).expect("the data");
    let half = to_usize(MIB);
    assert!(bytes(&place.store, &first.id) == vec![2; half]);
    assert!(bytes(&place.store, &clone.id) == vec![3; half]);
    assert!(bytes(&place.store, &larger.id) == [vec![1; half], vec![0; half]].concat());

    // Killed after the copies of a group, before its record: they are of nobody.
    let mut lost = snapshot.clone();
    lost.id = "snap-lost".to_owned();
    lost.group = Some("group-lost".to_owned());
    place.store.snapshots.put(lost).expect("a record");
    fs::write(place.store.volumes.data("vol-lost"), "data").expect("a file");
    let again = Store::open(place.folder.path(), 0).expect("the store again");
    assert_eq!(again.volumes.all().count(), 3);
    assert_eq!(again.snapshots.all().map(|s| s.id.clone()).collect::<Vec<_>>(), [snapshot.id]);
    assert!(!again.volumes.data("vol-lost").exists());
}

/// A second device over a file would have a cache of its own: it does not come while the first one
/// is held, even if that one was taken away already.
#[test]
fn a_file_never_has_two_devices() {
    let Some(mut place) = Place::new() else { return };
    let volume = place.store.make_volume("v", MIB, None).expect("a volume");
    let data = place.store.volumes.data(&volume.id);
    let path = loops::attach(&data, false).expect("a device");
    assert_eq!(loops::attach(&data, false).expect("the device again"), path);
    let held = File::open(&path).expect("the device");
    let held_by_somebody = |result: Result<(), Status>| {
        assert_eq!(result.expect_err("it is held").code(), tonic::Code::Aborted);
    };
    held_by_somebody(loops::detach(&data));
    held_by_somebody(loops::attach(&data, false).map(drop));
    held_by_somebody(loops::detach(&data));
    drop(held);
    loops::detach(&data).expect("it is gone");
    loops::attach(&data, false).expect("a device");
}

/// The kernel keeps that mark for the next file of the device, which is anybody's.
#[test]
fn a_device_goes_back_writable() {
    let Some(mut place) = Place::new() else { return };
    let volume = place.store.make_volume("v", MIB, None).expect("a volume");
    let data = place.store.volumes.data(&volume.id);
    let path = loops::attach(&data, true).expect("a device");
    let marked = Path::new("/sys/block").join(path.file_name().expect("a name")).join("ro");
    let is_marked = || fs::read_to_string(&marked).expect("the mark").trim() == "1";
    assert!(is_marked());
    // As long as it is held nobody else gets it.
    let _held = File::open(&path).expect("the device");
    loops::detach(&data).expect_err("it is held");
    assert!(!is_marked());
}

#[test]
fn a_device_for_reading_takes_no_writes_until_it_is_for_writing() {
    let Some(mut place) = Place::new() else { return };
    let volume = place.store.make_volume("v", MIB, None).expect("a volume");
    let data = place.store.volumes.data(&volume.id);
    let path = loops::attach(&data, true).expect("a device");
    let write = || {
        let device = File::options().write(true).open(&path)?;
        device.write_all_at(&[7; 4096], 0)?;
        device.sync_all()
    };
    write().expect_err("it is for reading");
    assert!(place.read(&data, MIB).iter().all(|byte| *byte == 0));
    assert_eq!(loops::attach(&data, false).expect("the same device"), path);
    write().expect("a write");
    assert!(!place.store.is_blank(&volume).expect("extents"));
}

/// What was synced before a snapshot is seen in a copy of it that is mounted for reading only: its
/// journal is replayed, as after a crash.
#[test]
fn a_copy_for_reading_is_what_a_crash_would_leave() {
    let Some(mut place) = Place::new() else { return };
    let seen = place.folder.path().canonicalize().expect("the folder").join("seen");
    fs::create_dir(&seen).expect("a folder");
    for filesystem in mounts::FILESYSTEMS {
        let plan = |read_only| mounts::Plan { filesystem, flags: &[], read_only };
        let volume = place.store.make_volume(filesystem, 320 * MIB, None).expect("a volume");
        assert!(place.store.is_blank(&volume).expect("extents"));
        let device = loops::attach(&place.store.volumes.data(&volume.id), false).expect("a device");
        mounts::check(&device, filesystem).expect_err("nothing is on it");
        mounts::make(&device, filesystem).expect("a filesystem");
        mounts::mount(&device, &seen, &plan(false)).expect("a mount");
        assert!(mounts::shows(&seen, loops::number(&device).expect("its number")).expect("a look"));
        let mut file = File::create(seen.join("file")).expect("a file");
        file.write_all(b"synced").expect("a write");
        file.sync_all().expect("on the device");
        drop(file);
        let snapshot = place.store.make_snapshot(filesystem, &volume.id).expect("a snapshot");
        mounts::unmount(&seen).expect("unmounted");
        let origin = Some(Origin::Snapshot(snapshot.id));
        let copy = place.store.make_volume(&format!("{filesystem}-2"), 320 * MIB, origin);
        let copy = copy.expect("a copy");
        assert!(!place.store.is_blank(&copy).expect("extents"));
        let device = loops::attach(&place.store.volumes.data(&copy.id), false).expect("a device");
        mounts::check(&device, filesystem).expect("it is there");
        mounts::mount(&device, &seen, &plan(true)).expect("a mount");
        assert_eq!(fs::read(seen.join("file")).expect("the file"), b"synced");
        File::create(seen.join("new")).expect_err("it is for reading");
        mounts::unmount(&seen).expect("unmounted");
    }
}
