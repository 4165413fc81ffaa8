//! What is watched in one place, and who hears of it. No I/O: `source.rs` feeds it.
//!
//! **No gap.** A topic has a *floor*: every event above it is in the ring or is still to come. It is
//! the version of a list at first, and grows where the ring forgets events. A subscriber that read
//! at version V hears all above V if V is not below the floor: what the ring has is put into its
//! queue under the same lock under which events are published. Otherwise it hears `Missed`, reads
//! again, and what comes after that reading is in its queue. So it does where versions were seen to
//! go back. Where they are no numbers it hears `Missed` of each event, and reads. There is no loop:
//! the subscription goes on, so a reading that follows `Missed` is compared with nothing.
//!
//! Versions that go back mean a server that was restored from an older copy. It is noticed by the
//! first list that is older than what was told or read before it was asked for. A restored server
//! that has by then more versions than anybody saw cannot be told from the old one.
//!
//! A connection that ends is begun again at the newest version that was told (`source.rs`), and
//! nobody hears of that. Where the server does not have that version any more, everybody hears
//! `Missed` once, and the ring begins anew.
//!
//! Locks: a topic's, then an inbox's. Wakers run after both are let go of, so whatever they do
//! cannot wait for itself.

use super::event::{Event, Labels, number};
use super::selector::{Slot, Told, Wanted, slots};
use crate::api::{ApiError, Change};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) ring_bytes: usize,
    /// A subscriber that lags behind further than that is told to read again.
    pub(super) queue_events: usize,
    pub(super) queue_bytes: usize,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What waits for a subscriber.
#[derive(Debug, Default)]
struct Inbox {
    /// What it has read; nothing older is told. Not known after it has missed something.
    version: Option<u128>,
    queue: VecDeque<(Told, Arc<Event>)>,
    bytes: usize,
    /// Nothing is queued until it is told: the reading that follows has it all.
    missed: bool,
    /// No more comes after the queue.
    over: bool,
    ended: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Subscriber {
    wanted: Wanted,
    inbox: Mutex<Inbox>,
}

impl Subscriber {
    /// Queues an event within bounds; without them it is to be read.
    fn tell(&self, event: &Arc<Event>, bounds: Option<Bounds>) -> Option<Waker> {
        let told = self.wanted.telling(event)?;
        let Some(bounds) = bounds else { return self.miss() };
        let mut inbox = lock(&self.inbox);
        let known = inbox.version.zip(number(&event.version));
        if inbox.missed || inbox.over || known.is_some_and(|(known, told)| told <= known) {
            return None;
        }
        if inbox.queue.len() >= bounds.queue_events || inbox.bytes >= bounds.queue_bytes {
            drop(inbox);
            return self.miss();
        }
        inbox.bytes += event.bytes();
        inbox.queue.push_back((told, Arc::clone(event)));
        inbox.waker.take()
    }

    fn miss(&self) -> Option<Waker> {
        let mut inbox = lock(&self.inbox);
        inbox.version = None;
        inbox.queue = VecDeque::new();
        inbox.bytes = 0;
        inbox.missed = true;
        inbox.waker.take()
    }

    fn has(&self, version: u128) -> bool {
        lock(&self.inbox).version >= Some(version)
    }

    fn end(&self) -> Option<Waker> {
        let mut inbox = lock(&self.inbox);
        inbox.over = true;
        inbox.waker.take()
    }
}

/// Whether a topic tells anything.
#[derive(Debug)]
pub(super) enum State {
    /// It is watched, or is about to be.
    Live,
    /// Not now: whoever asks is told this. If there is a time, it is tried again then.
    Off(ApiError, Option<Instant>),
}

#[derive(Debug)]
pub(super) struct Topic {
    state: State,
    /// All events above it are in the ring or yet to come; `None` until the first list, and where
    /// versions are no numbers.
    floor: Option<u128>,
    begun: bool,
    /// The newest version that was told.
    head: Option<String>,
    /// Versions went back once: none is compared any more.
    distrusted: bool,
    ring: VecDeque<Arc<Event>>,
    ring_bytes: usize,
    bounds: Bounds,
    /// By uid, where a selection by labels may be left.
    labels: Option<HashMap<String, Arc<Labels>>>,
    slots: HashMap<Slot, Vec<(u64, Arc<Subscriber>)>>,
    subscribers: usize,
    next: u64,
}

/// An object of a list: its uid and its labels.
pub(super) type Labelled = (String, Arc<Labels>);

impl Topic {
    /// `labelled`: what is in it may leave it.
    pub(super) fn new(bounds: Bounds, labelled: bool) -> Self {
        Self {
            state: State::Live,
            floor: None,
            begun: false,
            head: None,
            distrusted: false,
            ring: VecDeque::new(),
            ring_bytes: 0,
            bounds,
            labels: labelled.then(HashMap::new),
            slots: HashMap::new(),
            subscribers: 0,
            next: 0,
        }
    }

