//! Files of a backup as a stream for `tar`: POSIX, with what its headers have no room for in PAX
//! records, as GNU tar and bsdtar write and read them. Holes are kept in GNU's form 1.0.
//!
//! A file that cannot be read in the middle of its bytes has zeros in their place, as its size is
//! said before them; it is named, and the run fails in the end.

use super::copy::{DEPTH_MAX, FilesCopyOptions, FilesSummary, too_deep};
use super::damage::{in_two_places, is_of_one_file};
use super::paths::distinct;
use super::{Attribute, FileId, FileKind, FileName, FileNode, FileTime, Found, OpenFiles};
use chunkstore::{Error, ErrorKind, Result};
use mover_fsmap::files::{Piece, Place, is_plain};
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::vec;
use tar::{Builder, EntryType, Header};

const BLOCK: usize = 512;
const BATCH: usize = 64;
const BUFFER: usize = 1 << 20;
/// Of names and numbers that a header itself has room for.
const NAME_BYTES: usize = 100;

/// Writes what was found, with all below it, each under its own name. Errors: two sources of one
/// last name; whoever takes the stream is gone; a run that is stopped.
pub fn write_tar(
    open: &OpenFiles<'_>,
    sources: &[Found],
    out: &mut dyn Write,
    options: FilesCopyOptions,
) -> Result<FilesSummary> {
    distinct(sources)?;
    let mut writer = Writer {
        open,
        options,
        tar: Builder::new(Out { out, written: 0, due: 0, closed: false }),
        links: HashMap::new(),
        been: HashSet::new(),
        done: FilesSummary::default(),
    };
    match writer.all(sources) {
        Ok(()) => Ok(writer.done),
        Err(e) => {
            writer.tar.get_mut().close_broken();
            Err(e)
        }
    }
}

/// Where an archive goes.
struct Out<'w> {
    out: &'w mut dyn Write,
    written: u64,
    /// The end of the entry that is being written.
    due: u64,
    closed: bool,
}

impl Out<'_> {
    /// Ends an archive that is not whole so that each reader says so: in the middle of an entry, or
    /// with a block that is no header. A builder that is dropped would end it as a sound one.
    fn close_broken(&mut self) {
        if !self.closed && self.written >= self.due {
            // who has asked hears of the first failure
            let _ = self.out.write_all(&[0xff; BLOCK]);
        }
        self.closed = true;
    }
}

