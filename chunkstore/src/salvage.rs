//! Chunks and pages that are damaged where they are referred to, and stand whole somewhere else:
//! found by their ids.
//!
//! Two writers at once, or one without deduplication, store a chunk twice. Then a damaged entry is
//! no loss. Whoever reads a backup asks here before it counts as one: the dedup segments first, as
//! they cost least, then the directories of all packs. Nothing is asked before something damaged
//! was met, and packs and segments are listed once for each [`Salvage`].
//!
//! A place that is given was read, and what stands there has the id. A reader's lease keeps the
//! packs of its own backup, not those of others: what is found here may be gone a moment later, and
//! is lost then as it was before. A check with repair makes it last.
//!
//! Memory: an index of segments of some MiB, the places of pages up to 20 MiB, 8 directories, 40
//! bytes for each pack, and about 200 bytes for each id that is looked for; the caller bounds how
//! many.

use crate::dedup::{DedupIndex, DedupOptions, Lookup};
use crate::error::{Error, ErrorKind, Result};
pub use crate::fetch::HeaderCheck;
use crate::fetch::{EntryAddr, Fetched, PackFrame, RangeRead, read_frame, read_range};
use crate::format::names::{DEDUP_PREFIX, pack_key, parse_segment_key};
use crate::ids::{ChunkId, PackId, PageId};
use crate::limits::PACK_HEADER_BYTES;
use crate::pack::{EntryKind, PackKind, decode_pack_header};
use crate::repository::{Repository, SegmentInfo};
use crate::seal::Opener;
use crate::units::Location;
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Directories, and entries to be confirmed, read at a time.
const IN_FLIGHT: usize = 8;
/// Headers of packs read at a time.
const HEADERS_IN_FLIGHT: usize = 32;
/// Places that are kept of one id.
const PLACES_MAX: usize = 4;
/// Memory of the segments' index.
const INDEX_BYTES: u64 = 16 << 20;
/// Pages of the repository whose places are kept, once they were looked for: up to 20 MiB.
const PAGES_KEPT_MAX: usize = 1 << 17;

/// What was found elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Chunks, each id once.
    pub chunks: u64,
    /// Map pages.
    pub pages: u64,
}

/// What one run has found elsewhere, and what it found wrong with the headers of packs.
#[derive(Debug)]
pub struct Salvage {
    headers: HeaderCheck,
    search: tokio::sync::Mutex<Search>,
    /// What is read from now on instead; `None`: it stands nowhere else.
    found: Mutex<HashMap<ChunkId, Option<Location>>>,
    pages: AtomicU64,
}

impl Salvage {
    /// Of a run that reads from this repository.
    pub fn new(repo: &Arc<Repository>) -> Self {
        Self::avoiding(repo, HashSet::new())
    }

    /// Of one that is to build on what it finds: nothing is found in these packs.
    pub fn avoiding(repo: &Arc<Repository>, avoid: HashSet<PackId>) -> Self {
        Self {
            headers: HeaderCheck::default(),
            search: tokio::sync::Mutex::new(Search::new(repo, avoid)),
            found: Mutex::default(),
            pages: AtomicU64::new(0),
        }
    }

    /// The headers of packs.
    pub fn headers(&self) -> &HeaderCheck {
        &self.headers
    }

    /// Looks for chunks that are not right at these places. Gives those that it found anew.
    pub async fn find_chunks(&self, lost: &[(ChunkId, Location)]) -> Result<u64> {
        let fresh: Vec<_> = {
            let all = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            // what was found and is not right there either is looked for again
            let known = |id, at: &Location| all.get(id).is_some_and(|place| *place != Some(*at));
            lost.iter().filter(|(id, at)| !known(id, at)).copied().collect()
        };
        if fresh.is_empty() {
            return Ok(0);
        }
        let found = self.search.lock().await.chunks(&fresh).await?;
        let count = found.len() as u64;
        let mut all = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(fresh.iter().map(|(id, _)| (*id, found.get(id).copied())));
        Ok(count)
    }

