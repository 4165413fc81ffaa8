//! How a mount begins and ends; what it keeps, and what it refuses.

use super::super::{PLAIN, Stage};
use super::server::{Mounted, is_mounted, until};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use tests::run_ok;

fn objects(stage: &Stage, folder: &str) -> Vec<PathBuf> {
    fn walk(path: &std::path::Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(path) else { return };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(&stage.path("repository").join(folder), &mut found);
    found
}

/// Forgets and collects all that there is.
fn forget(stage: &Stage) {
    let listed = stage.mover.ok(["list", "--json"]).text();
    let backup: serde_json::Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    let id = format!("db@{}", backup["backup_id"].as_str().unwrap());
    stage.mover.ok(["forget", &id, "--quiet"]);
    stage.mover.ok(["gc", "--quiet"]);
}

/// A backup that is mounted stays readable, though it was forgotten and collected meanwhile.
#[test]
fn a_lease_keeps_what_is_mounted() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let mounted = Mounted::new(&stage, &["db@latest", "--no-lease"]);
    assert!(objects(&stage, "leases").is_empty());
    drop(mounted);
    let mounted = Mounted::new(&stage, &["db@latest"]);
    assert_eq!(objects(&stage, "leases").len(), 1);
    forget(&stage);
    run_ok("cmp", [&mounted.path("volume.img"), &stage.image]);
    assert!(fs::read_dir(mounted.path("files")).unwrap().count() > 5);
    drop(mounted);
    assert!(objects(&stage, "leases").is_empty());
}

/// Of all backups, one has a lease as long as something of it is open, and a while longer.
#[test]
fn of_all_backups_those_in_use_have_leases() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let mounted = Mounted::new(&stage, &[]);
    assert_eq!(fs::read_dir(mounted.path("db")).unwrap().count(), 2);
    assert!(objects(&stage, "leases").is_empty());
    let open = fs::File::open(mounted.path("db/latest/volume.img")).unwrap();
    assert_eq!(objects(&stage, "leases").len(), 1);
    forget(&stage);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut &open, &mut bytes).unwrap();
    assert!(bytes == fs::read(&stage.image).unwrap());
    drop(open);
    drop(mounted);
    assert!(objects(&stage, "leases").is_empty());
}

#[test]
fn signals_and_umount_end_it() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    for signal in ["-TERM", "-INT"] {
        let mut mounted = Mounted::new(&stage, &["db@latest"]);
        mounted.signal(signal);
        let status = mounted.wait();
        assert!(status.success() && !is_mounted(mounted.room()), "{signal}: {status}");
    }
    let mut mounted = Mounted::new(&stage, &["db@latest"]);
    run_ok("umount", [mounted.room()]);
    assert!(mounted.wait().success());
    assert!(objects(&stage, "leases").is_empty());
    // who has a file open hears of it, and ends nothing
    let mut mounted = Mounted::new(&stage, &["db@latest"]);
    let open = fs::File::open(mounted.path("volume.img")).unwrap();
    mounted.signal("-TERM");
    assert!(mounted.wait().success() && !is_mounted(mounted.room()));
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut byte, 90 << 20).unwrap_err();
    assert!(objects(&stage, "leases").is_empty());
}

/// A mount whose process was killed is replaced by the next; others' are not touched.
#[test]
fn a_dead_mount_is_cleared_away() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let mut mounted = Mounted::new(&stage, &["db@latest"]);
    mounted.signal("-KILL");
    assert_eq!(mounted.wait().signal(), Some(9));
    assert!(is_mounted(mounted.room()));
    let e = fs::read_dir(mounted.room()).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()), "{e}");
    let again = Mounted::by(&stage.mover, mounted.room(), &["db@latest"]);
    run_ok("cmp", [&again.path("volume.img"), &stage.image]);
    // one that is alive is refused, and so is a directory with something in it
    let room = again.room().to_str().unwrap().to_owned();
    let refused = |line: &[&str], words: &str| {
        let output = stage.mover.run([&["mount"], line].concat());
        assert!(output.stderr.contains(words), "{line:?}: {}", output.stderr);
        output
    };
    let _ = refused(&["db@latest", &room], "mounted there already").expect_code(2);
    let full = stage.directory.path().to_str().unwrap();
    let _ = refused(&["db@latest", full], "they would be hidden").expect_code(2);
    refused(&["db@latest", &stage.path("none").display().to_string()], "mkdir");
    drop(again);
    refused(&["db@latest", &room, "--partition", "3"], "partition");
    assert!(!is_mounted(std::path::Path::new(&room)));
}

/// Damage is an error for the bytes that need it, and for nobody else.
#[test]
fn damage_fails_its_own_bytes_only() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    for pack in objects(&stage, "packs") {
        let mut bytes = fs::read(&pack).unwrap();
        if bytes[10] == 1 && bytes.len() > 400_000 {
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            fs::write(pack, bytes).unwrap();
        }
    }
    let mounted = Mounted::new(&stage, &["db@latest"]);
    let image = fs::File::open(mounted.path("volume.img")).unwrap();
    let wanted = fs::read(&stage.image).unwrap();
    let (mut bad, mut good) = (0, 0);
    for at in (0..wanted.len()).step_by(4096) {
        let mut block = [0; 4096];
        match std::os::unix::fs::FileExt::read_exact_at(&image, &mut block, at as u64) {
            Ok(()) => {
                assert!(block[..] == wanted[at..at + 4096], "block at {at}");
                good += 1;
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{e}");
                bad += 1;
            }
        }
    }
    assert!(bad > 0 && good > bad, "{bad} bad blocks, {good} good ones");
}

/// A store that answers nothing keeps nobody who is killed, and does not keep the end.
#[test]
fn a_reader_that_is_killed_ends_though_the_store_is_away() {
    let Some(stage) = Stage::new(&PLAIN) else { return };
    let mut mounted = Mounted::new(&stage, &["db@latest"]);
    let packs = objects(&stage, "packs");
    // a pack that never ends to be opened: nobody writes to it
    for pack in &packs {
        fs::rename(pack, pack.with_extension("away")).unwrap();
        run_ok("mkfifo", [pack]);
    }
    let image = mounted.path("volume.img");
    let mut reader =
        Command::new("cat").arg(&image).stdout(std::process::Stdio::null()).spawn().unwrap();
    let waits = format!("/proc/{}/wchan", reader.id());
    until("it waits", || {
        assert!(reader.try_wait().unwrap().is_none(), "the reader has ended");
        fs::read_to_string(&waits)
            .is_ok_and(|place| place.contains("fuse") || place.contains("folio"))
    });
    reader.kill().unwrap();
    until("it ends", || reader.try_wait().unwrap().is_some());
    for pack in &packs {
        fs::remove_file(pack).unwrap();
        fs::rename(pack.with_extension("away"), pack).unwrap();
    }
    mounted.signal("-TERM");
    let status = mounted.wait();
    assert!(!is_mounted(mounted.room()), "{status}");
}
