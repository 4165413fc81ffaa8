//! Transactions of the log: what they changed, block by block.
//!
//! A record is a row of pieces, each with the number of its transaction. The pieces of a
//! transaction are its items: a head that says how many pieces follow, and these. Of a map only
//! changed blocks count that it depends on; of files, changed inodes, chunks of inodes that are
//! made, and intents too. What was said of a block before it was given up is never replayed. What
//! has no commit was never finished.
//!
//! Within a transaction chunks are made first, and blocks are given up last, as a mount does it.

use super::changes::{CHANGE_BYTES, Changes, Changing, GRAIN, PIECE_BYTES, Parts, Unfinished};
use super::inodes::{Chunk, InodeChange, InodeChanges};
use super::unusable;
use crate::xfs::superblock::Superblock;
use crate::{Refusal, field, le16, le32, le64};
use std::collections::HashMap;
use std::mem::take;

const PIECE: usize = 12;
const CLIENTS: [u8; 2] = [0x69, 0xaa];
/// Of a transaction, before its items.
const HEADER: usize = 16;
const HEADER_MAGIC: u32 = 0x5452_414e;

mod flag {
    pub(super) const START: u8 = 1;
    pub(super) const COMMIT: u8 = 2;
    pub(super) const GOES_ON: u8 = 4;
    pub(super) const WENT_ON: u8 = 8;
    pub(super) const END: u8 = 0x10;
    pub(super) const UNMOUNT: u8 = 0x20;
}

/// From intents to free extents up to exchanges of files' ranges.
const ITEMS_KNOWN: std::ops::RangeInclusive<u16> = 0x1236..=0x1249;
mod item {
    pub(super) const INODE: u16 = 0x123b;
    pub(super) const CHANGED_BLOCK: u16 = 0x123c;
    pub(super) const CHUNK: u16 = 0x123f;
    /// Blocks are put into a file or taken out of it, an attribute is set or removed, ranges of two
    /// files are exchanged: begun, and done.
    pub(super) const BLOCKS: [u16; 2] = [0x1244, 0x1245];
    /// Of such blocks: they are of attributes.
    pub(super) const OF_ATTRIBUTES: u32 = 1 << 31;
    pub(super) const ATTRIBUTE: [u16; 2] = [0x1246, 0x1247];
    /// What is done to an attribute that is a name of its file: set, removed, replaced.
    pub(super) const OF_NAMES: std::ops::RangeInclusive<u32> = 4..=6;
    pub(super) const EXCHANGE: [u16; 2] = [0x1248, 0x1249];
}
/// Of a changed block.
mod block {
    /// It has inodes: of these the items of inodes say more.
    pub(super) const INODES: u16 = 1;
    pub(super) const GIVEN_UP: u16 = 2;
    /// Quotas, which no map and no file depends on.
    pub(super) const QUOTAS: u16 = 0x1c;
    /// Contents that a map depends on: any tree, the header of a group, the superblock.
    pub(super) const OF_MAP: [u16; 3] = [4, 5, 18];
    /// Contents that files do: trees, paths of links, names, attributes, the superblock.
    pub(super) const OF_FILES: [u16; 8] = [4, 9, 10, 11, 15, 16, 17, 18];
    /// Inodes.
    pub(super) const DINODE: u16 = 8;
}
/// What is remembered, at most: a checkpoint is an eighth of a log, of which trees are a small
/// part.
const BYTES_MAX: isize = 64 << 20;
/// The same with all that files depend on.
const FILES_BYTES_MAX: isize = 256 << 20;
const OPEN_MAX: usize = 1 << 12;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::xfs) enum Wanted {
    /// A map: free extents.
    Map,
    /// All that files depend on.
    Files,
}

/// Reads records, one after the other.
pub(super) struct Transactions<'s> {
    superblock: &'s Superblock,
    wanted: Wanted,
    open: HashMap<u32, Transaction>,
    done: Changes,
    /// Bytes.
    held: isize,
}

