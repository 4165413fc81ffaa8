//! Garbage collection: what no backup refers to is condemned, waited for, and deleted. No lock, no
//! clock of this machine.
//!
//! A collection (a *generation*, with a random id) has two halves that may be far apart and made by
//! different processes.
//!
//! *Condemn* finds what no manifest reaches and writes it down in `gc/<generation>/condemned`; then
//! it lists the leases, and whoever is among them may still build on what was condemned:
//! `gc/<generation>/blockers`. Nothing has been deleted by then. Whoever takes a lease later finds
//! the condemned list and builds on nothing in it.
//!
//! *Sweep* waits until every blocker has ended, or fences it if its lease has run out by the
//! store's own clock: first the key that it may still create is taken, then its lease removed. Then
//! all that is live is marked again: what a blocker committed meanwhile is rescued. What is dead
//! now is dead for good; `gc/<generation>/verdict` says so once and for all sweepers, and only then
//! is anything deleted.
//!
//! | condemn | here | sweep | here |
//! |---|---|---|---|
//! | 1 a lease that names the generation | `condemn` | 1 read condemned and blockers; no blockers: list leases, create them | `sweep` |
//! | 2 forgotten set, packs | `condemn` | 2 wait for blockers or fence them | `blockers` |
//! | 3 mark | `mark` | 3 mark again, with the recorded forgotten set | `mark` |
//! | 4 copy what lives of mostly dead packs | `rewrite` | 4 the verdict | `plan`, `sweep` |
//! | 5 create condemned | `condemn` | 5 replace segments | `segments` |
//! | 6 list leases | `blockers` | 6 stubs of what the verdict kills | `sweep` |
//! | 7 create blockers | `blockers` | 7 delete packs | `sweep` |
//! | 8 remove the lease | `condemn` | 8 delete the manifests that were recorded as forgotten | `sweep` |
//! | | | delete damage records that name nothing any more | `damaged` |
//! | | | 9 delete blockers, then condemned; the verdict stays | `sweep` |
//!
//! The order of all of this is the point: every step is where it is because a search of all
//! interleavings found a backup that refers to deleted data otherwise. An object that cannot be
//! read ends a collection; it never means that nothing is live. Only where it was forgotten
//! meanwhile, after the generation had recorded what is forgotten, does the sweep decide: that of
//! what was condemned nothing dies now. It is left to the next collection, which does not look at
//! that object any more. A sweeper holds no lease: until its verdict it deletes nothing, and after
//! it there is nothing left to protect.
//!
//! What is locked against deletion (`store/lock.rs`) is not garbage yet: it is not condemned before
//! its date. A store that keeps what a verdict kills, because of a lock that could not be seen, is
//! asked again by each collection, and until it gives way the list stays: nobody may build on what
//! is in it. And the locks of all that live backups need are extended to those of their manifests.
//!
//! [`collect`] does both halves, and sweeps what earlier collections left. It never waits for
//! anybody: what still has blockers is left for the next run.

mod blockers;
mod condemn;
mod damaged;
mod locked;
mod mark;
mod plan;
mod rewrite;
mod segments;
mod sweep;

#[cfg(test)]
mod tests;

use super::lease::LeaseOptions;
use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::{GC_PREFIX, GcObject, parse_gc_key};
use crate::ids::GenerationId;
use crate::map::ReadLimits;
use crate::repository::{CreateOnce, Repository, WRITES_OVER};
use crate::store::RequestCounts;
use chrono::{DateTime, Utc};
use condemn::Condemnation;
use mark::Mark;
use std::collections::BTreeMap;
use std::sync::Arc;
use sweep::Swept;

/// Becomes ready when the caller wants to stop.
type Stop<'a> = std::pin::Pin<&'a mut (dyn Future<Output = ()> + Send)>;

/// What a collector is refused for where it does not know what it must.
const COLLECT: &str = "collect garbage in";

/// Collections that may wait for their blockers at a time. More would only mark again and again for
/// the same garbage.
const WAITING_MAX: usize = 4;

/// How to collect.
#[derive(Debug, Clone)]
pub struct CollectOptions {
    /// What the collector's lease says.
    pub lease: LeaseOptions,
    /// Bounds on the reading of maps.
    pub limits: ReadLimits,
    /// The caller vouches that nothing else uses the repository: allows a store that ignores
    /// create-once.
    pub exclusive: bool,
}

