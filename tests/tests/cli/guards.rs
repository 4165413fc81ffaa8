//! Targets that a restore must not take: parts of the repository, by whatever way they are reached,
//! and files that hold somebody's data.

use super::{IMAGE_BYTES, Stage, expect_error, p, tree};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tests::{LoopDevice, Mount, run_ok};

fn onto(target: &Path) -> [PathBuf; 3] {
    [p("restore"), p("v@latest"), target.to_owned()]
}

fn forced(target: &Path) -> impl Iterator<Item = PathBuf> {
    onto(target).into_iter().chain([p("--force")])
}

/// A mount of a directory at another place; unmounted when dropped.
fn bind(from: &Path, at: &Path) -> Mount {
    Mount::new(from, at, "none", "bind")
}

#[test]
fn the_repository_is_no_target_by_whatever_way_it_is_reached() {
    tests::require_root!();
    let stage = Stage::new("ways-in");
    let before = tree(&stage.repository());
    let pack = stage.objects("packs").pop().expect("a pack");
    let name = |path: &Path| path.file_name().expect("a name").to_owned();
    let whole = bind(stage.directory.path(), &stage.path("whole"));
    let part = bind(pack.parent().expect("a directory"), &stage.path("part"));
    let (hard, soft) = (stage.path("hard"), stage.path("soft"));
    fs::hard_link(&pack, &hard).expect("link");
    std::os::unix::fs::symlink(&pack, &soft).expect("link");
    let device = LoopDevice::attach(&pack);
    let relative = pack.strip_prefix(stage.directory.path()).expect("it is below");
    for target in [
        pack.clone(),
        whole.path().join(relative),
        whole.path().join("repository/new"),
        part.path().join(name(&pack)),
        part.path().join("new"),
        hard.clone(),
        soft,
        device.path().to_owned(),
    ] {
        let error = expect_error(stage.mover.run(forced(&target)), 2, "in the repository");
        assert!(error.contains(&target.display().to_string()), "{error}");
    }
    // beside it everything is allowed
    for target in [stage.path("beside"), whole.path().join("also-beside")] {
        stage.mover.ok(onto(&target));
    }
    let other = stage.path("other");
    fs::hard_link(stage.path("beside"), &other).expect("link");
    stage.mover.ok(forced(&other));
    drop(device);
    fs::remove_file(hard).expect("remove the link");
    assert!(before == tree(&stage.repository()), "the repository was changed");
}

/// A prefix, or a directory in it, may be on another disk: a link, or a mount of what is seen
/// elsewhere, too.
#[test]
fn a_directory_that_is_elsewhere_is_no_target_there() {
    tests::require_root!();
    for (mounted, deeper) in [(false, false), (true, false), (false, true), (true, true)] {
        let stage = Stage::new("prefix-elsewhere");
        let pack = stage.objects("packs").pop().expect("a pack");
        let packs = match deeper {
            true => pack.parent().expect("a directory").to_owned(),
            false => stage.repository().join("packs"),
        };
        let big = stage.path("big");
        fs::rename(&packs, &big).expect("move the packs");
        let _bound = mounted.then(|| bind(&big, &packs));
        if !mounted {
            std::os::unix::fs::symlink(&big, &packs).expect("link");
        }
        let before = tree(&big);
        let pack = big.join(before.keys().next().expect("a pack"));
        let file = stage.path("one-file");
        File::create(&file).expect("make a file");
        run_ok("mount", ["--bind", &*pack.to_string_lossy(), &*file.to_string_lossy()]);
        let targets = [pack, big.join("new"), big.join("ab/new"), file.clone()];
        fs::create_dir_all(big.join("ab")).expect("make a directory");
        let errors = targets.map(|target| stage.mover.run(forced(&target)));
        run_ok("umount", [&file]);
        for error in errors {
            expect_error(error, 2, "in the repository");
        }
        stage.mover.ok(onto(&stage.path("beside")));
        assert!(before == tree(&big), "the packs were changed");
    }
}

