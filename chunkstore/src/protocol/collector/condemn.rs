//! The first half of a collection: what nothing refers to is written down. Deletes nothing but its
//! own lease.

use super::damaged::plan_outdated;
use super::locked::spare_locked;
use super::mark::Mark;
use super::plan::{DEAD_MAX, plan_condemned, plan_rewrites};
use super::rewrite::{Rewritten, rewrite};
use super::{COLLECT, CollectOptions, Collected, Stop, blockers};
use crate::error::{Error, ErrorKind, Result};
use crate::format::gc::{Condemned, CondemnedList};
use crate::format::lease::LeaseRole;
use crate::format::names::{FORGOTTEN_PREFIX, condemned_key, parse_forgotten_key};
use crate::ids::{GenerationId, LeaseId, PackId};
use crate::map::LivePack;
use crate::protocol::lease::{LeaseKeeper, Removal};
use crate::repository::Repository;
use crate::repository::condemned::{DamageRecord, damage_records};
use crate::store::Created;
use std::collections::HashSet;
use std::sync::Arc;

/// Objects that one request for several deletions names at most.
const DELETED_AT_A_TIME: u64 = 1000;

/// How often it looks for garbage again because backups are forgotten and collected beside it.
const LOOKS_MAX: u32 = 16;

/// A list that was created.
pub(super) struct Condemnation {
    pub(super) generation: GenerationId,
    /// What was live then: the sweep goes on from it.
    pub(super) mark: Mark,
}

/// What there is to condemn.
pub(super) struct Unreferenced {
    pub(super) list: CondemnedList,
    /// Mostly dead packs that are to be rewritten.
    rewrites: Vec<(PackId, u64)>,
    /// Whether damage records are to go, and no other generation is about to look at them.
    outdated: bool,
    mark: Mark,
}

/// Steps 1 to 8. `None`: there is no garbage. When `stop` comes first, the lease is given back and
/// it ends `Cancelled`.
pub(super) async fn condemn(
    repo: &Arc<Repository>,
    options: &CollectOptions,
    stop: Stop<'_>,
    done: &mut Collected,
) -> Result<Option<Condemnation>> {
    let generation = GenerationId::random();
    let lease = options.lease.lease(LeaseRole::Collector { generation });
    let id = lease.lease_id;
    let keeper = Arc::new(LeaseKeeper::create(repo, lease).await?); // 1
    // a list may still come to be: then the lease stays, until it is fenced
    let mut in_doubt = false;
    let beat = keeper.heartbeat();
    // in a box: what all of this takes does not fit on a small stack
    let work = Box::pin(under_lease(repo, options, generation, id, &mut in_doubt, done));
    let condemned = tokio::select! {
        condemned = work => condemned,
        () = stop => Err(cancelled(repo)),
        // it ends with the keeper, so never before the work
        () = beat => Err(Error::new(ErrorKind::Bug, "keep a lease alive", "the heartbeat ended")),
    };
    let removal = if in_doubt { Removal::Never } else { Removal::Always };
    if let Some(e) = keeper.end(removal).await {
        // 8
        tracing::warn!("the collector's lease stays until it runs out: {e}");
    }
    condemned
}

async fn under_lease(
    repo: &Arc<Repository>,
    options: &CollectOptions,
    generation: GenerationId,
    own: LeaseId,
    in_doubt: &mut bool,
    done: &mut Collected,
) -> Result<Option<Condemnation>> {
    repo.refuse_unknown_to_write(COLLECT).await?;
    blockers::fence_expired_leases(repo, own, options).await?;
    let Unreferenced { mut list, rewrites, outdated, mark } =
        Box::pin(find(repo, options, done)).await?; // 2 and 3
    let copied = match Box::pin(rewrite(repo, &rewrites, &mark.live)).await {
        Ok(copied) => copied,
        // what is dead altogether still goes, and makes room for the next collection's copies
        Err(e) if e.kind() == ErrorKind::NoSpace => {
            tracing::warn!("mostly dead packs stay as they are, for want of space to copy to: {e}");
            Rewritten::default()
        }
        Err(e) => return Err(e),
    }; // 4
    done.copied_bytes = copied.stored_bytes;
    let moved: HashSet<PackId> = copied.stubs.iter().map(|stub| *stub.pack()).collect();
    let moved: Vec<_> = rewrites.into_iter().filter(|(pack, _)| moved.contains(pack)).collect();
    count_rewrites(&moved, &mark, done);
    list.rewritten = copied.stubs;
    let nothing = list.dead.is_empty() && list.rewritten.is_empty() && list.forgotten.is_empty();
    if nothing && !outdated {
        return Ok(None);
    }
    let key = condemned_key(&generation);
    let bytes = Condemned::List(list).encode(repo.keys(), repo.id(), &key)?;
    *in_doubt = true;
    let created = repo.store().create(&key, bytes.into()).await?; // 5
    *in_doubt = false;
    if matches!(created, Created::Taken(_)) {
        let context = format!("collect garbage in {}", repo.store().url());
        let detail = "another collector took this one for dead and fenced it";
        return Err(Error::new(ErrorKind::Fenced, context, detail)
            .hint("nothing was deleted; run it again"));
    }
    blockers::record_blockers(repo, &generation, Some(own)).await?; // 6 and 7
    Ok(Some(Condemnation { generation, mark }))
}

