//! What is known of each chunk. Pure.
//!
//! | state | where its bytes are | who may change it |
//! |---|---|---|
//! | absent | in the source; the target's are of no meaning | whoever holds the chunk's lock |
//! | absent, and being fetched | the same: a fetch holds nothing, and its bytes land under the lock, if the chunk is absent then | the same |
//! | done, fresh | on the target, maybe not synced | nobody: a chunk is never absent again |
//! | done, durable | on the target, synced before the journal said so | nobody |
//!
//! That a fetch is no state of the chunk is the point: one that fails, or whose client has gone,
//! leaves nothing to be undone. After a crash fresh chunks are absent.

use super::bits::ChunkBits;
use std::ops::Range;

/// The states of all chunks of a volume.
#[derive(Debug)]
pub struct ChunkStates {
    done: ChunkBits,
    durable: ChunkBits,
    fresh: Vec<Range<u64>>,
}

impl ChunkStates {
    /// As a journal has them.
    pub fn new(durable: ChunkBits) -> Self {
        Self { done: durable.clone(), durable, fresh: Vec::new() }
    }

    /// All that are done, durable or not.
    pub fn done(&self) -> &ChunkBits {
        &self.done
    }

    /// What the journal says, or may say.
    pub fn durable(&self) -> &ChunkBits {
        &self.durable
    }

    /// Whether all of a range is done.
    pub fn all_done(&self, range: Range<u64>) -> bool {
        self.done.next(range.start, range.end, false).is_none()
    }

    /// The bytes of these chunks are on the target. Those that were absent are fresh from now on.
    pub fn finish(&mut self, range: Range<u64>) {
        let absent: Vec<_> =
            self.done.runs(range.clone()).filter(|(_, done)| !done).map(|(run, _)| run).collect();
        self.done.insert(range);
        for run in absent {
            match self.fresh.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => self.fresh.push(run),
            }
        }
    }

    /// All that are fresh, in order, for one record of the journal. Whoever takes them either
    /// [keeps](Self::keep) them or [gives them back](Self::give_back).
    pub fn take_fresh(&mut self) -> Vec<Range<u64>> {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.sort_unstable_by_key(|run| run.start);
        fresh.dedup_by(|next, last| {
            let beside = last.end == next.start;
            if beside {
                last.end = next.end;
            }
            beside
        });
        fresh
    }

    /// They are in the journal, which is synced.
    pub fn keep(&mut self, taken: &[Range<u64>]) {
        for run in taken {
            self.durable.insert(run.clone());
        }
    }

    /// They are not.
    pub fn give_back(&mut self, taken: Vec<Range<u64>>) {
        self.fresh.extend(taken);
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges, of one too
mod tests {
    use super::*;

    #[test]
    fn what_becomes_done_is_fresh_once() {
        let mut durable = ChunkBits::none(20);
        durable.insert(3..5);
        let mut states = ChunkStates::new(durable);
        states.finish(10..12);
        states.finish(2..7);
        states.finish(12..13);
        states.finish(0..3);
        assert!(states.all_done(0..7) && !states.all_done(0..8));
        let taken = states.take_fresh();
        assert_eq!(taken, [0..3, 5..7, 10..13]);
        assert_eq!(states.take_fresh(), []);
        states.finish(13..14);
        states.give_back(taken);
        let taken = states.take_fresh();
        assert_eq!(taken, [0..3, 5..7, 10..14]);
        states.keep(&taken);
        assert_eq!(states.durable(), states.done());
        states.finish(0..7);
        assert_eq!(states.take_fresh(), []);
        states.finish(0..14);
        assert_eq!(states.take_fresh(), [7..10]);
    }
}
