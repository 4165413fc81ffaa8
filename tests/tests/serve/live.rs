//! A live restore: what is on the target is the backup and what clients have written, whatever
//! ends it.

use super::overlay::{change_at_random, copied, qemu_io};
use super::{CHUNK, MIB, SIZE, Server, Stage, text};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};
use tests::{LoopDevice, Mood, Mover, MoverOutput, Recorded, Relay, RelayOptions, Rng, require_s3};

/// So slow that a volume of 32 MiB takes some seconds.
const SLOW: [&str; 2] = ["--limit-download", "4MiB"];

impl Stage {
    /// A live restore of the first backup, until it is dropped.
    fn live(&self, target: &Path, more: &[&str]) -> Server {
        let line = [&["db@b1", text(target), "--live", "--quiet"], more].concat();
        Server::start_as("restore", &self.mover, &self.sockets.path().join("s"), &line)
    }

    /// The same without clients, to its end.
    fn finish(&self, target: &Path, more: &[&str]) -> MoverOutput {
        self.mover.run([&["restore", "db@b1", text(target), "--live", "--quiet"], more].concat())
    }

    pub(crate) fn held(&self) -> bool {
        self.mover.ok(["list", "--json"]).text().contains("\"held\"")
    }
}

/// Until something is so, which it is soon.
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Two connections at random against a model while the volume arrives, then a kill.
#[test]
fn a_model_agrees_while_it_is_restored_and_a_kill_loses_nothing() {
    let Some(stage) = Stage::with_libnbd("serve-live-kill") else { return };
    let seed = Rng::new(0x11fe).next_u64();
    println!("seed {seed}");
    let (target, before, after) = (stage.path("t"), stage.path("before"), stage.path("after"));
    fs::write(&before, &stage.images[0]).unwrap();
    let server = stage.live(&target, &SLOW);
    change_at_random(&server.uri(""), seed, &before, &after);
    server.kill();
    let wanted = fs::read(&after).unwrap();
    let kept = (SIZE - MIB) as usize;
    let server = stage.live(&target, &[]);
    let read = copied(&server.uri(""), &stage.path("copied"));
    let differs = (0..kept).find(|at| read[*at] != wanted[*at]);
    assert_eq!(differs, None, "seed {seed}: the first byte that was lost");
    until("all is there", || !stage.held());
    assert_eq!(server.end(), Some(0), "all was there");
    let written = fs::read(&target).unwrap();
    let differs = (0..kept).find(|at| written[*at] != wanted[*at]);
    assert_eq!(differs, None, "seed {seed}: the first byte of the target");
    // again: it is served as it is, and nothing of the backup lands on it
    let server = stage.live(&target, &["--force"]);
    qemu_io(&server.uri(""), &["write -P 0x77 0 1M", "flush"]).unwrap();
    server.kill();
    assert!(stage.finish(&target, &["--force"]).status.success());
    assert!(fs::read(&target).unwrap()[..MIB as usize].iter().all(|byte| *byte == 0x77));
}

/// Killed a hundred times while it fetches, with a flushed write each time.
#[test]
fn a_hundred_kills_lose_no_byte() {
    let Some(stage) = Stage::new("serve-live-kills", &["qemu-io"]) else { return };
    let seed = Rng::new(0x100).next_u64();
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let whole = |target: &Path, wanted: &[u8]| {
        assert!(stage.finish(target, &[]).status.success());
        let written = fs::read(target).unwrap();
        let differs = (0..wanted.len()).find(|at| written[*at] != wanted[*at]);
        assert_eq!(differs, None, "seed {seed}: the first byte that was lost");
    };
    let mut target = stage.path("t0");
    let mut wanted = stage.images[0].clone();
    let mut unfinished = 0;
    for round in 0..400_u64 {
        let server = stage.live(&target, &["--limit-download", "1MiB"]);
        let byte = (round % 255 + 1) as u8;
        let len = [1, 512, 4096, CHUNK, 3 * CHUNK + 5][(rng.next_u64() % 5) as usize];
        let at = rng.next_u64() % (SIZE - len);
        let write = format!("write -P {byte} {at} {len}");
        qemu_io(&server.uri(""), &[&write, "flush"]).unwrap();
        wanted[at as usize..][..len as usize].fill(byte);
        let is_unfinished = stage.held();
        server.kill();
        unfinished += u64::from(is_unfinished);
        if unfinished == 100 {
            break;
        }
        if !is_unfinished {
            // all was there before the kill: another one
            whole(&target, &wanted);
            fs::remove_file(&target).unwrap();
            target = stage.path(&format!("t{}", round + 1));
            wanted.clone_from(&stage.images[0]);
        }
    }
    assert_eq!(unfinished, 100, "rounds that were killed before the end");
    whole(&target, &wanted);
    // sparse where the backup is
    let plain = stage.path("plain");
    stage.mover.ok(["restore", "db@b1", text(&plain), "--quiet"]);
    let blocks = |path: &Path| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).unwrap());
    assert!(blocks(&target) < blocks(&plain) + 100 * 2 * CHUNK / 512, "holes were filled");
}

