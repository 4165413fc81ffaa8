//! The watches of one operation: what is watched, what is looked at instead, and what is to be read
//! again. One task uses them, and each telling costs no more than the operation has objects.

use super::Driver;
use crate::api::{Api, Change};
use crate::engine::{Failure, Observed, Query, Selection};
use futures::future::FutureExt as _;
use futures::stream::{AbortHandle, BoxStream, SelectAll, StreamExt as _, abortable};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A watch that ends sooner says nothing that a look would not.
const WATCH_LEAST: Duration = Duration::from_secs(5);
/// What could not be watched is watched again then.
const WATCH_AGAIN: Duration = Duration::from_secs(60);
/// A silence of this length is reason to look whether watches are dead.
const SILENCE: Duration = Duration::from_secs(60);
/// What nobody may watch is looked at so often.
const LOOK: Duration = Duration::from_secs(2);
/// The same where many operations share one budget of requests.
const LOOK_SHARED: Duration = Duration::from_secs(10);
/// So many tellings are heard before the plan is made anew, where watches are shared.
const AT_ONCE: usize = 64;

/// The watches of one operation.
#[derive(Default)]
pub(super) struct Watches {
    streams: SelectAll<BoxStream<'static, (Query, Change)>>,
    watched: BTreeMap<Query, Watched>,
    /// They are read by a list the next time.
    relist: BTreeSet<Query>,
    /// Of these something was missed: what is told of them counts once they are known again.
    missed: BTreeSet<Query>,
    /// These cannot be watched now, since when: they are read instead, for a while.
    looked_at: BTreeMap<Query, Instant>,
    /// When its watch told something last, or it was read instead.
    heard: BTreeMap<Query, Instant>,
}

struct Watched {
    since: Instant,
    end: AbortHandle,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.watched.keys()).finish()
    }
}

impl Watches {
    pub(super) fn is_looked_at(&self, query: &Query) -> bool {
        self.looked_at.get(query).is_some_and(|since| since.elapsed() < WATCH_AGAIN)
    }

    /// The next telling; for ever where nothing is watched.
    pub(super) async fn next(&mut self) -> Option<(Query, Change)> {
        match self.streams.is_empty() {
            true => std::future::pending().await,
            false => self.streams.next().await,
        }
    }

    /// After so long something is to be read again, whatever is told.
    pub(super) fn look_after(&self, api: &Api, on: &[Query]) -> Duration {
        let look = if api.is_shared() { LOOK_SHARED } else { LOOK };
        let alive = api.is_shared() && on.iter().all(|query| api.shares(query));
        let silence = if alive { Duration::MAX } else { SILENCE };
        match on.iter().any(|query| self.is_looked_at(query)) {
            true => look.min(silence),
            false => silence,
        }
    }

    fn begin(&mut self, query: &Query, changes: BoxStream<'static, Change>) {
        let of = query.clone();
        let (changes, end) = abortable(changes.map(move |change| (of.clone(), change)));
        self.streams.push(changes.boxed());
        let now = Instant::now();
        self.watched.insert(query.clone(), Watched { since: now, end });
        self.heard.insert(query.clone(), now);
    }

    /// A watch is over. What it told is read anew, and one that ends at once is not begun again: it
    /// would cost two requests each time.
    fn over(&mut self, query: Query, seen: &mut Observed) {
        let began = self.watched.remove(&query);
        if began.is_some_and(|began| began.since.elapsed() < WATCH_LEAST) {
            self.looked_at.insert(query.clone(), Instant::now());
        }
        seen.forget(&query);
        self.relist.insert(query);
    }

    /// Ends watches of all objects of a kind that are not waited for any more: they tell of the
    /// work of all others.
    fn narrow(&mut self, api: &Api, on: &[Query], seen: &mut Observed) {
        let is_wide = |query: &Query| match query {
            Query::One(_) => false,
            Query::Many(Selection { labels, fields, .. }) => labels.is_empty() && fields.is_empty(),
        };
        self.watched.retain(|query, watched| {
            let stays = !is_wide(query) || on.contains(query) || !api.shares(query);
            if !stays {
                watched.end.abort();
                seen.forget(query);
            }
            stays
        });
    }

