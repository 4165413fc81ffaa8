//! Bytes of a pack: header, entries, directory, trailer.

use super::{EntryKind, PACK_END_BYTES, PACK_HASH_BYTES, PackHasher, PackKind};
use crate::error::Result;
use crate::format::fields::{Fields, PutFields};
use crate::format::location::{ENTRY_OVERHEAD_BYTES, check_entry};
use crate::format::record::{check_epoch, check_version};
use crate::format::{bug, corrupt, unsupported};
use crate::ids::{PackId, RepositoryId};
use crate::keys::{Encryption, Keys, PackKey, Tag};
use crate::limits::{
    CHUNK_BYTES_MIN, ENTRY_CHUNKS_MAX, ENTRY_HEADER_BYTES, ENTRY_PLAIN_BYTES_MAX, FORMAT_VERSION,
    MAGIC_PACK, MAGIC_PACK_END, PACK_CHUNKS_MAX, PACK_ENTRIES_MAX, PACK_HEADER_BYTES,
    PACK_TRAILER_BYTES, PAGE_PLAIN_BYTES_MAX, TAG_BYTES,
};
use crate::units::ChunkSize;
use bytes::Bytes;
use std::ops::Range;

const ASSOCIATED_BYTES: usize = PackId::LEN + 8 + ENTRY_HEADER_BYTES as usize;

/// How a payload was made of its plaintext.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// As it is.
    Raw,
    /// One zstd frame.
    Zstd,
}

/// The first bytes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHeader {
    /// How it is compressed.
    pub codec: Codec,
    /// What it holds.
    pub kind: EntryKind,
    /// Chunks in it; 1 for a map page, 0 for a directory.
    pub count: u16,
    /// Bytes of plaintext.
    pub plain_len: u32,
}

impl EntryHeader {
    /// What a stored entry says of the length of its plaintext, before anything of it was checked:
    /// to have a buffer ready.
    pub fn claimed_len(stored: &[u8]) -> Option<u32> {
        stored.get(4..8)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(crate) fn encode(&self) -> [u8; ENTRY_HEADER_BYTES as usize] {
        let codec = match self.codec {
            Codec::Raw => 0,
            Codec::Zstd => 1,
        };
        let [c0, c1] = self.count.to_le_bytes();
        let [p0, p1, p2, p3] = self.plain_len.to_le_bytes();
        [codec, self.kind.byte(), c0, c1, p0, p1, p2, p3]
    }

    /// Reads the header of an entry that must be of `kind` and has `payload_len` bytes between
    /// header and tag.
    fn decode(what: &str, bytes: [u8; 8], kind: EntryKind, payload_len: usize) -> Result<Self> {
        let [codec, kind_byte, c0, c1, p0, p1, p2, p3] = bytes;
        let codec = match codec {
            0 => Codec::Raw,
            1 => Codec::Zstd,
            other => return Err(unsupported(what, format!("its codec {other} is unknown"))),
        };
        if kind_byte != kind.byte() {
            return Err(corrupt(what, format!("it is of kind {kind_byte}, not {}", kind.byte())));
        }
        let header = Self {
            codec,
            kind,
            count: u16::from_le_bytes([c0, c1]),
            plain_len: u32::from_le_bytes([p0, p1, p2, p3]),
        };
        if !header.is_possible()
            || (codec == Codec::Raw && header.plain_len as usize != payload_len)
        {
            return Err(corrupt(what, format!("its header is impossible: {header:?}")));
        }
        Ok(header)
    }

    fn is_possible(&self) -> bool {
        match self.kind {
            EntryKind::Chunks => {
                let full = u32::from(self.count).saturating_sub(1).saturating_mul(CHUNK_BYTES_MIN);
                (1..=ENTRY_CHUNKS_MAX).contains(&self.count)
                    && self.plain_len > full
                    && self.plain_len <= ENTRY_PLAIN_BYTES_MAX
            }
            EntryKind::Page => {
                self.count == 1 && (1..=PAGE_PLAIN_BYTES_MAX).contains(&self.plain_len)
            }
            EntryKind::Directory => self.count == 0 && self.codec == Codec::Raw,
        }
    }

    /// Where chunk `index` stands in the plaintext. Refuses an index beyond the entry, and an entry
    /// whose count is not that of its length.
    pub fn chunk(&self, index: u16, chunk: ChunkSize) -> Result<Range<usize>> {
        let what = "entry of chunks";
        if u32::from(self.count) != self.plain_len.div_ceil(chunk.bytes()) {
            let detail = format!("{} chunks are not in {} bytes", self.count, self.plain_len);
            return Err(corrupt(what, detail));
        }
        if index >= self.count {
            return Err(corrupt(
                what,
                format!("it has {} chunks and no chunk {index}", self.count),
            ));
        }
        let start = usize::from(index) * chunk.bytes() as usize;
        let end = (start + chunk.bytes() as usize).min(self.plain_len as usize);
        Ok(start..end)
    }

    /// The same for a reference that expects `len` bytes there, see
    /// [`Geometry::len`](crate::Geometry::len): the chunk size, but for the last chunk of a volume.
    /// Any other length is refused. Whoever opens a chunk for a volume asks here.
    pub fn expect(&self, index: u16, chunk: ChunkSize, len: u32) -> Result<Range<usize>> {
        let range = self.chunk(index, chunk)?;
        if range.len() == len as usize {
            return Ok(range);
        }
        let detail = format!("it has {} bytes there, and {len} in the volume", range.len());
        Err(corrupt("entry of chunks", detail))
    }
}

/// A stored entry, taken apart; nothing is authenticated yet.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) header: EntryHeader,
    pub(crate) payload: &'a [u8],
    pub(crate) tag: Tag,
    pub(crate) associated: [u8; ASSOCIATED_BYTES],
}

