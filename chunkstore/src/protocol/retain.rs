//! Locks what backups need to be restored, for as long as the backups themselves are locked.
//!
//! What a run stores itself is locked from the moment it is there. What a backup takes over from
//! others is not, or not for long enough: packs whose chunks are used again, packs that inherited
//! pages lead to, the stubs of packs that were rewritten, `format` and the key slots.
//! [`retain_packs`] and [`retain_base`] extend these locks, each object once and only where its
//! lock is shorter. Which packs a map leads to is known by reading it: [`Needs::add_map`]. Pages
//! that several maps share are read once, so the map whose lock is the longest has to come first.
//!
//! The manifest's own lock is what says until when a backup is promised: nothing of it is in the
//! format, and a collection extends everything else to it.
//!
//! Memory: about 100 bytes for each pack, and two bits for each page.

use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::{FEATURES_PREFIX, KEYS_PREFIX, TOP_KEYS, pack_key, stub_key};
use crate::format::stub::Stub;
use crate::ids::PackId;
use crate::limits::{GC_BYTES_MAX, STUB_HOPS_MAX};
use crate::map::{PageAt, ReadLimits, Visited, Visitor, VolumeMap, reach};
use crate::repository::{RECORD_OVERHEAD, Repository};
use crate::store::{Retained, Retention};
use crate::units::ChunkRef;
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::collections::{HashMap, HashSet};

/// Requests under way at a time.
const IN_FLIGHT: usize = 32;

/// Packs and how long they must be locked.
#[derive(Debug)]
pub(super) struct Needs {
    packs: HashMap<PackId, Retention>,
    /// Pages whose packs, and all below, are needed so long already.
    seen: Visited,
}

/// What was extended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Extended {
    /// Objects that were looked at.
    pub(super) objects: u64,
    /// Those whose lock was shorter.
    pub(super) extended: u64,
}

impl Needs {
    pub(super) fn new() -> Self {
        Self { packs: HashMap::new(), seen: Visited::default() }
    }

    /// From here on pages count again: those seen so far were needed in another way.
    pub(super) fn begin_again(&mut self) {
        self.seen = Visited::default();
    }

    pub(super) fn add(&mut self, pack: PackId, retention: Retention) {
        let longest = |there: &mut Retention| *there = there.or_longer(retention);
        self.packs.entry(pack).and_modify(longest).or_insert(retention);
    }

    /// All that the map leads to, as far as it can be read. Those added before must be needed as
    /// long, or longer.
    pub(super) async fn add_map(
        &mut self,
        repo: &Repository,
        map: VolumeMap,
        limits: ReadLimits,
        retention: Retention,
        trouble: &mut Trouble<'_>,
    ) -> Result<()> {
        let maps = [map];
        let mut collect = Collect { needs: self, maps: &maps, retention, last: None, trouble };
        reach(repo, &maps, limits, &mut collect).await.map(|_| ())
    }
}

/// Is told of what cannot be read or locked, and says whether to go on with the others.
pub(super) type Trouble<'a> = dyn FnMut(Error) -> Result<()> + Send + 'a;

struct Collect<'a, 't> {
    needs: &'a mut Needs,
    maps: &'a [VolumeMap],
    retention: Retention,
    /// Chunks mostly are in the pack of the one before.
    last: Option<PackId>,
    trouble: &'a mut Trouble<'t>,
}

impl Collect<'_, '_> {
    fn need(&mut self, pack: PackId) {
        if self.last != Some(pack) {
            self.needs.add(pack, self.retention);
            self.last = Some(pack);
        }
    }
}

impl Visitor for Collect<'_, '_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        self.need(at.page.location.pack);
        Ok(self.needs.seen.insert(at.key(self.maps)))
    }

    fn chunk(&mut self, _: &PageAt, _: u64, chunk: &ChunkRef) -> Result<()> {
        self.need(chunk.location.pack);
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        // a page counts as seen once it is met, and other maps may lead to what is beside it: so
        // the rest is gone through
        (self.trouble)(error.within("find out which packs are to be locked"))
    }
}

/// Locks all packs that are needed. Of a pack that is gone the stub is locked, and what that leads
/// to.
pub(super) async fn retain_packs(
    repo: &Repository,
    needs: Needs,
    trouble: &mut Trouble<'_>,
) -> Result<Extended> {
    let mut done = Extended::default();
    let mut ahead = needs.packs;
    let mut locked: HashMap<PackId, Retention> = HashMap::new();
    for _ in 0..=STUB_HOPS_MAX {
        locked.extend(&ahead);
        let mut found = stream::iter(ahead)
            .map(|(pack, retention)| async move {
                (pack, retention, repo.store().retain(&pack_key(&pack), retention).await)
            })
            .buffer_unordered(IN_FLIGHT);
        let mut gone = Vec::new();
        while let Some((pack, retention, retained)) = found.next().await {
            match retained {
                Ok(retained) if done.count(retained) => {}
                Ok(_) => gone.push((pack, retention)),
                Err(e) => trouble(e)?,
            }
        }
        drop(found);
        let mut needs = Needs::new();
        for (pack, retention) in gone {
            let leads_to = match retain_stub(repo, &pack, retention, &mut done).await {
                Ok(packs) => packs,
                Err(e) => {
                    trouble(e)?;
                    continue;
                }
            };
            for to in leads_to {
                let there = locked.get(&to).copied();
                if there.is_none_or(|there| !there.covers(&retention)) {
                    needs.add(to, there.map_or(retention, |there| there.or_longer(retention)));
                }
            }
        }
        ahead = needs.packs;
        if ahead.is_empty() {
            return Ok(done);
        }
    }
    let detail = format!("after {STUB_HOPS_MAX} stubs there is still no pack that exists");
    Err(Error::new(ErrorKind::Corrupt, "lock packs that were rewritten", detail))
}

