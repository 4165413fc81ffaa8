//! Help, version, completions, and what cannot be understood.

use tests::Mover;

const COMMANDS: [&str; 21] = [
    "init",
    "backup",
    "restore",
    "serve",
    "mount",
    "ls",
    "cat",
    "cp",
    "list",
    "show",
    "stats",
    "verify",
    "check",
    "upgrade",
    "diff",
    "changes",
    "forget",
    "gc",
    "copy",
    "key",
    "completions",
];

#[test]
fn every_command_has_help_with_an_example() {
    let mover = Mover::new();
    for command in COMMANDS {
        let help = mover.ok([command, "--help"]).text();
        assert_eq!(mover.ok(["help", command]).text(), help);
        assert!(help.contains("Usage: mover ") && help.contains("Examples:"), "{help}");
        assert!(help.contains("--repo <URL>") && help.contains("[env: MOVER_REPO]"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        let short = mover.ok([command, "-h"]).text();
        assert!(short.len() < help.len() && short.contains("Examples:"), "{short}");
    }
    for command in ["add", "remove", "list"] {
        assert!(mover.ok(["key", command, "--help"]).text().contains("Examples:"));
    }
}

/// Of a terminal of 80 columns, without a pager.
const SCREEN_LINES: usize = 40;

#[test]
fn the_short_help_fits_on_a_screen_and_leads_to_the_long_one() {
    let mover = Mover::new().env("COLUMNS", "80");
    let keys = [["key", "add"], ["key", "remove"], ["key", "list"]];
    let all = COMMANDS.iter().map(|name| vec![*name]).chain(keys.map(Vec::from));
    for command in all.chain([vec![]]) {
        let short = mover.ok(command.iter().chain(&["-h"])).text();
        let (lines, wide) = (short.lines().count(), short.lines().map(|l| l.chars().count()).max());
        assert!(lines <= SCREEN_LINES, "{command:?}: {lines} lines\n{short}");
        assert!(wide <= Some(80) || short.contains("Examples:"), "{command:?}\n{short}");
        assert!(short.contains("see more with '--help'"), "{short}");
        assert!(!short.contains("[env:"), "{short}");
    }
}

/// Each flag is below the heading of its kind; those of a command itself come first.
#[test]
fn the_long_help_is_in_groups() {
    let mover = Mover::new();
    let groups = |command: &str| -> Vec<String> {
        let help = mover.ok([command, "--help"]).text();
        let heads = help.lines().filter(|line| !line.starts_with(' ') && line.ends_with(':'));
        heads.map(|head| head.trim_end_matches(':').to_owned()).collect()
    };
    let common = ["Repository", "Output", "Resources", "Watching", "Examples"];
    for command in COMMANDS {
        let groups = groups(command);
        assert!(groups.ends_with(&common.map(str::to_owned)), "{command}: {groups:?}");
    }
    let backup = groups("backup").join(", ");
    let own = "Options, Bounds, Object lock, Plan, Changed blocks, Changed blocks from a server, Snapshot";
    assert!(backup.contains(own), "{backup}");
    assert!(groups("forget").contains(&"Policy".to_owned()));
    assert!(groups("copy").contains(&"Target".to_owned()));
}

#[test]
fn the_program_introduces_itself() {
    let mover = Mover::new();
    let help = mover.ok(["--help"]).text();
    for command in COMMANDS {
        assert!(help.contains(&format!("  {command} ")), "{command}");
    }
    assert!(help.contains("Exit codes:"));
    assert!(mover.ok(["--version"]).text().starts_with("mover "));
}

#[test]
fn help_shows_no_values_of_the_environment() {
    let mover = Mover::new()
        .env("MOVER_REPO", "s3://hidden-bucket/p")
        .env("MOVER_PASSWORD_COMMAND", "echo hidden-command");
    for command in COMMANDS {
        assert!(!mover.ok([command, "--help"]).text().contains("hidden"));
    }
}

#[test]
fn what_is_no_command_is_a_usage_error() {
    let mover = Mover::new();
    for line in [
        &[][..],
        &["frobnicate"],
        &["list", "--frobnicate"],
        &["backup"],
        &["restore", "x"],
        &["key"],
        &["list", "--color", "sometimes"],
        &["backup", "x", "--changed-blocks-kind", "whole"],
    ] {
        let output = mover.run(line).expect_code(2);
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{line:?}");
    }
    let output = mover.run(["list", "--frobnicate", "--json"]).expect_code(2);
    let error: serde_json::Value = serde_json::from_str(&output.stderr).expect("one JSON object");
    assert_eq!(error["type"], "error");
    assert_eq!(error["exit_code"], 2);
}

#[test]
fn completions_need_nothing_around_them() {
    let mover = Mover::new().env("HOME", "");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(mover.ok(["completions", shell]).text().contains("mover"), "{shell}");
    }
}
