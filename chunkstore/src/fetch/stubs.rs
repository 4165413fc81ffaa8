//! Forwarding stubs: where the live chunks and pages of a rewritten pack went.

use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::format::names::{pack_key, stub_key};
use crate::format::stub::Stub;
use crate::ids::PackId;
use crate::limits::{GC_BYTES_MAX, RECORD_CLEAR_BYTES_MAX, STUB_HOPS_MAX};
use crate::repository::Repository;
use crate::units::Location;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Relocations that a follower keeps, about 80 bytes each.
const KEPT_MAX: usize = 1 << 16;
/// Largest stub as an object, bytes.
const STUB_BYTES_MAX: u64 = GC_BYTES_MAX as u64 + RECORD_CLEAR_BYTES_MAX as u64;

/// Follows stubs and keeps some, so that many reads from one rewritten pack cost one look-up.
#[derive(Debug, Default)]
pub struct StubFollower {
    stubs: HashMap<PackId, Arc<Stub>>,
    kept: usize,
}

/// A chunk on its way: its place in the answer, where it is in the pack at hand, and the packs it
/// came through.
struct Sought {
    at: usize,
    entry: u32,
    index: u16,
    trail: Vec<PackId>,
}

impl StubFollower {
    /// Where a chunk of a pack is as far as stubs are known already; `None` if its pack is not
    /// known to have moved.
    pub fn known(&self, pack: PackId, entry: u32, index: u16) -> Option<Location> {
        let mut found: Option<Location> = None;
        for _ in 0..STUB_HOPS_MAX {
            let (pack, entry, index) =
                found.map_or((pack, entry, index), |l| (l.pack, l.entry, l.index));
            let Some(next) = self.stubs.get(&pack).and_then(|stub| stub.find(entry, index)) else {
                break;
            };
            found = Some(*next);
        }
        found
    }

    /// Where chunks (or pages, index 0) of a pack that is gone are now; in the order of `wanted`.
    /// Chains of stubs are followed as far as packs are gone.
    ///
    /// No stub is an error of kind `Missing`: what a backup refers to is lost.
    pub async fn resolve(
        &mut self,
        repo: &Repository,
        pack: &PackId,
        wanted: &[(u32, u16)],
    ) -> Result<Vec<Location>> {
        let mut found: Vec<Option<Location>> = vec![None; wanted.len()];
        let first = |(at, &(entry, index))| Sought { at, entry, index, trail: Vec::new() };
        let mut ahead = BTreeMap::from([(*pack, wanted.iter().enumerate().map(first).collect())]);
        for _ in 0..STUB_HOPS_MAX {
            ahead = self.hop(repo, ahead, &mut found).await?;
            if ahead.is_empty() {
                let all: Option<Vec<Location>> = found.into_iter().collect();
                // an answer that is left out would be taken for that of the next one
                let what = "a place was neither found nor lost";
                let bug = || Error::new(ErrorKind::Bug, format!("follow {}", stub_key(pack)), what);
                return all.ok_or_else(bug);
            }
        }
        let what = format!("after {STUB_HOPS_MAX} stubs there is still no pack that exists");
        Err(Error::new(ErrorKind::Corrupt, format!("follow {}", stub_key(pack)), what))
    }

    /// Looks everything up in the stub of its pack; gives what is to be followed further, since the
    /// next pack is gone too.
    async fn hop(
        &mut self,
        repo: &Repository,
        ahead: BTreeMap<PackId, Vec<Sought>>,
        found: &mut [Option<Location>],
    ) -> Result<BTreeMap<PackId, Vec<Sought>>> {
        let mut next: BTreeMap<PackId, Vec<Sought>> = BTreeMap::new();
        for (pack, sought) in ahead {
            let stub = self.stub(repo, &pack).await?;
            for Sought { at, entry, index, mut trail } in sought {
                let to = *stub.find(entry, index).ok_or_else(|| lost(&pack, entry, index))?;
                found[at] = Some(to);
                trail.push(pack);
                let (entry, index) = (to.entry, to.index);
                next.entry(to.pack).or_default().push(Sought { at, entry, index, trail });
            }
        }
        let mut gone = BTreeMap::new();
        for (pack, sought) in next {
            if repo.store().head(&pack_key(&pack)).await?.is_some() {
                continue;
            }
            if sought.iter().any(|s| s.trail.contains(&pack)) {
                let what = "the stubs lead back to this pack, and it does not exist";
                let place = format!("follow {}", stub_key(&pack));
                return Err(Error::new(ErrorKind::Corrupt, place, what));
            }
            gone.insert(pack, sought);
        }
        Ok(gone)
    }

    async fn stub(&mut self, repo: &Repository, pack: &PackId) -> Result<Arc<Stub>> {
        if let Some(stub) = self.stubs.get(pack) {
            return Ok(Arc::clone(stub));
        }
        let key = stub_key(pack);
        let open = |bytes: &Bytes| Stub::decode(repo.keys(), repo.id(), &key, bytes);
        let Some(stub) = repo.store().open_opt(&key, STUB_BYTES_MAX, open).await? else {
            return Err(Error::new(
                ErrorKind::Missing,
                format!("read {} in {}", pack_key(pack), repo.store().url()),
                format!("the pack does not exist, and no {key} says where its content went"),
            )
            .hint(format!(
                "what this backup needs of it is lost; {}",
                Advice::VerifyOthers.words()
            )));
        };
        let stub = Arc::new(stub);
        let size = stub.relocations().len();
        if size > KEPT_MAX {
            return Ok(stub);
        }
        if self.kept + size > KEPT_MAX {
            self.stubs.clear();
            self.kept = 0;
        }
        self.kept += size;
        self.stubs.insert(*pack, Arc::clone(&stub));
        Ok(stub)
    }
}

fn lost(pack: &PackId, entry: u32, index: u16) -> Error {
    Error::new(
        ErrorKind::Missing,
        format!("follow {}", stub_key(pack)),
        format!("the stub does not say where chunk {index} of entry {entry} went"),
    )
}

#[cfg(test)]
mod tests;
