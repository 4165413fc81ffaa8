//! The archive of a release: the program with its manual pages and completions.

use super::p;
use std::fs;
use std::path::Path;
use tests::{mover_bin, run, run_ok, work_dir, workspace};

fn package(program: &Path, output: &Path) -> String {
    let script = workspace().join("deploy/package");
    let args = [p("--program"), program.to_owned(), p("--output"), output.to_owned()];
    let output = run(script.to_str().expect("UTF-8"), args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn a_release_has_a_manual_page_for_each_command() {
    let directory = work_dir("package");
    let archive = directory.path().join("mover.tar.gz");
    package(mover_bin(), &archive);
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    run_ok("tar", ["-xzf", &text(&archive), "-C", &text(directory.path())]);
    let top = fs::read_dir(directory.path()).expect("a directory");
    let top = top.map(|entry| entry.expect("an entry").path()).find(|path| path.is_dir());
    let top = top.expect("one directory");
    let share = top.join("share");
    let help = tests::Mover::new().ok(["--help"]).text();
    let (_, list) = help.split_once("\nCommands:\n").expect("a list of commands");
    let list = list.lines().take_while(|line| !line.is_empty());
    let commands: Vec<_> = list.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"stats"), "{commands:?}");
    for command in commands.iter().filter(|name| **name != "help") {
        let path = share.join(format!("man/man1/mover-{command}.1"));
        let page = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{command}: {e}"));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{page}");
        // roff's sign for a hyphen that is one
        assert!(page.replace("\\-", "-").contains("--repo"), "{page}");
    }
    assert!(
        share.join("man/man1/mover.1").exists() && share.join("man/man1/mover-key-add.1").exists()
    );
    let pages = fs::read_dir(share.join("man/man1")).expect("pages");
    for page in pages.map(|page| page.expect("a page").path()) {
        assert!(!text(&page).contains("__"), "hidden commands have no page: {}", page.display());
        let home = fs::read_to_string(&page).expect("a page");
        assert!(!home.contains(&text(directory.path())), "{}", page.display());
    }
    for script in [
        "bash-completion/completions/mover",
        "zsh/site-functions/_mover",
        "fish/vendor_completions.d/mover.fish",
    ] {
        let script = fs::read_to_string(share.join(script)).expect("a script");
        assert!(script.contains("__complete -- "), "{script}");
    }
    let version = run(&text(&top.join("bin/mover")), ["--version"]);
    assert!(version.status.success());
    // made again, it is the same to the byte
    let again = directory.path().join("again.tar.gz");
    package(mover_bin(), &again);
    assert!(fs::read(&archive).expect("an archive") == fs::read(&again).expect("an archive"));
}

/// The manifest of krew names this machine's archive by its sum, and leaves the other one to a run
/// there.
#[test]
fn the_manifest_of_krew_has_the_sum_of_the_archive() {
    let directory = work_dir("krew");
    let at = |name: &str| directory.path().join(name);
    let script = workspace().join("deploy/package");
    let args = |more: &[(&str, &Path)]| {
        let mut args = vec![p("--url"), p("https://example.com/mover")];
        for (name, path) in more {
            args.extend([p(name), path.to_path_buf()]);
        }
        args
    };
    let (archive, manifest) = (at("mover.tar.gz"), at("krew.yaml"));
    let outputs = [("--output", archive.as_path()), ("--krew-output", manifest.as_path())];
    let program = [("--program", mover_bin())];
    // The plug-in is a program of its own; to the archive one is as good as another.
    let both = [("--program", mover_bin()), ("--controller", mover_bin())];
    let script = script.to_str().expect("UTF-8");
    let without = run(script, args(&[&program[..], &outputs[..]].concat()));
    assert_eq!(without.status.code(), Some(2), "{}", String::from_utf8_lossy(&without.stderr));
    let made = run(script, args(&[&both[..], &outputs[..]].concat()));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = fs::read_to_string(&manifest).expect("the manifest");
    let sum = run_ok("sha256sum", [archive.to_str().expect("UTF-8")]);
    let sum = sum.split_whitespace().next().expect("a sum");
    let machine = run_ok("uname", ["-m"]);
    let machine = machine.trim();
    let name =
        format!("https://example.com/mover/mover-{}-{machine}.tar.gz", env!("CARGO_PKG_VERSION"));
    let entry = text.split("- selector:").find(|at| at.contains(&name)).expect("this machine");
    assert!(entry.contains(&format!("sha256: \"{sum}\"")), "{text}");
    assert_eq!(text.matches("sha256: \"SHA256_").count(), 1, "{text}");
    let listed = run_ok("tar", ["-tzf", archive.to_str().expect("UTF-8")]);
    for from in text.split("from: \"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(listed.lines().any(|line| line == from), "{from} is not in {listed}");
    }
}
