//! Which files changed from one backup of a volume to another: both trees side by side, directory by
//! directory, in the order of their names.
//!
//! Content is told apart by where it is: a file whose bytes are where they were, and of which no
//! block has changed by the maps of the two backups, is the same, and none of it is read. Where
//! only the place is another one and all else is as it was, bytes are compared: a journal moves
//! blocks.

use super::{FileId, FileKind, FileName, FileNode, OpenFiles};
use chunkstore::{Error, ErrorKind, Result};
use mover_extents::Extents;
use mover_fsmap::files::{Piece, Place};
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::Range;

const BATCH: usize = 256;
const BUFFER: u64 = 1 << 20;

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// It is only in the later backup.
    Added,
    /// It is only in the earlier one.
    Removed,
    /// Its content is another one, or it is something else now.
    Changed,
    /// Its content is the same; its owner, its permissions, its attributes or its time are not.
    Described,
}

/// Hears of each file that changed: by its path, with what it is in the later backup, where it is
/// there.
pub type TellChange<'a> = &'a mut dyn FnMut(FileChange, &[u8], &FileNode) -> Result<()>;

/// Compares all files of two backups of one volume; `delta` is what has changed of the volume.
///
/// # Errors
///
/// What cannot be read of either; what hears of it fails.
pub(super) fn changed_files(
    (before, after): (&OpenFiles<'_>, &OpenFiles<'_>),
    delta: &Extents,
    told: TellChange<'_>,
) -> Result<()> {
    let mut compare =
        Compare { before, after, delta, told, been: HashSet::new(), gone: HashSet::new() };
    compare.directories(b"", (before.root(), after.root()))
}

struct Compare<'a> {
    before: &'a OpenFiles<'a>,
    after: &'a OpenFiles<'a>,
    delta: &'a Extents,
    told: TellChange<'a>,
    /// Directories of the later one: none is in two places.
    been: HashSet<FileId>,
    /// Directories of the earlier one of which all is removed.
    gone: HashSet<FileId>,
}

/// A directory that is in both, or in one of them.
enum Left {
    Both(Vec<u8>, FileId, FileId),
    Added(Vec<u8>, FileId),
    Removed(Vec<u8>, FileId),
}

