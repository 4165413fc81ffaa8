//! Files: records of the master file table, and what their attributes say.
//!
//! | file | |
//! |---|---|
//! | `stream` | a value: within a record, or in runs of clusters that several records tell |
//! | `directory` | names |
//! | `reparse` | links, and what else only a driver of its own can follow |
//!
//! The log is not replayed. So the volume is held to what its map is held to (see above): what was
//! not unmounted is refused. A file is the number of its record, with some bits of how often that
//! was given away: a name that is left over from another file leads to none.
//!
//! Compressed units and encrypted files are errors of their file. Alternate streams, and who owns a
//! file, are left out.

mod directory;
mod reparse;
mod stream;

use super::record::{Record, name, value};
use super::{Boot, KIND, Ntfs, attribute, file, log, unusable};
use crate::files::{
    Attribute, FileId, FileKind, FileName, FileNode, FileTime, Files, Piece, read_content,
};
use crate::{ReadAt, Refusal, le16, le32, le64};
use reparse::Reparse;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use stream::Stream;

/// A record's number, in a file's.
const NUMBER_BITS: u32 = 32;
const READ_ONLY: u32 = 1;
const HAS_REPARSE: u32 = 0x400;
/// Of a name: eight letters and three, for those who know no longer ones.
const OF_DOS: u8 = 2;
/// Of a list of attributes: what the format allows.
const LIST_BYTES_MAX: u64 = 256 << 10;
/// Of all records of one file.
const RECORDS_BYTES_MAX: usize = 32 << 20;
/// Records and files that are kept.
const KEPT_MAX: usize = 256;

/// See [`crate::files::open`].
pub(crate) fn files<'a>(
    volume: &'a dyn ReadAt,
    volume_bytes: u64,
) -> Result<Box<dyn Files + 'a>, Refusal> {
    let boot = Boot::read(volume, volume_bytes)?;
    let start = boot.table * boot.cluster_bytes;
    let first = Record::read(volume, start, &boot, file::TABLE)?;
    let table = stream::begin(&first, &boot)?;
    let fs = Ntfs { volume, boot, table: table.own_runs()? };
    fs.check_volume()?;
    fs.check_mirror()?;
    log::check(&fs, &fs.record(file::LOG)?.data(&fs.boot)?)?;
    let pieces = table.pieces(&fs.boot)?;
    let (fs, root) = (fs, FileId(file::ROOT));
    let mut files = NtfsFiles { fs, table: pieces, bytes: 0, root, kept: RefCell::default() };
    files.bytes = files.table.last().map_or(0, |last| last.range.end);
    files.extend_table(&first, table)?;
    let root = files.record(file::ROOT)?;
    let root = root.filter(Record::is_directory);
    let root = root.ok_or_else(|| unusable("its root is no directory"))?;
    files.root = id(file::ROOT, root.sequence());
    Ok(Box::new(files))
}

struct NtfsFiles<'a> {
    fs: Ntfs<'a>,
    /// The master file table, all of it.
    table: Vec<Piece>,
    bytes: u64,
    root: FileId,
    kept: RefCell<HashMap<u64, Rc<File>>>,
}

/// All records of a file.
struct File {
    number: u64,
    records: Vec<Record>,
}

fn id(number: u64, sequence: u16) -> FileId {
    let [low, _] = sequence.to_le_bytes();
    FileId(number | u64::from(low) << NUMBER_BITS)
}

fn number(id: FileId) -> u64 {
    id.0 & ((1 << NUMBER_BITS) - 1)
}

/// What a reference says: which record, and how often that had been given away.
fn reference(bytes: u64) -> (u64, u16) {
    (bytes & ((1 << 48) - 1), u16::try_from(bytes >> 48).unwrap_or(0))
}

fn wrong(number: u64, why: &str) -> Refusal {
    unusable(format!("the file of record {number}: {why}"))
}

