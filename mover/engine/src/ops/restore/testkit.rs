//! Small backups made of a model, with chunkstore's own parts: what the tests of reading code start
//! from.

use async_trait::async_trait;
use chunkstore::testkit::{Answer, Hook, HookedStore, Request, Verb};
use chunkstore::{
    BackupId, ChunkId, ChunkNo, ChunkRef, ChunkSize, Compression, Encryption, Geometry,
    InitOptions, KdfCost, Location, Manifest, MapBuilder, Opener, PackAllocator, PackBuilder,
    PackKind, Repository, Sealer, Store, VolumeName,
    format::names::{pack_key, parse_pack_key, stub_key},
    format::{
        BackupStats, ChangeKind, ManifestRecord, SegmentRecord, SnapshotInfo, SourceInfo, Stub,
    },
    map::{Inherit, PageSink},
    pack::{EntryKind, decode_directory, decode_pack_trailer},
};
use futures::StreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;

/// A sparse volume: its stored chunks by number.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) size_bytes: u64,
    pub(crate) chunk_bytes: u32,
    pub(crate) chunks: BTreeMap<u64, Vec<u8>>,
}

impl Image {
    pub(crate) fn new(size_bytes: u64, chunk_bytes: u32) -> Self {
        Self { size_bytes, chunk_bytes, chunks: BTreeMap::new() }
    }

    /// Sets a chunk to bytes that depend on the seed; 0 makes it zero. Cut at the volume's end.
    pub(crate) fn set(&mut self, chunk: u64, seed: u64) {
        let len = self.geometry().len(ChunkNo(chunk)) as usize;
        if seed == 0 || len == 0 {
            self.chunks.remove(&chunk);
            return;
        }
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut bytes: Vec<u8> = (0..self.chunk_bytes / 8)
            .flat_map(|i| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                // half of it compresses
                (if i % 2 == 0 { state } else { seed }).to_le_bytes()
            })
            .collect();
        bytes.truncate(len);
        bytes[0] |= 1;
        self.chunks.insert(chunk, bytes);
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry::new(self.size_bytes, ChunkSize::new(self.chunk_bytes).unwrap()).unwrap()
    }

    /// All bytes; for small volumes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.size_bytes).unwrap()];
        for (no, chunk) in &self.chunks {
            let at = usize::try_from(self.geometry().offset(ChunkNo(*no))).unwrap();
            all[at..at + chunk.len()].copy_from_slice(chunk);
        }
        all
    }
}

/// A store that notes the key of each request, without the prefix.
#[derive(Debug)]
pub(crate) struct Recorder {
    log: Mutex<Vec<(&'static str, String)>>,
    /// Reads that still work; negative: all.
    reads_left: AtomicI64,
}

impl Recorder {
    /// After so many more reads each one fails.
    pub(crate) fn fail_after(&self, reads: Option<i64>) {
        self.reads_left.store(reads.unwrap_or(-1), Ordering::SeqCst);
    }

    fn read(&self) -> object_store::Result<()> {
        let one_less = |left: i64| (left > 0).then(|| left - 1);
        match self.reads_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
            Err(0) => Err(object_store::Error::Generic { store: "test", source: "a fault".into() }),
            _ => Ok(()),
        }
    }

    /// Requests since the last call.
    pub(crate) fn take(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

#[async_trait]
impl Hook for Recorder {
    async fn request(&self, request: Request) -> object_store::Result<Answer> {
        let what = match request.verb() {
            Verb::Create => Verb::Put,
            verb => verb,
        };
        if matches!(what, Verb::Put | Verb::Get | Verb::Head | Verb::List) {
            self.log.lock().unwrap().push((what.name(), request.path().to_string()));
        }
        if matches!(what, Verb::Get | Verb::Head) {
            self.read()?;
        }
        request.pass().await
    }
}

/// Shape of a test repository.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) chunk_bytes: u32,
    pub(crate) entry_chunks: u16,
    pub(crate) page_fanout: u16,
    pub(crate) encryption: Encryption,
    pub(crate) pack_bytes: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            chunk_bytes: 4096,
            entry_chunks: 8,
            page_fanout: 16,
            encryption: Encryption::None,
            pack_bytes: 100_000,
        }
    }
}

/// A repository in memory.
#[derive(Debug)]
pub(crate) struct Kit {
    pub(crate) rt: Runtime,
    pub(crate) store: Arc<HookedStore<Recorder>>,
    /// Behind the store: requests that nobody notes.
    objects: Arc<InMemory>,
    pub(crate) repo: Arc<Repository>,
    shape: Shape,
    known: Mutex<HashMap<ChunkId, Location>>,
}

