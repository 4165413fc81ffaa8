//! `init --if-absent`: there is a repository afterwards, whoever made it, or an error.

use super::{Stage, expect_error, file_url, p, tree};
use std::path::PathBuf;
use tests::{Mover, work_dir};

const INIT: [&str; 2] = ["init", "--if-absent"];

#[test]
fn what_is_there_is_opened_and_left_as_it_is() {
    let stage = Stage::new("if-absent");
    let before = tree(&stage.repository());
    let done = stage.mover.ok([&INIT[..], &["--json"]].concat());
    let shown = stage.mover.ok(["show", "v@latest", "--json"]);
    assert_eq!(done.summary()["made"], false);
    assert!(done.stderr.contains("nothing was made"), "{}", done.stderr);
    assert_eq!(shown.code(), Some(0));
    // what it is, said once more
    stage.mover.ok([&INIT[..], &["--chunk-size", "64KiB", "--encryption", "aes-256-gcm"]].concat());
    let key = ["--new-key-file".into(), stage.key()];
    stage.mover.ok(INIT.iter().map(PathBuf::from).chain(key));
    assert!(tree(&stage.repository()) == before, "it was written to");
    // without the flag all is as ever
    expect_error(stage.mover.run(["init"]), 2, "already");
}

#[test]
fn another_key_and_other_parameters_are_refused() {
    let stage = Stage::new("if-absent-other");
    let before = tree(&stage.repository());
    for (flag, value, about) in [
        ("--chunk-size", "128KiB", "--chunk-size is 64.0 KiB, not 128 KiB"),
        ("--entry-chunks", "8", "--entry-chunks is 16, not 8"),
        ("--page-fanout", "64", "--page-fanout is 128, not 64"),
        ("--encryption", "none", "--encryption is aes-256-gcm, not none"),
    ] {
        expect_error(stage.mover.run([&INIT[..], &[flag, value]].concat()), 2, about);
    }
    let stranger = Mover::new().env("MOVER_REPO", file_url(&stage.repository()));
    let missing = stage.path("missing");
    let line = || INIT.iter().map(PathBuf::from).chain([p("--new-key-file"), missing.clone()]);
    expect_error(stranger.run(line()), 4, "bring it back");
    assert!(!missing.exists(), "a key was made in vain");
    std::fs::write(&missing, [7; 32]).expect("write another key");
    expect_error(stranger.run(line()), 4, "key");
    expect_error(stranger.run(INIT), 4, "key");
    assert!(tree(&stage.repository()) == before, "it was written to");
}

#[test]
fn what_is_absent_is_made_in_every_place() {
    let directory = work_dir("if-absent-new");
    let key = directory.path().join("key");
    let mover = Mover::new().env("MOVER_REPO", file_url(&directory.path().join("repository")));
    let line = || INIT.iter().map(PathBuf::from).chain([p("--new-key-file"), key.clone()]);
    for made in [true, false] {
        let done = mover.ok(line().chain([p("--json")])).summary();
        assert_eq!(done["made"], made);
    }
    let embedded = Mover::new();
    for made in [true, false] {
        assert_eq!(embedded.ok([&INIT[..], &["--json"]].concat()).summary()["made"], made);
    }
    // a place that holds something else is no repository
    std::fs::write(directory.path().join("thesis.txt"), "x").expect("write a file");
    let other = Mover::new().env("MOVER_REPO", file_url(directory.path()));
    let no_key = other.run([&INIT[..], &["--encryption", "none"]].concat());
    assert_eq!(no_key.code(), Some(2), "{}", no_key.stderr);
}

/// However many begin at once, one makes it and all end well.
#[test]
fn of_many_at_once_one_makes_it() {
    let directory = work_dir("if-absent-race");
    let password = directory.path().join("password");
    std::fs::write(&password, "correct horse\n").expect("write a passphrase");
    let mover = Mover::new()
        .env("MOVER_REPO", file_url(&directory.path().join("repository")))
        .env("MOVER_PASSWORD_FILE", &password);
    let line = [&INIT[..], &["--json"]].concat();
    let runs: Vec<_> = std::thread::scope(|threads| {
        let start = |_| threads.spawn(|| mover.run(&line));
        let started: Vec<_> = (0..6).map(start).collect();
        started.into_iter().map(|run| run.join().expect("a run")).collect()
    });
    let made = runs.into_iter().map(|run| run.expect_code(0).summary()["made"] == true);
    assert_eq!(made.filter(|made| *made).count(), 1);
    mover.ok(["list"]);
}
