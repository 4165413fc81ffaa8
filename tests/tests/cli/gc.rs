//! `gc`: what it says, and what it deletes.

use super::{Stage, expect_error, p};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

/// A stage whose first backup was forgotten, with another one of other content.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name);
    fs::write(stage.path("other"), super::random_bytes(200_000)).expect("write an image");
    let line = ["backup", "--quiet", "--volume", "w", "--backup-id", "other"];
    stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.path("other")]));
    stage.mover.ok(["forget", "--quiet", &stage.backup_id]);
    stage
}

#[test]
fn a_dry_run_says_what_a_collection_then_frees() {
    let stage = stage("gc");
    let all = stage.objects("");
    let dry = stage.mover.ok(["gc", "--dry-run", "--json"]).summary();
    assert_eq!(stage.objects(""), all);
    let text = stage.mover.ok(["gc", "--dry-run"]).text();
    for word in ["stored", "in use", "garbage", "would free", "would take"] {
        assert!(text.contains(word), "{word}\n{text}");
    }
    let done = stage.mover.ok(["gc", "--json"]).summary();
    for figure in ["condemned_packs", "condemned_bytes", "forgotten_backups"] {
        assert!(done[figure].as_u64() > Some(0), "{done}");
        assert_eq!(done[figure], dry[figure], "{figure}");
    }
    assert_eq!(done["deleted_bytes"], dry["condemned_bytes"]);
    assert_eq!(done["backups"], 1);
    assert!(done["requests"]["deletes"].as_u64() > Some(0), "{done}");
    assert!(stage.objects("leases").is_empty() && stage.objects("packs").len() < all.len());
    let back = stage.path("back");
    stage.mover.ok([p("restore"), p("w@other"), back.clone(), p("--verify")]);
    assert_eq!(fs::read(back).expect("restored"), fs::read(stage.path("other")).expect("image"));

    let again = stage.mover.ok(["gc"]).text();
    assert!(again.contains("0 B in 0 packs") && again.contains("requests"), "{again}");
    assert_eq!(stage.mover.ok(["gc", "--quiet"]).text(), "");
}

#[test]
fn somebody_at_work_is_waited_for_and_named() {
    let stage = stage("gc-waits");
    // a restore into a pipe that nobody reads is at work for as long as that lasts
    let mut command = stage.mover.command(["restore", "w@other", "-"]);
    let mut reader = command.stdout(Stdio::piped()).spawn().expect("start a restore");
    while stage.objects("leases").is_empty() {
        assert!(reader.try_wait().expect("look at it").is_none(), "it ended without a lease");
        std::thread::yield_now();
    }
    let packs = stage.objects("packs").len();
    let waiting = stage.mover.ok(["gc"]);
    assert!(waiting.stderr.contains("a reader of w@other"), "{}", waiting.stderr);
    assert_eq!(stage.objects("packs").len(), packs);
    let output = reader.wait_with_output().expect("read the rest");
    assert_eq!(output.stdout, fs::read(stage.path("other")).expect("image"));
    let done = stage.mover.ok(["gc", "--json"]).summary();
    assert!(done["deleted_packs"].as_u64() > Some(0), "{done}");
}

/// What nobody has written to since a day.
fn old_file(path: &Path) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("make it");
    fs::write(path, "of somebody").expect("write a file");
    make_old(path);
}

/// A day old, by the clock of its file system.
fn make_old(path: &Path) {
    let file = fs::File::options().write(true).open(path).expect("open it");
    file.set_modified(SystemTime::now() - Duration::from_secs(86400)).expect("make it old");
}

#[test]
fn files_of_others_stay_and_those_of_killed_writers_go() {
    let stage = stage("gc-others");
    let repository = stage.repository();
    let pack = stage.objects("packs").pop().expect("a pack");
    let leftover = PathBuf::from(format!("{}#7", pack.display()));
    let others = ["Comics/Issue #42", "Comics/abc#1", "packs/photo#1", "packs/ab/photo#1"]
        .map(|name| repository.join(name));
    others.iter().chain([&leftover]).for_each(|path| old_file(path));
    // what was overwritten, when a process of this number asked for the time
    let victim = stage.path("victim");
    old_file(&victim);
    for pid in std::process::id()..std::process::id() + 3000 {
        symlink(&victim, repository.join(format!("clock-{pid}#0"))).expect("plant a link");
    }
    let done = stage.mover.ok(["gc", "--json"]).summary();
    for path in others.iter().chain([&victim]) {
        let left = fs::read_to_string(path).unwrap_or_default();
        assert_eq!(left, "of somebody", "{}", path.display());
    }
    assert!(!leftover.exists());
    assert_eq!(done["deleted_leftovers"], 1, "{done}");
    assert_eq!(done["leftover_bytes"], "of somebody".len(), "{done}");
    old_file(&leftover);
    let text = stage.mover.ok(["gc"]).text();
    assert!(text.contains("1 temporary files of killed runs"), "{text}");
}

