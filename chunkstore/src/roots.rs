//! Trees of map pages that no manifest leads to: what is left of a backup whose manifest is lost.
//!
//! Pages say what they are (`docs/format.md`, section 8), and directories of packs say where they
//! are. A page that neither a manifest nor another page refers to is the root of a tree. It does not
//! know its volume, nor its size to the byte; the volume's other backups, which share pages with it,
//! tell the one, and the height of the tree and its last chunk tell the other within bounds.
//!
//! What is forgotten is no loss, as long as its manifest is there: it is not offered. Nor are the
//! subtrees of a run that did not end and that another one may go on with.
//!
//! Memory: some 60 bytes for each page of a backup, some 150 for each page of none.

mod adopt;

pub use adopt::{Adoption, adopt};

use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{EntryAddr, Fetched, RangeRead, plan_reads, read_range};
use crate::format::lease::Lease;
use crate::format::manifest::{ManifestRecord, MapRoot};
use crate::format::names::{
    BACKUPS_PREFIX, LEASES_PREFIX, PACKS_PREFIX, parse_lease_key, parse_manifest_key,
    parse_pack_key,
};
use crate::format::page::Page;
use crate::ids::{PackId, PageId, VolumeName};
use crate::limits::{LEASE_BYTES_MAX, PAGE_PLAIN_BYTES_MAX};
use crate::map::{MapReader, PageAt, ReadLimits, Visited, Visitor, VolumeMap, reach};
use crate::pack::{EntryKind, PackKind};
use crate::repository::{RECORD_OVERHEAD, Repository};
use crate::salvage::{directories, page_packs, places};
use crate::seal::Opener;
use crate::units::{ChunkRef, Geometry, Location, PageRef, page_span};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

const GAP_BYTES: u32 = 256 << 10;
const READ_BYTES_MAX: u32 = 4 << 20;
const IN_FLIGHT: usize = 8;

/// A tree that no manifest leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRoot {
    /// Its root page.
    pub page: PageRef,
    /// Level of the root; 0 for a leaf.
    pub level: u8,
    /// Chunks that it leads to, each page counted once.
    pub chunks: u64,
    /// The least size that the volume can have had, and the most.
    pub size_bytes: [u64; 2],
    /// Volumes with backups that share pages with it, and how many; most first.
    pub volumes: Vec<(VolumeName, u64)>,
    /// When its root was stored, by the store's clock.
    pub stored: DateTime<Utc>,
    /// Packs that it leads to.
    pub packs: Vec<PackId>,
    /// Pages and packs that are not to be had. Without any the backup can be restored.
    pub missing: u64,
}

/// All roots of trees that no manifest leads to, the highest first, then the one stored last. Takes
/// no lease: what is being collected may be among them, and goes; so may what a run stored that is
/// still at work, since its last checkpoint.
pub async fn find(repo: &Arc<Repository>, limits: ReadLimits) -> Result<Vec<FoundRoot>> {
    // in this order: a run whose packs are listed has a lease, or has committed before that ended
    let listed = repo.store().list(PACKS_PREFIX).await?;
    let unfinished = unfinished_pages(repo).await?;
    let known = Known::of_manifests(repo, limits).await?;
    let packs: HashMap<PackId, (u64, DateTime<Utc>)> = listed
        .into_iter()
        .filter_map(|l| Some((parse_pack_key(&l.key).ok()?, (l.size_bytes, l.last_modified))))
        .collect();
    let orphans = orphans(repo, &packs, &known).await?;
    let (levels, children) = look_at(repo, &orphans).await?;
    let mut roots = Vec::new();
    for (id, location) in orphans {
        let Some(level) = levels.get(&id).filter(|_| !children.contains(&id)) else { continue };
        if unfinished.contains(&id) {
            continue;
        }
        let page = PageRef { id, location };
        let stored = packs.get(&location.pack).map(|(_, stored)| *stored).unwrap_or_default();
        roots.push(walk(repo, limits, &known, &packs, page, *level, stored).await?);
    }
    roots
        .sort_by_key(|root| std::cmp::Reverse((root.level, root.stored, *root.page.id.as_bytes())));
    Ok(roots)
}

