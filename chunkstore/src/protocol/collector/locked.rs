//! Locks against deletion, as a collection meets them: what is locked waits, and what live backups
//! need is locked as they are.
//!
//! Only where the bucket has object lock is anything asked about single objects: one request for
//! each pack that would be condemned or rewritten, one for each manifest, and one for each pack
//! that a locked backup needs.
//!
//! A plain delete of a locked object is no error there, it hides the object below a marker. It is
//! left alone nevertheless: that frees nothing, and as long as it is there a backup may use it
//! again. Rewriting a locked pack would cost space, not free any.

use super::{CollectOptions, Collected};
use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::ManifestRecord;
use crate::format::names::{
    BACKUPS_PREFIX, FORGOTTEN_PREFIX, FORMAT_KEY, pack_key, parse_forgotten_key,
    parse_manifest_key, parse_pack_key,
};
use crate::ids::PackId;
use crate::map::VolumeMap;
use crate::protocol::retain::{Extended, Needs, Trouble, retain_base, retain_packs};
use crate::repository::Repository;
use crate::store::{Kept, ObjectLock, RetainMode, Retention};
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Look-ups under way at a time.
const IN_FLIGHT: usize = 32;

impl Collected {
    /// Objects that the store keeps; gives the bytes of those in `sizes`.
    pub(super) fn count_kept(&mut self, kept: &[Kept], sizes: &HashMap<PackId, u64>) -> u64 {
        let size = |kept: &Kept| sizes.get(&parse_pack_key(&kept.key).ok()?).copied();
        let bytes = kept.iter().filter_map(size).sum();
        self.locked_objects += kept.len() as u64;
        self.locked_bytes += bytes;
        self.locked_until = kept.iter().filter_map(|k| k.until).chain(self.locked_until).max();
        bytes
    }
}

/// Whether anything can be locked here. Who may not ask, or gets no answer that is known, is not
/// kept from collecting: why is given then.
async fn has_locks(repo: &Repository) -> Result<(bool, Option<Error>)> {
    match repo.store().object_lock().await {
        Ok(lock) => Ok((lock == ObjectLock::Enabled, None)),
        Err(e) if matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::Cancelled) => Err(e),
        Err(e) => Ok((false, Some(e))),
    }
}

/// Takes what is locked from what would be condemned or rewritten. `packs` says what is stored,
/// with sizes.
pub(super) async fn spare_locked(
    repo: &Repository,
    packs: &[(PackId, u64)],
    dead: &mut Vec<PackId>,
    rewrites: &mut Vec<(PackId, u64)>,
    done: &mut Collected,
) -> Result<()> {
    if (dead.is_empty() && rewrites.is_empty()) || !has_locks(repo).await?.0 {
        return Ok(());
    }
    let sizes: HashMap<PackId, u64> = packs.iter().copied().collect();
    let now = Utc::now();
    // of the others there are only stubs, which nobody needs any more
    let asked = dead.iter().copied().chain(rewrites.iter().map(|(pack, _)| *pack));
    let asked: Vec<PackId> = asked.filter(|pack| sizes.contains_key(pack)).collect();
    let mut answers = stream::iter(asked)
        .map(|pack| async move {
            let key = pack_key(&pack);
            let locks = repo.store().locks_of(&key).await?;
            let locks = locks.filter(|locks| locks.hold_at(now));
            Ok::<_, Error>(locks.map(|locks| (pack, locks.retention.map(|r| r.until))))
        })
        .buffer_unordered(IN_FLIGHT);
    let mut locked: HashMap<PackId, Option<DateTime<Utc>>> = HashMap::new();
    while let Some(answer) = answers.try_next().await? {
        locked.extend(answer);
    }
    drop(answers);
    // what is mostly dead is in use: it is not worth a word that it stays
    rewrites.retain(|(pack, _)| !locked.contains_key(pack));
    let kept = dead
        .iter()
        .filter_map(|pack| Some(Kept { key: pack_key(pack), until: *locked.get(pack)? }));
    let kept: Vec<Kept> = kept.collect();
    done.count_kept(&kept, &sizes);
    dead.retain(|pack| !locked.contains_key(pack));
    Ok(())
}

