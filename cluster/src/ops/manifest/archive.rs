//! Objects in a file: the manifest on the first line, then each object that a restore makes, one a
//! line, owners first. The file is readable by its owner alone, and appears whole or not at all.

use super::objects_file::ObjectsFile;
use super::spool::{Spool, create, part};
use crate::engine::{Failure, exit};
use crate::manifest::{Identity, ObjectManifest, read_manifest, restore_order, write_manifest};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longer lines are no objects: etcd takes 1.5 MiB, and JSON has no more than six bytes for one.
const LINE_MAX: u64 = 16 << 20;
/// A manifest of [`crate::manifest::OBJECTS_MAX`] objects has room in so much.
const MANIFEST_MAX: u64 = 2 << 30;

/// Writes all objects, with their manifest before them; how many there are.
pub(super) fn write_objects(
    manifest: &ObjectManifest,
    spool: &mut Spool,
    mut to: impl Write,
    failed: impl Fn(std::io::Error) -> Failure,
) -> Result<usize, Failure> {
    let mut numbers: Vec<Option<usize>> = vec![None; manifest.items.len()];
    for (number, (of, namespace, name)) in spool.names().enumerate() {
        let identity = Identity { group: &of.group, resource: &of.resource, namespace, name };
        if let Some(at) = manifest.find(identity) {
            numbers[at].get_or_insert(number);
        }
    }
    write_manifest(manifest, &mut to).map_err(&failed)?;
    to.write_all(b"\n").map_err(&failed)?;
    let mut count = 0;
    for at in restore_order(manifest).sequence {
        let at = at as usize;
        let (item, Some(number)) = (&manifest.items[at], numbers[at]) else { continue };
        if item.left_out.is_none() {
            to.write_all(&spool.text(number)?).map_err(&failed)?;
            to.write_all(b"\n").map_err(&failed)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Writes a new file; how many objects it has.
///
/// # Errors
///
/// A file that exists, or that cannot be written.
pub fn write_archive(
    path: &Path,
    manifest: &ObjectManifest,
    spool: &mut Spool,
) -> Result<usize, Failure> {
    let failed = |why| unwritten(path, &why);
    new_file(path, |to| write_objects(manifest, spool, to, failed))
}

/// Writes a new file of what is in another one, in the form that `save` writes.
///
/// # Errors
///
/// A file that exists or cannot be written, or another one that is damaged.
pub fn copy_archive(from: &ObjectsFile, path: &Path) -> Result<usize, Failure> {
    let count = Archive::check(from)?;
    new_file(path, |to| {
        std::io::copy(&mut from.plain()?, to).map_err(|why| unwritten(path, &why))?;
        Ok(count)
    })
}

fn unwritten(path: &Path, why: &std::io::Error) -> Failure {
    Failure::new(exit::USAGE, format!("write {}: {why}", path.display()))
        .hint("choose a place with room that you may write to")
}

/// Makes a file that nobody else may read, and that appears once all of it is written.
fn new_file<T>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let failed = |why: std::io::Error| unwritten(path, &why);
    let part = part(path);
    let file = create(&part)?;
    // Whatever ends this early takes the half file with it.
    let unfinished = Unfinished(Some(part.clone()));
    let mut to = BufWriter::with_capacity(1 << 18, file);
    let done = write(&mut to)?;
    let file = to.into_inner().map_err(|why| failed(why.into_error()))?;
    file.sync_all().map_err(failed)?;
    // A link fails where the name is taken; a rename would replace what is there.
    std::fs::hard_link(&part, path).map_err(failed)?;
    drop(unfinished);
    Ok(done)
}

struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Such a file, being read.
pub struct Archive {
    path: String,
    from: BufReader<Box<dyn Read + Send>>,
    /// What it has.
    pub manifest: ObjectManifest,
    /// How many objects it has.
    pub count: usize,
    /// Plural names by group and kind; a group may have two of one kind.
    resources: HashMap<(String, String), BTreeSet<String>>,
    /// The places of all objects, in the order in which they are told.
    order: Vec<u32>,
    /// Which items have been read.
    is_read: Vec<bool>,
    /// How many have been read.
    read: usize,
    /// Those that have been read too early, as they stand in the file.
    early: HashMap<u32, Vec<u8>>,
    /// How many have been told.
    told: usize,
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Archive {
    /// Opens a file, and reads its manifest.
    ///
    /// # Errors
    ///
    /// A file that is none.
    pub fn open(file: &ObjectsFile) -> Result<Self, Failure> {
        let path = file.to_string();
        let wrong = |why: String| {
            Failure::new(exit::USAGE, format!("read {path}: {why}"))
                .hint("`kubectl mover objects save` writes such a file")
        };
        let mut from = BufReader::with_capacity(1 << 18, file.plain()?);
        let mut line = Vec::new();
        let read = (&mut from).take(MANIFEST_MAX).read_until(b'\n', &mut line);
        read.map_err(|why| wrong(why.to_string()))?;
        let manifest = read_manifest(line.as_slice()).map_err(|why| wrong(why.message))?;
        let mut resources: HashMap<_, BTreeSet<String>> = HashMap::new();
        let mut last = None;
        for of in manifest.items.iter().map(|item| &item.of) {
            // Items of one kind stand beside each other.
            if last.replace(Arc::as_ptr(of)) != Some(Arc::as_ptr(of)) {
                let kind = (of.group.clone(), of.kind.clone());
                resources.entry(kind).or_default().insert(of.resource.clone());
            }
        }
        let is_there = |at: &u32| manifest.items[*at as usize].left_out.is_none();
        let order: Vec<u32> =
            restore_order(&manifest).sequence.into_iter().filter(is_there).collect();
        let (count, is_read) = (order.len(), vec![false; manifest.items.len()]);
        let early = HashMap::new();
        Ok(Self { path, from, manifest, count, resources, order, is_read, read: 0, early, told: 0 })
    }

    /// Reads all of a file; how many objects it has.
    ///
    /// # Errors
    ///
    /// A file that is none, or is damaged.
    pub fn check(file: &ObjectsFile) -> Result<usize, Failure> {
        let mut archive = Self::open(file)?;
        while archive.read()?.is_some() {}
        Ok(archive.count)
    }

    /// The next object and its place, until all have been told: in the order of a restore. A file
    /// that stands in another order, as of an older program, is kept in memory as far as it differs.
    ///
    /// # Errors
    ///
    /// A file that ends early, goes on for too long, or has another object than its manifest says.
    pub fn next_object(&mut self) -> Result<Option<(u32, Value)>, Failure> {
        let next = self.order.get(self.told).copied();
        self.told += 1;
        if let Some(line) = next.and_then(|next| self.early.remove(&next)) {
            // It was read before.
            return Ok(next.zip(serde_json::from_slice(&line).ok()));
        }
        loop {
            let Some((at, object, line)) = self.read()? else { return Ok(None) };
            if next.is_none_or(|next| next == at) {
                return Ok(Some((at, object)));
            }
            self.early.insert(at, line);
        }
    }

    /// The next object of the file, and how it stands there.
    fn read(&mut self) -> Result<Option<(u32, Value, Vec<u8>)>, Failure> {
        let path = self.path.clone();
        let wrong = |why: String| {
            let what = format!("read {path}: {why}");
            Failure::new(exit::INTEGRITY, what).hint("it was changed or cut: take another copy")
        };
        let mut line = Vec::new();
        let read = (&mut self.from).take(LINE_MAX).read_until(b'\n', &mut line);
        read.map_err(|why| wrong(why.to_string()))?;
        if line.is_empty() && self.read == self.count {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            let Self { read, count, .. } = self;
            return Err(wrong(format!("it ends after {read} objects of {count}")));
        }
        let object: Value = serde_json::from_slice(&line)
            .map_err(|why| wrong(format!("object {}: {why}", self.read + 1)))?;
        let at = self.place(&object).ok_or_else(|| {
            let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
            let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
            wrong(format!("its manifest has no {kind} {name}, or the file has it twice"))
        })?;
        self.is_read[at] = true;
        self.read += 1;
        Ok(Some((u32::try_from(at).expect("items are bounded"), object, line)))
    }

    /// The place of an object that is to be made, and was not read yet.
    fn place(&self, object: &Value) -> Option<usize> {
        let metadata = &object["metadata"];
        let version = object["apiVersion"].as_str()?;
        let group = version.rsplit_once('/').map_or("", |(group, _)| group);
        let of = (group.to_owned(), object["kind"].as_str()?.to_owned());
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let name = metadata["name"].as_str()?;
        self.resources.get(&of)?.iter().find_map(|resource| {
            let at = self.manifest.find(Identity { group, resource, namespace, name })?;
            let item = &self.manifest.items[at];
            let is_it = item.left_out.is_none() && item.of.api_version() == version;
            (is_it && !self.is_read[at]).then_some(at)
        })
    }
}
