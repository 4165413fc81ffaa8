//! A world that can end at any step: a target and a journal that keep what was synced apart from
//! what was not, and a source with delays and faults.
//!
//! Every call takes a random number of turns, so tasks interleave by the seed. Once the world has
//! had its last step no call ever returns. [`World::crash`] then says what is left: of each sector
//! any of the values that it had since the last sync; of an append a front part, perhaps with a
//! sector of rubbish; of a replacement that had not returned, the old or the new.

use crate::live::parts::{CowSource, CowTarget, JournalLog, SourceFailure};
use crate::live::volume::{index, locked};
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub(super) const SECTOR: usize = 8;
pub(super) const ALIGN: u64 = 4;

/// Small and seeded; the same everywhere.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % bound
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }

    pub(super) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// What a test wants to be wrong.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    /// The target says that it has synced and has not.
    pub(super) target_lies: bool,
    /// A full write fails now and then.
    pub(super) writes_fail: bool,
    /// Chunks of the source are damaged.
    pub(super) damage: bool,
    /// The source is away now and then.
    pub(super) away: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) random: Random,
    pub(super) faults: Faults,
    steps_left: u64,
    synced: Vec<u8>,
    /// Of each sector what it has been since the last sync.
    since: Vec<Vec<Vec<u8>>>,
    journal: Vec<u8>,
    journal_synced: usize,
    replaced: Option<Vec<u8>>,
    pub(super) backup: Vec<u8>,
    pub(super) chunk: usize,
    pub(super) damaged: Vec<u64>,
    pub(super) writes: u64,
    /// What the source was told of.
    pub(super) expected: Vec<Range<u64>>,
    pub(super) prefetched: Vec<Range<u64>>,
    /// What was read of it.
    pub(super) reads: Vec<Range<u64>>,
    /// Bytes that lie together in it; at random where nothing is said.
    pub(super) entry_bytes: Option<u64>,
    /// Reads of it wait until this is over.
    pub(super) stalls: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Sim(pub(super) Arc<Mutex<World>>);

impl World {
    pub(super) fn new(seed: u64, size: usize, chunk: usize, faults: Faults) -> Self {
        let mut random = Random::new(seed);
        let mut noise = |len| (0..len).map(|_| random.byte()).collect::<Vec<_>>();
        let (synced, mut backup) = (noise(size), noise(size));
        // two chunks in five are zero in the backup
        for part in backup.chunks_mut(chunk) {
            if random.below(5) < 2 {
                part.fill(0);
            }
        }
        Self {
            random,
            faults,
            steps_left: u64::MAX,
            since: vec![Vec::new(); size.div_ceil(SECTOR)],
            synced,
            journal: Vec::new(),
            journal_synced: 0,
            replaced: None,
            backup,
            chunk,
            damaged: Vec::new(),
            writes: 0,
            expected: Vec::new(),
            prefetched: Vec::new(),
            reads: Vec::new(),
            entry_bytes: None,
            stalls: false,
        }
    }

    pub(super) fn ends_after(&mut self, steps: u64) {
        self.steps_left = steps;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.steps_left == 0
    }

    /// What a reader of the target sees.
    fn sector(&self, n: usize) -> &[u8] {
        let all = n * SECTOR..((n + 1) * SECTOR).min(self.synced.len());
        self.since[n].last().map_or(&self.synced[all], Vec::as_slice)
    }

    fn change(&mut self, offset: usize, bytes: &[u8]) {
        self.writes += 1;
        let (mut at, end) = (offset, offset + bytes.len());
        while at < end {
            let n = at / SECTOR;
            let stop = end.min((n + 1) * SECTOR);
            let mut now = self.sector(n).to_vec();
            now[at - n * SECTOR..stop - n * SECTOR]
                .copy_from_slice(&bytes[at - offset..stop - offset]);
            self.since[n].push(now);
            at = stop;
        }
    }

    fn sync(&mut self) {
        for n in 0..self.since.len() {
            let now = self.sector(n).to_vec();
            self.synced[n * SECTOR..n * SECTOR + now.len()].copy_from_slice(&now);
            self.since[n].clear();
        }
    }

    pub(super) fn journal(&self) -> Vec<u8> {
        self.journal.clone()
    }

    pub(super) fn set_journal(&mut self, bytes: Vec<u8>) {
        self.journal_synced = bytes.len();
        self.journal = bytes;
    }

    /// Power is gone, and comes back.
    pub(super) fn crash(&mut self) {
        for n in 0..self.since.len() {
            let values = std::mem::take(&mut self.since[n]);
            let kept = index(self.random.below(values.len() as u64 + 1));
            if let Some(value) = kept.checked_sub(1).map(|kept| &values[kept]) {
                self.synced[n * SECTOR..n * SECTOR + value.len()].copy_from_slice(value);
            }
        }
        if let Some(new) = self.replaced.take()
            && self.random.one_in(2)
        {
            self.set_journal(new);
        }
        let unsynced = self.journal.len() - self.journal_synced;
        let kept = self.journal_synced + index(self.random.below(unsynced as u64 + 1));
        self.journal.truncate(kept);
        if kept > self.journal_synced && self.random.one_in(3) {
            let at =
                self.journal_synced + index(self.random.below((kept - self.journal_synced) as u64));
            let end = kept.min(at + SECTOR);
            self.journal[at..end].fill(0);
        }
        self.journal_synced = self.journal.len();
        self.steps_left = u64::MAX;
    }
}