/// Locks all that a locked backup needs as long as its manifest is locked.
pub(super) async fn extend(
    repo: &Arc<Repository>,
    options: &CollectOptions,
    done: &mut Collected,
) -> Result<()> {
    let (may_lock, unknown) = has_locks(repo).await?;
    if !may_lock {
        let Some(why) = unknown else { return Ok(()) };
        // whatever locks a backup has locked this too
        let format = repo.store().locks_of(FORMAT_KEY).await?;
        if format.is_none_or(|locks| locks.retention.is_none()) {
            done.locks_unknown = Some(why.to_string());
            return Ok(());
        }
    }
    // one thing that is lost, or may not be locked, must not keep the locks of all others from
    // being extended
    let mut first = None;
    let mut count = 0_u64;
    let mut trouble = |e: Error| {
        use ErrorKind::{Corrupt, Denied, Missing, NotFound, Unsupported};
        if !matches!(e.kind(), Corrupt | Denied | Missing | NotFound | Unsupported) {
            return Err(e.within(format!("extend locks in {}", repo.store().url())));
        }
        count += 1;
        first.get_or_insert(e);
        Ok(())
    };
    let extended = match locked_backups(repo, &mut trouble).await {
        Ok(locked) => extend_all(repo, &locked, options, &mut trouble).await,
        Err(e) => Err(e),
    };
    done.unlocked = first.map(|e| (count, e.to_string()));
    done.extended_locks += extended?.extended;
    Ok(())
}

async fn extend_all(
    repo: &Arc<Repository>,
    locked: &[(Retention, VolumeMap)],
    options: &CollectOptions,
    trouble: &mut Trouble<'_>,
) -> Result<Extended> {
    let mut extended = Extended::default();
    let longest = locked.iter().map(|(retention, _)| *retention).reduce(Retention::or_longer);
    if let Some(longest) = longest {
        match retain_base(repo, longest).await {
            Ok(base) => extended.add(base),
            Err(e) => trouble(e)?,
        }
    }
    let mut needs = Needs::new();
    for mode in [RetainMode::Compliance, RetainMode::Governance] {
        needs.begin_again();
        for (retention, map) in locked.iter().filter(|(r, _)| r.mode == mode) {
            needs.add_map(repo, map.clone(), options.limits, *retention, trouble).await?;
        }
    }
    extended.add(retain_packs(repo, needs, trouble).await?);
    Ok(extended)
}

