//! Files of a backup, written below a directory of this machine.
//!
//! A directory's own times come last, once all below it is there. Names of one file are hard links
//! of one file again. Holes stay holes. Nothing that is there is replaced unless that is wished, and
//! no directory ever is; and what is replaced stays until all of the new file is there.
//!
//! What cannot be read is left out, said, and counted: only that file is missing. What cannot be
//! written ends the run.

use super::damage::{LeftOut, in_two_places};
use super::dress::{Dress, Keep, Lacks};
use super::paths::distinct;
use super::place::{Draft, Identity, Spot};
use super::{Attribute, FileId, FileKind, FileName, FileNode, Found, OpenFiles};
use chunkstore::{Error, ErrorKind, Result};
use mover_fsmap::files::{Place, is_plain};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, pwrite};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::vec;

/// Files whose inodes and content are fetched together.
const BATCH: usize = 64;
/// Of each of them so much.
const AHEAD_BYTES: u64 = 128 << 10;
const BUFFER: u64 = 1 << 20;
/// Directories that are open at a time.
pub(super) const DEPTH_MAX: usize = 400;

/// How to write.
#[derive(Debug, Clone, Copy)]
pub struct FilesCopyOptions {
    /// What has a name already is replaced, unless it is a directory.
    pub force: bool,
    /// Devices, set-id bits and attributes of the system are made too.
    pub privileged: bool,
    /// Files are given to their owners.
    pub owners: bool,
}

/// What was written.
#[derive(Debug, Default, Clone, Serialize)]
pub struct FilesSummary {
    /// Files with bytes.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Names that are one file with another.
    pub hard_links: u64,
    /// Pipes, sockets and devices.
    pub specials: u64,
    /// Bytes of files, without holes.
    pub data_bytes: u64,
    /// Devices that were left out, as nobody asked for them.
    pub devices_left_out: u64,
    /// Attributes that the target does not take.
    pub attributes_left_out: u64,
    /// Set-id bits that were left out.
    pub set_ids_left_out: u64,
    /// Files that belong to who copied them.
    pub owners_left_out: u64,
    /// What could not be read.
    #[serde(flatten)]
    pub left_out: LeftOut,
}

/// Copies what was found to a path, or below it, where that is a directory. Errors: two sources of
/// one last name; what is there already, what cannot be written; a run that is stopped.
pub fn copy_files(
    open: &OpenFiles<'_>,
    sources: &[Found],
    target: &Path,
    options: FilesCopyOptions,
) -> Result<FilesSummary> {
    distinct(sources)?;
    let at = Destination::of(sources, target)?;
    let mut copier = Copier {
        open,
        options,
        keep: Keep { owners: options.owners, privileged: options.privileged },
        root: at.root,
        links: HashMap::new(),
        been: HashSet::new(),
        lacks: Lacks::default(),
        done: FilesSummary::default(),
        buffer: Vec::new(),
    };
    for source in sources {
        let name = at.name.as_deref().or_else(|| source.name().map(OsStr::from_bytes));
        match name {
            Some(name) => copier.tree(source, name)?,
            None => copier.below(source)?,
        }
    }
    let Copier { lacks, mut done, .. } = copier;
    done.attributes_left_out = lacks.attributes;
    done.owners_left_out = lacks.owners;
    done.set_ids_left_out = lacks.set_ids;
    Ok(done)
}

/// Where it goes: a directory, and the name in it where that is not the source's own.
struct Destination {
    root: OwnedFd,
    name: Option<std::ffi::OsString>,
}

impl Destination {
    fn of(sources: &[Found], target: &Path) -> Result<Self> {
        let context = || format!("write to {}", target.display());
        if target.is_dir() {
            return Ok(Self { root: opened(target)?, name: None });
        }
        if sources.len() > 1 {
            let what = "it is no directory, and there is more than one thing to copy";
            return Err(Error::new(ErrorKind::Usage, context(), what).hint("make it: mkdir"));
        }
        let name = target.file_name().map(OsStr::to_owned);
        let Some(name) = name else {
            return Err(Error::new(ErrorKind::Usage, context(), "the path names no file"));
        };
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        Ok(Self { root: opened(parent.unwrap_or(Path::new(".")))?, name: Some(name) })
    }
}

fn opened(directory: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::empty()).map_err(|e| {
        Error::caused(ErrorKind::NotFound, format!("open directory {}", directory.display()), e)
    })
}

struct Copier<'a> {
    open: &'a OpenFiles<'a>,
    options: FilesCopyOptions,
    keep: Keep,
    root: OwnedFd,
    /// Files of more than one name.
    links: HashMap<FileId, First>,
    /// Directories: none is in two places.
    been: HashSet<FileId>,
    lacks: Lacks,
    done: FilesSummary,
    buffer: Vec<u8>,
}

/// The first name of a file that has more of them.
struct First {
    /// Below the root.
    path: PathBuf,
    /// Somebody may put another file there.
    identity: Identity,
    /// How many names are still to come.
    left: u32,
}

