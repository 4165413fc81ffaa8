//! For the tests: a plain map of chunks to hold the real thing against, and a repository in memory.

use crate::format::manifest::MapRoot;
use crate::format::names;
use crate::format::stub::Stub;
use crate::ids::{ChunkId, PackId, PageId};
use crate::keys::Encryption;
use crate::map::{Inherit, MapBuilder, MapReader, MapWalk, PageSink, ReadLimits, VolumeMap, diff};
use crate::pack::{EntryKind, check_pack};
use crate::repository::{InitOptions, Repository};
use crate::seal::{Compression, Opener};
use crate::store::Store;
use crate::testkit::repositories::{init_options, key_file};
use crate::units::{ChunkNo, ChunkRef, ChunkSize, Geometry, Location};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(crate) const CHUNK_BYTES: u32 = 4096;

/// Runs a future; the stores of these tests never wait for anything.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// A repository in memory.
pub(crate) fn repository(fanout: u16) -> Arc<Repository> {
    repository_in(Arc::new(InMemory::new()), fanout, Encryption::None)
}

pub(crate) fn repository_in(
    objects: Arc<dyn ObjectStore>,
    fanout: u16,
    encryption: Encryption,
) -> Arc<Repository> {
    let store = Store::new(objects, object_store::path::Path::default(), "memory:///");
    let credential = (encryption != Encryption::None).then(|| key_file(7));
    let options = InitOptions { page_fanout: fanout, ..init_options(credential) };
    run(Repository::init(store, options)).unwrap()
}

pub(crate) fn geometry(size_bytes: u64) -> Geometry {
    Geometry::new(size_bytes, ChunkSize::new(CHUNK_BYTES).unwrap()).unwrap()
}

/// A chunk that depends on `content` alone, at a place that depends on `copy` too.
pub(crate) fn chunk(content: u64, copy: u32) -> ChunkRef {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&content.to_le_bytes());
    id[31] = 1;
    let mut pack = [0; 32];
    pack[..8].copy_from_slice(&(content / 8).to_le_bytes());
    pack[8..12].copy_from_slice(&copy.to_le_bytes());
    let entry = u32::try_from(content % 8).unwrap();
    let location = Location {
        pack: PackId::from_bytes(pack),
        entry,
        offset: 64 + entry * 1000,
        stored_len: 1000,
        index: 0,
    };
    ChunkRef { id: ChunkId::from_bytes(id), location }
}

/// What one volume holds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Model {
    pub(crate) geometry: Geometry,
    pub(crate) chunks: BTreeMap<u64, ChunkRef>,
}

/// One call of the builder.
#[derive(Debug, Clone)]
pub(crate) enum Update {
    Set(Range<u64>, Vec<Option<ChunkRef>>),
    Zero(Range<u64>),
}

impl Update {
    pub(crate) fn range(&self) -> Range<u64> {
        match self {
            Self::Set(range, _) | Self::Zero(range) => range.clone(),
        }
    }

    /// What of it lies at or behind a chunk.
    fn behind(&self, chunk: u64) -> Option<Self> {
        let range = self.range();
        let rest = range.start.max(chunk)..range.end;
        let cut = usize::try_from(rest.start - range.start).unwrap();
        (!rest.is_empty()).then(|| match self {
            Self::Zero(_) => Self::Zero(rest),
            Self::Set(_, to) => Self::Set(rest, to[cut..].to_vec()),
        })
    }
}

impl Model {
    pub(crate) fn empty(size_bytes: u64) -> Self {
        Self { geometry: geometry(size_bytes), chunks: BTreeMap::new() }
    }

