//! The mark: everything that any backup refers to, by pack.
//!
//! Live is what any manifest reaches, but for those in a given forgotten set. What is live in a
//! pack that was rewritten, or is about to be, is live at its new place too: relocations of
//! condemned lists that nobody has decided yet count as stubs do, along chains, until nothing is
//! added.
//!
//! Order is everything: manifests are read first, then `gc/`, then `moved/`. A relocation goes from
//! a condemned list to a stub before the list is removed, so read in this order it is seen at least
//! once. A listing of a large store is no snapshot: if a verdict appeared while this was going on,
//! all is read once more.
//!
//! A mark can be taken again later ([`Mark::update`]): maps never change, so what was walked once
//! is not walked again, and the result is that of a new mark or more. What was marked without need
//! (of a manifest that is gone since) is a leak until the next collection, never a loss. A walk
//! that ended early is thrown away whole: its pages are marked without what lies below.

use crate::error::{Error, ErrorKind, Result};
use crate::format::gc::{Condemned, CondemnedList};
use crate::format::manifest::ManifestRecord;
use crate::format::names::{
    AttemptName, BACKUPS_PREFIX, GC_PREFIX, GcObject, STUBS_PREFIX, parse_gc_key,
    parse_manifest_key, parse_stub_key, stub_key,
};
use crate::format::stub::Stub;
use crate::ids::{GenerationId, PackId};
use crate::limits::GC_BYTES_MAX;
use crate::map::{LiveSet, PageAt, Reached, ReadLimits, Visited, Visitor, VolumeMap, reach};
use crate::repository::condemned::unreadable_list;
use crate::repository::{RECORD_OVERHEAD, Repository};
use crate::units::{ChunkRef, Location};
use bytes::Bytes;
use futures::{StreamExt, TryStream, TryStreamExt, stream};
use std::collections::{BTreeSet, HashSet};

/// Objects read at a time: manifests and stubs.
const IN_FLIGHT: usize = 32;
/// Condemned lists read at a time: each may be large.
const LISTS_IN_FLIGHT: usize = 2;
/// How often a mark begins again because other collections end beside it.
const ROUNDS_MAX: u32 = 16;
const GC_OBJECT_BYTES_MAX: u64 = GC_BYTES_MAX as u64 + RECORD_OVERHEAD;

/// What is live, and what was seen on the way.
#[derive(Debug)]
pub(super) struct Mark {
    pub(super) live: LiveSet,
    /// Pages that were walked: what is live may have been met as something else.
    walked: Visited,
    /// Manifests that were walked, and fences: neither has to be looked at again.
    seen: HashSet<AttemptName>,
    /// Backups that were walked.
    pub(super) backups: u64,
    /// Forgotten backups whose manifests were listed.
    pub(super) forgotten: BTreeSet<AttemptName>,
    /// Packs in condemned lists that were there.
    pub(super) undecided: HashSet<PackId>,
    /// Packs that there are stubs of.
    pub(super) stubs: Vec<PackId>,
    /// From each of them to where what lived of it went.
    pub(super) edges: HashSet<(PackId, PackId)>,
    /// Backups that condemned lists which were there take for forgotten.
    pub(super) recorded: BTreeSet<AttemptName>,
    /// Whether a collection is not decided yet.
    pub(super) waits: bool,
    /// Whether one of those moves something.
    pub(super) moving: bool,
    /// Of a mark that failed: the backup that could not be read, if that is why.
    pub(super) unreadable: Option<AttemptName>,
    pub(super) reached: Reached,
}

/// A relocation whose old place nobody was seen to refer to so far.
type Idle = (PackId, (u32, u16), Location);

impl Mark {
    pub(super) fn new(repo: &Repository) -> Self {
        Self {
            live: LiveSet::new(repo.params().entry_chunks),
            walked: Visited::default(),
            seen: HashSet::new(),
            backups: 0,
            forgotten: BTreeSet::new(),
            undecided: HashSet::new(),
            stubs: Vec::new(),
            edges: HashSet::new(),
            recorded: BTreeSet::new(),
            waits: false,
            moving: false,
            unreadable: None,
            reached: Reached::default(),
        }
    }

