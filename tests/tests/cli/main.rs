//! The program as its users meet it: help, settings, keys, output, signals, and what it says to bad
//! input.

mod another_disk;
mod attachments;
mod bad_input;
mod bounds;
mod check;
mod completion;
mod copy;
mod echoes;
mod embedded;
mod ends;
mod failing_devices;
mod features;
mod finding;
mod flags;
mod forget;
mod full_disks;
mod gc;
mod guards;
mod help;
mod if_absent;
mod keys;
mod losses;
mod output;
mod package;
mod plan;
mod secrets;
mod small_stack;
mod sources;
mod stats;
mod stdout;
mod stores;
mod targets;
mod unreachable;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tests::{Mover, MoverOutput, Rng, work_dir};

/// A repository with one backup, and the image that it was made of.
pub(crate) struct Stage {
    pub(crate) directory: TempDir,
    pub(crate) mover: Mover,
    pub(crate) backup_id: String,
}

/// Bytes of the staged image: some chunks and an odd end.
pub(crate) const IMAGE_BYTES: usize = 5 * 65536 + 512;

impl Stage {
    pub(crate) fn new(name: &str) -> Self {
        let directory = work_dir(name);
        let repository = directory.path().join("repository");
        let key = directory.path().join("key");
        let mover =
            Mover::new().env("MOVER_REPO", file_url(&repository)).env("MOVER_KEY_FILE", &key);
        fs::write(directory.path().join("image"), random_bytes(IMAGE_BYTES))
            .expect("write the image");
        mover.ok([p("init"), p("--quiet"), p("--new-key-file"), key]);
        let mut stage = Self { directory, mover, backup_id: String::new() };
        let done = stage.mover.ok([p("backup"), stage.image(), p("--volume"), p("v"), p("--json")]);
        stage.backup_id = done.summary()["backup_id"].as_str().expect("an id").to_owned();
        stage
    }

    pub(crate) fn repository(&self) -> PathBuf {
        self.directory.path().join("repository")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.directory.path().join("key")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Files of the repository below `prefix`.
    pub(crate) fn objects(&self, prefix: &str) -> Vec<PathBuf> {
        tree(&self.repository().join(prefix)).into_keys().collect()
    }
}

/// An argument.
pub(crate) fn p(text: &str) -> PathBuf {
    PathBuf::from(text)
}

pub(crate) fn file_url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// Other bytes at every call.
pub(crate) fn random_bytes(len: usize) -> Vec<u8> {
    static CALLS: AtomicU64 = AtomicU64::new(1);
    let mut rng = Rng::new(1);
    for _ in 0..CALLS.fetch_add(1, Ordering::Relaxed) {
        rng = rng.fork();
    }
    rng.bytes(len)
}

/// Every file below a directory, with its content.
pub(crate) fn tree(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
            } else {
                // a run that is under way renames and removes what it is done with
                match fs::read(&path) {
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                    content => drop(files.insert(path, content.expect("read a file"))),
                }
            }
        }
    }
    files
}

/// The run failed with `code`, and stderr holds one line: the error, which names `about`. Nothing
/// is on stdout.
#[track_caller]
pub(crate) fn expect_error(output: MoverOutput, code: i32, about: &str) -> String {
    let output = output.expect_code(code);
    let lines: Vec<_> = output.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{}\n{}", output.command, output.stderr);
    let line = lines[0].to_owned();
    assert!(
        line.starts_with("error: ") && line.contains(about),
        "{}\n{line}\nshould name {about:?}",
        output.command
    );
    assert!(output.stdout.is_empty(), "{}\n{}", output.command, output.text());
    line
}