    /// Takes in a telling. What is told between a miss and the next reading is part of that
    /// reading; without it a list would seem to be known that lacks something.
    fn hear(&mut self, (query, change): (Query, Change), seen: &mut Observed) {
        self.heard.insert(query.clone(), Instant::now());
        if self.missed.contains(&query) && !matches!(change, Change::Missed | Change::Over) {
            if !seen.knows(&query) {
                return;
            }
            self.missed.remove(&query);
        }
        match (query, change) {
            (Query::One(key), Change::Set(object)) => seen.hear_object(key, object, false),
            (Query::One(key), Change::Gone(object)) => seen.hear_object(key, object, true),
            (Query::Many(selection), Change::Set(object)) => {
                seen.hear_member(&selection, object, false);
            }
            (Query::Many(selection), Change::Gone(object)) => {
                seen.hear_member(&selection, object, true);
            }
            (query, Change::Missed) => {
                seen.forget(&query);
                self.relist.insert(query.clone());
                self.missed.insert(query);
            }
            (query, Change::Over) => self.over(query, seen),
        }
    }
}

impl Driver<'_> {
    pub(super) async fn read(&mut self, query: &Query) -> Result<(), Failure> {
        let by_list = self.watches.relist.remove(query) || self.api.is_watched(query);
        let api = if self.session.is_some() { &self.urgent } else { self.api };
        let done = match query {
            Query::One(key) if by_list => api.read_listed(key, &mut self.seen).await,
            _ => api.read(query, &mut self.seen).await,
        };
        if done.is_ok() {
            self.watches.missed.remove(query);
        }
        done
    }

    /// Begins the watches that are lacking; false where something was read first.
    pub(super) async fn watch(&mut self, on: &[Query]) -> Result<bool, Failure> {
        self.watches.narrow(self.api, on, &mut self.seen);
        for query in on {
            let is_watched = self.watches.watched.contains_key(query);
            if is_watched && self.watches.missed.contains(query) && !self.seen.knows(query) {
                self.read(query).await?;
                return Ok(false);
            }
            if is_watched || self.watches.is_looked_at(query) {
                continue;
            }
            // What is not known is read first: the watch goes on from there.
            if !self.seen.knows(query) {
                self.read(query).await?;
                return Ok(false);
            }
            let version = self.seen.version(query);
            match self.api.watch(query, version.as_deref()).await {
                Ok(changes) => self.watches.begin(query, changes),
                // A server that is away is noticed by the next read, which is paced.
                Err(why) => {
                    tracing::debug!("{}", Failure::from(why));
                    self.watches.looked_at.insert(query.clone(), Instant::now());
                    self.watches.relist.insert(query.clone());
                }
            }
        }
        Ok(true)
    }

    /// Takes in what a watch tells, and all that others have told by then.
    pub(super) fn hear(&mut self, change: (Query, Change)) {
        self.watches.hear(change, &mut self.seen);
        if !self.api.is_shared() {
            return;
        }
        for _ in 1..AT_ONCE {
            let Some(Some(change)) = self.watches.streams.next().now_or_never() else { return };
            self.watches.hear(change, &mut self.seen);
        }
    }

    /// Whether a watch among these has told nothing for so long that it may be dead: what it is
    /// about is read instead. One that is shared is looked after by whoever shares it.
    pub(super) fn was_silent(&mut self, on: &[Query]) -> bool {
        let mut silent = false;
        for query in on.iter().filter(|query| !self.api.shares(query)) {
            let Some(heard) = self.watches.heard.get_mut(query) else { continue };
            if heard.elapsed() >= SILENCE {
                *heard = Instant::now();
                self.seen.forget(query);
                silent = true;
            }
        }
        silent
    }
}