impl Compare<'_> {
    fn directories(&mut self, path: &[u8], roots: (FileId, FileId)) -> Result<()> {
        let mut left = vec![Left::Both(path.to_vec(), roots.0, roots.1)];
        while let Some(next) = left.pop() {
            let mut below = Vec::new();
            match next {
                Left::Both(path, before, after) => {
                    if !self.been.insert(after) {
                        let context = format!("enter {}", String::from_utf8_lossy(&path));
                        let what = "a directory is in two places: the file system is damaged";
                        return Err(Error::new(ErrorKind::Corrupt, context, what));
                    }
                    self.directory(&path, before, after, &mut below)?;
                }
                Left::Added(path, directory) => {
                    for (path, node) in listed(self.after, &path, directory)? {
                        (self.told)(FileChange::Added, &path, &node)?;
                        if node.kind == FileKind::Directory && self.been.insert(node.id) {
                            below.push(Left::Added(path, node.id));
                        }
                    }
                }
                Left::Removed(path, directory) => {
                    for (path, node) in listed(self.before, &path, directory)? {
                        (self.told)(FileChange::Removed, &path, &node)?;
                        if node.kind == FileKind::Directory && self.gone.insert(node.id) {
                            below.push(Left::Removed(path, node.id));
                        }
                    }
                }
            }
            left.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Two directories of one path.
    fn directory(
        &mut self,
        path: &[u8],
        before: FileId,
        after: FileId,
        below: &mut Vec<Left>,
    ) -> Result<()> {
        let (old, new) = (self.before.names(before)?, self.after.names(after)?);
        let (mut old, mut new) = (old.as_slice(), new.as_slice());
        let mut ahead = 0;
        while !old.is_empty() || !new.is_empty() {
            if ahead == 0 {
                expect(self.before, old)?;
                expect(self.after, new)?;
                ahead = BATCH;
            }
            ahead -= 1;
            let order = match (old.first(), new.first()) {
                (Some(one), Some(other)) => one.name.cmp(&other.name),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            let in_both = order == Ordering::Equal;
            let was = if order.is_le() { old.split_off_first() } else { None };
            let is = if order.is_ge() { new.split_off_first() } else { None };
            let Some(name) = is.or(was) else { break };
            let path = [path, b"/", &name.name].concat();
            let was = was.map(|entry| self.before.node(entry.id)).transpose()?;
            let is = is.map(|entry| self.after.node(entry.id)).transpose()?;
            match (was, is) {
                (Some(was), Some(is)) if in_both => self.file(path, &was, &is, below)?,
                (Some(was), _) => {
                    (self.told)(FileChange::Removed, &path, &was)?;
                    if was.kind == FileKind::Directory && self.gone.insert(was.id) {
                        below.push(Left::Removed(path, was.id));
                    }
                }
                (None, Some(is)) => {
                    (self.told)(FileChange::Added, &path, &is)?;
                    if is.kind == FileKind::Directory && self.been.insert(is.id) {
                        below.push(Left::Added(path, is.id));
                    }
                }
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        path: Vec<u8>,
        was: &FileNode,
        is: &FileNode,
        below: &mut Vec<Left>,
    ) -> Result<()> {
        let both_directories = was.kind == FileKind::Directory && is.kind == FileKind::Directory;
        if was.kind != is.kind {
            (self.told)(FileChange::Changed, &path, is)?;
            if was.kind == FileKind::Directory && self.gone.insert(was.id) {
                below.push(Left::Removed(path, was.id));
            } else if is.kind == FileKind::Directory && self.been.insert(is.id) {
                below.push(Left::Added(path, is.id));
            }
            return Ok(());
        }
        let changed = match is.kind {
            FileKind::File => self.content(was, is)?,
            FileKind::Symlink => self.before.target(was.id)? != self.after.target(is.id)?,
            _ => false,
        };
        if changed {
            (self.told)(FileChange::Changed, &path, is)?;
        } else if self.described(was, is)? {
            (self.told)(FileChange::Described, &path, is)?;
        }
        if both_directories {
            below.push(Left::Both(path, was.id, is.id));
        }
        Ok(())
    }

    /// Whether two files have other bytes.
    fn content(&self, was: &FileNode, is: &FileNode) -> Result<bool> {
        if was.size_bytes != is.size_bytes {
            return Ok(true);
        }
        let (old, new) = (self.before.content(was.id)?, self.after.content(is.id)?);
        let unchanged = |piece: &Piece| match &piece.place {
            Place::Hole | Place::Inline(_) => true,
            Place::Volume(at) | Place::Patched(at, _) => {
                let range = *at..*at + (piece.range.end - piece.range.start);
                self.is_untouched(range)
            }
        };
        if old == new && new.iter().all(unchanged) {
            return Ok(false);
        }
        // it was written in the meantime, and whether it is the same all the same costs a reading
        self.differ(&old, &new, is.size_bytes)
    }

    /// Whether bytes of the file system are where they were in the volume, and nothing was written
    /// there. A partition or an extent of a logical volume may have moved.
    fn is_untouched(&self, range: Range<u64>) -> bool {
        let (before, after) = (self.before.layout(), self.after.layout());
        let (Some(were), Some(are)) = (before.ranges(range.clone()), after.ranges(range)) else {
            return false;
        };
        let (mut were, mut are) = (were, are);
        loop {
            match (were.next(), are.next()) {
                (None, None) => return true,
                (Some(one), Some(other)) if one == other => {
                    if !self.delta.is_disjoint(&Extents::of(one)) {
                        return false;
                    }
                }
                _ => return false,
            }
        }
    }

    /// Compares bytes, without those that are nowhere in both.
    fn differ(&self, old: &[Piece], new: &[Piece], size: u64) -> Result<bool> {
        let holes = |pieces: &[Piece]| -> Extents {
            let holes = pieces.iter().filter(|piece| piece.place == Place::Hole);
            holes.map(|piece| piece.range.clone()).collect()
        };
        let same = holes(old).intersect(&holes(new));
        let rest = Extents::of(0..size).subtract(&same);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        for range in &rest {
            let mut at = range.start;
            while at < range.end {
                let len = usize::try_from((range.end - at).min(BUFFER)).unwrap_or(0);
                one.resize(len, 0);
                other.resize(len, 0);
                self.before.fill(old, at, &mut one)?;
                self.after.fill(new, at, &mut other)?;
                if one != other {
                    return Ok(true);
                }
                at += len as u64;
            }
        }
        Ok(false)
    }

    /// Whether anything else of two files differs that a copy would keep.
    fn described(&self, was: &FileNode, is: &FileNode) -> Result<bool> {
        let of = |node: &FileNode| (node.mode, node.uid, node.gid, node.modified);
        let is_device = matches!(is.kind, FileKind::Characters(..) | FileKind::Blocks(..));
        if of(was) != of(is) || is_device && was.kind != is.kind {
            return Ok(true);
        }
        // attributes leave no other trace
        if was.changed == is.changed {
            return Ok(false);
        }
        Ok(self.before.attributes(was.id)? != self.after.attributes(is.id)?)
    }
}

/// What is in a directory, by its paths.
fn listed(
    files: &OpenFiles<'_>,
    path: &[u8],
    directory: FileId,
) -> Result<Vec<(Vec<u8>, FileNode)>> {
    let names = files.names(directory)?;
    let mut all = Vec::with_capacity(names.len());
    for names in names.chunks(BATCH) {
        expect(files, names)?;
        for entry in names {
            all.push(([path, b"/", &entry.name].concat(), files.node(entry.id)?));
        }
    }
    Ok(all)
}

fn expect(files: &OpenFiles<'_>, names: &[FileName]) -> Result<()> {
    let ids: Vec<FileId> = names.iter().take(BATCH).map(|entry| entry.id).collect();
    files.expect(&ids)
}