impl NtfsFiles<'_> {
    /// A record as it stands; `None` if it is of no file.
    fn record(&self, number: u64) -> Result<Option<Record>, Refusal> {
        let len = self.fs.boot.record_bytes;
        let at = number
            .checked_mul(len)
            .filter(|at| at.checked_add(len).is_some_and(|end| end <= self.bytes));
        let Some(at) = at else { return Ok(None) };
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        read_content(self.fs.volume, &self.table, at, &mut bytes)?;
        Record::of_file(&bytes, number)
    }

    /// Adds what other records tell of the table, each of which is in what was told before.
    fn extend_table(&mut self, first: &Record, mut table: Stream) -> Result<(), Refusal> {
        let Some(list) = self.list(first)? else { return table.check_whole(&self.fs.boot) };
        let mut more: BTreeMap<u64, u64> = BTreeMap::new();
        for entry in entries(file::TABLE, &list)? {
            if entry.kind == attribute::DATA && entry.record != file::TABLE {
                more.insert(entry.first, entry.record);
            }
        }
        for record in more.into_values() {
            let part = self.rest(file::TABLE, first.sequence(), record)?;
            table.add(&part, (attribute::DATA, &[]), &self.fs.boot)?;
            self.table = table.pieces(&self.fs.boot)?;
            self.bytes = self.table.last().map_or(0, |last| last.range.end);
        }
        table.check_whole(&self.fs.boot)
    }

    /// The list of a file's attributes, if it has one.
    fn list(&self, base: &Record) -> Result<Option<Vec<u8>>, Refusal> {
        let all = base.attributes()?;
        let Some(list) = all.into_iter().find(|one| le32(one, 0) == attribute::LIST) else {
            return Ok(None);
        };
        if let Some(value) = value(list) {
            return Ok(Some(value.to_vec()));
        }
        let mut stream = Stream::new(base.number());
        stream.add(base, (attribute::LIST, &[]), &self.fs.boot)?;
        stream.check_whole(&self.fs.boot)?;
        self.bytes_of(&stream, LIST_BYTES_MAX).map(Some)
    }

    /// Another record of a file.
    fn rest(&self, base: u64, sequence: u16, record: u64) -> Result<Record, Refusal> {
        let found = self.record(record)?;
        let own = |one: &Record| one.base() != 0 && reference(one.base()) == (base, sequence);
        found.filter(own).ok_or_else(|| {
            wrong(base, &format!("it goes on in record {record}, which is not its own"))
        })
    }

    /// All bytes of something short.
    fn bytes_of(&self, stream: &Stream, most: u64) -> Result<Vec<u8>, Refusal> {
        if stream.bytes > most {
            let why = format!("it has {} bytes where there are at most {most}", stream.bytes);
            return Err(wrong(stream.number, &why));
        }
        let pieces = stream.pieces(&self.fs.boot)?;
        let mut bytes = vec![0; usize::try_from(stream.bytes).unwrap_or(0)];
        read_content(self.fs.volume, &pieces, 0, &mut bytes)?;
        Ok(bytes)
    }

    fn file(&self, id: FileId) -> Result<Rc<File>, Refusal> {
        if let Some(kept) = self.kept.borrow().get(&id.0) {
            return Ok(Rc::clone(kept));
        }
        let number = number(id);
        let base = self.record(number)?.filter(|one| one.base() == 0);
        let base = base.ok_or_else(|| wrong(number, "there is none"))?;
        if self::id(number, base.sequence()) != id {
            return Err(wrong(number, "its name is that of another file"));
        }
        let (list, sequence) = (self.list(&base)?, base.sequence());
        let mut bytes = base.len();
        let mut records = vec![base];
        if let Some(list) = list {
            let all = entries(number, &list)?.into_iter().map(|entry| entry.record);
            let all: BTreeMap<u64, ()> =
                all.filter(|record| *record != number).map(|record| (record, ())).collect();
            for record in all.into_keys() {
                let record = self.rest(number, sequence, record)?;
                bytes += record.len();
                records.push(record);
                if bytes > RECORDS_BYTES_MAX {
                    return Err(wrong(number, "it has too many records"));
                }
            }
        }
        let file = Rc::new(File { number, records });
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= KEPT_MAX || bytes > RECORDS_BYTES_MAX / KEPT_MAX {
            kept.clear();
        }
        kept.insert(id.0, Rc::clone(&file));
        Ok(file)
    }

    fn stream(&self, file: &File, kind: u32, name: &[u8]) -> Result<Option<Stream>, Refusal> {
        let mut stream = Stream::new(file.number);
        for record in &file.records {
            stream.add(record, (kind, name), &self.fs.boot)?;
        }
        if !stream.is_there() {
            return Ok(None);
        }
        stream.check_whole(&self.fs.boot)?;
        Ok(Some(stream))
    }

    /// What a file has where its bytes or names would be.
    fn reparse(&self, file: &File) -> Result<Option<Reparse>, Refusal> {
        if file.standard()?.attributes & HAS_REPARSE == 0 {
            return Ok(None);
        }
        let stream = self.stream(file, attribute::REPARSE, &[])?;
        let stream = stream.ok_or_else(|| wrong(file.number, "its reparse point is missing"))?;
        let bytes = self.bytes_of(&stream, reparse::BYTES_MAX)?;
        let found = Reparse::parse(&bytes);
        found.map(Some).ok_or_else(|| wrong(file.number, "its reparse point makes no sense"))
    }

    fn kind_of(&self, file: &File) -> Result<(FileKind, Option<Reparse>), Refusal> {
        let reparse = self.reparse(file)?;
        let plain = match file.records.first().is_some_and(Record::is_directory) {
            true => FileKind::Directory,
            false => FileKind::File,
        };
        Ok((reparse.as_ref().and_then(Reparse::kind).unwrap_or(plain), reparse))
    }
}

/// What every file says of itself.
struct Standard {
    times: [FileTime; 4],
    attributes: u32,
}

impl File {
    fn attributes(&self, kind: u32) -> Result<Vec<&[u8]>, Refusal> {
        let mut all = Vec::new();
        for record in &self.records {
            let own = record.attributes()?.into_iter();
            all.extend(own.filter(|one| le32(one, 0) == kind && name(one) == Some(&[])));
        }
        Ok(all)
    }

