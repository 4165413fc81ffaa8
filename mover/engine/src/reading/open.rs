//! The opener stage: N threads decrypt and decompress entries, check every chunk's id, and hand the
//! bytes on.
//!
//! A thread owns one entry, its plaintext and at most one slot at a time. An id is checked before a
//! byte is handed on, so what leaves this stage is what was backed up. After a failure it goes on
//! taking entries and drops them, which frees the memory that others wait for.

use super::damage::Damage;
use super::plan::{EntryWork, Placement, PlanScope, name, runs};
use crate::run::Progress;
use crate::run::failure::Failure;
use crate::volume::io::{Arena, Slot};
use bytes::Bytes;
use chunkstore::format::names::pack_key;
use chunkstore::{
    Advice, ChunkNo, Error, ErrorKind, Geometry, Keys, Opener, Result,
    fetch::EntryAddr,
    pack::{EntryHeader, EntryKind},
};
use crossbeam_channel::{Receiver, Sender};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;

/// One stored entry on its way from the network to a thread. The permits stand for its memory and
/// travel with it.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) stored: Bytes,
    pub(crate) work: EntryWork,
    pub(crate) memory: Arc<OwnedSemaphorePermit>,
    /// Of the batch's plaintext, where the output must be in order.
    pub(crate) ordered: Option<Arc<OwnedSemaphorePermit>>,
}

/// Bytes for a target.
#[derive(Debug)]
pub(crate) enum Write {
    /// Whole chunks, adjacent on the target.
    Slot { slot: Slot, offset: u64, len: u32 },
    /// Part of a chunk, at an edge of the wanted bytes.
    Edge { offset: u64, bytes: Vec<u8> },
}

/// Bytes for an output in order.
#[derive(Debug)]
pub(crate) enum OpenedPiece {
    Data { offset: u64, bytes: Vec<u8>, memory: Option<Arc<OwnedSemaphorePermit>> },
    Zero(Range<u64>),
}

/// Where opened chunks go.
#[derive(Debug, Clone)]
pub(crate) enum Outbox {
    Target {
        arena: Arc<Arena>,
        writes: Sender<Write>,
    },
    Ordered(Sender<OpenedPiece>),
    /// They are only checked.
    Nowhere,
}

/// What becomes of an entry that is damaged or missing.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// It ends the run.
    Restored,
    /// It is noted, and the rest is checked, or restored, too.
    Checked(Arc<Damage>),
    /// The same, and zeros go into the output in its place.
    Zeroed(Arc<Damage>, Sender<OpenedPiece>),
}

impl Outcome {
    /// Whether the run goes on after this error.
    pub(crate) fn is_damage(&self, e: &Error) -> bool {
        self.damage().is_some() && Damage::is(e)
    }

    /// Where it is noted.
    pub(crate) fn damage(&self) -> Option<&Damage> {
        match self {
            Self::Restored => None,
            Self::Checked(damage) | Self::Zeroed(damage, _) => Some(damage),
        }
    }

    /// What becomes of these places, of which nothing was handed on.
    pub(crate) fn settle<'a>(
        &self,
        e: Error,
        scope: &PlanScope,
        places: impl IntoIterator<Item = (EntryAddr, &'a Placement)> + Clone,
    ) -> Result<()> {
        let Some(damage) = self.damage() else { return Err(e) };
        damage.note(e, scope, places.clone())?;
        if let Self::Zeroed(_, pieces) = self {
            for (_, p) in places {
                let zeros = OpenedPiece::Zero(scope.clip(p.chunk));
                pieces.send(zeros).map_err(|_| stopped("output"))?;
            }
        }
        Ok(())
    }
}

/// What an opener thread knows.
#[derive(Debug)]
pub(crate) struct OpenContext<'a> {
    pub(crate) keys: &'a Arc<Keys>,
    pub(crate) scope: &'a PlanScope,
    pub(crate) failure: &'a Failure,
    pub(crate) outcome: &'a Outcome,
    pub(crate) progress: &'a Progress,
}