/// Pages that manifests lead to, and the volumes whose backups did.
struct Known {
    volumes: Vec<VolumeName>,
    /// The volume that led there first.
    pages: HashMap<PageId, u32>,
    /// Others that led there, at another place: few, if any.
    also: HashMap<PageId, Vec<u32>>,
}

impl Known {
    async fn of_manifests(repo: &Arc<Repository>, limits: ReadLimits) -> Result<Self> {
        let listed = repo.store().list(BACKUPS_PREFIX).await?;
        let names = listed.iter().filter_map(|l| parse_manifest_key(&l.key).ok());
        let mut records = stream::iter(names.collect::<Vec<_>>())
            .map(|name| async move { repo.read_manifest(&name).await })
            .buffered(IN_FLIGHT);
        let (mut maps, mut of_maps) = (Vec::new(), Vec::new());
        while let Some(record) = records.next().await {
            match record {
                Ok(Some(ManifestRecord::Backup(manifest))) => {
                    maps.extend(VolumeMap::all_of(repo, &manifest).unwrap_or_default());
                    of_maps.resize(maps.len(), manifest.volume.clone());
                }
                Ok(Some(ManifestRecord::Fence { .. }) | None) => {}
                // it is as lost as one that is gone
                Err(e) if e.kind() == ErrorKind::Corrupt => {}
                Err(e) => return Err(e),
            }
        }
        drop(records);
        let mut volumes: Vec<VolumeName> = of_maps.clone();
        volumes.sort();
        volumes.dedup();
        let number = |volume| volumes.binary_search(volume).unwrap_or_default();
        let of_maps = of_maps.iter().map(|v| u32::try_from(number(v)).unwrap_or_default());
        let mut marker = Marker {
            maps: &maps,
            of_maps: of_maps.collect(),
            visited: Visited::default(),
            pages: HashMap::new(),
            also: HashMap::new(),
        };
        reach(repo, &maps, limits, &mut marker).await?;
        let Marker { pages, also, .. } = marker;
        Ok(Self { volumes, pages, also })
    }

    fn volumes_with(&self, page: &PageId) -> impl Iterator<Item = u32> {
        let others = self.also.get(page).into_iter().flatten();
        self.pages.get(page).into_iter().chain(others).copied()
    }
}

struct Marker<'a> {
    maps: &'a [VolumeMap],
    of_maps: Vec<u32>,
    visited: Visited,
    pages: HashMap<PageId, u32>,
    also: HashMap<PageId, Vec<u32>>,
}

impl Visitor for Marker<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        let volume = self.of_maps.get(at.map as usize).copied().unwrap_or_default();
        let first = *self.pages.entry(at.page.id).or_insert(volume);
        if first != volume {
            let others = self.also.entry(at.page.id).or_default();
            if !others.contains(&volume) {
                others.push(volume);
            }
        }
        Ok(self.visited.insert(at.key(self.maps)))
    }

    fn chunk(&mut self, _: &PageAt, _: u64, _: &ChunkRef) -> Result<()> {
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        if is_lost(&error) { Ok(()) } else { Err(error) }
    }
}

fn is_lost(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing)
}

/// The finished subtrees of runs that did not end.
async fn unfinished_pages(repo: &Arc<Repository>) -> Result<HashSet<PageId>> {
    let mut pages = HashSet::new();
    let bytes_max = u64::from(LEASE_BYTES_MAX) + RECORD_OVERHEAD;
    for listed in repo.store().list(LEASES_PREFIX).await? {
        if parse_lease_key(&listed.key).is_err() {
            continue;
        }
        let open = |bytes: &Bytes| Lease::decode(repo.keys(), repo.id(), &listed.key, bytes);
        let lease = match repo.store().open_opt(&listed.key, bytes_max, open).await {
            Ok(Some(lease)) => lease,
            Ok(None) => continue,
            // of one that cannot be read nobody goes on
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => continue,
            Err(e) => return Err(e),
        };
        let frontier = lease.checkpoint.into_iter().flat_map(|checkpoint| checkpoint.frontier);
        pages.extend(frontier.filter_map(|subtree| subtree.root).map(|page| page.id));
    }
    Ok(pages)
}

