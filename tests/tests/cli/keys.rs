//! Keys and passphrases, in all the ways in which they can be given.

use super::{Stage, expect_error, file_url, p};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use tests::{Mount, Mover, run_ok, work_dir};

const PASSPHRASE: &str = "correct horse battery staple";

#[test]
fn a_passphrase_opens_from_file_command_and_environment() {
    let directory = work_dir("passphrase");
    let file = directory.path().join("passphrase");
    fs::write(&file, format!("{PASSPHRASE}\n")).expect("write the passphrase");
    let repository = file_url(&directory.path().join("repository"));
    let mover = Mover::new().env("MOVER_REPO", &repository);
    mover.ok([p("init"), p("--password-file"), file.clone()]);

    mover.ok([p("list"), p("--password-file"), file.clone()]);
    let command = format!("cat {}", file.display());
    mover.ok(["list", "--password-command", &command]);
    let by_environment =
        Mover::new().env("MOVER_REPO", &repository).env("MOVER_PASSWORD", PASSPHRASE);
    by_environment.ok(["list"]);

    expect_error(mover.run(["list"]), 4, "");
    expect_error(mover.run(["list", "--password-command", "echo wrong"]), 4, "");
    expect_error(mover.run(["list", "--password-command", "exit 3"]), 2, "--password-command");
    expect_error(mover.run(["list", "--password-file", "/does/not/exist"]), 2, "/does/not/exist");
}

#[test]
fn a_passphrase_is_asked_for_without_echo() {
    let directory = work_dir("prompt");
    let file = directory.path().join("passphrase");
    fs::write(&file, PASSPHRASE).expect("write the passphrase");
    let mover = Mover::new().env("MOVER_REPO", file_url(&directory.path().join("repository")));
    mover.ok([p("init"), p("--quiet"), p("--password-file"), file]);

    // script gives the program a terminal of its own
    let line = format!("{} list", tests::mover_bin().display());
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    mover.dress(&mut script);
    let mut child =
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start script");
    let mut shown = Vec::new();
    let mut screen = child.stdout.take().expect("its output");
    let mut byte = [0];
    while !shown.ends_with(b"repository: ") && screen.read(&mut byte).expect("read the screen") == 1
    {
        shown.push(byte[0]);
    }
    let mut keyboard = child.stdin.take().expect("its input");
    keyboard.write_all(format!("{PASSPHRASE}\n").as_bytes()).expect("type");
    screen.read_to_end(&mut shown).expect("read the screen");
    drop(keyboard);
    let text = String::from_utf8_lossy(&shown);
    assert!(child.wait().expect("script ends").success(), "{text}");
    assert!(text.contains("passphrase of file://") && text.contains("no backups"), "{text}");
    assert!(!text.contains(PASSPHRASE), "{text}");
}

#[test]
fn keys_come_and_go() {
    let stage = Stage::new("keys");
    let mover = &stage.mover;
    let (second, passphrase) = (stage.path("second"), stage.path("passphrase"));
    fs::write(&passphrase, PASSPHRASE).expect("write the passphrase");
    let key_add = [
        p("key"),
        p("add"),
        p("--key-label"),
        p("second key"),
        p("--new-key-file"),
        second.clone(),
    ];
    let added = mover.ok(key_add);
    assert!(added.stderr.contains("copy it"), "{}", added.stderr);
    assert_eq!(fs::metadata(&second).expect("made").permissions().mode() & 0o777, 0o600);
    mover.ok([p("key"), p("add"), p("--new-password-file"), passphrase.clone()]);

    let keys = mover.ok(["key", "list", "--json"]).json_lines();
    let kinds: Vec<_> = keys.iter().map(|key| key["kind"].as_str().expect("a kind")).collect();
    assert_eq!(kinds, ["key-file", "key-file", "passphrase"]);
    assert_eq!(keys[1]["label"], "second key");
    assert_eq!(keys.iter().filter(|key| key["current"] == true).count(), 1);
    assert!(mover.ok(["key", "list"]).text().contains("second key"));

    let only = |flag: &str, file| {
        let other = Mover::new().env("MOVER_REPO", file_url(&stage.repository()));
        other.run([p("show"), p("v@latest"), p(flag), file])
    };
    assert_eq!(only("--key-file", second.clone()).code(), Some(0));
    assert_eq!(only("--password-file", passphrase.clone()).code(), Some(0));

    let id = |n: usize| keys[n]["key_id"].as_str().expect("an id").to_owned();
    mover.ok(["key", "remove", &id(1)[..12]]);
    expect_error(only("--key-file", second), 4, "");
    assert_eq!(only("--password-file", passphrase).code(), Some(0));
    expect_error(mover.run(["key", "remove", &id(0)]), 2, "opened with");
    expect_error(mover.run(["key", "remove", "ffffffffffff"]), 2, "mover key list");
    expect_error(mover.run(["key", "remove", ""]), 2, "");
    expect_error(mover.run(["key", "add"]), 2, "--new-key-file");
    assert_eq!(mover.ok(["key", "list", "--json"]).json_lines().len(), 2);
}

