//! What is wrong with the input is one line on stderr with the documented exit code, and nothing is
//! changed.

use super::{Stage, expect_error, file_url, p, random_bytes, tree};
use std::fs;
use std::path::{Path, PathBuf};
use tests::{LoopDevice, Mount, Mover, MoverOutput, work_dir};

/// Runs `line`, which must fail with `code` and leave the repository as it was.
#[track_caller]
fn refused<S: Into<PathBuf> + Clone>(stage: &Stage, line: &[S], code: i32, about: &str) -> String {
    let before = tree(&stage.repository());
    let output = stage.mover.run(line.iter().cloned().map(Into::into));
    let error = expect_error(output, code, about);
    assert!(before == tree(&stage.repository()), "the repository was changed\n{error}");
    error
}

#[test]
fn places_that_are_none() {
    let mover = Mover::new();
    let directory = work_dir("places");
    let absent = directory.path().join("absent");
    let url = file_url(&absent);
    let empty = file_url(directory.path());
    fs::write(directory.path().join("file"), "x").expect("write");
    let file = file_url(&directory.path().join("file"));
    for (repo, about) in [
        ("ftp://host/path", "ftp"),
        ("http://host/path", "http"),
        ("file://relative", "absolute"),
        ("s3://", "s3://"),
        ("gs:///prefix", "gs://"),
        (&url, "absent"),
        (&empty, "no repository"),
        (&file, "not a directory"),
    ] {
        expect_error(mover.run(["list", "--repo", repo]), 2, about);
        expect_error(mover.run(["backup", "/proc/version", "--repo", repo]), 2, about);
    }
    assert!(!absent.exists() && tree(mover.home()).is_empty());
}

/// A script whose variable is not set.
#[test]
fn values_that_are_empty() {
    let stage = Stage::new("empty-values");
    let image = stage.image();
    let image = image.to_str().expect("a path");
    for line in [
        &["list", "--repo", ""][..],
        &["list", "--volume", ""],
        &["list", "--volume="],
        &["backup", image, "--volume", ""],
        &["backup", image, "--snapshot", ""],
        &["backup", image, "--parent", ""],
        &["forget", "--volume", "", "--keep-last", "1"],
        &["--repo", "", "gc"],
    ] {
        let before = tree(&stage.repository());
        expect_error(stage.mover.run(line), 2, "it was given without a value");
        assert!(before == tree(&stage.repository()), "{line:?}");
    }
    // of a variable it means that it is not set
    stage.mover.env("MOVER_VOLUME", "").ok(["list"]);
}

#[test]
fn keys_that_do_not_fit() {
    let stage = Stage::new("bad-keys");
    let mover = Mover::new().env("MOVER_REPO", file_url(&stage.repository()));
    let with = |content: &[u8]| {
        fs::write(stage.path("other"), content).expect("write a key");
        mover.run([p("list"), p("--key-file"), stage.path("other")])
    };
    let before = tree(&stage.repository());
    expect_error(mover.run(["list"]), 4, "key");
    expect_error(with(&[7; 32]), 4, "key");
    expect_error(with(b"not a key"), 2, "other");
    expect_error(with(&vec![b'x'; 100_000]), 2, "other");
    expect_error(mover.run(["list", "--key-file", "/does/not/exist"]), 2, "/does/not/exist");
    expect_error(mover.run(["list", "--key-file", "/"]), 2, "key file /");
    expect_error(mover.run([p("backup"), stage.image(), p("--volume"), p("v")]), 4, "key");
    assert!(before == tree(&stage.repository()));
}

#[test]
fn repositories_that_cannot_be_read() {
    let stage = Stage::new("bad-format");
    let format = stage.repository().join("format");
    let good = fs::read(&format).expect("format");
    // the second copy would open it
    let copy = stage.repository().join("format-copy");
    fs::remove_file(&copy).expect("remove the copy");
    let patched = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        fs::write(&format, bytes).expect("patch format");
    };
    // a version that nothing vouches for is damage, not news
    patched(8, 2);
    refused(&stage, &["list"], 3, "authentication tag");
    patched(good.len() - 1, good[good.len() - 1] ^ 1);
    refused(&stage, &["list"], 3, "format");
    patched(0, b'X');
    refused(&stage, &["list"], 3, "format");
    fs::write(&format, &good[..good.len() / 2]).expect("cut format");
    refused(&stage, &["list"], 3, "format");
    fs::write(&format, b"").expect("empty format");
    refused(&stage, &["list"], 3, "format");
    fs::remove_file(&format).expect("remove format");
    refused(&stage, &["list"], 3, "format");
    let image = stage.image().to_string_lossy().into_owned();
    refused(&stage, &["backup", &image], 3, "format");
    let key = stage.path("new-key").to_string_lossy().into_owned();
    refused(&stage, &["init", "--new-key-file", &key], 2, "packs");
    assert!(!stage.path("new-key").exists());
    fs::write(&format, &good).expect("restore format");
    refused(&stage, &["init"], 2, "already");
    stage.mover.ok(["list"]);
}

