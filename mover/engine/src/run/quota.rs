//! What a run may use up: bytes to the store, requests, time; and how it is kept to.
//!
//! A bound is no rate and no failure: a run that reaches one ends cleanly, with a checkpoint, and
//! the next one goes on from there.
//!
//! *Bytes and requests* are reserved before anything is made of a unit, together with all that an
//! orderly end still has to write: what is sealed and not sent, the map's pages, the dedup segment,
//! the lease. Where that does not fit any more, nothing more is read or sealed, and what is sealed
//! is stored, however long it takes. So what goes over the line stays within the bound, but for
//! what has to be sent again and the beats of the lease. *Time* is another thing: its end is that
//! of a window, so the run is stopped as by a signal
//! ([`StopReason::Bound`](crate::run::StopReason::Bound)).
//!
//! The sums are one short lock a unit, and none at all without a bound.

use chunkstore::limits::SEGMENT_RECORD_BYTES;
use chunkstore::{Error, ErrorKind, Result, Setting, Store};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// For the end of a run: the lease with its checkpoint, the open pages of the map, the headers of
/// the last packs, the manifest.
const END_BYTES: u64 = 1 << 20;
/// For the end of a run: packs that are open, a segment, a checkpoint, the manifest and what is
/// looked up around it.
const END_REQUESTS: u64 = 16;
/// What a chunk adds to a segment, to a pack's directory and to a map page.
const CHUNK_BYTES: u64 = SEGMENT_RECORD_BYTES as u64 + 16 + 32 + 96;
/// What a child adds to a page that is written anew.
const CHILD_BYTES: u64 = 96;
/// Header, tag and directory entry of a sealed entry, and more.
const ENTRY_BYTES: u64 = 256;

/// Which bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Bytes to the store.
    MaxUpload,
    /// Requests to the store.
    MaxRequests,
    /// Time.
    Deadline,
}

impl Bound {
    /// The setting that sets it.
    pub fn setting(self) -> Setting {
        Setting(match self {
            Self::MaxUpload => "max-upload",
            Self::MaxRequests => "max-requests",
            Self::Deadline => "deadline",
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.setting().fmt(f)
    }
}

/// What a run may send.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes to the store, all kinds of objects together.
    pub upload_bytes: Option<u64>,
    /// Requests of all kinds, tries that failed included.
    pub requests: Option<u64>,
}

/// Adds up what one run sends and what it still has to.
#[derive(Debug)]
pub(crate) struct Meter {
    quota: Quota,
    store: Store,
    /// What a unit may cost in map pages.
    unit_bytes: u64,
    pack_bytes: u64,
    owed: Mutex<Owed>,
    /// Something is stored that need not be stored again.
    progress: AtomicBool,
    reached: OnceLock<Bound>,
}

/// What is sent and not counted by the store yet, and what has to be sent.
#[derive(Debug, Default)]
struct Owed {
    /// Packs and segments that were handed to the store.
    handed: u64,
    /// Sealed, or about to be, and not handed over.
    sealed: u64,
    /// Units that the map has not taken.
    units: u64,
    /// Map pages that are sealed.
    pages: u64,
    /// Requests that are known to follow.
    requests: u64,
}

impl Meter {
    /// `None` without a bound. `unit_chunks`: of a read unit; `fanout`: of a map page.
    pub(crate) fn new(
        quota: Quota,
        store: &Store,
        (fanout, pack_bytes): (u16, u32),
        slot_bytes: u32,
    ) -> Result<Option<Arc<Self>>> {
        if quota == Quota::default() {
            return Ok(None);
        }
        // what was sent before this run: by an earlier backup of the same process
        let owed = Owed { handed: store.sent().in_turn, ..Owed::default() };
        let meter = Self {
            quota,
            store: store.clone(),
            unit_bytes: u64::from(fanout) * CHILD_BYTES + ENTRY_BYTES,
            pack_bytes: u64::from(pack_bytes.max(1)),
            progress: AtomicBool::new(owed.handed > 0),
            owed: Mutex::new(owed),
            reached: OnceLock::new(),
        };
        let least = 2 * (END_BYTES + meter.unit_bytes) + u64::from(slot_bytes);
        match quota.upload_bytes {
            Some(most) if most < least => Err(too_small(Bound::MaxUpload, most)
                .hint(format!("give at least {} KiB, or leave it out", least.div_ceil(1024)))),
            _ => Ok(Some(Arc::new(meter))),
        }
    }

    /// A unit is about to be looked at.
    pub(crate) fn begin_unit(&self) -> Result<(), Bound> {
        let mut owed = self.lock();
        owed.units += 1;
        self.check(&owed).inspect_err(|_| owed.units -= 1)
    }

    /// A unit is about to be sealed: reserves what it costs at most. What it did cost is told with
    /// [`Self::sealed`].
    pub(crate) fn reserve(&self, plain_bytes: u64, chunks: u64) -> Result<u64, Bound> {
        let most = plain_bytes + chunks * CHUNK_BYTES + ENTRY_BYTES;
        let mut owed = self.lock();
        owed.sealed += most;
        self.check(&owed).map(|()| most).inspect_err(|_| owed.sealed -= most)
    }

    /// What was reserved has become `stored_bytes` of so many chunks.
    pub(crate) fn sealed(&self, reserved: u64, stored_bytes: u64, chunks: u64) {
        let mut owed = self.lock();
        let cost = stored_bytes + chunks * CHUNK_BYTES;
        owed.sealed = owed.sealed.saturating_sub(reserved).saturating_add(cost);
    }