    /// Marks what is live now, on top of what was marked before. After an error this is of no use
    /// any more, but for what was `unreadable`.
    pub(super) async fn update(
        &mut self,
        repo: &Repository,
        forgotten: &HashSet<AttemptName>,
        limits: ReadLimits,
    ) -> Result<()> {
        let mut before = verdicts(repo).await?;
        for _ in 0..ROUNDS_MAX {
            let done = self.round(repo, forgotten, &before, limits).await;
            let after = verdicts(repo).await?;
            let decided_meanwhile = !after.is_subset(&before);
            match done {
                Ok(()) if !decided_meanwhile => return Ok(()),
                Ok(()) => {}
                Err(e) if !decided_meanwhile && !self.gone_meanwhile(repo).await? => return Err(e),
                Err(e) => {
                    // what that collection deletes was forgotten, and its manifests go last
                    tracing::info!("the mark begins again: {e}");
                    *self = Self::new(repo);
                }
            }
            before = after;
        }
        let context = format!("mark what is live in {}", repo.store().url());
        let detail = format!("other collections ended beside it, {ROUNDS_MAX} times over");
        Err(Error::new(ErrorKind::Unavailable, context, detail).hint("try again later"))
    }

    /// Memory that it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.live.memory_bytes() + self.walked.memory_bytes()
    }

    /// Whether what could not be read has been removed altogether: another collection was at it.
    async fn gone_meanwhile(&self, repo: &Repository) -> Result<bool> {
        let Some(name) = &self.unreadable else { return Ok(false) };
        Ok(repo.store().head(&name.manifest_key()).await?.is_none())
    }

    async fn round(
        &mut self,
        repo: &Repository,
        forgotten: &HashSet<AttemptName>,
        decided: &BTreeSet<GenerationId>,
        limits: ReadLimits,
    ) -> Result<()> {
        self.walk(repo, forgotten, limits).await?;
        let mut idle = self.read_lists(repo, decided).await?;
        let targets: HashSet<PackId> = idle.iter().map(|(.., to)| to.pack).collect();
        idle.extend(self.read_stubs(repo, targets).await?);
        self.close(idle)
    }

    /// Everything that manifests reach which were not walked before.
    async fn walk(
        &mut self,
        repo: &Repository,
        forgotten: &HashSet<AttemptName>,
        limits: ReadLimits,
    ) -> Result<()> {
        let listed = repo.store().list(BACKUPS_PREFIX).await?;
        let names = listed.iter().filter_map(|l| parse_manifest_key(&l.key).ok());
        let (gone, names): (Vec<_>, Vec<_>) = names.partition(|name| forgotten.contains(name));
        self.forgotten = gone.into_iter().collect();
        let new = names.into_iter().filter(|name| !self.seen.contains(name));
        let new: Vec<AttemptName> = new.collect();
        let mut records = stream::iter(new)
            .map(|name| async move {
                let record = repo.read_manifest(&name).await;
                (name, record)
            })
            .buffered(IN_FLIGHT);
        let (mut maps, mut of_maps, mut backups) = (Vec::new(), Vec::new(), 0);
        while let Some((name, record)) = records.next().await {
            match record.map_err(|e| blind(e, &name, &mut self.unreadable))? {
                Some(ManifestRecord::Backup(manifest)) => {
                    let all = VolumeMap::all_of(repo, &manifest);
                    maps.extend(all.map_err(|e| blind(e, &name, &mut self.unreadable))?);
                    of_maps.resize(maps.len(), name.clone());
                    backups += 1;
                }
                Some(ManifestRecord::Fence { .. }) => {}
                // another collection that had recorded it as forgotten removed it, and nothing else
                // ever does
                None if repo.is_forgotten(&name).await? => continue,
                None => return Err(vanished(repo, &name)),
            }
            self.seen.insert(name);
        }
        self.backups += backups;
        let Self { live, walked, unreadable, .. } = self;
        let mut marker = Marker { live, walked, maps: &maps, of_maps, unreadable };
        let reached = reach(repo, &maps, limits, &mut marker).await?;
        self.reached.pages += reached.pages;
        self.reached.read_bytes += reached.read_bytes;
        Ok(())
    }

    /// Relocations that nobody has decided yet, and what is condemned. A list of a generation that
    /// is `decided` may be there for long, if the store keeps something that is in it. What it
    /// moves has moved.
    async fn read_lists(
        &mut self,
        repo: &Repository,
        decided: &BTreeSet<GenerationId>,
    ) -> Result<Vec<Idle>> {
        self.undecided.clear();
        self.recorded.clear();
        (self.waits, self.moving) = (false, false);
        let mut idle = Vec::new();
        let generations = generations_with(repo, GcObject::Condemned).await?;
        let mut lists = stream::iter(generations)
            .map(|generation| async move {
                let list = read_condemned_list(repo, &generation).await?;
                Ok::<_, Error>((generation, list))
            })
            .buffer_unordered(LISTS_IN_FLIGHT);
        while let Some((generation, list)) = lists.try_next().await? {
            let Some(Condemned::List(CondemnedList { dead, rewritten, forgotten })) = list else {
                continue;
            };
            self.undecided.extend(dead);
            self.recorded.extend(forgotten);
            let waits = !decided.contains(&generation);
            self.waits |= waits;
            self.moving |= waits && !rewritten.is_empty();
            for stub in &rewritten {
                self.undecided.insert(*stub.pack());
                follow(&mut self.live, stub, |relocation| idle.push(relocation))?;
            }
        }
        Ok(idle)
    }

    /// What stubs say. Gives the relocations that may come to life yet: those of packs that another
    /// relocation leads to, as one of `targets` or of another stub does. There are few of them;
    /// those of all stubs would not fit into memory.
    async fn read_stubs(
        &mut self,
        repo: &Repository,
        mut targets: HashSet<PackId>,
    ) -> Result<Vec<Idle>> {
        let listed = repo.store().list(STUBS_PREFIX).await?;
        self.stubs = listed.iter().filter_map(|l| parse_stub_key(&l.key).ok()).collect();
        self.edges.clear();
        let mut in_part = Vec::new();
        let mut stubs = stubs(repo, &self.stubs);
        while let Some(stub) = stubs.try_next().await? {
            let Some(stub) = stub else { continue };
            let leads_to = stub.relocations().iter().map(|(_, to)| (*stub.pack(), to.pack));
            self.edges.extend(leads_to);
            if follow(&mut self.live, &stub, |_| {})? {
                in_part.push(*stub.pack());
            }
        }
        drop(stubs);
        targets.extend(self.edges.iter().map(|(_, to)| *to));
        in_part.retain(|pack| targets.contains(pack));
        let mut idle = Vec::new();
        let mut again = self::stubs(repo, &in_part);
        while let Some(stub) = again.try_next().await? {
            let Some(stub) = stub else { continue };
            follow(&mut self.live, &stub, |relocation| idle.push(relocation))?;
        }
        Ok(idle)
    }

    /// Along chains of stubs, until nothing is added.
    fn close(&mut self, mut idle: Vec<Idle>) -> Result<()> {
        loop {
            let before = idle.len();
            let mut left = Vec::new();
            for (pack, (entry, index), to) in idle {
                if self.live.contains(&pack, entry, index) {
                    self.live.insert(&to)?;
                } else {
                    left.push((pack, (entry, index), to));
                }
            }
            if left.len() == before {
                return Ok(());
            }
            idle = left;
        }
    }
}

