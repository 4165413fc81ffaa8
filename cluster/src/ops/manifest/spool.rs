//! Objects on disk while their order is not known yet.
//!
//! The file has no name from its first moment on, so a killed command leaves nothing, and it is
//! readable by nobody else: it may hold Secrets.

use crate::engine::{Failure, exit};
use crate::manifest::{ItemKind, stored};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
struct Kept {
    of: Arc<ItemKind>,
    namespace: Box<str>,
    name: Box<str>,
    at: u64,
    len: usize,
}

/// Objects as they were read, cleaned.
#[derive(Debug)]
pub struct Spool {
    file: BufWriter<File>,
    end: u64,
    all: Vec<Kept>,
}

fn failed(what: &str, path: &Path, why: &std::io::Error) -> Failure {
    Failure::new(exit::USAGE, format!("{what} {}: {why}", path.display()))
        .hint("choose a place with room that you may write to")
}

/// A new file that nobody else may read.
pub(super) fn create(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    let made = options.read(true).write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|why| failed("create", path, &why))
}

impl Spool {
    /// In the folder of this file, under its name with `.part`.
    ///
    /// # Errors
    ///
    /// Where nothing can be written.
    pub fn beside(path: &Path) -> Result<Self, Failure> {
        let part = part(path);
        let file = create(&part)?;
        std::fs::remove_file(&part).map_err(|why| failed("remove", &part, &why))?;
        Ok(Self { file: BufWriter::with_capacity(1 << 18, file), end: 0, all: Vec::new() })
    }

    pub(super) fn push(&mut self, of: &Arc<ItemKind>, object: Value) -> Result<(), Failure> {
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().into();
        let (namespace, name) =
            (if of.namespaced { text("namespace") } else { "".into() }, text("name"));
        let line = serde_json::to_vec(&stored(of, object)).expect("JSON");
        self.file.write_all(&line).map_err(|why| {
            Failure::new(exit::USAGE, format!("keep the objects: {why}")).hint("make room there")
        })?;
        self.all.push(Kept { of: Arc::clone(of), namespace, name, at: self.end, len: line.len() });
        self.end += line.len() as u64;
        Ok(())
    }

    /// What was kept after that stays in the file, and nobody reads it.
    pub(super) fn rewind(&mut self, len: usize) {
        self.all.truncate(len);
    }

    /// Group, resource, namespace and name of all, with their number.
    pub(super) fn names(&self) -> impl Iterator<Item = (&ItemKind, &str, &str)> {
        self.all.iter().map(|kept| (&*kept.of, &*kept.namespace, &*kept.name))
    }

    /// The text of one of them.
    pub(super) fn text(&mut self, number: usize) -> Result<Vec<u8>, Failure> {
        let kept = &self.all[number];
        let mut text = vec![0; kept.len];
        let read = self.file.flush();
        let read = read.and_then(|()| self.file.get_ref().read_exact_at(&mut text, kept.at));
        read.map_err(|why| Failure::new(exit::RETRYABLE, format!("read what was kept: {why}")))?;
        Ok(text)
    }
}

/// Where a file is written before it has its name.
pub(super) fn part(path: &Path) -> std::path::PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    path.with_file_name(name)
}
