//! Exports that are written: what clients write stays, the backup below stays as it is.

use super::{CHUNK, MIB, SIZE, Stage, text};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use tests::{Filesystem, LoopDevice, Mount, run, run_ok};

/// What QEMU's client does, one command after the other; all of it, or what went wrong.
pub(crate) fn qemu_io(uri: &str, commands: &[&str]) -> Result<String, String> {
    let mut line = vec!["-f", "raw"];
    commands.iter().for_each(|command| line.extend(["-c", command]));
    line.push(uri);
    let output = run("qemu-io", line);
    let done = output.status.success();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let failed = ["rror", "failed", "verification", "No space", "not permitted"];
    if !done || failed.iter().any(|word| said.contains(word)) { Err(said) } else { Ok(said) }
}

/// All bytes of an export.
pub(crate) fn copied(uri: &str, to: &Path) -> Vec<u8> {
    let _ = fs::remove_file(to);
    run_ok("nbdcopy", [uri, text(to)]);
    fs::read(to).unwrap()
}

/// Two connections that change a volume at random, checked against a model, whose state at the last
/// flush goes to `after`. The last MiB is not flushed.
pub(crate) fn change_at_random(uri: &str, seed: u64, before: &Path, after: &Path) {
    let arguments = [uri, &seed.to_string(), text(before), text(after)]
        .map(|argument| format!("{argument:?}"))
        .join(", ");
    let model = include_str!("overlay_model.py");
    let script = format!("import nbd\nargv = [{arguments}]\n{model}");
    let said = run_ok("/usr/bin/python3", ["-c", &script]);
    assert!(said.contains("done"), "{said}");
}

#[test]
fn what_is_written_stays_and_the_backup_stays_as_it_is() {
    let Some(stage) = Stage::new("serve-overlay", &["qemu-io", "nbdcopy"]) else { return };
    let overlay = stage.path("overlay");
    let line = ["db@b1", "--overlay", text(&overlay)];
    let commands = [
        "write -P 0x5a 1000 5000",
        "read -P 0x5a 1000 5000",
        "write -z 3M 300k",
        "write -z -u 5M 300k",
        "discard 8M 1M",
        "flush",
        "write -f -P 0x11 10M 3M",
    ];
    let server = stage.serve(&line);
    qemu_io(&server.uri(""), &commands).unwrap();
    let first = copied(&server.uri(""), &stage.path("copied"));
    drop(server);
    let mut wanted = stage.images[0].clone();
    let mut fill = |at: u64, len: u64, byte| wanted[at as usize..][..len as usize].fill(byte);
    fill(1000, 5000, 0x5a);
    fill(3 * MIB, 300 << 10, 0);
    fill(5 * MIB, 300 << 10, 0);
    fill(8 * MIB, MIB, 0);
    fill(10 * MIB, 3 * MIB, 0x11);
    assert!(first == wanted);
    for file in ["overlay", "overlay.journal"] {
        assert_eq!(fs::metadata(stage.path(file)).unwrap().mode() & 0o777, 0o600, "{file}");
    }
    // a file of another server's, and a whole image copied over all of it
    let server = stage.serve(&line);
    assert!(copied(&server.uri(""), &stage.path("copied")) == wanted);
    let image = stage.path("new");
    fs::write(&image, &stage.images[1]).unwrap();
    run_ok("nbdcopy", ["--flush", text(&image), &server.uri("")]);
    drop(server);
    let server = stage.serve(&line);
    assert!(copied(&server.uri(""), &stage.path("copied")) == stage.images[1]);
    drop(server);
    let restored = stage.path("restored");
    stage.mover.ok(["restore", "db@b1", text(&restored), "--quiet"]);
    assert!(fs::read(&restored).unwrap() == stage.images[0]);
}

/// Two connections at random against a model, then a kill: what was flushed is there.
#[test]
fn a_model_agrees_and_a_kill_loses_nothing_that_was_flushed() {
    let Some(stage) = Stage::with_libnbd("serve-overlay-kill") else { return };
    let seed = tests::Rng::new(0x0ae5).next_u64();
    println!("seed {seed}");
    let (overlay, before, after) = (stage.path("ov"), stage.path("before"), stage.path("after"));
    fs::write(&before, &stage.images[0]).unwrap();
    let line = ["db@b1", "--overlay", text(&overlay)];
    let server = stage.serve(&line);
    change_at_random(&server.uri(""), seed, &before, &after);
    server.kill();
    let server = stage.serve(&line);
    let kept = (SIZE - MIB) as usize;
    let (read, wanted) = (copied(&server.uri(""), &stage.path("copied")), fs::read(after).unwrap());
    let differs = (0..kept).find(|at| read[*at] != wanted[*at]);
    assert_eq!(differs, None, "seed {seed}: the first byte that was lost");
}

