//! When a checkpoint is due, and when it may be written.
//!
//! A checkpoint says "everything below this chunk is stored", so it may be written only when that
//! has come true. Making one therefore has three moments:
//!
//! 1. *Cut*: the assembler has the finished subtrees of the map stored, and notes which packs are
//!    not stored yet. Nothing waits: reading, sealing and uploading go on. The pack of chunks that
//!    is being filled goes on being filled, so a checkpoint costs no small packs; only if that
//!    takes long it is closed early.
//! 2. *Ready*: the last of those packs has arrived, and the packs of other backups that were reused
//!    have been looked up.
//! 3. *Recorded*: the lease with the checkpoint in it is written.
//!
//! What a killed run loses is what it has read since the cut that was recorded last. [`CheckpointSchedule`] says
//! how much that may be: a cut is made when half of it was read, and the assembler waits when all
//! of it was read and nothing is recorded. Where nobody says how much, cuts come as often as costs
//! next to nothing: each costs a small pack of pages and a write of the lease, so the time that the
//! last write took says when the next one is cheap.
//!
//! Owned by the uploads, which learn what arrives. Decides only; `upload.rs` does the requests.

use chunkstore::{ChunkNo, PackId, format::FrontierPage};
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A cut is due after this time even if little was read; and a pack that it waits for is closed
/// after this time.
const CUT_AFTER: Duration = Duration::from_secs(60);
/// By default a cut is made no sooner than this, nor sooner than this many times what the last one
/// took to write.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE: u32 = 64;
/// By default at most this share of what is to be read lies between two cuts, within these bounds.
const CUTS: u64 = 64;
const CUT_BYTES_MIN: u64 = 16 << 20;
const CUT_BYTES_MAX: u64 = 8 << 30;
/// By default nothing waits for a checkpoint before so much was read since the last one: more than
/// uploads under way hold.
const HOLD_BYTES_MIN: u64 = 2 << 30;

/// How often checkpoints are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckpointSchedule {
    /// A cut is made when so much was read since the last one.
    cut_bytes: u64,
    /// No more than this is read after what was recorded last.
    pub(crate) hold_bytes: u64,
    /// Cuts also keep a distance in time.
    sparing: bool,
}

impl CheckpointSchedule {
    /// No more than `interval_bytes` is read again.
    pub(crate) fn of(interval_bytes: u64) -> Self {
        let hold_bytes = interval_bytes.max(1);
        Self { cut_bytes: hold_bytes.div_ceil(2), hold_bytes, sparing: false }
    }

    /// Checkpoints that a run of so much makes at most, but for those that a minute without one
    /// makes due.
    pub(crate) fn cuts_max(self, read_bytes: u64) -> u64 {
        read_bytes / self.cut_bytes.max(1)
    }

    /// For a run that reads so much, where nobody says.
    pub(crate) fn sparing(read_bytes: u64) -> Self {
        let cut_bytes = (read_bytes / CUTS).clamp(CUT_BYTES_MIN, CUT_BYTES_MAX);
        Self { cut_bytes, hold_bytes: (2 * cut_bytes).max(HOLD_BYTES_MIN), sparing: true }
    }
}

/// A place to go on from, once what it names is stored.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) number: u64,
    pub(crate) next_chunk: ChunkNo,
    pub(crate) frontier: Vec<FrontierPage>,
    /// Not stored yet.
    waiting: HashSet<PackId>,
    /// The look-up of reused packs has not ended.
    confirming: bool,
    /// What the map had taken then.
    at_bytes: u64,
    /// Since the cut before it.
    span_bytes: u64,
    /// The pack that was open then was closed since.
    closed: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    schedule: CheckpointSchedule,
    /// Bytes of the volume that were read and that the map has taken.
    done_bytes: u64,
    cut_bytes: u64,
    cut_time: Instant,
    recorded_bytes: u64,
    /// Not ready, the oldest first.
    cuts: VecDeque<Cut>,
    next_number: u64,
    next_chunk: ChunkNo,
    /// On its way to the lease: what it covers, and since when.
    recording: Option<(u64, Instant)>,
    /// How long the last write of the lease took.
    write_time: Duration,
    /// Reused packs that were looked up.
    confirmed: HashSet<PackId>,
    /// No more of them: the lease is gone, a reused pack is missing, or nobody could go on with
    /// this run.
    over: bool,
}

