//! Requests and bytes that were counted.

use super::Store;
use super::clock::ClockOffset;
use super::health::Health;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests made so far, by kind. A listing counts as one request for each 1000 objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct RequestCounts {
    /// Whole objects and ranges read.
    pub gets: u64,
    /// Objects written.
    pub puts: u64,
    /// Objects written only if absent; also counts the tries that found one.
    pub creates: u64,
    /// Look-ups of size and time.
    pub heads: u64,
    /// Pages of listings.
    pub lists: u64,
    /// Objects deleted.
    pub deletes: u64,
    /// Tries of all of these that broke, or that the store refused for the moment (429, 5xx). They
    /// are made again, so they come on top.
    pub failed_tries: u64,
}

impl RequestCounts {
    /// All kinds together, each request once.
    pub fn total(&self) -> u64 {
        self.gets + self.puts + self.creates + self.heads + self.lists + self.deletes
    }
}

/// Bytes that were handed to the store so far, to be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SentBytes {
    /// Packs and segments.
    pub in_turn: u64,
    /// Leases, manifests and other records.
    pub at_once: u64,
    /// What of both was sent again because a try had failed.
    pub again: u64,
}

impl SentBytes {
    /// All that went over the line.
    pub fn total(&self) -> u64 {
        self.in_turn + self.at_once + self.again
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) gets: AtomicU64,
    pub(super) puts: AtomicU64,
    pub(super) creates: AtomicU64,
    pub(super) heads: AtomicU64,
    pub(super) lists: AtomicU64,
    pub(super) deletes: AtomicU64,
    pub(super) failed_tries: AtomicU64,
    /// Requests of operations, of all kinds: those above without those made in the background.
    pub(super) movement: AtomicU64,
    pub(super) sent_in_turn: AtomicU64,
    pub(super) sent_at_once: AtomicU64,
    pub(super) sent_again: AtomicU64,
    pub(super) clock: ClockOffset,
    pub(super) health: Health,
}

impl Store {
    /// Requests made so far, by this and all clones.
    pub fn counts(&self) -> RequestCounts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let c = &self.counters;
        RequestCounts {
            gets: get(&c.gets),
            puts: get(&c.puts),
            creates: get(&c.creates),
            heads: get(&c.heads),
            lists: get(&c.lists),
            deletes: get(&c.deletes),
            failed_tries: get(&c.failed_tries),
        }
    }

    /// Grows with each request that an operation makes, and with none that is made
    /// [in the background](Self::in_background): by this and all clones.
    pub fn movement(&self) -> u64 {
        self.counters.movement.load(Ordering::Relaxed)
    }

    /// The same store for what goes on by itself beside an operation, such as a heartbeat. Its
    /// requests are counted like all others, but they are no movement.
    #[must_use]
    pub fn in_background(&self) -> Self {
        Self { in_background: true, ..self.clone() }
    }

    /// Counts a request of a kind.
    pub(super) fn count(&self, kind: &AtomicU64) {
        self.count_many(kind, 1);
    }

    /// Counts what is, or might be, so many requests of a kind.
    pub(super) fn count_many(&self, kind: &AtomicU64, requests: u64) {
        kind.fetch_add(requests, Ordering::Relaxed);
        self.moved();
    }

    /// A request was made.
    pub(super) fn moved(&self) {
        if !self.in_background {
            count(&self.counters.movement);
        }
    }

    /// Bytes handed to the store so far, by this and all clones.
    pub fn sent(&self) -> SentBytes {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let c = &self.counters;
        SentBytes {
            in_turn: get(&c.sent_in_turn),
            at_once: get(&c.sent_at_once),
            again: get(&c.sent_again),
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn add(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(bytes as u64, Ordering::Relaxed);
}
