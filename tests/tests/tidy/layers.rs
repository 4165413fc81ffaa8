//! Who may name whom. Inside a crate the modules lie in layers; a module names modules of lower
//! layers only, in `use` lines and in any other path: from the crate's root, from `super`, or by a
//! name that the root exports.

use super::{files, none, text};
use std::collections::{BTreeMap, BTreeSet};

/// A folder of modules, by its path, and its layers, the lowest first. Modules of one layer do not
/// name each other, but for pairs that are joined by `+`. With how many such names it has at least:
/// a reader of paths that finds none proves nothing.
const ROOMS: [(&str, usize, &[&str]); 6] = [
    (
        "chunkstore/src",
        100,
        &[
            "limits advice secrets chunk",
            "error",
            "ids",
            "units",
            "keys",
            "format",
            "pack+seal store",
            "repository",
            "fetch dedup retention",
            "salvage",
            "map",
            "protocol",
            "check roots",
        ],
    ),
    ("mover/engine/src", 50, &["sizes", "volume", "run", "reading", "ingest", "live", "ops"]),
    ("mover/engine/src/volume", 5, &["sample nameless", "io", "device"]),
    (
        "mover/engine/src/ops",
        0,
        &[
            "below trace",
            "attachment backup copy files live_restore restore serve roots verify check diff",
            "mount",
        ],
    ),
    ("mover/src", 5, &["price cgroup", "inspect", "cli"]),
    (
        "cluster/src",
        20,
        &[
            "kinds",
            "engine schedule",
            "manifest",
            "api",
            "install",
            "hooks",
            "drive",
            "page",
            "differential",
            "ops",
            "controller",
            "cli",
        ],
    ),
];

/// Kits of tests, and what fuzzing and golden files use: they may name anything.
const OUTSIDE: [&str; 6] = ["lib", "main", "golden", "fuzzing", "testkit", "testing"];

fn module(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or_default();
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Files of tests alone, by a folder's or the file's own name.
fn is_test(path: &str) -> bool {
    let names = path.split('/').map(|name| name.strip_suffix(".rs").unwrap_or(name));
    names.into_iter().any(|name| ["tests", "testing", "testkit", "model"].contains(&name))
}

/// A source without comments and the insides of literals; lines stay lines.
fn without_prose(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let raw = rest.strip_prefix('r').map(|after| after.trim_start_matches('#'));
        let hashes = raw.map_or(0, |raw| rest.len() - raw.len() - 1);
        let in_a_word = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if raw.is_some_and(|raw| raw.starts_with('"')) && !in_a_word {
            let start = 1 + hashes + 1;
            let end = format!("\"{}", "#".repeat(hashes));
            start + rest[start..].find(&end).expect("a raw literal ends") + end.len()
        } else if first == '"' {
            let mut escaped = false;
            let end = rest.char_indices().skip(1).find(|(_, c)| {
                let ends = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                ends
            });
            end.expect("a literal ends").0 + 1
        } else if let Some(escape) = rest.strip_prefix("'\\") {
            2 + escape.char_indices().skip(1).find(|(_, c)| *c == '\'').expect("it ends").0 + 1
        } else if first == '\'' && rest.chars().nth(2) == Some('\'') {
            rest.char_indices().nth(3).map_or(rest.len(), |(at, _)| at)
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
        rest = &rest[skipped..];
    }
    code
}

/// The code of a file, without what is compiled for tests alone. An item ends with a semicolon on
/// its first line, or with a brace that is as far in as it began.
fn code(source: &str) -> String {
    let source = without_prose(source);
    let mut code = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let depth = line.len() - line.trim_start().len();
        if line.trim() != "#[cfg(test)]" {
            code.push_str(line);
            code.push('\n');
            continue;
        }
        let end = format!("{}}}", " ".repeat(depth));
        let mut first = true;
        for line in lines.by_ref() {
            let attribute = first && line.trim_start().starts_with("#[");
            let ends = line == end || (first && !attribute && line.trim_end().ends_with(';'));
            first &= attribute;
            if ends {
                break;
            }
        }
    }
    code
}

/// The folders of modules that a file stands for: `a/b.rs` is `a::b`.
fn module_path(below: &str) -> Vec<&str> {
    below.strip_suffix(".rs").unwrap_or(below).split('/').collect()
}

fn word(text: &str) -> &str {
    &text[..text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())]
}

/// The first words of a path's rest: one, or in `{…}` each.
fn heads(rest: &str) -> Vec<&str> {
    let Some(list) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut found, mut depth, mut item) = (Vec::new(), 0, true);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => item = true,
            c if item && depth == 0 && (c.is_alphabetic() || c == '_') => {
                found.push(word(&list[at..]));
                item = false;
            }
            _ => {}
        }
    }
    found
}