/// The stubs of these packs, in any order. `None`: one that went away, so it was of a pack that
/// nothing live refers to.
fn stubs<'a>(
    repo: &'a Repository,
    packs: &'a [PackId],
) -> impl TryStream<Ok = Option<Stub>, Error = Error> + Unpin + 'a {
    let read = move |pack: PackId| async move {
        let key = stub_key(&pack);
        let open = |bytes: &Bytes| Stub::decode(repo.keys(), repo.id(), &key, bytes);
        repo.store().open_opt(&key, GC_OBJECT_BYTES_MAX, open).await
    };
    Box::pin(stream::iter(packs.to_vec()).map(read).buffer_unordered(IN_FLIGHT))
}

/// What is live of a pack is live where it went. The rest is handed to `idle`; true if there was
/// any.
fn follow(live: &mut LiveSet, stub: &Stub, mut idle: impl FnMut(Idle)) -> Result<bool> {
    let mut any = false;
    for (old, to) in stub.relocations() {
        if live.contains(stub.pack(), old.0, old.1) {
            live.insert(to)?;
        } else {
            idle((*stub.pack(), *old, *to));
            any = true;
        }
    }
    Ok(any)
}

struct Marker<'a> {
    live: &'a mut LiveSet,
    walked: &'a mut Visited,
    maps: &'a [VolumeMap],
    /// Whose maps are walked, in their order.
    of_maps: Vec<AttemptName>,
    unreadable: &'a mut Option<AttemptName>,
}