/// A variable that is left over from another repository gives its key to a new one: that is said.
#[test]
fn init_says_which_keys_it_adds_besides() {
    let (stage, directory) = (Stage::new("init-keys"), work_dir("init-keys"));
    let repository = file_url(&directory.path().join("repository"));
    let new = directory.path().join("new.key");
    let mover = Mover::new().env("MOVER_REPO", &repository).env("MOVER_KEY_FILE", stage.key());
    let made = mover.ok([p("init"), p("--new-key-file"), new.clone()]);
    let keys = mover.ok(["key", "list", "--json"]).json_lines();
    assert_eq!(keys.len(), 2);
    let second = keys[1]["key_id"].as_str().expect("an id");
    for words in ["opens it too", "MOVER_KEY_FILE", second] {
        assert!(made.stderr.contains(words), "{words} in {}", made.stderr);
    }
    // the very same file is no second key
    let other = file_url(&directory.path().join("other"));
    let mover = Mover::new().env("MOVER_REPO", &other).env("MOVER_KEY_FILE", &new);
    let made = mover.ok([p("init"), p("--new-key-file"), new]);
    assert!(!made.stderr.contains("opens it too"), "{}", made.stderr);
}

#[test]
fn secrets_are_in_no_output() {
    let stage = Stage::new("secrets");
    let key = fs::read_to_string(stage.key()).expect("the key");
    let key = key.trim();
    let mover = Mover::new()
        .env("MOVER_REPO", file_url(&stage.repository()))
        .env("MOVER_KEY_FILE", stage.key())
        .env("MOVER_PASSWORD", PASSPHRASE)
        .env("MOVER_PASSWORD_COMMAND", "echo printed-secret");
    for line in
        [&["list", "-vvv"][..], &["show", "v@latest", "-vvv", "--json"], &["key", "list", "-vvv"]]
    {
        let output = mover.ok(line);
        for secret in [key, PASSPHRASE, "printed-secret"] {
            assert!(!output.stderr.contains(secret) && !output.text().contains(secret), "{line:?}");
        }
    }
}

#[test]
fn without_encryption_no_key_is_needed() {
    let directory = work_dir("no-encryption");
    let mover = Mover::new().env("MOVER_REPO", file_url(&directory.path().join("repository")));
    mover.ok(["init", "--encryption", "none"]);
    mover.ok(["list"]);
    expect_error(mover.run(["key", "add", "--new-key-file", "/nowhere/key"]), 2, "not encrypted");
    let other = file_url(&directory.path().join("other"));
    let both = ["init", "--repo", &other, "--encryption", "none", "--password-command", "echo x"];
    expect_error(mover.run(both), 2, "--encryption none");
}

