//! Pages of a volume map: `docs/format.md`, section 8.
//!
//! A page is what stands in its children, no more: it does not know its number or the volume's
//! size, so equal content gives equal pages anywhere. Its id covers the children's ids and not
//! their locations. There is exactly one encoding of a page.

use super::fields::{Fields, PutFields};
use super::location::{check_entry, check_location};
use super::{bug, corrupt};
use crate::error::Result;
use crate::ids::{ChunkId, PackId, PageId};
use crate::keys::Keys;
use crate::limits::{ENTRY_CHUNKS_MAX, MAP_DEPTH_MAX, PAGE_FANOUT_MAX, PAGE_PLAIN_BYTES_MAX};
use crate::units::{ChunkRef, Location, PageRef};
use std::collections::HashMap;

const WHAT: &str = "map page";
/// In place of an entry's index: the child is Zero.
const ZERO: u16 = u16::MAX;
const HEAD_BYTES: usize = 8;
const ENTRY_BYTES: usize = 14;

/// Reference to a child: a chunk in a leaf, a page elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Child {
    /// Chunk id or page id.
    pub id: [u8; 32],
    /// Where it is.
    pub location: Location,
}

impl From<ChunkRef> for Child {
    fn from(r: ChunkRef) -> Self {
        Self { id: *r.id.as_bytes(), location: r.location }
    }
}

impl From<PageRef> for Child {
    fn from(r: PageRef) -> Self {
        Self { id: *r.id.as_bytes(), location: r.location }
    }
}

/// One page. `None` is Zero, and so is every child behind the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    level: u8,
    children: Vec<Option<Child>>,
}

/// One row of the entry table.
type EntryRow = (u16, u32, u32, u32);

impl Page {
    /// A page of `level` (0: a leaf). Zeros at the end are cut off: they are Zero without standing
    /// there.
    pub fn new(level: u8, mut children: Vec<Option<Child>>) -> Self {
        let used = children.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        children.truncate(used);
        Self { level, children }
    }

    /// 0 for a leaf.
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Children up to the last that is not Zero.
    pub fn children(&self) -> &[Option<Child>] {
        &self.children
    }

    /// What it takes in memory.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val::<[Option<Child>]>(&self.children)
    }

    /// Whether all is Zero: such a page is not stored.
    pub fn is_zero(&self) -> bool {
        self.children.is_empty()
    }

    /// Child `i`; what lies behind the last is Zero.
    pub fn child(&self, i: usize) -> Option<&Child> {
        self.children.get(i)?.as_ref()
    }

    /// Child `i` of a leaf.
    pub fn chunk_ref(&self, i: usize) -> Option<ChunkRef> {
        debug_assert_eq!(self.level, 0, "only leaves have chunks");
        self.child(i).map(|c| ChunkRef { id: ChunkId::from_bytes(c.id), location: c.location })
    }

    /// Child `i` of a page that is no leaf.
    pub fn page_ref(&self, i: usize) -> Option<PageRef> {
        debug_assert_ne!(self.level, 0, "leaves have no pages");
        self.child(i).map(|c| PageRef { id: PageId::from_bytes(c.id), location: c.location })
    }

    /// Hash of level and children: the same wherever they are stored.
    pub fn id(&self, keys: &Keys) -> PageId {
        keys.page_id(self.level, self.children.iter().map(|c| c.as_ref().map(|c| c.id)))
    }

    /// Plaintext of the page. An empty page, or one that breaks a limit, is a mistake of the
    /// caller.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if self.children.is_empty() || self.children.len() > usize::from(PAGE_FANOUT_MAX) {
            return Err(bug(WHAT, format!("it has {} children", self.children.len())));
        }
        if self.level >= MAP_DEPTH_MAX {
            return Err(bug(WHAT, format!("there is no level {}", self.level)));
        }
        let mut packs: Vec<PackId> = Vec::new();
        let mut pack_numbers: HashMap<PackId, u16> = HashMap::new();
        let mut rows: Vec<EntryRow> = Vec::new();
        let mut row_numbers: HashMap<EntryRow, u16> = HashMap::new();
        let mut tail = Vec::with_capacity(self.children.len() * 36);
        let too_many = |_| bug(WHAT, "it has too many children");
        for child in &self.children {
            let Some(Child { id, location }) = child else {
                tail.put_u16(ZERO);
                continue;
            };
            check_location(WHAT, location).map_err(|e| bug(WHAT, "a location").caused_by(e))?;
            if self.level > 0 && location.index != 0 {
                return Err(bug(WHAT, "a page is not alone in its entry"));
            }
            let next = u16::try_from(packs.len()).map_err(too_many)?;
            let pack = *pack_numbers.entry(location.pack).or_insert_with(|| {
                packs.push(location.pack);
                next
            });
            let row = (pack, location.entry, location.offset, location.stored_len);
            let next = u16::try_from(rows.len()).map_err(too_many)?;
            let entry = *row_numbers.entry(row).or_insert_with(|| {
                rows.push(row);
                next
            });
            tail.put_u16(entry);
            tail.put_u16(location.index);
            tail.put(id);
        }
        let len = HEAD_BYTES + packs.len() * PackId::LEN + rows.len() * ENTRY_BYTES + tail.len();
        let mut out = Vec::with_capacity(len);
        out.put(&[self.level, 0]);
        for count in [self.children.len(), packs.len(), rows.len()] {
            out.put_u16(u16::try_from(count).map_err(too_many)?);
        }
        packs.iter().for_each(|pack| out.put(pack.as_bytes()));
        for (pack, entry, offset, stored_len) in rows {
            out.put_u16(pack);
            out.put_u32(entry);
            out.put_u32(offset);
            out.put_u32(stored_len);
        }
        out.put(&tail);
        Ok(out)
    }

    /// Reads a page of a map with `fanout` children a page.
    pub fn decode(bytes: &[u8], fanout: u16) -> Result<Self> {
        if bytes.len() > PAGE_PLAIN_BYTES_MAX as usize {
            return Err(corrupt(WHAT, format!("{} bytes are too many", bytes.len())));
        }
        let mut fields = Fields::new(bytes, WHAT);
        let level = fields.u8()?;
        if level >= MAP_DEPTH_MAX {
            return Err(corrupt(WHAT, format!("there is no level {level}")));
        }
        if fields.u8()? != 0 {
            return Err(corrupt(WHAT, "a reserved byte is not zero"));
        }
        let count = fields.u16()?;
        if count == 0 || count > fanout.min(PAGE_FANOUT_MAX) {
            return Err(corrupt(WHAT, format!("{count} children are not 1 to {fanout}")));
        }
        let (pack_count, row_count) = (fields.u16()?, fields.u16()?);
        if row_count > count || pack_count > row_count {
            return Err(corrupt(WHAT, "it names more entries or packs than it has children"));
        }
        let mut packs = Vec::with_capacity(usize::from(pack_count));
        for _ in 0..pack_count {
            packs.push(PackId::from_bytes(fields.array()?));
        }
        let rows = read_rows(&mut fields, usize::from(row_count), packs.len())?;
        refuse_repeats(&packs)?;
        refuse_repeats(&rows)?;
        let children = read_children(&mut fields, level, usize::from(count), &packs, &rows)?;
        fields.finish()?;
        Ok(Self { level, children })
    }
}

