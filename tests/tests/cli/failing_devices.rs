//! Devices that fail while they are in use: one clear error with the documented exit code, nothing
//! committed, nothing left at work, and a run on a sound device goes well afterwards.

use super::{Stage, expect_error, p, random_bytes};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::{BadFile, Badness, LoopDevice, Mount, work_dir};

const MIB: u64 = 1 << 20;
const ENGINES: [&str; 3] = ["io_uring", "io_uring-plain", "blocking"];

/// The end of the backing file is cut off below a device that still has its full size: the kernel
/// answers EIO from there on.
#[test]
fn a_source_that_vanishes_half_way() {
    tests::require_root!();
    let stage = Stage::new("vanishing-source");
    let content = random_bytes(96 << 20);
    let image = stage.path("vanishing");
    for engine in ENGINES {
        fs::write(&image, &content).expect("write the image");
        let device = LoopDevice::attach(&image);
        let file = fs::File::options().write(true).open(&image).expect("open the image");
        file.set_len(48 * MIB).expect("cut it");
        let before = stage.objects("backups");
        let line = [
            p("backup"),
            device.path().to_owned(),
            p("--volume"),
            p("vanishing"),
            p("--engine"),
            p(engine),
        ];
        let error = expect_error(stage.mover.run(line.clone()), 1, "os error 5");
        assert!(error.contains(&device.path().display().to_string()), "{engine}: {error}");
        let offset = error
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse::<u64>().ok())
            .find(|n| (48 * MIB..96 * MIB).contains(n));
        assert!(offset.is_some(), "{engine}: no offset of what is gone in: {error}");
        assert_eq!(stage.objects("backups"), before, "{engine}");
        assert!(stage.objects("leases").is_empty(), "{engine}: a lease stays");
        // whole again, the next run goes well and stores only what the failed one had not
        fs::write(&image, &content).expect("mend the image");
        device.refresh_size();
        let done = stage.mover.ok(line.into_iter().chain([p("--json")]));
        assert_eq!(done.summary()["outcome"], "committed");
        stage.mover.ok([p("verify"), p("vanishing@latest"), p("--device"), image.clone()]);
        let backup = done.summary()["backup_id"].as_str().expect("an id").to_owned();
        stage.mover.ok(["forget", backup.as_str()]);
    }
}

/// A sparse file on a filesystem that is too small for it: the device fails when it is written to.
#[test]
fn a_target_that_runs_full_half_way() {
    tests::require_root!();
    let stage = Stage::new("full-target");
    let image = stage.path("noise");
    fs::write(&image, random_bytes(64 << 20)).expect("write the image");
    stage.mover.ok([p("backup"), image.clone(), p("--volume"), p("noise")]);
    let before = super::tree(&stage.repository());
    for engine in ENGINES {
        let point = work_dir("small");
        let mount = Mount::new("none".as_ref(), point.path(), "tmpfs", "size=24m");
        let small = point.path().join("target");
        fs::File::create(&small).and_then(|f| f.set_len(64 * MIB)).expect("make the target");
        let onto = |target: PathBuf| {
            [p("restore"), p("noise@latest"), target, p("--force"), p("--engine"), p(engine)]
        };
        // the file itself says that there is no space; a device over it says EIO or the same
        let error = expect_error(stage.mover.run(onto(small.clone())), 1, "target");
        assert!(error.contains("os error 28"), "{engine}: {error}");
        let device = LoopDevice::attach(&small);
        let error = expect_error(stage.mover.run(onto(device.path().to_owned())), 1, "");
        assert!(error.contains(&device.path().display().to_string()), "{engine}: {error}");
        drop(device);
        drop(mount);
    }
    assert!(before == super::tree(&stage.repository()), "the repository was changed");
    let sound = stage.path("sound");
    stage.mover.ok([p("restore"), p("noise@latest"), sound.clone()]);
    assert!(fs::read(&image).expect("the image") == fs::read(sound).expect("the copy"));
}

/// Where a bad block is, in the middle of an image of 24 MiB.
const BROKEN: std::ops::Range<u64> = 13 * MIB + 5 * 4096..13 * MIB + 6 * 4096;

/// A number in the text that lies in the unit around the bad block.
fn names_the_place(error: &str) -> bool {
    let numbers = error.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u64>().ok());
    numbers.into_iter().any(|n| (12 * MIB..=14 * MIB).contains(&n))
}

fn backup_of(source: &Path, engine: &str) -> Vec<PathBuf> {
    let line = ["backup", "--volume", "bad", "--engine", engine, "--json"];
    line.iter().map(|word| p(word)).chain([source.to_owned()]).collect()
}