/// Takes a stored entry apart and checks its header against the limits.
pub(crate) fn split_entry<'a>(
    what: &str,
    kind: EntryKind,
    pack: &PackId,
    offset: u32,
    stored: &'a [u8],
) -> Result<Entry<'a>> {
    let (associated, payload, tag) = entry_parts(what, pack, offset, stored)?;
    let head = stored.first_chunk().ok_or_else(|| corrupt(what, "it is too short"))?;
    let header = EntryHeader::decode(what, *head, kind, payload.len())?;
    Ok(Entry { header, payload, tag, associated })
}

/// What the tag of a stored entry covers, and the tag, whatever its header says.
pub(crate) fn entry_parts<'a>(
    what: &str,
    pack: &PackId,
    offset: u32,
    stored: &'a [u8],
) -> Result<([u8; ASSOCIATED_BYTES], &'a [u8], Tag)> {
    let mut fields = Fields::new(stored, what);
    let head: [u8; ENTRY_HEADER_BYTES as usize] = fields.array()?;
    let payload_len = fields.left().checked_sub(TAG_BYTES as usize);
    let payload_len = payload_len.ok_or_else(|| corrupt(what, "it ends before its tag"))?;
    let payload = fields.take(payload_len)?;
    let tag = fields.array()?;
    Ok((associated_data(pack, offset, head), payload, tag))
}

fn associated_data(pack: &PackId, offset: u32, head: [u8; 8]) -> [u8; ASSOCIATED_BYTES] {
    let mut out = [0; ASSOCIATED_BYTES];
    out[..32].copy_from_slice(pack.as_bytes());
    out[32..40].copy_from_slice(&u64::from(offset).to_le_bytes());
    out[40..].copy_from_slice(&head);
    out
}

/// Seals a payload at its place. The place must not have been used before.
pub(crate) fn seal_entry(
    key: &PackKey,
    offset: u32,
    header: EntryHeader,
    payload: &[u8],
) -> Result<Bytes> {
    let head = header.encode();
    let mut out = Vec::with_capacity(payload.len() + ENTRY_OVERHEAD_BYTES as usize);
    out.put(&head);
    out.put(payload);
    let associated = associated_data(key.pack(), offset, head);
    let sealed = &mut out[ENTRY_HEADER_BYTES as usize..];
    let tag = key.seal_key().seal(u64::from(offset), &associated, sealed)?;
    out.put(&tag);
    Ok(out.into())
}

/// What the first bytes of a pack say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackHeader {
    /// Its id.
    pub pack: PackId,
    /// What it holds.
    pub kind: PackKind,
    /// How it is sealed.
    pub encryption: Encryption,
    /// Whose it is.
    pub repository_id: RepositoryId,
}