impl Kit {
    pub(crate) fn new(shape: Shape) -> Self {
        let rt = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let recorder = Recorder { log: Mutex::default(), reads_left: AtomicI64::new(-1) };
        let objects = Arc::new(InMemory::new());
        let store = HookedStore::new(Arc::clone(&objects) as _, recorder);
        let options = InitOptions {
            chunk: ChunkSize::new(shape.chunk_bytes).unwrap(),
            entry_chunks: shape.entry_chunks,
            page_fanout: shape.page_fanout,
            encryption: shape.encryption,
            credential: (shape.encryption != Encryption::None)
                .then(|| chunkstore::Credential::from_key_file_bytes(&[7; 32]).unwrap()),
            label: "test".into(),
            kdf: KdfCost::default(),
            created_by: "test".into(),
        };
        let dynamic: Arc<dyn ObjectStore> = store.clone();
        let repo = Repository::init(Store::new(dynamic, Path::default(), "memory:"), options);
        let repo = rt.block_on(repo).unwrap();
        Self { rt, store, objects, repo, shape, known: Mutex::default() }
    }

    pub(crate) fn image(&self, size_bytes: u64) -> Image {
        Image::new(size_bytes, self.shape.chunk_bytes)
    }

    /// Stores a whole image, each distinct chunk once in the repository. Also stores a segment, as
    /// a backup does.
    pub(crate) fn backup(&self, volume: &str, id: &str, image: &Image) -> Manifest {
        let keys = self.repo.keys();
        let refs = self.store_chunks(image);
        let geometry = image.geometry();
        let fanout = self.shape.page_fanout;
        let mut builder =
            MapBuilder::new(Arc::clone(keys), fanout, geometry, Inherit::Nothing, None).unwrap();
        let mut sink =
            PageSink::new(keys, *self.repo.id(), Compression::None, self.shape.pack_bytes).unwrap();
        for (no, chunk) in refs {
            builder.set(&mut sink, ChunkNo(no), Some(chunk)).unwrap();
        }
        let map = builder.finish(&mut sink).unwrap();
        sink.close().unwrap();
        while let Some(pack) = sink.take_finished() {
            self.rt.block_on(self.repo.put_pack(&pack)).unwrap();
        }
        let now = chrono::Utc::now();
        let manifest = Manifest {
            volume: VolumeName::new(volume).unwrap(),
            backup_id: BackupId::new(id).unwrap(),
            attempt: 0,
            size_bytes: image.size_bytes,
            map,
            parent: None,
            snapshot: SnapshotInfo::default(),
            source: SourceInfo {
                path: "/dev/test".into(),
                kind: ChangeKind::Whole,
                origin: "none".into(),
                listed_bytes: 0,
                listed_extents: 0,
                identity: None,
            },
            started: now,
            finished: now,
            ordered: now,
            clock_offset_ms: None,
            stats: BackupStats::default(),
            tool: "test".into(),
            labels: BTreeMap::new(),
            degraded: Vec::new(),
            copied_from: None,
            attachments: Vec::new(),
        };
        let key = manifest.object_key();
        let record = ManifestRecord::Backup(Box::new(manifest.clone()));
        let bytes = record.encode(keys, self.repo.id(), &key).unwrap();
        self.rt.block_on(self.repo.store().put(&key, bytes::Bytes::from(bytes))).unwrap();
        self.store.take();
        manifest
    }

    /// What is stored from now on is stored again.
    pub(crate) fn forget_known(&self) {
        self.known.lock().unwrap().clear();
    }