    /// This volume after `updates`, at a new size.
    pub(crate) fn after(&self, size_bytes: u64, inherit: Inherit, updates: &[Update]) -> Self {
        let geometry = geometry(size_bytes);
        let mut chunks = match inherit {
            Inherit::Nothing => BTreeMap::new(),
            Inherit::Parent => {
                self.chunks.range(..geometry.chunks()).map(|(k, v)| (*k, *v)).collect()
            }
        };
        for update in updates {
            for number in chunks.range(update.range()).map(|(k, _)| *k).collect::<Vec<_>>() {
                chunks.remove(&number);
            }
            if let Update::Set(range, to) = update {
                chunks.extend(range.clone().zip(to).filter_map(|(k, to)| Some((k, (*to)?))));
            }
        }
        Self { geometry, chunks }
    }

    pub(crate) fn changed_to(&self, other: &Self) -> Vec<Range<u64>> {
        let (a, b) = (self.geometry.chunks(), other.geometry.chunks());
        let id = |m: &Self, k: &u64| m.chunks.get(k).map(|c| c.id);
        let mut ranges: Vec<_> = std::iter::once(a.min(b)..a.max(b)).collect();
        let last = ChunkNo(a.min(b) - 1);
        if self.geometry.len(last) != other.geometry.len(last) {
            ranges.push(last.0..last.0 + 1);
        }
        let keys = self.chunks.keys().chain(other.chunks.keys());
        ranges.extend(keys.filter(|k| id(self, k) != id(other, k)).map(|k| *k..*k + 1));
        super::volume::normalise(ranges, u64::MAX)
    }
}

/// A map in the repository and what it must hold.
#[derive(Debug, Clone)]
pub(crate) struct Built {
    pub(crate) map: VolumeMap,
    pub(crate) model: Model,
    pub(crate) pages: u64,
}

pub(crate) struct Build<'a> {
    pub(crate) repo: &'a Arc<Repository>,
    pub(crate) inherit: Inherit,
    pub(crate) parent: Option<&'a Built>,
    pub(crate) size_bytes: u64,
    /// Updates whose pages are loaded together.
    pub(crate) window: usize,
    pub(crate) pack_bytes: u32,
    /// After each window another builder goes on from the frontier of this one.
    pub(crate) stops: bool,
}

impl<'a> Build<'a> {
    /// On nothing, in small packs.
    pub(crate) fn new(repo: &'a Arc<Repository>, size_bytes: u64) -> Self {
        let inherit = Inherit::Nothing;
        let (window, pack_bytes) = (100, 64 << 10);
        Self { repo, inherit, parent: None, size_bytes, window, pack_bytes, stops: false }
    }

    /// On a parent, inheriting.
    pub(crate) fn on(repo: &'a Arc<Repository>, size_bytes: u64, parent: &'a Built) -> Self {
        let inherit = Inherit::Parent;
        Self { inherit, parent: Some(parent), ..Self::new(repo, size_bytes) }
    }
}

