//! `--max-upload`, `--max-requests`, `--deadline`: a run that is cut goes on, again and again,
//! until all is done.

use super::{Stage, expect_error, p};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use tests::{MoverOutput, Rng};

const MIB: u64 = 1 << 20;
/// Of the volume.
const BYTES: u64 = 40 * MIB;
/// A volume that cannot be compressed takes so many runs at most, whatever cuts them.
const RUNS_MAX: u64 = 60;
/// What a run may have read behind its last checkpoint: the interval, a map page, and what is
/// between the device and the store.
const AGAIN_BYTES: u64 = 10 * MIB;

/// A repository with small map pages, and a volume of noise.
struct Cut {
    stage: Stage,
    image: PathBuf,
}

impl Cut {
    fn new(name: &str) -> Self {
        let mut stage = Stage::new(name);
        let place = stage.path("small-pages");
        let key = stage.key();
        stage.mover = stage
            .mover
            .env("MOVER_REPO", super::file_url(&place))
            .env("MOVER_MEMORY", "64MiB")
            .env("MOVER_THREADS", "2");
        stage.mover.ok([p("init"), p("-q"), p("--page-fanout"), p("16"), p("--new-key-file"), key]);
        let image = stage.path("volume");
        let len = usize::try_from(BYTES).expect("small");
        fs::write(&image, Rng::new(67).bytes(len)).expect("write the image");
        Self { stage, image }
    }

    fn run(&self, args: &[&str]) -> MoverOutput {
        let fixed =
            ["backup", "--json", "--volume", "w", "--snapshot", "s", "--compression", "none"];
        let line = fixed.iter().chain(["--checkpoint-interval", "1MiB"].iter()).chain(args);
        self.stage.mover.run(line.map(|text| p(text)).chain([self.image.clone()]))
    }

    /// Runs until it is committed; looks at each summary on the way. Gives how often it was cut.
    fn again_and_again(&self, flag: &str, value: &str, look: impl Fn(&Value)) -> u64 {
        let log = self.stage.path("termination-log");
        let args = [flag, value, "--termination-log", log.to_str().expect("UTF-8")];
        let (mut cuts, mut read) = (0, 0);
        loop {
            let run = self.run(&args);
            let summary = run.summary();
            read += summary["read_bytes"].as_u64().expect("a number");
            let ended: Value =
                serde_json::from_slice(&fs::read(&log).expect("a message")).expect("JSON");
            assert_eq!(ended["summary"]["outcome"], summary["outcome"]);
            if run.code() == Some(0) {
                assert_eq!(summary["outcome"], "committed", "{summary}");
                break;
            }
            let run = run.expect_code(6);
            cuts += 1;
            assert!(cuts < RUNS_MAX, "it does not get anywhere: {}", run.stderr);
            let line = run.stderr.lines().last().expect("an error");
            let error: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!((&error["kind"], &error["exit_code"]), (&"limit".into(), &6.into()));
            let message = error["message"].as_str().expect("text");
            assert!(message.contains(flag) && message.contains("is reached"), "{message}");
            assert_eq!(summary["outcome"], "stopped", "{summary}");
            assert_eq!((&ended["state"], &ended["retryable"]), (&"stopped".into(), &true.into()));
            look(&summary);
        }
        assert!(read <= BYTES + cuts * AGAIN_BYTES, "{read} bytes were read with {cuts} cuts");
        let back = self.stage.path("back");
        self.stage.mover.ok([p("restore"), p("-q"), p("w@latest"), back.clone()]);
        assert!(fs::read(&back).expect("restored") == fs::read(&self.image).expect("the image"));
        assert_eq!(self.stage.mover.ok(["list", "--json"]).json_lines().len(), 1);
        self.stage.mover.ok(["check", "-q", "--read-data"]);
        cuts
    }
}

#[test]
fn a_backup_is_made_in_pieces_of_some_megabytes() {
    const MOST: u64 = 8 * MIB;
    let cut = Cut::new("max-upload");
    let cuts = cut.again_and_again("--max-upload", "8MiB", |summary| {
        let sent = summary["uploaded_bytes"].as_u64().expect("a number");
        assert!(sent <= MOST + MIB, "{summary}");
        assert!(summary["stored_bytes"].as_u64() > Some(0), "{summary}");
    });
    // no more than eight megabytes go at once, and not much less
    assert!((BYTES / MOST..=BYTES / (MOST / 2)).contains(&cuts), "{cuts}");
}

#[test]
fn a_backup_is_made_in_pieces_of_some_requests() {
    const MOST: u64 = 60;
    let cut = Cut::new("max-requests");
    let cuts = cut.again_and_again("--max-requests", &MOST.to_string(), |summary| {
        let kinds = ["gets", "puts", "creates", "heads", "lists", "deletes", "failed_tries"];
        let made: u64 =
            kinds.iter().map(|kind| summary["requests"][kind].as_u64().expect("a number")).sum();
        assert!(made <= MOST + 24, "{summary}");
    });
    assert!(cuts > 0);
}