/// A directory that is being filled.
struct Frame {
    fd: OwnedFd,
    node: FileNode,
    attributes: Vec<Attribute>,
    /// Below the root.
    path: PathBuf,
    left: vec::IntoIter<FileName>,
    batch: vec::IntoIter<(FileName, Result<FileNode>)>,
    /// Whether its own permissions and times are set in the end.
    dressed: bool,
}

impl Copier<'_> {
    /// One file or directory, with all below it.
    fn tree(&mut self, source: &Found, name: &OsStr) -> Result<()> {
        let root = self.root.try_clone().map_err(unclonable)?;
        match self.one(root.as_fd(), Path::new(name), name, &source.node)? {
            Some(frame) => self.walk(frame),
            None => Ok(()),
        }
    }

    /// All that is in the root of the file system, into the target itself.
    fn below(&mut self, source: &Found) -> Result<()> {
        let fd = self.root.try_clone().map_err(unclonable)?;
        let node = source.node.clone();
        match self.frame(fd, node, Vec::new(), PathBuf::new(), false) {
            Ok(frame) => self.walk(frame),
            Err(e) => self.left_out(Path::new("/"), e),
        }
    }

    fn walk(&mut self, first: Frame) -> Result<()> {
        let mut frames = vec![first];
        while let Some(frame) = frames.last_mut() {
            let Some((entry, node)) = self.next(frame) else {
                let Some(frame) = frames.pop() else { break };
                if frame.dressed {
                    let name = frame.path.file_name().unwrap_or_default();
                    let spot = Spot { directory: frame.fd.as_fd(), name, shown: &frame.path };
                    let Frame { node, attributes, .. } = &frame;
                    Dress { node, attributes, keep: self.keep }.of_open(
                        &frame.fd,
                        &spot,
                        &mut self.lacks,
                    )?;
                }
                continue;
            };
            let path = frame.path.join(OsStr::from_bytes(&entry.name));
            if !is_plain(&entry.name) {
                self.left_out(
                    &path,
                    Error::new(ErrorKind::Corrupt, "read its name", "no file may have it"),
                )?;
                continue;
            }
            let node = match node {
                Ok(node) => node,
                Err(e) => {
                    self.left_out(&path, e)?;
                    continue;
                }
            };
            let deep = frames.len();
            if deep >= DEPTH_MAX && node.kind == FileKind::Directory {
                self.left_out(&path, too_deep())?;
                continue;
            }
            let Some(frame) = frames.last() else { break };
            let name = OsStr::from_bytes(&entry.name);
            let entered = self.one(frame.fd.as_fd(), &path, name, &node)?;
            frames.extend(entered);
        }
        Ok(())
    }

    /// The next name of a directory. What is said of the next ones, and the begin of their content,
    /// is fetched together.
    fn next(&mut self, frame: &mut Frame) -> Option<(FileName, Result<FileNode>)> {
        if let Some(next) = frame.batch.next() {
            return Some(next);
        }
        let names: Vec<FileName> = frame.left.by_ref().take(BATCH).collect();
        let ids: Vec<FileId> = names.iter().map(|entry| entry.id).collect();
        self.open.expect(&ids);
        let batch: Vec<_> = names
            .into_iter()
            .map(|entry| {
                let node = self.open.node(entry.id);
                (entry, node)
            })
            .collect();
        let mut ahead = Vec::new();
        for node in batch.iter().filter_map(|(_, node)| node.as_ref().ok()) {
            if node.kind != FileKind::File || node.size_bytes == 0 {
                continue;
            }
            let Ok(pieces) = self.open.content(node.id) else { continue };
            let stored = pieces.iter().filter_map(|piece| match piece.place {
                Place::Volume(at) | Place::Patched(at, _) => {
                    Some(at..at + (piece.range.end - piece.range.start).min(AHEAD_BYTES))
                }
                Place::Hole | Place::Inline(_) => None,
            });
            ahead.extend(stored.take(4));
        }
        self.open.volume.expect(&ahead);
        frame.batch = batch.into_iter();
        frame.batch.next()
    }

    /// A name; of a directory what is to be done below it.
    fn one(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &Path,
        name: &OsStr,
        node: &FileNode,
    ) -> Result<Option<Frame>> {
        let spot = Spot { directory, name, shown: path };
        match self.made(&spot, path, node) {
            Ok(frame) => Ok(frame),
            Err(e) => self.left_out(path, e).map(|()| None),
        }
    }

    fn made(&mut self, spot: &Spot<'_>, path: &Path, node: &FileNode) -> Result<Option<Frame>> {
        let is_device = matches!(node.kind, FileKind::Characters(..) | FileKind::Blocks(..));
        if is_device && !self.options.privileged {
            self.done.devices_left_out += 1;
            return Ok(None);
        }
        if node.kind == FileKind::Directory {
            return self.entered(spot, path, node).map(Some);
        }
        if let Some(stat) = spot.there()? {
            if !self.options.force {
                return Err(spot.failed("create", Errno::EXIST));
            }
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                return Err(spot.failed("replace", Errno::ISDIR));
            }
        }
        if node.links > 1 && self.linked(spot, node)? {
            return Ok(None);
        }
        let attributes = &self.open.attributes(node.id)?;
        let (draft, count) = match node.kind {
            FileKind::File => (self.file(spot, node)?, &mut self.done.files),
            FileKind::Symlink => {
                (spot.symlink(&self.open.target(node.id)?)?, &mut self.done.symlinks)
            }
            kind => (spot.special(kind)?, &mut self.done.specials),
        };
        Dress { node, attributes, keep: self.keep }.of_draft(&draft, &mut self.lacks)?;
        let identity = draft.identity()?;
        named(draft, self.options)?;
        *count += 1;
        if node.links > 1 {
            let first = First { path: path.to_owned(), identity, left: node.links - 1 };
            self.links.insert(node.id, first);
        }
        Ok(None)
    }

    fn entered(&mut self, spot: &Spot<'_>, path: &Path, node: &FileNode) -> Result<Frame> {
        if !self.been.insert(node.id) {
            return Err(in_two_places());
        }
        // before anything is made of it
        let attributes = self.open.attributes(node.id)?;
        let names = self.open.names(node.id)?;
        let fd = spot.directory()?;
        self.done.directories += 1;
        let mut frame = self.frame(fd, node.clone(), attributes, path.to_owned(), true)?;
        frame.left = names.into_iter();
        Ok(frame)
    }

    fn frame(
        &mut self,
        fd: OwnedFd,
        node: FileNode,
        attributes: Vec<Attribute>,
        path: PathBuf,
        dressed: bool,
    ) -> Result<Frame> {
        let left = if dressed { Vec::new() } else { self.open.names(node.id)? }.into_iter();
        Ok(Frame { fd, node, attributes, path, left, batch: Vec::new().into_iter(), dressed })
    }

    /// A name of a file that has another one here, if that is still the file that was copied.
    fn linked(&mut self, spot: &Spot<'_>, node: &FileNode) -> Result<bool> {
        let Some(first) = self.links.get_mut(&node.id) else { return Ok(false) };
        let parent = first.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let made = openat2(&self.root, parent, flags, Mode::empty(), beneath).and_then(|parent| {
            let name = first.path.file_name().unwrap_or_default();
            spot.link((&parent, name))
        });
        let draft = match made {
            Err(Errno::NOENT) => return Ok(false),
            made => made.map_err(|e| spot.failed("link", e))?,
        };
        if draft.identity()? != first.identity {
            return Ok(false);
        }
        named(draft, self.options)?;
        self.done.hard_links += 1;
        first.left -= 1;
        if first.left == 0 {
            self.links.remove(&node.id);
        }
        Ok(true)
    }

    fn file<'s>(&mut self, spot: &Spot<'s>, node: &FileNode) -> Result<Draft<'s>> {
        let pieces = self.open.content(node.id)?;
        let draft = spot.file(node.size_bytes)?;
        let mut data = 0;
        for piece in pieces.iter().filter(|piece| piece.place != Place::Hole) {
            let mut at = piece.range.start;
            while at < piece.range.end {
                let len = (piece.range.end - at).min(BUFFER);
                self.buffer.resize(usize::try_from(len).unwrap_or(0), 0);
                self.open.fill(&pieces, at, &mut self.buffer)?;
                self.write(spot, &draft.fd, at)?;
                at += len;
                data += len;
            }
        }
        self.done.data_bytes += data;
        let progress = self.open.run.progress;
        progress.done_bytes.add(data);
        progress.written_bytes.add(data);
        progress.moved();
        Ok(draft)
    }

    fn write(&self, spot: &Spot<'_>, file: &OwnedFd, offset: u64) -> Result<()> {
        let mut done = 0;
        while done < self.buffer.len() {
            match pwrite(file, &self.buffer[done..], offset + done as u64) {
                Ok(0) => return Err(spot.failed("write", Errno::IO)),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(e) => return Err(spot.failed("write", e)),
            }
        }
        Ok(())
    }

    /// What cannot be read is one file less; all else ends the run.
    fn left_out(&mut self, path: &Path, e: Error) -> Result<()> {
        let path = path.display();
        self.done.left_out.add(&path, e).map_err(|e| e.within(format!("copy {path}")))
    }
}

pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::Unsupported, "enter it", "it is too deep: name it by itself")
}

fn named(draft: Draft<'_>, options: FilesCopyOptions) -> Result<()> {
    if options.force { draft.replace() } else { draft.place() }
}

fn unclonable(e: std::io::Error) -> Error {
    Error::caused(ErrorKind::Device, "open the target once more", e)
}