impl Write for Out<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        match self.out.write(buf) {
            Ok(len) => {
                self.written += len as u64;
                Ok(len)
            }
            Err(e) => {
                self.closed = e.kind() != io::ErrorKind::Interrupted;
                Err(e)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn gone(e: io::Error) -> Error {
    match e.downcast::<Error>() {
        Ok(e) => e,
        Err(e) => Error::caused(ErrorKind::Device, "write the archive", e),
    }
}

struct Writer<'a, 'w> {
    open: &'a OpenFiles<'a>,
    options: FilesCopyOptions,
    tar: Builder<Out<'w>>,
    /// Files of more than one name, by which they are in the archive.
    links: HashMap<FileId, Vec<u8>>,
    been: HashSet<FileId>,
    done: FilesSummary,
}

impl Writer<'_, '_> {
    fn all(&mut self, sources: &[Found]) -> Result<()> {
        for source in sources {
            let name = source.name().unwrap_or(b".").to_vec();
            self.tree(name, source.node.clone())?;
        }
        self.tar.finish().map_err(gone)
    }

    fn tree(&mut self, name: Vec<u8>, node: FileNode) -> Result<()> {
        let mut frames: Vec<(Vec<u8>, vec::IntoIter<FileName>)> = Vec::new();
        frames.extend(self.one(name, &node)?);
        while let Some((path, left)) = frames.last_mut() {
            if left.len() % BATCH == 0 {
                let ids: Vec<FileId> = left.as_slice().iter().take(BATCH).map(|at| at.id).collect();
                self.open.expect(&ids);
            }
            let Some(entry) = left.next() else {
                frames.pop();
                continue;
            };
            let path = [&path[..], b"/", &entry.name].concat();
            if !is_plain(&entry.name) {
                let e = Error::new(ErrorKind::Corrupt, "read its name", "no file may have it");
                self.left_out(&path, e)?;
                continue;
            }
            match self.open.node(entry.id) {
                Ok(node) if node.kind == FileKind::Directory && frames.len() >= DEPTH_MAX => {
                    self.left_out(&path, too_deep())?;
                }
                Ok(node) => frames.extend(self.one(path, &node)?),
                Err(e) => self.left_out(&path, e)?,
            }
        }
        Ok(())
    }

    /// One name; of a directory what is below it.
    fn one(
        &mut self,
        path: Vec<u8>,
        node: &FileNode,
    ) -> Result<Option<(Vec<u8>, vec::IntoIter<FileName>)>> {
        match self.written(&path, node) {
            Ok(below) => Ok(below.map(|names| (path, names.into_iter()))),
            Err(e) => self.left_out(&path, e).map(|()| None),
        }
    }

    fn written(&mut self, path: &[u8], node: &FileNode) -> Result<Option<Vec<FileName>>> {
        let is_device = matches!(node.kind, FileKind::Characters(..) | FileKind::Blocks(..));
        if is_device && !self.options.privileged {
            self.done.devices_left_out += 1;
            return Ok(None);
        }
        // an archive has no sockets: nobody misses them
        if node.kind == FileKind::Socket {
            return Ok(None);
        }
        if node.kind == FileKind::Directory {
            if !self.been.insert(node.id) {
                return Err(in_two_places());
            }
            let names = self.open.names(node.id)?;
            let mut entry = self.entry(path, node)?;
            entry.path.push(b'/');
            entry.header.set_entry_type(EntryType::Directory);
            self.append(entry, io::empty())?;
            self.done.directories += 1;
            return Ok(Some(names));
        }
        if let Some(first) = self.links.get(&node.id).cloned() {
            let mut entry = self.entry(path, node)?;
            entry.header.set_entry_type(EntryType::Link);
            entry.link(&first);
            self.append(entry, io::empty())?;
            self.done.hard_links += 1;
            return Ok(None);
        }
        let mut entry = self.entry(path, node)?;
        match node.kind {
            FileKind::Symlink => {
                entry.header.set_entry_type(EntryType::Symlink);
                entry.link(&self.open.target(node.id)?);
                self.append(entry, io::empty())?;
                self.done.symlinks += 1;
            }
            FileKind::File => self.file(entry, path, node)?,
            FileKind::Characters(major, minor) | FileKind::Blocks(major, minor) => {
                let is_blocks = matches!(node.kind, FileKind::Blocks(..));
                entry.header.set_entry_type(if is_blocks {
                    EntryType::Block
                } else {
                    EntryType::Char
                });
                let numbers = entry
                    .header
                    .set_device_major(major)
                    .and_then(|()| entry.header.set_device_minor(minor));
                numbers.map_err(gone)?;
                self.append(entry, io::empty())?;
                self.done.specials += 1;
            }
            FileKind::Fifo | FileKind::Socket | FileKind::Directory => {
                entry.header.set_entry_type(EntryType::Fifo);
                self.append(entry, io::empty())?;
                self.done.specials += 1;
            }
        }
        if node.links > 1 {
            self.links.insert(node.id, path.to_vec());
        }
        Ok(None)
    }

    fn entry(&mut self, path: &[u8], node: &FileNode) -> Result<Entry> {
        let attributes = self.open.attributes(node.id)?;
        Ok(Entry::of(path, node, &attributes, self.options, &mut self.done))
    }

    fn file(&mut self, mut entry: Entry, path: &[u8], node: &FileNode) -> Result<()> {
        let pieces = self.open.content(node.id)?;
        let data: Vec<Range<u64>> = data_of(&pieces);
        let stored: u64 = data.iter().map(|range| range.end - range.start).sum();
        let map = match stored == node.size_bytes {
            true => Vec::new(),
            false => entry.sparse(&data, node.size_bytes),
        };
        entry.header.set_entry_type(EntryType::Regular);
        entry.header.set_size(map.len() as u64 + stored);
        let mut bytes = Bytes {
            open: self.open,
            pieces: &pieces,
            map,
            data: data.into_iter(),
            at: 0..0,
            buffer: Vec::new(),
            from: 0,
            failed: None,
        };
        let appended = append(&mut self.tar, &mut entry, &mut bytes);
        let failed = bytes.failed;
        appended?;
        self.done.files += 1;
        self.done.data_bytes += stored;
        self.open.run.progress.done_bytes.add(stored);
        self.open.run.progress.moved();
        match failed {
            Some(e) => self.left_out(path, e),
            None => Ok(()),
        }
    }

    fn append(&mut self, mut entry: Entry, bytes: impl Read) -> Result<()> {
        append(&mut self.tar, &mut entry, bytes)
    }

    fn left_out(&mut self, path: &[u8], e: Error) -> Result<()> {
        let path = String::from_utf8_lossy(path);
        self.done.left_out.add(&path, e).map_err(|e| e.within(format!("archive {path}")))
    }
}

fn append(tar: &mut Builder<Out<'_>>, entry: &mut Entry, bytes: impl Read) -> Result<()> {
    if entry.path.len() > NAME_BYTES || !entry.path.is_ascii() {
        let path = entry.path.clone();
        entry.record("path", path);
    }
    let short: Vec<u8> = entry.path.iter().copied().take(NAME_BYTES).collect();
    let name = &mut entry.header.as_old_mut().name;
    name.fill(0);
    name[..short.len()].copy_from_slice(&short);
    let records = entry.records.iter().map(|(name, value)| (name.as_str(), &value[..]));
    if !entry.records.is_empty() {
        tar.append_pax_extensions(records).map_err(gone)?;
    }
    entry.header.set_cksum();
    let len = entry.header.size().map_err(gone)?.next_multiple_of(BLOCK as u64);
    let out = tar.get_mut();
    out.due = out.written.saturating_add(BLOCK as u64).saturating_add(len);
    tar.append(&entry.header, bytes).map_err(gone)
}

/// Stretches of a file that have bytes, each as long as it can be.
fn data_of(pieces: &[Piece]) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.place != Place::Hole) {
        match all.last_mut() {
            Some(last) if last.end == piece.range.start => last.end = piece.range.end,
            _ => all.push(piece.range.clone()),
        }
    }
    all
}

