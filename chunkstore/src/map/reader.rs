//! Loads pages of one map: level by level, near ones in one request, many requests in flight.
//!
//! For: whoever follows a map (backup, restore, verify, diff). Owns a small cache of pages, the
//! opener and the forwarding stubs seen so far. Must not: use a page before its id, level and
//! extent were checked against the reference that led to it, or remember that a stub was absent.
//!
//! Mechanism: a load walks the levels from the root. Of each level it knows the pages that the
//! wanted chunks need, as all pages above are there; the missing ones become one plan of merged
//! range reads. So the cost is one round of requests a level, and grows with the pages that are
//! touched. References go from level to level down, so hostile pages cannot make a cycle.

mod ahead;
mod cache;
mod elsewhere;
mod limits;

use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{EntryAddr, Fetched, RangeRead, StubFollower, plan_reads, read_range};
use crate::format::names::pack_key;
use crate::format::page::Page;
use crate::ids::PackId;
use crate::limits::{PAGE_PLAIN_BYTES_MAX, STUB_HOPS_MAX};
use crate::map::open::open_page;
use crate::map::pages::PageSet;
use crate::map::volume::{VolumeMap, child_span, normalise};
use crate::pack::PackKind;
use crate::repository::DamagedSet;
use crate::repository::Repository;
use crate::salvage::Salvage;
use crate::seal::Opener;
use crate::units::{PageRef, page_span};
use bytes::Bytes;
use cache::PageCache;
use futures::StreamExt;
pub use limits::ReadLimits;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Reads one map.
#[derive(Debug)]
pub struct MapReader {
    repo: Arc<Repository>,
    map: VolumeMap,
    limits: ReadLimits,
    opener: Opener,
    stubs: StubFollower,
    cache: PageCache,
    /// Pages that are not even tried.
    skip: DamagedSet,
    tolerant: bool,
    lost: Vec<LostPage>,
    /// Where damaged pages are looked for, and headers noted.
    salvage: Option<Arc<Salvage>>,
    /// Of the load at hand: places in what is wanted, to be looked for elsewhere.
    bad: Vec<(usize, Error)>,
}

/// A page that could not be had, and with it all that it says.
#[derive(Debug)]
pub struct LostPage {
    /// The chunks whose references it holds.
    pub chunks: Range<u64>,
    /// What led to it.
    pub page: PageRef,
    /// What was wrong; `None`: it was known to be damaged.
    pub error: Option<Error>,
}

/// A page to be loaded.
pub(crate) use crate::map::open::PagePlace as Want;

/// What came of a page that was wanted. When a load is over, none waits.
#[derive(Debug, Clone)]
enum Answer {
    Waiting,
    Page(Arc<Page>),
    /// It cannot be had, and is among those that were lost.
    Lost,
}

/// A loaded page.
pub(crate) type Loaded = (Want, Arc<Page>);

impl MapReader {
    /// A reader with the usual limits.
    pub fn new(repo: Arc<Repository>, map: VolumeMap) -> Result<Self> {
        Self::with_limits(repo, map, ReadLimits::default())
    }

    /// A reader with these limits.
    pub fn with_limits(repo: Arc<Repository>, map: VolumeMap, limits: ReadLimits) -> Result<Self> {
        let opener = Opener::new(Arc::clone(repo.keys()))?;
        let cache = PageCache::new(limits.cache_bytes_max);
        let stubs = StubFollower::default();
        Ok(Self {
            repo,
            map,
            limits,
            opener,
            stubs,
            cache,
            skip: DamagedSet::default(),
            tolerant: false,
            lost: Vec::new(),
            salvage: None,
            bad: Vec::new(),
        })
    }

    /// From now on these pages count as not there: what they hold reads as Zero, and they are among
    /// [`Self::take_lost`].
    pub fn skip_damaged(&mut self, damaged: DamagedSet) {
        self.skip = damaged;
    }

    /// From now on a page that is damaged or missing is no error: what it holds reads as Zero, and
    /// it is among [`Self::take_lost`]. For who reads all that is left.
    pub fn tolerate_damage(&mut self) {
        self.tolerant = true;
    }

    /// The pages that were passed over since the last call.
    pub fn take_lost(&mut self) -> Vec<LostPage> {
        std::mem::take(&mut self.lost)
    }

    /// The map that it reads.
    pub fn map(&self) -> &VolumeMap {
        &self.map
    }