    /// Where a chunk was found.
    pub fn place(&self, id: &ChunkId) -> Option<Location> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied().flatten()
    }

    /// Places at which directories list pages that are not right at those given: to be read and
    /// checked.
    pub(crate) async fn find_pages(
        &self,
        lost: &[(PageId, Location)],
    ) -> Result<HashMap<PageId, Vec<Location>>> {
        let wanted = lost.iter().map(|(id, at)| (*id.as_bytes(), *at));
        let places = self.search.lock().await.listed(PackKind::Pages, wanted).await?;
        let page = |(id, places)| (PageId::from_bytes(id), places);
        Ok(places.into_iter().map(page).collect())
    }

    /// A page was found elsewhere, and is right.
    pub(crate) fn count_page(&self) {
        self.pages.fetch_add(1, Ordering::Relaxed);
    }

    /// How much was found until now.
    pub fn salvaged(&self) -> Salvaged {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let chunks = found.values().flatten().count() as u64;
        Salvaged { chunks, pages: self.pages.load(Ordering::Relaxed) }
    }
}

#[derive(Debug)]
struct Search {
    repo: Arc<Repository>,
    /// Packs that nothing is to be found in.
    avoid: HashSet<PackId>,
    /// With their sizes; listed when they are needed first.
    packs: Option<Vec<(PackId, u64)>>,
    /// Those of pages among them.
    page_packs: Option<HashSet<PackId>>,
    pages: Pages,
    segments: Option<DedupIndex>,
}

/// Where directories list pages. Each load of a map asks for some, and a lost pack of pages makes
/// many loads ask.
#[derive(Debug)]
enum Pages {
    Unread,
    All(Listed),
    TooMany,
}

/// Ids that are looked for, and where they are known to be bad.
type Wanted = HashMap<[u8; 32], HashSet<Location>>;
/// Where ids are listed.
type Listed = HashMap<[u8; 32], Vec<Location>>;

impl Search {
    fn new(repo: &Arc<Repository>, avoid: HashSet<PackId>) -> Self {
        Self {
            repo: Arc::clone(repo),
            avoid,
            packs: None,
            page_packs: None,
            pages: Pages::Unread,
            segments: None,
        }
    }

    async fn chunks(&mut self, lost: &[(ChunkId, Location)]) -> Result<HashMap<ChunkId, Location>> {
        let mut left: HashMap<ChunkId, HashSet<Location>> = HashMap::new();
        for (id, at) in lost {
            left.entry(*id).or_default().insert(*at);
        }
        let in_segments = self.in_segments(&left).await?;
        let mut found = confirmed(&self.repo, in_segments).await?;
        left.retain(|id, _| !found.contains_key(id));
        if left.is_empty() {
            return Ok(found);
        }
        // an iterator that borrows would keep this future from being sent to another thread
        let wanted: Vec<_> =
            left.iter().flat_map(|(id, bad)| bad.iter().map(|at| (*id.as_bytes(), *at))).collect();
        let mut listed = self.listed(PackKind::Chunks, wanted.into_iter()).await?;
        while !listed.is_empty() {
            let next = |(id, places): (&[u8; 32], &mut Vec<Location>)| {
                places.pop().map(|at| (ChunkId::from_bytes(*id), at))
            };
            let candidates: Vec<_> = listed.iter_mut().filter_map(next).collect();
            found.extend(confirmed(&self.repo, candidates).await?);
            listed.retain(|id, places| {
                !places.is_empty() && !found.contains_key(&ChunkId::from_bytes(*id))
            });
        }
        Ok(found)
    }

    /// What segments say. They may be wrong.
    async fn in_segments(
        &mut self,
        lost: &HashMap<ChunkId, HashSet<Location>>,
    ) -> Result<Vec<(ChunkId, Location)>> {
        if self.segments.is_none() {
            let listed = self.repo.store().list(DEDUP_PREFIX).await?;
            let segments = listed.into_iter().filter_map(|l| {
                Some(SegmentInfo { id: parse_segment_key(&l.key).ok()?, size_bytes: l.size_bytes })
            });
            let options = DedupOptions { memory_bytes: INDEX_BYTES, worth_bytes: u64::MAX };
            let index = DedupIndex::open(&self.repo, segments.collect(), options, None);
            self.segments = Some(Box::pin(index).await);
        }
        let Some(index) = &self.segments else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (id, bad) in lost {
            loop {
                match index.lookup(id, |at| !bad.contains(at) && !self.avoid.contains(&at.pack)) {
                    Lookup::At(at) => found.push((*id, at)),
                    Lookup::Absent => {}
                    Lookup::Needs(block) => {
                        index.load(block).await;
                        continue;
                    }
                }
                break;
            }
        }
        Ok(found)
    }

