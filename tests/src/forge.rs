//! Makes backups that no writer makes: every seal is right, and what stands in them is not.

use chunkstore::{
    BackupId, ChunkId, ChunkRef, Compression, Location, Manifest, PackAllocator, PackBuilder,
    PackKind, Repository, Sealer,
    format::{ManifestRecord, MapRoot, Page},
    ids::PageId,
    seal::SealedEntry,
    units::PageRef,
};
use std::sync::Arc;

const PACK_BYTES: u32 = 1 << 20;
const STORED: &str = "it can be stored";

/// See the module.
#[derive(Debug)]
pub struct Forge {
    repo: Arc<Repository>,
}

impl Forge {
    /// In this repository.
    pub fn new(repo: Arc<Repository>) -> Self {
        Self { repo }
    }

    /// Stores an entry of these chunks, whatever their lengths, in a pack of its own. An id may be
    /// another than that of its chunk.
    pub async fn entry(&self, chunks: &[(Vec<u8>, Option<ChunkId>)]) -> Vec<ChunkRef> {
        let keys = self.repo.keys();
        let (mut unit, mut ranges, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for (bytes, id) in chunks {
            ranges.push(unit.len()..unit.len() + bytes.len());
            unit.extend_from_slice(bytes);
            ids.push(id.unwrap_or_else(|| keys.chunk_id(bytes)));
        }
        let alloc = PackAllocator::new(Arc::clone(keys), PackKind::Chunks, PACK_BYTES);
        let mut sealer = Sealer::new(Compression::None).expect(STORED);
        let sealed = sealer.seal_chunks(&alloc, &unit, &ranges, &ids).expect(STORED);
        let at = (0..).map(|index| sealed.location(index));
        let refs = ids.iter().zip(at).map(|(id, location)| ChunkRef { id: *id, location });
        let refs = refs.collect();
        self.put(&alloc, PackKind::Chunks, sealed).await;
        refs
    }

    /// Stores a page in a pack of its own; `id` in the place of its own.
    pub async fn page(&self, page: &Page, id: Option<PageId>) -> PageRef {
        let keys = self.repo.keys();
        let id = id.unwrap_or_else(|| page.id(keys));
        let alloc = PackAllocator::new(Arc::clone(keys), PackKind::Pages, PACK_BYTES);
        let mut sealer = Sealer::new(Compression::None).expect(STORED);
        let sealed = sealer.seal_page(&alloc, &page.encode().expect(STORED), id).expect(STORED);
        let location = sealed.location(0);
        self.put(&alloc, PackKind::Pages, sealed).await;
        PageRef { id, location }
    }

    async fn put(&self, alloc: &PackAllocator, kind: PackKind, sealed: SealedEntry) {
        let mut collector = PackBuilder::new(Arc::clone(self.repo.keys()), *self.repo.id(), kind);
        collector.add(sealed).expect(STORED);
        if let Some(closed) = alloc.close() {
            collector.close(closed).expect(STORED);
        }
        while let Some(pack) = collector.take_finished() {
            self.repo.put_pack(&pack).await.expect(STORED);
        }
    }

    /// The leaves of a map over these chunks.
    pub async fn leaves(&self, chunks: &[Option<ChunkRef>]) -> Vec<Option<PageRef>> {
        let fanout = usize::from(self.repo.params().page_fanout);
        let mut leaves = Vec::new();
        for chunks in chunks.chunks(fanout) {
            let page = Page::new(0, chunks.iter().map(|c| c.map(Into::into)).collect());
            leaves.push(if page.is_zero() { None } else { Some(self.page(&page, None).await) });
        }
        leaves
    }

    /// A map of two levels over these leaves.
    pub async fn root(&self, leaves: &[Option<PageRef>]) -> MapRoot {
        let page = Page::new(1, leaves.iter().map(|c| c.map(Into::into)).collect());
        MapRoot { depth: 2, root: Some(self.page(&page, None).await) }
    }

    /// Commits a backup like `template`, with this map.
    pub async fn commit(&self, template: &Manifest, id: &str, map: MapRoot, size_bytes: u64) {
        let mut manifest = template.clone();
        manifest.backup_id = BackupId::new(id).expect("an id");
        manifest.snapshot.id = Some(id.to_owned());
        (manifest.map, manifest.size_bytes) = (map, size_bytes);
        let key = manifest.object_key();
        let record = ManifestRecord::Backup(Box::new(manifest));
        let bytes = record.encode(self.repo.keys(), self.repo.id(), &key).expect(STORED);
        self.repo.store().put(&key, bytes).await.expect(STORED);
    }
}

/// The same reference to another place.
pub fn at(chunk: ChunkRef, location: Location) -> ChunkRef {
    ChunkRef { location, ..chunk }
}