    /// Whether it is watched, and its versions are known.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Live) && self.begun
    }

    /// Whether there may be subscribers.
    pub(super) fn is_on(&self) -> bool {
        matches!(self.state, State::Live)
    }

    /// It was given up, and may be begun anew.
    pub(super) fn is_past(&self) -> bool {
        matches!(self.state, State::Off(_, Some(until)) if until <= Instant::now())
    }

    /// Why nothing is told now.
    fn off(&self) -> Option<ApiError> {
        match &self.state {
            State::Live => None,
            State::Off(why, _) => Some(why.clone()),
        }
    }

    pub(super) fn subscribers(&self) -> usize {
        self.subscribers
    }

    /// Where a watch may go on.
    pub(super) fn head(&self) -> Option<&str> {
        self.head.as_deref().filter(|_| self.begun)
    }

    /// Whether a watch may go on where it was, by a list that was asked for after this version was
    /// read. Versions that are numbers prove it: what was told and read is in this server's past.
    pub(super) fn may_resume(&mut self, listed: Option<&str>, read: Option<u128>) -> bool {
        let Some(listed) = listed.and_then(number) else { return false };
        let head = self.head().and_then(number);
        self.distrusted |= head.max(read).is_some_and(|known| listed < known);
        head.is_some_and(|head| head <= listed) && !self.distrusted
    }

    /// Everything is as of a list now: events before it are not told any more.
    pub(super) fn begin(&mut self, listed: Option<&str>, objects: Vec<Labelled>) -> Vec<Waker> {
        let version = listed.and_then(number);
        self.ring.clear();
        self.ring_bytes = 0;
        self.floor = version;
        self.begun = true;
        self.head = listed.map(str::to_owned);
        if self.labels.is_some() {
            self.labels = Some(objects.into_iter().collect());
        }
        let trusted = version.filter(|_| !self.distrusted);
        let has_all = |one: &Subscriber| trusted.is_some_and(|version| one.has(version));
        self.all().filter(|one| !has_all(one)).filter_map(|one| one.miss()).collect()
    }

    /// It is watched again, from where it was.
    pub(super) fn resume(&mut self) {
        self.state = State::Live;
    }

    /// Nothing is told for now: all subscriptions end.
    pub(super) fn turn_off(&mut self, why: ApiError, until: Option<Instant>) -> Vec<Waker> {
        self.state = State::Off(why, until);
        let all = std::mem::take(&mut self.slots);
        self.subscribers = 0;
        all.into_values().flatten().filter_map(|(_, one)| one.end()).collect()
    }

    fn all(&self) -> impl Iterator<Item = &Subscriber> {
        self.slots.values().flatten().map(|(_, one)| &**one)
    }

    /// All until this version was told.
    ///
    /// # Errors
    ///
    /// The server has told newer ones before.
    pub(super) fn bookmark(&mut self, version: String) -> Result<(), Back> {
        self.follows(&version)?;
        self.head = Some(version);
        Ok(())
    }

    fn follows(&self, version: &str) -> Result<(), Back> {
        match self.head().and_then(number).zip(number(version)) {
            Some((head, version)) if version < head => Err(Back { head, version }),
            _ => Ok(()),
        }
    }

    /// Tells all who want to hear of it.
    ///
    /// # Errors
    ///
    /// It is older than what was told: it is told to nobody.
    pub(super) fn publish(&mut self, mut event: Event) -> Result<Vec<Waker>, Back> {
        self.follows(&event.version)?;
        self.head = Some(event.version.clone());
        if number(&event.version).is_none() {
            self.floor = None;
        }
        if let Some(known) = &mut self.labels {
            let before = match event.gone {
                true => known.remove(&event.uid),
                false => known.insert(event.uid.clone(), Arc::clone(&event.labels)),
            };
            event.before = before.filter(|before| *before != event.labels);
        }
        let event = Arc::new(event);
        let found: BTreeSet<Slot> = slots(&event).collect();
        let found = found.iter().filter_map(|slot| self.slots.get(slot)).flatten();
        // Nobody could say whether it is older than what was read meanwhile.
        let bounds = self.floor.map(|_| self.bounds);
        let wakers = found.filter_map(|(_, one)| one.tell(&event, bounds)).collect();
        self.remember(event);
        Ok(wakers)
    }