#[test]
fn arguments_that_make_no_sense() {
    let stage = Stage::new("bad-arguments");
    let image = stage.image().to_string_lossy().into_owned();
    let mut lines: Vec<(Vec<&str>, i32, &str)> = Vec::new();
    for (flag, value, about) in [
        ("--memory", "lots", "lots"),
        ("--memory", "1KiB", "1024"),
        ("--memory", "99999999999999999999", "too large"),
        ("--threads", "0", "--threads"),
        ("--compression", "lz77", "lz77"),
        ("--compression", "zstd:99", "zstd:99"),
        ("--label", "novalue", "novalue"),
        ("--backup-id", "../../etc", "../../etc"),
        ("--backup-id", ".hidden", ".hidden"),
        ("--volume", &"v".repeat(300), "longer"),
        ("--base-snapshot", "s1", "--changed-blocks"),
        ("--parent", "no-such-backup", "no-such-backup"),
        ("--changed-blocks", "/does/not/exist", "/does/not/exist"),
    ] {
        // leaked for the table's sake
        let value: &str = Box::leak(value.to_owned().into_boxed_str());
        lines.push((vec!["backup", &image, flag, value], 2, about));
    }
    for range in ["", "5", "9..1", "0..99999999", "x+y"] {
        let line = vec!["restore", "v@latest", "/does/not/exist/x", "--range", range];
        lines.push((line, 2, ""));
    }
    lines.push((vec!["restore", "v@latest", "-", "--verify"], 2, "--verify"));
    for command in ["show", "forget", "verify"] {
        lines.push((vec![command, "no-such-backup"], 2, "no-such-backup"));
        lines.push((vec![command, "w@latest"], 2, "w"));
        lines.push((vec![command, ""], 2, ""));
    }
    lines.push((vec!["diff", "v@latest", "nothing"], 2, "nothing"));
    for (line, code, about) in lines {
        refused(&stage, &line, code, about);
    }
}

#[test]
fn prefixes_that_fit_more_than_one() {
    let stage = Stage::new("ambiguous");
    for id in ["same-1", "same-2"] {
        stage.mover.ok([
            p("backup"),
            stage.image(),
            p("--volume"),
            p("v"),
            p("--backup-id"),
            p(id),
        ]);
    }
    let error = refused(&stage, &["show", "same"], 2, "same-1");
    assert!(error.contains("same-2"), "{error}");
    refused(&stage, &["forget", "v@same"], 2, "same-1");
    stage.mover.ok(["show", "same-1"]);
}

#[test]
fn sources_that_cannot_be_backed_up() {
    let stage = Stage::new("bad-sources");
    let directory = stage.directory.path().to_owned();
    fs::write(stage.path("empty"), b"").expect("an empty image");
    let fifo = stage.path("fifo");
    tests::run_ok("mkfifo", [&fifo]);
    refused(&stage, &[p("backup"), stage.path("absent")], 2, "absent");
    refused(&stage, &[p("backup"), directory], 2, "");
    refused(&stage, &[p("backup"), stage.path("empty")], 2, "empty");
    refused(&stage, &[p("backup"), fifo], 2, "fifo");
    refused(&stage, &[p("backup"), p("/dev/zero")], 2, "/dev/zero");
}

