//! Sealing and opening entries: compression and encryption between plaintext and packs.
//!
//! A [`Sealer`] or [`Opener`] belongs to one thread and keeps its codec contexts and scratch
//! buffers, so that an entry costs one allocation, its own bytes. Compression comes first and the
//! place afterwards: a place is only taken for an entry whose length is known, and nothing can fail
//! between taking it and filling it.

mod compressible;

use crate::error::{Error, ErrorKind, Result};
use crate::format::location::ENTRY_OVERHEAD_BYTES;
use crate::format::{bug, corrupt};
use crate::ids::{ChunkId, PackId, PageId};
use crate::keys::{Encryption, Keys, PackKey};
use crate::limits::{ENTRY_CHUNKS_MAX, ENTRY_PLAIN_BYTES_MAX, PAGE_PLAIN_BYTES_MAX};
use crate::pack::{
    ClosedPack, Codec, DirectoryEntry, Entry, EntryHeader, EntryKind, PackAllocator, PackHeader,
    PackKind, PackTrailer, Place, Reservation, decode_directory, entry_parts, seal_entry,
    split_entry,
};
use crate::units::Location;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zstd::bulk::{Compressor, Decompressor};

/// How new entries are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// zstd at this level; negative ones are faster.
    Zstd(i32),
}

/// A sealed entry at its place.
#[derive(Debug)]
pub struct SealedEntry {
    /// Where it stands.
    pub place: Place,
    /// The whole entry as stored.
    pub bytes: Bytes,
    /// Bytes of its plaintext.
    pub plain_len: u32,
    /// Chunk ids, or the page id.
    pub ids: Vec<[u8; 32]>,
    /// Its pack, if it ends with this entry. The collector looks at it.
    pub closes: Option<ClosedPack>,
}

impl SealedEntry {
    /// Of chunk `index` in it.
    pub fn location(&self, index: u16) -> Location {
        let Place { pack, entry, offset } = self.place;
        // an entry is far shorter than 4 GiB: `PackAllocator::reserve`
        let stored_len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        Location { pack, entry, offset, stored_len, index }
    }
}

/// Seals entries; one for each thread.
pub struct Sealer {
    compression: Compression,
    encoder: Compressor<'static>,
    /// Chunks that do not lie side by side.
    gathered: Vec<u8>,
    /// What the codec made.
    packed: Vec<u8>,
    sample: compressible::Sample,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("compression", &self.compression).finish_non_exhaustive()
    }
}

impl Sealer {
    /// With its own codec context.
    pub fn new(compression: Compression) -> Result<Self> {
        let mut sealer = Self {
            compression: Compression::None,
            encoder: Compressor::new(1).map_err(codec_failed)?,
            gathered: Vec::new(),
            packed: Vec::new(),
            sample: compressible::Sample::default(),
        };
        sealer.set_compression(compression)?;
        Ok(sealer)
    }

    /// For the entries from now on.
    pub fn set_compression(&mut self, compression: Compression) -> Result<()> {
        if compression == self.compression {
            return Ok(());
        }
        if let Compression::Zstd(level) = compression {
            self.encoder.set_compression_level(level).map_err(codec_failed)?;
        }
        self.compression = compression;
        Ok(())
    }

    /// Seals chunks of one read unit into one entry: `chunks` are their byte ranges in `unit`,
    /// ascending, all of the chunk size but for the last, which may be shorter; `ids` are their
    /// ids. Chunks that lie side by side are compressed from where they are.
    pub fn seal_chunks(
        &mut self,
        alloc: &PackAllocator,
        unit: &[u8],
        chunks: &[Range<usize>],
        ids: &[ChunkId],
    ) -> Result<SealedEntry> {
        check_chunks(alloc, unit.len(), chunks, ids)?;
        let ids = ids.iter().map(|id| *id.as_bytes()).collect();
        let adjacent = chunks.windows(2).all(|w| w[0].end == w[1].start);
        if let (true, Some(first), Some(last)) = (adjacent, chunks.first(), chunks.last()) {
            return self.seal(alloc, EntryKind::Chunks, &unit[first.start..last.end], ids);
        }
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.clear();
        chunks.iter().for_each(|chunk| gathered.extend_from_slice(&unit[chunk.clone()]));
        let sealed = self.seal(alloc, EntryKind::Chunks, &gathered, ids);
        self.gathered = gathered;
        sealed
    }

    /// Seals one map page.
    pub fn seal_page(
        &mut self,
        alloc: &PackAllocator,
        plain: &[u8],
        id: PageId,
    ) -> Result<SealedEntry> {
        if alloc.kind() != PackKind::Pages
            || plain.is_empty()
            || plain.len() > PAGE_PLAIN_BYTES_MAX as usize
        {
            return Err(bug("entry of a map page", format!("{} bytes", plain.len())));
        }
        self.seal(alloc, EntryKind::Page, plain, vec![*id.as_bytes()])
    }