struct Transaction {
    wanted: Wanted,
    lsn: u64,
    header: Vec<u8>,
    /// The last one, which may not be whole.
    item: Item,
    changes: Vec<Logged>,
}

/// What is kept of an item.
enum Logged {
    Block((u64, u16), Parts),
    GivenUp((u64, u16)),
    Inode(u64, Box<InodeChange>),
    Chunk(Chunk),
    Begun(u64, Vec<(u64, Changing)>),
    Ended(u64),
}

impl Logged {
    /// Bytes that it holds.
    fn held(&self) -> isize {
        match self {
            Self::Block(_, parts) => held(parts),
            Self::GivenUp(_) | Self::Ended(_) => held(&[]),
            Self::Inode(_, change) => change.held(),
            Self::Chunk(_) => InodeChanges::fresh_held(),
            Self::Begun(_, about) => Unfinished::held(about),
        }
    }

    /// Chunks are made first and what is begun is begun first; what ends and is given up, last.
    fn order(&self) -> u8 {
        match self {
            Self::Chunk(_) | Self::Begun(..) => 0,
            Self::Block(..) | Self::Inode(..) => 1,
            Self::GivenUp(_) | Self::Ended(_) => 2,
        }
    }
}

#[derive(Default)]
struct Item {
    pieces: Vec<Vec<u8>>,
}

impl Item {
    /// How many pieces it has, its head among them.
    fn expected(&self) -> Option<usize> {
        Some(usize::from(le16(self.pieces.first()?, 2)))
    }
}

pub(super) fn broken() -> Refusal {
    unusable("a transaction in its log does not fit together")
}

impl<'s> Transactions<'s> {
    pub(super) fn new(superblock: &'s Superblock, wanted: Wanted) -> Self {
        let (open, done) = Default::default();
        Self { superblock, wanted, open, done, held: 0 }
    }

    fn bytes_max(&self) -> isize {
        match self.wanted {
            Wanted::Map => BYTES_MAX,
            Wanted::Files => FILES_BYTES_MAX,
        }
    }

    /// The data of a record that has a number of pieces.
    pub(super) fn record(&mut self, lsn: u64, pieces: u32, data: &[u8]) -> Result<(), Refusal> {
        let mut rest = data;
        for _ in 0..pieces {
            let (head, behind) = rest.split_at_checked(PIECE).ok_or_else(broken)?;
            // unlike what is in them, these are in the byte order of networks
            let [number, len] = [0, 4].map(|at| u32::from_be_bytes(field(head, at)));
            let (client, flags) = (head[8], head[9]);
            let (piece, behind) = behind.split_at_checked(len as usize).ok_or_else(broken)?;
            rest = behind;
            if !CLIENTS.contains(&client) {
                return Err(broken());
            }
            self.piece(lsn, number, flags, piece)?;
        }
        Ok(())
    }

    fn piece(&mut self, lsn: u64, number: u32, flags: u8, piece: &[u8]) -> Result<(), Refusal> {
        let is_start = flags & flag::START != 0;
        if is_start {
            let transaction = Transaction::new(self.wanted, lsn);
            if self.open.len() == OPEN_MAX || self.open.insert(number, transaction).is_some() {
                return Err(broken());
            }
            return Ok(());
        }
        // what began before the tail was replayed long ago
        let Some(transaction) = self.open.get_mut(&number) else { return Ok(()) };
        let went_on = flags & flag::WENT_ON != 0;
        let known = flag::COMMIT | flag::GOES_ON | flag::WENT_ON | flag::END | flag::UNMOUNT;
        if flags & !known != 0 {
            return Err(broken());
        }
        if flags & flag::COMMIT != 0 {
            self.held += transaction.close_item()?;
            if let Some(transaction) = self.open.remove(&number) {
                self.commit(transaction)?;
            }
            return Ok(());
        }
        if flags & flag::UNMOUNT != 0 {
            return Ok(());
        }
        self.held += transaction.add(piece, went_on)?;
        if self.held > self.bytes_max() {
            return Err(unusable("its log changes too much"));
        }
        Ok(())
    }