/// What a collection found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Backups that count.
    pub backups: u64,
    /// Packs in the store when it was looked at, and their bytes.
    pub packs: u64,
    /// See [`packs`](Self::packs).
    pub pack_bytes: u64,
    /// Chunks and pages that are referred to.
    pub live_chunks: u64,
    /// Map pages that were read.
    pub pages_read: u64,
    /// Packs that were condemned now (a preview: that would be), and their bytes.
    pub condemned_packs: u64,
    /// See [`condemned_packs`](Self::condemned_packs).
    pub condemned_bytes: u64,
    /// Mostly dead packs that were rewritten (a preview: that would be), and what is dead of them.
    pub rewritten_packs: u64,
    /// See [`rewritten_packs`](Self::rewritten_packs).
    pub rewritten_dead_bytes: u64,
    /// Bytes of the new packs that what lives of them was copied to.
    pub copied_bytes: u64,
    /// Manifests of forgotten backups that go with them.
    pub forgotten: u64,
    /// Condemned packs that somebody has begun to use since: they stay.
    pub rescued_packs: u64,
    /// Packs that were deleted, and their bytes.
    pub deleted_packs: u64,
    /// See [`deleted_packs`](Self::deleted_packs).
    pub deleted_bytes: u64,
    /// Manifests that were deleted.
    pub deleted_manifests: u64,
    /// Damage records that were deleted, as nothing that they name counts any more.
    pub deleted_records: u64,
    /// Temporary files of killed writers that were removed, in a repository that is a directory.
    pub deleted_leftovers: u64,
    /// Bytes of them.
    pub leftover_bytes: u64,
    /// Dedup segments that were replaced or deleted.
    pub replaced_segments: u64,
    /// Garbage that is locked: left alone, or kept by the store when it was to be deleted. Packs
    /// and manifests.
    pub locked_objects: u64,
    /// Bytes of the packs among them.
    pub locked_bytes: u64,
    /// When the last of them can go, as far as the store says.
    pub locked_until: Option<DateTime<Utc>>,
    /// Objects of live backups whose locks were extended to those of the backups.
    pub extended_locks: u64,
    /// What live backups need and could not be locked as long as they are: how often, and the first
    /// reason.
    pub unlocked: Option<(u64, String)>,
    /// Why it is not known whether there are any locks that should be as long as those of backups.
    pub locks_unknown: Option<String>,
    /// Collections that wait for somebody.
    pub waiting: Vec<Waiting>,
    /// So many wait, or failed, that nothing was looked for and condemned now.
    pub held_back: bool,
    /// Memory of the mark.
    pub mark_bytes: u64,
    /// Requests that were made (a preview: and those that the collection would make besides).
    pub requests: RequestCounts,
}

/// A collection that cannot be swept yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Which.
    pub generation: GenerationId,
    /// Packs that it has condemned.
    pub packs: u64,
    /// Whom it waits for, in words.
    pub blockers: Vec<String>,
}

/// Sweeps what earlier collections condemned, condemns what is garbage now, and sweeps that. Puts
/// dedup segments together where there are many.
///
/// Safe at any time beside backups, restores and other collections. Errors: `Unsupported` on a
/// store that ignores create-once, unless `exclusive`; `Fenced` if another collector took this one
/// for dead; whatever the store says. A sweep that fails does not keep this from the others, nor
/// from condemning; the error at the end tells all. After an error nothing is lost, and the next
/// run goes on.
///
/// When `stop` becomes ready while a list is being made, it ends `Cancelled` and gives its lease
/// back. At any other time it may just be dropped.
pub async fn collect(
    repo: &Arc<Repository>,
    options: &CollectOptions,
    stop: impl Future<Output = ()> + Send,
) -> Result<Collected> {
    let stop = std::pin::pin!(stop);
    repo.refuse_unknown_to_write(COLLECT).await?;
    refuse_unsafe_store(repo, options.exclusive).await?;
    let mut done = Collected::default();
    let before = repo.store().counts();
    // what stops one of them need not stop another
    let mut failed = Vec::new();
    for generation in unswept(repo).await? {
        let swept = Box::pin(sweep_one(repo, options, generation, None, &mut done));
        failed.extend(swept.await.err());
    }
    done.held_back = done.waiting.len() + failed.len() >= WAITING_MAX;
    if !done.held_back {
        match Box::pin(condemn::condemn(repo, options, stop, &mut done)).await {
            Ok(None) => {}
            Ok(Some(Condemnation { generation, mark })) => {
                let swept = Box::pin(sweep_one(repo, options, generation, Some(mark), &mut done));
                failed.extend(swept.await.err());
            }
            // the caller's own wish says more than what failed before
            Err(e) if e.kind() == ErrorKind::Cancelled => failed.insert(0, e),
            Err(e) => failed.push(e),
        }
    }
    if done.replaced_segments == 0 && failed.is_empty() {
        failed.extend(Box::pin(segments::merge(repo, &mut done)).await.err());
    }
    failed.extend(Box::pin(locked::extend(repo, options, &mut done)).await.err());
    let idle = std::time::Duration::from_secs(u64::from(options.lease.lease_seconds));
    let leftovers = repo.store().remove_leftovers(idle);
    (done.deleted_leftovers, done.leftover_bytes) = (leftovers.files, leftovers.bytes);
    done.requests = since(&before, &repo.store().counts());
    if let Some((_, why)) = done.unlocked.as_ref().filter(|_| !failed.is_empty()) {
        // what failed first says of what kind all of it is
        failed.push(Error::new(ErrorKind::Missing, "extend locks", why.as_str()));
    }
    let context = format!("collect garbage in {}", repo.store().url());
    Error::of_all(context, failed).map_or(Ok(done), Err)
}

