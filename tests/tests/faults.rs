//! A store behind a line on which things go wrong: each fault alone and all mixed, at every fifth
//! request.
//!
//! A full backup, an incremental one, a restore, a forget and a collection each end within a
//! deadline, either done and right or with a clear error and a documented exit code; after an error
//! the same command works over a sound line. At the end all that is committed restores bit for bit,
//! a collection succeeds, and what is left restores again. How often the store was asked is counted
//! at the line and bounded by what a sound line needs.
//!
//! What is changed on its way up a server refuses that compares bodies with their digests, as Ceph
//! does. moto takes what comes: there it must be found by whoever reads it.
//!
//! `MOVER_TEST_FAULTS=N` is the full size: N seeds, larger volumes, stalls that last, Ceph beside
//! moto.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed; figures are shown; the test's own environment"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tests::{
    FaultCounts, FaultKind, FaultOptions, Mover, MoverOutput, Relay, RelayOptions, Rng, S3Bucket,
    S3Server, write_extents,
};

const MIB: usize = 1 << 20;
const PERCENT: u64 = 20;
/// Requests for one thing beyond those of a sound line: 24 retries at most, and those of a request
/// that is begun anew.
const TRIES_MORE_MAX: u64 = 30;

/// How much of it.
#[derive(Clone, Copy)]
struct Size {
    volume_bytes: usize,
    stall: Duration,
    /// `AWS_TIMEOUT`: of small requests.
    timeout: &'static str,
    /// A command that takes longer hangs.
    deadline_seconds: u64,
}

const SMALL: Size = Size {
    volume_bytes: 6 * MIB,
    stall: Duration::from_secs(3),
    timeout: "1500ms",
    deadline_seconds: 150,
};
const FULL: Size = Size {
    volume_bytes: 48 * MIB,
    stall: Duration::from_secs(3600),
    timeout: "30s",
    deadline_seconds: 900,
};

/// A repository, reached directly and over a bad line.
struct Scene {
    size: Size,
    direct: Mover,
    faulty: Mover,
    relay: Relay,
    place: tempfile::TempDir,
    failures: Vec<String>,
}

fn p(text: &str) -> PathBuf {
    PathBuf::from(text)
}

/// Volume `v` as backup and snapshot `id`.
fn backup_line(source: &Path, id: &str) -> Vec<PathBuf> {
    let line = ["backup", "--quiet", "--volume", "v", "--backup-id", id, "--snapshot", id];
    line.iter().map(|text| p(text)).chain([source.to_owned()]).collect()
}

