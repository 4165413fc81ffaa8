//! The program as a pod sees it: what it says when it ends, what it does with limits, with
//! credentials that run out and when nothing moves, its metrics in real servers, and the image and
//! the manifests that are shipped with it.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod alerts;
mod containers;
mod credentials;
mod ends;
mod forced;
mod image;
mod manifests;
mod metrics;
mod rendered;
mod runs;
mod seccomp;
mod shop;

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tests::{Mover, Rng, work_dir};

/// An embedded repository, and an image of some MiB of which a part is zero.
pub(crate) struct Stage {
    pub(crate) mover: Mover,
    pub(crate) directory: TempDir,
    pub(crate) image: PathBuf,
}

impl Stage {
    pub(crate) fn new(name: &str, mib: usize) -> Self {
        let directory = work_dir(name);
        let image = directory.path().join("image");
        let mut bytes = Rng::new(71).bytes(mib << 20);
        bytes.resize((mib + 1) << 20, 0);
        fs::write(&image, bytes).unwrap();
        Self { mover: Mover::new(), directory, image }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The termination message in `file`, which a kubelet would read whole.
pub(crate) fn termination(file: &Path) -> Value {
    let bytes = fs::read(file).unwrap();
    assert!(bytes.len() <= 4096, "{} bytes", bytes.len());
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{e} in {bytes:?}"))
}

/// Looks again and again until there is something to see.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    const LIMIT: Duration = Duration::from_secs(60);
    let begun = Instant::now();
    let (_never, pause) = mpsc::channel::<()>();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        let _ = pause.recv_timeout(Duration::from_millis(50));
    }
}
