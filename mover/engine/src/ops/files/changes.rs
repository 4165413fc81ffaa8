//! Which files changed from one backup of a volume to another: both trees side by side, directory by
//! directory, in the order of their names.
//!
//! Content is told apart by where it is: a file whose bytes are where they were, and of which no
//! block has changed by the maps of the two backups, is the same, and none of it is read. Where
//! only the place is another one and all else is as it was, bytes are compared: a journal moves
//! blocks.
//!
//! A file that cannot be read in one of the two is left out, and so is all below such a directory.
//! It is named, with its backup, and everything else is compared.

use super::damage::{LeftOut, in_two_places, is_of_one_file};
use super::{Attribute, FileId, FileKind, FileName, FileNode, OpenFiles};
use chunkstore::{Error, Result};
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

/// One of the two backups.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) open: &'a OpenFiles<'a>,
    /// Its name.
    pub(super) backup: &'a str,
}

/// What one of the two backups says, or why it says nothing.
type Answer<'a, T> = std::result::Result<T, Unread<'a>>;

/// Something that cannot be read, and of which backup.
struct Unread<'a> {
    backup: &'a str,
    why: Error,
}

impl<'a> Side<'a> {
    fn says<T>(self, answer: Result<T>) -> Answer<'a, T> {
        answer.map_err(|why| Unread { backup: self.backup, why })
    }

    fn node(self, id: FileId) -> Answer<'a, FileNode> {
        self.says(self.open.node(id))
    }

    fn names(self, directory: FileId) -> Answer<'a, Vec<FileName>> {
        self.says(self.open.names(directory))
    }

    fn content(self, file: FileId) -> Answer<'a, Vec<Piece>> {
        self.says(self.open.content(file))
    }

    fn target(self, link: FileId) -> Answer<'a, Vec<u8>> {
        self.says(self.open.target(link))
    }

    fn attributes(self, file: FileId) -> Answer<'a, Vec<Attribute>> {
        self.says(self.open.attributes(file))
    }

    fn fill(self, pieces: &[Piece], offset: u64, buffer: &mut [u8]) -> Answer<'a, ()> {
        self.says(self.open.fill(pieces, offset, buffer))
    }

    fn expect(self, names: &[FileName]) {
        let ids: Vec<FileId> = names.iter().take(BATCH).map(|entry| entry.id).collect();
        self.open.expect(&ids);
    }
}

/// Compares all files of two backups of one volume; `delta` is what has changed of the volume. Gives
/// those that cannot be read of either.
///
/// # Errors
///
/// A failure that is not of one file; what hears of a change fails.
pub(super) fn changed_files(
    (before, after): (Side<'_>, Side<'_>),
    delta: &Extents,
    told: TellChange<'_>,
) -> Result<LeftOut> {
    let mut compare = Compare {
        before,
        after,
        delta,
        told,
        been: HashSet::new(),
        gone: HashSet::new(),
        left_out: LeftOut::default(),
    };
    compare.directories(before.open.root(), after.open.root())?;
    Ok(compare.left_out)
}

struct Compare<'a> {
    before: Side<'a>,
    after: Side<'a>,
    delta: &'a Extents,
    told: TellChange<'a>,
    /// Directories of the later one: none is in two places.
    been: HashSet<FileId>,
    /// Directories of the earlier one of which all is removed.
    gone: HashSet<FileId>,
    left_out: LeftOut,
}

/// A directory that is to be compared.
enum Left {
    /// In both backups.
    Both {
        path: Vec<u8>,
        before: FileId,
        after: FileId,
        /// It is left out already, but for what is in it.
        is_named: bool,
    },
    /// In one of them: all in it is this.
    Alone(FileChange, Vec<u8>, FileId),
}

