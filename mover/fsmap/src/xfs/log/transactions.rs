//! Transactions of the log: what they changed, block by block.
//!
//! A record is a row of pieces, each with the number of its transaction. The pieces of a
//! transaction are its items: a head that says how many pieces follow, and these. Of all items only
//! changed blocks count that a map depends on, and blocks that were given up, whose changes before
//! that are never replayed. What has no commit was never finished.

use super::unusable;
use crate::{Refusal, field, le16, le32, le64};
use std::collections::HashMap;
use std::mem::take;

/// What is kept of a change, and of a piece, besides its bytes.
const CHANGE_BYTES: usize = 64;
const PIECE_BYTES: usize = 48;
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
const CHANGED_BLOCK: u16 = 0x123c;
const GIVEN_UP: u16 = 2;
/// Contents of blocks that a map depends on: any tree, the header of a group, the superblock.
const CONTENTS: [u16; 3] = [4, 5, 18];
/// What is changed is told in pieces of this size.
const GRAIN: usize = 128;

/// What is remembered, at most: a checkpoint is an eighth of a log, of which trees are a small
/// part.
const BYTES_MAX: isize = 64 << 20;
const OPEN_MAX: usize = 1 << 12;

/// What is changed of a block: from which byte on, and to what.
type Parts = Vec<(usize, Vec<u8>)>;

/// What the log has newer, by the block's place in sectors.
#[derive(Debug, Default)]
pub(in crate::xfs) struct Changes {
    blocks: HashMap<u64, Vec<Change>>,
    /// Transactions that will be replayed.
    pub(in crate::xfs) transactions: u64,
    dirty: bool,
}

#[derive(Debug)]
struct Change {
    /// Number of the record where its transaction begins; not descending.
    lsn: u64,
    parts: Parts,
}

impl Changes {
    pub(super) fn clean() -> Self {
        Self::default()
    }

    /// The file system was unmounted.
    pub(in crate::xfs) fn is_clean(&self) -> bool {
        !self.dirty
    }

    /// Puts upon a block what is newer than it is; tells whether anything was.
    pub(in crate::xfs) fn apply(
        &self,
        sector: u64,
        bytes: &mut [u8],
        newest: u64,
    ) -> Result<bool, Refusal> {
        let mut changed = false;
        for change in self.blocks.get(&sector).into_iter().flatten() {
            // what is on the device is from that record or a later one; numbers of it that cannot
            // be are of something else
            if newest >= change.lsn && newest != u64::MAX {
                continue;
            }
            for (at, part) in &change.parts {
                let place = bytes.get_mut(*at..).and_then(|rest| rest.get_mut(..part.len()));
                let outside = || unusable("its log changes bytes behind a block's end");
                place.ok_or_else(outside)?.copy_from_slice(part);
            }
            changed = true;
        }
        Ok(changed)
    }
}

/// Reads records, one after the other.
#[derive(Default)]
pub(super) struct Transactions {
    open: HashMap<u32, Transaction>,
    done: Changes,
    /// Bytes.
    held: isize,
}

#[derive(Default)]
struct Transaction {
    lsn: u64,
    header: Vec<u8>,
    /// The last one, which may not be whole.
    item: Item,
    /// By the block's place; none where it was given up.
    changes: Vec<(u64, Option<Parts>)>,
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

fn broken() -> Refusal {
    unusable("a transaction in its log does not fit together")
}

impl Transactions {
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
            let transaction = Transaction { lsn, ..Transaction::default() };
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
                self.commit(transaction);
            }
            return Ok(());
        }
        if flags & flag::UNMOUNT != 0 {
            return Ok(());
        }
        self.held += transaction.add(piece, went_on)?;
        if self.held > BYTES_MAX {
            return Err(unusable("its log changes too much"));
        }
        Ok(())
    }

    fn commit(&mut self, transaction: Transaction) {
        let lsn = transaction.lsn;
        self.held -= transaction.header.len().cast_signed();
        for (sector, parts) in transaction.changes {
            match parts {
                Some(parts) => {
                    self.done.blocks.entry(sector).or_default().push(Change { lsn, parts });
                }
                None => {
                    let gone = self.done.blocks.remove(&sector).unwrap_or_default();
                    self.held -= held(&[]) + gone.iter().map(|c| held(&c.parts)).sum::<isize>();
                }
            }
        }
        self.done.transactions += 1;
    }

    pub(super) fn finish(self) -> Changes {
        Changes { dirty: true, ..self.done }
    }
}

impl Transaction {
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
        if kind != CHANGED_BLOCK {
            return Ok(-dropped);
        }
        let (flags, sector) = (le16(head, 4), le64(head, 8));
        if flags & GIVEN_UP != 0 {
            self.changes.push((sector, None));
            return Ok(held(&[]) - dropped);
        }
        if !CONTENTS.contains(&(flags >> 11)) {
            return Ok(-dropped);
        }
        let parts = parts(head, &item.pieces[1..])?;
        let kept = held(&parts);
        self.changes.push((sector, Some(parts)));
        Ok(kept - dropped)
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
    let words = le32(head, 16) as usize;
    let map = head.get(MAP..).and_then(|map| map.get(..words.checked_mul(4)?));
    let map = map.ok_or_else(broken)?;
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
mod tests {
    use super::*;