    fn store_chunks(&self, image: &Image) -> BTreeMap<u64, ChunkRef> {
        let keys = self.repo.keys();
        let alloc = PackAllocator::new(Arc::clone(keys), PackKind::Chunks, self.shape.pack_bytes);
        let mut collector = PackBuilder::new(Arc::clone(keys), *self.repo.id(), PackKind::Chunks);
        let mut sealer = Sealer::new(Compression::Zstd(1)).unwrap();
        let mut known = self.known.lock().unwrap();
        let mut records = Vec::new();
        let chunks: Vec<(u64, &Vec<u8>)> = image.chunks.iter().map(|(no, c)| (*no, c)).collect();
        let mut refs = BTreeMap::new();
        for unit in chunks.chunks(usize::from(self.shape.entry_chunks)) {
            let (mut bytes, mut ranges, mut ids) = (Vec::new(), Vec::new(), Vec::new());
            for (_, chunk) in unit {
                let id = keys.chunk_id(chunk);
                if !known.contains_key(&id) && !ids.contains(&id) {
                    ranges.push(bytes.len()..bytes.len() + chunk.len());
                    bytes.extend_from_slice(chunk);
                    ids.push(id);
                }
            }
            if !ids.is_empty() {
                let sealed = sealer.seal_chunks(&alloc, &bytes, &ranges, &ids).unwrap();
                for (index, id) in (0..).zip(&ids) {
                    known.insert(*id, sealed.location(index));
                    records.push(SegmentRecord { id: *id, location: sealed.location(index) });
                }
                collector.add(sealed).unwrap();
            }
            for (no, chunk) in unit {
                let id = keys.chunk_id(chunk);
                refs.insert(*no, ChunkRef { id, location: known[&id] });
            }
        }
        if let Some(closed) = alloc.close() {
            collector.close(closed).unwrap();
        }
        while let Some(pack) = collector.take_finished() {
            self.rt.block_on(self.repo.put_pack(&pack)).unwrap();
        }
        if !records.is_empty() {
            self.rt.block_on(self.repo.put_segment(records)).unwrap();
        }
        refs
    }

    /// Keys below a prefix.
    pub(crate) fn keys_of(&self, prefix: &str) -> Vec<String> {
        let listed = self.objects.list(Some(&Path::from(prefix)));
        self.rt.block_on(listed.map(|o| o.unwrap().location.to_string()).collect())
    }

    pub(crate) fn object(&self, key: &str) -> Vec<u8> {
        let get = async { self.objects.get(&Path::from(key)).await.unwrap().bytes().await };
        self.rt.block_on(get).unwrap().to_vec()
    }

    pub(crate) fn replace(&self, key: &str, bytes: Vec<u8>) {
        self.rt.block_on(self.objects.put(&Path::from(key), bytes.into())).unwrap();
    }

    pub(crate) fn remove(&self, key: &str) {
        self.rt.block_on(self.objects.delete(&Path::from(key))).unwrap();
    }

    /// Copies every entry of a pack into another one, in another order, and leaves a stub.
    pub(crate) fn rewrite(&self, key: &str) -> String {
        let (keys, bytes) = (self.repo.keys(), self.object(key));
        let old = parse_pack_key(key).unwrap();
        let mut opener = Opener::new(Arc::clone(keys)).unwrap();
        let mut sealer = Sealer::new(chunkstore::Compression::Zstd(1)).unwrap();
        let alloc = PackAllocator::new(Arc::clone(keys), PackKind::Chunks, 1 << 30);
        let mut collector = PackBuilder::new(Arc::clone(keys), *self.repo.id(), PackKind::Chunks);
        let mut relocations = Vec::new();
        let trailer = decode_pack_trailer(&bytes).unwrap();
        let at = trailer.directory_offset;
        let stored = &bytes[at as usize..][..trailer.directory_len as usize];
        let mut plain = Vec::new();
        opener.open_entry(EntryKind::Directory, &old, at, stored, &mut plain).unwrap();
        let directory = decode_directory(&plain, PackKind::Chunks, &trailer).unwrap();
        let mut new = None;
        for (number, entry) in (0..).zip(directory).collect::<Vec<_>>().into_iter().rev() {
            let stored = &bytes[entry.offset as usize..][..entry.stored_len as usize];
            let mut plain = Vec::new();
            opener.open_entry(EntryKind::Chunks, &old, entry.offset, stored, &mut plain).unwrap();
            for (index, part) in (0_u16..).zip(plain.chunks(4096)) {
                // split: one chunk an entry
                let id = keys.chunk_id(part);
                let all = 0..part.len();
                let sealed =
                    sealer.seal_chunks(&alloc, part, std::slice::from_ref(&all), &[id]).unwrap();
                relocations.push(((number, index), sealed.location(0)));
                new = Some(sealed.place.pack);
                collector.add(sealed).unwrap();
            }
        }
        collector.close(alloc.close().unwrap()).unwrap();
        let pack = collector.take_finished().unwrap();
        self.rt.block_on(self.repo.put_pack(&pack)).unwrap();
        let stub = Stub::new(old, relocations).unwrap();
        let name = stub_key(&old);
        self.replace(&name, stub.encode(keys, self.repo.id(), &name).unwrap());
        self.remove(key);
        pack_key(&new.unwrap())
    }
}