impl<'a> Compare<'a> {
    fn directories(&mut self, before: FileId, after: FileId) -> Result<()> {
        let mut left = vec![Left::Both { path: Vec::new(), before, after, is_named: false }];
        while let Some(next) = left.pop() {
            let mut below = Vec::new();
            match next {
                Left::Both { path, before, after, is_named } => match self.names(before, after) {
                    Ok((old, new)) => self.directory(&path, (&old, &new), &mut below)?,
                    Err(e) if is_named && is_of_one_file(&e.why) => {}
                    Err(e) => self.left_out(&path, e)?,
                },
                Left::Alone(change, path, directory) => {
                    self.alone(change, &path, directory, &mut below)?;
                }
            }
            left.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Names in a directory of both.
    fn names(
        &mut self,
        before: FileId,
        after: FileId,
    ) -> Answer<'a, (Vec<FileName>, Vec<FileName>)> {
        if !self.been.insert(after) {
            return self.after.says(Err(in_two_places()));
        }
        Ok((self.before.names(before)?, self.after.names(after)?))
    }

    /// A directory of one of the two.
    fn alone(
        &mut self,
        change: FileChange,
        path: &[u8],
        directory: FileId,
        below: &mut Vec<Left>,
    ) -> Result<()> {
        let (side, entered) = match change {
            FileChange::Removed => (self.before, &mut self.gone),
            _ => (self.after, &mut self.been),
        };
        let names = match entered.insert(directory) {
            true => side.names(directory),
            false => side.says(Err(in_two_places())),
        };
        let names = match names {
            Ok(names) => names,
            Err(e) => return self.left_out(path, e),
        };
        for names in names.chunks(BATCH) {
            side.expect(names);
            for entry in names {
                let path = [path, b"/", &entry.name].concat();
                match side.node(entry.id) {
                    Ok(node) => self.one_sided(change, path, &node, below)?,
                    Err(e) => self.left_out(&path, e)?,
                }
            }
        }
        Ok(())
    }

    /// A file of one of the two.
    fn one_sided(
        &mut self,
        change: FileChange,
        path: Vec<u8>,
        node: &FileNode,
        below: &mut Vec<Left>,
    ) -> Result<()> {
        (self.told)(change, &path, node)?;
        if node.kind == FileKind::Directory {
            below.push(Left::Alone(change, path, node.id));
        }
        Ok(())
    }

    fn left_out(&mut self, path: &[u8], e: Unread<'_>) -> Result<()> {
        let path = if path.is_empty() { b"/" } else { path };
        let path = String::from_utf8_lossy(path);
        self.left_out.add(format_args!("{path} in backup {}", e.backup), e.why)
    }

    /// Two directories of one path.
    fn directory(
        &mut self,
        path: &[u8],
        (mut old, mut new): (&[FileName], &[FileName]),
        below: &mut Vec<Left>,
    ) -> Result<()> {
        let mut ahead = 0;
        while !old.is_empty() || !new.is_empty() {
            if ahead == 0 {
                self.before.expect(old);
                self.after.expect(new);
                ahead = BATCH;
            }
            ahead -= 1;
            let order = match (old.first(), new.first()) {
                (Some(one), Some(other)) => one.name.cmp(&other.name),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            let was = if order.is_le() { old.split_off_first() } else { None };
            let is = if order.is_ge() { new.split_off_first() } else { None };
            let Some(name) = is.or(was) else { break };
            let path = [path, b"/", &name.name].concat();
            let was = was.map(|entry| self.before.node(entry.id)).transpose();
            let is = is.map(|entry| self.after.node(entry.id)).transpose();
            match (was, is) {
                (Err(e), _) | (_, Err(e)) => self.left_out(&path, e)?,
                (Ok(Some(was)), Ok(Some(is))) => self.file(path, &was, &is, below)?,
                (Ok(Some(was)), Ok(None)) => {
                    self.one_sided(FileChange::Removed, path, &was, below)?;
                }
                (Ok(None), Ok(Some(is))) => self.one_sided(FileChange::Added, path, &is, below)?,
                (Ok(None), Ok(None)) => {}
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
        let [was_directory, is_directory] =
            [was.kind, is.kind].map(|kind| kind == FileKind::Directory);
        if was.kind != is.kind {
            (self.told)(FileChange::Changed, &path, is)?;
            if was_directory {
                below.push(Left::Alone(FileChange::Removed, path, was.id));
            } else if is_directory {
                below.push(Left::Alone(FileChange::Added, path, is.id));
            }
            return Ok(());
        }
        let mut is_named = false;
        match self.change(was, is) {
            Ok(Some(change)) => (self.told)(change, &path, is)?,
            Ok(None) => {}
            Err(e) => {
                self.left_out(&path, e)?;
                is_named = true;
            }
        }
        if is_directory {
            below.push(Left::Both { path, before: was.id, after: is.id, is_named });
        }
        Ok(())
    }

    /// What became of a file that is of one kind in both.
    fn change(&self, was: &FileNode, is: &FileNode) -> Answer<'a, Option<FileChange>> {
        let changed = match is.kind {
            FileKind::File => self.content(was, is)?,
            FileKind::Symlink => self.before.target(was.id)? != self.after.target(is.id)?,
            _ => false,
        };
        if changed {
            return Ok(Some(FileChange::Changed));
        }
        Ok(self.described(was, is)?.then_some(FileChange::Described))
    }

    /// Whether two files have other bytes.
    fn content(&self, was: &FileNode, is: &FileNode) -> Answer<'a, bool> {
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
        let (before, after) = (self.before.open.layout(), self.after.open.layout());
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
    fn differ(&self, old: &[Piece], new: &[Piece], size: u64) -> Answer<'a, bool> {
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
    fn described(&self, was: &FileNode, is: &FileNode) -> Answer<'a, bool> {
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
