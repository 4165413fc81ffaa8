//! Copies what lives of mostly dead packs into new packs, so that the old ones can go.
//!
//! The old packs are only read. Where each live chunk or page went is a relocation of the condemned
//! list; until a verdict is there both copies are kept by whoever marks, and after it a forwarding
//! stub leads from the old place to the new one. So pages that name the old place stay as they are.
//!
//! Every chunk and page is checked against its id before it is copied: damage is not spread. A pack
//! of which anything cannot be read is left as it is. An entry may be split: its live chunks become
//! an entry of their own. What lives of many packs comes together in few, chunks and pages apart.
//!
//! Memory: two packs that are being filled, and some reads.

use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{EntryAddr, Fetched, PackFrame, plan_reads, read_frame, read_range};
use crate::format::corrupt;
use crate::format::names::pack_key;
use crate::format::page::Page;
use crate::format::stub::{OldPlace, Stub};
use crate::ids::{ChunkId, PackId, PageId};
use crate::limits::ENTRY_PLAIN_BYTES_MAX;
use crate::map::{LivePack, LiveSet};
use crate::pack::{DirectoryEntry, EntryHeader, EntryKind, PackAllocator, PackBuilder, PackKind};
use crate::repository::Repository;
use crate::seal::{Compression, Opener, SealedEntry, Sealer};
use crate::units::Location;
use futures::{StreamExt, stream};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// New packs of each kind end with the entry that reaches this.
const PACK_BYTES: u32 = 8 << 20;
const GAP_BYTES: u32 = 128 << 10;
const READ_BYTES_MAX: u32 = 2 << 20;
const READS_IN_FLIGHT: usize = 4;
/// What was stored fast is stored a little smaller the second time.
const COMPRESSION: Compression = Compression::Zstd(3);

/// What was copied.
#[derive(Debug, Default)]
pub(super) struct Rewritten {
    /// One for each old pack.
    pub(super) stubs: Vec<Stub>,
    /// Bytes of the new packs.
    pub(super) stored_bytes: u64,
}

/// Step 4 of condemning. Packs that are gone meanwhile, or cannot be read whole, are left out.
pub(super) async fn rewrite(
    repo: &Arc<Repository>,
    packs: &[(PackId, u64)],
    live: &LiveSet,
) -> Result<Rewritten> {
    let mut copier = Copier::new(repo)?;
    for (pack, size_bytes) in packs {
        let Some(of_pack) = live.pack(pack) else { continue };
        match copier.copy(pack, *size_bytes, of_pack).await {
            Ok(places) => copier.done.stubs.push(Stub::new(*pack, places)?),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                tracing::warn!("a mostly dead pack stays as it is: {e}");
            }
            Err(e) => return Err(e),
        }
    }
    copier.finish().await
}

struct Copier<'a> {
    repo: &'a Arc<Repository>,
    opener: Opener,
    sealer: Sealer,
    chunks: Filling,
    pages: Filling,
    plain: Vec<u8>,
    done: Rewritten,
}

/// New packs of one kind.
struct Filling {
    places: PackAllocator,
    packs: PackBuilder,
}

impl Filling {
    fn new(repo: &Repository, kind: PackKind) -> Self {
        Self {
            places: PackAllocator::new(Arc::clone(repo.keys()), kind, PACK_BYTES),
            packs: PackBuilder::new(Arc::clone(repo.keys()), *repo.id(), kind),
        }
    }
}

impl<'a> Copier<'a> {
    fn new(repo: &'a Arc<Repository>) -> Result<Self> {
        Ok(Self {
            repo,
            opener: Opener::new(Arc::clone(repo.keys()))?,
            sealer: Sealer::new(COMPRESSION)?,
            chunks: Filling::new(repo, PackKind::Chunks),
            pages: Filling::new(repo, PackKind::Pages),
            plain: Vec::new(),
            done: Rewritten::default(),
        })
    }