#[test]
fn a_temporary_overlay_leaves_nothing_and_each_export_has_its_own() {
    let Some(stage) = Stage::new("serve-overlay-temp", &["qemu-io"]) else { return };
    let scratch = stage.path("scratch");
    fs::create_dir(&scratch).unwrap();
    let line = ["db@b1", "db@b2", "--overlay", "temp", "--scratch", text(&scratch)];
    let server = stage.serve(&line);
    let write = ["write -P 0x5a 0 1M", "flush", "read -P 0x5a 0 1M"];
    qemu_io(&server.uri("db@b1"), &write).unwrap();
    qemu_io(&server.uri("db@b2"), &["read -P 0x5a 0 1M"]).unwrap_err();
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
    drop(server);
    let server = stage.serve(&line);
    qemu_io(&server.uri("db@b1"), &["read -P 0x5a 0 1M"]).unwrap_err();
    drop(server);
    assert!(!Path::new("temp").exists());
}

#[test]
fn an_overlay_is_taken_for_its_own_backup_by_one_server_only() {
    let Some(stage) = Stage::new("serve-overlay-refused", &["qemu-io"]) else { return };
    let overlay = stage.path("ov");
    let serve = |backup: &str, file: &Path, code: i32, words: &str| {
        let line = ["serve", backup, "--overlay", text(file), "--run", "true"];
        let output = stage.mover.run(line).expect_code(code);
        assert!(output.stderr.contains(words), "{}", output.stderr);
        assert!(code == 0 || output.stderr.contains("; "), "{}", output.stderr);
    };
    let server = stage.serve(&["db@b1", "--overlay", text(&overlay)]);
    qemu_io(&server.uri(""), &["write -P 0x5a 0 1M", "flush"]).unwrap();
    serve("db@b1", &overlay, 2, "another process serves it");
    drop(server);
    serve("db@b2", &overlay, 2, "it lies over backup db@b1");
    serve("db@b1", &overlay, 0, "");
    // what is no overlay is left as it is
    let (file, link) = (stage.path("file"), stage.path("link"));
    fs::write(&file, b"precious").unwrap();
    serve("db@b1", &file, 2, "is no overlay");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert!(!stage.path("file.journal").exists());
    symlink(&overlay, &link).unwrap();
    serve("db@b1", &link, 2, "it is a symbolic link");
    serve("db@b1", stage.directory.path(), 2, "directory");
    // one of two files, others' rights, a header and a length that are not as they were
    let (journal, away) = (stage.path("ov.journal"), stage.path("away"));
    fs::rename(&journal, &away).unwrap();
    serve("db@b1", &overlay, 2, "its journal is missing");
    fs::rename(&away, &journal).unwrap();
    fs::rename(&overlay, &away).unwrap();
    serve("db@b1", &overlay, 2, "it is missing, and its journal is there");
    fs::rename(&away, &overlay).unwrap();
    fs::set_permissions(&overlay, fs::Permissions::from_mode(0o644)).unwrap();
    serve("db@b1", &overlay, 4, "others may read or write it");
    fs::set_permissions(&overlay, fs::Permissions::from_mode(0o600)).unwrap();
    let whole = fs::read(&overlay).unwrap();
    for (bytes, code, words) in [
        (&whole[..100], 3, "its header does not check"),
        (&whole[..whole.len() - 1], 3, "bytes, and not"),
        (&[&whole[..40], b"X", &whole[41..]].concat()[..], 3, "its header does not check"),
    ] {
        fs::write(&overlay, bytes).unwrap();
        serve("db@b1", &overlay, code, words);
    }
    fs::write(&overlay, &whole).unwrap();
    // a server that was killed before anything was flushed leaves a journal, maybe without the file
    let (fresh, fresh_journal) = (stage.path("fresh"), stage.path("fresh.journal"));
    serve("db@b1", &fresh, 0, "");
    fs::remove_file(&fresh).unwrap();
    assert!(fresh_journal.exists());
    serve("db@b1", &fresh, 0, "");
    // the files of two overlays
    fs::rename(&overlay, &fresh).unwrap();
    serve("db@b1", &fresh, 2, "another overlay's");
    fs::rename(&fresh, &overlay).unwrap();
    // one file for several
    let line = ["serve", "db@b1", "db@b2", "--overlay", text(&overlay), "--run", "true"];
    let output = stage.mover.run(line).expect_code(2);
    assert!(output.stderr.contains("it is for one backup, and 2 are served"), "{}", output.stderr);
    let server = stage.serve(&["db@b1", "--overlay", text(&overlay)]);
    qemu_io(&server.uri(""), &["read -P 0x5a 0 1M"]).unwrap();
}