    const MIB: isize = 1 << 20;
    const INODE: u16 = 0x123b;

    fn piece(number: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
        let len = u32::try_from(bytes.len()).expect("a short piece");
        let head = [&number.to_be_bytes()[..], &len.to_be_bytes(), &[CLIENTS[0], flags, 0, 0]];
        [&head.concat()[..], bytes].concat()
    }

    /// The start of a transaction.
    fn start(number: u32) -> Vec<Vec<u8>> {
        let mut header = HEADER_MAGIC.to_le_bytes().to_vec();
        header.resize(HEADER, 0);
        vec![piece(number, flag::START, &[]), piece(number, 0, &header)]
    }

    /// A changed block of 64 KiB, all of which is kept if it is of a tree.
    fn block(number: u32, kind: u16, contents: u16) -> Vec<Vec<u8>> {
        let mut head = [kind.to_le_bytes(), [2, 0]].concat();
        head.extend((contents << 11).to_le_bytes());
        head.extend([0, 0]);
        head.extend(8_u64.to_le_bytes());
        head.extend(16_u32.to_le_bytes());
        head.extend([0xff; 64]);
        vec![piece(number, 0, &head), piece(number, 0, &[7; 64 << 10])]
    }

    fn put(to: &mut Transactions, pieces: &[Vec<u8>]) -> Result<(), Refusal> {
        to.record(1, u32::try_from(pieces.len()).expect("few"), &pieces.concat())
    }

    #[test]
    fn what_is_remembered_has_a_bound_and_what_is_dropped_does_not_count() {
        let mut all = Transactions::default();
        put(&mut all, &start(1)).expect("a start");
        // of inodes nothing is kept, nor of blocks that no map depends on
        for _ in 0..2 * BYTES_MAX / MIB * 16 {
            put(&mut all, &block(1, INODE, 0)).expect("nothing is kept");
            put(&mut all, &block(1, CHANGED_BLOCK, 9)).expect("nothing is kept");
        }
        assert!(all.held < MIB, "{} bytes are held", all.held);
        let kept = (1..).find(|_| put(&mut all, &block(1, CHANGED_BLOCK, 4)).is_err());
        let kept: isize = kept.expect("an error") * (64 << 10);
        assert!((BYTES_MAX - MIB..=BYTES_MAX + MIB).contains(&kept), "{kept} bytes");
        let refusal = put(&mut all, &block(1, CHANGED_BLOCK, 4)).expect_err("it is full");
        assert!(refusal.to_string().contains("its log changes too much"), "{refusal}");
    }

    /// A changed block that is given up.
    fn given_up(number: u32) -> Vec<u8> {
        let mut head = [CHANGED_BLOCK.to_le_bytes(), [1, 0], GIVEN_UP.to_le_bytes()].concat();
        head.extend([0; 2 + 8 + 4]);
        piece(number, 0, &head)
    }

    #[test]
    fn pieces_of_a_byte_count_as_what_they_cost() {
        let mut all = Transactions::default();
        put(&mut all, &start(1)).expect("a start");
        // an item of so many pieces that it does not end
        let mut head = INODE.to_le_bytes().to_vec();
        head.extend([0xff; 2]);
        put(&mut all, &[piece(1, 0, &head)]).expect("a head");
        let pieces: Vec<_> = (0..60_000).map(|_| piece(1, 0, &[7])).collect();
        put(&mut all, &pieces).expect("room");
        assert!(all.held > 49 * 60_000, "{}", all.held);
    }

    #[test]
    fn blocks_that_were_given_up_count_until_that_is_done() {
        let mut all = Transactions::default();
        put(&mut all, &start(1)).expect("a start");
        put(&mut all, &block(1, CHANGED_BLOCK, 4)).expect("room");
        put(&mut all, &(0..100).map(|_| given_up(1)).collect::<Vec<_>>()).expect("room");
        assert!(all.held > (64 << 10) + 99 * 64, "{}", all.held);
        put(&mut all, &[piece(1, flag::COMMIT, &[])]).expect("a commit");
        assert!(all.held > 64 << 10, "place 8 has it, and 0 was given up: {}", all.held);
        put(&mut all, &start(2)).expect("a start");
        let mut given = given_up(2);
        given[PIECE + 8] = 8;
        put(&mut all, &[given, piece(2, flag::COMMIT, &[])]).expect("a commit");
        assert_eq!(all.held, 0);
    }

    #[test]
    fn only_so_many_transactions_can_be_open() {
        let mut all = Transactions::default();
        for number in 0..OPEN_MAX {
            put(&mut all, &start(u32::try_from(number).expect("few"))).expect("room");
        }
        let one_more = u32::try_from(OPEN_MAX).expect("few");
        put(&mut all, &start(one_more)).expect_err("no room");
        // one that is committed makes room
        let mut all = Transactions { open: all.open, ..Transactions::default() };
        put(&mut all, &[piece(0, flag::COMMIT, &[])]).expect("a commit");
        put(&mut all, &start(one_more)).expect("room");
        assert_eq!(all.finish().transactions, 1);
    }
}