#[test]
fn a_backup_is_made_in_windows() {
    let mut cut = Cut::new("deadline");
    // five seconds' work at that rate
    cut.stage.mover = cut.stage.mover.env("MOVER_LIMIT_READ", "8MiB");
    let cuts = cut.again_and_again("--deadline", "3s", |_| {});
    assert!(cuts > 0);
}

#[test]
fn a_bound_in_which_nothing_can_be_done_is_said_to_be_too_small() {
    let cut = Cut::new("too-small");
    for (flag, value) in [("--max-upload", "1MiB"), ("--max-upload", "0"), ("--max-requests", "25")]
    {
        let output = cut.run(&[flag, value]).expect_code(2);
        let line = output.stderr.lines().last().expect("an error");
        assert!(line.contains(flag) && line.contains("too small"), "{line}");
    }
    let image = cut.image.to_str().expect("UTF-8");
    for (flag, value) in [("--deadline", "0"), ("--deadline", "soon"), ("--max-upload", "much")] {
        expect_error(cut.stage.mover.run(["backup", image, flag, value]), 2, flag);
    }
    // and one that is not reached changes nothing
    let wide = ["--max-upload", "1GiB", "--max-requests", "100000", "--deadline", "1d"];
    assert_eq!(cut.run(&wide).expect_code(0).summary()["outcome"], "committed");
}

#[test]
fn what_nobody_can_go_on_with_is_stored_once_all_the_same() {
    let cut = Cut::new("no-snapshot");
    let line =
        ["backup", "--json", "--volume", "w", "--compression", "none", "--max-upload", "16MiB"];
    let line = || line.iter().map(|text| p(text)).chain([cut.image.clone()]);
    let (mut sent, mut runs) = (0, 0);
    loop {
        let run = cut.stage.mover.run(line());
        runs += 1;
        assert!(runs < RUNS_MAX, "{}", run.stderr);
        if run.code() == Some(0) {
            sent += run.summary()["stored_bytes"].as_u64().expect("a number");
            break;
        }
        let run = run.expect_code(6);
        assert!(run.stderr.contains("--snapshot"), "{}", run.stderr);
        sent += run.summary()["uploaded_bytes"].as_u64().expect("a number");
    }
    assert!(runs > 1 && sent < BYTES + BYTES / 4, "{sent} bytes were sent in {runs} runs");
    let back = cut.stage.path("back");
    cut.stage.mover.ok([p("restore"), p("-q"), p("w@latest"), back.clone()]);
    assert!(fs::read(&back).expect("restored") == fs::read(&cut.image).expect("the image"));
}

#[test]
fn a_copy_is_made_in_pieces() {
    let cut = Cut::new("copy-bound");
    assert_eq!(cut.run(&[]).code(), Some(0));
    let (far, key) = (cut.stage.path("far"), cut.stage.path("far-key"));
    let url = PathBuf::from(super::file_url(&far));
    let init = [p("init"), p("-q"), p("--page-fanout"), p("16"), p("--new-key-file"), key.clone()];
    cut.stage.mover.ok(init.into_iter().chain([p("--repo"), url.clone()]));
    let line = [p("copy"), p("--to"), url.clone(), p("--to-key-file"), key.clone()];
    // refused before anything is there
    let small = line.iter().cloned().chain(["--max-upload", "1KiB"].map(p));
    let _ = cut.stage.mover.run(small).expect_code(2);
    assert_eq!(fs::read_dir(far.join("leases")).map_or(0, Iterator::count), 0, "a lease stays");
    let line =
        line.into_iter().chain(["--max-upload", "12MiB", "--memory", "128MiB", "--json"].map(p));
    let mut runs = 1;
    loop {
        let run = cut.stage.mover.run(line.clone());
        if run.code() == Some(0) {
            break;
        }
        let run = run.expect_code(6);
        assert!(run.stderr.contains("--max-upload"), "{}", run.stderr);
        let summary = run.summary();
        assert_eq!((&summary["type"], &summary["outcome"]), (&"summary".into(), &"stopped".into()));
        assert_eq!((&summary["copied"], &summary["failed"]), (&0.into(), &0.into()));
        let sent = summary["uploaded_bytes"].as_u64().expect("a number");
        let stored = summary["stopped_stored_bytes"].as_u64().expect("a number");
        assert!(stored > 0 && stored <= sent && sent <= 13 << 20, "{summary}");
        runs += 1;
        assert!(runs < RUNS_MAX, "{}", run.stderr);
    }
    assert!(runs > 2, "{runs}");
    let back = cut.stage.path("back");
    let far = [p("--repo"), url, p("--key-file"), key];
    cut.stage.mover.ok([p("restore"), p("-q"), p("w@latest"), back.clone()].into_iter().chain(far));
    assert!(fs::read(&back).expect("restored") == fs::read(&cut.image).expect("the image"));
}