#[test]
fn lists_that_are_malformed() {
    let stage = Stage::new("bad-lists");
    let list = stage.path("list");
    for content in [
        "",
        "not json",
        "{",
        "[]]",
        "42",
        "\"text\"",
        "null",
        r#"{"kind":"delta"}"#,
        r#"{"kind":"sideways","extents":[]}"#,
        r#"{"kind":"delta","extents":[{"offset":-1,"len":5}]}"#,
        r#"{"kind":"delta","extents":[{"offset":0,"len":-5}]}"#,
        r#"{"kind":"delta","extents":[{"offset":0.5,"len":5}]}"#,
        r#"{"kind":"delta","extents":[{"offset":18446744073709551615,"len":5}]}"#,
        r#"{"kind":"delta","extents":[{"offset":99999999999999999999,"len":5}]}"#,
        r#"{"kind":"delta","extents":[{"offset":"0","len":5}]}"#,
        r#"{"kind":"delta","extents":[{"offset":0}]}"#,
        r#"{"kind":"delta","volume_size":1,"extents":[]}"#,
        r#"{"kind":"delta","extents":[{"offset":0,"len":5}]"#,
        r#"{"kind":"delta","extents":[{"offset":1000000000000,"len":5}]}"#,
    ] {
        fs::write(&list, content).expect("write a list");
        let before = tree(&stage.repository());
        let line = ["backup", "--volume", "v", "--base-snapshot", "s1", "--changed-blocks"];
        let output =
            stage.mover.run(line.iter().map(|t| p(t)).chain([list.clone(), stage.image()]));
        let code = output.code();
        assert!(code == Some(2) || code == Some(3), "{content}: {}", output.stderr);
        expect_error(output, code.unwrap_or_default(), "list");
        assert!(before == tree(&stage.repository()), "{content}");
    }
}