    fn commit(&mut self, mut transaction: Transaction) -> Result<(), Refusal> {
        let lsn = transaction.lsn;
        self.held -= transaction.header.len().cast_signed();
        transaction.changes.sort_by_key(Logged::order);
        for change in transaction.changes {
            self.held -= change.held();
            self.held += match change {
                Logged::Block(buffer, parts) => self.done.change(buffer, lsn, &parts),
                Logged::GivenUp(buffer) => self.done.give_up(buffer, self.superblock.block_bytes),
                Logged::Inode(place, change) => self.done.inodes.change(place, *change),
                Logged::Chunk(chunk) => {
                    let [block, blocks] = [chunk.block, chunk.blocks].map(u64::from);
                    let start = self.superblock.linear(chunk.group.into(), block, blocks);
                    let start = start.ok_or_else(broken)? * self.superblock.block_bytes;
                    self.done.inodes.make(&(start..start + blocks * self.superblock.block_bytes))
                }
                Logged::Begun(id, about) => self.done.unfinished.begin(id, about),
                Logged::Ended(id) => self.done.unfinished.end(id),
            };
        }
        self.done.transactions += 1;
        Ok(())
    }

    /// With the largest number that a change can have.
    pub(super) fn finish(self, newest: u64) -> Changes {
        self.done.finished(newest)
    }
}

impl Transaction {
    fn new(wanted: Wanted, lsn: u64) -> Self {
        let (header, item, changes) = Default::default();
        Self { wanted, lsn, header, item, changes }
    }

    /// Adds a piece; gives how many more bytes are held then.
    fn add(&mut self, piece: &[u8], went_on: bool) -> Result<isize, Refusal> {
        let bytes = piece.len().cast_signed();
        if self.header.len() < HEADER {
            self.header.extend_from_slice(piece);
            let whole = self.header.len() == HEADER && le32(&self.header, 0) == HEADER_MAGIC;
            // nothing is said of one that goes on in the next record
            let cut = self.header.len() < HEADER;
            return if whole || cut { Ok(bytes) } else { Err(broken()) };
        }
        if went_on {
            let last = self.item.pieces.last_mut().ok_or_else(broken)?;
            last.extend_from_slice(piece);
            return Ok(bytes);
        }
        if piece.is_empty() {
            return Ok(0);
        }
        let mut more = bytes + PIECE_BYTES.cast_signed();
        if self.item.expected() == Some(self.item.pieces.len()) {
            more += self.close_item()?;
        }
        self.item.pieces.push(piece.to_vec());
        if self.item.expected().is_none_or(|expected| expected < self.item.pieces.len()) {
            return Err(broken());
        }
        Ok(more)
    }

    /// Keeps of the item what counts; gives how many more bytes are held then, mostly less.
    fn close_item(&mut self) -> Result<isize, Refusal> {
        let item = take(&mut self.item);
        let Some(expected) = item.expected() else { return Ok(0) };
        if expected != item.pieces.len() {
            return Err(broken());
        }
        let dropped: usize = item.pieces.iter().map(|piece| piece.len() + PIECE_BYTES).sum();
        let dropped = dropped.cast_signed();
        let head = &item.pieces[0];
        let kind = le16(head, 0);
        if !ITEMS_KNOWN.contains(&kind) {
            return Err(unusable(format!("its log has items of an unknown kind, {kind:#x}")));
        }
        let Some(logged) = self.logged(kind, &item.pieces)? else { return Ok(-dropped) };
        let kept = logged.held();
        self.changes.push(logged);
        Ok(kept - dropped)
    }