/// Locks a stub; gives the packs that it leads to.
async fn retain_stub(
    repo: &Repository,
    pack: &PackId,
    retention: Retention,
    done: &mut Extended,
) -> Result<HashSet<PackId>> {
    let key = stub_key(pack);
    let bytes_max = u64::from(GC_BYTES_MAX) + RECORD_OVERHEAD;
    let open = |bytes: &Bytes| Stub::decode(repo.keys(), repo.id(), &key, bytes);
    let stub = repo.store().open_opt(&key, bytes_max, open).await?;
    let retained = repo.store().retain(&key, retention).await?;
    let (Some(stub), true) = (stub, done.count(retained)) else {
        let context = format!("lock {} in {}", pack_key(pack), repo.store().url());
        let detail = format!("the pack does not exist, and no {key} says where its content went");
        let find = Advice::FindLosses.words();
        return Err(Error::new(ErrorKind::Missing, context, detail).hint(find));
    };
    Ok(stub.relocations().iter().map(|(_, to)| to.pack).collect())
}

/// Locks what every restore needs: `format`, all key slots, and features.
pub(super) async fn retain_base(repo: &Repository, retention: Retention) -> Result<Extended> {
    let mut done = Extended::default();
    let (keys, features) =
        futures::try_join!(repo.store().list(KEYS_PREFIX), repo.store().list(FEATURES_PREFIX))?;
    let keys = keys.into_iter().chain(features).map(|l| l.key).chain(TOP_KEYS.map(str::to_owned));
    for key in keys {
        // a slot that was removed since is missed by nobody
        done.count(repo.store().retain(&key, retention).await?);
    }
    Ok(done)
}

impl Extended {
    /// False: there is no such object.
    fn count(&mut self, retained: Retained) -> bool {
        self.objects += u64::from(retained != Retained::Absent);
        self.extended += u64::from(retained == Retained::Now);
        retained != Retained::Absent
    }

    pub(super) fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.extended += other.extended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Inherited, RetainMode, RetainPolicy};
    use crate::testkit::repositories::locking_repository;
    use crate::units::Location;
    use chrono::{DateTime, Utc};

    fn until(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    #[tokio::test]
    async fn what_two_ways_lead_to_is_locked_as_both_need_it() {
        let strong = Retention::new(RetainMode::Compliance, until("2030-01-01T00:00:00Z"));
        let long = Retention::new(RetainMode::Governance, until("2031-01-01T00:00:00Z"));
        let policy = RetainPolicy { retention: long, inherited: Inherited::Later };
        let (repo, server) = locking_repository(policy).await;
        // 1 was rewritten to 2 and 3, and 2 is needed at its own place too
        let [one, two, three] = [1, 2, 3].map(|n| PackId::from_bytes([n; 32]));
        for pack in [&two, &three] {
            repo.store().put(&pack_key(pack), "a pack").await.unwrap();
        }
        let place = |pack| Location { pack, entry: 0, offset: 64, stored_len: 100, index: 0 };
        let stub = Stub::new(one, vec![((0, 0), place(two)), ((1, 0), place(three))]).unwrap();
        repo.put_stub(&stub).await.unwrap();
        let mut needs = Needs::new();
        needs.add(one, strong);
        needs.add(two, long);
        let done = retain_packs(&repo, needs, &mut Err).await.unwrap();
        assert_eq!(server.lock_of(&stub_key(&one)), Some(strong));
        assert_eq!(server.lock_of(&pack_key(&two)), Some(strong.or_longer(long)));
        assert_eq!(server.lock_of(&pack_key(&three)), Some(strong));
        // the second pack twice: first as it is needed itself
        assert_eq!(done, Extended { objects: 4, extended: 4 });

        // once is enough, and a stub that is gone is a loss
        let mut needs = Needs::new();
        needs.add(two, strong);
        let done = retain_packs(&repo, needs, &mut Err).await.unwrap();
        assert_eq!(done, Extended { objects: 1, extended: 0 });
        repo.store().delete(&stub_key(&one)).await.unwrap();
        let mut needs = Needs::new();
        needs.add(one, strong);
        let e = retain_packs(&repo, needs, &mut Err).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Missing, "{e}");
    }
}
