//! Completion of volumes and backups, in shells as they are typed into.

use super::{Stage, file_url, p};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tests::{MoverOutput, mover_bin, python};

/// A stage with a second volume and more backups, and the scripts of shells.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name);
    for (volume, id) in [("v", "second-id"), ("v", "third-id"), ("shop/other", "fourth-id")] {
        let line = ["backup", "--quiet", "--volume", volume, "--backup-id", id];
        stage.mover.ok(line.iter().map(|t| p(t)).chain([stage.image()]));
    }
    fs::create_dir(stage.path("bin")).expect("a directory");
    std::os::unix::fs::symlink(mover_bin(), stage.path("bin/mover")).expect("a link");
    for shell in ["bash", "zsh", "fish"] {
        let script = stage.mover.ok(["completions", shell]).text();
        fs::write(stage.path(shell), script).expect("write a script");
    }
    stage
}

fn offered(stage: &Stage, words: &[&str]) -> Vec<String> {
    let line = [&["__complete", "--"], words].concat();
    stage.mover.ok(line).text().lines().map(str::to_owned).collect()
}

#[test]
fn the_program_offers_volumes_and_backups() {
    let stage = stage("completion");
    let id = stage.backup_id.as_str();
    let full = format!("v@{id}");
    for (words, names) in [
        (&["restore", ""][..], &["shop/other@", "v@"][..]),
        (&["restore", "v@"], &["v@latest", "v@third-id", "v@second-id", &full]),
        (&["restore", "v@th"], &["v@third-id"]),
        (&["restore", "seco"], &["second-id"]),
        (&["verify", "--no-lease", "shop/other@l"], &["shop/other@latest"]),
        (&["diff", "v@second-id", "v@th"], &["v@third-id"]),
        (&["forget", "v@"], &["v@third-id", "v@second-id", &full]),
        (&["list", "--volume", ""], &["shop/other", "v"]),
        (&["list", "--volume=s"], &["shop/other"]),
        (&["show", "--before", "2999-01-01", ""], &["shop/other", "v"]),
        (&["backup", "x", "--volume", "v", "--parent", ""], &["auto", "none", "v@"]),
        (&["restore", "v@latest", ""], &[]),
        (&["restore", "--fo"], &[]),
        (&["restore", "none@"], &[]),
        (&["li"], &[]),
    ] {
        assert_eq!(offered(&stage, words), names, "{words:?}");
    }
    stage.mover.ok(["forget", "--quiet", "v@third-id"]);
    assert!(!offered(&stage, &["restore", "v@"]).contains(&"v@third-id".to_owned()));
    // the repository of the line, which may be another one
    let none = file_url(&stage.path("nowhere"));
    assert!(offered(&stage, &["--repo", &none, "restore", ""]).is_empty());
    // no key is needed, and none is asked for: names are in the keys of objects
    let keyless = tests::Mover::new().env("MOVER_REPO", file_url(&stage.repository()));
    let keyless = keyless.env("MOVER_PASSWORD_COMMAND", "touch /dev/null; sleep 60");
    let output = keyless.run_within(20, ["__complete", "--", "restore", "v@s"]).expect_code(0);
    assert_eq!((output.text().as_str(), output.stderr.as_str()), ("v@second-id\n", ""));
}

#[test]
fn a_store_that_does_not_answer_offers_nothing_and_says_nothing() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let mover = tests::Mover::new()
        .env("MOVER_REPO", "s3://bucket/x")
        .env("AWS_ENDPOINT_URL", url)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "r")
        .env("AWS_ACCESS_KEY_ID", "k")
        .env("AWS_SECRET_ACCESS_KEY", "s");
    // its patience is less than two seconds; what this machine does besides is not judged
    let output = mover.run_within(20, ["__complete", "--", "restore", ""]).expect_code(0);
    assert_eq!((output.text().as_str(), output.stderr.as_str()), ("", ""));
}

