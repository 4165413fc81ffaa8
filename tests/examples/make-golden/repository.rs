//! A repository under construction, in memory: nothing in it is random, so that the same program
//! makes the same bytes.

use chrono::{DateTime, Utc};
use chunkstore::testkit::golden;
use chunkstore::{
    BackupId, ChunkId, ChunkNo, ChunkRef, ChunkSize, Compression, Credential, Encryption, Geometry,
    KdfCost, Keys, Location, Manifest, PackBuilder, PackId, PackKind, RepositoryId, Sealer,
    VolumeName,
    format::{
        Attachment, BackupStats, ChangeKind, Child, ManifestRecord, MapRoot, Page, ParentRef,
        RepositoryParams, SegmentRecord, SnapshotInfo, SourceInfo, Stub, Wrapping, encode_segment,
        names,
    },
    ids::{KeyId, PageId, SegmentId},
    keys::MasterKey,
    units::PageRef,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub(crate) const CHUNK_BYTES: u32 = 4096;
const ENTRY_CHUNKS: u16 = 4;
const FANOUT: u16 = 16;
/// Small, so that a backup has several packs.
const PACK_BYTES: u32 = 24 << 10;
const TOOL: &str = "make-golden 1";

/// The chunks of a volume that are not zero.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) size_bytes: u64,
    pub(crate) chunks: BTreeMap<u64, Vec<u8>>,
}

impl Image {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self { size_bytes, chunks: BTreeMap::new() }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let chunk = ChunkSize::new(CHUNK_BYTES).expect("a chunk size");
        Geometry::new(self.size_bytes, chunk).expect("a possible size")
    }

    /// Chunk content that only the seed decides: one in three does not shrink, the others are text.
    pub(crate) fn set(&mut self, chunk: u64, seed: &str) {
        let len = self.geometry().len(ChunkNo(chunk)) as usize;
        let mut bytes = vec![0; len];
        if seed.len().is_multiple_of(3) {
            blake3::Hasher::new().update(seed.as_bytes()).finalize_xof().fill(&mut bytes);
        } else {
            let line = format!("{seed}: {}\n", blake3::hash(seed.as_bytes()));
            bytes = line.bytes().cycle().take(len).collect();
        }
        self.chunks.insert(chunk, bytes);
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.size_bytes).expect("a small volume")];
        for (no, chunk) in &self.chunks {
            let at = usize::try_from(no * u64::from(CHUNK_BYTES)).expect("a small volume");
            all[at..at + chunk.len()].copy_from_slice(chunk);
        }
        all
    }
}

/// Chunks by their number in a volume.
pub(crate) type Refs = BTreeMap<u64, ChunkRef>;

pub(crate) struct Builder {
    name: &'static str,
    master: MasterKey,
    encryption: Encryption,
    pub(crate) id: RepositoryId,
    pub(crate) keys: Arc<Keys>,
    pub(crate) objects: BTreeMap<String, Vec<u8>>,
    counter: u64,
    chunks: HashMap<ChunkId, Location>,
    plain: HashMap<ChunkId, Vec<u8>>,
    pages: HashMap<PageId, Location>,
    /// What the next backup has besides its volume.
    pub(crate) attachments: Vec<Attachment>,
}

impl Builder {
    pub(crate) fn new(name: &'static str, encryption: Encryption) -> Self {
        let hash = |what: &str| *blake3::hash(format!("{name} {what}").as_bytes()).as_bytes();
        let master = MasterKey::from_bytes(hash("master key"));
        let mut id = [0; 16];
        id.copy_from_slice(&hash("repository id")[..16]);
        let (id, keys) = (RepositoryId::from_bytes(id), Keys::derive(&master, encryption));
        let mut made = Self {
            name,
            master,
            encryption,
            id,
            keys: Arc::new(keys),
            objects: BTreeMap::new(),
            counter: 0,
            chunks: HashMap::new(),
            plain: HashMap::new(),
            pages: HashMap::new(),
            attachments: Vec::new(),
        };
        made.put_format();
        made
    }

