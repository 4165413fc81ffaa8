//! Dedup segments: sorted records "chunk id → location" in sealed blocks, with a filter.
//! `docs/format.md`, section 11.
//!
//! A segment is read in three steps, each a pure function over bytes that were fetched or mapped
//! before: the trailer says where the index section is, the index section says which block may hold
//! an id, the block says where the chunk is. The same functions read a segment as it is in the
//! store (sealed) and its scratch copy (checksummed, plain).

mod plain;

pub(crate) use plain::PlainSegment;

use super::fields::{Fields, PutFields};
use super::filter::{Filter, put_filter};
use super::location::check_location;
use super::record::{check_epoch, check_version};
use super::{bug, corrupt};
use crate::error::Result;
use crate::ids::{ChunkId, PackId, RepositoryId, SegmentId};
use crate::keys::{Encryption, Keys, SealKey};
use crate::limits::{
    FORMAT_VERSION, MAGIC_SEGMENT, MAGIC_SEGMENT_END, SEGMENT_BLOCK_RECORDS, SEGMENT_HEADER_BYTES,
    SEGMENT_RECORD_BYTES, SEGMENT_RECORDS_MAX, SEGMENT_TRAILER_BYTES, TAG_BYTES,
};
use crate::units::Location;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

const RECORD: usize = SEGMENT_RECORD_BYTES as usize;
const TAG: usize = TAG_BYTES as usize;
const TRAILER: usize = SEGMENT_TRAILER_BYTES as usize;
const BLOCK_BYTES: u64 = (SEGMENT_BLOCK_RECORDS * SEGMENT_RECORD_BYTES + TAG_BYTES) as u64;
/// What a sealed piece is, in its associated data.
pub(crate) const PIECE_BLOCK: u8 = 1;
pub(crate) const PIECE_INDEX: u8 = 2;
/// Of an index section: its counts, the kind and the seed of the filter.
const INDEX_FIXED: usize = 4 + 4 + 8 + 8 + 4;

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRecord {
    /// The chunk.
    pub id: ChunkId,
    /// Its place.
    pub location: Location,
}

/// A segment's identity and sealing: opens its pieces.
#[derive(Debug)]
pub struct SegmentOpener {
    id: SegmentId,
    key: SealKey,
    what: String,
}

/// Where the pieces of a segment are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentLayout {
    /// Records in all blocks.
    pub records: u64,
    index_offset: u64,
    index_len: u64,
}

/// The index section, plain.
#[derive(Debug, Clone, Copy)]
pub struct SegmentIndex<'a> {
    packs: &'a [u8],
    fences: &'a [u8],
    filter: Filter<'a>,
}

/// Encodes a segment over `records`, which are sorted; of several for one chunk the first by
/// location stays.
pub fn encode_segment(
    keys: &Keys,
    seal: Encryption,
    repository: &RepositoryId,
    id: &SegmentId,
    filter_seed: u64,
    records: &mut Vec<SegmentRecord>,
) -> Result<Vec<u8>> {
    records.sort_unstable_by_key(|r| (r.id, r.location));
    records.dedup_by_key(|r| r.id);
    if records.is_empty() || records.len() > SEGMENT_RECORDS_MAX as usize {
        return Err(bug("a dedup segment", format!("{} records", records.len())));
    }
    let opener = SegmentOpener::new(keys, seal, id);
    let blocks = records.len().div_ceil(SEGMENT_BLOCK_RECORDS as usize);
    let packs = packs_of(records)?;
    let numbers: HashMap<PackId, u32> = packs.iter().copied().zip(0..).collect();
    let len = records.len() * (RECORD + 2) + blocks * (TAG + 32) + packs.len() * 32 + 256;
    let mut out = Vec::with_capacity(len);
    out.put(&MAGIC_SEGMENT);
    out.put_u16(FORMAT_VERSION);
    out.put(&[0, seal.seal_byte()]);
    out.put_u32(0); // key epoch
    out.put(id.as_bytes());
    out.put(repository.as_bytes());
    for block in records.chunks(SEGMENT_BLOCK_RECORDS as usize) {
        let start = out.len();
        for record in block {
            let l = &record.location;
            out.put(record.id.as_bytes());
            out.put_u32(numbers.get(&l.pack).copied().unwrap_or(u32::MAX));
            out.put_u32(l.entry);
            out.put_u32(l.offset);
            out.put_u32(l.stored_len);
            out.put_u16(l.index);
        }
        opener.seal_from(&mut out, start, PIECE_BLOCK)?;
    }
    let index_offset = out.len();
    out.put_u32(u32::try_from(packs.len()).map_err(|_| bug("a dedup segment", "packs"))?);
    packs.iter().for_each(|pack| out.put(pack.as_bytes()));
    out.put_u32(u32::try_from(blocks).map_err(|_| bug("a dedup segment", "blocks"))?);
    let fences = records.iter().step_by(SEGMENT_BLOCK_RECORDS as usize);
    fences.for_each(|first| out.put(first.id.as_bytes()));
    put_filter(&mut out, filter_seed, records.len(), records.iter().map(|r| &r.id));
    opener.seal_from(&mut out, index_offset, PIECE_INDEX)?;
    put_trailer(&mut out, records.len() as u64, index_offset as u64);
    Ok(out)
}