#[test]
fn deltas_that_do_not_fit() {
    let stage = Stage::new("bad-deltas");
    fs::write(stage.path("list"), r#"{"kind":"delta","extents":[{"offset":0,"len":5}]}"#)
        .expect("write a list");
    let delta = |more: &[&str], about: &str| {
        let mut line = vec![p("backup"), stage.image(), p("--changed-blocks"), stage.path("list")];
        line.extend(more.iter().map(|t| p(t)));
        refused(&stage, &line, 2, about);
    };
    delta(&["--base-snapshot", "s1"], "--volume");
    delta(&["--volume", "v"], "--base-snapshot");
    delta(&["--volume", "v", "--base-snapshot", "no-such-snapshot"], "no-such-snapshot");
    delta(&["--volume", "w", "--base-snapshot", "s1"], "w");
    delta(&["--volume", "v", "--base-snapshot", "s1", "--parent", "none"], "parent");
    let other = ["--volume", "elsewhere", "--base-snapshot", "s1", "--parent", "v@latest"];
    delta(&other, "choose a backup of volume elsewhere, or set --volume");
}

fn stored(directory: &Path, keep: impl Fn(&mut Vec<u8>)) {
    for (path, mut content) in tree(directory) {
        keep(&mut content);
        fs::write(path, content).expect("damage an object");
    }
}

/// Each command on damaged data fails with 3 and says what is damaged.
#[track_caller]
fn damaged(stage: &Stage, commands: &[&str], about: &str) {
    for command in commands {
        let mut line = vec![p(command), p("v@latest")];
        if *command == "restore" {
            line.push(stage.path("target"));
        }
        let output: MoverOutput = stage.mover.run(line);
        expect_error(output, 3, about);
        let _ = fs::remove_file(stage.path("target"));
    }
}

#[test]
fn damaged_objects() {
    let stage = Stage::new("damaged");
    let good = tree(&stage.repository());
    let restore_all = || {
        for (path, content) in &good {
            fs::create_dir_all(path.parent().expect("a directory")).expect("make it");
            fs::write(path, content).expect("restore an object");
        }
    };
    let (packs, backups) = (stage.repository().join("packs"), stage.repository().join("backups"));
    // in the payload of each pack's first entry, behind the headers of pack and entry
    stored(&packs, |content| content[64 + 8 + 5] ^= 0x40);
    damaged(&stage, &["restore", "verify"], "pack");
    restore_all();
    stored(&packs, |content| content.truncate(content.len() / 2));
    damaged(&stage, &["restore", "verify"], "pack");
    fs::remove_dir_all(&packs).expect("remove the packs");
    damaged(&stage, &["restore", "verify"], "pack");
    restore_all();
    stored(&backups, |content| {
        let last = content.len() - 1;
        content[last] ^= 1;
    });
    damaged(&stage, &["restore", "verify", "show"], "backups/v/");
    expect_error(stage.mover.run(["show", &stage.backup_id]), 3, "");
    restore_all();
    stage.mover.ok(["verify", "v@latest"]);
}

#[test]
fn devices_that_differ_from_the_backup() {
    let stage = Stage::new("differs");
    let other = stage.path("other");
    fs::write(&other, random_bytes(super::IMAGE_BYTES)).expect("write another image");
    let device = |path: PathBuf| [p("verify"), p("v@latest"), p("--device"), path];
    refused(&stage, &device(other.clone()), 3, "other");
    fs::write(&other, b"short").expect("write a short image");
    refused(&stage, &device(other), 3, "other");
    refused(&stage, &device(stage.path("absent")), 2, "absent");
    stage.mover.ok(device(stage.image()));
}

#[test]
fn targets_that_are_refused() {
    tests::require_root!();
    let stage = Stage::new("bad-targets");
    let onto = |target: &Path, more: &[&str]| {
        let mut line = vec![p("restore"), p("v@latest"), target.to_owned()];
        line.extend(more.iter().map(|t| p(t)));
        line
    };
    // too small
    fs::write(stage.path("small"), vec![7; 65536]).expect("a small image");
    let small = LoopDevice::attach(&stage.path("small"));
    refused(&stage, &onto(small.path(), &[]), 2, "of that size");
    refused(&stage, &onto(small.path(), &["--force"]), 2, "of that size");
    // a filesystem, and mounted
    let image = fs::File::create(stage.path("fs")).expect("an image");
    image.set_len(16 << 20).expect("size it");
    let device = LoopDevice::attach(&stage.path("fs"));
    tests::run_ok("mkfs.ext4", ["-q".as_ref(), device.path().as_os_str()]);
    let content = fs::read(stage.path("fs")).expect("the filesystem");
    refused(&stage, &onto(device.path(), &[]), 2, "--force");
    let point = work_dir("mounted");
    let mount = Mount::new(device.path(), point.path(), "ext4", "ro");
    refused(&stage, &onto(device.path(), &["--force"]), 2, "mounted");
    drop(mount);
    assert!(content == fs::read(stage.path("fs")).expect("the filesystem"), "it was written to");
    // the source itself, the key, the repository
    refused(&stage, &onto(&stage.image(), &[]), 2, "source");
    refused(&stage, &onto(&stage.key(), &["--force"]), 2, "key");
    let pack = stage.objects("packs").remove(0);
    refused(&stage, &onto(&pack, &["--force"]), 2, "repository");
    refused(&stage, &onto(stage.directory.path(), &["--force"]), 2, "");
    refused(&stage, &onto(&stage.path("no/such/directory"), &[]), 2, "no/such/directory");
}

#[test]
fn targets_that_would_destroy_the_repository_or_the_source() {
    let stage = Stage::new("bad places");
    let url = file_url(&stage.repository()).replace(' ', "%20");
    let escaped = |target: PathBuf| {
        [p("restore"), p("v@latest"), target, p("--force"), p("--repo"), PathBuf::from(&url)]
    };
    refused(&stage, &escaped(stage.repository().join("format")), 2, "repository");
    refused(&stage, &escaped(stage.repository().join("packs/new")), 2, "repository");
    let onto = |target: PathBuf| [p("restore"), p("v@latest"), target];
    refused(&stage, &onto(stage.repository().join("new")), 2, "repository");
    // a file that is no image of that volume
    fs::write(stage.path("thesis.txt"), b"years of work").expect("write a text");
    refused(&stage, &onto(stage.path("thesis.txt")), 2, "--force");
    assert_eq!(fs::read(stage.path("thesis.txt")).expect("the text"), b"years of work");
    // the source, named from another directory than it was backed up from
    fs::create_dir(stage.path("below")).expect("a directory");
    fs::copy(stage.image(), stage.path("below/relative")).expect("copy the image");
    let line = ["backup", "relative", "--volume", "relative"];
    let mut command = stage.mover.command(line);
    let done = MoverOutput::of(command.current_dir(stage.path("below")));
    assert_eq!(done.code(), Some(0), "{}", done.text());
    let line = [p("restore"), p("relative@latest"), stage.path("below/relative")];
    refused(&stage, &line, 2, "source");
    // a new volume under the name of the old one is no source
    fs::write(stage.path("below/relative"), vec![0; super::IMAGE_BYTES]).expect("blank it");
    stage.mover.ok(line);
}
