//! Which bytes are read before anybody asks for them: pure.
//!
//! Backups are read by several clients at once, each with many requests under way that arrive
//! nearly in order. [`Streams`] remembers where the last few of them stood. A read that goes on
//! where one of them stood, or a little off, belongs to it. After some of these in a row the stream
//! is sequential, and a window in front of it is wanted; the window doubles as long as the stream
//! goes on. Reads here and there never make one.

use std::ops::Range;

/// Streams that are remembered; the one that was not used for longest is forgotten.
const STREAMS_MAX: usize = 16;
/// Reads in a row that make a stream.
const READS_MIN: u32 = 4;
/// Requests that are under way together overtake each other by so much.
const NEAR_BYTES: u64 = 256 << 10;
/// The first window.
const WINDOW_START: u64 = 2 << 20;
/// Less than this, and than a quarter of the window, is not asked for at a time, so that ranges of
/// packs are long.
const STEP_BYTES: u64 = 4 << 20;
/// A stream that was not used for so many reads of others has ended.
const ENDED_AFTER: u64 = 256;

#[derive(Debug, Clone, Copy)]
struct Stream {
    /// The backup that is read.
    of: u64,
    /// Behind the last byte that was read.
    next: u64,
    /// Behind the last byte that was asked for ahead.
    asked: u64,
    window: u64,
    reads: u32,
    used: u64,
}

/// Where the reads of the backups stand that share a cache.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    clock: u64,
    backups: u64,
    /// All windows together.
    window_max: u64,
}

impl Streams {
    pub(super) fn new(window_max: u64) -> Self {
        Self { streams: Vec::new(), clock: 0, backups: 0, window_max }
    }

    /// A number for one more backup.
    pub(super) fn of_another(&mut self) -> u64 {
        self.backups += 1;
        self.backups
    }

    /// Notes a read of a backup. Gives what is to be read ahead of it, within `size_bytes`.
    pub(super) fn note(
        &mut self,
        of: u64,
        read: &Range<u64>,
        size_bytes: u64,
    ) -> Option<Range<u64>> {
        self.clock += 1;
        let share = self.share();
        let len = read.end - read.start;
        let near = NEAR_BYTES.max(len * 2);
        let distance = |stream: &Stream| stream.next.abs_diff(read.start);
        // who skips holes still reads within what was asked for
        let belongs = |s: &&mut Stream| {
            s.of == of && (distance(s) <= near || (s.next..s.asked).contains(&read.start))
        };
        let found = self.streams.iter_mut().filter(belongs).min_by_key(|s| distance(s));
        let Some(stream) = found else {
            self.begin(of, read.end);
            return None;
        };
        stream.used = self.clock;
        if read.end > stream.next {
            stream.reads = stream.reads.saturating_add(1);
            stream.next = read.end;
        }
        if stream.reads < READS_MIN || self.window_max == 0 {
            return None;
        }
        let window = stream.window.min(share);
        let from = stream.asked.max(stream.next);
        let to = stream.next.saturating_add(window).min(size_bytes);
        let step = STEP_BYTES.max(window / 4).min(window / 2);
        let rest_of_volume = to == size_bytes && from < to;
        if to.saturating_sub(from) < step && !rest_of_volume {
            return None;
        }
        stream.asked = to;
        stream.window = (stream.window * 2).min(self.window_max);
        (from < to).then_some(from..to)
    }

    /// Of what may be read ahead, the part of each stream that goes on.
    fn share(&self) -> u64 {
        let going_on = |stream: &&Stream| {
            stream.reads >= READS_MIN && self.clock.saturating_sub(stream.used) < ENDED_AFTER
        };
        self.window_max / (self.streams.iter().filter(going_on).count() as u64).max(1)
    }