impl PackHeader {
    /// The first bytes of a pack.
    pub(crate) fn encode(&self) -> [u8; PACK_HEADER_BYTES as usize] {
        let mut out = [0; PACK_HEADER_BYTES as usize];
        out[..8].copy_from_slice(&MAGIC_PACK);
        out[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[10] = self.kind.byte();
        out[11] = self.encryption.seal_byte();
        // 12..16: key epoch 0
        out[16..48].copy_from_slice(self.pack.as_bytes());
        out[48..].copy_from_slice(self.repository_id.as_bytes());
        out
    }

    /// Refuses a pack of another repository, sealing or name than it was fetched for.
    pub fn check(&self, keys: &Keys, repository: &RepositoryId, pack: &PackId) -> Result<()> {
        let what = format!("pack {pack}");
        if self.repository_id != *repository {
            return Err(corrupt(what, "it is of another repository"));
        }
        if self.pack != *pack {
            return Err(corrupt(what, format!("it is pack {}", self.pack)));
        }
        if self.encryption != keys.encryption() {
            return Err(corrupt(what, "its seal is not that of the repository"));
        }
        Ok(())
    }
}

/// Reads the header of a pack; `bytes` begins with it.
pub fn decode_pack_header(bytes: &[u8]) -> Result<PackHeader> {
    let what = "header of a pack";
    let head = bytes.get(..PACK_HEADER_BYTES as usize).unwrap_or(bytes);
    let mut fields = Fields::new(head, what);
    if fields.array::<8>()? != MAGIC_PACK {
        return Err(corrupt(what, "its first bytes are not those of a pack"));
    }
    check_version(what, fields.u16()?)?;
    let kind = PackKind::from_byte(fields.u8()?);
    let kind = kind.ok_or_else(|| unsupported(what, "its kind is unknown"))?;
    let encryption = Encryption::from_seal_byte(fields.u8()?);
    let encryption = encryption.ok_or_else(|| unsupported(what, "its seal is unknown"))?;
    check_epoch(what, fields.u32()?)?;
    let pack = PackId::from_bytes(fields.array()?);
    let repository_id = RepositoryId::from_bytes(fields.array()?);
    fields.finish()?;
    Ok(PackHeader { pack, kind, encryption, repository_id })
}

/// What the last bytes of a pack say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackTrailer {
    /// Where the directory begins.
    pub directory_offset: u32,
    /// Bytes of the directory as stored.
    pub directory_len: u32,
    /// How many entries there are.
    pub entries: u32,
    /// Bytes of the whole pack.
    pub pack_len: u32,
    /// See [`PackHasher`].
    pub hash: [u8; PACK_HASH_BYTES],
}

impl PackTrailer {
    /// All but the hash and what follows it.
    pub(crate) fn encode_hashed(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PACK_TRAILER_BYTES as usize);
        out.put_u32(self.directory_offset);
        out.put_u32(self.directory_len);
        out.put_u32(self.entries);
        out.put_u32(0);
        out.put_u64(u64::from(self.pack_len));
        out.put(&MAGIC_PACK_END);
        out
    }
}

/// Reads the trailer: `bytes` ends with it.
pub fn decode_pack_trailer(bytes: &[u8]) -> Result<PackTrailer> {
    let what = "trailer of a pack";
    let start = bytes.len().saturating_sub(PACK_TRAILER_BYTES as usize);
    let mut fields = Fields::new(&bytes[start..], what);
    let directory_offset = fields.u32()?;
    let directory_len = fields.u32()?;
    let entries = fields.u32()?;
    if fields.u32()? != 0 {
        return Err(corrupt(what, "a reserved byte is not zero"));
    }
    let pack_len = u32::try_from(fields.u64()?).map_err(|_| corrupt(what, "it is too long"))?;
    if fields.array::<8>()? != MAGIC_PACK_END {
        return Err(corrupt(what, "its magic is not that of a pack's end"));
    }
    let hash = fields.array()?;
    if fields.array::<{ PACK_END_BYTES - PACK_HASH_BYTES }>()?.iter().any(|b| *b != 0) {
        return Err(corrupt(what, "a reserved byte is not zero"));
    }
    fields.finish()?;
    let end = u64::from(directory_offset) + u64::from(directory_len);
    if directory_offset < PACK_HEADER_BYTES
        || directory_len < ENTRY_OVERHEAD_BYTES + 4
        || end + u64::from(PACK_TRAILER_BYTES) != u64::from(pack_len)
        || !(1..=PACK_ENTRIES_MAX).contains(&entries)
    {
        return Err(corrupt(what, "its fields do not fit each other"));
    }
    Ok(PackTrailer { directory_offset, directory_len, entries, pack_len, hash })
}

