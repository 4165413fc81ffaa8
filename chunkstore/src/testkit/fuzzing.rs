//! The way behind the tags for the fuzz targets: it gives mutated bytes the checksum that they ask
//! for, so that they reach the parser that stands behind it. Nothing else may use it; all of it is
//! for repositories without encryption.

use crate::error::Result;
use crate::format::fields::{Fields, PutFields};
use crate::format::filter::Filter;
use crate::format::record::{
    RecordKind, RecordPlace, RecordSeal, open_record, seal_record, view_record,
};
use crate::format::segment::{PIECE_BLOCK, PIECE_INDEX, SegmentOpener, put_trailer};
use crate::ids::{ChunkId, PackId, RepositoryId, SegmentId};
use crate::keys::{Encryption, Keys};
use crate::limits::{
    FORMAT_VERSION, MAGIC_SEGMENT, SEGMENT_BLOCK_RECORDS, SEGMENT_RECORD_BYTES, TAG_BYTES,
};
use crate::pack::{
    DirectoryEntry, EntryKind, PACK_END_BYTES, PACK_HASH_BYTES, PackHasher, PackHeader,
    PackTrailer, encode_directory, split_entry,
};

/// First bytes of the records that only [`record`] takes.
pub const MAGIC_RECORD: [u8; 8] = *b"MVRFUZZ1";

/// A stored entry under the tag that its bytes ask for; what is not an entry at all is refused.
pub fn reseal_entry(
    keys: &Keys,
    kind: EntryKind,
    pack: &PackId,
    offset: u32,
    stored: &[u8],
) -> Result<Vec<u8>> {
    let entry = split_entry("entry", kind, pack, offset, stored)?;
    let mut payload = entry.payload.to_vec();
    let key = keys.pack_key(pack);
    let tag = key.seal_key().seal(u64::from(offset), &entry.associated, &mut payload)?;
    let mut out = stored[..stored.len() - entry.payload.len() - tag.len()].to_vec();
    out.put(&payload);
    out.put(&tag);
    Ok(out)
}

/// Puts the hash of all before it into the last bytes of a pack.
pub fn rehash_pack(bytes: &mut [u8]) {
    if let Some((rest, end)) = bytes.split_last_chunk_mut::<PACK_END_BYTES>() {
        let mut hasher = PackHasher::new();
        hasher.update(rest);
        *end = hasher.pack_end();
    }
}

/// The header of a pack as it is written.
pub fn encode_pack_header(header: &PackHeader) -> Vec<u8> {
    header.encode().to_vec()
}

/// The trailer of a pack as it is written.
pub fn encode_pack_trailer(trailer: &PackTrailer) -> Vec<u8> {
    let mut out = trailer.encode_hashed();
    out.put(&trailer.hash);
    out.put(&[0; PACK_END_BYTES - PACK_HASH_BYTES]);
    out
}

/// The plaintext of a directory as it is written.
pub fn encode_pack_directory(entries: &[DirectoryEntry]) -> Result<Vec<u8>> {
    encode_directory(entries)
}

/// A whole segment, correctly sealed, out of the plaintext of its blocks and of its index. A last
/// record that is cut short is left out.
pub fn segment_of(
    keys: &Keys,
    repository: &RepositoryId,
    id: &SegmentId,
    blocks: &[u8],
    index: &[u8],
) -> Result<Vec<u8>> {
    let opener = SegmentOpener::new(keys, keys.encryption(), id);
    let mut out = MAGIC_SEGMENT.to_vec();
    out.put_u16(FORMAT_VERSION);
    out.put(&[0, keys.encryption().seal_byte()]);
    out.put_u32(0);
    out.put(id.as_bytes());
    out.put(repository.as_bytes());
    let records = blocks.len() / SEGMENT_RECORD_BYTES as usize;
    let whole = &blocks[..records * SEGMENT_RECORD_BYTES as usize];
    for block in whole.chunks((SEGMENT_BLOCK_RECORDS * SEGMENT_RECORD_BYTES) as usize) {
        let start = out.len();
        out.put(block);
        opener.seal_from(&mut out, start, PIECE_BLOCK)?;
    }
    let start = out.len();
    out.put(index);
    opener.seal_from(&mut out, start, PIECE_INDEX)?;
    put_trailer(&mut out, records as u64, start as u64);
    Ok(out)
}

/// Reads a filter and asks it for an id: blocks of the filter, and the answer.
pub fn filter(bytes: &[u8], id: &ChunkId) -> Result<(usize, bool)> {
    let mut fields = Fields::new(bytes, "filter");
    let filter = Filter::decode(&mut fields)?;
    fields.finish()?;
    Ok((filter.blocks(), filter.may_hold(id)))
}

/// Reads the envelope of a record with or without a clear part, seals what is in it again under the
/// same salt, opens that, and gives both: the record sealed again but for its tag, and the body
/// that came out.
pub fn record(keys: &Keys, bytes: &[u8], clear: bool) -> Result<(Vec<u8>, Vec<u8>)> {
    let kind = RecordKind { name: "record", magic: MAGIC_RECORD, body_bytes_max: 1024, clear };
    let view = view_record(&kind, "fuzz", bytes)?;
    view.check_known("record")?;
    let repository = RepositoryId::from_bytes([0; 16]);
    let place = RecordPlace { repository: &repository, object_key: "fuzz" };
    // an encrypted one would have other bytes for its body
    let with = RecordSeal { key: keys.metadata(), seal: Encryption::None };
    let mut sealed = seal_record(&kind, place, with, &view.salt, view.clear, view.body)?;
    let body = open_record(&kind, place, with, &sealed)?;
    sealed[10] = view.seal().map_or(0, Encryption::seal_byte);
    sealed.truncate(sealed.len() - TAG_BYTES as usize);
    Ok((sealed, body))
}
