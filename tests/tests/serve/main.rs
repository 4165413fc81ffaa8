//! Backups that are served, and clients that nobody here wrote: QEMU's tools, libnbd's, and our own
//! reader of volumes. What they see is what a restore writes.

#![allow(clippy::unwrap_used)] // a test that cannot go on has failed
#![allow(clippy::cast_possible_truncation)] // volumes of some MiB

mod boot;
mod chains;
mod clients;
mod ends;
mod kept;
mod live;
mod load;
mod machine;
mod overlay;
mod server;
mod tls;

use server::Server;
use std::fs;
use std::path::{Path, PathBuf};
use tests::{Mover, Rng, work_dir};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 32 * MIB;
const CHUNK: u64 = 64 << 10;

/// A repository with two backups of a volume, and room for images and sockets.
struct Stage {
    directory: tempfile::TempDir,
    /// Short: the path of a socket has 107 bytes at most.
    sockets: tempfile::TempDir,
    mover: Mover,
    /// The volume as it was at each backup.
    images: [Vec<u8>; 2],
    /// Their ids.
    ids: [String; 2],
}

impl Stage {
    /// `None`, and said so, where a client is not installed.
    fn new(name: &str, clients: &[&str]) -> Option<Self> {
        for program in clients {
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
        let first = image();
        let second = changed(&first);
        let ids = ["b1", "b2"].map(str::to_owned);
        for (id, bytes) in ids.iter().zip([&first, &second]) {
            let image = directory.path().join("image");
            fs::write(&image, bytes).unwrap();
            let line = ["backup", image.to_str().unwrap(), "--volume", "db", "--backup-id", id];
            mover.ok([&line[..], &["--quiet"]].concat());
        }
        let sockets = tempfile::tempdir().unwrap();
        Some(Self { directory, sockets, mover, images: [first, second], ids })
    }

    /// For clients in Python, of the system's own interpreter.
    fn with_libnbd(name: &str) -> Option<Self> {
        if !tests::run("/usr/bin/python3", ["-c", "import nbd"]).status.success() {
            tests::skip(&format!("{name} needs python3-libnbd (tests/setup)"));
            return None;
        }
        Self::new(name, &["nbdcopy"])
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Serves until it is dropped.
    fn serve(&self, arguments: &[&str]) -> Server {
        Server::start(&self.mover, &self.sockets.path().join("s"), arguments)
    }

    /// Objects of the repository in one of its folders.
    fn objects(&self, folder: &str) -> Vec<PathBuf> {
        fn walk(path: &Path, found: &mut Vec<PathBuf>) {
            let Ok(entries) = fs::read_dir(path) else { return };
            for path in entries.map(|entry| entry.unwrap().path()) {
                if path.is_dir() { walk(&path, found) } else { found.push(path) }
            }
        }
        let mut found = Vec::new();
        walk(&self.path("repository").join(folder), &mut found);
        found
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Stretches of data, of text, and of nothing.
fn image() -> Vec<u8> {
    let mut rng = Rng::new(20);
    let mut bytes = vec![0; SIZE as usize];
    for chunk in (0..SIZE / CHUNK).filter(|chunk| chunk / 16 % 3 != 1 && chunk % 29 != 0) {
        let at = (chunk * CHUNK) as usize;
        let part = &mut bytes[at..at + CHUNK as usize];
        if chunk % 2 == 0 {
            part.chunks_exact_mut(8).for_each(|b| b.copy_from_slice(&rng.next_u64().to_le_bytes()));
        } else {
            part.fill(chunk as u8 | 1);
        }
    }
    bytes
}

/// Some chunks written, one made zero.
fn changed(before: &[u8]) -> Vec<u8> {
    let mut bytes = before.to_vec();
    for chunk in [3_u64, 4, 100, 255, 511] {
        let at = (chunk * CHUNK) as usize;
        bytes[at + 100..at + 5000].fill(0x77);
    }
    let zero = (40 * CHUNK) as usize;
    assert!(bytes[zero..zero + CHUNK as usize].iter().any(|b| *b != 0));
    bytes[zero..zero + CHUNK as usize].fill(0);
    bytes
}
