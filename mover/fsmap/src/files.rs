//! Files of a volume, read from its file system on the raw bytes, as the next mount would show
//! them: a journal that wants replaying is taken into account, or the file system is refused.
//!
//! Nothing that the volume says is believed: numbers are held against its size, loops are bounded,
//! checksums have to fit where there are any. What is wrong with one file is an error of that file,
//! and others are read on.
//!
//! Names are bytes, and any may stand there: whoever writes them somewhere looks at them first,
//! [`is_plain`].

use super::{ReadAt, Refusal, ext4, signatures, xfs};
use std::ops::Range;

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

    /// What is said of a file.
    fn node(&self, id: FileId) -> Result<FileNode, Refusal>;

    /// These will be asked for: what is said of them is read at once, as far as that helps.
    fn expect(&self, ids: &[FileId]) -> Result<(), Refusal>;

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
    for files in [ext4::files, xfs::files] {
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
                kind: "files",
                why: format!(
                    "the volume has {what}, and only those of ext2, ext3, ext4 and XFS can be read"
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
    let end = offset.saturating_add(buffer.len() as u64);
    let first = pieces.partition_point(|piece| piece.range.end <= offset);
    for piece in pieces[first..].iter().take_while(|piece| piece.range.start < end) {
        let (from, to) = (piece.range.start.max(offset), piece.range.end.min(end));
        let small = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let part = &mut buffer[small(from - offset)..small(to - offset)];
        let into = from - piece.range.start;
        match &piece.place {
            Place::Hole => {}
            Place::Inline(bytes) => {
                let bytes = bytes.get(small(into)..).unwrap_or(&[]);
                let len = bytes.len().min(part.len());
                part[..len].copy_from_slice(&bytes[..len]);
            }
            Place::Volume(at) | Place::Patched(at, _) => {
                let offset = at + into;
                volume.read_at(part, offset).map_err(|error| Refusal::Io { offset, error })?;
            }
        }
        if let Place::Patched(_, patch) = &piece.place {
            let patch = patch.get(small(into).min(4)..).unwrap_or(&[]);
            let len = patch.len().min(part.len());
            part[..len].copy_from_slice(&patch[..len]);
        }
    }
    Ok(())
}