/// Pages that directories list and no manifest leads to, each id once.
async fn orphans(
    repo: &Arc<Repository>,
    packs: &HashMap<PackId, (u64, DateTime<Utc>)>,
    known: &Known,
) -> Result<BTreeMap<PageId, Location>> {
    let all: Vec<(PackId, u64)> = packs.iter().map(|(pack, (size, _))| (*pack, *size)).collect();
    let of_pages = page_packs(repo, &all).await?;
    let of_pages = all.into_iter().filter(|(pack, _)| of_pages.contains(pack)).collect();
    let mut orphans = BTreeMap::new();
    let pass_over = |e: &Error| is_lost(e) || e.kind() == ErrorKind::NotFound;
    directories(repo, of_pages, pass_over, |pack, frame| {
        if frame.header.kind == PackKind::Pages {
            for (id, location) in places(pack, &frame) {
                let id = PageId::from_bytes(id);
                if !known.pages.contains_key(&id) {
                    orphans.entry(id).or_insert(location);
                }
            }
        }
        Ok(())
    })
    .await?;
    Ok(orphans)
}

/// Reads these pages: their levels, and all pages that they refer to.
async fn look_at(
    repo: &Arc<Repository>,
    pages: &BTreeMap<PageId, Location>,
) -> Result<(HashMap<PageId, u8>, HashSet<PageId>)> {
    let ids: HashMap<EntryAddr, PageId> =
        pages.iter().map(|(id, at)| (EntryAddr::from(at), *id)).collect();
    let possible = ids.keys().filter(|addr| addr.check(PAGE_PLAIN_BYTES_MAX).is_ok());
    let reads = plan_reads(possible.copied().collect(), GAP_BYTES, READ_BYTES_MAX);
    let mut answers = stream::iter(reads)
        .map(|read| async move {
            let fetched = read_range(repo, &read).await;
            (read, fetched)
        })
        .buffer_unordered(IN_FLIGHT);
    let mut opener = Opener::new(Arc::clone(repo.keys()))?;
    let (mut levels, mut children) = (HashMap::new(), HashSet::new());
    while let Some((read, fetched)) = answers.next().await {
        let data = match fetched {
            Ok(Fetched::Data(data)) => data,
            Ok(Fetched::Gone) => continue,
            Err(e) if is_lost(&e) => continue,
            Err(e) => return Err(e),
        };
        for addr in &read.entries {
            let stored = read.entry_bytes(&data, addr)?;
            let Some(id) = ids.get(addr) else { continue };
            // a damaged one is no root of anything that can be restored
            let Ok(page) = open(repo, &mut opener, addr, &stored) else { continue };
            if page.id(repo.keys()) != *id {
                continue;
            }
            levels.insert(*id, page.level());
            if page.level() > 0 {
                let refs = (0..page.children().len()).filter_map(|i| page.page_ref(i));
                children.extend(refs.map(|child| child.id));
            }
        }
    }
    Ok((levels, children))
}

fn open(repo: &Repository, opener: &mut Opener, addr: &EntryAddr, stored: &[u8]) -> Result<Page> {
    let mut plain = Vec::new();
    opener.open_entry(EntryKind::Page, &addr.pack, addr.offset, stored, &mut plain)?;
    Page::decode(&plain, repo.params().page_fanout)
}

/// Goes over all of a tree.
async fn walk(
    repo: &Arc<Repository>,
    limits: ReadLimits,
    known: &Known,
    packs: &HashMap<PackId, (u64, DateTime<Utc>)>,
    page: PageRef,
    level: u8,
    stored: DateTime<Utc>,
) -> Result<FoundRoot> {
    let (fanout, chunk) = (repo.params().page_fanout, repo.params().chunk);
    let most = page_span(fanout, level).saturating_mul(u64::from(chunk.bytes()));
    let most = most.min(crate::limits::VOLUME_BYTES_MAX);
    let root = MapRoot { depth: level + 1, root: Some(page) };
    let name = format!("root {}", page.id);
    let map = VolumeMap::new(root, Geometry::new(most, chunk)?, fanout, &name)?;
    let mut tree = Tree::new(known, &map);
    reach(repo, std::slice::from_ref(&map), limits, &mut tree).await?;
    let Tree { chunks, shared, packs: named, mut missing, .. } = tree;
    for pack in &named {
        let gone = !packs.contains_key(pack) && repo.read_stub(pack).await?.is_none();
        missing += u64::from(gone);
    }
    // a lower tree would do for fewer chunks
    let fewest = if level == 0 { 1 } else { page_span(fanout, level - 1) + 1 };
    let least = (fewest - 1) * u64::from(chunk.bytes()) + 1;
    let mut size_bytes = [least, most];
    if let Some((number, at)) = last_chunk(repo, &map, limits).await?
        && number + 1 >= fewest
        && let Some(len) = stored_len(repo, &at).await?
    {
        let start = number * u64::from(chunk.bytes());
        size_bytes[0] = start + u64::from(len);
        if len < chunk.bytes() {
            size_bytes[1] = size_bytes[0];
        }
    }
    let mut volumes: Vec<_> = shared
        .into_iter()
        .filter_map(|(volume, count)| Some((known.volumes.get(volume as usize)?.clone(), count)))
        .collect();
    volumes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let packs = named.into_iter().collect();
    Ok(FoundRoot { page, level, chunks, size_bytes, volumes, stored, packs, missing })
}