/// What [`collect`] would condemn now. Takes no lease and writes nothing. What earlier collections
/// condemned and did not delete yet is in `waiting`, whether it still waits for anybody or not.
pub async fn preview_collection(
    repo: &Arc<Repository>,
    options: &CollectOptions,
) -> Result<Collected> {
    let before = repo.store().counts();
    let mut done = Collected::default();
    for generation in unswept(repo).await? {
        if let Some(packs) = sweep::condemned_packs(repo, &generation).await? {
            done.waiting.push(Waiting { generation, packs, blockers: Vec::new() });
        }
    }
    let found = condemn::find(repo, options, &mut done).await?;
    done.requests = since(&before, &repo.store().counts());
    condemn::add_cost(&found, &mut done);
    Ok(done)
}

async fn sweep_one(
    repo: &Arc<Repository>,
    options: &CollectOptions,
    generation: GenerationId,
    mark: Option<Mark>,
    done: &mut Collected,
) -> Result<()> {
    let swept = sweep::sweep(repo, options, &generation, mark, done).await;
    match swept.map_err(|e| e.within(format!("sweep collection {generation}")))? {
        Swept::Done | Swept::Locked => {}
        Swept::Waits { packs, blockers } => {
            done.waiting.push(Waiting { generation, packs, blockers });
        }
    }
    Ok(())
}

/// Generations that have something left in the store but their verdicts and fences: those with a
/// verdict first. They may have deleted something already, which a mark of another one must not
/// meet half done.
async fn unswept(repo: &Repository) -> Result<Vec<GenerationId>> {
    let mut found: BTreeMap<GenerationId, (bool, bool)> = BTreeMap::new();
    for listed in repo.store().list(GC_PREFIX).await? {
        let Ok((generation, object)) = parse_gc_key(&listed.key) else { continue };
        let (open, decided) = found.entry(generation).or_default();
        match object {
            GcObject::Condemned | GcObject::Blockers => *open = true,
            GcObject::Verdict => *decided = true,
        }
    }
    let mut found: Vec<_> = found.into_iter().filter(|(_, (open, _))| *open).collect();
    found.sort_by_key(|(generation, (_, decided))| (!decided, *generation));
    Ok(found.into_iter().map(|(generation, _)| generation).collect())
}

async fn refuse_unsafe_store(repo: &Repository, exclusive: bool) -> Result<()> {
    if exclusive {
        return Ok(());
    }
    let context = format!("collect garbage in {}", repo.store().url());
    let detail = match repo.probe_create_once().await? {
        CreateOnce::Holds => return Ok(()),
        CreateOnce::Unknown => {
            let detail = "these credentials may not write, and a collection writes and deletes";
            return Err(Error::new(ErrorKind::Denied, context, detail)
                .hint("give it credentials that may do both"));
        }
        CreateOnce::Ignored => {
            format!(
                "the store {WRITES_OVER}, so a backup that commits beside the collection could lose data"
            )
        }
    };
    let alone = Advice::CollectAlone.words();
    Err(Error::new(ErrorKind::Unsupported, context, detail).hint(alone))
}

fn since(before: &RequestCounts, now: &RequestCounts) -> RequestCounts {
    RequestCounts {
        gets: now.gets - before.gets,
        puts: now.puts - before.puts,
        creates: now.creates - before.creates,
        heads: now.heads - before.heads,
        lists: now.lists - before.lists,
        deletes: now.deletes - before.deletes,
        failed_tries: now.failed_tries - before.failed_tries,
    }
}