#[test]
fn no_repository_is_made_among_other_things() {
    let stage = Stage::new("init-others");
    let library = stage.path("library");
    fs::create_dir_all(library.join("Comics")).expect("make a directory");
    let key = stage.path("another-key");
    let init = |place: &Path| {
        stage.mover.run([
            p("init"),
            p("--quiet"),
            p("--repo"),
            place.to_path_buf(),
            p("--new-key-file"),
            key.clone(),
        ])
    };
    expect_error(init(&library), 2, "\"Comics\"");
    assert!(!key.exists(), "a key for nothing");
    assert_eq!(fs::read_dir(&library).expect("list it").count(), 1);
    fs::rename(library.join("Comics"), library.join("lost+found")).expect("rename it");
    assert_eq!(init(&library).code(), Some(0));
}

#[test]
fn who_was_taken_for_dead_says_so_at_once_and_commits_all_the_same() {
    // a writer that is held still in the middle of a beat brings its lease back, and hears of the
    // fence only when it commits
    let at_once = (0..10).any(|attempt| {
        let stage = Stage::new(&format!("gc-comes-back-{attempt}"));
        let image = stage.path("large");
        fs::write(&image, super::random_bytes(24 << 20)).expect("write an image");
        let at_once = is_taken_for_dead(&stage, &image);
        let back = stage.path("back");
        stage.mover.ok([p("restore"), p("w@latest"), back.clone(), p("--verify")]);
        assert_eq!(tests::first_difference(&image, &back), None);
        at_once
    });
    assert!(at_once, "no writer said at once that it was taken for dead");
}

/// Backs up while a collection takes the run for dead, and lets it end well; whether it said so
/// before it had stored all.
fn is_taken_for_dead(stage: &Stage, image: &Path) -> bool {
    let line = ["backup", "--json", "--no-progress", "--volume", "w", "--snapshot", "s"];
    let pace = ["--limit-read", "4MiB", "--checkpoint-interval", "4MiB"];
    let line = line.iter().chain(&pace).map(|text| p(text)).chain([image.to_path_buf()]);
    // a file that is still being written is no pack yet
    let packs = || {
        let names = stage.objects("packs");
        names.iter().filter(|path| !path.to_string_lossy().contains('#')).count()
    };
    let (before, mut command) = (packs(), stage.mover.command(line));
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
    while packs() == before {
        assert!(child.try_wait().expect("look at it").is_none(), "it ended without a pack");
        std::thread::yield_now();
    }
    // it cannot beat before the collection looks
    let process = rustix::process::Pid::from_child(&child);
    let signal = |signal| rustix::process::kill_process(process, signal).expect("a signal");
    signal(rustix::process::Signal::STOP);
    let stopped = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("its state");
        stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
    };
    while !stopped() {
        std::thread::yield_now();
    }
    let leases = stage.objects("leases");
    assert!(!leases.is_empty(), "it has a lease");
    leases.iter().for_each(|lease| make_old(lease));
    let gc = stage.mover.ok(["gc", "--json"]).summary();
    assert!(gc["deleted_packs"].as_u64() > Some(0), "{gc}");
    signal(rustix::process::Signal::CONT);
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut said = String::new();
    while !said.contains("taken for dead") {
        if stderr.read_line(&mut said).expect("UTF-8") == 0 {
            break;
        }
    }
    let at_once = said.contains("taken for dead");
    if at_once {
        // one more is busy beside it: what it stores under its new lease stays
        let is_lease = |path: &PathBuf| !path.to_string_lossy().contains('#');
        while !stage.objects("leases").iter().any(is_lease) {
            assert!(child.try_wait().expect("look at it").is_none(), "it goes on");
        }
        let again = stage.mover.ok(["gc", "--json"]).summary();
        assert_eq!(again["deleted_packs"], 0, "it has a lease: {again}");
    }
    let output = child.wait_with_output().expect("wait for it");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("stored again"), "{said}{text}");
    at_once
}