impl Build<'_> {
    /// Builds as the pipeline does: load what a window of updates needs, provide it, apply them.
    pub(crate) fn run(&self, updates: &[Update]) -> Built {
        run(self.run_async(updates))
    }

    async fn apply(&self, builder: &mut MapBuilder, sink: &mut PageSink, updates: &[Update]) {
        for update in updates {
            match update {
                Update::Zero(range) => builder.set_zero(sink, range.clone()).unwrap(),
                Update::Set(range, to) => {
                    for (number, to) in range.clone().zip(to) {
                        builder.set(sink, ChunkNo(number), *to).unwrap();
                    }
                }
            }
            put_finished(self.repo, sink).await;
        }
    }

    async fn run_async(&self, updates: &[Update]) -> Built {
        let geometry = geometry(self.size_bytes);
        let fanout = self.repo.params().page_fanout;
        let parent = self.parent.map(|p| p.map.clone());
        let mut reader =
            parent.clone().map(|map| MapReader::new(Arc::clone(self.repo), map).unwrap());
        let new = || {
            let keys = Arc::clone(self.repo.keys());
            MapBuilder::new(keys, fanout, geometry, self.inherit, parent.clone()).unwrap()
        };
        let mut builder = new();
        let mut sink = sink(self.repo, self.pack_bytes);
        let mut again: Vec<Update> = Vec::new();
        for (number, window) in updates.chunks(self.window).enumerate() {
            let next = (!again.is_empty()).then(|| builder.cursor().0);
            let window: Vec<_> = again.drain(..).chain(window.iter().cloned()).collect();
            let of = |set: bool| {
                let all = window.iter().filter(move |u| matches!(u, Update::Set(..)) == set);
                all.map(Update::range)
            };
            let set: Vec<_> = of(true).chain(next.map(|n| n..n + 1)).collect();
            let zero: Vec<_> = of(false).collect();
            if let Some(reader) = &mut reader {
                let pages = reader.load(&builder.needs(&set, &zero)).await.unwrap();
                builder.provide(&pages).unwrap();
            }
            self.apply(&mut builder, &mut sink, &window).await;
            if self.stops
                && let Some((next, frontier)) = builder.frontier(&mut sink).unwrap()
            {
                builder = new();
                builder.go_on_from(next, &frontier).unwrap();
                let done = ((number + 1) * self.window).min(updates.len());
                again = updates[..done].iter().filter_map(|u| u.behind(next.0)).collect();
                // pages at the place itself are needed even if nothing is done again
                again.is_empty().then(|| again.push(Update::Set(next.0..next.0, Vec::new())));
            }
        }
        if (updates.is_empty() || !again.is_empty())
            && let Some(reader) = &mut reader
        {
            let next = builder.cursor().0;
            let here = std::iter::once(next..next + 1);
            let set: Vec<_> = again.iter().map(Update::range).chain(here).collect();
            let set = if updates.is_empty() { Vec::new() } else { set };
            let pages = reader.load(&builder.needs(&set, &[])).await.unwrap();
            builder.provide(&pages).unwrap();
        }
        self.apply(&mut builder, &mut sink, &again).await;
        let root = builder.finish(&mut sink).unwrap();
        sink.close().unwrap();
        put_finished(self.repo, &mut sink).await;
        let map = VolumeMap::new(root, geometry, fanout, "a test").unwrap();
        let empty = Model::empty(self.size_bytes);
        let model =
            self.parent.map_or(&empty, |p| &p.model).after(self.size_bytes, self.inherit, updates);
        Built { map, model, pages: sink.pages() }
    }
}

pub(crate) fn sink(repo: &Repository, pack_bytes: u32) -> PageSink {
    PageSink::new(repo.keys(), *repo.id(), Compression::Zstd(1), pack_bytes).unwrap()
}

pub(crate) async fn put_finished(repo: &Repository, sink: &mut PageSink) {
    while let Some(pack) = sink.take_finished() {
        let payload: object_store::PutPayload = pack.parts.iter().cloned().collect();
        repo.store().put(&pack.object_key(), payload).await.unwrap();
    }
}

/// Copies all pages of a pack into a new one, writes the stub and deletes the old one, as a
/// collection does. Gives the new pack.
pub(crate) async fn rewrite(repo: &Repository, old: &PackId) -> PackId {
    let bytes = repo.store().get(&names::pack_key(old)).await.unwrap();
    let summary = check_pack(&bytes).unwrap();
    let directory_at = summary.trailer.directory_offset as usize;
    let directory_end = directory_at + summary.trailer.directory_len as usize;
    let mut opener = Opener::new(Arc::clone(repo.keys())).unwrap();
    let directory = opener
        .open_directory(&summary.header, &summary.trailer, &bytes[directory_at..directory_end])
        .unwrap();
    let mut sink = sink(repo, 1 << 30);
    // another order, so that numbers and offsets change
    let mut relocations = Vec::new();
    for (number, entry) in (0..summary.trailer.entries).zip(&directory).rev() {
        let stored = &bytes[entry.offset as usize..][..entry.stored_len as usize];
        let mut plain = Vec::new();
        opener.open_entry(EntryKind::Page, old, entry.offset, stored, &mut plain).unwrap();
        let to = sink.store(PageId::from_bytes(entry.ids[0]), &plain).unwrap();
        relocations.push(((number, 0), to));
    }
    sink.close().unwrap();
    put_finished(repo, &mut sink).await;
    let new = relocations[0].1.pack;
    put_stub(repo, &Stub::new(*old, relocations).unwrap()).await;
    repo.store().delete(&names::pack_key(old)).await.unwrap();
    new
}