#[test]
fn a_block_that_cannot_be_read_is_named_and_nothing_is_committed() {
    tests::require_root!();
    let stage = Stage::new("bad-block-source");
    let image = stage.path("bad");
    fs::write(&image, random_bytes(24 << 20)).expect("write the image");
    let bad = BadFile::new(&image, Badness::default());
    for engine in ENGINES {
        bad.becomes(Badness { broken: Some(BROKEN), ..Badness::default() });
        let device = LoopDevice::attach(&bad.path());
        let before = stage.objects("backups");
        let line = ["backup", "--volume", "bad", "--engine", engine];
        let line = line.iter().map(|word| p(word)).chain([device.path().to_owned()]);
        let error = expect_error(stage.mover.run(line), 1, "os error 5");
        assert!(error.contains(&device.path().display().to_string()), "{engine}: {error}");
        assert!(names_the_place(&error), "{engine}: no place in: {error}");
        assert_eq!(stage.objects("backups"), before, "{engine}");
        assert!(stage.objects("leases").is_empty(), "{engine}: a lease stays");
        // mended
        bad.becomes(Badness::default());
        let done = stage.mover.ok(backup_of(device.path(), engine)).summary();
        stage.mover.ok([p("verify"), p("bad@latest"), p("--device"), image.clone()]);
        stage.mover.ok(["forget", done["backup_id"].as_str().expect("an id")]);
    }
}

#[test]
fn a_block_that_cannot_be_written_is_named_and_the_restore_can_be_run_again() {
    tests::require_root!();
    let stage = Stage::new("bad-block-target");
    let image = stage.path("image24");
    fs::write(&image, random_bytes(24 << 20)).expect("write the image");
    stage.mover.ok([p("backup"), image.clone(), p("--volume"), p("w"), p("--quiet")]);
    let target = stage.path("target");
    fs::File::create(&target).and_then(|f| f.set_len(24 * MIB)).expect("make the target");
    let bad = BadFile::new(&target, Badness::default());
    for engine in ENGINES {
        bad.becomes(Badness { broken: Some(BROKEN), ..Badness::default() });
        let device = LoopDevice::attach(&bad.path());
        let to = device.path().to_owned();
        let line = [p("restore"), p("w@latest"), to, p("--force"), p("--engine"), p(engine)];
        let error = expect_error(stage.mover.run(line.clone()), 1, "os error 5");
        assert!(error.contains(&device.path().display().to_string()), "{engine}: {error}");
        assert!(stage.objects("leases").is_empty(), "{engine}: a lease stays");
        bad.becomes(Badness::default());
        stage.mover.ok(line);
        drop(device);
        assert_eq!(tests::first_difference(&image, &target), None, "{engine}");
    }
}

#[test]
fn a_slow_device_changes_no_byte() {
    tests::require_root!();
    let stage = Stage::new("slow-device");
    let (image, target) = (stage.path("bad"), stage.path("target"));
    fs::write(&image, random_bytes((12 << 20) + 512)).expect("write the image");
    let slow = Badness { delay: Duration::from_millis(4), ..Badness::default() };
    let source = BadFile::new(&image, slow.clone());
    let engine = "auto";
    let done = stage.mover.ok(backup_of(&source.path(), engine)).summary();
    let size = fs::metadata(&image).expect("the image").len();
    assert_eq!(done["size_bytes"].as_u64(), Some(size), "{done}");
    fs::File::create(&target).and_then(|f| f.set_len(size)).expect("make the target");
    let onto = BadFile::new(&target, slow);
    let line = [p("restore"), p("bad@latest"), onto.path(), p("--force"), p("--engine")];
    stage.mover.ok(line.into_iter().chain([p(engine), p("--verify")]));
    drop(onto);
    assert_eq!(tests::first_difference(&image, &target), None);
}

/// A server of files may answer less than it was asked for. io_uring on Linux 6.18 takes such an
/// answer for the whole of a direct read, so it is not used there.
#[test]
fn a_file_that_answers_less_than_it_was_asked_for_is_read_right() {
    tests::require_root!();
    let stage = Stage::new("short-answers");
    let (image, target) = (stage.path("short"), stage.path("target"));
    fs::write(&image, random_bytes((9 << 20) + 512)).expect("write the image");
    let short = Badness { answers_at_most: Some(4096 * 3), ..Badness::default() };
    let source = BadFile::new(&image, short);
    for engine in ["auto", "blocking"] {
        let done = stage.mover.ok(backup_of(&source.path(), engine)).summary();
        assert_eq!(done["engine"], "blocking", "{done}");
        let line = [p("restore"), p("bad@latest"), target.clone(), p("--force")];
        stage.mover.ok(line);
        assert_eq!(tests::first_difference(&image, &target), None, "{engine}");
    }
    let refused = stage.mover.run(backup_of(&source.path(), "io_uring")).expect_code(2);
    assert!(refused.stderr.contains("over FUSE"), "{}", refused.stderr);
}