impl Checkpoints {
    /// For a pass that starts at `first`. Switched off where nobody could go on from them.
    pub(crate) fn new(
        schedule: CheckpointSchedule,
        first: ChunkNo,
        on: bool,
        now: Instant,
    ) -> Self {
        Self {
            schedule,
            done_bytes: 0,
            cut_bytes: 0,
            cut_time: now,
            recorded_bytes: 0,
            cuts: VecDeque::new(),
            next_number: 0,
            next_chunk: first,
            recording: None,
            write_time: Duration::ZERO,
            confirmed: HashSet::new(),
            over: !on,
        }
    }

    /// The map has taken so much more of what was read.
    pub(crate) fn done(&mut self, bytes: u64) {
        self.done_bytes += bytes;
    }

    /// Whether checkpoints are made at all.
    pub(crate) fn on(&self) -> bool {
        !self.over
    }

    /// Whether a cut should be made now. One at a time.
    pub(crate) fn due(&self, now: Instant) -> bool {
        let since = self.done_bytes - self.cut_bytes;
        let age = now.duration_since(self.cut_time);
        let pause = if self.schedule.sparing {
            (self.write_time * PAUSE).max(PAUSE_MIN)
        } else {
            Duration::ZERO
        };
        let much = since >= self.schedule.cut_bytes && age >= pause.min(CUT_AFTER);
        let long = since > 0 && age >= CUT_AFTER;
        !self.over && self.cuts.is_empty() && self.recording.is_none() && (much || long)
    }

    /// As much was read since what is recorded as may be lost, and a checkpoint is on its way.
    pub(crate) fn must_wait(&self) -> bool {
        let busy = !self.cuts.is_empty() || self.recording.is_some();
        !self.over && busy && self.done_bytes - self.recorded_bytes >= self.schedule.hold_bytes
    }

    /// Whether the pack that was open at the cut should be closed now, since it does not fill by
    /// itself in time. Said once.
    pub(crate) fn must_close(&mut self, now: Instant) -> bool {
        let held = self.must_wait();
        let Some(cut) = self.cuts.front_mut().filter(|cut| !cut.closed) else { return false };
        let much =
            self.done_bytes - cut.at_bytes >= cut.span_bytes.min(self.schedule.cut_bytes) / 2;
        let long = now.duration_since(self.cut_time) >= CUT_AFTER;
        cut.closed = !cut.waiting.is_empty() && (held || much || long);
        cut.closed
    }

