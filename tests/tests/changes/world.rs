//! Two states of a volume, and a repository, seen through the program.

use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tests::{Mover, MoverOutput, Rng, first_difference, work_dir};

pub(crate) const CHUNK: usize = 64 << 10;
/// Chunks of the volume; it ends with an odd piece.
const CHUNKS: usize = 96;

pub(crate) struct World {
    pub(crate) mover: Mover,
    pub(crate) dir: TempDir,
    pub(crate) old: PathBuf,
    pub(crate) new: PathBuf,
}

impl World {
    /// `new` is `old` with small writes, a discarded part, and some data where there was none.
    pub(crate) fn new(name: &str) -> Self {
        let dir = work_dir(name);
        let mut rng = Rng::new(5);
        let mut image = vec![0; CHUNKS * CHUNK + 512];
        rng.fill(&mut image[..60 * CHUNK]);
        let end = image.len();
        rng.fill(&mut image[end - 1000..]);
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, &image).expect("write the old state");
        for at in [5 * CHUNK + 100, 17 * CHUNK - 10, 80 * CHUNK, end - 30] {
            rng.fill(&mut image[at..at + 20]);
        }
        image[30 * CHUNK..34 * CHUNK + 4096].fill(0);
        std::fs::write(&new, &image).expect("write the new state");
        let url = format!("file://{}", dir.path().join("repository").display());
        let mover = Mover::new().env("MOVER_REPO", url);
        mover.ok(["init", "--quiet", "--encryption", "none"]);
        Self { mover, dir, old, new }
    }

    pub(crate) fn bytes(&self) -> u64 {
        std::fs::metadata(&self.new).expect("its size").len()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn run(&self, image: &Path, snapshot: &str, more: &[&str]) -> MoverOutput {
        let image = image.to_str().expect("a path of ours");
        let line = ["--json", "backup", image, "--volume", "v", "--snapshot", snapshot];
        self.mover.run(line.iter().chain(more))
    }

    pub(crate) fn backup(&self, image: &Path, snapshot: &str, more: &[&str]) -> Value {
        self.run(image, snapshot, more).expect_code(0).summary()
    }

    /// The newest backup is this image, bit for bit.
    pub(crate) fn expect_restored(&self, image: &Path) {
        let target = self.path("target");
        let _ = std::fs::remove_file(&target);
        self.mover.ok([Path::new("restore"), Path::new("v@latest"), &target]);
        assert_eq!(first_difference(image, &target), None);
    }

    /// What the manifest of the newest backup says.
    pub(crate) fn show(&self) -> Value {
        self.mover.ok(["--json", "show", "v@latest"]).summary()
    }
}

pub(crate) fn number(summary: &Value, name: &str) -> u64 {
    summary[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {summary}"))
}

/// The one step down that a run took.
#[track_caller]
pub(crate) fn only_step(summary: &Value) -> String {
    match summary["degraded"].as_array().expect("a list").as_slice() {
        [step] => step.as_str().expect("a text").to_owned(),
        other => panic!("not one step: {other:?}"),
    }
}