    /// What the directories of packs of one kind list, but for the places that are bad.
    async fn listed(
        &mut self,
        kind: PackKind,
        lost: impl Iterator<Item = ([u8; 32], Location)>,
    ) -> Result<Listed> {
        let mut wanted = Wanted::new();
        for (id, at) in lost {
            wanted.entry(id).or_default().insert(at);
        }
        if kind == PackKind::Pages
            && let Some(all) = self.all_pages().await?
        {
            let known = |(id, bad): (&[u8; 32], &HashSet<Location>)| {
                let places = all.get(id)?.iter().filter(|at| !bad.contains(at));
                Some((*id, places.copied().collect()))
            };
            return Ok(wanted.iter().filter_map(known).collect());
        }
        let packs = self.packs_of(kind).await?;
        let mut listed = Listed::new();
        directories(&self.repo, packs, is_passed_over, |pack, frame| {
            if frame.header.kind != kind {
                return Ok(());
            }
            for (id, at) in places(pack, &frame) {
                let Some(bad) = wanted.get(&id) else { continue };
                let known = listed.entry(id).or_default();
                if !bad.contains(&at) && known.len() < PLACES_MAX {
                    known.push(at);
                }
            }
            Ok(())
        })
        .await?;
        Ok(listed)
    }

    /// The places of all pages, read once; `None`: there are too many to keep them.
    async fn all_pages(&mut self) -> Result<Option<&Listed>> {
        if matches!(self.pages, Pages::Unread) {
            let packs = self.packs_of(PackKind::Pages).await?;
            let (mut all, mut too_many) = (Listed::new(), false);
            directories(&self.repo, packs, is_passed_over, |pack, frame| {
                if frame.header.kind != PackKind::Pages || too_many {
                    return Ok(());
                }
                for (id, at) in places(pack, &frame) {
                    let known = all.entry(id).or_default();
                    if known.len() <= PLACES_MAX {
                        known.push(at);
                    }
                }
                too_many = all.len() > PAGES_KEPT_MAX;
                Ok(())
            })
            .await?;
            self.pages = if too_many { Pages::TooMany } else { Pages::All(all) };
        }
        match &self.pages {
            Pages::All(all) => Ok(Some(all)),
            Pages::Unread | Pages::TooMany => Ok(None),
        }
    }

    /// Packs that may be of this kind.
    async fn packs_of(&mut self, kind: PackKind) -> Result<Vec<(PackId, u64)>> {
        if self.packs.is_none() {
            let mut packs = self.repo.list_packs(|_, _| ()).await?;
            packs.retain(|(pack, _)| !self.avoid.contains(pack));
            self.packs = Some(packs);
        }
        let all = self.packs.as_deref().unwrap_or_default();
        if kind == PackKind::Pages && self.page_packs.is_none() {
            self.page_packs = Some(page_packs(&self.repo, all).await?);
        }
        let may_be = |(pack, _): &&(PackId, u64)| match &self.page_packs {
            Some(pages) => pages.contains(pack) == (kind == PackKind::Pages),
            None => true,
        };
        Ok(all.iter().filter(may_be).copied().collect())
    }
}