#[test]
fn an_unfinished_restore_holds_its_backup() {
    let Some(stage) = Stage::new("serve-live-hold", &["qemu-io"]) else { return };
    let target = stage.path("t");
    let refused = |line: &[&str], words: &str| {
        let output = stage.mover.run(line).expect_code(2);
        assert!(output.stderr.contains(words), "{}", output.stderr);
    };
    let server = stage.live(&target, &SLOW);
    assert!(stage.held());
    refused(&["forget", "db@b1"], "a live restore on");
    server.kill();
    // a signal ends it as an error: it is not whole
    assert_eq!(stage.live(&target, &SLOW).end(), Some(143));
    assert!(stage.held());
    refused(&["forget", "db@b1"], "--abandon");
    assert!(stage.mover.ok(["list"]).text().contains("held"));
    refused(&["forget", "db@b1", "--dry-run"], "a live restore on");
    let kept = stage.mover.ok(["forget", "--keep-last", "1"]).text();
    assert!(kept.contains("a live restore on") && kept.contains("0 backups, 2 stay"), "{kept}");
    let mut rng = Rng::new(4);
    // what nobody needs is not collected either: whoever collects waits
    let noise: Vec<u8> = (0..4 * MIB / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    fs::write(stage.path("noise"), noise).unwrap();
    stage.mover.ok([
        "backup",
        text(&stage.path("noise")),
        "--volume",
        "other",
        "--backup-id",
        "noise",
        "--quiet",
    ]);
    stage.mover.ok(["forget", "other@noise", "--quiet"]);
    let collected = stage.mover.run(["gc"]);
    let said = collected.text() + &collected.stderr;
    assert!(said.contains("a live restore of db@b1"), "{said}");
    assert!(stage.finish(&target, &[]).status.success());
    assert!(!stage.held());
    assert!(fs::read(&target).unwrap() == stage.images[0]);
    // one whose machine is gone
    let lost = stage.path("lost");
    stage.live(&lost, &SLOW).kill();
    fs::remove_file(stage.path("lost.journal")).unwrap();
    refused(&["restore", "db@b2", "--abandon"], "nobody holds it");
    assert!(stage.held());
    stage.mover.ok(["restore", "db@b1", "--abandon"]);
    assert!(!stage.held());
    // one that nobody wants any more
    let unwanted = stage.path("unwanted");
    stage.live(&unwanted, &SLOW).kill();
    stage.mover.ok(["restore", "db@b1", text(&unwanted), "--abandon"]);
    assert!(!stage.held() && !stage.path("unwanted.journal").exists());
    stage.mover.ok(["forget", "db@b1", "--quiet"]);
    stage.mover.ok(["gc", "--quiet"]);
}

/// A second name of a target is no way around what clients wrote.
#[test]
fn a_link_to_a_target_leads_to_its_journal() {
    let Some(stage) = Stage::new("serve-live-link", &["qemu-io"]) else { return };
    let plain = |target: &Path| {
        let output = stage.mover.run(["restore", "db@b1", text(target)]).expect_code(2);
        assert!(output.stderr.contains("a live restore of db@b1"), "{}", output.stderr);
    };
    let (target, link) = (stage.path("t"), stage.path("link"));
    symlink("t", &link).unwrap();
    // begun by the link, when nothing is there yet
    stage.live(&link, &SLOW).kill();
    assert!(stage.path("t.journal").exists() && !stage.path("link.journal").exists());
    plain(&target);
    plain(&link);
    stage.live(&target, &SLOW).kill();
    assert!(stage.finish(&link, &[]).status.success());
    assert!(fs::read(&target).unwrap() == stage.images[0]);
    assert!(link.is_symlink());
    // one of an earlier version is beside the link
    let (old, old_link) = (stage.path("old"), stage.path("old-link"));
    symlink("old", &old_link).unwrap();
    stage.live(&old_link, &SLOW).kill();
    fs::rename(stage.path("old.journal"), stage.path("old-link.journal")).unwrap();
    plain(&old_link);
    assert!(stage.finish(&old_link, &[]).status.success());
    assert!(fs::read(&old).unwrap() == stage.images[0]);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let Some(stage) = Stage::new("serve-live-refused", &["qemu-io"]) else { return };
    let target = stage.path("t");
    let refused = |line: &[&str], words: &str| {
        let output = stage.mover.run([&["restore"], line].concat()).expect_code(2);
        assert!(output.stderr.contains(words), "{words} in {}", output.stderr);
    };
    stage.live(&target, &SLOW).kill();
    let journal = stage.path("t.journal");
    // another backup, another target, another repository's journal, two at once
    refused(&["db@b2", text(&target), "--live"], "it is of db@b1, and db@b2 is named");
    refused(&["db@b1", text(&target)], "a live restore of db@b1");
    let copy = stage.path("copy");
    fs::copy(&target, &copy).unwrap();
    refused(&["db@b1", text(&copy), "--live", "--journal", text(&journal)], "another target");
    let server = stage.live(&target, &SLOW);
    refused(&["db@b1", text(&target), "--live"], "journal");
    refused(&["db@b1", text(&target), "--abandon"], "journal");
    server.kill();
    // whoever can write a journal can say that all is there
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o666)).unwrap();
    let open = stage.finish(&target, &[]).expect_code(4);
    assert!(open.stderr.contains("chmod 600"), "{}", open.stderr);
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o600)).unwrap();
    // cut off it is not what the journal says: zeros would stand for what clients wrote
    let file = fs::OpenOptions::new().write(true).open(&target).unwrap();
    file.set_len(SIZE - 4096).unwrap();
    refused(&["db@b1", text(&target), "--live"], "the volume has");
    assert_eq!(fs::metadata(&target).unwrap().len(), SIZE - 4096);
    file.set_len(SIZE).unwrap();
    let moved = stage.path("moved");
    fs::rename(&target, &moved).unwrap();
    let gone = stage.finish(&target, &[]).expect_code(2);
    assert!(gone.stderr.contains("is not there"), "{}", gone.stderr);
    assert!(!target.exists(), "nothing is made in its place");
    // renamed it is the same
    assert!(stage.finish(&moved, &["--journal", text(&journal)]).status.success());
    // `latest` goes on with the backup that it was when it began
    let late = stage.path("late");
    let server = stage.live(&late, &SLOW);
    server.kill();
    stage.mover.ok(["restore", "db@latest", text(&late), "--live", "--quiet"]);
    assert!(fs::read(&late).unwrap() == stage.images[0]);
    // flags that do not go together, and places for nothing of ours
    refused(&["db@b1", "x", "--live", "--verify"], "--verify with --live");
    refused(&["db@b1", "-", "--live"], "a block device or a file");
    refused(&["db@b1", "x", "--whole-target"], "it is for a live restore");
    refused(&["db@b1", "/dev/nowhere", "--live"], "add --journal FILE");
    refused(&["db@b1", "nbd://localhost/x", "--live", "--journal", text(&stage.path("j"))], "nbd");
    let inside = stage.path("repository/j");
    refused(&["db@b1", "x", "--live", "--journal", text(&inside)], "into the repository");
    // what fails before it begins leaves nothing
    let precious = stage.path("precious");
    fs::write(&precious, b"precious").unwrap();
    refused(&["db@b1", text(&precious), "--live"], "--force");
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert!(!stage.path("precious.journal").exists() && !stage.held());
}