    /// Loads all pages on the paths to these chunks (any order; what lies behind the volume's end
    /// is left out). The result covers whole leaves.
    ///
    /// The memory is that of the touched pages: callers load large ranges in windows, or use
    /// [`super::MapWalk`].
    pub async fn load(&mut self, chunks: &[Range<u64>]) -> Result<PageSet> {
        let fanout = u64::from(self.map.fanout());
        let whole_leaves = chunks
            .iter()
            .filter(|r| !r.is_empty())
            .map(|r| r.start / fanout * fanout..r.end.div_ceil(fanout).saturating_mul(fanout));
        let ranges = normalise(whole_leaves, self.map.geometry().chunks());
        let mut wanted = if ranges.is_empty() { Vec::new() } else { self.root_want() };
        let mut levels = vec![BTreeMap::new(); usize::from(self.map.root().depth)];
        for level in (0..self.map.root().depth).rev() {
            let loaded = self.pages(wanted).await?;
            wanted = children_wanted(&self.map, &loaded, &ranges);
            levels[usize::from(level)] = by_number(loaded);
        }
        Ok(PageSet::new(self.map.clone(), ranges, levels))
    }

    /// Loads the root: whether it is there and right shows here.
    pub async fn load_root(&mut self) -> Result<()> {
        let root = self.root_want();
        self.pages(root).await.map(drop)
    }

    /// The root as a page to load; none if the volume is all zero.
    pub(crate) fn root_want(&self) -> Vec<Want> {
        let level = self.map.root().depth - 1;
        self.map.root().root.map(|page| Want { level, number: 0, page }).into_iter().collect()
    }

    /// These pages, in the order given, from the cache or the store; without those that are passed
    /// over.
    pub(crate) async fn pages(&mut self, mut wanted: Vec<Want>) -> Result<Vec<Loaded>> {
        if !self.skip.is_empty() {
            let known = |w: &mut Want| self.skip.covers(&w.page.location);
            for want in wanted.extract_if(.., known) {
                let chunks = self.map.page_chunks(want.level, want.number);
                self.lost.push(LostPage { chunks, page: want.page, error: None });
            }
        }
        let mut found = Vec::with_capacity(wanted.len());
        let mut missing = Vec::new();
        for (at, want) in wanted.iter().enumerate() {
            let cached = self.cache.get(want.level, want.number);
            if cached.is_none() {
                missing.push((EntryAddr::from(&want.page.location), at));
            }
            found.push(cached.map_or(Answer::Waiting, Answer::Page));
        }
        if !missing.is_empty() {
            // of a load that ended early, and of other pages
            self.bad.clear();
            self.fetch(&wanted, missing, &mut found).await?;
            self.look_elsewhere(&wanted, &mut found).await?;
        }
        let mut loaded = Vec::with_capacity(wanted.len());
        for (want, answer) in wanted.into_iter().zip(found) {
            match answer {
                Answer::Page(page) => loaded.push((want, page)),
                Answer::Lost => {}
                // what it holds would read as Zero
                Answer::Waiting => {
                    let what = "it was neither read nor lost";
                    return Err(Error::new(ErrorKind::Bug, self.read_place(&want), what));
                }
            }
        }
        for (want, page) in &loaded {
            self.cache.put(want.level, want.number, page);
        }
        Ok(loaded)
    }

    /// Reads pages until all are there: first where the map says, then where stubs say. `missing`
    /// holds addresses and indexes into `wanted`.
    async fn fetch(
        &mut self,
        wanted: &[Want],
        mut missing: Vec<(EntryAddr, usize)>,
        found: &mut [Answer],
    ) -> Result<()> {
        for _ in 0..=STUB_HOPS_MAX {
            let mut possible = Vec::with_capacity(missing.len());
            for (mut addr, at) in missing {
                if let Some(known) = self.stubs.known(addr.pack, addr.entry, 0) {
                    addr = EntryAddr::from(&known);
                }
                match addr.check(PAGE_PLAIN_BYTES_MAX) {
                    Ok(()) => possible.push((addr, at)),
                    Err(e) => self.lose(wanted, at, found, e)?,
                }
            }
            missing = possible;
            missing.sort_unstable();
            let gone = self.read_round(wanted, &missing, found).await?;
            if gone.is_empty() {
                return Ok(());
            }
            let waits = |at: usize| matches!(found[at], Answer::Waiting);
            missing.retain(|(addr, at)| gone.contains(&addr.pack) && waits(*at));
            missing = self.follow(wanted, missing, found).await?;
        }
        let at = missing.first().map_or(0, |(_, at)| *at);
        let what = "the pack that holds it moved again and again while it was read";
        Err(Error::new(ErrorKind::Unavailable, self.read_place(&wanted[at]), what))
    }