fn cancelled(repo: &Repository) -> Error {
    let context = format!("collect garbage in {}", repo.store().url());
    Error::new(ErrorKind::Cancelled, context, "stopped")
}

/// Steps 2 and 3: what would be condemned now. A backup that cannot be read because it was
/// forgotten, and collected, after the forgotten set was listed is no loss: then both steps are
/// done again.
pub(super) async fn find(
    repo: &Arc<Repository>,
    options: &CollectOptions,
    done: &mut Collected,
) -> Result<Unreferenced> {
    for _ in 0..LOOKS_MAX {
        let (records, _) = damage_records(repo).await?;
        let forgotten = repo.store().list(FORGOTTEN_PREFIX).await?;
        let forgotten: HashSet<_> =
            forgotten.iter().filter_map(|l| parse_forgotten_key(&l.key).ok()).collect();
        let packs = repo.list_packs(|_, _| ()).await?;
        let mut mark = Mark::new(repo);
        let Err(e) = Box::pin(mark.update(repo, &forgotten, options.limits)).await else {
            for name in &mark.forgotten {
                repo.confirm_forgotten(name).await?;
            }
            return found(repo, &packs, &records, mark, done).await;
        };
        match &mark.unreadable {
            Some(name) if repo.is_forgotten(name).await? => {
                tracing::info!("looked at again, as {name} was forgotten meanwhile: {e}");
            }
            _ => return Err(e),
        }
    }
    let context = format!("collect garbage in {}", repo.store().url());
    let detail = format!("backups were forgotten and collected beside it, {LOOKS_MAX} times over");
    Err(Error::new(ErrorKind::Unavailable, context, detail).hint("try again later"))
}

async fn found(
    repo: &Repository,
    packs: &[(PackId, u64)],
    records: &[DamageRecord],
    mark: Mark,
    done: &mut Collected,
) -> Result<Unreferenced> {
    let mut dead = plan_condemned(packs, &mark.stubs, &mark.live, &mark.undecided);
    // two that move the same would both be right, and do the work twice
    let mut rewrites = if mark.moving {
        Vec::new()
    } else {
        plan_rewrites(packs, &mark.live, &mark.undecided, &mark.edges)
    };
    spare_locked(repo, packs, &mut dead, &mut rewrites, done).await?;
    // what is left is for the next collection
    dead.truncate(DEAD_MAX);
    count_rewrites(&rewrites, &mark, done);
    done.backups = mark.backups;
    done.packs = packs.len() as u64;
    done.pack_bytes = packs.iter().map(|(_, bytes)| bytes).sum();
    done.live_chunks = mark.live.live_chunks();
    done.pages_read += mark.reached.pages;
    done.mark_bytes = done.mark_bytes.max(mark.memory_bytes());
    let sizes = packs.iter().filter(|(pack, _)| dead.binary_search(pack).is_ok());
    done.condemned_bytes = sizes.map(|(_, bytes)| bytes).sum();
    done.condemned_packs = dead.len() as u64;
    let outdated = !mark.waits && !plan_outdated(records, packs, &mark.live).is_empty();
    // alone they are left to a list that has them already: it waits, or the store keeps them
    let alone = dead.is_empty() && rewrites.is_empty() && !outdated;
    let left = alone && mark.forgotten.is_subset(&mark.recorded);
    let forgotten = mark.forgotten.iter().filter(|_| !left).cloned();
    let list = CondemnedList { dead, rewritten: Vec::new(), forgotten: forgotten.collect() };
    done.forgotten = list.forgotten.len() as u64;
    Ok(Unreferenced { list, rewrites, outdated, mark })
}

fn count_rewrites(packs: &[(PackId, u64)], mark: &Mark, done: &mut Collected) {
    let bytes = |(pack, size): &(PackId, u64)| {
        size.saturating_sub(mark.live.pack(pack).map_or(0, LivePack::live_bytes))
    };
    done.rewritten_packs = packs.len() as u64;
    done.rewritten_dead_bytes = packs.iter().map(bytes).sum();
}

/// What a collection would ask of the store at least, besides what finding out has: lease, list,
/// blockers, verdict, the second look, and deletions, which most stores take 1000 at a time.
pub(super) fn add_cost(found: &Unreferenced, done: &mut Collected) {
    let rewrites = found.rewrites.len();
    let CondemnedList { dead, forgotten, .. } = &found.list;
    if dead.is_empty() && rewrites == 0 && forgotten.is_empty() && !found.outdated {
        return;
    }
    let requests = &mut done.requests;
    // a rewritten pack is read in three parts or more, looked up, and leaves a stub
    requests.creates += 4 + rewrites as u64;
    requests.lists += 8;
    requests.gets += 4 + 3 * rewrites as u64;
    for count in [dead.len() + rewrites, forgotten.len(), usize::from(found.outdated)] {
        requests.deletes += (count as u64).div_ceil(DELETED_AT_A_TIME);
    }
    requests.deletes += 3;
}
