//! Volumes that are read and written over NBD, with the servers of others: qemu-nbd, whose dirty
//! bitmaps are lists of changes, and nbdkit, which fails and dawdles when told to. Servers that
//! break the protocol are in the unit tests beside the client, and here for what a user sees of
//! them.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed
#![allow(clippy::cast_possible_truncation)] // volumes of some MiB

mod failing;
mod qemu;
mod server;

use server::Server;
use std::fs;
use std::path::{Path, PathBuf};
use tests::{Mover, MoverOutput, work_dir};

const MIB: u64 = 1 << 20;

/// A repository, and room for images and sockets.
struct Stage {
    directory: tempfile::TempDir,
    /// Short: the path of a socket has 107 bytes at most.
    sockets: tempfile::TempDir,
    mover: Mover,
}

impl Stage {
    /// `None`, and said so, where a server is not installed.
    fn new(name: &str) -> Option<Self> {
        for program in ["qemu-nbd", "nbdkit"] {
            if !tests::run(program, ["--version"]).status.success() {
                tests::skip(&format!("{name} needs {program} (tests/setup)"));
                return None;
            }
        }
        let directory = work_dir(name);
        let repository = directory.path().join("repository");
        let key = directory.path().join("key");
        let url = format!("file://{}", repository.display());
        let mover = Mover::new().env("MOVER_REPO", url).env("MOVER_KEY_FILE", &key);
        mover.ok(["init", "--quiet", "--new-key-file", key.to_str().unwrap()]);
        Some(Self { directory, sockets: tempfile::tempdir().unwrap(), mover })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// Objects of the repository in one of its folders.
    fn objects(&self, folder: &str) -> usize {
        fn count(path: &Path) -> usize {
            let Ok(entries) = fs::read_dir(path) else { return 0 };
            let paths = entries.map(|entry| entry.unwrap().path());
            paths.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
        }
        count(&self.path("repository").join(folder))
    }

    /// Restores the newest backup into a file and compares.
    fn expect_restores(&self, volume: &str, wanted: &[u8]) {
        let out = self.path("restored");
        let _ = fs::remove_file(&out);
        self.mover.ok(["restore", &format!("{volume}@latest"), out.to_str().unwrap(), "--quiet"]);
        assert!(fs::read(&out).unwrap() == wanted, "{volume} came back other than it was");
    }

    /// A backup that must fail: with this exit code, with all of these words, and without a trace.
    fn expect_refused(&self, line: &[&str], code: i32, words: &[&str]) -> String {
        let before = self.objects("backups");
        let output = self.mover.run_within(120, line).expect_code(code);
        for word in words {
            assert!(output.stderr.contains(word), "{line:?}: no {word:?} in {}", output.stderr);
        }
        assert_eq!(self.objects("backups"), before, "{line:?}: something was committed");
        assert_eq!(self.objects("leases"), 0, "{line:?}: a lease stays");
        output.stderr
    }
}

fn read_bytes(output: &MoverOutput) -> u64 {
    output.summary()["read_bytes"].as_u64().unwrap()
}