    /// One plan of reads, all of it in flight as far as the limits allow; gives the packs that are
    /// gone, ascending.
    async fn read_round(
        &mut self,
        wanted: &[Want],
        missing: &[(EntryAddr, usize)],
        found: &mut [Answer],
    ) -> Result<Vec<PackId>> {
        let addrs = missing.iter().map(|(addr, _)| *addr).collect();
        let ReadLimits { gap_bytes, read_bytes_max, .. } = self.limits;
        let mut reads = plan_reads(addrs, gap_bytes, read_bytes_max);
        let salvage = self.salvage.clone();
        if let Some(salvage) = &salvage {
            salvage.headers().reach(&mut reads, gap_bytes, read_bytes_max);
        }
        let repo = Arc::clone(&self.repo);
        let mut gone = Vec::new();
        while !reads.is_empty() {
            let width = self.limits.width(&reads);
            let mut answers = futures::stream::iter(std::mem::take(&mut reads))
                .map(|read| {
                    let repo = &repo;
                    async move {
                        let fetched = read_range(repo, &read).await;
                        (read, fetched)
                    }
                })
                .buffer_unordered(width);
            while let Some((read, fetched)) = answers.next().await {
                match fetched {
                    Ok(Fetched::Data(data)) => {
                        if let Some(salvage) = &salvage {
                            salvage.headers().look(&repo, PackKind::Pages, &read, &data).await?;
                        }
                        self.take_read(wanted, missing, found, &read, &data)?;
                    }
                    Ok(Fetched::Gone) => gone.push(read.pack),
                    // a pack that is cut short may still hold some of them
                    Err(e) if self.goes_on(&e) && read.entries.len() > 1 => {
                        reads.extend(one_by_one(&read));
                    }
                    Err(e) => {
                        for addr in &read.entries {
                            for (_, at) in who_wants(missing, addr) {
                                self.lose(wanted, *at, found, again(&e, addr))?;
                            }
                        }
                    }
                }
            }
        }
        gone.sort_unstable();
        gone.dedup();
        Ok(gone)
    }

    /// Opens the pages that a read brought.
    fn take_read(
        &mut self,
        wanted: &[Want],
        missing: &[(EntryAddr, usize)],
        found: &mut [Answer],
        read: &RangeRead,
        data: &Bytes,
    ) -> Result<()> {
        for addr in &read.entries {
            let stored = read.entry_bytes(data, addr)?;
            for (_, at) in who_wants(missing, addr) {
                match self.open(&wanted[*at], addr, &stored) {
                    Ok(page) => found[*at] = Answer::Page(Arc::new(page)),
                    Err(e) => self.lose(wanted, *at, found, e)?,
                }
            }
        }
        Ok(())
    }

    /// Replaces the addresses of entries in packs that are gone by where their stubs say they are.
    /// What no stub knows is an error, or left out.
    async fn follow(
        &mut self,
        wanted: &[Want],
        missing: Vec<(EntryAddr, usize)>,
        answers: &mut [Answer],
    ) -> Result<Vec<(EntryAddr, usize)>> {
        let mut found = Vec::with_capacity(missing.len());
        for of_pack in missing.chunk_by(|(a, _), (b, _)| a.pack == b.pack) {
            let pack = of_pack[0].0.pack;
            let entries: Vec<_> = of_pack.iter().map(|(a, _)| (a.entry, 0)).collect();
            match self.stubs.resolve(&self.repo, &pack, &entries).await {
                Ok(moved) => {
                    let at = of_pack.iter().map(|(_, at)| *at);
                    found.extend(moved.iter().map(EntryAddr::from).zip(at));
                }
                Err(e) if self.goes_on(&e) && of_pack.len() > 1 => {
                    for (addr, at) in of_pack {
                        let entry = [(addr.entry, 0)];
                        match self.stubs.resolve(&self.repo, &pack, &entry).await {
                            Ok(moved) => found.extend(moved.first().map(|to| (to.into(), *at))),
                            Err(e) => self.lose(wanted, *at, answers, e)?,
                        }
                    }
                }
                Err(e) => {
                    for (addr, at) in of_pack {
                        self.lose(wanted, *at, answers, again(&e, addr))?;
                    }
                }
            }
        }
        Ok(found)
    }