    fn remember(&mut self, event: Arc<Event>) {
        self.ring_bytes += event.bytes();
        self.ring.push_back(event);
        while self.ring_bytes > self.bounds.ring_bytes {
            let Some(oldest) = self.ring.pop_front() else { break };
            self.ring_bytes -= oldest.bytes();
            // Where it is no number, nothing is known of what is above it.
            self.floor = self.floor.and_then(|floor| Some(floor.max(number(&oldest.version)?)));
        }
    }

    fn subscribe(&mut self, wanted: Wanted, version: Option<&str>) -> (u64, Arc<Subscriber>) {
        let known = version.and_then(number).filter(|_| !self.distrusted);
        let inbox = Inbox { version: known, ..Inbox::default() };
        let one = Subscriber { wanted, inbox: Mutex::new(inbox) };
        if self.begun {
            match known.zip(self.floor).filter(|(known, floor)| known >= floor) {
                // Versions in the ring only grow.
                Some((known, _)) => {
                    let new = |event: &Arc<Event>| number(&event.version) <= Some(known);
                    let from = self.ring.partition_point(new);
                    self.ring
                        .range(from..)
                        .for_each(|event| drop(one.tell(event, Some(self.bounds))));
                }
                None => drop(one.miss()),
            }
        }
        let (id, one) = (self.next, Arc::new(one));
        self.next += 1;
        self.subscribers += 1;
        self.slots.entry(one.wanted.slot()).or_default().push((id, Arc::clone(&one)));
        (id, one)
    }

    fn unsubscribe(&mut self, id: u64, one: &Subscriber) {
        let slot = one.wanted.slot();
        let Some(all) = self.slots.get_mut(&slot) else { return };
        // They came in this order.
        if let Ok(at) = all.binary_search_by_key(&id, |(id, _)| *id) {
            all.remove(at);
            self.subscribers -= 1;
        }
        if all.is_empty() {
            self.slots.remove(&slot);
        }
        if self.slots.is_empty() {
            self.slots = HashMap::new();
        }
    }
}

/// A version that is older than one before it.
#[derive(Debug)]
pub(super) struct Back {
    pub(super) head: u128,
    pub(super) version: u128,
}

/// Changes for one subscriber, until it is dropped.
#[derive(Debug)]
pub(super) struct Subscription {
    topic: Arc<Mutex<Topic>>,
    id: u64,
    one: Arc<Subscriber>,
}

impl Subscription {
    /// Of a topic, from what was read at this version.
    ///
    /// # Errors
    ///
    /// Why nothing is told there now.
    pub(super) fn begin(
        topic: &Arc<Mutex<Topic>>,
        wanted: Wanted,
        version: Option<&str>,
    ) -> Result<Self, ApiError> {
        let mut state = lock(topic);
        if let Some(why) = state.off() {
            return Err(why);
        }
        let (id, one) = state.subscribe(wanted, version);
        Ok(Self { topic: Arc::clone(topic), id, one })
    }
}

#[cfg(test)]
impl Topic {
    pub(super) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
impl Subscription {
    pub(super) fn queued(&self) -> usize {
        lock(&self.one.inbox).queue.len()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        lock(&self.topic).unsubscribe(self.id, &self.one);
    }
}

impl futures::Stream for Subscription {
    type Item = Change;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Change>> {
        let mut inbox = lock(&self.one.inbox);
        if inbox.missed {
            inbox.missed = false;
            return Poll::Ready(Some(Change::Missed));
        }
        if let Some((told, event)) = inbox.queue.pop_front() {
            inbox.bytes -= event.bytes();
            if inbox.queue.is_empty() {
                inbox.queue = VecDeque::new();
            }
            drop(inbox);
            return Poll::Ready(Some(match told {
                Told::Set => Change::Set(event.object()),
                Told::Gone => Change::Gone(event.object()),
            }));
        }
        if inbox.over {
            let first = !std::mem::replace(&mut inbox.ended, true);
            return Poll::Ready(first.then_some(Change::Over));
        }
        inbox.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