/// A header, and what it has no room for.
struct Entry {
    header: Header,
    path: Vec<u8>,
    records: Vec<(String, Vec<u8>)>,
}

impl Entry {
    fn of(
        path: &[u8],
        node: &FileNode,
        attributes: &[Attribute],
        options: FilesCopyOptions,
        done: &mut FilesSummary,
    ) -> Self {
        let mut header = Header::new_ustar();
        let mut mode = node.mode;
        if node.kind != FileKind::Directory && mode & 0o6000 != 0 && !options.privileged {
            mode &= !0o6000;
            done.set_ids_left_out += 1;
        }
        header.set_mode(mode);
        header.set_uid(node.uid.into());
        header.set_gid(node.gid.into());
        header.set_size(0);
        header.set_mtime(u64::try_from(node.modified.seconds).unwrap_or(0));
        let mut entry = Self { header, path: path.to_vec(), records: Vec::new() };
        entry.time("mtime", node.modified);
        entry.time("atime", node.accessed);
        for one in attributes {
            let of_system = one.name.starts_with(b"security.") || one.name.starts_with(b"trusted.");
            let Ok(name) = std::str::from_utf8(&one.name) else { continue };
            if (of_system && !options.privileged) || name.contains('=') {
                done.attributes_left_out += u64::from(!of_system);
                continue;
            }
            entry.record(&format!("SCHILY.xattr.{name}"), one.value.clone());
        }
        entry
    }