/// Where the thread's time went, and what it did.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct OpenStats {
    pub(crate) entries: u64,
    pub(crate) chunks: u64,
    pub(crate) plain_bytes: u64,
    pub(crate) waited_for_store: Duration,
    pub(crate) waited_for_output: Duration,
    pub(crate) worked: Duration,
}

impl OpenStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.entries += other.entries;
        self.chunks += other.chunks;
        self.plain_bytes += other.plain_bytes;
        self.waited_for_store += other.waited_for_store;
        self.waited_for_output += other.waited_for_output;
        self.worked += other.worked;
    }
}

/// Runs until the inbox is closed.
pub(crate) fn run(ctx: &OpenContext<'_>, inbox: &Receiver<Sealed>, outbox: &Outbox) -> OpenStats {
    let Some(opener) = ctx.failure.note(Opener::new(Arc::clone(ctx.keys))) else {
        inbox.iter().for_each(drop);
        return OpenStats::default();
    };
    let stats = OpenStats::default();
    let mut thread = Thread { ctx, outbox, opener, plain: Vec::new(), stats };
    let mut idle = Instant::now();
    for sealed in inbox {
        let begun = Instant::now();
        thread.stats.waited_for_store += begun - idle;
        if !ctx.failure.failed() {
            let before = thread.stats.waited_for_output;
            thread.take(sealed);
            let output = thread.stats.waited_for_output - before;
            thread.stats.worked += begun.elapsed().saturating_sub(output);
        }
        idle = Instant::now();
    }
    thread.stats
}

struct Thread<'a> {
    ctx: &'a OpenContext<'a>,
    outbox: &'a Outbox,
    opener: Opener,
    plain: Vec<u8>,
    stats: OpenStats,
}

