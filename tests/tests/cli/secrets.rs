//! Secrets: in no output, no argument, no core dump; and who else may look into what is made.

use super::{Stage, file_url, p, tree};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use tests::{Mover, MoverOutput, mover_bin, work_dir};

const PASSPHRASE: &str = "correct horse battery staple";
const PRINTED: &str = "printed-secret";

/// All output of a run, searched for secrets in clear, hex and base64.
#[track_caller]
fn expect_silent(output: &MoverOutput, secrets: &[&str]) {
    let all = format!("{}\n{}", output.text(), output.stderr);
    for secret in secrets {
        assert!(!all.contains(secret), "{}: a secret in\n{all}", output.command);
    }
}

#[test]
fn in_no_output_of_any_command_however_it_ends() {
    let stage = Stage::new("secrets");
    let key = fs::read(stage.key()).expect("the key");
    let text = String::from_utf8_lossy(&key).trim().to_owned();
    let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
    let secrets = [text.as_str(), &hex, PASSPHRASE, PRINTED];
    let passphrase = stage.path("passphrase");
    fs::write(&passphrase, PASSPHRASE).expect("write the passphrase");
    let mover = Mover::new()
        .env("MOVER_REPO", file_url(&stage.repository()))
        .env("MOVER_KEY_FILE", stage.key())
        .env("MOVER_PASSWORD", PASSPHRASE)
        .env("MOVER_PASSWORD_COMMAND", format!("echo {PRINTED}"));
    let second = stage.path("second");
    let back = stage.path("back");
    let lines = [
        vec![p("backup"), stage.image(), p("--volume"), p("v")],
        vec![p("list")],
        vec![p("show"), p("v@latest")],
        vec![p("diff"), p("v@latest"), p("v@latest")],
        vec![p("restore"), p("v@latest"), back.clone()],
        vec![p("verify"), p("v@latest")],
        vec![p("key"), p("add"), p("--new-key-file"), second.clone()],
        vec![p("key"), p("add"), p("--new-password-file"), passphrase],
        vec![p("key"), p("list")],
        vec![p("forget"), p(&stage.backup_id)],
        vec![p("gc"), p("--dry-run")],
        vec![p("gc")],
    ];
    for line in lines {
        for json in [false, true] {
            let more = if json { vec![p("-vvv"), p("--json")] } else { vec![p("-vvv")] };
            let output = mover.run(line.iter().chain(&more));
            // the second round of some finds their work done
            assert!(matches!(output.code(), Some(0 | 2)), "{}: {}", output.command, output.stderr);
            expect_silent(&output, &secrets);
        }
    }
    let second = fs::read_to_string(second).unwrap_or_default();
    assert!(!second.trim().is_empty() || second.is_empty());
    // wrong keys, and damage where keys are read
    let wrong = Mover::new()
        .env("MOVER_REPO", file_url(&stage.repository()))
        .env("MOVER_PASSWORD", PRINTED)
        .env("RUST_LOG", "trace");
    expect_silent(&wrong.run(["list", "-vvv"]).expect_code(4), &secrets);
    for path in stage.objects("keys") {
        let mut bytes = fs::read(&path).expect("a wrapped key");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).expect("damage it");
    }
    let output = mover.run(["list", "-vvv"]);
    assert!(matches!(output.code(), Some(3 | 4)), "{}", output.stderr);
    expect_silent(&output, &secrets);
}

#[test]
fn credentials_of_a_store_are_in_no_output() {
    const SECRET: &str = "wJalrXUtnFEMI-K7MDENG-secret-access-key";
    const TOKEN: &str = "FwoGZXIvYXdzEXAMPLE-session-token";
    let server = tests::require_s3!(ceph);
    let bucket = server.bucket();
    let stranger = Mover::new()
        .envs(server.environment().into_iter().filter(|(name, _)| *name != "AWS_SECRET_ACCESS_KEY"))
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_SESSION_TOKEN", TOKEN)
        .env("MOVER_REPO", bucket.url("p"));
    for line in [&["list", "-vvv"][..], &["gc", "-vvv", "--json"], &["init", "-vvv"]] {
        let output = stranger.run(line);
        assert!(matches!(output.code(), Some(2 | 4)), "{}", output.stderr);
        expect_silent(&output, &[SECRET, TOKEN]);
        // nor what is made of them for each request
        assert!(!output.stderr.contains("Signature="), "{}", output.stderr);
    }
    // and where nobody answers
    let nowhere = stranger.env("AWS_ENDPOINT", "http://127.0.0.1:9");
    let output = nowhere.run_within(90, ["list", "-vvv"]).expect_code(1);
    expect_silent(&output, &[SECRET, TOKEN]);
}

/// Runs `line` until it has the passphrase of a command that then hangs, with core dumps allowed.
fn at_work(stage: &Stage) -> Child {
    let script = "ulimit -c unlimited; exec \"$0\" \"$@\"";
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", script]).arg(tests::mover_bin());
    shell.args(["restore", "v@latest", "-"]);
    stage.mover.dress(&mut shell);
    shell.env("MOVER_PASSWORD", PASSPHRASE);
    // a restore into a pipe that nobody reads: it has its keys, and waits
    let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("its output"), &mut first)
        .expect("the first byte of the volume");
    child
}