    /// What is of a newer version is not lost: nobody is to go on without it.
    fn tolerates(&self, e: &Error) -> bool {
        self.tolerant && matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing)
    }

    /// Whether a load goes on after this error.
    fn goes_on(&self, e: &Error) -> bool {
        self.tolerates(e) || (self.salvage.is_some() && elsewhere::may_be_elsewhere(e))
    }

    /// A page that is not where it should be: it is looked for elsewhere, if there is where.
    fn lose(&mut self, wanted: &[Want], at: usize, found: &mut [Answer], e: Error) -> Result<()> {
        if self.salvage.is_some() && elsewhere::may_be_elsewhere(&e) {
            found[at] = Answer::Lost;
            self.bad.push((at, e));
            return Ok(());
        }
        self.lose_for_good(wanted, at, found, e)
    }

    /// A page that cannot be had: an error, unless that is tolerated.
    fn lose_for_good(
        &mut self,
        wanted: &[Want],
        at: usize,
        found: &mut [Answer],
        e: Error,
    ) -> Result<()> {
        let want = &wanted[at];
        let e = self.seen_at(want, e);
        if !self.tolerates(&e) {
            return Err(e);
        }
        found[at] = Answer::Lost;
        let chunks = self.map.page_chunks(want.level, want.number);
        self.lost.push(LostPage { chunks, page: want.page, error: Some(e) });
        Ok(())
    }

    fn open(&mut self, want: &Want, addr: &EntryAddr, stored: &Bytes) -> Result<Page> {
        open_page(&mut self.opener, self.repo.keys(), &self.map, want, addr, stored)
    }

    fn read_place(&self, want: &Want) -> String {
        format!("read {}", self.map.place(want.level, want.number))
    }

    fn seen_at(&self, want: &Want, error: Error) -> Error {
        error.within(self.read_place(want))
    }
}

/// All that are looked for at this address: one page may stand at many places of a map. `missing`
/// ascends.
fn who_wants<'m>(missing: &'m [(EntryAddr, usize)], addr: &EntryAddr) -> &'m [(EntryAddr, usize)] {
    let from = missing.partition_point(|(a, _)| a < addr);
    let to = missing.partition_point(|(a, _)| a <= addr);
    &missing[from..to]
}

/// What was found out once, for each who wants to know.
fn again(e: &Error, addr: &EntryAddr) -> Error {
    let place = format!("read entry {} of {}", addr.entry, pack_key(&addr.pack));
    let e_again = Error::new(e.kind(), place, e.to_string());
    match e.hint_text() {
        Some(hint) => e_again.hint(hint.to_owned()),
        None => e_again,
    }
}

/// Each entry of a read as a read of its own.
fn one_by_one(read: &RangeRead) -> impl Iterator<Item = RangeRead> + '_ {
    read.entries.iter().map(|addr| RangeRead {
        pack: addr.pack,
        start: addr.offset,
        len: addr.stored_len,
        entries: vec![*addr],
    })
}

/// The non-zero children of loaded pages that lie in the ranges, ascending. Leaves have none. Pages
/// and ranges ascend.
pub(crate) fn children_wanted(
    map: &VolumeMap,
    loaded: &[Loaded],
    ranges: &[Range<u64>],
) -> Vec<Want> {
    let mut wanted = Vec::new();
    let mut skip = 0;
    for (want, page) in loaded.iter().filter(|(want, _)| want.level > 0) {
        let level = want.level - 1;
        let span = child_span(map.fanout(), want.level);
        let first_child = want.number * u64::from(map.fanout());
        let first = first_child * span;
        let end = first.saturating_add(page_span(map.fanout(), want.level));
        while ranges.get(skip).is_some_and(|r| r.end <= first) {
            skip += 1;
        }
        let mut next = 0;
        for range in ranges[skip..].iter().take_while(|r| r.start < end) {
            let from = (range.start.saturating_sub(first) / span).max(next);
            next = (range.end - first).div_ceil(span).min(page.children().len() as u64).max(from);
            for index in from..next {
                if let Some(page) = usize::try_from(index).ok().and_then(|i| page.page_ref(i)) {
                    wanted.push(Want { level, number: first_child + index, page });
                }
            }
        }
    }
    wanted
}

pub(crate) fn by_number(loaded: Vec<Loaded>) -> BTreeMap<u64, Arc<Page>> {
    loaded.into_iter().map(|(want, page)| (want.number, page)).collect()
}

#[cfg(test)]
mod tests;