    fn begin(&mut self, of: u64, next: u64) {
        if self.streams.len() >= STREAMS_MAX {
            let oldest = (0..self.streams.len()).min_by_key(|at| self.streams[*at].used);
            oldest.map(|at| self.streams.swap_remove(at));
        }
        let window = WINDOW_START.min(self.window_max);
        self.streams.push(Stream { of, next, asked: 0, window, reads: 1, used: self.clock });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 1 << 40;

    fn all(streams: &mut Streams, reads: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
        reads.into_iter().filter_map(|read| streams.note(0, &read, SIZE)).collect()
    }

    #[test]
    fn a_sequential_stream_is_read_ahead_of_without_gaps() {
        let mut streams = Streams::new(32 * MIB);
        let reads = (0..400).map(|n| n * MIB / 4..(n + 1) * MIB / 4);
        let ahead = all(&mut streams, reads);
        assert!(ahead[0].start <= 2 * MIB, "{ahead:?}");
        assert!(ahead.windows(2).all(|two| two[0].end == two[1].start), "{ahead:?}");
        assert!(ahead.last().unwrap().end >= 100 * MIB + 24 * MIB, "{ahead:?}");
        assert!(ahead.iter().skip(6).all(|r| r.end - r.start >= 8 * MIB), "{ahead:?}");
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_stream() {
        let mut streams = Streams::new(32 * MIB);
        // as eight requests at a time arrive, the last ones first
        let order =
            (0..400).flat_map(|n| [n * 2 + 1, n * 2]).map(|n| n * MIB / 8..(n + 1) * MIB / 8);
        assert!(all(&mut streams, order).last().unwrap().end > 100 * MIB);
    }

    #[test]
    fn who_skips_holes_goes_on() {
        let mut streams = Streams::new(32 * MIB);
        // 1 MiB of 4 is a hole
        let reads = (0..1600).filter(|n| n % 16 < 12).map(|n| n * MIB / 4..(n + 1) * MIB / 4);
        let ahead = all(&mut streams, reads);
        assert!(ahead.iter().skip(6).all(|r| r.end - r.start >= 8 * MIB), "{ahead:?}");
        assert_eq!(streams.streams.len(), 1);
    }

    #[test]
    fn several_streams_stand_side_by_side() {
        let mut streams = Streams::new(8 * MIB);
        let places = [0, 1 << 30, 1 << 35, 1 << 38];
        let reads = (0..64).flat_map(|n| places.map(|at| at + n * MIB..at + (n + 1) * MIB));
        let ahead = all(&mut streams, reads);
        for at in places {
            assert!(
                ahead.iter().any(|r| (at..at + 80 * MIB).contains(&r.end) && r.end > at + 60 * MIB)
            );
        }
    }

    #[test]
    fn streams_that_go_on_share_what_is_read_ahead() {
        let mut streams = Streams::new(32 * MIB);
        let places = [0, 1 << 30, 1 << 35, 1 << 38];
        let mut most = 0;
        for n in 0..400 {
            for at in places {
                let read = at + n * MIB..at + (n + 1) * MIB;
                if let Some(ahead) = streams.note(0, &read, SIZE) {
                    most = most.max(ahead.end - read.end);
                }
            }
        }
        assert_eq!(most, 8 * MIB);
        // three of them end, and the one that is left gets all
        let ahead =
            (400..1000).filter_map(|n| streams.note(0, &(n * MIB..(n + 1) * MIB), SIZE)).last();
        assert!(ahead.unwrap().end > 1020 * MIB);
    }

    #[test]
    fn backups_that_share_a_cache_share_what_is_read_ahead_and_no_stream() {
        let mut streams = Streams::new(32 * MIB);
        let backups = [streams.of_another(), streams.of_another()];
        let mut most = 0;
        for n in 0..400 {
            for of in backups {
                let read = n * MIB..(n + 1) * MIB;
                if let Some(ahead) = streams.note(of, &read, SIZE) {
                    most = most.max(ahead.end - read.end);
                }
            }
        }
        assert_eq!((most, streams.streams.len()), (16 * MIB, 2));
    }

    #[test]
    fn reads_here_and_there_ask_for_nothing() {
        let mut streams = Streams::new(32 * MIB);
        let reads = (0..10_000_u64).map(|n| {
            let at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % SIZE / 4096 * 4096;
            at..at + 4096
        });
        assert_eq!(all(&mut streams, reads), []);
        assert!(streams.streams.len() <= STREAMS_MAX);
    }

    #[test]
    fn nothing_is_asked_for_behind_the_end_or_without_memory() {
        let mut streams = Streams::new(32 * MIB);
        let size = 10 * MIB + 5;
        let reads = (0..10).map(|n| n * MIB..(n + 1) * MIB);
        let ahead: Vec<_> = reads.filter_map(|read| streams.note(0, &read, size)).collect();
        assert_eq!(ahead.last().unwrap().end, size);
        let mut none = Streams::new(0);
        assert_eq!(all(&mut none, (0..100).map(|n| n * MIB..(n + 1) * MIB)), []);
    }
}
