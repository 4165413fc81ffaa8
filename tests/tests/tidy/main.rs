//! The rules of the house that a compiler does not hold: sizes of files, where unsafe code may be,
//! the code map, and links between documents. Reads the tree only; needs neither root nor a build.

#![allow(missing_docs, reason = "tests")]

mod layers;
mod sources;

use std::collections::BTreeSet;
use std::fs;
use tests::{product_sources, workspace};

/// Lines of a source file.
const LINES_MAX: usize = 500;
/// Where unsafe code of the product may be: memory that the kernel writes to, calls to devices, and
/// files that are mapped.
const UNSAFE_IN: [&str; 3] = [
    "mover/engine/src/volume/io/",
    "mover/engine/src/volume/device/",
    "mover/engine/src/ingest/scratch.rs",
];

/// Files with this ending below a folder of the workspace, by their paths from its root.
fn files(folder: &str, ending: &str) -> Vec<String> {
    let root = workspace();
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with(".git") && name != "target" && name != "corpus" {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                let path = path.strip_prefix(&root).expect("below the root");
                found.push(path.to_str().expect("UTF-8").to_owned());
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no file below {folder} ends with {ending}");
    found
}

fn text(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn none(problems: &[String], rule: &str) {
    assert!(problems.is_empty(), "{rule}:\n{}", problems.join("\n"));
}

#[test]
fn no_source_file_is_too_long() {
    let long = |path: &String| {
        let lines = text(path).lines().count();
        (lines > LINES_MAX).then(|| format!("{path}: {lines} lines"))
    };
    let problems: Vec<String> = files("", ".rs").iter().filter_map(long).collect();
    none(&problems, "split a file of more than 500 lines");
}

/// A line of code that has unsafe code or allows it: comments and lints' names aside.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let words = |c: char| !(c.is_alphanumeric() || c == '_');
    code.split(words).any(|word| word == "unsafe") && !code.contains('"')
}

#[test]
fn unsafe_code_is_in_its_places_only() {
    assert!(is_unsafe("    let x = unsafe { f() };") && is_unsafe("unsafe impl Send for A {}"));
    assert!(!is_unsafe("#![forbid(unsafe_code)]") && !is_unsafe("// unsafe {"));
    let mut problems = Vec::new();
    for path in product_sources().iter().flat_map(|folder| files(folder, ".rs")) {
        if UNSAFE_IN.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (line, number) in text(&path).lines().zip(1..) {
            if is_unsafe(line) {
                problems.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    none(&problems, "unsafe code outside of its places");
}

/// What tests are made of is behind a feature. A build of the whole workspace enables it, so it hides
/// a dependency of the product that does; `tests/run alone` builds the product without.
#[test]
fn test_kits_are_no_part_of_the_product() {
    let mut problems = Vec::new();
    for library in product_sources() {
        let path = format!("{}Cargo.toml", library.trim_end_matches("src"));
        let mut section = String::new();
        for (line, number) in text(&path).lines().zip(1..) {
            let line = line.split('#').next().unwrap_or_default();
            if line.starts_with('[') {
                section = line.trim().to_owned();
            }
            let defines = section == "[features]" && line.starts_with("testkit = ");
            if line.contains("testkit") && !defines && section != "[dev-dependencies]" {
                problems.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    none(&problems, "only tests, benchmarks and fuzz targets enable the feature testkit");
}

/// The code map names each crate and each folder of modules of the product, and nothing that is not
/// there.
#[test]
fn the_code_map_is_complete() {
    let page = text("docs/architecture.md");
    let map = page.split("## Code map").nth(1).expect("a code map");
    let map = map.split("\n## ").next().expect("its section");
    let mut problems = Vec::new();
    for library in &product_sources() {
        let mut rooms = BTreeSet::new();
        let folder = library.trim_end_matches("src");
        // where a row names the crate as a whole, it speaks for what is in it
        if map.contains(&format!("| `{folder}` |")) && library != "chunkstore/src" {
            continue;
        }
        for path in files(library, ".rs") {
            let below = &path[library.len() + 1..];
            // a folder of tests alone is no room
            if let Some((folder, file)) = below.split_once('/')
                && file != "tests.rs"
            {
                rooms.insert(folder.to_owned());
            }
        }
        for room in rooms {
            let names = [format!("`{library}/{room}/"), format!("`{library}/{room}*`")];
            if !names.iter().any(|name| map.contains(name.as_str())) {
                problems.push(format!("{library}/{room}/ is not in the code map"));
            }
        }
    }
    for row in map.lines().filter_map(|line| line.strip_prefix("| ")) {
        let cell = row.split('|').next().unwrap_or_default();
        let mut library = "";
        for name in cell.split('`').skip(1).step_by(2).filter(|n| n.contains(['/', '.'])) {
            if let Some((before, _)) = name.split_once("src/") {
                library = &name[..before.len() + 4];
            }
            let path = name.trim_end_matches('*').trim_end_matches('/');
            let places = [path.to_owned(), format!("{path}.rs"), format!("{library}{path}")];
            if !places.iter().any(|place| workspace().join(place).exists()) {
                problems.push(format!("the code map names {name}, which is not there"));
            }
        }
    }
    none(&problems, "docs/architecture.md");
}

/// Link targets in a document: `](target)` outside of code blocks.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        for rest in line.split("](").skip(1) {
            found.extend(rest.split(')').next().map(str::to_owned));
        }
    }
    found
}

/// The anchors of a document's headings, as forges make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|l| l.starts_with('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut problems = Vec::new();
    let mut seen = 0;
    for path in files("", ".md") {
        for link in links(&text(&path)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = workspace().join(&path).parent().expect("a folder").to_owned();
            let target = if file.is_empty() { workspace().join(&path) } else { folder.join(file) };
            if !target.exists() {
                problems.push(format!("{path}: {link}: no such file"));
            } else if !anchor.is_empty() {
                let page = fs::read_to_string(&target).unwrap_or_default();
                if !anchors(&page).contains(anchor) {
                    problems.push(format!("{path}: {link}: no such heading"));
                }
            }
        }
    }
    assert!(seen > 20, "{seen} links were found");
    none(&problems, "links that lead nowhere");
}

/// The tops of paths that documents name from the root.
const TOPS: [&str; 7] = ["benches", "chunkstore", "deploy", "docs", "fuzz", "mover", "tests"];

/// Paths in `code` of a document, code blocks apart: the first word of a span, from the root.
fn named_paths(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2).flat_map(str::lines);
    let spans = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
    let words = spans.filter_map(|span| span.split(' ').next());
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-*".contains(c);
    words
        .filter(|word| word.split_once('/').is_some_and(|(top, _)| TOPS.contains(&top)))
        .filter(|word| word.chars().all(plain))
        .collect()
}

#[test]
fn every_path_that_a_document_names_is_there() {
    let page = "`mover/engine/src/volume/io/` ``` `mover/no` ``` `tests/run fmt`, `gc/…/verdict`, `docs/<name>`";
    assert_eq!(named_paths(page), ["mover/engine/src/volume/io/", "tests/run"]);
    let mut problems = Vec::new();
    let mut seen = 0;
    // what has changed once may have gone since
    for path in files("", ".md").into_iter().filter(|path| path != "CHANGELOG.md") {
        for name in named_paths(&text(&path)) {
            seen += 1;
            let place = name.trim_end_matches('*').trim_end_matches('/');
            let places = [place.to_owned(), format!("{place}.rs")];
            if !places.iter().any(|place| workspace().join(place).exists()) {
                problems.push(format!("{path}: {name}"));
            }
        }
    }
    assert!(seen > 60, "{seen} paths were found");
    none(&problems, "documents name what is not there");
}

/// README says which Rust a build needs; the workspace's Cargo.toml decides.
#[test]
fn the_readme_names_the_least_rust() {
    let manifest = text("Cargo.toml");
    let least =
        manifest.split("\nrust-version = \"").nth(1).and_then(|rest| rest.split('"').next());
    let named = format!("**Rust {} or newer**", least.expect("a rust-version"));
    assert!(text("README.md").contains(&named), "README.md does not say {named}");
}

/// Hosted CI adds nothing to `.ci/run`: what is checked stands in one place.
#[test]
fn hosted_ci_calls_the_same_script() {
    let workflow = text(".github/workflows/ci.yml");
    let lines = workflow.lines().map(|line| line.trim_start().trim_start_matches("- "));
    let commands: Vec<_> = lines.filter_map(|line| line.strip_prefix("run: ")).collect();
    // the container's Rust comes without them
    assert_eq!(commands, ["rustup component add clippy rustfmt", ".ci/run"]);
    assert!(text(".ci/run").contains("\nexec tests/run \"$@\"\n"));
}