#[test]
fn a_full_disk_is_told_and_harms_nothing_else() {
    tests::require_root!();
    let Some(stage) = Stage::new("serve-overlay-full", &["qemu-io"]) else { return };
    let point = tempfile::tempdir().unwrap();
    let _mount = Mount::new("none".as_ref(), point.path(), "tmpfs", "size=4m");
    let overlay = point.path().join("ov");
    let line = ["db@b1", "--overlay", text(&overlay)];
    let server = stage.serve(&line);
    let uri = server.uri("");
    qemu_io(&uri, &["write -P 0x5a 0 1M", "flush"]).unwrap();
    let said = qemu_io(&uri, &["write -P 0x33 4M 4M"]).unwrap_err();
    assert!(said.contains("No space left on device"), "{said}");
    qemu_io(&uri, &["read -P 0x5a 0 1M", "flush", "read 2M 1M"]).unwrap();
    // room that is given back is there again
    qemu_io(&uri, &["discard 0 8M", "write -P 0x44 1M 1M", "flush"]).unwrap();
    drop(server);
    let server = stage.serve(&line);
    qemu_io(&server.uri(""), &["read -P 0x44 1M 1M", "read -P 0 0 1M"]).unwrap();
}

/// The state of blocks is that of what a client reads.
#[test]
fn what_is_written_is_no_hole_and_has_changed() {
    let Some(stage) = Stage::new("serve-overlay-map", &["qemu-io", "nbdinfo"]) else { return };
    let line = ["db@b2", "--overlay", "temp", "--changed-since", "db@b1"];
    let server = stage.serve(&line);
    let uri = server.uri("");
    let states = |context: &str| {
        let map = run_ok("nbdinfo", ["--json", &format!("--map={context}"), &uri]);
        let map: serde_json::Value = serde_json::from_str(&map).unwrap();
        let mut states = Vec::new();
        for extent in map.as_array().unwrap() {
            let number = |name: &str| extent[name].as_u64().unwrap();
            let chunks = number("offset") / CHUNK..(number("offset") + number("length")) / CHUNK;
            states.extend(chunks.map(|_| number("type")));
        }
        assert_eq!(states.len() as u64, SIZE / CHUNK);
        states
    };
    let (base, delta) = ("base:allocation", "mover:changed-since=b1");
    let (mut allocated, mut changed) = (states(base), states(delta));
    let chunk_that = |is: u64| {
        let both = allocated.iter().zip(&changed);
        both.into_iter().position(|both| both == (&is, &0)).expect("the backups have such a chunk")
    };
    let (hole, data) = (chunk_that(3), chunk_that(0));
    let at = |chunk: usize| chunk as u64 * CHUNK;
    let (write, discard) =
        (format!("write -P 9 {} 5", at(hole)), format!("discard {} 64k", at(data)));
    qemu_io(&uri, &[&write, &discard]).unwrap();
    (allocated[hole], allocated[data]) = (0, 3);
    (changed[hole], changed[data]) = (1, 1);
    assert_eq!(states(base), allocated);
    assert_eq!(states(delta), changed);
}

/// A file system in a backup is mounted, changed, and whole afterwards.
#[test]
fn a_file_system_is_mounted_to_be_written() {
    tests::require_root!();
    let Some(stage) = Stage::new("serve-overlay-ext4", &["nbdfuse", "nbdcopy"]) else { return };
    let image = stage.path("fs");
    fs::File::create(&image).unwrap().set_len(64 * MIB).unwrap();
    Filesystem::Ext4.make(&image);
    stage.mover.ok(["backup", text(&image), "--volume", "fs", "--backup-id", "f1", "--quiet"]);
    let overlay = stage.path("ov");
    let line = ["fs@f1", "--overlay", text(&overlay)];
    let server = stage.serve(&line);
    let (fuse, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let content: Vec<u8> = (0..5 * MIB).map(|at| (at / 7) as u8).collect();
    {
        let attached = Attached::new(&server.uri(""), fuse.path());
        let device = LoopDevice::attach_cached(&attached.0.join("nbd"));
        let mount = Mount::new(device.path(), files.path(), "ext4", "rw");
        fs::create_dir(mount.path().join("d")).unwrap();
        fs::write(mount.path().join("d/file"), &content).unwrap();
        run_ok("sync", ["-f", text(mount.path())]);
    }
    drop(server);
    let server = stage.serve(&line);
    let copy = stage.path("copy");
    copied(&server.uri(""), &copy);
    Filesystem::Ext4.check(&copy);
    let device = LoopDevice::attach_read_only(&copy);
    let mount = Mount::new(device.path(), files.path(), "ext4", "ro");
    assert!(fs::read(mount.path().join("d/file")).unwrap() == content);
}

/// An export as a file, until it is dropped.
pub(crate) struct Attached(pub(crate) std::path::PathBuf, std::process::Child);

impl Attached {
    pub(crate) fn new(uri: &str, directory: &Path) -> Self {
        let child = std::process::Command::new("nbdfuse").arg(directory).arg(uri).spawn().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !directory.join("nbd").exists() {
            assert!(std::time::Instant::now() < end, "nbdfuse does not begin");
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
        Self(directory.to_owned(), child)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        run("fusermount3", ["-u", text(&self.0)]);
        let _ = self.1.wait();
    }
}
