//! Goes over everything that the maps of many backups reach, each page once.
//!
//! For: a mark over a repository (garbage collection, check). Maps of one volume share most of
//! their pages; the visitor says at each reference to a page whether it has been there
//! ([`super::LiveSet`] knows, at two bits a page), so what is shared is read once and the cost is
//! that of the pages that exist.
//!
//! Mechanism: references to pages that are still to be read wait by level. The lowest level goes
//! first, all of it at once if it is leaves, a bounded number of pages above: that keeps what waits
//! small, and lets reads of many maps be merged. Pages are looked at as they arrive and kept by
//! nobody. What fails is tried again page by page, so that one bad page is not taken for many, and
//! one bad answer not for a bad page. Pages whose pack is gone are followed through `moved/`.
//!
//! Memory: reads in flight ([`ReadLimits`]) and about 100 bytes for each page that waits, at most
//! some 30 MiB in sum.

use crate::error::{Error, ErrorKind, Result};
use crate::fetch::{EntryAddr, Fetched, RangeRead, StubFollower, plan_reads, read_range};
use crate::format::names::pack_key;
use crate::format::page::Page;
use crate::ids::PackId;
use crate::limits::{MAP_DEPTH_MAX, PAGE_PLAIN_BYTES_MAX, STUB_HOPS_MAX};
use crate::map::open::{PageKey, PagePlace, open_page};
use crate::map::reader::ReadLimits;
use crate::map::volume::VolumeMap;
use crate::repository::Repository;
use crate::seal::Opener;
use crate::units::{ChunkRef, PageRef};
use bytes::Bytes;
use futures::StreamExt;

/// Children that pages above the leaves may bring at a time, at most.
const WAITING_MAX: usize = 1 << 15;

/// A reference to a page, where it was met.
#[derive(Debug, Clone, Copy)]
pub struct PageAt {
    /// Which of the maps; of a page that several share, the one that was there first.
    pub map: u32,
    /// 0 for a leaf.
    pub level: u8,
    /// Number in its level of that map.
    pub number: u64,
    /// What the reference says.
    pub page: PageRef,
}

impl PageAt {
    /// What is right or wrong together with it. `maps` are those of the walk.
    pub(crate) fn key(&self, maps: &[VolumeMap]) -> PageKey {
        PageKey::new(&maps[self.map as usize], self.level, self.number, &self.page)
    }
}

/// What is made of everything that is reached. An error of any of these ends the walk.
pub trait Visitor {
    /// A reference to a page. True: it is to be read.
    fn page(&mut self, at: &PageAt) -> Result<bool>;

    /// A reference to a chunk, by its number in the map that `leaf` was reached in.
    fn chunk(&mut self, leaf: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()>;

    /// A page that cannot be read; what lies below it is not reached.
    fn unreadable(&mut self, at: &PageAt, error: Error) -> Result<()>;
}

/// What a walk has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reached {
    /// Pages that were read.
    pub pages: u64,
    /// Bytes of the reads that brought them.
    pub read_bytes: u64,
}

/// Visits everything that `maps` reach.
pub async fn reach<V: Visitor>(
    repo: &Repository,
    maps: &[VolumeMap],
    limits: ReadLimits,
    visitor: &mut V,
) -> Result<Reached> {
    let mut walk = Reach {
        repo,
        maps,
        limits,
        visitor,
        opener: Opener::new(std::sync::Arc::clone(repo.keys()))?,
        stubs: StubFollower::default(),
        waiting: vec![Vec::new(); usize::from(MAP_DEPTH_MAX)],
        reached: Reached::default(),
    };
    for (map, number) in maps.iter().zip(0..) {
        if let Some(page) = map.root().root {
            // the depth is at least 1 and fits the volume: `VolumeMap::new`
            let level = map.root().depth - 1;
            walk.meet(PageAt { map: number, level, number: 0, page })?;
        }
    }
    while let Some(batch) = walk.next_batch() {
        walk.read(batch).await?;
    }
    Ok(walk.reached)
}