impl Sim {
    /// Some turns of other tasks, then one step of the world; or nothing any more.
    async fn step(&self) {
        let turns = locked(&self.0).random.below(4);
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        let ended = {
            let mut world = locked(&self.0);
            let ended = world.steps_left == 0;
            world.steps_left = world.steps_left.saturating_sub(1);
            ended
        };
        if ended {
            std::future::pending::<()>().await;
        }
    }
}

impl CowTarget for Sim {
    fn align(&self) -> u64 {
        ALIGN
    }

    fn can_trim(&self) -> bool {
        true
    }

    async fn read(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.step().await;
        let world = locked(&self.0);
        Ok((range.start..range.end)
            .map(|at| world.sector(index(at) / SECTOR)[index(at) % SECTOR])
            .collect())
    }

    async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let align = index(ALIGN);
        let (first, last) = (index(offset) / align * align, index(offset) + data.len());
        // as blocks: what is not whole is read first, and written back
        let mut at = first;
        while at < last {
            self.step().await;
            let end = last.next_multiple_of(align).min(at + 3 * SECTOR);
            let mut blocks = {
                let world = locked(&self.0);
                let end = end.min(world.synced.len());
                (at..end).map(|at| world.sector(at / SECTOR)[at % SECTOR]).collect::<Vec<_>>()
            };
            if at < index(offset) || end > last {
                self.step().await;
            }
            for (n, byte) in blocks.iter_mut().enumerate() {
                if let Some(new) = (at + n).checked_sub(index(offset)).and_then(|n| data.get(n)) {
                    *byte = *new;
                }
            }
            let mut world = locked(&self.0);
            if world.faults.writes_fail && world.random.one_in(40) {
                return Err(io::Error::other("a bad sector"));
            }
            world.change(at, &blocks);
            at = end;
        }
        Ok(())
    }

    async fn zero(&self, range: Range<u64>, _hole: bool) -> io::Result<()> {
        self.step().await;
        let zeros = vec![0; index(range.end - range.start)];
        locked(&self.0).change(index(range.start), &zeros);
        self.step().await;
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        self.step().await;
        {
            let mut world = locked(&self.0);
            if !world.faults.target_lies {
                world.sync();
            }
        }
        self.step().await;
        Ok(())
    }
}

impl JournalLog for Sim {
    async fn append(&self, at: u64, bytes: Vec<u8>) -> io::Result<()> {
        self.step().await;
        {
            let mut world = locked(&self.0);
            world.journal.truncate(index(at));
            world.journal.extend_from_slice(&bytes);
        }
        self.step().await;
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        self.step().await;
        {
            let mut world = locked(&self.0);
            world.journal_synced = world.journal.len();
        }
        self.step().await;
        Ok(())
    }

    async fn replace(&self, bytes: Vec<u8>) -> io::Result<()> {
        locked(&self.0).replaced = Some(bytes);
        self.step().await;
        let mut world = locked(&self.0);
        if let Some(new) = world.replaced.take() {
            world.set_journal(new);
        }
        Ok(())
    }
}

/// The backup, as a source.
#[derive(Debug, Clone)]
pub(super) struct SimSource(pub(super) Sim);

impl CowSource for SimSource {
    fn expect(&self, range: &Range<u64>) {
        locked(&self.0.0).expected.push(range.clone());
    }

    fn prefetch(&self, range: &Range<u64>) {
        locked(&self.0.0).prefetched.push(range.clone());
    }

    /// More or less than was asked for, and not always whole chunks.
    async fn together(&self, range: Range<u64>, most: u64) -> Range<u64> {
        self.0.step().await;
        let mut world = locked(&self.0.0);
        let size = world.backup.len() as u64;
        if let Some(entry) = world.entry_bytes {
            let end = (range.end.next_multiple_of(entry)).min(size);
            return range.start / entry * entry..end;
        }
        let mut beside = || world.random.below(most.max(1));
        let (before, behind) = (beside(), beside());
        range.start.saturating_sub(before)..range.end.saturating_add(behind).min(size)
    }

    async fn read(&self, offset: u64, buf: &mut [u8]) -> Result<Vec<Range<usize>>, SourceFailure> {
        self.0.step().await;
        locked(&self.0.0).reads.push(offset..offset + buf.len() as u64);
        while locked(&self.0.0).stalls {
            tokio::task::yield_now().await;
        }
        if locked(&self.0.0).random.one_in(3) {
            self.0.step().await;
        }
        let mut world = locked(&self.0.0);
        if world.faults.away && world.random.one_in(6) {
            return Err(SourceFailure::Away("no answer".into()));
        }
        let (start, end) = (index(offset), index(offset) + buf.len());
        let chunks = start / world.chunk..end.div_ceil(world.chunk);
        if let Some(bad) = chunks.clone().find(|chunk| world.damaged.contains(&(*chunk as u64))) {
            return Err(SourceFailure::Damaged(format!("chunk {bad} is damaged")));
        }
        buf.copy_from_slice(&world.backup[start..end]);
        let zeros = chunks.map(|c| (c * world.chunk).max(start)..((c + 1) * world.chunk).min(end));
        let zeros = zeros.filter(|part| world.backup[part.clone()].iter().all(|byte| *byte == 0));
        Ok(zeros.map(|part| part.start - start..part.end - start).collect())
    }
}