pub(crate) async fn put_stub(repo: &Repository, stub: &Stub) {
    let key = names::stub_key(stub.pack());
    let bytes = stub.encode(repo.keys(), repo.id(), &key).unwrap();
    repo.store().put(&key, bytes).await.unwrap();
}

/// All packs of the repository.
pub(crate) async fn packs(repo: &Repository) -> Vec<PackId> {
    let packs = repo.list_packs(|key, e| panic!("{key}: {e}")).await.unwrap();
    packs.into_iter().map(|(pack, _)| pack).collect()
}

impl Built {
    /// Walks the whole map and loads some ranges of it; all must be as in the model.
    pub(crate) fn check(&self, repo: &Arc<Repository>, leaves_per_window: usize) {
        run(self.check_async(repo, leaves_per_window));
    }

    async fn check_async(&self, repo: &Arc<Repository>, leaves_per_window: usize) {
        let chunks = self.model.geometry.chunks();
        let mut reader = MapReader::new(Arc::clone(repo), self.map.clone()).unwrap();
        let mut found = BTreeMap::new();
        let mut at = 0;
        let mut walk = MapWalk::new(&mut reader, 0..chunks, leaves_per_window);
        while let Some(window) = walk.next().await.unwrap() {
            assert_eq!(window.chunks.start, at, "windows follow each other");
            at = window.chunks.end;
            assert!(window.pages.levels()[0].len() <= leaves_per_window);
            let all = window.pages.nonzero(window.chunks).unwrap();
            found.extend(all.map(|(number, chunk)| (number.0, chunk)));
        }
        assert_eq!(at, chunks);
        assert_eq!(found, self.model.chunks);
        let middle = chunks / 2;
        let ranges = [0..chunks.min(40), middle..(middle + 3).min(chunks), chunks - 1..chunks];
        let few = ReadLimits { cache_bytes_max: 0, ..ReadLimits::default() };
        let mut reader = MapReader::with_limits(Arc::clone(repo), self.map.clone(), few).unwrap();
        let pages = reader.load(&ranges).await.unwrap();
        for number in ranges.into_iter().flatten() {
            let expected = self.model.chunks.get(&number).copied();
            assert_eq!(pages.chunk(ChunkNo(number)).unwrap(), expected, "chunk {number}");
        }
    }

    /// The same map built anew must have the same root id.
    pub(crate) fn check_root(&self, repo: &Arc<Repository>) {
        let updates: Vec<_> =
            self.model.chunks.iter().map(|(&k, &c)| Update::Set(k..k + 1, vec![Some(c)])).collect();
        let size_bytes = self.model.geometry.size_bytes();
        let build = Build { window: 1000, ..Build::new(repo, size_bytes) };
        assert_eq!(root_id(build.run(&updates).map.root()), root_id(self.map.root()));
    }

    pub(crate) fn diff(&self, repo: &Arc<Repository>, other: &Self) -> Vec<Range<u64>> {
        let mut a = MapReader::new(Arc::clone(repo), self.map.clone()).unwrap();
        let mut b = MapReader::new(Arc::clone(repo), other.map.clone()).unwrap();
        run(diff(&mut a, &mut b)).unwrap()
    }
}

pub(crate) fn root_id(root: &MapRoot) -> Option<crate::ids::PageId> {
    root.root.map(|r| r.id)
}