/// Packs of pages, by their headers.
pub(crate) async fn page_packs(
    repo: &Arc<Repository>,
    all: &[(PackId, u64)],
) -> Result<HashSet<PackId>> {
    let mut headers = stream::iter(all.to_vec())
        .map(|(pack, _)| async move {
            let key = pack_key(&pack);
            let header = repo.store().get_range(&key, 0..u64::from(PACK_HEADER_BYTES)).await;
            (pack, header)
        })
        .buffer_unordered(HEADERS_IN_FLIGHT);
    let mut pages = HashSet::new();
    while let Some((pack, header)) = headers.next().await {
        match header.and_then(|header| decode_pack_header(&header)) {
            Ok(header) if header.kind == PackKind::Pages => drop(pages.insert(pack)),
            Ok(_) => {}
            Err(e) if is_passed_over(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(pages)
}

/// Everything that a directory lists, with its place.
pub(crate) fn places(
    pack: &PackId,
    frame: &PackFrame,
) -> impl Iterator<Item = ([u8; 32], Location)> {
    let pack = *pack;
    (0_u32..).zip(&frame.directory).flat_map(move |(number, entry)| {
        (0_u16..).zip(&entry.ids).map(move |(index, id)| {
            let (offset, stored_len) = (entry.offset, entry.stored_len);
            (*id, Location { pack, entry: number, offset, stored_len, index })
        })
    })
}

/// Hands over the directories of packs, but for those that fail with an error to `pass_over`.
pub(crate) async fn directories(
    repo: &Arc<Repository>,
    packs: Vec<(PackId, u64)>,
    pass_over: impl Fn(&Error) -> bool,
    mut take: impl FnMut(&PackId, PackFrame) -> Result<()>,
) -> Result<()> {
    let mut frames = stream::iter(packs)
        .map(|(pack, size)| async move {
            let mut opener = Opener::new(Arc::clone(repo.keys()))?;
            Ok::<_, Error>((pack, read_frame(repo, &mut opener, &pack, size).await))
        })
        .buffer_unordered(IN_FLIGHT);
    while let Some(answer) = frames.next().await {
        match answer? {
            (pack, Ok(frame)) => take(&pack, frame)?,
            (_, Err(e)) if pass_over(&e) => {}
            (_, Err(e)) => return Err(e),
        }
    }
    Ok(())
}

/// What is damaged or gone here may stand somewhere else all the same. So may what this version
/// cannot read.
fn is_passed_over(e: &Error) -> bool {
    let kind = e.kind();
    matches!(kind, ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Missing)
        || kind == ErrorKind::Unsupported
}

/// Those that stand where it is said.
async fn confirmed(
    repo: &Arc<Repository>,
    candidates: Vec<(ChunkId, Location)>,
) -> Result<HashMap<ChunkId, Location>> {
    let params = repo.params();
    let mut entries: BTreeMap<EntryAddr, Vec<(ChunkId, Location)>> = BTreeMap::new();
    for (id, at) in candidates {
        let addr = EntryAddr::from(&at);
        if addr.check_chunk(at.index, params.chunk, params.entry_chunks).is_ok() {
            entries.entry(addr).or_default().push((id, at));
        }
    }
    let mut answers = stream::iter(entries)
        .map(|(addr, of_entry)| async move {
            let (start, len) = (addr.offset, addr.stored_len);
            let read = RangeRead { pack: addr.pack, start, len, entries: vec![addr] };
            (addr, of_entry, read_range(repo, &read).await)
        })
        .buffer_unordered(IN_FLIGHT);
    let mut opener = Opener::new(Arc::clone(repo.keys()))?;
    let (mut plain, mut good) = (Vec::new(), HashMap::new());
    while let Some((addr, of_entry, fetched)) = answers.next().await {
        let stored = match fetched {
            Ok(Fetched::Data(stored)) => stored,
            Ok(Fetched::Gone) => continue,
            Err(e) if is_passed_over(&e) => continue,
            Err(e) => return Err(e),
        };
        let EntryAddr { pack, offset, .. } = addr;
        let opened = opener.open_entry(EntryKind::Chunks, &pack, offset, &stored, &mut plain);
        let Ok(header) = opened else { continue };
        for (id, at) in of_entry {
            let range = header.chunk(at.index, params.chunk);
            if range.is_ok_and(|range| repo.keys().chunk_id(&plain[range]) == id) {
                good.insert(id, at);
            }
        }
    }
    Ok(good)
}
