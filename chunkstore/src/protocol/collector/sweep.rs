//! The second half of a collection: what its list names is deleted, as far as nobody refers to it.
//!
//! May be done by anybody, at any time, by several at once, and again from the start after a crash:
//! each step does nothing where it was done already. Nothing is deleted before the verdict exists.
//!
//! A generation's mark walks every backup that the generation did not record as forgotten, also one
//! that was forgotten since: who began to read that one before may be nobody's blocker. If such a
//! backup cannot be read, no mark will ever succeed, as nothing brings its data back. So the
//! generation is *given up*: its verdict is that nothing dies. That is right whatever is live. What
//! goes nevertheless are the manifests that it recorded as forgotten: whoever could still use one
//! of them had a lease before its list was there, and all of those have ended by the time of any
//! verdict. What they alone referred to is condemned by the next collection. As any verdict it
//! counts only if no other sweeper has decided before.

use super::blockers::{record_blockers, still_at_work};
use super::damaged::delete_outdated;
use super::mark::{Mark, read_condemned_list};
use super::plan::{plan_verdict, targets};
use super::{COLLECT, CollectOptions, Collected, segments, unswept};
use crate::error::{Error, ErrorKind, Result};
use crate::format::gc::{Condemned, CondemnedList, Verdict};
use crate::format::names::{
    AttemptName, STUBS_PREFIX, blockers_key, condemned_key, pack_key, parse_manifest_key,
    parse_stub_key, stub_key, verdict_key,
};
use crate::ids::{GenerationId, PackId};
use crate::limits::GC_BYTES_MAX;
use crate::map::LiveSet;
use crate::repository::condemned::damage_records;
use crate::repository::{RECORD_OVERHEAD, Repository};
use crate::store::{Created, Kept};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Look-ups and stubs under way at a time.
const IN_FLIGHT: usize = 16;

/// How far a sweep came.
pub(super) enum Swept {
    /// Nothing is left of it.
    Done,
    /// The store keeps packs that are dead, or manifests, because they are locked: its list stays
    /// until they are gone.
    Locked,
    /// Somebody is still at work who may build on what it condemned.
    Waits { packs: u64, blockers: Vec<String> },
}

/// Packs in a generation's list. `None`: there is no list, or a fence.
pub(super) async fn condemned_packs(
    repo: &Repository,
    generation: &GenerationId,
) -> Result<Option<u64>> {
    Ok(match read_condemned_list(repo, generation).await? {
        Some(Condemned::List(list)) => Some(count(&list)),
        Some(Condemned::Fence) | None => None,
    })
}

fn count(list: &CondemnedList) -> u64 {
    (list.dead.len() + list.rewritten.len()) as u64
}

/// Steps 1 to 9. `mark`: one that was taken for this very list, to go on from.
pub(super) async fn sweep(
    repo: &Arc<Repository>,
    options: &CollectOptions,
    generation: &GenerationId,
    mark: Option<Mark>,
    done: &mut Collected,
) -> Result<Swept> {
    let list = match read_condemned_list(repo, generation).await? {
        Some(Condemned::List(list)) => list,
        // permanent: its owner must find it whenever it comes back
        Some(Condemned::Fence) => return Ok(Swept::Done),
        None => {
            // the list goes last, so this is what a sweeper put back that came too late
            repo.store().delete(&blockers_key(generation)).await?;
            return Ok(Swept::Done);
        }
    };
    let (mut records, mut live) = (Vec::new(), None);
    let verdict = match read_verdict(repo, generation).await? {
        Some(verdict) => {
            done.rescued_packs += rescued(&list, &verdict);
            verdict
        }
        None => {
            let blockers = record_blockers(repo, generation, None).await?; // 1
            let blockers = still_at_work(repo, &blockers, options).await?; // 2
            if !blockers.is_empty() {
                return Ok(Swept::Waits { packs: count(&list), blockers });
            }
            records = damage_records(repo).await?.0;
            let (verdict, marked) = decide(repo, options, generation, &list, mark, done).await?; // 3 and 4
            live = marked.filter(|_| !records.is_empty());
            verdict
        }
    };
    let dead: HashSet<PackId> = verdict.dead.into_iter().collect();
    let locked = delete(repo, generation, &list, &dead, done).await?; // 5 to 8
    if let Some(live) = live {
        done.deleted_records += delete_outdated(repo, &records, &live).await?;
    }
    if locked {
        return Ok(Swept::Locked);
    }
    repo.store().delete(&blockers_key(generation)).await?;
    repo.store().delete(&condemned_key(generation)).await?; // 9
    Ok(Swept::Done)
}

