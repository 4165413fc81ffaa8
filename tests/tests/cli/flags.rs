//! Every flag that a message, a help page or a manual names is there: somewhere, and where a command
//! line of `mover` is written out, in that command. What belongs to other programs is listed here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::LazyLock;
use tests::{Mover, product_sources, workspace};

/// Other programs, and their flags that manuals and messages speak of. A flag counts only in a file
/// (of the sources: in a message) that names its program.
const OTHERS: &[(&str, &str)] = &[
    ("aws configure", "format"),
    ("aws s3api", "bucket key output prefix version-id"),
    ("benches", "chunks compare depths device json key-file next-device release report repo runs"),
    ("benches", "settings sizes synthetic target threshold volume-chunks work"),
    ("blockdev", "setrw"),
    ("curl", "cacert fail-with-body"),
    ("cargo", "all-targets bin bins examples lib path release test version workspace"),
    ("deploy/image/build", "controller program size-max"),
    ("helm", "namespace set"),
    ("external snapshotter", "resync-period"),
    ("fsfreeze", "freeze unfreeze"),
    ("kubectl label", "overwrite"),
    (
        "kubectl",
        "audience cert key field-selector for from-file from-literal raw server-side timeout",
    ),
    ("deploy/package", "krew"),
    ("kubectl -n", "replicas"),
    ("losetup", "detach find partscan read-only show"),
    ("mysql", "batch skip-reconnect unbuffered"),
    ("nbdinfo", "list map"),
    ("podman manifest", "digestfile"),
    ("pushgateway", "persistence"),
    ("qemu-img", "add output"),
    ("qemu-nbd", "bitmap connect format persistent read-only socket"),
    ("rbd diff", "format from-snap"),
    ("seccomp/make-profile", "print"),
    ("velero", VELERO),
    ("Velero", VELERO),
    // what `mover` itself has and no command lists
    ("mover", "version help"),
];

const VELERO: &str = "bucket data-mover default-volumes-to-fs-backup details features from-backup include-namespaces item-operation-timeout \
     namespace-mappings prefix provider schedule snapshot-move-data";

/// Our other program says itself which flags it has.
const CLUSTER: &str = "kubectl mover";

fn has_cluster(flag: &str) -> bool {
    fn all(command: &clap::Command, found: &mut BTreeSet<String>) {
        let long = command.get_arguments().filter_map(clap::Arg::get_long);
        found.extend(long.map(|name| format!("--{name}")));
        command.get_subcommands().for_each(|below| all(below, found));
    }
    static FLAGS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let mut found = BTreeSet::new();
        all(&mover_cluster::cli::command(), &mut found);
        assert!(found.len() > 50, "{found:?}");
        found
    });
    FLAGS.contains(flag)
}

/// Whether a flag is one of another program that is named.
fn is_of_another(flag: &str, is_named: impl Fn(&str) -> bool) -> bool {
    if is_named(CLUSTER) && has_cluster(flag) {
        return true;
    }
    let has = |flags: &str| flags.split(' ').any(|other| other == &flag[2..]);
    OTHERS.iter().any(|(program, flags)| has(flags) && is_named(program))
}

/// Commands, as they are typed, and their flags.
struct Flags(BTreeMap<String, BTreeSet<String>>);

impl Flags {
    fn of_the_program() -> Self {
        let mover = Mover::new();
        let help = |words: &[&str]| mover.ok([words, &["--help"]].concat()).text();
        let commands = |help: &str| -> Vec<String> {
            let (_, list) = help.split_once("\nCommands:\n").expect("a list of commands");
            let lines = list.lines().take_while(|line| !line.is_empty());
            let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
            names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
        };
        let mut all = BTreeMap::new();
        for command in commands(&help(&[])) {
            if command == "key" {
                for below in commands(&help(&["key"])) {
                    all.insert(format!("key {below}"), defined(&help(&["key", &below])));
                }
            } else {
                all.insert(command.clone(), defined(&help(&[&command])));
            }
        }
        assert!(all.len() > 14 && all["key add"].contains("--new-key-file"), "{all:?}");
        Self(all)
    }

    /// Whether any command has it; what ends with a hyphen stands for all that begin so.
    fn has(&self, flag: &str) -> bool {
        let mut all = self.0.values().flatten();
        all.any(|known| known == flag || (flag.ends_with('-') && known.starts_with(flag)))
    }

    /// What is wrong with a text of which all is said by or about `mover`.
    fn unknown(&self, text: &str, program_is_named: impl Fn(&str) -> bool) -> Vec<String> {
        let mut unknown: Vec<_> = flags(text)
            .filter(|flag| !self.has(flag) && !is_of_another(flag, &program_is_named))
            .map(str::to_owned)
            .collect();
        for line in lines(text) {
            for (command, rest) in self.commands_in(&line) {
                let missing =
                    |flag: &&str| !self.0[command].contains(*flag) && !["--help"].contains(flag);
                // a family's name stands for its members
                let single = flags(rest).filter(|flag| !flag.ends_with('-'));
                unknown.extend(single.filter(missing).map(|flag| format!("{flag} of {command}")));
            }
        }
        unknown
    }