    /// Looks random, is never given twice, and is the same in every run.
    pub(crate) fn unique<const N: usize>(&mut self) -> [u8; N] {
        self.counter += 1;
        let mut out = [0; N];
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.name.as_bytes()).update(&self.counter.to_le_bytes());
        hasher.finalize_xof().fill(&mut out);
        out
    }

    /// Each a minute after the last.
    pub(crate) fn time(&mut self) -> DateTime<Utc> {
        self.counter += 1;
        let seconds = 1_735_689_600 + 60 * i64::try_from(self.counter).expect("a small number");
        DateTime::from_timestamp(seconds, 0).expect("a time")
    }

    fn put_format(&mut self) {
        let params = RepositoryParams {
            repository_id: self.id,
            chunk: ChunkSize::new(CHUNK_BYTES).expect("a chunk size"),
            entry_chunks: ENTRY_CHUNKS,
            page_fanout: FANOUT,
            encryption: self.encryption,
            created: self.time(),
            created_by: TOOL.into(),
            clear_master_key: (self.encryption == Encryption::None).then(|| self.master.clone()),
        };
        let salt = self.unique();
        let bytes = golden::format(&params, &self.keys, &salt).expect("encode format");
        self.objects.insert(names::FORMAT_COPY_KEY.into(), bytes.clone());
        self.objects.insert(names::FORMAT_KEY.into(), bytes);
    }

    /// Wraps the master key; Argon2id costs next to nothing.
    pub(crate) fn put_key(&mut self, credential: &Credential, label: &str) {
        let kdf = KdfCost { memory_kib: 16, passes: 1, lanes: 2 };
        let wrapping = Wrapping { credential, label, kdf, created: self.time() };
        let id = KeyId::from_bytes(self.unique());
        let salt = self.unique();
        let bytes = golden::key(&self.master, &self.id, &id, &wrapping, &salt);
        self.objects.insert(names::key_key(&id), bytes.expect("wrap the key"));
    }

    /// Seals entries of chunks into new packs.
    fn seal(&mut self, entries: &[Vec<(u64, ChunkId)>]) -> Refs {
        let ids = (0..64).map(|_| PackId::from_bytes(self.unique())).collect();
        let keys = Arc::clone(&self.keys);
        let alloc = golden::pack_allocator(keys.clone(), PackKind::Chunks, PACK_BYTES, ids);
        let mut collector = PackBuilder::new(keys, self.id, PackKind::Chunks);
        let mut sealer = Sealer::new(Compression::Zstd(3)).expect("a sealer");
        let mut refs = Refs::new();
        for entry in entries {
            let (mut unit, mut ranges, mut ids) = (Vec::new(), Vec::new(), Vec::new());
            for (_, id) in entry {
                let start = unit.len();
                unit.extend_from_slice(&self.plain[id]);
                ranges.push(start..unit.len());
                ids.push(*id);
            }
            let sealed = sealer.seal_chunks(&alloc, &unit, &ranges, &ids).expect("seal chunks");
            for (index, (no, id)) in (0..).zip(entry) {
                let location = sealed.location(index);
                self.chunks.insert(*id, location);
                refs.insert(*no, ChunkRef { id: *id, location });
            }
            collector.add(sealed).expect("collect");
        }
        self.finish(&mut collector, alloc.close());
        refs
    }

    fn finish(
        &mut self,
        collector: &mut PackBuilder,
        closed: Option<chunkstore::pack::ClosedPack>,
    ) {
        if let Some(closed) = closed {
            collector.close(closed).expect("close the pack");
        }
        while let Some(pack) = collector.take_finished() {
            self.objects.insert(pack.object_key(), pack.parts.concat());
        }
        assert_eq!(collector.unfinished(), 0, "all packs are complete");
    }

    /// Stores what the repository does not have yet.
    pub(crate) fn store(&mut self, image: &Image) -> Refs {
        let mut wanted: Vec<(u64, ChunkId)> = Vec::new();
        for (no, bytes) in &image.chunks {
            let id = self.keys.chunk_id(bytes);
            if !self.chunks.contains_key(&id) && self.plain.insert(id, bytes.clone()).is_none() {
                wanted.push((*no, id));
            }
        }
        let entries: Vec<_> = wanted.chunks(ENTRY_CHUNKS.into()).map(<[_]>::to_vec).collect();
        if !entries.is_empty() {
            self.seal(&entries);
        }
        let chunk_ref = |bytes: &Vec<u8>| {
            let id = self.keys.chunk_id(bytes);
            ChunkRef { id, location: self.chunks[&id] }
        };
        image.chunks.iter().map(|(no, bytes)| (*no, chunk_ref(bytes))).collect()
    }

    fn seal_pages(&mut self, pages: &[(PageId, Vec<u8>)]) {
        let ids = (0..16).map(|_| PackId::from_bytes(self.unique())).collect();
        let keys = Arc::clone(&self.keys);
        let alloc = golden::pack_allocator(keys.clone(), PackKind::Pages, PACK_BYTES, ids);
        let mut collector = PackBuilder::new(keys, self.id, PackKind::Pages);
        let mut sealer = Sealer::new(Compression::Zstd(3)).expect("a sealer");
        for (id, plain) in pages {
            let sealed = sealer.seal_page(&alloc, plain, *id).expect("seal a page");
            self.pages.insert(*id, sealed.location(0));
            collector.add(sealed).expect("collect");
        }
        self.finish(&mut collector, alloc.close());
    }

    /// Stores the map, level by level; pages that are there already stay where they are. Also gives
    /// the new pages.
    pub(crate) fn map(
        &mut self,
        geometry: &Geometry,
        refs: &Refs,
    ) -> (MapRoot, Vec<(PageId, Vec<u8>)>) {
        let depth = chunkstore::units::map_depth(FANOUT, geometry.chunks());
        let mut below: BTreeMap<u64, Child> =
            refs.iter().map(|(no, chunk)| (*no, Child::from(*chunk))).collect();
        let mut all_new = Vec::new();
        for level in 0..depth {
            let mut children: BTreeMap<u64, Vec<Option<Child>>> = BTreeMap::new();
            for (no, child) in below {
                let page = children.entry(no / u64::from(FANOUT)).or_default();
                page.resize(usize::try_from(no % u64::from(FANOUT)).expect("small"), None);
                page.push(Some(child));
            }
            let pages: BTreeMap<u64, Page> =
                children.into_iter().map(|(no, list)| (no, Page::new(level, list))).collect();
            let mut new = Vec::new();
            for page in pages.values() {
                let id = page.id(&self.keys);
                if !self.pages.contains_key(&id) {
                    new.push((id, page.encode().expect("encode a page")));
                }
            }
            if !new.is_empty() {
                self.seal_pages(&new);
            }
            all_new.extend(new);
            let child = |page: &Page| {
                let id = page.id(&self.keys);
                Child { id: *id.as_bytes(), location: self.pages[&id] }
            };
            below = pages.iter().map(|(no, page)| (*no, child(page))).collect();
        }
        let root = below.get(&0);
        let root = root.map(|c| PageRef { id: PageId::from_bytes(c.id), location: c.location });
        (MapRoot { depth, root }, all_new)
    }

    /// A manifest for this map, committed.
    pub(crate) fn commit(
        &mut self,
        (volume, backup_id, attempt): (&str, &str, u32),
        size_bytes: u64,
        map: MapRoot,
        parent: Option<ParentRef>,
    ) -> Manifest {
        let kind = if parent.is_some() { ChangeKind::Delta } else { ChangeKind::Whole };
        let path = "/dev/golden".into();
        let listed = if parent.is_some() { (3 * u64::from(CHUNK_BYTES), 2) } else { (0, 0) };
        let (listed_bytes, listed_extents) = listed;
        let origin = "mover".into();
        let snapshot = SnapshotInfo { id: Some(backup_id.to_uppercase()), ..Default::default() };
        let (started, finished) = (self.time(), self.time());
        let manifest = Manifest {
            volume: VolumeName::new(volume).expect("a volume name"),
            backup_id: BackupId::new(backup_id).expect("a backup id"),
            attempt,
            size_bytes,
            map,
            parent,
            snapshot,
            source: SourceInfo { path, kind, origin, listed_bytes, listed_extents, identity: None },
            started,
            finished,
            ordered: finished,
            clock_offset_ms: None,
            stats: BackupStats { read_bytes: size_bytes, ..BackupStats::default() },
            tool: TOOL.into(),
            labels: [("purpose".to_owned(), "golden \u{2713}".to_owned())].into(),
            degraded: Vec::new(),
            copied_from: None,
            attachments: std::mem::take(&mut self.attachments),
        };
        let key = manifest.object_key();
        let record = ManifestRecord::Backup(Box::new(manifest.clone()));
        let salt = self.unique();
        let bytes = golden::manifest(&record, &self.keys, &self.id, &key, &salt);
        self.objects.insert(key, bytes.expect("encode a manifest"));
        manifest
    }

    /// Copies what lives into new packs, in entries of `group`, and puts stubs in place of the old
    /// packs.
    pub(crate) fn rewrite(&mut self, live: &Refs, group: usize) -> Refs {
        let list: Vec<_> = live.iter().map(|(no, chunk)| (*no, chunk.id)).collect();
        let new = self.seal(&list.chunks(group).map(<[_]>::to_vec).collect::<Vec<_>>());
        self.replace_packs(live.iter().map(|(no, old)| (old.location, new[no].location)));
        new
    }

    /// The same with map pages.
    pub(crate) fn rewrite_pages(&mut self, pages: &[(PageId, Vec<u8>)]) {
        let old: Vec<_> = pages.iter().map(|(id, _)| self.pages[id]).collect();
        let turned: Vec<_> = pages.iter().rev().cloned().collect();
        self.seal_pages(&turned);
        let new: Vec<_> = pages.iter().map(|(id, _)| self.pages[id]).collect();
        self.replace_packs(old.into_iter().zip(new));
    }

    fn replace_packs(&mut self, moves: impl Iterator<Item = (Location, Location)>) {
        let mut stubs: BTreeMap<PackId, Vec<_>> = BTreeMap::new();
        for (old, new) in moves {
            stubs.entry(old.pack).or_default().push(((old.entry, old.index), new));
        }
        for (pack, relocations) in stubs {
            self.objects.remove(&names::pack_key(&pack)).expect("the pack was there");
            let stub = Stub::new(pack, relocations).expect("a stub");
            let (key, salt) = (names::stub_key(&pack), self.unique());
            let bytes = golden::stub(&stub, &self.keys, &self.id, &key, &salt);
            self.objects.insert(key, bytes.expect("encode a stub"));
        }
    }

    /// A dedup segment over these chunks.
    pub(crate) fn segment(&mut self, refs: &Refs) {
        let id = SegmentId::from_bytes(self.unique());
        let record = |chunk: &ChunkRef| SegmentRecord { id: chunk.id, location: chunk.location };
        let mut records: Vec<_> = refs.values().map(record).collect();
        let seed = u64::from_le_bytes(self.unique());
        let bytes = encode_segment(&self.keys, self.encryption, &self.id, &id, seed, &mut records);
        self.objects.insert(names::segment_key(&id), bytes.expect("encode a segment"));
    }
}