#[test]
fn a_device_has_a_name_and_may_be_larger() {
    tests::require_root!();
    let Some(stage) = Stage::new("serve-live-device", &["nbdcopy", "qemu-io"]) else { return };
    let (file, journal) = (stage.path("disk"), stage.path("j"));
    fs::write(&file, vec![0xee; (SIZE + 3 * MIB + 512) as usize]).unwrap();
    let device = LoopDevice::attach(&file);
    let more = ["--journal", text(&journal), "--whole-target"];
    let server = stage.live(device.path(), &[&SLOW[..], &more].concat());
    let end = SIZE + 2 * MIB;
    qemu_io(&server.uri(""), &[&format!("write -P 9 {end} 70000"), "flush"]).unwrap();
    let read = copied(&server.uri(""), &stage.path("copied"));
    server.kill();
    let mut wanted = stage.images[0].clone();
    wanted.resize((SIZE + 3 * MIB + 512) as usize, 0);
    wanted[end as usize..][..70000].fill(9);
    assert!(read == wanted);
    // its size is that of the journal from now on
    let line = ["--journal", text(&journal)];
    assert!(stage.finish(device.path(), &line).status.success());
    drop(device);
    assert!(fs::read(&file).unwrap() == wanted);
}

/// Bytes that are lost fail for who reads them, a write heals them, and the end says what is not
/// there.
#[test]
fn damage_is_told_and_can_be_written_over() {
    let Some(stage) = Stage::new("serve-live-damage", &["qemu-io"]) else { return };
    for pack in stage.objects("packs") {
        let mut bytes = fs::read(&pack).unwrap();
        if bytes[10] == 1 {
            bytes[64 + 20] ^= 1;
            fs::write(pack, bytes).unwrap();
        }
    }
    let target = stage.path("t");
    let output = stage.finish(&target, &["--json"]).expect_code(3);
    let summary: serde_json::Value =
        serde_json::from_str(output.text().lines().last().unwrap()).unwrap();
    let ranges = summary["damaged"]["ranges"].as_array().unwrap();
    let bytes: u64 = ranges.iter().map(|range| range["len"].as_u64().unwrap()).sum();
    assert!(bytes > 0 && bytes < SIZE / 2 && summary["complete"] == false, "{summary}");
    assert!(stage.held(), "a repair may bring them back");
    let server = stage.live(&target, &[]);
    let (first, mut wanted) = (&ranges[0], stage.images[0].clone());
    let at = first["offset"].as_u64().unwrap();
    let read = format!("read {at} 4096");
    let said = qemu_io(&server.uri(""), &[&read]).unwrap_err();
    assert!(said.contains("Input/output error"), "{said}");
    let part = qemu_io(&server.uri(""), &[&format!("write -P 1 {} 4096", at + 4096)]).unwrap_err();
    assert!(part.contains("Input/output error"), "{part}");
    for range in ranges {
        let number = |name: &str| range[name].as_u64().unwrap();
        let (at, len) = (number("offset"), number("len"));
        qemu_io(&server.uri(""), &[&format!("write -P 0x31 {at} {len}")]).unwrap();
        wanted[at as usize..][..len as usize].fill(0x31);
    }
    until("it is whole", || !stage.held());
    assert_eq!(server.end(), Some(0));
    assert!(fs::read(&target).unwrap() == wanted);
}