/// The packs that the records name, ascending. Refuses locations that no reader would take.
fn packs_of(records: &[SegmentRecord]) -> Result<Vec<PackId>> {
    let mut packs = HashSet::new();
    for SegmentRecord { location, .. } in records {
        check_location("a dedup segment", location)
            .map_err(|e| bug("a dedup segment", "a location").caused_by(e))?;
        packs.insert(location.pack);
    }
    let mut packs: Vec<_> = packs.into_iter().collect();
    packs.sort_unstable();
    Ok(packs)
}

pub(crate) fn put_trailer(out: &mut Vec<u8>, records: u64, index_offset: u64) {
    let index_len = out.len() as u64 - index_offset;
    put_trailer_fields(out, records, index_offset, index_len);
    let hash = blake3::hash(out);
    out.put(hash.as_bytes());
}

/// All of the trailer but the hash.
fn put_trailer_fields(out: &mut Vec<u8>, records: u64, index_offset: u64, index_len: u64) {
    out.put_u64(records);
    out.put_u64(index_offset);
    out.put_u64(index_len);
    out.put(&MAGIC_SEGMENT_END);
}

/// The same segment with seal 0, for a scratch copy. Checks the hash of the whole and every piece.
pub fn to_plain_segment(
    keys: &Keys,
    repository: &RepositoryId,
    id: &SegmentId,
    bytes: &[u8],
) -> Result<Vec<u8>> {
    let layout = SegmentOpener::new(keys, keys.encryption(), id).check_whole(bytes)?;
    let mut copy = PlainSegment::new(keys, repository, id, &layout);
    let mut out = Vec::new();
    while let Some(wanted) = copy.wanted(u64::MAX) {
        out = copy.convert(piece(bytes, &wanted))?;
    }
    out.extend_from_slice(&copy.finish()?);
    Ok(out)
}

/// A piece of a segment that is whole in memory; empty, which opens as corrupt, if it is not there.
fn piece<'a>(bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    let at = |n| usize::try_from(n).unwrap_or(usize::MAX);
    bytes.get(at(range.start)..at(range.end)).unwrap_or_default()
}

impl SegmentLayout {
    /// From the last `SEGMENT_TRAILER_BYTES` of a segment of `object_len` bytes.
    pub fn decode(what: &str, object_len: u64, trailer: &[u8]) -> Result<Self> {
        let mut fields = Fields::new(trailer, what);
        let (records, index_offset, index_len) = (fields.u64()?, fields.u64()?, fields.u64()?);
        if fields.array::<8>()? != MAGIC_SEGMENT_END {
            return Err(fields.corrupt("its last bytes are not a segment's trailer"));
        }
        fields.array::<32>()?;
        fields.finish()?;
        if records == 0 || records > u64::from(SEGMENT_RECORDS_MAX) {
            return Err(corrupt(what, format!("it says that it has {records} records")));
        }
        let layout = Self { records, index_offset, index_len };
        let end = index_offset.checked_add(index_len).and_then(|n| n.checked_add(TRAILER as u64));
        let blocks_end = layout.block(layout.blocks() - 1).end;
        let fits = layout.index_len_fits();
        if index_offset != blocks_end || end != Some(object_len) || !fits {
            return Err(corrupt(what, "its lengths do not add up"));
        }
        Ok(layout)
    }

    /// Whether the index section may be so long: at least one pack and one block of the filter, at
    /// most one each a record.
    fn index_len_fits(&self) -> bool {
        let fixed = (INDEX_FIXED + TAG) as u64 + 32 * u64::from(self.blocks());
        (fixed + 64..=fixed + 64 * self.records).contains(&self.index_len)
    }

    /// Data blocks.
    pub fn blocks(&self) -> u32 {
        // at most 2^26 records
        u32::try_from(self.records.div_ceil(u64::from(SEGMENT_BLOCK_RECORDS))).unwrap_or(u32::MAX)
    }