/// What the code of a module at `here` names right in a room; both are paths from the crate's root.
fn named(code: &str, here: &[&str], room: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || "_$:".contains(c)) {
                continue;
            }
            let mut rest = &code[at..];
            let mut above = here.len();
            if let Some(from_root) = rest.strip_prefix("crate::") {
                (rest, above) = (from_root, 0);
            }
            while let Some(further) = rest.strip_prefix("super::") {
                (rest, above) = (further, above.saturating_sub(1));
            }
            let mut path = here[..above].to_vec();
            while path.len() < room.len() {
                let Some((name, further)) = rest.split_once("::") else { break };
                path.push(name);
                rest = further;
            }
            if path == room {
                found.extend(heads(rest).into_iter().map(str::to_owned));
            }
        }
    }
    found
}

/// The crate that a room is in, and its path there.
fn place(room: &str) -> (&str, Vec<&str>) {
    let (library, below) = room.split_once("/src").unwrap_or_else(|| panic!("{room}: no sources"));
    (&room[..library.len() + "/src".len()], below.split('/').skip(1).collect())
}

/// Names that the root of a crate exports, and the modules that they are of.
fn exports(library: &str) -> BTreeMap<String, String> {
    let root = format!("{library}/lib.rs");
    let mut found = BTreeMap::new();
    for item in code(&text(&root)).split(';') {
        let Some((_, path)) = item.split_once("pub use ") else { continue };
        let Some((module, names)) = path.split_once("::") else { continue };
        for name in names.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            found.insert(name.to_owned(), module.to_owned());
        }
    }
    found
}

#[test]
fn paths_are_read_wherever_they_stand() {
    let source = "use crate::{io, run::{Cancel, quota::Bound}};\n#[cfg(test)]\nmod tests;\n\
                  fn f() { let a = crate::cli::g(\"crate::a\"); $crate::b; /* '\"' */ 'c'; }\n\
                  // crate::d\nuse super::super::{check, diff as e};\nuse super::near;\n\
                  #[cfg(test)]\nmod inner {\n    use crate::f;\n}\nuse crate::last;\n";
    let expected = ["check", "cli", "diff", "io", "last", "run"].map(str::to_owned);
    assert_eq!(named(&code(source), &["a", "b"], &[]), BTreeSet::from(expected));
    assert!(named("use super::near;", &["a"], &[]).contains("near"));
    // in a room of a crate
    let source = "use crate::a::c; use super::d::e; use super::super::f; use crate::{g, a}; use crate::h::i;";
    let expected = ["c", "d"].map(str::to_owned);
    assert_eq!(named(source, &["a", "b"], &["a"]), BTreeSet::from(expected));
}

#[test]
fn no_import_runs_up() {
    let mut problems = Vec::new();
    for (room, names_min, layers) in ROOMS {
        let (library, below_root) = place(room);
        let mut heights = BTreeMap::new();
        for (height, layer) in layers.iter().enumerate() {
            for group in layer.split(' ') {
                group.split('+').for_each(|name| {
                    heights.insert(name, (height, group));
                });
            }
        }
        // only a crate's root exports for others
        let exports = if below_root.is_empty() { exports(library) } else { BTreeMap::new() };
        let mut seen = 0;
        for path in files(room, ".rs") {
            let below = &path[room.len() + 1..];
            let here = module(below);
            if is_test(below) || OUTSIDE.contains(&here) {
                continue;
            }
            let Some((height, group)) = heights.get(here) else {
                problems.push(format!("{path}: {here} is in no layer"));
                continue;
            };
            for other in
                named(&code(&text(&path)), &module_path(&path[library.len() + 1..]), &below_root)
            {
                let module = exports.get(&other).unwrap_or(&other);
                // a macro, or the crate's own result type
                let Some((of, joined)) = heights.get(module.as_str()) else { continue };
                seen += 1;
                if here != module && of >= height && joined != group {
                    problems.push(format!("{path}: {here} names {other} of {module}"));
                }
            }
        }
        assert!(seen >= names_min, "{room}: {seen} names were found");
    }
    none(&problems, "a module names only lower layers");
}

/// Public types of a crate by their names; a name that stands for two things is found here.
#[test]
fn no_public_type_has_the_name_of_another() {
    let mut problems = Vec::new();
    for library in tests::product_sources() {
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in files(&library, ".rs").into_iter().filter(|path| !is_test(path)) {
            for line in code(&text(&path)).lines() {
                let Some(rest) = line.strip_prefix("pub ").or(line.strip_prefix("pub(crate) "))
                else {
                    continue;
                };
                let kinds = ["struct ", "enum ", "trait ", "type "];
                let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind));
                if let Some(name) = name {
                    let name = name.split(|c: char| !c.is_alphanumeric()).next();
                    places
                        .entry(name.unwrap_or_default().to_owned())
                        .or_default()
                        .push(path.clone());
                }
            }
        }
        for (name, places) in places.into_iter().filter(|(_, places)| places.len() > 1) {
            problems.push(format!("{name}: {}", places.join(", ")));
        }
    }
    none(&problems, "two types of one name in a crate");
}