    /// Packs that the oldest cut waits for.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = &PackId> {
        self.cuts.front().into_iter().flat_map(|cut| &cut.waiting)
    }

    /// There is nothing to cut here: the next one is due when more was read.
    pub(crate) fn skip(&mut self, now: Instant) {
        self.cut_bytes = self.done_bytes;
        self.cut_time = now;
    }

    /// Whether going on at `next` would be worth it.
    pub(crate) fn is_ahead(&self, next: ChunkNo) -> bool {
        next > self.next_chunk
    }

    /// A cut was made. Gives the reused packs that have to be looked up for it, and its number.
    pub(crate) fn cut(
        &mut self,
        next_chunk: ChunkNo,
        frontier: Vec<FrontierPage>,
        waiting: HashSet<PackId>,
        reused: &HashSet<PackId>,
        now: Instant,
    ) -> (u64, Vec<PackId>) {
        let span_bytes = self.done_bytes - self.cut_bytes;
        self.skip(now);
        let look_up: Vec<_> = reused.difference(&self.confirmed).copied().collect();
        let number = self.next_number;
        self.next_number += 1;
        self.next_chunk = next_chunk;
        self.cuts.push_back(Cut {
            number,
            next_chunk,
            frontier,
            waiting,
            confirming: !look_up.is_empty(),
            at_bytes: self.done_bytes,
            span_bytes,
            closed: false,
        });
        (number, look_up)
    }

    /// A pack has arrived.
    pub(crate) fn stored(&mut self, pack: &PackId) {
        for cut in &mut self.cuts {
            cut.waiting.remove(pack);
        }
    }

    /// Reused packs were looked up: all are there, or one is missing, or the store gave no answer.
    pub(crate) fn confirmed(&mut self, number: u64, packs: Vec<PackId>, there: Option<bool>) {
        match there {
            Some(true) => {
                self.confirmed.extend(packs);
                let of = self.cuts.iter_mut().find(|cut| cut.number == number);
                of.into_iter().for_each(|cut| cut.confirming = false);
            }
            Some(false) => self.give_up(),
            None => self.cuts.retain(|cut| cut.number != number),
        }
    }

    /// The newest cut that may be recorded now; older ones are of no use then.
    pub(crate) fn take_ready(&mut self, now: Instant) -> Option<Cut> {
        if self.over || self.recording.is_some() {
            return None;
        }
        let ready = |cut: &Cut| cut.waiting.is_empty() && !cut.confirming;
        let newest = self.cuts.iter().rposition(ready)?;
        self.cuts.drain(..newest);
        let cut = self.cuts.pop_front()?;
        self.recording = Some((cut.at_bytes, now));
        Some(cut)
    }

    /// The lease was written, or is gone (`Some(false)`), or the store gave no answer.
    pub(crate) fn recorded(&mut self, written: Option<bool>, now: Instant) {
        let Some((at, since)) = self.recording.take() else { return };
        self.write_time = now.duration_since(since);
        match written {
            Some(true) => self.recorded_bytes = at,
            Some(false) => self.give_up(),
            None => {}
        }
    }

    /// Reused packs that are known to be there.
    pub(crate) fn reused(&self) -> impl Iterator<Item = &PackId> {
        self.confirmed.iter()
    }

    fn give_up(&mut self) {
        self.over = true;
        self.cuts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(byte: u8) -> PackId {
        PackId::from_bytes([byte; 32])
    }

    fn packs<const N: usize>(bytes: [u8; N]) -> HashSet<PackId> {
        bytes.into_iter().map(pack).collect()
    }

    fn new() -> (Checkpoints, Instant) {
        let now = Instant::now();
        (Checkpoints::new(CheckpointSchedule::of(100), ChunkNo(0), true, now), now)
    }

    /// A cut that waits for these packs and reuses none.
    fn cut<const N: usize>(c: &mut Checkpoints, next: u64, waiting: [u8; N], now: Instant) {
        c.cut(ChunkNo(next), Vec::new(), packs(waiting), &packs([]), now);
    }

    #[test]
    fn without_a_wish_the_distance_is_a_share_of_the_work() {
        let schedule = |read_bytes| {
            let CheckpointSchedule { cut_bytes, hold_bytes, sparing } =
                CheckpointSchedule::sparing(read_bytes);
            assert!(sparing);
            (cut_bytes >> 20, hold_bytes >> 20)
        };
        assert_eq!(schedule(0), (16, 2048));
        assert_eq!(schedule(4 << 30), (64, 2048));
        assert_eq!(schedule(128 << 30), (2048, 4096));
        assert_eq!(schedule(1 << 56), (8192, 16384));
        assert_eq!(CheckpointSchedule::of(0), CheckpointSchedule::of(1));
    }

    #[test]
    fn a_cut_is_due_by_bytes_or_by_time() {
        let (mut c, now) = new();
        let later = now + CUT_AFTER;
        assert!(!c.due(now) && !c.due(later), "nothing was read");
        c.done(49);
        assert!(!c.due(now) && c.due(later));
        c.done(1);
        assert!(c.due(now));
        c.skip(now);
        assert!(!c.due(now));
        let off = Checkpoints::new(CheckpointSchedule::of(100), ChunkNo(0), false, now);
        assert!(!off.due(later) && !off.on());
    }

    #[test]
    fn a_slow_store_gets_fewer_checkpoints_where_nobody_says_how_many() {
        let now = Instant::now();
        let mut c = Checkpoints::new(CheckpointSchedule::sparing(0), ChunkNo(0), true, now);
        c.done(CUT_BYTES_MIN);
        assert!(!c.due(now) && c.due(now + PAUSE_MIN));
        cut(&mut c, 16, [], now + PAUSE_MIN);
        c.take_ready(now).unwrap();
        let written = now + PAUSE_MIN + Duration::from_millis(100);
        c.recorded(Some(true), now + Duration::from_millis(100));
        c.done(1 << 40);
        assert!(
            !c.due(written + Duration::from_secs(6)) && c.due(written + Duration::from_secs(7))
        );
    }

    #[test]
    fn a_checkpoint_is_ready_when_all_it_names_is_stored_and_looked_up() {
        let (mut c, now) = new();
        c.done(60);
        let (number, look_up) = c.cut(ChunkNo(16), Vec::new(), packs([1, 2]), &packs([7]), now);
        assert_eq!(look_up, [pack(7)]);
        assert!(!c.must_wait());
        c.done(40);
        assert!(!c.due(now) && c.must_wait(), "one at a time; a whole interval is not recorded");
        assert_eq!(c.waits_for().count(), 2);
        c.stored(&pack(1));
        assert!(c.take_ready(now).is_none());
        c.stored(&pack(2));
        assert!(c.take_ready(now).is_none(), "not looked up");
        c.confirmed(number, look_up, Some(true));
        assert_eq!(c.take_ready(now).unwrap().next_chunk, ChunkNo(16));
        assert!(c.take_ready(now).is_none() && c.must_wait());
        c.recorded(Some(true), now);
        assert!(!c.must_wait() && !c.due(now));
        c.done(10);
        assert!(c.due(now));
        let (_, look_up) = c.cut(ChunkNo(32), Vec::new(), packs([]), &packs([7]), now);
        assert!(look_up.is_empty(), "it was looked up before");
        assert_eq!(c.reused().count(), 1);
    }

    #[test]
    fn an_open_pack_is_closed_when_it_does_not_fill_in_time() {
        let (mut c, now) = new();
        assert!(!c.must_close(now + CUT_AFTER), "there is no cut");
        c.done(50);
        cut(&mut c, 16, [1], now);
        assert!(!c.must_close(now));
        c.done(24);
        assert!(!c.must_close(now));
        c.done(1);
        assert!(c.must_close(now) && !c.must_close(now), "said once");
        let (mut c, now) = new();
        c.done(1000);
        cut(&mut c, 16, [1], now);
        assert!(c.must_wait() && c.must_close(now), "nothing may be read before it is stored");
        let (mut c, now) = new();
        c.done(50);
        cut(&mut c, 16, [1], now);
        assert!(c.must_close(now + CUT_AFTER));
    }

    #[test]
    fn at_the_end_the_newest_one_that_is_ready_counts() {
        let (mut c, now) = new();
        cut(&mut c, 16, [1], now);
        cut(&mut c, 32, [2], now);
        cut(&mut c, 48, [3], now);
        c.stored(&pack(1));
        c.stored(&pack(2));
        assert_eq!(c.take_ready(now).unwrap().next_chunk, ChunkNo(32));
        c.recorded(None, now);
        assert!(c.take_ready(now).is_none());
        c.stored(&pack(3));
        assert_eq!(c.take_ready(now).unwrap().next_chunk, ChunkNo(48));
    }

    #[test]
    fn a_missing_pack_and_a_lost_lease_end_it_and_an_unknown_outcome_does_not() {
        let (mut c, now) = new();
        let (number, _) = c.cut(ChunkNo(16), Vec::new(), packs([]), &packs([7]), now);
        c.confirmed(number, vec![pack(7)], None);
        assert!(c.take_ready(now).is_none() && c.on());
        let (number, look_up) = c.cut(ChunkNo(16), Vec::new(), packs([]), &packs([7]), now);
        c.confirmed(number, look_up, Some(false));
        assert!(c.take_ready(now).is_none() && !c.on());
        let (mut c, now) = new();
        cut(&mut c, 16, [], now);
        c.take_ready(now).unwrap();
        c.recorded(Some(false), now);
        assert!(!c.on());
    }
}