    /// The command lines of `mover` in a line: the command, and all up to its end.
    fn commands_in<'a>(&'a self, line: &'a str) -> Vec<(&'a str, &'a str)> {
        let mut found = Vec::new();
        for (at, _) in line.match_indices("mover ") {
            let before = line[..at].chars().next_back();
            let rest = &line[at + "mover ".len()..];
            let longest = self.0.keys().filter(|name| starts_with_words(rest, name));
            let Some(command) = longest.max_by_key(|name| name.len()) else { continue };
            // `…/mover backup`, `-mover gc`, `a mover list` are no command lines
            let begins = match before {
                None | Some('`' | '(' | '"' | '\'' | '\n') => true,
                Some(' ') => line[..at].trim().is_empty() || line[..at].ends_with("&& "),
                Some(_) => false,
            };
            let end = rest.find(['`', '|', '#', ';', '"']).unwrap_or(rest.len());
            let rest = rest[..end].split(" && ").next().unwrap_or_default();
            if begins {
                found.push((command.as_str(), rest));
            }
        }
        found
    }
}

fn starts_with_words(text: &str, words: &str) -> bool {
    text.strip_prefix(words).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
}

/// Flags that a help page defines, not those that it speaks of.
fn defined(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start);
    let long = lines.filter_map(|line| match line.strip_prefix('-') {
        Some(rest) if rest.starts_with('-') => Some(line),
        Some(rest) => rest.split_once(", ").map(|(_, long)| long),
        None => None,
    });
    long.filter_map(|line| flags(line).next()).map(str::to_owned).collect()
}

/// All that look like long flags.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("--").filter_map(|(at, _)| {
        let part_of_more = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-');
        let rest = &text[at + 2..];
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let name = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
        let letter = name.starts_with(|c: char| c.is_ascii_lowercase());
        (letter && !part_of_more).then(|| &text[at..at + 2 + name.len()])
    })
}

/// Lines, those that go on joined.
fn lines(text: &str) -> Vec<String> {
    text.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

/// Files below a folder that are `wanted`, by path.
fn files(folder: &str, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![workspace().join(folder)];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder");
            left.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else if wanted(path.to_str().expect("UTF-8")) {
            let text = fs::read_to_string(&path).expect("a text");
            let below = path.strip_prefix(workspace()).expect("below the root");
            found.push((below.display().to_string(), text));
        }
    }
    assert!(!found.is_empty(), "nothing below {folder}");
    found
}

/// The string literals of a Rust source, tests apart, as they are printed but for placeholders.
fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '/', '\'', 'r']) {
        let raw = raw_literal(&rest[at..], rest[..at].chars().next_back());
        rest = if rest[at..].starts_with("//") {
            rest[at..].split_once('\n').map_or("", |(_, after)| after)
        } else if rest[at..].starts_with('"') {
            let body = &rest[at + 1..];
            let end = end_of_literal(body);
            found.push(unescaped(&body[..end]));
            &body[end + 1..]
        } else if let Some((body, length)) = raw {
            found.push(body.to_owned());
            &rest[at + length..]
        } else if rest[at..].starts_with("'\"'") || rest[at..].starts_with("'\\\"'") {
            &rest[at + 3 + usize::from(rest[at..].starts_with("'\\"))..]
        } else {
            &rest[at + 1..]
        };
    }
    found
}

/// `r"…"` and `r#"…"#` at the start of a text: what it holds, and how long all of it is.
fn raw_literal(text: &str, before: Option<char>) -> Option<(&str, usize)> {
    let after = text.strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end)?;
    Some((&body[..length], 1 + hashes + 1 + length + end.len()))
}

fn end_of_literal(body: &str) -> usize {
    let mut escaped = false;
    let end = body.char_indices().find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.expect("a literal ends").0
}

/// A line that goes on below is one line.
fn unescaped(body: &str) -> String {
    let mut parts = body.split("\\\n");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.trim_start());
    }
    text.replace("\\n", "\n").replace("\\\"", "\"").replace("\\\\", "\\")
}

fn none(problems: &[String]) {
    assert!(problems.is_empty(), "no such flag:\n{}", problems.join("\n"));
}

#[test]
fn messages_name_flags_that_are_there() {
    let known = Flags::of_the_program();
    let is_product =
        |path: &str| path.ends_with(".rs") && !path.contains("/tests") && !path.contains("testkit");
    let mut problems = Vec::new();
    let mut seen = 0;
    let sources = product_sources();
    for (path, source) in sources.iter().flat_map(|folder| files(folder, is_product)) {
        for text in literals(&source) {
            seen += flags(&text).count();
            // A program of its own, which names its own flags.
            let of_cluster = path.starts_with("cluster/");
            let unknown = known.unknown(&text, |program| {
                text.contains(program) || (of_cluster && program == CLUSTER)
            });
            problems.extend(unknown.iter().map(|flag| format!("{path}: {flag} in {text:?}")));
        }
    }
    assert!(seen > 100, "only {seen} flags in all messages");
    none(&problems);
}

