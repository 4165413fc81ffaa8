//! Files of a volume, read from its file system on the raw bytes, as the next mount would show
//! them: a journal that wants replaying is taken into account, or the file system is refused.
//!
//! Nothing that the volume says is believed: numbers are held against its size, loops are bounded,
//! checksums have to fit where there are any. What is wrong with one file is an error of that file,
//! and others are read on.
//!
//! Names are bytes, and any may stand there: whoever writes them somewhere looks at them first,
//! [`is_plain`].

use super::{ReadAt, Refusal, ext4, fat, ntfs, signatures, xfs};
use std::ops::Range;

/// Of a volume with something whose files are not read here: the kind of the refusal.
pub const NO_FILES: &str = "files";

/// Of a file system, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// Bytes.
    File,
    /// Names of others.
    Directory,
    /// A path.
    Symlink,
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
    /// A device of characters: its major and minor number.
    Characters(u32, u32),
    /// A device of blocks: its major and minor number.
    Blocks(u32, u32),
}

/// A time, since 1970 and in UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileTime {
    /// Whole seconds.
    pub seconds: i64,
    /// Of a second.
    pub nanoseconds: u32,
}

/// What a file system says of a file, but for its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileNode {
    /// Who it is: hard links have one.
    pub id: FileId,
    /// What it is.
    pub kind: FileKind,
    /// Permissions, with set-id and sticky bits: `0o7777` at most.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// How many names it has.
    pub links: u32,
    /// Bytes of its content; of a link those of its path.
    pub size_bytes: u64,
    /// Room that it takes in the file system.
    pub stored_bytes: u64,
    /// Its content was read.
    pub accessed: FileTime,
    /// Its content was changed.
    pub modified: FileTime,
    /// Anything of it was changed.
    pub changed: FileTime,
    /// It was made, where that is known.
    pub created: Option<FileTime>,
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileName {
    /// As it stands there.
    pub name: Vec<u8>,
    /// Whose name it is.
    pub id: FileId,
}

/// A stretch of a file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the file.
    pub range: Range<u64>,
    /// Where they are.
    pub place: Place,
}

/// Where bytes of a file are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: they are zero, and take no room.
    Hole,
    /// From this byte of the volume on.
    Volume(u64),
    /// The same, but for their first bytes, which are these.
    Patched(u64, [u8; 4]),
    /// Within what the file system says of the file.
    Inline(Vec<u8>),
}

/// A named value that belongs to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// With its class, as `getxattr(2)` has it: `user.comment`.
    pub name: Vec<u8>,
    /// Any bytes.
    pub value: Vec<u8>,
}

/// The file system of a volume. One thread at a time reads it.
pub trait Files {
    /// Its name, as in `mount -t`.
    fn kind(&self) -> &'static str;

    /// The directory that all others are below.
    fn root(&self) -> FileId;

    /// What someone should know of it.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// What is said of a file.
    fn node(&self, id: FileId) -> Result<FileNode, Refusal>;

    /// These will be asked for: what is said of them is read at once, as far as that helps. It
    /// cannot fail: what is wrong with one of them is an error of that one, when it is asked for.
    fn expect(&self, ids: &[FileId]);

    /// Names in a directory, without `.` and `..`, in the order that they stand there.
    fn names(&self, directory: FileId) -> Result<Vec<FileName>, Refusal>;

    /// Whose name it is, in a directory.
    fn find(&self, directory: FileId, name: &[u8]) -> Result<Option<FileId>, Refusal> {
        let all = self.names(directory)?;
        Ok(all.into_iter().find(|at| at.name == name).map(|at| at.id))
    }

    /// The stretches of a file's content, in its order and without a gap.
    fn content(&self, file: FileId) -> Result<Vec<Piece>, Refusal>;

    /// The path that a link says.
    fn target(&self, link: FileId) -> Result<Vec<u8>, Refusal>;

    /// Attributes of a file; access lists are in the form of `getxattr(2)`.
    fn attributes(&self, file: FileId) -> Result<Vec<Attribute>, Refusal>;
}

/// Opens the file system that begins where a volume does.
///
/// # Errors
///
/// There is none whose files can be read here: the refusal names it, where it is known.
pub fn open<'a>(volume: &'a dyn ReadAt, volume_bytes: u64) -> Result<Box<dyn Files + 'a>, Refusal> {
    for files in [ext4::files, xfs::files, fat::files, ntfs::files] {
        match files(volume, volume_bytes) {
            Err(Refusal::Unknown) => {}
            found => return found,
        }
    }
    Err(named(volume, volume_bytes))
}