impl Scene {
    fn new(server: &S3Server, bucket: &S3Bucket, name: &str, size: Size, f: FaultOptions) -> Self {
        let place = tests::work_dir("faults");
        let key = place.path().join("key");
        // only what meets faults has so little time: a busy server is none
        let timeout = (!f.kinds.is_empty()).then_some(("AWS_TIMEOUT", size.timeout));
        let relay = RelayOptions::faulty(address(server), f);
        let relay = Relay::start(relay).unwrap();
        let mover = |endpoint: String| {
            Mover::new()
                .envs(S3Server { endpoint, ..server.clone() }.environment())
                .env("MOVER_REPO", bucket.url(name))
                .env("MOVER_KEY_FILE", &key)
        };
        let faulty = mover(format!("http://{}", relay.address())).envs(timeout);
        let direct = mover(server.endpoint.clone());
        direct.ok([p("init"), p("--quiet"), p("--new-key-file"), key.clone()]);
        Self { size, direct, faulty, relay, place, failures: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// A full backup of a file, over the line of `mover`.
    fn full(&self, mover: &Mover, source: &Path) -> MoverOutput {
        let line = backup_line(source, "full");
        mover.run_within(self.size.deadline_seconds, line)
    }

    /// Over the bad line: done, or a clear error. Whether it is done.
    fn tried(&mut self, what: &str, line: &[PathBuf]) -> bool {
        let output = self.faulty.run_within(self.size.deadline_seconds, line);
        expect_clear(what, &output);
        let failed = output.code() != Some(0);
        if failed {
            let error = output.stderr.lines().last().unwrap_or_default();
            self.failures.push(format!("{what} {}: {error}", output.status));
        }
        !failed
    }

    /// Over the bad line, and if that failed over a sound one.
    fn done(&mut self, what: &str, line: &[PathBuf]) {
        if !self.tried(what, line) {
            self.direct.ok(line);
        }
    }

    fn expect_content(&self, backup: &str, image: &Path, when: &str) {
        let target = self.path("right");
        let _ = fs::remove_file(&target);
        self.direct.ok([p("restore"), p(backup), target.clone(), p("--no-lease")]);
        assert_eq!(tests::first_difference(image, &target), None, "{when}: {backup}");
    }

    /// The whole of it; gives what met what.
    fn run(mut self, mut rng: Rng) -> (FaultCounts, Vec<String>) {
        let (old, new, list) = (self.path("old"), self.path("new"), self.path("list.json"));
        let mut content = rng.bytes(self.size.volume_bytes);
        let zeros = MIB..2 * MIB;
        content[zeros].fill(0);
        fs::write(&old, &content).unwrap();
        self.done("full", &backup_line(&old, "full"));
        let changed = 3 * MIB..4 * MIB;
        rng.fill(&mut content[changed]);
        fs::write(&new, &content).unwrap();
        write_extents(&old, &new, &list);
        let mut line = backup_line(&new, "delta");
        line.extend([p("--changed-blocks"), list, p("--base-snapshot"), p("full")]);
        self.done("incremental", &line);

        let target = self.path("restored");
        if self.tried("restore", &[p("restore"), p("v@full"), target.clone(), p("--force")]) {
            assert_eq!(
                tests::first_difference(&old, &target),
                None,
                "a restore that says it is done"
            );
        }
        self.expect_content("v@full", &old, "before the collection");
        self.expect_content("v@delta", &new, "before the collection");
        self.done("forget", &[p("forget"), p("--quiet"), p("v@full")]);
        self.done("gc", &[p("gc"), p("--quiet")]);
        self.expect_content("v@delta", &new, "after the collection");
        self.direct.ok(["gc", "--quiet"]);
        self.expect_content("v@delta", &new, "after a second one");
        (self.relay.fault_counts().unwrap(), self.failures)
    }
}

fn address(server: &S3Server) -> std::net::SocketAddr {
    server.endpoint.trim_start_matches("http://").parse().expect("IP and port")
}

/// Exit code 0, or one that says what happened, with one error that names the place.
#[track_caller]
fn expect_clear(what: &str, output: &MoverOutput) {
    let all = || format!("{what} {}\n{}", output.status, output.stderr);
    match output.code() {
        Some(0) => return,
        // may pass, or damaged: what a flipped byte in an answer looks like
        Some(1 | 3) => {}
        // a wrapped key with a flipped bit is no key that opens anything
        Some(4) if output.stderr.contains("opens it") => {}
        _ => panic!("{}", all()),
    }
    let errors: Vec<_> = output.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{}", all());
    assert!(errors[0].len() > 40 && !output.stderr.contains("panicked"), "{}", all());
    // a repository, an object or a pack
    assert!(errors[0].contains('/') || errors[0].contains("pack"), "no place: {}", all());
}

/// These kinds, each alone and all of them mixed, each set at once with the others: they mostly
/// wait.
fn all_kinds(server: &S3Server, size: Size, seed: u64, kinds: &[FaultKind]) {
    let mut sets: Vec<Vec<FaultKind>> = kinds.iter().map(|kind| vec![*kind]).collect();
    sets.push(kinds.to_vec());
    all_sets(server, size, seed, sets);
}

fn all_sets(server: &S3Server, size: Size, seed: u64, sets: Vec<Vec<FaultKind>>) {
    let bucket = server.bucket();
    let faults = |kinds: &[FaultKind]| FaultOptions {
        seed,
        percent: PERCENT,
        kinds: kinds.to_vec(),
        only: "",
        stall: size.stall,
    };
    println!("{}: seed {seed}", server.name);
    let (sound, failures) =
        Scene::new(server, &bucket, "sound", size, faults(&[])).run(Rng::seeded(seed));
    assert!(failures.is_empty(), "{failures:?}");
    println!("no fault: {} requests, at most {} alike", sound.requests, sound.most_alike);
    std::thread::scope(|scope| {
        for kinds in sets {
            let (bucket, sound) = (&bucket, &sound);
            scope.spawn(move || {
                let name =
                    if kinds.len() == 1 { format!("{:?}", kinds[0]) } else { "mixed".to_owned() };
                // object_store takes a key with the word in it for an error in an answer
                let name = name.to_lowercase();
                let scene = Scene::new(server, bucket, &name, size, faults(&kinds));
                let (met, failures) = scene.run(Rng::seeded(seed));
                let faults: u64 = met.met.iter().map(|(_, n)| n).sum();
                println!("{name}: {} requests, {faults} faults; {failures:#?}", met.requests);
                assert!(faults > 0, "{name}: nothing went wrong");
                // a request that meets a fault is made again, and some operations are made anew
                let most = sound.requests * 2 + 40;
                assert!(met.requests <= most, "{name}: {} of {}", met.requests, sound.requests);
                let alike = (met.most_alike, &met.most_alike_name);
                assert!(alike.0 <= sound.most_alike + TRIES_MORE_MAX, "{name}: {alike:?}");
            });
        }
    });
}

/// All that moto withstands: it compares no digests.
fn without_uploads() -> Vec<FaultKind> {
    FaultKind::ALL.into_iter().filter(|kind| !kind.is_of_uploads()).collect()
}

#[test]
fn each_fault_alone_and_all_mixed_end_right_or_with_a_clear_error() {
    let moto = tests::require_s3!(moto);
    let Ok(rounds) = std::env::var("MOVER_TEST_FAULTS") else {
        return all_kinds(&moto, SMALL, 4, &without_uploads());
    };
    let ceph = tests::require_s3!(ceph);
    for seed in 0..rounds.parse().unwrap() {
        all_kinds(&moto, SMALL, 100 + seed, &without_uploads());
        all_kinds(&ceph, FULL, 200 + seed, &FaultKind::ALL);
    }
}

#[test]
fn what_is_changed_on_its_way_up_ends_right_or_with_a_clear_error() {
    let ceph = tests::require_s3!(ceph);
    let sets =
        [vec![FaultKind::TruncatedUpload], vec![FaultKind::CorruptedUpload], FaultKind::ALL.into()];
    all_sets(&ceph, SMALL, 5, sets.into());
}

/// A line on which every upload with `only` in its name meets this.
fn uploads_meet(
    server: &S3Server,
    bucket: &S3Bucket,
    kind: FaultKind,
    only: &'static str,
) -> Scene {
    let name = format!("{kind:?}").to_lowercase() + &only.replace('/', "-");
    let stall = SMALL.stall;
    let faults = FaultOptions { seed: 1, percent: 100, kinds: vec![kind], only, stall };
    Scene::new(server, bucket, &name, SMALL, faults)
}

/// It is refused each time, tried again a bounded number of times, and named; nothing is committed,
/// and the same command works over a sound line.
#[test]
fn an_upload_that_never_arrives_as_it_was_sent_is_no_backup() {
    let ceph = tests::require_s3!(ceph);
    let bucket = ceph.bucket();
    // a pack is put again 4 times; a manifest is created in 8 tries, each of which looks for it
    let cases = [
        (FaultKind::CorruptedUpload, "/packs/", 5),
        (FaultKind::CorruptedUpload, "/backups/", 8),
        (FaultKind::TruncatedUpload, "/packs/", 5),
    ];
    std::thread::scope(|scope| {
        for (kind, only, tries) in cases {
            let scene = uploads_meet(&ceph, &bucket, kind, only);
            scope.spawn(move || {
                let what = format!("{kind:?} of {only}");
                let image = scene.path("image");
                fs::write(&image, Rng::seeded(7).bytes(3 * MIB)).unwrap();
                let output = scene.full(&scene.faulty, &image);
                println!("{what}: {}", output.stderr);
                expect_clear(&what, &output);
                assert_eq!(output.code(), Some(1), "{what}");
                let said = &output.stderr;
                assert!(said.contains("did not arrive as it was sent"), "{what}: {said}");
                let met: u64 = scene.relay.fault_counts().unwrap().met.iter().map(|m| m.1).sum();
                // several packs may be under way
                assert!(met >= tries && met <= 8 * tries, "{what}: {met}");
                assert!(!scene.direct.ok(["list"]).text().contains("full"), "{what}");
                let direct = scene.full(&scene.direct, &image);
                assert_eq!(direct.code(), Some(0), "{what}: {}", direct.stderr);
                scene.expect_content("v@full", &image, &what);
                scene.direct.ok(["check", "--read-data=all"]);
            });
        }
    });
}

/// Where a server compares nothing, a restore and a check say what is wrong, and the next backup
/// stores it again.
#[test]
fn what_a_server_took_changed_is_found_by_whoever_reads_it() {
    let moto = tests::require_s3!(moto);
    let bucket = moto.bucket();
    let scene = uploads_meet(&moto, &bucket, FaultKind::CorruptedUpload, "/packs/");
    let image = scene.path("image");
    fs::write(&image, Rng::seeded(8).bytes(3 * MIB)).unwrap();
    assert_eq!(scene.full(&scene.faulty, &image).code(), Some(0), "moto refuses it now");
    let restore = ["restore", "v@full", scene.path("right").to_str().unwrap()].map(p);
    let said = scene.direct.run(&restore).expect_code(3).stderr;
    assert!(said.contains("pack") && said.contains("damaged"), "{said}");
    let found = scene.direct.run(["check", "--read-data=all"]).expect_code(3).text();
    assert!(found.contains("damaged   packs/"), "{found}");
    let repair = scene.direct.run(["check", "--read-data=all", "--repair"]);
    assert_eq!(repair.code(), Some(3), "{}", repair.stderr);
    let output = scene.direct.run(backup_line(&image, "again"));
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    scene.expect_content("v@again", &image, "stored again");
}

/// `list` on a store of which every request meets this; what it says, and what the line saw.
fn always(kind: FaultKind) -> (String, FaultCounts) {
    let server = S3Server::moto().unwrap();
    let bucket = server.bucket();
    let stall = Duration::from_secs(3600);
    let faults = FaultOptions { seed: 1, percent: 0, kinds: vec![kind], only: "", stall };
    let scene = Scene::new(&server, &bucket, "r", SMALL, faults.clone());
    let relay = RelayOptions::faulty(address(&server), FaultOptions { percent: 100, ..faults });
    let relay = Relay::start(relay).unwrap();
    let endpoint = format!("http://{}", relay.address());
    let mover = Mover::new()
        .envs(S3Server { endpoint, ..server.clone() }.environment())
        .env("MOVER_REPO", bucket.url("r"))
        .env("MOVER_KEY_FILE", scene.path("key"));
    let output = mover.run_within(180, ["list"]).expect_code(1);
    let counts = relay.fault_counts().unwrap();
    println!("{}{counts:?}", output.stderr);
    // after the lines that say at once that nobody answers, and that somebody does
    let mut lines: Vec<_> = output.stderr.lines().collect();
    let last = lines.pop().unwrap_or_default();
    assert!(last.starts_with("error: read format in s3://"), "{}", output.stderr);
    assert!(lines.iter().all(|line| line.starts_with("warning: ")), "{lines:?}");
    assert!(lines.len() <= 4, "a line a minute, and that it answers: {lines:?}");
    (output.stderr, counts)
}

/// A store that does nothing but one of these is asked a bounded number of times, for a minute or
/// two, and the error says what it said.
#[test]
fn a_store_that_never_answers_well_is_asked_seldom_and_named() {
    tests::require_s3!(moto);
    std::thread::scope(|scope| {
        let slow_down = scope.spawn(|| always(FaultKind::SlowDown));
        let stall = scope.spawn(|| always(FaultKind::Stall));
        let reset = scope.spawn(|| always(FaultKind::Reset));
        let (said, counts) = slow_down.join().unwrap();
        assert!(said.contains("SlowDown") && said.contains("try again later"), "{said}");
        // at least a second apart, as it asks for, for 40 s
        assert!((2..=24).contains(&counts.requests), "{counts:?}");
        let (said, counts) = stall.join().unwrap();
        assert!(said.contains("no answer in time"), "{said}");
        assert!((1..=3).contains(&counts.requests), "{counts:?}");
        let (said, counts) = reset.join().unwrap();
        assert!(said.contains("the connection broke"), "{said}");
        assert!((2..=5 * 25).contains(&counts.requests), "{counts:?}");
    });
}