/// The names in `Setting("…")` of a source, and of a `Setting(match …)` the arms.
fn settings(source: &str) -> BTreeSet<String> {
    let after = source.split("Setting(").skip(1);
    let literal = |rest: &str| {
        let end = rest.find(|c| "();".contains(c)).unwrap_or(rest.len());
        let names = rest[..end].split('"').skip(1).step_by(2);
        names.map(|name| format!("--{name}")).collect::<Vec<_>>()
    };
    after.flat_map(|rest| literal(rest.trim_start_matches("match self "))).collect()
}

/// A library is used by other programs too: it names settings, and the program says how each reads.
#[test]
fn libraries_name_settings_and_no_flags() {
    let known = Flags::of_the_program();
    let is_product =
        |path: &str| path.ends_with(".rs") && !path.contains("/tests") && !path.contains("testkit");
    let (mut problems, mut seen) = (Vec::new(), BTreeSet::new());
    let sources = product_sources();
    let programs = ["mover/src", "cluster/src"];
    let libraries = sources.iter().filter(|folder| !programs.contains(&folder.as_str()));
    for (path, source) in libraries.flat_map(|folder| files(folder, is_product)) {
        for text in literals(&source) {
            let ours = flags(&text).filter(|f| !is_of_another(f, |program| text.contains(program)));
            problems.extend(ours.map(|flag| format!("{path}: {flag}")));
            if text.contains("`mover ") {
                problems.push(format!("{path}: {text:?}"));
            }
        }
        if !path.ends_with("advice.rs") {
            seen.extend(settings(&source));
        }
    }
    problems.extend(seen.iter().filter(|name| !known.has(name)).cloned());
    assert!(seen.len() > 30, "only {seen:?}");
    none(&problems);
}

#[test]
fn help_names_flags_that_are_there() {
    let known = Flags::of_the_program();
    let mut problems = Vec::new();
    for command in known.0.keys() {
        let words = command.split(' ').chain(["--help"]);
        let help = Mover::new().ok(words).text();
        let unknown = known.unknown(&help, |program| help.contains(program));
        problems.extend(unknown.iter().map(|flag| format!("{command} --help: {flag}")));
    }
    none(&problems);
}

#[test]
fn manuals_name_flags_that_are_there() {
    let known = Flags::of_the_program();
    let top = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md"];
    let mut pages = files("docs", |path| path.ends_with(".md"));
    let manifest = |path: &str| {
        !path.contains("/seccomp/") && (path.ends_with(".yaml") || path.ends_with(".env"))
    };
    pages.extend(files("deploy", manifest));
    pages.extend(top.iter().flat_map(|page| files(page, |_| true)));
    let mut problems = Vec::new();
    let mut command_lines = 0;
    for (path, text) in &pages {
        // The plug-in, by the name of its file.
        let named = text.replace("kubectl-mover", "kubectl mover");
        let unknown = known.unknown(text, |program| named.contains(program));
        problems.extend(unknown.iter().map(|flag| format!("{path}: {flag}")));
        command_lines +=
            lines(text).iter().map(|line| known.commands_in(line).len()).sum::<usize>();
    }
    assert!(command_lines > 40, "only {command_lines} command lines are found");
    none(&problems);
}

#[test]
fn scripts_call_mover_with_flags_that_are_there() {
    let known = Flags::of_the_program();
    let script = fs::read_to_string(workspace().join("deploy/quickstart")).unwrap();
    let mut problems = Vec::new();
    let mut calls = 0;
    for line in lines(&script) {
        let Some((_, call)) = line.split_once("\"$program\" ") else { continue };
        let Some(command) = known.0.keys().find(|name| starts_with_words(call, name)) else {
            continue;
        };
        calls += 1;
        let missing = flags(call).filter(|flag| !known.0[command].contains(*flag));
        problems.extend(missing.map(|flag| format!("deploy/quickstart: {flag} of {command}")));
    }
    assert!(calls >= 7, "only {calls} calls");
    none(&problems);
}

/// The reading of sources and of lines is right.
#[test]
fn flags_are_found_where_they_are() {
    let source = "// \"--no\"\nlet c = '\"'; f(\"a --one \\\"x\\\" \\\n   --two\", r#\"--three \"q\" \"#);\n\
                  let d = '\\\"'; g(\"--four\"); h(var\"--five\");\n#[cfg(test)]\nmod t { \"--six\" }";
    let all = literals(source).join(" ");
    let found: Vec<_> = flags(&all).collect();
    assert_eq!(found, ["--one", "--two", "--three", "--four", "--five"]);
    let known = Flags::of_the_program();
    let unknown = |text: &str| known.unknown(text, |program| text.contains(program));
    assert_eq!(unknown("use --direct auto, or --keep-…"), ["--direct"]);
    assert_eq!(unknown("`mover gc --verify` or mover gc --verify"), ["--verify of gc"]);
    assert_eq!(
        unknown("mover key add \\\n  --new-key-file X --keep-daily 3"),
        ["--keep-daily of key add"]
    );
    assert!(unknown("qemu-nbd --bitmap NAME; `mover gc --dry-run`").is_empty());
}
