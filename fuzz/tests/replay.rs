//! Feeds every file of every corpus to its target: what once broke a decoder stays in the corpus
//! and is tried on each run.

use fuzz::TARGETS;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    paths
}

#[test]
fn every_corpus_file_passes() {
    for target in TARGETS {
        let files = entries(&corpus().join(target.name));
        assert!(!files.is_empty(), "{} has no corpus", target.name);
        println!("{}: {} files", target.name, files.len());
        for file in files {
            let data = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            // shown only when the test fails
            println!("{}", file.display());
            (target.run)(&data);
            // cut short anywhere, it may be refused, but nothing worse
            for cut in 0..data.len().min(256) {
                (target.run)(&data[..cut]);
            }
        }
    }
}

#[test]
fn every_corpus_has_a_target() {
    let names: BTreeSet<&str> = TARGETS.iter().map(|t| t.name).collect();
    assert_eq!(names.len(), TARGETS.len(), "a name is used twice");
    for folder in entries(&corpus()) {
        let name = folder.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        assert!(names.contains(name), "{} belongs to no target", folder.display());
    }
}