impl Thread<'_> {
    fn take(&mut self, sealed: Sealed) {
        let Sealed { stored, mut work, memory, ordered } = sealed;
        let result = match self.in_place_len(&work, &stored) {
            Some(len) => self.open_in_place(&mut work, &stored, len),
            None => {
                let opened = self.open(&mut work, &stored);
                drop((stored, memory));
                opened.and_then(|()| self.send(&work, ordered))
            }
        };
        self.stats.entries += 1;
        let settled =
            result.or_else(|e| self.ctx.outcome.settle(e, self.ctx.scope, work.damaged()));
        self.ctx.failure.note(settled);
    }

    /// Opens the entry into `self.plain` and checks every chunk of it that is wanted.
    fn open(&mut self, work: &mut EntryWork, stored: &[u8]) -> Result<()> {
        let EntryAddr { pack, offset, .. } = work.addr;
        let header = self
            .opener
            .open_entry(EntryKind::Chunks, &pack, offset, stored, &mut self.plain)
            .map_err(|e| e.within(place(self.ctx.scope, work)).hint(hint()))?;
        self.stats.chunks += work.places.len() as u64;
        check(self.ctx, header, &self.plain, work)
    }

    /// The length of an entry that goes to the target as it is: all of its chunks, once, side by
    /// side, whole. That is most of a full backup; it is opened where it is written from.
    fn in_place_len(&self, work: &EntryWork, stored: &[u8]) -> Option<u32> {
        let Outbox::Target { arena, .. } = self.outbox else { return None };
        let scope = self.ctx.scope;
        let first = work.places.first()?.chunk.0;
        let straight = (0_u16..).zip(&work.places).all(|(i, p)| {
            p.index == i && p.chunk.0 - first == u64::from(i) && scope.whole(p.chunk)
        });
        if !straight {
            // a chunk that stands in many places may be longer in all than a u32 counts
            return None;
        }
        let len: u32 = work.places.iter().map(|p| scope.geometry.len(p.chunk)).sum();
        let fits = len as usize <= arena.slot_bytes();
        // not authenticated yet; opening it will tell
        (fits && EntryHeader::claimed_len(stored) == Some(len)).then_some(len)
    }

    fn open_in_place(&mut self, work: &mut EntryWork, stored: &[u8], len: u32) -> Result<()> {
        let Outbox::Target { arena, writes } = self.outbox else { return Ok(()) };
        let Some(mut slot) = self.slot(arena) else { return Ok(()) };
        let EntryAddr { pack, offset, .. } = work.addr;
        let plain = &mut slot[..len as usize];
        let header = self
            .opener
            .open_into(EntryKind::Chunks, &pack, offset, stored, plain)
            .map_err(|e| e.within(place(self.ctx.scope, work)).hint(hint()))?;
        let places = work.places.len();
        self.stats.chunks += places as u64;
        check(self.ctx, header, plain, work)?;
        if work.places.len() < places {
            // only what is right goes on, so it is cut out
            self.plain.clear();
            self.plain.extend_from_slice(plain);
            drop(slot);
            return self.send(work, None);
        }
        self.count(u64::from(len));
        let first = work.places.first().map(|p| p.chunk).unwrap_or_default();
        let offset = self.ctx.scope.geometry.offset(first);
        writes.send(Write::Slot { slot, offset, len }).map_err(|_| stopped("write"))
    }

    /// A free slot; `None` after a failure.
    fn slot(&mut self, arena: &Arc<Arena>) -> Option<Slot> {
        let begun = Instant::now();
        let slot = take_slot(arena, self.ctx.failure);
        self.stats.waited_for_output += begun.elapsed();
        slot
    }

    fn send(&mut self, work: &EntryWork, ordered: Option<Arc<OwnedSemaphorePermit>>) -> Result<()> {
        let scope = self.ctx.scope;
        match self.outbox {
            Outbox::Nowhere => {
                let bytes =
                    work.places.iter().map(|p| u64::from(scope.geometry.len(p.chunk))).sum();
                self.count(bytes);
            }
            Outbox::Ordered(pieces) => {
                for run in runs(&work.places, usize::MAX) {
                    let len = run.iter().map(|p| wanted(&self.plain, scope, p).len()).sum();
                    let mut bytes = Vec::with_capacity(len);
                    for p in run {
                        bytes.extend_from_slice(wanted(&self.plain, scope, p));
                    }
                    let Some(first) = run.first() else { continue };
                    self.count(bytes.len() as u64);
                    let offset = scope.clip(first.chunk).start;
                    let piece = OpenedPiece::Data { offset, bytes, memory: ordered.clone() };
                    pieces.send(piece).map_err(|_| stopped("output"))?;
                }
            }
            Outbox::Target { arena, writes } => {
                let chunk_bytes = scope.geometry.chunk().bytes() as usize;
                for run in runs(&work.places, arena.slot_bytes() / chunk_bytes) {
                    for part in run.chunk_by(|a, b| scope.whole(a.chunk) && scope.whole(b.chunk)) {
                        // none: there was a failure meanwhile
                        let Some(write) = self.write_of(arena, part) else { return Ok(()) };
                        writes.send(write).map_err(|_| stopped("write"))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// One write of adjacent whole chunks, or of one that is wanted in part.
    fn write_of(&mut self, arena: &Arc<Arena>, part: &[Placement]) -> Option<Write> {
        let scope = self.ctx.scope;
        let offset = part.first().map_or(0, |p| scope.clip(p.chunk).start);
        if let [p] = part
            && !scope.whole(p.chunk)
        {
            let bytes = wanted(&self.plain, scope, p).to_vec();
            self.count(bytes.len() as u64);
            return Some(Write::Edge { offset, bytes });
        }
        let mut slot = self.slot(arena)?;
        let mut len = 0;
        for p in part {
            let bytes = wanted(&self.plain, scope, p);
            slot[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        }
        self.count(len as u64);
        Some(Write::Slot { slot, offset, len: u32::try_from(len).unwrap_or(u32::MAX) })
    }

    fn count(&mut self, bytes: u64) {
        self.stats.plain_bytes += bytes;
        self.ctx.progress.done_bytes.add(bytes);
    }
}

/// Checks every chunk of an opened entry that is wanted. Where damage is collected, what is wrong is
/// settled and left out. Leaves the places ascending by chunk.
fn check(
    ctx: &OpenContext<'_>,
    header: EntryHeader,
    plain: &[u8],
    work: &mut EntryWork,
) -> Result<()> {
    work.places.sort_unstable_by_key(|p| (p.index, p.chunk));
    let mut right = Vec::with_capacity(work.places.len());
    let mut checked: Option<&Placement> = None;
    for p in &work.places {
        // a chunk that stands in several places is hashed once
        let known = checked.is_some_and(|c| c.index == p.index && c.id == p.id);
        match check_one(ctx, header, plain, work, p, known) {
            Ok(()) => {
                checked = Some(p);
                right.push(*p);
            }
            Err(e) => ctx.outcome.settle(e, ctx.scope, [(work.addr, p)])?,
        }
    }
    work.places = right;
    work.places.sort_unstable_by_key(|p| p.chunk);
    Ok(())
}

/// Checks the length of one chunk, and its id if that is not `known` to be right.
fn check_one(
    ctx: &OpenContext<'_>,
    header: EntryHeader,
    plain: &[u8],
    work: &EntryWork,
    p: &Placement,
    known: bool,
) -> Result<()> {
    let scope = ctx.scope;
    let has_id = |range| known || ctx.keys.chunk_id(&plain[range]) == p.id;
    right_chunk(header, &scope.geometry, (p.chunk, p.index), has_id, || place(scope, work))
        .map(drop)
}

/// Where a chunk stands in its opened entry. Refused unless it has the length that the volume says
/// and, by `has_id`, the id that the map says: whoever hands bytes of a backup on asks here.
/// `place` is the entry, for messages.
pub(crate) fn right_chunk(
    header: EntryHeader,
    geometry: &Geometry,
    (chunk, index): (ChunkNo, u16),
    has_id: impl FnOnce(Range<usize>) -> bool,
    place: impl Fn() -> String,
) -> Result<Range<usize>> {
    let wrong = |detail: &str| {
        let context = format!("check {}: {}", name(geometry, chunk), place());
        Error::new(ErrorKind::Corrupt, context, detail).hint(hint())
    };
    let range = header
        .expect(index, geometry.chunk(), geometry.len(chunk))
        .map_err(|e| wrong("").caused_by(e))?;
    if has_id(range.clone()) {
        return Ok(range);
    }
    Err(wrong("its bytes are not those that were backed up"))
}

/// An entry, for messages.
fn place(scope: &PlanScope, work: &EntryWork) -> String {
    let first = work.places.iter().map(|p| p.chunk).min().unwrap_or_default();
    let (pack, entry) = (pack_key(&work.addr.pack), work.addr.entry);
    format!("open entry {entry} of {pack} for {}", scope.name(first))
}

/// A free slot. The writer gives all of them back, unless its engine breaks: then there is a
/// failure to see.
fn take_slot(arena: &Arc<Arena>, failure: &Failure) -> Option<Slot> {
    loop {
        if let Some(slot) = arena.take_timeout(Duration::from_millis(200)) {
            return Some(slot);
        }
        if failure.failed() {
            return None;
        }
    }
}

pub(super) fn hint() -> String {
    format!("{}; an older or newer backup may be whole", Advice::FindDamage.words())
}

fn stopped(stage: &str) -> Error {
    Error::new(ErrorKind::Bug, "hand on opened chunks", format!("the {stage} stage has ended"))
}

/// The wanted bytes of a chunk that was checked.
fn wanted<'a>(plain: &'a [u8], scope: &PlanScope, p: &Placement) -> &'a [u8] {
    let start = usize::from(p.index) * scope.geometry.chunk().bytes() as usize;
    let clip = scope.clip(p.chunk);
    let skip = usize::try_from(clip.start - scope.geometry.offset(p.chunk)).unwrap_or(usize::MAX);
    let len = usize::try_from(clip.end - clip.start).unwrap_or(usize::MAX);
    &plain[start + skip..][..len]
}