    fn seal(
        &mut self,
        alloc: &PackAllocator,
        kind: EntryKind,
        plain: &[u8],
        ids: Vec<[u8; 32]>,
    ) -> Result<SealedEntry> {
        let too_much = |_| bug("entry", "it is beyond its limits");
        let (codec, payload) = match self.compress(plain)? {
            Some(packed) => (Codec::Zstd, packed),
            None => (Codec::Raw, plain),
        };
        let count = u16::try_from(ids.len()).map_err(too_much)?;
        let plain_len = u32::try_from(plain.len()).map_err(too_much)?;
        let payload_len = u32::try_from(payload.len()).map_err(too_much)?;
        let header = EntryHeader { codec, kind, count, plain_len };
        let Reservation { place, key, closes } =
            alloc.reserve(payload_len + ENTRY_OVERHEAD_BYTES, count)?;
        let bytes = seal_entry(&key, place.offset, header, payload)?;
        Ok(SealedEntry { place, bytes, plain_len, ids, closes })
    }

    /// Whether compressing is worth a try, found out from a sample.
    pub(crate) fn is_worth_trying(&mut self, plain: &[u8]) -> Result<bool> {
        compressible::is_worth_trying(&mut self.encoder, &mut self.sample, plain)
            .map_err(codec_failed)
    }

    /// What so much would be stored as, without the seal around it: for who wants to know before.
    pub fn packed_len(&mut self, plain: &[u8]) -> Result<u64> {
        let packed = self.compress(plain)?.map(<[u8]>::len);
        Ok(packed.unwrap_or(plain.len()) as u64)
    }

    /// The compressed bytes, if they are worth it: at least 1/16 shorter.
    fn compress(&mut self, plain: &[u8]) -> Result<Option<&[u8]>> {
        if self.compression == Compression::None {
            return Ok(None);
        }
        if !self.is_worth_trying(plain)? {
            return Ok(None);
        }
        self.packed.clear();
        self.packed.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        let len = self.encoder.compress_to_buffer(plain, &mut self.packed).map_err(codec_failed)?;
        let worth = len <= plain.len() - plain.len().div_ceil(16);
        Ok(worth.then_some(&self.packed[..len]))
    }
}

/// Our own mistakes, found before they are stored.
fn check_chunks(
    alloc: &PackAllocator,
    unit_len: usize,
    chunks: &[Range<usize>],
    ids: &[ChunkId],
) -> Result<()> {
    let fail = |why: &str| Err(bug("entry of chunks", why));
    if alloc.kind() != PackKind::Chunks {
        return fail("its pack is for map pages");
    }
    if chunks.is_empty()
        || chunks.len() != ids.len()
        || chunks.len() > usize::from(ENTRY_CHUNKS_MAX)
    {
        return fail("it has no chunks, too many of them, or not as many ids");
    }
    let full = chunks[0].len();
    let mut end = 0;
    for (i, chunk) in chunks.iter().enumerate() {
        let last = i + 1 == chunks.len();
        let fits = chunk.len() == full || (last && !chunk.is_empty() && chunk.len() < full);
        if chunk.start < end || chunk.end > unit_len || chunk.is_empty() || !fits {
            return fail("its chunks are not ascending, or not of one size");
        }
        end = chunk.end;
    }
    if full > ENTRY_PLAIN_BYTES_MAX as usize / chunks.len() {
        return fail("it is too long");
    }
    Ok(())
}

fn codec_failed(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Bug, "compress an entry", "zstd failed").caused_by(e)
}

/// Opens entries; one for each thread.
pub struct Opener {
    keys: Arc<Keys>,
    decoder: Decompressor<'static>,
    /// What was decrypted and is still compressed.
    packed: Vec<u8>,
    /// Neighbours are mostly of one pack, and a key schedule costs about a microsecond.
    key: Option<PackKey>,
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").finish_non_exhaustive()
    }
}

impl Opener {
    /// With its own codec context.
    pub fn new(keys: Arc<Keys>) -> Result<Self> {
        let decoder = Decompressor::new().map_err(codec_failed)?;
        Ok(Self { keys, decoder, packed: Vec::new(), key: None })
    }

