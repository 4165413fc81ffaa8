//! Files: inodes, names in directories, the places of content, attributes.
//!
//! | file | |
//! |---|---|
//! | `inode` | an inode, its times, its forks |
//! | `content` | where its bytes are; the path of a link that is in blocks |
//! | `extents` | the blocks of a fork: a list within the inode, or a tree |
//! | `directory` | names, within the inode or in blocks |
//! | `attributes` | attributes, within the inode, in a block, in a tree, or with blocks of their own |
//!
//! Since version 5 each block of metadata carries a checksum, its own place, its file system and
//! its owner. All four are held against the block, so a block of somebody else is never believed.
//! One that does not fit is an error of its file alone.
//!
//! Inodes and blocks are read as they are once the log is replayed ([`super::log`]). Blocks of files
//! are never in it.
//!
//! An inode's number is its place. So sparse chunks of inodes need nothing here: what is no inode
//! has no sound header.

mod attributes;
mod content;
mod directory;
mod extents;
mod inode;

use super::log::{Changes, Changing, Wanted, read_log};
use super::superblock::{Layout, Superblock};
use super::{KIND, SECTOR, check_replayed_superblock, checksum_fits, unusable};
use crate::files::{Attribute, FileId, FileKind, FileName, FileNode, Files, Piece};
use crate::{ReadAt, Refusal, be64, field, read};
use inode::{Fork, Inode, format};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Blocks of metadata that are kept: as many as a walk comes back to.
const KEPT_BYTES: usize = 16 << 20;
/// Blocks that are asked for at once.
const EXPECTED_MAX: usize = 1 << 14;
/// A path of a link: no kernel takes more.
const TARGET_BYTES_MAX: u64 = 1024;

/// See [`crate::files::open`].
pub(crate) fn files<'a>(
    volume: &'a dyn ReadAt,
    volume_bytes: u64,
) -> Result<Box<dyn Files + 'a>, Refusal> {
    let superblock = Superblock::read(volume, volume_bytes)?;
    let layout = superblock.layout()?;
    let changes = read_log(volume, &superblock, Wanted::Files).and_then(|changes| {
        check_replayed_superblock(volume, &superblock, &changes)?;
        Ok(changes)
    });
    let changes = changes.map_err(with_next_step)?;
    Ok(Box::new(XfsFiles { volume, superblock, layout, changes, kept: RefCell::default() }))
}

/// Of a log that cannot be replayed here.
fn with_next_step(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Unusable { kind, why } => {
            let why = format!("{why}: serve or restore the backup, and mount that");
            Refusal::Unusable { kind, why }
        }
        other => other,
    }
}

struct XfsFiles<'a> {
    volume: &'a dyn ReadAt,
    superblock: Superblock,
    layout: Layout,
    changes: Changes,
    kept: RefCell<Kept>,
}

/// Blocks by their places.
#[derive(Default)]
struct Kept {
    blocks: HashMap<(u64, usize), Rc<[u8]>>,
    bytes: usize,
}

/// Where a block of metadata carries what it must, since version 5.
struct Seal {
    crc: usize,
    uuid: usize,
    /// The number of the last change to it.
    lsn: usize,
    /// Its own place, in sectors.
    place: usize,
    /// The inode that it belongs to.
    owner: usize,
}

/// Of values of attributes, and of the paths of links.
const REMOTE: Seal = Seal { crc: 12, uuid: 16, lsn: 48, place: 40, owner: 32 };
const REMOTE_HEADER: usize = 56;

