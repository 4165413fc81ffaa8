//! Files: inodes, what directories say, where content is, attributes.
//!
//! | file | |
//! |---|---|
//! | `node` | an inode |
//! | `content` | where its bytes are: extents, block lists, within the inode |
//! | `directory` | names |
//! | `attributes` | attributes, within the inode, in a block, in inodes of their own |
//!
//! Every block is read as it is once the journal is replayed, those of files too: with
//! `data=journal` the journal has them.

mod attributes;
mod content;
mod directory;
mod node;

use super::superblock::Superblock;
use super::{Ext4, KIND, ReadAt, Refusal, journal, unusable};
use crate::files::{Attribute, FileId, FileKind, FileName, FileNode, Files, Piece};
use node::Inode;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

const ROOT: u32 = 2;
/// Blocks of metadata that are kept: as many as a walk comes back to.
const KEPT_BYTES: u64 = 16 << 20;
/// Blocks that are asked for at once.
const EXPECTED_MAX: usize = 1 << 14;
/// A path of a link: no kernel takes more.
const TARGET_BYTES_MAX: u64 = 4096;

/// See [`crate::files::open`].
pub(crate) fn files<'a>(
    volume: &'a dyn ReadAt,
    volume_bytes: u64,
) -> Result<Box<dyn Files + 'a>, Refusal> {
    let superblock = Superblock::read(volume, volume_bytes)?;
    let mut fs = Ext4 { volume, superblock, newer: HashMap::new() };
    if fs.superblock.wants_replay() {
        (fs.newer, _) = journal::read(&fs)?;
        let bytes = fs.block(fs.superblock.own_block())?;
        fs.superblock = fs.superblock.replayed(&bytes, volume_bytes)?;
    }
    Ok(Box::new(Ext4Files { fs, kept: RefCell::default() }))
}

struct Ext4Files<'a> {
    fs: Ext4<'a>,
    kept: RefCell<HashMap<u64, Rc<[u8]>>>,
}

impl Ext4Files<'_> {
    /// A block of metadata. It is kept for a while.
    fn block(&self, number: u64) -> Result<Rc<[u8]>, Refusal> {
        if let Some(kept) = self.kept.borrow().get(&number) {
            return Ok(Rc::clone(kept));
        }
        let block: Rc<[u8]> = self.fs.block(number)?.into();
        let mut kept = self.kept.borrow_mut();
        if kept.len() as u64 * self.fs.superblock.block_bytes >= KEPT_BYTES {
            kept.clear();
        }
        kept.insert(number, Rc::clone(&block));
        Ok(block)
    }

    /// Where an inode is: its block, and from which byte of that on.
    fn place(&self, number: u32) -> Result<(u64, usize), Refusal> {
        let superblock = &self.fs.superblock;
        let at =
            number.checked_sub(1).filter(|at| at / superblock.inodes_per_group < superblock.groups);
        let at = at.ok_or_else(|| unusable(format!("it has no inode {number}")))?;
        let group = at / superblock.inodes_per_group;
        let (block, offset) = superblock.descriptor(group);
        let descriptors = self.block(block)?;
        let group =
            self.fs.group(group, &descriptors[offset..offset + superblock.descriptor_len])?;
        let byte = (at % superblock.inodes_per_group) as usize * superblock.inode_len;
        let block = group.inode_table + (byte / superblock.block_len()) as u64;
        Ok((block, byte % superblock.block_len()))
    }

    fn inode(&self, id: FileId) -> Result<Inode, Refusal> {
        let number =
            u32::try_from(id.0).map_err(|_| unusable(format!("it has no inode {}", id.0)))?;
        let (block, from) = self.place(number)?;
        let table = self.block(block)?;
        let superblock = &self.fs.superblock;
        Inode::parse(number, &table[from..from + superblock.inode_len], superblock.checksum_seed)
    }

    /// Asks the volume for blocks that are read next, all at once.
    fn expect_blocks(&self, blocks: impl IntoIterator<Item = u64>) {
        let kept = self.kept.borrow();
        let bytes = self.fs.superblock.block_bytes;
        let wanted: BTreeSet<u64> = blocks
            .into_iter()
            .filter(|block| !kept.contains_key(block))
            .take(EXPECTED_MAX)
            .collect();
        let at = |block: &u64| self.fs.newer.get(block).map_or(*block, |newer| newer.at);
        let ranges: Vec<_> = wanted
            .iter()
            .map(at)
            .filter(|block| *block < self.fs.superblock.blocks)
            .map(|block| block * bytes..(block + 1) * bytes)
            .collect();
        if ranges.len() > 1 {
            self.fs.volume.expect(&ranges);
        }
    }

    /// All bytes of something short.
    fn whole(&self, inode: &Inode, most: u64) -> Result<Vec<u8>, Refusal> {
        if inode.size_bytes > most {
            let size = inode.size_bytes;
            return Err(inode.wrong(&format!("it has {size} bytes where there are at most {most}")));
        }
        let pieces = self.pieces(inode)?;
        let mut bytes = vec![0; usize::try_from(inode.size_bytes).unwrap_or(0)];
        crate::files::read_content(self.fs.volume, &pieces, 0, &mut bytes)?;
        Ok(bytes)
    }
}

impl Files for Ext4Files<'_> {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn root(&self) -> FileId {
        FileId(ROOT.into())
    }

    fn node(&self, id: FileId) -> Result<FileNode, Refusal> {
        self.inode(id)?.node(self.fs.superblock.block_bytes)
    }

    fn expect(&self, ids: &[FileId]) {
        let numbers = ids.iter().filter_map(|id| u32::try_from(id.0).ok());
        // a number that is nowhere, or of a group that is damaged, is an error of its file alone
        let places = numbers.filter_map(|number| self.place(number).ok());
        let blocks: BTreeSet<u64> = places.map(|(block, _)| block).collect();
        self.expect_blocks(blocks);
    }

    fn names(&self, directory: FileId) -> Result<Vec<FileName>, Refusal> {
        self.directory(&self.inode(directory)?)
    }

    fn content(&self, file: FileId) -> Result<Vec<Piece>, Refusal> {
        let inode = self.inode(file)?;
        if inode.kind()? != FileKind::File {
            return Err(inode.wrong("it is no file with bytes"));
        }
        self.pieces(&inode)
    }

    fn target(&self, link: FileId) -> Result<Vec<u8>, Refusal> {
        let inode = self.inode(link)?;
        if inode.kind()? != FileKind::Symlink {
            return Err(inode.wrong("it is no symbolic link"));
        }
        inode.readable()?;
        match inode.short_target() {
            Some(path) => Ok(path.to_vec()),
            None => self.whole(&inode, TARGET_BYTES_MAX),
        }
    }

    fn attributes(&self, file: FileId) -> Result<Vec<Attribute>, Refusal> {
        self.attributes_of(&self.inode(file)?)
    }
}