#[test]
fn a_process_with_keys_leaves_no_core_and_shows_no_secret_in_its_arguments() {
    let stage = Stage::new("core");
    // more than a pipe holds
    fs::write(stage.path("large"), super::random_bytes(8 << 20)).expect("write an image");
    stage.mover.ok([p("backup"), p("--volume"), p("v"), stage.path("large")]);
    let mut child = at_work(&stage);
    let proc = format!("/proc/{}", child.id());
    let arguments = fs::read(Path::new(&proc).join("cmdline")).expect("its arguments");
    let arguments = String::from_utf8_lossy(&arguments).into_owned();
    assert!(arguments.contains("restore") && !arguments.contains(PASSPHRASE), "{arguments}");
    let limits = fs::read_to_string(Path::new(&proc).join("limits")).expect("its limits");
    let cores = limits.lines().find(|l| l.starts_with("Max core file size")).expect("a limit");
    assert!(cores.contains("unlimited"), "the test allows a core: {cores}");
    tests::run_ok("kill", ["-s", "ABRT", &child.id().to_string()]);
    let status = child.wait().expect("it ends");
    assert_eq!(status.signal(), Some(libc_abrt()), "{status}");
    assert!(!status.core_dumped(), "{status}");
}

fn libc_abrt() -> i32 {
    6
}

#[test]
fn what_is_made_is_closed_to_others() {
    let place = work_dir("modes");
    let parent = place.path().join("a/b");
    let repository = parent.join("repository");
    let (key, scratch) = (place.path().join("key"), place.path().join("scratch"));
    let mover = Mover::new()
        .env("MOVER_REPO", file_url(&repository))
        .env("MOVER_KEY_FILE", &key)
        .env("MOVER_SCRATCH", &scratch);
    // whatever the umask
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", "umask 0; exec \"$0\" \"$@\""]).arg(tests::mover_bin());
    command.args(["init", "--quiet", "--new-key-file"]).arg(&key);
    mover.dress(&mut command);
    let _ = MoverOutput::of(&mut command).expect_code(0);
    let image = place.path().join("image");
    fs::write(&image, super::random_bytes(200_000)).expect("write an image");
    mover.ok([p("backup"), p("--quiet"), image.clone()]);
    mover.ok([p("backup"), p("--quiet"), p("--volume"), p("other"), image]);
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&repository), 0o700);
    assert_eq!((mode(&parent), mode(parent.parent().expect("a"))), (0o700, 0o700));
    assert_eq!(mode(&key), 0o600);
    for entry in fs::read_dir(&scratch).expect("the scratch directory") {
        assert_eq!(mode(&entry.expect("an entry").path()), 0o700);
    }
}

/// The output of a passphrase command stays inside: the command's own arguments are all that others
/// see.
#[test]
fn a_passphrase_command_is_run_and_its_answer_is_not_shown() {
    let stage = Stage::new("command");
    let mut child = stage
        .mover
        .command(["list", "-vvv", "--password-command", "echo ready >&2; echo printed-secret; cat"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start");
    let mut line = String::new();
    let mut errors = BufReader::new(child.stderr.take().expect("its errors"));
    while line.trim() != "ready" {
        line.clear();
        assert!(errors.read_line(&mut line).expect("a line") > 0, "it ended without asking");
    }
    let seen = fs::read(format!("/proc/{}/cmdline", child.id())).expect("its arguments");
    let seen = String::from_utf8_lossy(&seen).into_owned();
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("it ends");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut errors, &mut rest).expect("text");
    assert!(!rest.contains(PRINTED), "{rest}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains(PRINTED));
    // the command was written there by whoever called it
    assert_eq!(seen.matches(PRINTED).count(), 1, "{seen}");
}

#[test]
fn a_scratch_directory_of_another_user_is_left_alone_and_stops_nothing() {
    tests::require_root!();
    let stage = Stage::new("scratch-of-another");
    let root = stage.path("scratch");
    let run = |id: &str| {
        let line = ["backup", "--volume", "w", "--backup-id", id, "--scratch"];
        let line = line.iter().map(|text| p(text)).chain([root.clone(), stage.image()]);
        stage.mover.ok(line)
    };
    assert!(!run("first").stderr.contains("scratch"));
    let entries = || fs::read_dir(&root).expect("the scratch directory");
    let own = entries().next().expect("one of this repository").expect("an entry").path();
    std::os::unix::fs::chown(&own, Some(12345), None).expect("give it away");
    let before = tree(&own);
    let said = run("second").stderr;
    assert!(said.contains("without scratch") && said.contains("12345"), "{said}");
    assert_eq!(tree(&own), before);
}

/// Keys and TLS depend on the kernel alone, and no start waits for another source (decision 0032).
#[test]
fn the_program_has_no_source_of_randomness_but_the_kernel() {
    let program = fs::read(mover_bin()).expect("the program");
    let has = |name: &str| program.windows(name.len()).any(|part| part == name.as_bytes());
    assert!(has("RAND_bytes"), "the program has no symbols, and this says nothing");
    assert!(!has("jent_entropy_collector_alloc"), "AWS-LC gathers jitter: see .cargo/config.toml");
}