    /// Bytes of a block in the object, its tag included.
    pub fn block(&self, block: u32) -> Range<u64> {
        let start = u64::from(SEGMENT_HEADER_BYTES) + u64::from(block) * BLOCK_BYTES;
        let before = u64::from(block) * u64::from(SEGMENT_BLOCK_RECORDS);
        let records = self.records.saturating_sub(before).min(u64::from(SEGMENT_BLOCK_RECORDS));
        start..start + records * RECORD as u64 + TAG as u64
    }

    /// Bytes of the index section in the object, its tag included.
    pub fn index(&self) -> Range<u64> {
        self.index_offset..self.index_offset + self.index_len
    }
}

impl SegmentOpener {
    /// For one segment; `seal` is the repository's, or none for a scratch copy.
    pub fn new(keys: &Keys, seal: Encryption, id: &SegmentId) -> Self {
        Self { id: *id, key: keys.segment_key(id, seal), what: format!("dedup segment {id}") }
    }

    /// What errors call the segment.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Checks the first `SEGMENT_HEADER_BYTES`.
    pub fn check_header(&self, bytes: &[u8], repository: &RepositoryId) -> Result<()> {
        let mut fields = Fields::new(bytes, &self.what);
        if fields.array::<8>()? != MAGIC_SEGMENT {
            return Err(fields.corrupt("its first bytes are not a segment's"));
        }
        check_version(&self.what, fields.u16()?)?;
        let (kind, seal) = (fields.u8()?, fields.u8()?);
        check_epoch(&self.what, fields.u32()?)?;
        let (id, of) = (fields.array::<32>()?, fields.array::<16>()?);
        let want = self.key.encryption().seal_byte();
        if kind != 0 || seal != want || id != *self.id.as_bytes() || of != *repository.as_bytes() {
            return Err(corrupt(
                &self.what,
                "its header is of another segment, seal or repository",
            ));
        }
        Ok(())
    }

    /// Checks the hash over a whole segment and gives its layout.
    pub fn check_whole(&self, bytes: &[u8]) -> Result<SegmentLayout> {
        let Some((rest, hash)) = bytes.split_last_chunk::<32>() else {
            return Err(corrupt(&self.what, "it is too short"));
        };
        if blake3::hash(rest) != *hash {
            return Err(corrupt(&self.what, "its hash does not fit: it was damaged"));
        }
        let at = bytes.len().saturating_sub(TRAILER);
        SegmentLayout::decode(&self.what, bytes.len() as u64, &bytes[at..])
    }

    /// Opens a block; gives its records, plain.
    pub fn open_block<'a>(
        &self,
        layout: &SegmentLayout,
        block: u32,
        bytes: &'a [u8],
    ) -> Result<std::borrow::Cow<'a, [u8]>> {
        self.open(&layout.block(block), PIECE_BLOCK, bytes)
    }

    /// Opens the index section; gives it plain, for [`SegmentIndex::decode`].
    pub fn open_index<'a>(
        &self,
        layout: &SegmentLayout,
        bytes: &'a [u8],
    ) -> Result<std::borrow::Cow<'a, [u8]>> {
        self.open(&layout.index(), PIECE_INDEX, bytes)
    }

    /// A checksummed piece is not copied: it may be a mapped file.
    fn open<'a>(
        &self,
        at: &Range<u64>,
        kind: u8,
        bytes: &'a [u8],
    ) -> Result<std::borrow::Cow<'a, [u8]>> {
        let split = bytes.split_last_chunk::<TAG>();
        let Some((body, tag)) = split.filter(|_| bytes.len() as u64 == at.end - at.start) else {
            return Err(corrupt(&self.what, format!("{} bytes at {}", bytes.len(), at.start)));
        };
        let associated = self.associated(at.start, kind);
        let bad = || {
            let detail = format!("the tag of the piece at {} does not fit", at.start);
            corrupt(&self.what, detail)
        };
        match &self.key {
            SealKey::Checksum(_) => {
                self.key.check(&associated, body, tag).map_err(|_| bad())?;
                Ok(body.into())
            }
            SealKey::Aes(_) => {
                let mut plain = body.to_vec();
                self.key.open(at.start, &associated, &mut plain, tag).map_err(|_| bad())?;
                Ok(plain.into())
            }
        }
    }

    fn associated(&self, offset: u64, kind: u8) -> [u8; 41] {
        let mut out = [kind; 41];
        out[..32].copy_from_slice(self.id.as_bytes());
        out[32..40].copy_from_slice(&offset.to_le_bytes());
        out
    }

    /// Seals the bytes from `start` on in place and appends the tag; `out` holds the segment from
    /// its first byte.
    pub(crate) fn seal_from(&self, out: &mut Vec<u8>, start: usize, kind: u8) -> Result<()> {
        self.seal_at(out, start, start as u64, kind)
    }

    /// The same for a part of a segment: the bytes from `start` on stand at `offset` of it.
    fn seal_at(&self, out: &mut Vec<u8>, start: usize, offset: u64, kind: u8) -> Result<()> {
        let tag = self.key.seal(offset, &self.associated(offset, kind), &mut out[start..])?;
        out.put(&tag);
        Ok(())
    }
}