struct Reach<'a, V> {
    repo: &'a Repository,
    maps: &'a [VolumeMap],
    limits: ReadLimits,
    visitor: &'a mut V,
    opener: Opener,
    stubs: StubFollower,
    /// By level.
    waiting: Vec<Vec<PageAt>>,
    reached: Reached,
}

/// A page and where it is looked for.
type Sought = (EntryAddr, PageAt);

impl<V: Visitor> Reach<'_, V> {
    fn map(&self, at: &PageAt) -> &VolumeMap {
        &self.maps[at.map as usize]
    }

    fn meet(&mut self, at: PageAt) -> Result<()> {
        if self.visitor.page(&at)? {
            self.waiting[usize::from(at.level)].push(at);
        }
        Ok(())
    }

    fn next_batch(&mut self) -> Option<Vec<PageAt>> {
        let level = self.waiting.iter().position(|pages| !pages.is_empty())?;
        let pages = &mut self.waiting[level];
        if level == 0 {
            return Some(std::mem::take(pages));
        }
        let fanout = usize::from(self.repo.params().page_fanout);
        let most = (WAITING_MAX / fanout.max(1)).max(1);
        Some(pages.split_off(pages.len().saturating_sub(most)))
    }

    /// Reads pages until each was visited: first where the maps say, then where stubs say.
    async fn read(&mut self, batch: Vec<PageAt>) -> Result<()> {
        let mut sought: Vec<Sought> =
            batch.into_iter().map(|at| (EntryAddr::from(&at.page.location), at)).collect();
        let mut fresh = true;
        for _ in 0..=2 * STUB_HOPS_MAX {
            let mut possible = Vec::with_capacity(sought.len());
            for (mut addr, at) in sought {
                if let Some(known) = self.stubs.known(addr.pack, addr.entry, 0) {
                    addr = EntryAddr::from(&known);
                }
                match addr.check(PAGE_PLAIN_BYTES_MAX) {
                    Ok(()) => possible.push((addr, at)),
                    Err(e) => self.fail(&at, e)?,
                }
            }
            possible.sort_unstable_by_key(|(addr, _)| order(addr));
            let Round { gone, mut failed } = self.round(&possible, fresh).await?;
            sought = self.follow(gone, fresh, &mut failed).await?;
            // what failed at first is tried once more, alone: then it is known which it was
            fresh = failed.is_empty();
            sought.extend(failed);
            if sought.is_empty() {
                return Ok(());
            }
        }
        for (_, at) in sought {
            let what = "the pack that holds it moved again and again while it was read";
            self.fail(&at, Error::new(ErrorKind::Unavailable, "follow a page", what))?;
        }
        Ok(())
    }

    /// One plan of reads, all of it in flight as far as the limits allow.
    async fn round(&mut self, sought: &[Sought], fresh: bool) -> Result<Round> {
        let (gap, longest) =
            if fresh { (self.limits.gap_bytes, self.limits.read_bytes_max) } else { (0, 0) };
        let reads = plan_reads(sought.iter().map(|(addr, _)| *addr).collect(), gap, longest);
        let width = self.limits.width(&reads);
        let repo = self.repo;
        let mut answers = futures::stream::iter(reads)
            .map(|read| async move {
                let fetched = read_range(repo, &read).await;
                (read, fetched)
            })
            .buffer_unordered(width);
        let mut round = Round::default();
        while let Some((read, fetched)) = answers.next().await {
            let (Some(first), Some(last)) = (read.entries.first(), read.entries.last()) else {
                continue;
            };
            let from = sought.partition_point(|(addr, _)| order(addr) < order(first));
            let to = sought.partition_point(|(addr, _)| order(addr) <= order(last));
            let of_read = sought[from..to].iter();
            match fetched {
                Ok(Fetched::Data(data)) => {
                    self.reached.read_bytes += u64::from(read.len);
                    for (addr, at) in of_read {
                        match self.visit(&read, &data, addr, at)? {
                            None => {}
                            Some(_) if fresh => round.failed.push((*addr, *at)),
                            Some(e) => self.fail(at, e)?,
                        }
                    }
                }
                Ok(Fetched::Gone) => round.gone.extend(of_read.copied()),
                Err(e) if read.entries.len() > 1 || (fresh && is_lost(&e)) => {
                    round.failed.extend(of_read.copied());
                }
                Err(e) => {
                    let mut error = Some(e);
                    for (_, at) in of_read {
                        let e = error.take().unwrap_or_else(|| again(read.pack));
                        self.fail(at, e)?;
                    }
                }
            }
        }
        Ok(round)
    }

    /// Where the pages of packs that are gone are now.
    async fn follow(
        &mut self,
        mut gone: Vec<Sought>,
        fresh: bool,
        failed: &mut Vec<Sought>,
    ) -> Result<Vec<Sought>> {
        gone.sort_unstable_by_key(|(addr, _)| *addr);
        let mut found = Vec::with_capacity(gone.len());
        for of_pack in gone.chunk_by(|a, b| a.0.pack == b.0.pack) {
            let pack = of_pack[0].0.pack;
            let entries: Vec<_> = of_pack.iter().map(|(addr, _)| (addr.entry, 0)).collect();
            match self.stubs.resolve(self.repo, &pack, &entries).await {
                Ok(places) => {
                    let places = places.iter().map(EntryAddr::from);
                    found.extend(places.zip(of_pack.iter().map(|(_, at)| *at)));
                }
                Err(e) if fresh && is_lost(&e) => failed.extend(of_pack),
                Err(e) if of_pack.len() == 1 => self.fail(&of_pack[0].1, e)?,
                Err(_) => {
                    // perhaps only one of them is lost
                    for (addr, at) in of_pack {
                        let place = self.stubs.resolve(self.repo, &pack, &[(addr.entry, 0)]).await;
                        match place {
                            Ok(place) => {
                                found.extend(place.iter().map(|l| (EntryAddr::from(l), *at)));
                            }
                            Err(e) => self.fail(at, e)?,
                        }
                    }
                }
            }
        }
        Ok(found)
    }

    /// Gives why the page cannot be read.
    fn visit(
        &mut self,
        read: &RangeRead,
        data: &Bytes,
        addr: &EntryAddr,
        at: &PageAt,
    ) -> Result<Option<Error>> {
        let stored = read.entry_bytes(data, addr)?;
        let page = match self.open(at, addr, &stored) {
            Ok(page) => page,
            Err(e) => return Ok(Some(e)),
        };
        self.reached.pages += 1;
        let first = at.number * u64::from(self.map(at).fanout());
        for (index, number) in (0..page.children().len()).zip(first..) {
            if at.level == 0 {
                if let Some(chunk) = page.chunk_ref(index) {
                    self.visitor.chunk(at, number, &chunk)?;
                }
            } else if let Some(child) = page.page_ref(index) {
                self.meet(PageAt { map: at.map, level: at.level - 1, number, page: child })?;
            }
        }
        Ok(None)
    }

    fn open(&mut self, at: &PageAt, addr: &EntryAddr, stored: &Bytes) -> Result<Page> {
        let PageAt { level, number, page, .. } = *at;
        let map = &self.maps[at.map as usize];
        let place = PagePlace { level, number, page };
        open_page(&mut self.opener, self.repo.keys(), map, &place, addr, stored)
    }

    fn fail(&mut self, at: &PageAt, error: Error) -> Result<()> {
        let place = format!("read {}", self.map(at).place(at.level, at.number));
        self.visitor.unreadable(at, error.within(place))
    }
}

/// What may look otherwise when it is asked for again.
fn is_lost(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Missing)
}

/// As [`plan_reads`] sorts: a read is a run of what is sought.
fn order(addr: &EntryAddr) -> (PackId, u32, u32, u32) {
    (addr.pack, addr.offset, addr.stored_len, addr.entry)
}

/// What is left of a round.
#[derive(Default)]
struct Round {
    /// Their pack is gone.
    gone: Vec<Sought>,
    /// Of a merged read that failed.
    failed: Vec<Sought>,
}

/// Two references to one page that cannot be read.
fn again(pack: PackId) -> Error {
    let what = "another reference to the same page failed just now";
    Error::new(ErrorKind::Unavailable, format!("read {}", pack_key(&pack)), what)
}

#[cfg(test)]
mod tests;