    /// Copies all that lives of a pack; gives where each of it went.
    async fn copy(
        &mut self,
        pack: &PackId,
        size_bytes: u64,
        live: &LivePack,
    ) -> Result<Vec<(OldPlace, Location)>> {
        let PackFrame { header, directory, .. } =
            read_frame(self.repo, &mut self.opener, pack, size_bytes).await?;
        let kind = header.kind;
        let mut wanted: BTreeMap<u32, Vec<u16>> = BTreeMap::new();
        for (entry, index) in live.iter() {
            wanted.entry(entry).or_default().push(index);
        }
        let mut addrs = Vec::with_capacity(wanted.len());
        for entry in wanted.keys() {
            let found = entry_of(pack, &directory, *entry)?;
            let (offset, stored_len) = (found.offset, found.stored_len);
            let addr = EntryAddr { pack: *pack, entry: *entry, offset, stored_len };
            addr.check(ENTRY_PLAIN_BYTES_MAX)?;
            addrs.push(addr);
        }
        let repo = self.repo;
        let mut reads = stream::iter(plan_reads(addrs, GAP_BYTES, READ_BYTES_MAX))
            .map(|read| async move {
                let fetched = read_range(repo, &read).await;
                (read, fetched)
            })
            .buffered(READS_IN_FLIGHT);
        let mut moved = Vec::new();
        while let Some((read, fetched)) = reads.next().await {
            let Fetched::Data(data) = fetched? else { return Err(gone(pack)) };
            for addr in &read.entries {
                let stored = read.entry_bytes(&data, addr)?;
                let ids = &entry_of(pack, &directory, addr.entry)?.ids;
                let indexes = wanted.get(&addr.entry).map_or(&[][..], Vec::as_slice);
                let sealed = self.copy_entry(kind, addr, &stored, ids, indexes)?;
                for (index, to) in indexes.iter().zip(0..) {
                    moved.push(((addr.entry, *index), sealed.location(to)));
                }
                self.add(kind, sealed).await?;
            }
        }
        Ok(moved)
    }

    /// Opens an entry, checks what lives of it, and seals that anew.
    fn copy_entry(
        &mut self,
        kind: PackKind,
        addr: &EntryAddr,
        stored: &[u8],
        ids: &[[u8; 32]],
        indexes: &[u16],
    ) -> Result<SealedEntry> {
        let Self { repo, opener, sealer, chunks, pages, plain, .. } = self;
        let what = || format!("entry {} of pack {}", addr.entry, addr.pack);
        let header = opener.open_entry(kind.entries(), &addr.pack, addr.offset, stored, plain)?;
        let id_of = |index: u16| {
            ids.get(usize::from(index)).ok_or_else(|| corrupt(what(), "its pack lists less of it"))
        };
        if header.kind == EntryKind::Page {
            let id = PageId::from_bytes(*id_of(0)?);
            let page = Page::decode(plain, repo.params().page_fanout)?;
            if indexes != [0] || page.id(repo.keys()) != id {
                return Err(corrupt(what(), "it is not the page that its pack lists"));
            }
            return sealer.seal_page(&pages.places, plain, id);
        }
        let mut ranges = Vec::with_capacity(indexes.len());
        let mut chunk_ids = Vec::with_capacity(indexes.len());
        for index in indexes {
            let range = chunk_range(repo, &header, *index)?;
            let id = ChunkId::from_bytes(*id_of(*index)?);
            if repo.keys().chunk_id(&plain[range.clone()]) != id {
                return Err(corrupt(what(), format!("chunk {index} does not have its id")));
            }
            ranges.push(range);
            chunk_ids.push(id);
        }
        sealer.seal_chunks(&chunks.places, plain, &ranges, &chunk_ids)
    }

    async fn add(&mut self, kind: PackKind, sealed: SealedEntry) -> Result<()> {
        let filling = self.filling(kind);
        filling.packs.add(sealed)?;
        self.put_finished(kind).await
    }

    fn filling(&mut self, kind: PackKind) -> &mut Filling {
        match kind {
            PackKind::Chunks => &mut self.chunks,
            PackKind::Pages => &mut self.pages,
        }
    }

    async fn put_finished(&mut self, kind: PackKind) -> Result<()> {
        while let Some(pack) = self.filling(kind).packs.take_finished() {
            self.repo.put_pack(&pack).await?;
            self.done.stored_bytes += u64::from(pack.len);
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Rewritten> {
        for kind in [PackKind::Chunks, PackKind::Pages] {
            let filling = self.filling(kind);
            if let Some(closed) = filling.places.close() {
                filling.packs.close(closed)?;
            }
            self.put_finished(kind).await?;
        }
        Ok(self.done)
    }
}

fn entry_of<'d>(
    pack: &PackId,
    directory: &'d [DirectoryEntry],
    entry: u32,
) -> Result<&'d DirectoryEntry> {
    directory.get(entry as usize).ok_or_else(|| {
        let detail = format!("a backup refers to entry {entry}, and it has {}", directory.len());
        corrupt(format!("pack {pack}"), detail)
    })
}

fn chunk_range(repo: &Repository, header: &EntryHeader, index: u16) -> Result<Range<usize>> {
    header.chunk(index, repo.params().chunk)
}

fn gone(pack: &PackId) -> Error {
    Error::new(ErrorKind::NotFound, format!("read {}", pack_key(pack)), "it is gone")
}
