//! Who may name whom. Inside a crate the modules lie in layers; a module names modules of lower
//! layers only, in `use` lines and in any other path.

use super::{files, none, text};
use std::collections::{BTreeMap, BTreeSet};

/// Modules at the top of a crate, the lowest layer first. Modules of one layer do not name each
/// other, but for pairs that are joined by `+`.
const LAYERS: [(&str, &[&str]); 2] = [
    (
        "chunkstore/src",
        &[
            "limits advice secrets chunk",
            "error",
            "ids",
            "units",
            "keys",
            "format",
            "pack+seal store",
            "repository",
            "fetch dedup",
            "map",
            "protocol",
            "check",
        ],
    ),
    (
        "mover/src",
        &[
            "sizes scratch sample price cgroup retention",
            "io",
            "device",
            "run",
            "reading",
            "ingest",
            "backup copy restore verify check diff inspect",
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

fn is_test(path: &str) -> bool {
    ["test", "testing", "testkit", "model"].iter().any(|word| path.contains(word))
}

/// The code of a file: without its tests, comments and literals.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut code = String::new();
    for line in source.lines() {
        let line = line.split("//").next().unwrap_or_default();
        let parts = line.split('"').step_by(2);
        parts.for_each(|part| code.push_str(part));
        code.push('\n');
    }
    code
}

/// Modules of the crate that a text names: `crate::module`, and in `crate::{…}` each.
fn named(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut item = true;
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => item = true,
                c if item && depth == 0 && c.is_alphabetic() => {
                    found.insert(word(&list[at..]));
                    item = false;
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn no_import_runs_up() {
    let example =
        "use crate::{io, run::{Cancel, quota::Bound}};\nlet a = crate::cli::f(); $crate::x";
    let expected = ["cli", "io", "run"].map(str::to_owned);
    assert_eq!(named(example), BTreeSet::from(expected));
    let mut problems = Vec::new();
    for (library, layers) in LAYERS {
        let mut heights = BTreeMap::new();
        for (height, layer) in layers.iter().enumerate() {
            for group in layer.split(' ') {
                group.split('+').for_each(|name| {
                    heights.insert(name, (height, group));
                });
            }
        }
        let mut seen = 0;
        for path in files(library, ".rs") {
            let below = &path[library.len() + 1..];
            let here = module(below);
            if is_test(below) || OUTSIDE.contains(&here) {
                continue;
            }
            let Some((height, group)) = heights.get(here) else {
                problems.push(format!("{path}: {here} is in no layer"));
                continue;
            };
            for other in named(&code(&text(&path))) {
                // what is no module is named by the crate's root
                let Some((of, joined)) = heights.get(other.as_str()) else { continue };
                seen += 1;
                if here != other && of >= height && joined != group {
                    problems.push(format!("{path}: {here} names {other}"));
                }
            }
        }
        assert!(seen > 20, "{library}: {seen} names were found");
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