impl<'a> SegmentIndex<'a> {
    /// Reads an index section that was opened.
    pub fn decode(what: &str, layout: &SegmentLayout, plain: &'a [u8]) -> Result<Self> {
        let mut fields = Fields::new(plain, what);
        let pack_count = fields.count(PackId::LEN)?;
        let packs = fields.take(pack_count * PackId::LEN)?;
        let blocks = fields.count(ChunkId::LEN)?;
        if blocks != layout.blocks() as usize {
            return Err(fields.corrupt("its index has another number of blocks"));
        }
        let fences = fields.take(blocks * ChunkId::LEN)?;
        let filter = Filter::decode(&mut fields)?;
        if pack_count == 0
            || pack_count as u64 > layout.records
            || filter.blocks() as u64 > layout.records
        {
            return Err(fields.corrupt("its index has more packs or filter blocks than records"));
        }
        fields.finish()?;
        Ok(Self { packs, fences, filter })
    }

    /// False: the segment does not hold the chunk.
    pub fn may_hold(&self, id: &ChunkId) -> bool {
        self.filter.may_hold(id)
    }

    /// The block that holds the chunk if any does.
    pub fn block_of(&self, id: &ChunkId) -> Option<u32> {
        let fences = self.fences.as_chunks::<{ ChunkId::LEN }>().0;
        let after = fences.partition_point(|first| first <= id.as_bytes());
        u32::try_from(after.checked_sub(1)?).ok()
    }

    /// Looks a chunk up in an opened block.
    pub fn find(&self, what: &str, block: &[u8], id: &ChunkId) -> Result<Option<Location>> {
        let records = block.as_chunks::<RECORD>().0;
        let Ok(at) = records.binary_search_by(|r| r[..32].cmp(id.as_bytes())) else {
            return Ok(None);
        };
        Ok(Some(self.record(what, &records[at])?.location))
    }

    /// All records of an opened block. Refuses an order that a bisection could not search.
    pub fn records(&self, what: &str, block: &[u8]) -> Result<Vec<SegmentRecord>> {
        let (raw, rest) = block.as_chunks::<RECORD>();
        if raw.is_empty() || !rest.is_empty() {
            return Err(corrupt(what, "a block is not whole records"));
        }
        let records = raw.iter().map(|raw| self.record(what, raw)).collect::<Result<Vec<_>>>()?;
        if records.is_sorted_by(|a, b| a.id < b.id) {
            return Ok(records);
        }
        Err(corrupt(what, "the records of a block are not ascending"))
    }

    /// Refuses an order that lookups could not search. Costs a pass over the index: once for each
    /// segment, not each lookup.
    pub fn check_order(&self, what: &str) -> Result<()> {
        let ascending = |ids: &[u8]| ids.as_chunks::<32>().0.is_sorted_by(|a, b| a < b);
        if ascending(self.packs) && ascending(self.fences) {
            return Ok(());
        }
        Err(corrupt(what, "a list in its index is not ascending"))
    }

    /// All packs that the segment names, ascending.
    pub fn packs(&self) -> impl ExactSizeIterator<Item = PackId> + 'a {
        self.packs.as_chunks().0.iter().map(|id| PackId::from_bytes(*id))
    }

    fn record(&self, what: &str, raw: &[u8; RECORD]) -> Result<SegmentRecord> {
        let mut fields = Fields::new(raw, what);
        let id = ChunkId::from_bytes(fields.array()?);
        let pack = fields.u32()? as usize;
        let pack = self.packs.as_chunks::<{ PackId::LEN }>().0.get(pack);
        let Some(pack) = pack else { return Err(fields.corrupt("a record names no pack")) };
        let location = Location {
            pack: PackId::from_bytes(*pack),
            entry: fields.u32()?,
            offset: fields.u32()?,
            stored_len: fields.u32()?,
            index: fields.u16()?,
        };
        fields.finish()?;
        check_location(what, &location)?;
        Ok(SegmentRecord { id, location })
    }
}

#[cfg(test)]
mod tests;