/// A store that does not answer, or whose credentials have run out, is waited for; what needs
/// nothing of it goes on.
#[test]
fn a_store_that_is_away_is_waited_for() {
    let Some(stage) = Stage::new("serve-live-away", &["qemu-io"]) else { return };
    let server = require_s3!(moto);
    let address = server.endpoint.trim_start_matches("http://").parse().unwrap();
    let relay = Relay::start(RelayOptions::moody(address)).unwrap();
    let (bucket, key) = (server.bucket(), stage.path("key"));
    let environment = |mover: Mover| {
        let mover = mover.envs(server.environment()).env("MOVER_REPO", bucket.url("r"));
        mover.env("MOVER_KEY_FILE", &key)
    };
    let direct = environment(Mover::new());
    direct.ok(["init", "--quiet", "--new-key-file", text(&key)]);
    let image = stage.path("image");
    fs::write(&image, &stage.images[0]).unwrap();
    direct.ok(["backup", text(&image), "--volume", "db", "--backup-id", "b1", "--quiet"]);
    let endpoint = format!("http://{}", relay.address());
    let away = environment(Mover::new()).env("AWS_ENDPOINT", endpoint);
    let target = stage.path("t");
    let line = ["db@b1", text(&target), "--live", "--limit-download", "1MiB"];
    let live = Server::start_as("restore", &away, &stage.sockets.path().join("s"), &line);
    let message = "The provided token has expired.";
    relay.becomes(Mood::Answers(Recorded::s3("400 Bad Request", "ExpiredToken", message)));
    // of the last data, for which the limit leaves ten seconds: nobody has fetched it yet
    let (absent, written) = (494 * CHUNK, SIZE - 4 * CHUNK);
    let data = &stage.images[0][absent as usize..][..CHUNK as usize];
    assert!(data.iter().any(|byte| *byte != 0), "zeros need no store");
    let mut there = [1; 4096];
    File::open(&target).unwrap().read_exact_at(&mut there, absent).unwrap();
    assert_eq!(there, [0; 4096], "it is on the target already");
    let uri = live.uri("");
    let reader = std::thread::spawn(move || {
        let read = qemu_io(&uri, &[&format!("read {absent} 4096")]);
        (Instant::now(), read)
    });
    let whole = format!("write -P 0x21 {written} 64k");
    qemu_io(&live.uri(""), &[&whole, "flush", &format!("read -P 0x21 {written} 64k")]).unwrap();
    assert!(!reader.is_finished(), "what is absent is waited for");
    let back = Instant::now();
    relay.becomes(Mood::Seeded);
    let (read_at, read) = reader.join().unwrap();
    read.unwrap();
    assert!(read_at >= back);
    until("all is there", || !direct.ok(["list", "--json"]).text().contains("\"held\""));
    assert_eq!(live.end(), Some(0));
    let mut wanted = stage.images[0].clone();
    wanted[written as usize..][..CHUNK as usize].fill(0x21);
    assert!(fs::read(&target).unwrap() == wanted);
}