fn read_rows(fields: &mut Fields<'_, '_>, count: usize, packs: usize) -> Result<Vec<EntryRow>> {
    let mut rows = Vec::with_capacity(count);
    let mut packs_seen = 0;
    for _ in 0..count {
        let row @ (pack, entry, offset, stored_len) =
            (fields.u16()?, fields.u32()?, fields.u32()?, fields.u32()?);
        check_entry(WHAT, entry, offset, stored_len)?;
        in_order(usize::from(pack), &mut packs_seen, packs)?;
        rows.push(row);
    }
    if packs_seen != packs {
        return Err(corrupt(WHAT, "it names a pack without using it"));
    }
    Ok(rows)
}

fn read_children(
    fields: &mut Fields<'_, '_>,
    level: u8,
    count: usize,
    packs: &[PackId],
    rows: &[EntryRow],
) -> Result<Vec<Option<Child>>> {
    let mut children = Vec::with_capacity(count);
    let mut rows_seen = 0;
    for _ in 0..count {
        let number = fields.u16()?;
        if number == ZERO {
            children.push(None);
            continue;
        }
        let index = fields.u16()?;
        if index >= ENTRY_CHUNKS_MAX || (level > 0 && index != 0) {
            return Err(corrupt(WHAT, format!("a child has index {index} in its entry")));
        }
        in_order(usize::from(number), &mut rows_seen, rows.len())?;
        let (pack, entry, offset, stored_len) = rows[usize::from(number)];
        let pack = packs[usize::from(pack)];
        let location = Location { pack, entry, offset, stored_len, index };
        children.push(Some(Child { id: fields.array()?, location }));
    }
    if rows_seen != rows.len() {
        return Err(corrupt(WHAT, "it names an entry without using it"));
    }
    if children.last().is_none_or(Option::is_none) {
        return Err(corrupt(WHAT, "its last child is Zero"));
    }
    Ok(children)
}

/// A table stands in the order of first use: an index is at most one beyond all before it.
fn in_order(index: usize, seen: &mut usize, count: usize) -> Result<()> {
    if index >= count || index > *seen {
        return Err(corrupt(WHAT, "a table does not stand in the order of its use"));
    }
    *seen = (*seen).max(index + 1);
    Ok(())
}

fn refuse_repeats<T: Ord + Copy>(items: &[T]) -> Result<()> {
    if items.is_sorted_by(|a, b| a < b) {
        return Ok(());
    }
    let mut sorted = items.to_vec();
    sorted.sort_unstable();
    if sorted.windows(2).any(|w| w[0] == w[1]) {
        return Err(corrupt(WHAT, "it names something twice"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