impl XfsFiles<'_> {
    /// Bytes of the volume. They are kept for a while.
    fn raw(&self, at: u64, len: usize) -> Result<Rc<[u8]>, Refusal> {
        if let Some(bytes) = self.kept.borrow().blocks.get(&(at, len)) {
            return Ok(Rc::clone(bytes));
        }
        let bytes: Rc<[u8]> = read(self.volume, at, len)?.into();
        let mut kept = self.kept.borrow_mut();
        if kept.bytes + len > KEPT_BYTES {
            *kept = Kept::default();
        }
        kept.bytes += len;
        kept.blocks.insert((at, len), Rc::clone(&bytes));
        Ok(bytes)
    }

    /// A block of metadata of a file, of the parts that it is in, each a place and a length.
    fn sealed(
        &self,
        inode: &Inode,
        parts: &[(u64, usize)],
        seal: &Seal,
        what: &str,
    ) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::with_capacity(parts.iter().map(|(_, len)| len).sum());
        let mut changed = false;
        for (at, len) in parts {
            let from = bytes.len();
            bytes.extend_from_slice(&self.raw(*at, *len)?);
            // a block that was something else before has no number that means anything, nor has a
            // part that is not the first: then all changes count
            let own = from == 0 && field(&bytes, seal.uuid) == self.superblock.uuid;
            let newest = if own { be64(&bytes, seal.lsn) } else { 0 };
            changed |= self.changes.apply(at / SECTOR, &mut bytes[from..], newest)?;
        }
        if !self.superblock.has_checksums {
            return Ok(bytes);
        }
        // what is replayed gets its checksum when it is written
        if !changed && !checksum_fits(&bytes, seal.crc) {
            return Err(inode.wrong(&format!("the checksum of {what} does not fit")));
        }
        let at = parts.first().map_or(0, |(at, _)| *at);
        let own = field(&bytes, seal.uuid) == self.superblock.uuid
            && be64(&bytes, seal.place) == at / SECTOR
            && (be64(&bytes, seal.owner) == inode.number || inode.replayed.any_owner);
        match own {
            true => Ok(bytes),
            false => Err(inode.wrong(&format!("{what} belongs elsewhere"))),
        }
    }

    /// The first byte of an inode.
    fn place(&self, number: u64) -> Result<u64, Refusal> {
        let Layout { inode_len, inode_bits, group_bits, .. } = self.layout;
        let low = |number: u64, bits: u32| number & ((1 << bits) - 1);
        let block = number >> inode_bits;
        let found = self.superblock.linear(block >> group_bits, low(block, group_bits), 1);
        let block = found.ok_or_else(|| unusable(format!("it has no inode {number}")))?;
        let within = low(number, inode_bits) * inode_len as u64;
        Ok(block * self.superblock.block_bytes + within)
    }

    fn inode(&self, id: FileId) -> Result<Inode, Refusal> {
        let at = self.place(id.0)?;
        let within = at % self.superblock.block_bytes;
        let block = self.raw(at - within, self.superblock.block_len())?;
        let from = usize::try_from(within).unwrap_or(0);
        let mut bytes = block[from..from + self.layout.inode_len].to_vec();
        let uuid = self.superblock.uuid;
        let replayed = self.changes.apply_inode(at, &mut bytes, uuid)?;
        Inode::parse(id.0, bytes, self.superblock.has_checksums.then_some(uuid), replayed)
    }

    /// Nothing of it is half done.
    fn check_finished(&self, inode: &Inode, what: Changing) -> Result<(), Refusal> {
        if !self.changes.is_unfinished(inode.number, what) {
            return Ok(());
        }
        let what = match what {
            Changing::Content => "its blocks",
            Changing::Attributes => "its attributes",
        };
        Err(inode.wrong(&format!(
            "the log has a change of {what} that only a mount finishes: serve or restore the \
             backup, and mount that"
        )))
    }

    /// Asks the volume for blocks that are read next, all at once, by their first bytes.
    fn expect_blocks(&self, blocks: impl IntoIterator<Item = u64>, len: usize) {
        let kept = self.kept.borrow();
        let wanted: BTreeSet<u64> = blocks
            .into_iter()
            .filter(|at| !kept.blocks.contains_key(&(*at, len)))
            .take(EXPECTED_MAX)
            .collect();
        let ranges: Vec<_> = wanted.iter().map(|at| *at..*at + len as u64).collect();
        if ranges.len() > 1 {
            self.volume.expect(&ranges);
        }
    }
}

impl Files for XfsFiles<'_> {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn root(&self) -> FileId {
        FileId(self.layout.root)
    }

    fn node(&self, id: FileId) -> Result<FileNode, Refusal> {
        self.inode(id)?.node(self.superblock.block_bytes)
    }

    fn expect(&self, ids: &[FileId]) {
        let bytes = self.superblock.block_bytes;
        // a number that is nowhere is an error of its file alone, when that is read
        let places: Vec<u64> = ids.iter().filter_map(|id| self.place(id.0).ok()).collect();
        self.expect_blocks(places.iter().map(|at| at - at % bytes), self.superblock.block_len());
    }

    fn names(&self, directory: FileId) -> Result<Vec<FileName>, Refusal> {
        self.directory(&self.inode(directory)?)
    }

    fn content(&self, file: FileId) -> Result<Vec<Piece>, Refusal> {
        let inode = self.inode(file)?;
        match inode.kind()? {
            FileKind::File => self.pieces(&inode),
            _ => Err(inode.wrong("it is no file with bytes")),
        }
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, Refusal> {
        let inode = self.inode(link)?;
        if inode.kind()? != FileKind::Symlink {
            return Err(inode.wrong("it is no symbolic link"));
        }
        self.check_finished(&inode, Changing::Content)?;
        if !(1..=TARGET_BYTES_MAX).contains(&inode.size_bytes) {
            return Err(inode.wrong(&format!("no path has {} bytes", inode.size_bytes)));
        }
        match inode.fork(Fork::Data).format {
            format::LOCAL => Ok(inode.local()?.to_vec()),
            _ => self.remote_target(&inode),
        }
    }

    fn attributes(&self, file: FileId) -> Result<Vec<Attribute>, Refusal> {
        let inode = self.inode(file)?;
        self.check_finished(&inode, Changing::Attributes)?;
        self.attributes_of(&inode)
    }
}