async fn read_verdict(repo: &Repository, generation: &GenerationId) -> Result<Option<Verdict>> {
    let key = verdict_key(generation);
    let bytes_max = u64::from(GC_BYTES_MAX) + RECORD_OVERHEAD;
    let open = |bytes: &Bytes| Verdict::decode(repo.keys(), repo.id(), &key, bytes);
    repo.store().open_opt(&key, bytes_max, open).await
}

/// Steps 3 and 4: marks again, with the forgotten set that the list records, and decides; or takes
/// over what was decided. Gives what is live too, unless the generation is given up.
async fn decide(
    repo: &Arc<Repository>,
    options: &CollectOptions,
    generation: &GenerationId,
    list: &CondemnedList,
    mark: Option<Mark>,
    done: &mut Collected,
) -> Result<(Verdict, Option<LiveSet>)> {
    let forgotten: HashSet<AttemptName> = list.forgotten.iter().cloned().collect();
    let mut mark = mark.unwrap_or_else(|| Mark::new(repo));
    let pages = mark.reached.pages;
    if let Err(e) = mark.update(repo, &forgotten, options.limits).await {
        return Ok((give_up(repo, generation, &mark, e).await?, None));
    }
    done.pages_read += mark.reached.pages.saturating_sub(pages);
    done.mark_bytes = done.mark_bytes.max(mark.memory_bytes());
    let exists: Vec<Option<PackId>> = stream::iter(targets(list))
        .map(|pack| async move {
            Ok::<_, Error>(repo.store().head(&pack_key(&pack)).await?.map(|_| pack))
        })
        .buffered(IN_FLIGHT)
        .try_collect()
        .await?;
    let exists = exists.into_iter().flatten().collect();
    let verdict = Verdict { dead: plan_verdict(list, &mark.live, &exists) };
    let verdict = create_verdict(repo, generation, verdict).await?;
    done.rescued_packs += rescued(list, &verdict);
    Ok((verdict, Some(mark.live)))
}

fn rescued(list: &CondemnedList, verdict: &Verdict) -> u64 {
    count(list).saturating_sub(verdict.dead.len() as u64)
}

/// The verdict where a mark has failed with `e`: that nothing dies, if what could not be read is
/// forgotten by now. See the module. What may pass is no reason.
async fn give_up(
    repo: &Repository,
    generation: &GenerationId,
    mark: &Mark,
    e: Error,
) -> Result<Verdict> {
    let stays =
        matches!(e.kind(), ErrorKind::Missing | ErrorKind::Corrupt | ErrorKind::Unsupported);
    let Some(name) = mark.unreadable.as_ref().filter(|_| stays) else { return Err(e) };
    if !repo.is_forgotten(name).await? {
        return Err(e);
    }
    tracing::warn!(
        "what {generation} condemned is left to the next collection: {name} was forgotten, and {e}"
    );
    create_verdict(repo, generation, Verdict { dead: Vec::new() }).await
}

/// Decides, or takes over what was decided. Features are looked for here, so after the mark: what
/// was added before, that mark may not have seen; whoever relies on what is added after this look
/// has begun after the list was there.
async fn create_verdict(
    repo: &Repository,
    generation: &GenerationId,
    verdict: Verdict,
) -> Result<Verdict> {
    repo.refuse_unknown_to_write(COLLECT).await?;
    let key = verdict_key(generation);
    let bytes = verdict.encode(repo.keys(), repo.id(), &key)?;
    match repo.store().create(&key, bytes.into()).await? {
        Created::Now | Created::Ours => Ok(verdict),
        Created::Taken(bytes) => Verdict::decode(repo.keys(), repo.id(), &key, &bytes),
    }
}