/// Types into a shell on a terminal of its own, each piece when the one before has shown its words.
const TYPIST: &str = r#"
import json, os, pty, select, sys, time
shell, pieces = sys.argv[1:-1], json.loads(sys.argv[-1])
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(shell[0], shell)
seen, at, end = "", 0, time.monotonic() + 90
for typed, awaited in pieces:
    os.write(terminal, typed.encode())
    while awaited not in seen[at:]:
        if time.monotonic() > end:
            sys.exit(f"never saw {awaited!r} after {typed!r} in {seen!r}")
        if select.select([terminal], [], [], 1)[0]:
            try:
                seen += os.read(terminal, 4096).decode(errors="replace")
            except OSError:
                sys.exit(f"the shell ended before {awaited!r}: {seen!r}")
    at = seen.index(awaited, at) + len(awaited)
os.close(terminal)
os.waitpid(pid, 0)
"#;

/// Gives a shell the environment of the program, and the program as `mover`.
fn dress(stage: &Stage, command: &mut Command) {
    stage.mover.dress(command);
    let mut path = stage.path("bin").into_os_string();
    path.push(":");
    let old = command.get_envs().find(|(name, _)| *name == "PATH");
    path.push(old.and_then(|(_, value)| value).expect("a PATH"));
    command.env("PATH", path);
}

/// What is typed, and what has to appear then.
fn type_into(stage: &Stage, shell: &[PathBuf], pieces: &[(&str, &str)]) {
    let mut command = Command::new(python().expect("tests/setup made a Python environment"));
    command.args(["-c", TYPIST]).args(shell);
    command.arg(serde_json::to_string(pieces).expect("JSON"));
    dress(stage, &mut command);
    command.env("TERM", "xterm");
    let output = MoverOutput::of(&mut command);
    assert_eq!(output.code(), Some(0), "{}\n{}", output.text(), output.stderr);
}

/// What every shell does once it is ready: completes an id behind the `@`, a volume before it, and
/// commands and flags as ever.
const TYPED: [(&str, &str); 8] = [
    ("mover show v@sec\t", "ond-id"),
    (" --json\n", "\"backup_id\":\"second-id\""),
    ("", "ready>"),
    ("mover show shop/o\t", "ther@"),
    ("lat\t", "est"),
    (" --json\n", "\"backup_id\":\"fourth-id\""),
    ("", "ready>"),
    ("mover sho\t--js\t third-id\n", "\"backup_id\":\"third-id\""),
];

#[test]
fn a_tab_in_bash_completes_the_id_of_a_backup() {
    let stage = stage("completion-bash");
    let source = format!("PS1='rea''dy> '; source {}\n", stage.path("bash").display());
    let shell = [p("bash"), p("--norc"), p("--noprofile"), p("-i")];
    let begin = [("", "bash-"), (source.as_str(), "ready>")];
    type_into(&stage, &shell, &[&begin[..], &TYPED].concat());
}

#[test]
fn a_tab_in_zsh_completes_the_id_of_a_backup() {
    let stage = stage("completion-zsh");
    let functions = stage.path("functions");
    fs::create_dir(&functions).expect("a directory");
    fs::rename(stage.path("zsh"), functions.join("_mover")).expect("name the script");
    let ready = format!(
        "fpath=({} $fpath); autoload -U compinit; compinit -u -D; PS1='rea''dy> '\n",
        functions.display()
    );
    let begin = [(ready.as_str(), "ready>")];
    type_into(&stage, &[p("zsh"), p("-f"), p("-i")], &[&begin[..], &TYPED].concat());
}

/// fish says by itself what it would offer.
#[test]
fn fish_offers_the_ids_of_backups() {
    let stage = stage("completion-fish");
    let offers = |line: &str| -> Vec<String> {
        let script = format!("source {}; complete -C '{line}'", stage.path("fish").display());
        let mut command = Command::new("fish");
        command.args(["--no-config", "-c", &script]);
        dress(&stage, &mut command);
        let output = MoverOutput::of(&mut command).expect_code(0);
        let first = |line: &str| line.split('\t').next().unwrap_or_default().to_owned();
        output.text().lines().map(first).collect()
    };
    let full = format!("v@{}", stage.backup_id);
    assert_eq!(offers("mover show v@"), ["v@latest", "v@third-id", "v@second-id", &full]);
    assert_eq!(offers("mover list --volume "), ["shop/other", "v"]);
    assert!(offers("mover sho").contains(&"show".to_owned()));
}