/// What else a volume is, if that is known.
fn named(volume: &dyn ReadAt, volume_bytes: u64) -> Refusal {
    let end = |most: u64| usize::try_from(volume_bytes.min(most)).unwrap_or(0);
    let (head, tail) = (end(signatures::HEAD_BYTES), end(signatures::TAIL_BYTES));
    let read = || {
        let head = super::read(volume, 0, head)?;
        Ok((head, super::read(volume, volume_bytes - tail as u64, tail)?))
    };
    match read() {
        Err(why) => why,
        Ok((head, tail)) => match signatures::detect(&head, &tail) {
            None => Refusal::Unknown,
            Some(what) => Refusal::Unusable {
                kind: NO_FILES,
                why: format!(
                    "the volume has {what}, and only those of ext2, ext3, ext4, XFS, FAT and NTFS \
                     can be read"
                ),
            },
        },
    }
}

/// Whether a name is one that a file may be given: not empty, not `.` or `..`, without `/` and NUL.
#[must_use]
pub fn is_plain(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// A stretch of a buffer that is filled with bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fill<'p> {
    /// In the buffer.
    pub into: Range<usize>,
    /// Where its bytes come from.
    pub from: FillFrom<'p>,
}

/// Where bytes of a file come from. What no stretch of a buffer names is zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FillFrom<'p> {
    /// From this byte of the volume on.
    Volume(u64),
    /// Here they are: maybe fewer, and the rest is zero.
    Bytes(&'p [u8]),
}

/// What a buffer is filled with, that stands for bytes of a file from an offset on, by the file's
/// stretches. Pure.
pub fn fills(pieces: &[Piece], offset: u64, len: usize) -> impl Iterator<Item = Fill<'_>> {
    let small = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let end = offset.saturating_add(len as u64);
    let first = pieces.partition_point(|piece| piece.range.end <= offset);
    let touched = pieces[first..].iter().take_while(move |piece| piece.range.start < end);
    touched.flat_map(move |piece| {
        let (from, to) = (piece.range.start.max(offset), piece.range.end.min(end));
        let part = small(from - offset)..small(to - offset);
        let into = from - piece.range.start;
        let behind = |bytes, into| <[u8]>::get(bytes, small(into)..).unwrap_or(&[]);
        match &piece.place {
            Place::Hole => [None, None],
            Place::Inline(bytes) => {
                [Some(Fill { into: part, from: FillFrom::Bytes(behind(bytes, into)) }), None]
            }
            Place::Volume(at) => {
                [Some(Fill { into: part, from: FillFrom::Volume(at + into) }), None]
            }
            Place::Patched(at, patch) => {
                let patch = behind(patch, into.min(4));
                let split = (part.start + patch.len()).min(part.end);
                let (head, tail) = (part.start..split, split..part.end);
                let skipped = head.len() as u64;
                [
                    Some(Fill { into: head, from: FillFrom::Bytes(patch) }),
                    Some(Fill { into: tail, from: FillFrom::Volume(at + into + skipped) }),
                ]
            }
        }
        .into_iter()
        .flatten()
        .filter(|fill| !fill.into.is_empty())
    })
}

/// Fills a buffer with bytes of a file, from an offset on, of its stretches. What lies behind its
/// end is zero.
///
/// # Errors
///
/// The volume cannot be read there.
pub fn read_content(
    volume: &dyn ReadAt,
    pieces: &[Piece],
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), Refusal> {
    buffer.fill(0);
    for fill in fills(pieces, offset, buffer.len()) {
        let part = &mut buffer[fill.into];
        match fill.from {
            FillFrom::Bytes(bytes) => {
                let len = bytes.len().min(part.len());
                part[..len].copy_from_slice(&bytes[..len]);
            }
            FillFrom::Volume(offset) => {
                volume.read_at(part, offset).map_err(|error| Refusal::Io { offset, error })?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bytes of a file, read in every way that there is to cut it.
    #[test]
    fn any_part_of_a_file_is_the_same_as_all_of_it() {
        let volume: Vec<u8> = (0..=255).collect();
        let pieces = [
            Piece { range: 0..10, place: Place::Volume(100) },
            Piece { range: 10..20, place: Place::Hole },
            Piece { range: 20..30, place: Place::Patched(40, [1, 2, 3, 4]) },
            Piece { range: 30..36, place: Place::Inline(vec![9; 4]) },
            Piece { range: 36..38, place: Place::Patched(0, [5, 6, 7, 8]) },
        ];
        let wanted: Vec<u8> = (100..110)
            .chain([0; 10])
            .chain([1, 2, 3, 4, 44, 45, 46, 47, 48, 49, 9, 9, 9, 9, 0, 0, 5, 6, 0, 0])
            .collect();
        for from in 0..wanted.len() {
            for to in from..wanted.len() {
                let mut buffer = vec![77; to - from];
                read_content(&&volume[..], &pieces, from as u64, &mut buffer).unwrap();
                assert_eq!(buffer, wanted[from..to], "{from}..{to}");
            }
        }
    }
}