struct Tree<'a> {
    known: &'a Known,
    map: &'a VolumeMap,
    visited: Visited,
    chunks: u64,
    shared: BTreeMap<u32, u64>,
    packs: BTreeSet<PackId>,
    missing: u64,
}

impl<'a> Tree<'a> {
    fn new(known: &'a Known, map: &'a VolumeMap) -> Self {
        let (visited, shared, packs) = (Visited::default(), BTreeMap::new(), BTreeSet::new());
        Self { known, map, visited, chunks: 0, shared, packs, missing: 0 }
    }
}

impl Visitor for Tree<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        self.packs.insert(at.page.location.pack);
        let fresh = self.visited.insert(at.key(std::slice::from_ref(self.map)));
        for volume in self.known.volumes_with(&at.page.id).filter(|_| fresh) {
            *self.shared.entry(volume).or_default() += 1;
        }
        Ok(fresh)
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> Result<()> {
        self.chunks += 1;
        self.packs.insert(chunk.location.pack);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        self.missing += 1;
        if is_lost(&error) { Ok(()) } else { Err(error) }
    }
}

/// The last chunk of a map, by the last child of each page: that one is never Zero. `None`: it is
/// not to be had.
async fn last_chunk(
    repo: &Arc<Repository>,
    map: &VolumeMap,
    limits: ReadLimits,
) -> Result<Option<(u64, ChunkRef)>> {
    let mut reader = MapReader::with_limits(Arc::clone(repo), map.clone(), limits)?;
    let fanout = u64::from(map.fanout());
    let mut number = 0;
    for level in (0..map.root().depth).rev() {
        let first = number * page_span(map.fanout(), level);
        let pages = match reader.load(std::slice::from_ref(&(first..first + 1))).await {
            Ok(pages) => pages,
            Err(e) if is_lost(&e) => return Ok(None),
            Err(e) => return Err(e),
        };
        let Some(page) = pages.page(level, number) else { return Ok(None) };
        let Some(index) = page.children().len().checked_sub(1) else { return Ok(None) };
        number = number * fanout + index as u64;
        if level == 0 {
            return Ok(page.chunk_ref(index).map(|chunk| (number, chunk)));
        }
    }
    Ok(None)
}

/// Bytes of a chunk as it is stored; `None`: it is not to be had.
async fn stored_len(repo: &Arc<Repository>, chunk: &ChunkRef) -> Result<Option<u32>> {
    let params = repo.params();
    let addr = EntryAddr::from(&chunk.location);
    if addr.check_chunk(chunk.location.index, params.chunk, params.entry_chunks).is_err() {
        return Ok(None);
    }
    let (start, len) = (addr.offset, addr.stored_len);
    let read = RangeRead { pack: addr.pack, start, len, entries: vec![addr] };
    let stored = match read_range(repo, &read).await {
        Ok(Fetched::Data(stored)) => stored,
        Ok(Fetched::Gone) => return Ok(None),
        Err(e) if is_lost(&e) => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut opener = Opener::new(Arc::clone(repo.keys()))?;
    let mut plain = Vec::new();
    let opened = opener.open_entry(EntryKind::Chunks, &addr.pack, addr.offset, &stored, &mut plain);
    let range = opened.and_then(|header| header.chunk(chunk.location.index, params.chunk));
    Ok(range.ok().and_then(|range| u32::try_from(range.len()).ok()))
}