/// The maps of backups that are not forgotten and still locked, the longest first.
async fn locked_backups(
    repo: &Repository,
    trouble: &mut Trouble<'_>,
) -> Result<Vec<(Retention, VolumeMap)>> {
    let forgotten = repo.store().list(FORGOTTEN_PREFIX).await?;
    let forgotten: HashSet<_> =
        forgotten.iter().filter_map(|l| parse_forgotten_key(&l.key).ok()).collect();
    let listed = repo.store().list(BACKUPS_PREFIX).await?;
    let names = listed.iter().filter_map(|l| parse_manifest_key(&l.key).ok());
    let names: Vec<_> = names.filter(|name| !forgotten.contains(name)).collect();
    let now = Utc::now();
    let mut answers = stream::iter(names)
        .map(|name| async move {
            let locks = repo.store().locks_of(&name.manifest_key()).await?;
            let retention = locks.and_then(|locks| locks.retention).filter(|r| r.until > now);
            let Some(retention) = retention else { return Ok(None) };
            Ok::<_, Error>(match repo.read_manifest(&name).await? {
                Some(ManifestRecord::Backup(manifest)) => {
                    Some((retention, VolumeMap::all_of(repo, &manifest)?))
                }
                Some(ManifestRecord::Fence { .. }) | None => None,
            })
        })
        .buffer_unordered(IN_FLIGHT);
    let mut found = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(backup) => {
                let maps = backup.into_iter().flat_map(|(retention, maps)| {
                    maps.into_iter().map(move |map| (retention, map))
                });
                found.extend(maps);
            }
            Err(e) => trouble(e)?,
        }
    }
    found.sort_by_key(|(retention, _)| std::cmp::Reverse(retention.until));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::{GenerationId, collect};
    use super::*;
    use crate::format::gc::{Condemned, CondemnedList};
    use crate::format::names::{condemned_key, verdict_key};
    use crate::map::ReadLimits;
    use crate::protocol::LeaseOptions;
    use crate::repository::condemned::read_condemned;
    use crate::store::{Inherited, RetainPolicy};
    use crate::testkit::Fault;
    use crate::testkit::repositories::{
        locking_repository, manifest, memory_repository, put_manifest,
    };

    async fn run(repo: &Arc<Repository>) -> Result<Collected> {
        let lease = LeaseOptions { lease_seconds: 600, tool: "test".into(), host: "here".into() };
        let options = CollectOptions { lease, limits: ReadLimits::default(), exclusive: false };
        collect(repo, &options, std::future::pending()).await
    }

    #[tokio::test]
    async fn what_the_store_keeps_is_counted_and_tried_again() {
        let (repo, store, _) = memory_repository().await;
        let packs = [1, 2].map(|n| PackId::from_bytes([n; 32]));
        for pack in &packs {
            repo.store().put(&pack_key(pack), "a pack").await.unwrap();
        }
        let deletion = format!("delete {}", pack_key(&packs[0]));
        // of all of them together, and then of this one
        store.fault(&deletion, Fault::Locked);
        store.fault(&deletion, Fault::Locked);
        let done = run(&repo).await.unwrap();
        assert_eq!((done.condemned_packs, done.deleted_packs, done.deleted_bytes), (2, 1, 6));
        assert_eq!((done.locked_objects, done.locked_bytes, done.locked_until), (1, 6, None));
        // nobody may build on it as long as a sweeper may be about to delete it
        assert!(read_condemned(&repo).await.unwrap().contains(&packs[0]));

        store.fault(&deletion, Fault::Locked);
        store.fault(&deletion, Fault::Locked);
        let done = run(&repo).await.unwrap();
        assert_eq!((done.condemned_packs, done.deleted_packs, done.locked_objects), (0, 0, 1));
        // and when the lock has run out
        let done = run(&repo).await.unwrap();
        assert_eq!((done.condemned_packs, done.deleted_packs, done.locked_objects), (0, 1, 0));
        assert!(repo.store().list("packs").await.unwrap().is_empty());
        assert!(read_condemned(&repo).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_forgotten_manifest_that_the_store_keeps_makes_one_generation() {
        let (repo, store, _) = memory_repository().await;
        let made = manifest("v", "a", 1);
        put_manifest(&repo, &made).await;
        repo.forget(&made.name(), "test").await.unwrap();
        let deletion = format!("delete {}", made.object_key());
        let collections = async || {
            let listed = repo.store().list("gc").await.unwrap();
            let of = |end: &str| listed.iter().filter(|l| l.key.ends_with(end)).count();
            (of("/condemned"), of("/verdict"))
        };
        for _ in 0..3 {
            store.fault(&deletion, Fault::Locked);
            store.fault(&deletion, Fault::Locked);
            let done = run(&repo).await.unwrap();
            assert_eq!((done.locked_objects, done.deleted_manifests), (1, 0), "{done:?}");
            assert_eq!(collections().await, (1, 1));
        }
        // what dies besides makes another, which does not stay for it
        let pack = PackId::from_bytes([2; 32]);
        repo.store().put(&pack_key(&pack), "a pack").await.unwrap();
        for _ in 0..4 {
            store.fault(&deletion, Fault::Locked);
        }
        let done = run(&repo).await.unwrap();
        assert_eq!((done.deleted_packs, done.deleted_manifests), (1, 0), "{done:?}");
        assert_eq!(collections().await, (1, 2));
        // and when the lock has run out
        let done = run(&repo).await.unwrap();
        assert_eq!((done.deleted_manifests, done.locked_objects), (1, 0), "{done:?}");
        assert_eq!(collections().await, (0, 2));
    }

    #[tokio::test]
    async fn who_may_not_ask_about_locks_is_told_so() {
        let until = DateTime::parse_from_rfc3339("2130-01-01T00:00:00Z").unwrap().to_utc();
        let retention = Retention::new(RetainMode::Governance, until);
        let policy = RetainPolicy { retention, inherited: Inherited::Later };
        let (repo, server) = locking_repository(policy).await;
        assert_eq!(run(&repo).await.unwrap().unlocked, None, "the bucket has no locks");
        for status in ["403 Forbidden", "400 Bad Request", "409 Conflict"] {
            server.says_of_bucket(status);
            let done = run(&repo).await.unwrap();
            let why = done.locks_unknown.expect("it cannot know");
            assert!(why.contains("whether") && done.unlocked.is_none(), "{status}: {why}");
        }
        // what it sees nevertheless it extends as far as it may
        let soon = Retention::new(RetainMode::Governance, until - chrono::TimeDelta::days(9));
        repo.store().retain("format", soon).await.unwrap();
        let made = manifest("v", "a", 1);
        put_manifest(&repo, &made).await;
        repo.store().retain(&made.object_key(), retention).await.unwrap();
        let done = run(&repo).await;
        // what the backup consists of is lost, which is said besides
        let why = done.expect_err("its page is not there").to_string();
        assert!(why.contains("extend locks"), "{why}");
        assert_eq!(server.lock_of("format"), Some(retention));
    }

    #[tokio::test]
    async fn a_missing_permission_is_not_taken_for_a_lock() {
        let (repo, store, _) = memory_repository().await;
        let pack = PackId::from_bytes([1; 32]);
        repo.store().put(&pack_key(&pack), "a pack").await.unwrap();
        let generation = GenerationId::random();
        let key = condemned_key(&generation);
        let list = CondemnedList { dead: vec![pack], ..CondemnedList::default() };
        let list = Condemned::List(list).encode(repo.keys(), repo.id(), &key).unwrap();
        repo.store().put(&key, list).await.unwrap();
        for _ in 0..2 {
            store.fault("delete packs/", Fault::Denied);
        }
        let e = run(&repo).await.expect_err("not allowed");
        assert_eq!(e.kind(), ErrorKind::Denied, "{e}");
        assert!(repo.store().head(&verdict_key(&generation)).await.unwrap().is_some());
        assert_eq!(run(&repo).await.unwrap().deleted_packs, 1);
    }
}
