//! The embedded repository: made on first use, with its key beside it.

use super::{IMAGE_BYTES, expect_error, p, random_bytes, tree};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tests::{Mover, work_dir};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o777
}

#[test]
fn the_first_backup_makes_it_and_says_so_in_one_line() {
    let mover = Mover::new();
    let directory = work_dir("embedded");
    let (image, back) = (directory.path().join("image"), directory.path().join("back"));
    fs::write(&image, random_bytes(IMAGE_BYTES)).expect("write the image");

    let first = mover.ok([p("backup"), image.clone()]);
    let data = mover.home().join(".local/share/mover");
    let (repository, key) = (data.join("repository"), data.join("repository.key"));
    let lines: Vec<_> = first.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}", first.stderr);
    for part in [repository.to_str(), key.to_str(), Some("copy the key elsewhere")] {
        assert!(lines[0].contains(part.expect("UTF-8")), "{}", lines[0]);
    }
    assert_eq!((mode(&data), mode(&repository), mode(&key)), (0o700, 0o700, 0o600));
    assert!(repository.join("format").exists());

    let second = mover.ok([p("backup"), image.clone()]);
    assert_eq!(second.stderr, "");
    assert_eq!(mover.ok(["list"]).text().lines().count(), 4, "a head, two backups, the totals");
    mover.ok([p("restore"), p("image@latest"), back.clone()]);
    assert_eq!(fs::read(&image).expect("image"), fs::read(&back).expect("restored"));
}

#[test]
fn the_data_home_moves_it() {
    let data = work_dir("data-home");
    let mover = Mover::new().env("XDG_DATA_HOME", data.path());
    mover.ok(["init", "--quiet"]);
    assert!(data.path().join("mover/repository/format").exists());
    assert!(!mover.home().join(".local").exists());
    expect_error(mover.run(["init"]), 2, "exists");
}

#[test]
fn two_first_backups_at_once_share_it() {
    let mover = Mover::new();
    let directory = work_dir("embedded-race");
    let images: Vec<_> = (0..4)
        .map(|i| {
            let image = directory.path().join(format!("image{i}"));
            fs::write(&image, random_bytes(IMAGE_BYTES)).expect("write an image");
            image
        })
        .collect();
    std::thread::scope(|s| {
        for image in &images {
            let mover = &mover;
            s.spawn(move || mover.ok([p("backup"), image.clone()]));
        }
    });
    assert_eq!(mover.ok(["list", "--json"]).json_lines().len(), 4);
    for image in &images {
        let name = image.file_name().and_then(|n| n.to_str()).expect("a name");
        let back = directory.path().join(format!("{name}-back"));
        mover.ok([p("restore"), p(&format!("{name}@latest")), back.clone()]);
        assert_eq!(fs::read(image).expect("image"), fs::read(&back).expect("restored"));
        fs::remove_file(back).expect("remove");
    }
}

#[test]
fn nothing_but_a_backup_or_init_makes_it() {
    let mover = Mover::new();
    for line in [
        &["list"][..],
        &["show", "x"],
        &["restore", "x", "y"],
        &["verify", "x"],
        &["diff", "a", "b"],
        &["forget", "x"],
        &["key", "list"],
        &["backup", "/does/not/exist"],
    ] {
        expect_error(mover.run(line), 2, "");
    }
    assert!(tree(mover.home()).is_empty());
    let homeless = Mover::new().env("HOME", "");
    expect_error(homeless.run(["list"]), 2, "--repo");
}

#[test]
fn a_home_that_is_not_there_is_not_made() {
    let directory = work_dir("homeless");
    let image = directory.path().join("image");
    fs::write(&image, random_bytes(IMAGE_BYTES)).expect("write the image");
    let absent = directory.path().join("absent");
    let homeless = || Mover::new().env("HOME", &absent);
    for line in [[p("backup"), image.clone()], [p("init"), p("--quiet")]] {
        expect_error(homeless().run(&line), 2, "set HOME");
        expect_error(Mover::new().env("XDG_DATA_HOME", absent.join("data")).run(&line), 2, "HOME");
    }
    assert!(!absent.exists(), "neither the repository nor the scratch directory has made it");
    // with a repository named it needs none
    let repository = directory.path().join("repository");
    let mover = homeless().env("MOVER_REPO", &repository);
    mover.ok(["init", "--encryption", "none"]);
    mover.ok([p("backup"), image]);
    assert!(!absent.exists());
    // the last part of a data home is made, as ever
    let data = directory.path().join("data");
    Mover::new().env("XDG_DATA_HOME", &data).ok(["init", "--quiet"]);
    assert!(data.join("mover/repository/format").exists());
}

#[test]
fn a_lost_key_is_named_and_not_replaced() {
    let mover = Mover::new();
    mover.ok(["init", "--quiet"]);
    let key = mover.home().join(".local/share/mover/repository.key");
    fs::rename(&key, key.with_extension("away")).expect("move the key away");
    expect_error(mover.run(["list"]), 4, "repository.key");
    expect_error(mover.run(["backup", "/proc/version"]), 4, "repository.key");
    assert!(!key.exists());
    fs::rename(key.with_extension("away"), &key).expect("bring the key back");
    mover.ok(["list"]);
}