/// What can be said of a pack without a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackSummary {
    /// Its first bytes.
    pub header: PackHeader,
    /// Its last bytes.
    pub trailer: PackTrailer,
}

/// Checks a whole pack without a key: header, trailer, hash.
pub fn check_pack(bytes: &[u8]) -> Result<PackSummary> {
    let header = decode_pack_header(bytes);
    let what = match &header {
        Ok(header) => format!("pack {}", header.pack),
        // what is unknown in it is newer, and not damaged, only with the right hash
        Err(_) => "a pack".to_owned(),
    };
    let trailer = decode_pack_trailer(bytes)?;
    if trailer.pack_len as usize != bytes.len() {
        let detail = format!("it has {} bytes instead of {}", bytes.len(), trailer.pack_len);
        return Err(corrupt(what, detail));
    }
    let mut hasher = PackHasher::new();
    hasher.update(&bytes[..bytes.len() - PACK_END_BYTES]);
    if hasher.finish() != trailer.hash {
        return Err(corrupt(what, "its hash is not that of its content"));
    }
    Ok(PackSummary { header: header?, trailer })
}

/// What the directory says of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// First byte of the entry in its pack.
    pub offset: u32,
    /// Bytes of the entry as stored.
    pub stored_len: u32,
    /// Chunk ids, or the page id.
    pub ids: Vec<[u8; 32]>,
}

/// Bytes of a stored directory of so many entries and ids.
pub(crate) fn directory_stored_len(entries: u32, ids: u32) -> u64 {
    u64::from(ENTRY_OVERHEAD_BYTES) + 4 + 10 * u64::from(entries) + 32 * u64::from(ids)
}

pub(crate) fn encode_directory(entries: &[DirectoryEntry]) -> Result<Vec<u8>> {
    let ids: usize = entries.iter().map(|e| e.ids.len()).sum();
    let mut out = Vec::with_capacity(4 + 10 * entries.len() + 32 * ids);
    let too_many = |_| bug("directory of a pack", "it has too many entries");
    out.put_u32(u32::try_from(entries.len()).map_err(too_many)?);
    for entry in entries {
        out.put_u32(entry.offset);
        out.put_u32(entry.stored_len);
        out.put_u16(u16::try_from(entry.ids.len()).map_err(too_many)?);
        entry.ids.iter().for_each(|id| out.put(id));
    }
    Ok(out)
}

/// Reads the plaintext of a directory. The entries must fill the pack from its header to its
/// directory without a gap.
pub fn decode_directory(
    plain: &[u8],
    kind: PackKind,
    trailer: &PackTrailer,
) -> Result<Vec<DirectoryEntry>> {
    let what = "directory of a pack";
    let mut fields = Fields::new(plain, what);
    let count = fields.count(10 + 32)?;
    if count != trailer.entries as usize {
        let detail = format!("it has {count} entries, the trailer says {}", trailer.entries);
        return Err(corrupt(what, detail));
    }
    let mut entries = Vec::with_capacity(count);
    let mut end = PACK_HEADER_BYTES;
    let mut id_count = 0;
    for number in 0..trailer.entries {
        let (offset, stored_len, ids) = (fields.u32()?, fields.u32()?, fields.u16()?);
        check_entry(what, number, offset, stored_len)?;
        let ids_max = if kind == PackKind::Pages { 1 } else { ENTRY_CHUNKS_MAX };
        id_count += u32::from(ids);
        if offset != end || !(1..=ids_max).contains(&ids) || id_count > PACK_CHUNKS_MAX {
            return Err(corrupt(what, format!("its entry {number} is impossible")));
        }
        end = offset + stored_len; // within a pack: check_entry
        let (ids, rest) = fields.take(usize::from(ids) * 32)?.as_chunks::<32>();
        debug_assert!(rest.is_empty());
        entries.push(DirectoryEntry { offset, stored_len, ids: ids.to_vec() });
    }
    fields.finish()?;
    if end != trailer.directory_offset {
        return Err(corrupt(what, format!("its entries end at {end}, not where it begins")));
    }
    Ok(entries)
}