    /// Opens a stored entry of `kind` that stands at `offset` of `pack`; `out` becomes its
    /// plaintext.
    pub fn open_entry(
        &mut self,
        kind: EntryKind,
        pack: &PackId,
        offset: u32,
        stored: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<EntryHeader> {
        let what = name(pack, offset);
        let entry = self.split(&what, kind, pack, offset, stored)?;
        let len = entry.header.plain_len as usize;
        match entry.header.codec {
            Codec::Raw => {
                // its length is that of the stored bytes, so this is bounded; what stood there
                // before need not be wiped
                out.resize(len, 0);
                self.open_raw(&what, &entry, pack, offset, out)?;
            }
            Codec::Zstd => {
                let (decoder, packed) = self.open_packed(&what, &entry, pack, offset)?;
                out.clear();
                out.reserve_exact(len); // at most ENTRY_PLAIN_BYTES_MAX: split_entry
                unpacked(&what, len, decoder.decompress_to_buffer(packed, out))?;
            }
        }
        Ok(entry.header)
    }

    /// The same into a buffer that is exactly as long as the plaintext.
    pub fn open_into(
        &mut self,
        kind: EntryKind,
        pack: &PackId,
        offset: u32,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<EntryHeader> {
        let what = name(pack, offset);
        let entry = self.split(&what, kind, pack, offset, stored)?;
        let len = entry.header.plain_len as usize;
        if len != out.len() {
            return Err(corrupt(what, format!("it has {len} bytes instead of {}", out.len())));
        }
        match entry.header.codec {
            Codec::Raw => self.open_raw(&what, &entry, pack, offset, out)?,
            Codec::Zstd => {
                let (decoder, packed) = self.open_packed(&what, &entry, pack, offset)?;
                unpacked(&what, len, decoder.decompress_to_buffer(packed, out))?;
            }
        }
        Ok(entry.header)
    }

    /// Opens the directory of a pack: `stored` is the range that the trailer names. Header and
    /// trailer must have been checked.
    pub fn open_directory(
        &mut self,
        header: &PackHeader,
        trailer: &PackTrailer,
        stored: &[u8],
    ) -> Result<Vec<DirectoryEntry>> {
        let mut plain = Vec::new();
        let (pack, offset) = (&header.pack, trailer.directory_offset);
        self.open_entry(EntryKind::Directory, pack, offset, stored, &mut plain)?;
        decode_directory(&plain, header.kind, trailer)
            .map_err(|e| e.within(format!("read pack {pack}")))
    }

    /// Takes an entry apart. What its header names and is unknown here is damage, unless its tag
    /// vouches for it.
    fn split<'s>(
        &mut self,
        what: &str,
        kind: EntryKind,
        pack: &PackId,
        offset: u32,
        stored: &'s [u8],
    ) -> Result<Entry<'s>> {
        match split_entry(what, kind, pack, offset, stored) {
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                let (associated, payload, tag) = entry_parts(what, pack, offset, stored)?;
                let key = self.key_of(pack);
                let key = key.seal_key();
                self.packed.resize(payload.len(), 0);
                let packed = self.packed.as_mut_slice();
                let opened = key.open_into(u64::from(offset), &associated, payload, &tag, packed);
                Err(if opened.is_ok() { e } else { bad_tag(what) })
            }
            split => split,
        }
    }

    fn open_raw(
        &mut self,
        what: &str,
        entry: &Entry<'_>,
        pack: &PackId,
        offset: u32,
        out: &mut [u8],
    ) -> Result<()> {
        let key = self.key_of(pack);
        key.seal_key()
            .open_into(u64::from(offset), &entry.associated, entry.payload, &entry.tag, out)
            .map_err(|_| bad_tag(what))
    }

    /// The authenticated payload, still compressed, and the decoder for it.
    fn open_packed<'a>(
        &'a mut self,
        what: &str,
        entry: &Entry<'a>,
        pack: &PackId,
        offset: u32,
    ) -> Result<(&'a mut Decompressor<'static>, &'a [u8])> {
        let key = self.key_of(pack);
        let key = key.seal_key();
        let Entry { payload, tag, associated, .. } = entry;
        let packed = match key.encryption() {
            Encryption::None => {
                key.check(associated, payload, tag).map_err(|_| bad_tag(what))?;
                *payload
            }
            Encryption::Aes256Gcm => {
                self.packed.resize(payload.len(), 0);
                key.open_into(u64::from(offset), associated, payload, tag, &mut self.packed)
                    .map_err(|_| bad_tag(what))?;
                self.packed.as_slice()
            }
        };
        // the decoder would take several frames for one stream
        if zstd::zstd_safe::find_frame_compressed_size(packed) != Ok(packed.len()) {
            return Err(corrupt(what, "its payload is not one zstd frame"));
        }
        Ok((&mut self.decoder, packed))
    }

    fn key_of(&mut self, pack: &PackId) -> PackKey {
        match &self.key {
            Some(key) if key.pack() == pack => key.clone(),
            _ => self.key.insert(self.keys.pack_key(pack)).clone(),
        }
    }
}

fn name(pack: &PackId, offset: u32) -> String {
    format!("entry at {offset} of pack {pack}")
}

fn bad_tag(what: &str) -> Error {
    corrupt(what, "its authentication tag does not fit: damaged, or not written for this place")
}

fn unpacked(what: &str, want: usize, found: std::io::Result<usize>) -> Result<()> {
    match found {
        Ok(len) if len == want => Ok(()),
        Ok(len) => Err(corrupt(what, format!("it unpacks to {len} bytes instead of {want}"))),
        Err(e) => Err(corrupt(what, "its payload does not unpack").caused_by(e)),
    }
}

#[cfg(test)]
mod tests;