/// Steps 5 to 8. True: the store keeps some of it, so that the list has to stay.
async fn delete(
    repo: &Arc<Repository>,
    generation: &GenerationId,
    list: &CondemnedList,
    dead: &HashSet<PackId>,
    done: &mut Collected,
) -> Result<bool> {
    let mut kept = Vec::new();
    if !dead.is_empty() {
        let sizes = segments::replace(repo, list, dead, done).await?; // 5
        let stubs = put_stubs(repo, list, dead).await?; // 6
        let packs: Vec<&PackId> = dead.iter().filter(|pack| sizes.contains_key(*pack)).collect();
        let bytes = packs.iter().filter_map(|pack| sizes.get(*pack)).sum::<u64>();
        let keys: Vec<String> = packs.into_iter().map(pack_key).collect();
        let count = keys.len() as u64;
        kept = repo.store().delete_unless_locked(keys).await?; // 7
        let kept_bytes = done.count_kept(&kept, &sizes);
        done.deleted_packs += count.saturating_sub(kept.len() as u64);
        done.deleted_bytes += bytes.saturating_sub(kept_bytes);
        delete_stubs(repo, |pack| dead.contains(pack) && !stubs.contains(pack)).await?;
    }
    let manifests: Vec<String> = list.forgotten.iter().map(AttemptName::manifest_key).collect();
    let count = manifests.len() as u64;
    let manifests = repo.store().delete_unless_locked(manifests).await?; // 8
    // they do not exist for anybody, and the next collection tries again
    done.count_kept(&manifests, &HashMap::new());
    done.deleted_manifests += count.saturating_sub(manifests.len() as u64);
    Ok(!kept.is_empty() || !another_has(repo, generation, &manifests).await?)
}

/// Whether a list that another generation has left has all of these manifests, which the store
/// keeps: one list for them is enough. Without any, each collection would make a generation for
/// them.
async fn another_has(
    repo: &Repository,
    generation: &GenerationId,
    manifests: &[Kept],
) -> Result<bool> {
    let mut left: HashSet<AttemptName> =
        manifests.iter().filter_map(|kept| parse_manifest_key(&kept.key).ok()).collect();
    if left.is_empty() {
        return Ok(true);
    }
    for other in unswept(repo).await?.into_iter().filter(|other| other != generation) {
        if let Some(Condemned::List(list)) = read_condemned_list(repo, &other).await? {
            left.retain(|name| !list.forgotten.contains(name));
        }
    }
    Ok(left.is_empty())
}

/// Of the packs that the verdict kills, never of a rescued one. Gives those that have one.
async fn put_stubs(
    repo: &Arc<Repository>,
    list: &CondemnedList,
    dead: &HashSet<PackId>,
) -> Result<HashSet<PackId>> {
    let killed = list.rewritten.iter().filter(|stub| dead.contains(stub.pack()));
    stream::iter(killed)
        .map(|stub| async move {
            let key = stub_key(stub.pack());
            let bytes = stub.encode(repo.keys(), repo.id(), &key)?;
            // one that is there leads to as much of what is live
            repo.store().create(&key, bytes.into()).await?;
            Ok(*stub.pack())
        })
        .buffer_unordered(IN_FLIGHT)
        .try_collect()
        .await
}

/// Stubs of packs that nothing refers to any more.
async fn delete_stubs(repo: &Repository, useless: impl Fn(&PackId) -> bool) -> Result<()> {
    let listed = repo.store().list(STUBS_PREFIX).await?;
    let keys = listed.into_iter().map(|l| l.key);
    let useless = keys.filter(|key| parse_stub_key(key).is_ok_and(|pack| useless(&pack)));
    repo.store().delete_all(useless.collect()).await
}