    /// The map has taken a unit.
    pub(crate) fn unit_done(&self) {
        let mut owed = self.lock();
        owed.units = owed.units.saturating_sub(1);
    }

    /// A pack or segment was handed to the store. `owed_bytes`: what had been reserved for it.
    pub(crate) fn uploaded(&self, bytes: u64, owed_bytes: u64) {
        let mut owed = self.lock();
        owed.handed += bytes;
        owed.sealed = owed.sealed.saturating_sub(owed_bytes);
    }

    /// Map pages that wait for their pack, and requests that will follow.
    pub(crate) fn set_pending(&self, page_bytes: u64, requests: u64) {
        let mut owed = self.lock();
        (owed.pages, owed.requests) = (page_bytes, requests);
    }

    /// What a segment of so many records had reserved.
    pub(crate) fn segment_bytes(records: usize) -> u64 {
        records as u64 * u64::from(SEGMENT_RECORD_BYTES)
    }

    /// Something is stored that the next run need not store again.
    pub(crate) fn stored(&self) {
        self.progress.store(true, Ordering::Relaxed);
    }

    /// Whether this run has brought the backup any further.
    pub(crate) fn has_progress(&self) -> bool {
        self.progress.load(Ordering::Relaxed)
    }

    /// The run ends for this bound.
    pub(crate) fn reach(&self, bound: Bound) {
        self.reached.get_or_init(|| bound);
    }

    /// The bound that the run ends for.
    pub(crate) fn reached(&self) -> Option<Bound> {
        self.reached.get().copied()
    }

    /// What a bound is set to.
    pub(crate) fn most(&self, bound: Bound) -> Option<u64> {
        match bound {
            Bound::MaxUpload => self.quota.upload_bytes,
            Bound::MaxRequests => self.quota.requests,
            Bound::Deadline => None,
        }
    }

    fn check(&self, owed: &Owed) -> Result<(), Bound> {
        if let Some(most) = self.quota.upload_bytes {
            let sent = self.store.sent();
            let to_come = owed.sealed + owed.units * self.unit_bytes + owed.pages + END_BYTES;
            if owed.handed + sent.at_once + sent.again + to_come > most {
                return Err(Bound::MaxUpload);
            }
        }
        if let Some(most) = self.quota.requests {
            let made = self.store.counts();
            let packs = owed.sealed / self.pack_bytes;
            let to_come = owed.requests + packs + END_REQUESTS;
            if made.total() + made.failed_tries + to_come > most {
                return Err(Bound::MaxRequests);
            }
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bound within which nothing can be done: running again would never end.
pub(crate) fn too_small(bound: Bound, most: u64) -> Error {
    Error::new(
        ErrorKind::Usage,
        format!("keep to {bound} {most}"),
        "it is too small for a run to get anywhere",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::path::Path;

    fn store() -> Store {
        Store::new(Arc::new(InMemory::new()), Path::default(), "memory")
    }

    fn meter(quota: Quota) -> Result<Option<Arc<Meter>>> {
        Meter::new(quota, &store(), (128, 8 << 20), 1 << 20)
    }

    fn upload(bytes: u64) -> Quota {
        Quota { upload_bytes: Some(bytes), ..Quota::default() }
    }

    #[test]
    fn a_bound_that_no_unit_fits_into_is_refused_and_none_costs_nothing() {
        assert!(meter(Quota::default()).unwrap().is_none());
        let e = meter(upload(1 << 20)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage);
        assert!(e.to_string().contains("`max-upload` 1048576"), "{e}");
        // what the hint says is enough, and is enough for one unit at least
        let least = e.hint_text().unwrap().split(' ').nth(3).unwrap().parse::<u64>().unwrap();
        let meter = meter(upload(least * 1024)).unwrap().unwrap();
        meter.begin_unit().unwrap();
        meter.reserve(1 << 20, 16).unwrap();
    }

    #[test]
    fn what_is_reserved_sealed_and_sent_stays_within_the_bound() {
        const MOST: u64 = 40 << 20;
        let meter = meter(upload(MOST)).unwrap().unwrap();
        let (mut sealed, mut units) = (0, 0);
        // every third unit is handed over
        while let Ok(reserved) = meter.begin_unit().and_then(|()| meter.reserve(1 << 20, 16)) {
            meter.sealed(reserved, 1 << 19, 16);
            sealed += 1 << 19;
            units += 1;
            meter.unit_done();
            if units % 3 == 0 {
                meter.uploaded(3 << 19, 3 << 19);
            }
        }
        // a unit's plain size and the end are what may be left unused
        assert!((MOST - (3 << 20)..=MOST - END_BYTES).contains(&sealed), "{sealed}");
        assert_eq!(meter.begin_unit(), Ok(()), "one that needs no room goes on");
    }

    #[test]
    fn requests_that_follow_count() {
        let quota = Quota { requests: Some(40), ..Quota::default() };
        let meter = meter(quota).unwrap().unwrap();
        meter.set_pending(0, 24);
        meter.begin_unit().unwrap();
        // three packs are full
        meter.reserve(24 << 20, 0).unwrap_err();
        meter.set_pending(0, 25);
        assert_eq!(meter.begin_unit(), Err(Bound::MaxRequests));
    }
}