/// Who removes one of two such keys would believe that it opens nothing any more.
#[test]
fn a_key_that_opens_it_already_is_not_added_again() {
    let stage = Stage::new("key-twice");
    let key = stage.path("key");
    let line = |file: PathBuf| [p("key"), p("add"), p("--new-key-file"), file];
    expect_error(stage.mover.run(line(key)), 2, "it opens it already, as ");
    stage.mover.ok(line(stage.path("second")));
    expect_error(stage.mover.run(line(stage.path("second"))), 2, "it opens it already, as ");
    assert_eq!(stage.objects("keys").len(), 2);
    // written on Windows
    let digits = fs::read_to_string(stage.path("second")).expect("a key");
    fs::write(stage.path("crlf"), format!("{}\r\n", digits.trim_end())).expect("write it");
    stage.mover.ok([p("list"), p("--key-file"), stage.path("crlf")]);
}

/// A store that lets nothing be written, once the key file is made.
#[test]
fn a_key_file_does_not_outlive_the_failure_that_it_was_made_for() {
    tests::require_root!();
    let point = work_dir("key-taken-back");
    let _mount = Mount::new("none".as_ref(), point.path(), "tmpfs", "size=16m");
    let keys = work_dir("key-taken-back-keys");
    let [first, second] = ["first", "second"].map(|name| keys.path().join(name));
    let repository = point.path().join("repository");
    fs::create_dir(&repository).expect("make its directory");
    let remount = |how: &str| {
        let options = format!("remount,{how}");
        run_ok("mount", ["-o", &options, point.path().to_str().expect("UTF-8")]);
    };
    let mover = Mover::new().env("MOVER_REPO", file_url(&repository));
    let init = [p("init"), p("--new-key-file"), first.clone()];
    let add =
        [p("key"), p("add"), p("--key-file"), first.clone(), p("--new-key-file"), second.clone()];
    let here = || fs::read_dir(keys.path()).expect("the keys' directory").count();

    remount("ro");
    let refused = mover.run(&init);
    assert!(!matches!(refused.code(), Some(0) | None), "{}", refused.stderr);
    assert!(!refused.stderr.contains("copy it to a safe place"), "{}", refused.stderr);
    assert_eq!(here(), 0, "nothing uses the key: {}", refused.stderr);
    remount("rw");
    mover.ok(&init);
    remount("ro");
    let refused = mover.run(&add);
    assert!(!matches!(refused.code(), Some(0) | None), "{}", refused.stderr);
    assert!(first.exists() && here() == 1, "only the new one is taken back: {}", refused.stderr);
    // one that was there before is nobody's to remove
    fs::write(&second, "a".repeat(64)).expect("write a key");
    let _ = mover.run(&add);
    assert!(second.exists());
    fs::remove_file(&second).expect("remove it");
    remount("rw");
    assert!(mover.ok(&add).stderr.contains("copy it to a safe place"));
    mover.ok([p("list"), p("--key-file"), second]);
}

#[test]
fn a_key_file_in_the_repository_is_refused_before_anything_is_made() {
    let place = work_dir("key-in-repository");
    let [empty, absent, link, good] =
        ["empty", "absent", "link", "key"].map(|name| place.path().join(name));
    fs::create_dir(&empty).expect("make a directory");
    std::os::unix::fs::symlink("empty", &link).expect("make a link");
    let init = |repository: &PathBuf, key: PathBuf| {
        let mover = Mover::new().env("MOVER_REPO", file_url(repository));
        mover.run([p("init"), p("--new-key-file"), key])
    };
    for (repository, key) in [
        (&empty, empty.join("key")),
        (&empty, link.join("key")),
        (&link, empty.join("below/key")),
        (&absent, absent.join("key")),
    ] {
        expect_error(init(repository, key), 2, "put it elsewhere");
    }
    assert_eq!(fs::read_dir(&empty).expect("read it").count(), 0, "nothing is made");
    assert!(!absent.exists(), "nothing is made");

    let made = init(&empty, good.clone());
    assert_eq!(made.code(), Some(0), "{}", made.stderr);
    let mover = Mover::new().env("MOVER_REPO", file_url(&empty));
    let add = |new: PathBuf| {
        [p("key"), p("add"), p("--key-file"), good.clone(), p("--new-key-file"), new]
    };
    expect_error(mover.run(add(empty.join("keys/second"))), 2, "put it elsewhere");
    assert!(!empty.join("keys/second").exists());
    mover.ok(add(place.path().join("second")));
}
