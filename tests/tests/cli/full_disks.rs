//! No room left: in a local repository, in the scratch directory. (On a target:
//! `failing_devices.rs`.) One clear error, nothing that was there is damaged, and with room again
//! all goes on.

use super::{expect_error, file_url, p, random_bytes, tree};
use std::fs;
use std::path::PathBuf;
use tests::{Mount, Mover, work_dir};

/// A small filesystem in memory.
fn small(name: &str, size: &str) -> (tempfile::TempDir, Mount) {
    let point = work_dir(name);
    let mount = Mount::new("none".as_ref(), point.path(), "tmpfs", &format!("size={size}"));
    (point, mount)
}

fn backup(image: &std::path::Path, id: &str) -> Vec<PathBuf> {
    let line = ["backup", "--quiet", "--volume", "v", "--backup-id", id, "--scratch", "none"];
    line.iter().map(|word| p(word)).chain([image.to_owned()]).collect()
}

#[test]
fn a_full_repository_keeps_what_it_has_and_is_made_room_in_by_gc() {
    tests::require_root!();
    let (point, mount) = small("full-repository", "24m");
    let place = work_dir("full-repository-images");
    let repository = point.path().join("repository");
    let key = place.path().join("key");
    let mover = Mover::new().env("MOVER_REPO", file_url(&repository)).env("MOVER_KEY_FILE", &key);
    mover.ok([p("init"), p("--quiet"), p("--new-key-file"), key.clone()]);
    let image = |name: &str, len: usize| {
        let path = place.path().join(name);
        fs::write(&path, random_bytes(len)).expect("write an image");
        path
    };
    let (first, second, large) =
        (image("first", 7 << 20), image("second", 7 << 20), image("large", 40 << 20));
    mover.ok(backup(&first, "first"));
    mover.ok(backup(&second, "second"));
    let before = tree(&repository);
    for _ in 0..2 {
        let output = mover.run(backup(&large, "large")).expect_code(1);
        // other packs under way may have found no room either
        let error = output.stderr.lines().last().unwrap_or_default();
        assert!(error.starts_with("error: write packs/"), "{}", output.stderr);
        assert!(error.contains("No space left") && error.contains("free space"), "{error}");
    }
    // what was there is there, unchanged; nothing was committed, and no half-written file stays
    let after = tree(&repository);
    for (path, bytes) in &before {
        assert!(after.get(path) == Some(bytes), "{} was changed", path.display());
    }
    assert!(!after.keys().any(|path| path.to_string_lossy().contains('#')), "{:?}", after.keys());
    assert_eq!(mover.ok(["list", "--json"]).json_lines().len(), 2);
    let expect = |id: &str, image: &std::path::Path| {
        let target = place.path().join("restored");
        let _ = fs::remove_file(&target);
        mover.ok([p("restore"), p(&format!("v@{id}")), target.clone(), p("--no-lease")]);
        assert_eq!(tests::first_difference(image, &target), None, "{id}");
    };
    expect("first", &first);
    expect("second", &second);

    // full to the last byte: nothing can be written at all, and all can be read
    let filler = point.path().join("filler");
    let written = std::io::copy(
        &mut fs::File::open("/dev/zero").expect("/dev/zero"),
        &mut fs::File::create(&filler).expect("create a file"),
    );
    assert_eq!(written.expect_err("it is full").kind(), std::io::ErrorKind::StorageFull);
    for line in [backup(&first, "third"), vec![p("forget"), p("v@first")], vec![p("gc")]] {
        let error = expect_error(mover.run(&line), 1, "No space left");
        assert!(error.contains("free space"), "{error}");
    }
    expect("first", &first);
    expect("second", &second);

    // a little room is enough to forget and to collect, and then there is more
    fs::File::options()
        .write(true)
        .open(&filler)
        .and_then(|file| file.set_len(file.metadata()?.len() - (256 << 10)))
        .expect("make a little room");
    mover.ok(["forget", "--quiet", "v@first"]);
    let done = mover.ok(["gc", "--json"]).summary();
    assert!(done["deleted_bytes"].as_u64() > Some(7 << 20), "{done}");
    fs::remove_file(filler).expect("remove a file");
    expect("second", &second);
    let third = image("third", 7 << 20);
    mover.ok(backup(&third, "third"));
    expect("third", &third);
    drop(mount);
}

#[test]
fn a_full_scratch_directory_costs_work_and_nothing_else() {
    tests::require_root!();
    let (point, mount) = small("full-scratch", "4m");
    let scratch = point.path().join("scratch");
    let place = work_dir("full-scratch-images");
    let key = place.path().join("key");
    let mover = Mover::new()
        .env("MOVER_REPO", file_url(&place.path().join("repository")))
        .env("MOVER_KEY_FILE", &key)
        .env("MOVER_SCRATCH", &scratch);
    mover.ok([p("init"), p("--quiet"), p("--chunk-size"), p("4KiB"), p("--new-key-file"), key]);
    let image = place.path().join("image");
    fs::write(&image, random_bytes(48 << 20)).expect("write an image");
    let line = |volume: &str| {
        let line = ["backup", "--json", "--volume", volume, "--backup-id", "b"];
        line.iter().map(|word| p(word)).chain([image.clone()]).collect::<Vec<_>>()
    };
    mover.ok(line("v"));
    let filler = point.path().join("filler");
    let full = || {
        let mut file = fs::File::create(&filler).expect("create a file");
        let zeros = &mut fs::File::open("/dev/zero").expect("/dev/zero");
        std::io::copy(zeros, &mut file).expect_err("it is full");
    };
    full();
    // another volume with the same content: only the segments know it
    let done = mover.ok(line("w"));
    println!("{}", done.stderr);
    let summary = done.summary();
    assert_eq!(summary["new_bytes"], 0, "read from the store instead: {summary}");
    let copies = || tree(&scratch).into_keys().filter(|p| p.extension().is_some()).count();
    assert_eq!(copies(), 0, "no half copy stays");
    mover.ok([p("verify"), p("w@b"), p("--device"), image.clone()]);
    fs::remove_file(&filler).expect("make room");
    let summary = mover.ok(line("x")).summary();
    assert_eq!((summary["new_bytes"].as_u64(), copies()), (Some(0), 1), "{summary}");
    drop(mount);
}