impl Visitor for Marker<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        self.live.insert(&at.page.location)?;
        Ok(self.walked.insert(at.key(self.maps)))
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> Result<()> {
        self.live.insert(&chunk.location).map(|_| ())
    }

    fn unreadable(&mut self, at: &PageAt, error: Error) -> Result<()> {
        let name = usize::try_from(at.map).ok().and_then(|map| self.of_maps.get(map));
        Err(match name {
            Some(name) => blind(error, name, self.unreadable),
            None => error.within("find out what is live"),
        })
    }
}

/// What is listed and is neither there nor forgotten: a listing that is not right, or a manifest
/// that somebody deleted. Either way nobody knows what is live.
fn vanished(repo: &Repository, name: &AttemptName) -> Error {
    let context = format!("find out what backup {name} refers to in {}", repo.store().url());
    Error::new(ErrorKind::Unavailable, context, "its manifest is listed, but not there")
        .hint("run it again")
}

const HINT: &str = "nothing is deleted as long as this backup cannot be read whole: bring the object back, or forget the backup (VOLUME@ID) \
                    if it is lost";

/// A backup whose data nobody can find out. What may pass says nothing of a loss.
fn blind(e: Error, name: &AttemptName, unreadable: &mut Option<AttemptName>) -> Error {
    *unreadable = Some(name.clone());
    let lost = matches!(e.kind(), ErrorKind::Missing | ErrorKind::Corrupt);
    let e = e.within(format!("find out what backup {name} refers to"));
    if lost { e.hint(HINT) } else { e }
}

async fn verdicts(repo: &Repository) -> Result<BTreeSet<GenerationId>> {
    Ok(generations_with(repo, GcObject::Verdict).await?.into_iter().collect())
}

async fn generations_with(repo: &Repository, object: GcObject) -> Result<Vec<GenerationId>> {
    let listed = repo.store().list(GC_PREFIX).await?;
    let parsed = listed.iter().filter_map(|l| parse_gc_key(&l.key).ok());
    Ok(parsed.filter(|(_, o)| *o == object).map(|(generation, _)| generation).collect())
}

/// `None`: the generation has ended.
pub(super) async fn read_condemned_list(
    repo: &Repository,
    generation: &GenerationId,
) -> Result<Option<Condemned>> {
    let key = crate::format::names::condemned_key(generation);
    let open = |bytes: &Bytes| Condemned::decode(repo.keys(), repo.id(), &key, bytes);
    let list = repo.store().open_opt(&key, GC_OBJECT_BYTES_MAX, open).await;
    list.map_err(|e| unreadable_list(e, repo, &key))
}