    fn standard(&self) -> Result<Standard, Refusal> {
        let all = self.attributes(attribute::STANDARD)?;
        let value = all.first().and_then(|one| value(one)).filter(|value| value.len() >= 36);
        let value = value.ok_or_else(|| wrong(self.number, "it says nothing of its times"))?;
        let times = [0, 8, 16, 24].map(|at| time(le64(value, at)));
        Ok(Standard { times, attributes: le32(value, 32) })
    }

    /// How many names it has, without those of DOS.
    fn links(&self) -> Result<u32, Refusal> {
        let all = self.attributes(attribute::NAME)?;
        let names = all.iter().filter_map(|one| value(one));
        let count = names.filter(|name| name.get(65).is_some_and(|kind| *kind != OF_DOS)).count();
        Ok(u32::try_from(count).unwrap_or(u32::MAX).max(1))
    }
}

/// Since 1601, in tenths of a microsecond.
fn time(since: u64) -> FileTime {
    const SECOND: u64 = 10_000_000;
    const TO_1970: i64 = 11_644_473_600;
    let seconds = i64::try_from(since / SECOND).unwrap_or(i64::MAX);
    // less than a second
    let nanoseconds = u32::try_from(since % SECOND * 100).unwrap_or(0);
    FileTime { seconds: seconds - TO_1970, nanoseconds }
}

/// An entry of a list of attributes.
struct Listed {
    kind: u32,
    /// The first cluster of the attribute that is told there.
    first: u64,
    record: u64,
}

fn entries(number: u64, list: &[u8]) -> Result<Vec<Listed>, Refusal> {
    const HEAD: usize = 26;
    let mut rest = list;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let len = usize::from(le16(rest, 4));
        if rest.len() < HEAD || len < HEAD || len > rest.len() {
            return Err(wrong(number, "the list of its attributes makes no sense"));
        }
        let (record, _) = reference(le64(rest, 16));
        all.push(Listed { kind: le32(rest, 0), first: le64(rest, 8), record });
        rest = &rest[len..];
    }
    Ok(all)
}

impl Files for NtfsFiles<'_> {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn root(&self) -> FileId {
        self.root
    }

    fn node(&self, id: FileId) -> Result<FileNode, Refusal> {
        let file = self.file(id)?;
        let Standard { times: [created, modified, changed, accessed], attributes } =
            file.standard()?;
        let (kind, reparse) = self.kind_of(&file)?;
        let fixed = kind == FileKind::File && attributes & READ_ONLY != 0;
        let (size_bytes, stored_bytes) = match kind {
            FileKind::File => match self.stream(&file, attribute::DATA, &[])? {
                Some(data) => (data.bytes, data.stored),
                None => (0, 0),
            },
            FileKind::Symlink => {
                (reparse.and_then(|one| one.target()).map_or(0, |path| path.len() as u64), 0)
            }
            _ => (0, 0),
        };
        Ok(FileNode {
            id,
            kind,
            mode: match kind {
                FileKind::Symlink => 0o777,
                _ if fixed => 0o555,
                _ => 0o755,
            },
            uid: 0,
            gid: 0,
            links: file.links()?,
            size_bytes,
            stored_bytes,
            accessed,
            modified,
            changed,
            created: Some(created),
        })
    }

    fn expect(&self, ids: &[FileId]) {
        let len = self.fs.boot.record_bytes;
        let places = ids.iter().filter_map(|id| {
            let at = number(*id) * len;
            let table = self.table.partition_point(|piece| piece.range.end <= at);
            match self.table.get(table)? {
                Piece { range, place: crate::files::Place::Volume(from) } => {
                    let from = from + (at - range.start);
                    Some(from..from + len)
                }
                _ => None,
            }
        });
        self.fs.volume.expect(&places.collect::<Vec<_>>());
    }

    fn names(&self, directory: FileId) -> Result<Vec<FileName>, Refusal> {
        let file = self.file(directory)?;
        match self.kind_of(&file)? {
            (FileKind::Directory, None) => {}
            (FileKind::Directory, Some(reparse)) if reparse.is_cloud() => {}
            (FileKind::Directory, Some(reparse)) => {
                return Err(wrong(file.number, &reparse.unread()));
            }
            _ => return Err(wrong(file.number, "it is no directory")),
        }
        self.directory(&file)
    }

    fn content(&self, file: FileId) -> Result<Vec<Piece>, Refusal> {
        let file = self.file(file)?;
        match self.kind_of(&file)? {
            (FileKind::File, None) => {}
            (FileKind::File, Some(reparse)) => return Err(wrong(file.number, &reparse.unread())),
            _ => return Err(wrong(file.number, "it is no file with bytes")),
        }
        match self.stream(&file, attribute::DATA, &[])? {
            Some(data) => data.pieces(&self.fs.boot),
            None => Ok(Vec::new()),
        }
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, Refusal> {
        let file = self.file(link)?;
        match self.reparse(&file)?.and_then(|reparse| reparse.target()) {
            Some(path) => Ok(path),
            None => Err(wrong(file.number, "it is no symbolic link")),
        }
    }

    fn attributes(&self, _file: FileId) -> Result<Vec<Attribute>, Refusal> {
        Ok(Vec::new())
    }
}