    fn record(&mut self, name: &str, value: Vec<u8>) {
        self.records.push((name.to_owned(), value));
    }

    fn time(&mut self, name: &str, time: FileTime) {
        let FileTime { seconds, nanoseconds } = time;
        // a time before 1970 counts its parts of a second backwards
        let text = match (seconds < 0, nanoseconds) {
            (_, 0) => seconds.to_string(),
            (false, part) => format!("{seconds}.{part:09}"),
            (true, part) => {
                let whole = (seconds + 1).unsigned_abs();
                format!("-{whole}.{:09}", 1_000_000_000 - part)
            }
        };
        self.record(name, text.into_bytes());
    }

    fn link(&mut self, target: &[u8]) {
        if target.len() > NAME_BYTES || !target.is_ascii() {
            self.record("linkpath", target.to_vec());
        }
        let short: Vec<u8> = target.iter().copied().take(NAME_BYTES).collect();
        let name = &mut self.header.as_old_mut().linkname;
        name.fill(0);
        name[..short.len()].copy_from_slice(&short);
    }

    /// Makes it the entry of a file with holes; gives what comes before its bytes.
    fn sparse(&mut self, data: &[Range<u64>], size: u64) -> Vec<u8> {
        let mut map = data.to_vec();
        // a hole at the end is said by a stretch of nothing
        if map.last().is_none_or(|last| last.end < size) {
            map.push(size..size);
        }
        let mut text = format!("{}\n", map.len());
        for range in &map {
            text.push_str(&format!("{}\n{}\n", range.start, range.end - range.start));
        }
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        self.record("GNU.sparse.major", b"1".to_vec());
        self.record("GNU.sparse.minor", b"0".to_vec());
        let path = self.path.clone();
        self.record("GNU.sparse.name", path);
        self.record("GNU.sparse.realsize", size.to_string().into_bytes());
        let name = self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        self.path = [b"GNUSparseFile.0/", name].concat();
        bytes
    }
}

/// The map of a file with holes, if it has some, and then its bytes.
struct Bytes<'a> {
    open: &'a OpenFiles<'a>,
    pieces: &'a [Piece],
    map: Vec<u8>,
    data: vec::IntoIter<Range<u64>>,
    /// What is left of the stretch that is read.
    at: Range<u64>,
    buffer: Vec<u8>,
    from: usize,
    /// Why some are zero.
    failed: Option<Error>,
}

impl Bytes<'_> {
    fn refill(&mut self) -> io::Result<bool> {
        self.from = 0;
        if !self.map.is_empty() {
            self.buffer = std::mem::take(&mut self.map);
            return Ok(true);
        }
        if self.at.is_empty() {
            match self.data.next() {
                Some(next) => self.at = next,
                None => return Ok(false),
            }
        }
        let len = usize::try_from(self.at.end - self.at.start).unwrap_or(BUFFER).min(BUFFER);
        self.buffer.resize(len, 0);
        if let Err(e) = self.open.fill(self.pieces, self.at.start, &mut self.buffer) {
            if !is_of_one_file(&e) {
                return Err(io::Error::other(e));
            }
            self.buffer.fill(0);
            self.failed.get_or_insert(e);
        }
        self.at.start += len as u64;
        Ok(true)
    }
}

impl Read for Bytes<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.from == self.buffer.len() {
            self.buffer.clear();
            if !self.refill()? {
                return Ok(0);
            }
        }
        let len = buf.len().min(self.buffer.len() - self.from);
        buf[..len].copy_from_slice(&self.buffer[self.from..self.from + len]);
        self.from += len;
        Ok(len)
    }
}