    /// What counts of an item.
    fn logged(&self, kind: u16, pieces: &[Vec<u8>]) -> Result<Option<Logged>, Refusal> {
        let head = &pieces[0];
        if kind == item::CHANGED_BLOCK {
            return self.block(pieces);
        }
        if self.wanted == Wanted::Map {
            return Ok(None);
        }
        let id = le64(head, 8);
        Ok(Some(match kind {
            item::INODE => {
                let (place, change) = InodeChange::parse(pieces, self.lsn)?;
                Logged::Inode(place, Box::new(change))
            }
            item::CHUNK => Logged::Chunk(Chunk::parse(pieces)?),
            kind if item::BLOCKS[0] == kind => {
                let about = head.get(16..).unwrap_or(&[]).chunks_exact(32);
                let what = |one: &[u8]| match le32(one, 28) & item::OF_ATTRIBUTES {
                    0 => Changing::Content,
                    _ => Changing::Attributes,
                };
                Logged::Begun(id, about.map(|one| (le64(one, 0), what(one))).collect())
            }
            kind if item::ATTRIBUTE[0] == kind => {
                // names of the file itself are attributes that nobody is shown
                let is_shown = !item::OF_NAMES.contains(&(le32(head, 24) & 0xff));
                let about = is_shown.then(|| (le64(head, 16), Changing::Attributes));
                Logged::Begun(id, about.into_iter().collect())
            }
            kind if item::EXCHANGE[0] == kind => {
                // of either both content and attributes may be meant
                let both = [16, 24].map(|at| le64(head, at));
                let about = both.into_iter().flat_map(|inode| {
                    [Changing::Content, Changing::Attributes].map(|what| (inode, what))
                });
                Logged::Begun(id, about.collect())
            }
            kind if [item::BLOCKS, item::ATTRIBUTE, item::EXCHANGE]
                .iter()
                .any(|k| k[1] == kind) =>
            {
                Logged::Ended(id)
            }
            _ => return Ok(None),
        }))
    }

    fn block(&self, pieces: &[Vec<u8>]) -> Result<Option<Logged>, Refusal> {
        let head = &pieces[0];
        let (flags, buffer) = (le16(head, 4), (le64(head, 8), le16(head, 6)));
        if flags & block::GIVEN_UP != 0 {
            return Ok(Some(Logged::GivenUp(buffer)));
        }
        let contents = flags >> 11;
        let counts = match self.wanted {
            Wanted::Map => block::OF_MAP.contains(&contents),
            Wanted::Files if flags & (block::INODES | block::QUOTAS) != 0 => false,
            Wanted::Files if contents == block::DINODE => {
                return Err(unusable("its log has inodes in an old form"));
            }
            Wanted::Files => block::OF_FILES.contains(&contents),
        };
        if !counts {
            return Ok(None);
        }
        Ok(Some(Logged::Block(buffer, parts(head, &pieces[1..])?)))
    }
}

/// Bytes that a change holds.
fn held(parts: &[(usize, Vec<u8>)]) -> isize {
    let parts: usize = parts.iter().map(|(_, part)| part.len() + PIECE_BYTES).sum();
    (parts + CHANGE_BYTES).cast_signed()
}

/// Where the pieces of a changed block belong: a bit for each of its grains that has changed, a
/// piece for each row of bits.
fn parts(head: &[u8], pieces: &[Vec<u8>]) -> Result<Parts, Refusal> {
    const MAP: usize = 20;
    /// Bits for 64 KiB, which no buffer is longer than, and a word more.
    const WORDS_MAX: usize = 17;
    let words = le32(head, 16) as usize;
    let map = head.get(MAP..).and_then(|map| map.get(..words.checked_mul(4)?));
    let map = map.filter(|_| words <= WORDS_MAX).ok_or_else(broken)?;
    let bits = map.len() * 8;
    let is_set = |bit: usize| bit < bits && map[bit / 8] >> (bit % 8) & 1 == 1;
    let mut parts = Vec::with_capacity(pieces.len());
    let mut bit = 0;
    for piece in pieces {
        while bit < bits && !is_set(bit) {
            bit += 1;
        }
        let start = bit;
        // a row may be cut where its memory was
        while is_set(bit) && (bit - start) * GRAIN < piece.len() {
            bit += 1;
        }
        if piece.is_empty() || (bit - start) * GRAIN != piece.len() {
            return Err(broken());
        }
        parts.push((start * GRAIN, piece.clone()));
    }
    if (bit..bits).any(is_set) { Err(broken()) } else { Ok(parts) }
}

#[cfg(test)]
mod tests;
