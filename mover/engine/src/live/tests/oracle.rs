//! Which values each byte may have, by what was asked for and acknowledged when.
//!
//! Of each byte there is a list of entries: values with the time at which each was asked for and
//! acknowledged. An entry is over once another one, asked for after its acknowledgement, counts: for
//! a read, those acknowledged before the read was asked for; after a crash, those acknowledged
//! before a flush was asked for that was itself acknowledged. Whatever is not over may be there.
//!
//! What has failed, or was left by its client, may be there or not. But it has ended: changes that
//! are asked for later come after it.

use std::ops::Range;

const NEVER: u64 = u64::MAX;

/// Shown when a byte is wrong.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "what is shown")]
struct Entry {
    value: u8,
    asked: u64,
    acknowledged: u64,
    ended: u64,
    /// A trim: nothing is over for it.
    weak: bool,
    what: &'static str,
}

#[derive(Debug)]
pub(super) struct Oracle {
    time: u64,
    bytes: Vec<Vec<Entry>>,
    /// The latest time before which all that was acknowledged is durable.
    flushed: u64,
}

/// A change that is under way.
#[derive(Debug)]
pub(super) struct Asked {
    range: Range<usize>,
    time: u64,
}

impl Oracle {
    pub(super) fn new(backup: &[u8]) -> Self {
        let entry = |value: &u8| Entry {
            value: *value,
            asked: 0,
            acknowledged: 0,
            ended: 0,
            weak: false,
            what: "backup",
        };
        let bytes = backup.iter().map(|value| vec![entry(value)]).collect();
        Self { time: 1, bytes, flushed: 0 }
    }

    pub(super) fn now(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    pub(super) fn ask(&mut self, at: usize, values: &[u8], what: &'static str) -> Asked {
        let time = self.now();
        for (entries, value) in self.bytes[at..].iter_mut().zip(values) {
            entries.push(Entry {
                value: *value,
                asked: time,
                acknowledged: NEVER,
                ended: NEVER,
                weak: what == "trim",
                what,
            });
        }
        Asked { range: at..at + values.len(), time }
    }

    /// It has ended, well or not.
    pub(super) fn end(&mut self, asked: &Asked, well: bool) {
        let now = self.now();
        for entries in &mut self.bytes[asked.range.clone()] {
            for entry in entries.iter_mut().filter(|entry| entry.asked == asked.time) {
                entry.ended = now;
                if well {
                    entry.acknowledged = now;
                }
            }
        }
    }

    pub(super) fn flushed(&mut self, asked: u64) {
        self.flushed = self.flushed.max(asked);
    }

    /// A read that was asked for at a time has just ended.
    pub(super) fn check_read(&self, asked: u64, at: usize, found: &[u8]) {
        for (n, value) in found.iter().enumerate() {
            self.check(at + n, *value, asked, "read");
        }
    }

    /// All bytes after a crash. They are what there is from now on.
    pub(super) fn check_crash(&mut self, found: &[u8]) {
        assert_eq!(found.len(), self.bytes.len());
        for (at, value) in found.iter().enumerate() {
            self.check(at, *value, self.flushed, "after a crash");
        }
        *self = Self { time: self.time, ..Self::new(found) };
    }

    fn check(&self, at: usize, value: u8, counts_before: u64, when: &str) {
        let entries = &self.bytes[at];
        let over = |entry: &Entry| {
            entries.iter().any(|other| {
                !other.weak && other.acknowledged < counts_before && entry.ended < other.asked
            })
        };
        let fine = entries.iter().any(|entry| entry.value == value && !over(entry));
        assert!(fine, "byte {at} is {value} {when} (before {counts_before}): {entries:#?}");
    }
}