#[test]
fn a_file_that_holds_anything_but_the_backup_asks_for_force() {
    let stage = Stage::new("foreign-file");
    let target = stage.path("target");
    let make = |bytes: &[u8]| fs::write(&target, bytes).expect("write the target");
    let refused = |at: usize| {
        let before = fs::read(&target).expect("read");
        let error = expect_error(stage.mover.run(onto(&target)), 2, "--force");
        assert!(error.contains(&format!("data at offset {at} ")), "{error}");
        assert!(fs::read(&target).expect("read") == before, "it was changed");
    };
    let image = fs::read(stage.image()).expect("read the image");
    // somebody's notes, at the end of what is blank otherwise
    let mut notes = vec![0; IMAGE_BYTES];
    notes[IMAGE_BYTES - 200..].fill(b'x');
    make(&notes);
    refused(5 * 65536);
    // the image, with one byte changed since
    let mut changed = image.clone();
    changed[3 * 65536 + 7] ^= 1;
    make(&changed);
    refused(3 * 65536);
    // the same at another place
    let mut moved = image.clone();
    moved.rotate_left(65536);
    make(&moved);
    refused(0);
    stage.mover.ok(forced(&target));

    // what a restore has left that was stopped half way, or has ended
    let mut half = image.clone();
    half[65536..3 * 65536].fill(0);
    for there in [vec![0; IMAGE_BYTES], half, image.clone()] {
        make(&there);
        stage.mover.ok(onto(&target));
        assert!(fs::read(&target).expect("read") == image);
    }
    let holes = File::create(&target).and_then(|f| f.set_len(IMAGE_BYTES as u64).map(|()| f));
    holes.expect("make a hole").write_all_at(&image[65536..131_072], 65536).expect("write");
    stage.mover.ok(onto(&target));
    assert!(fs::read(&target).expect("read") == image);
}

#[test]
fn a_file_behind_a_loop_device_asks_for_force_and_is_left_alone_while_that_is_in_use() {
    tests::require_root!();
    let stage = Stage::new("behind-a-loop-device");
    let target = stage.path("target");
    File::create(&target).and_then(|f| f.set_len(IMAGE_BYTES as u64)).expect("make the target");
    let device = LoopDevice::attach(&target);
    // open, and nothing says so
    let open = File::open(device.path()).expect("open the device");
    let error = expect_error(stage.mover.run(onto(&target)), 2, "is attached to it");
    assert!(error.contains(&device.path().display().to_string()), "{error}");
    assert!(error.contains("--force"), "{error}");
    drop(open);
    // claimed, as by a mount in another container
    let claim = rustix::fs::open(
        device.path(),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL,
        rustix::fs::Mode::empty(),
    );
    let claim = claim.expect("claim the device");
    let error = expect_error(stage.mover.run(forced(&target)), 2, "and in use");
    assert!(!error.contains("--force"), "{error}");
    drop(claim);
    assert!(fs::read(&target).expect("read").iter().all(|byte| *byte == 0), "it was changed");
    stage.mover.ok(forced(&target));
    drop(device);
    assert!(fs::read(&target).expect("read") == fs::read(stage.image()).expect("read"));
}

/// The metadata of controllers and of DRBD, at the end of a device.
#[test]
fn the_raid_of_a_controller_asks_for_force() {
    tests::require_root!();
    let stage = Stage::new("raid");
    let image = stage.path("disk");
    for (before_end, magic, what) in [
        (1024, &b"Intel Raid ISM Cfg Sig. 1.1.00"[..], "an Intel RAID"),
        (512, b"\xde\x11\xde\x11", "a DDF RAID"),
        (4096 - 60, b"\x83\x74\x02\x6d", "DRBD"),
    ] {
        let file = File::create(&image).expect("make a disk");
        file.set_len(8 << 20).expect("make a disk");
        file.write_all_at(magic, (8 << 20) - before_end).expect("write");
        let device = LoopDevice::attach(&image);
        let error = expect_error(stage.mover.run(onto(device.path())), 2, "--force");
        assert!(error.contains(what), "{error}");
        stage.mover.ok(forced(device.path()));
    }
}
