//! A set of byte ranges, merged as they come, that stays small: the first ones are kept, all of
//! them are counted.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges kept; those behind are only counted.
const KEPT_MAX: usize = 65_536;
/// Ranges named in a message.
const SHOWN_MAX: usize = 10;

/// Disjoint byte ranges. Each byte is inserted at most once.
#[derive(Debug, Default)]
pub(crate) struct RangeSet {
    /// Start to end; ranges that touch are one.
    kept: BTreeMap<u64, u64>,
    bytes: u64,
    dropped: bool,
}

impl RangeSet {
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.bytes += range.end - range.start;
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.kept.range(..=start).next_back()
            && before_end >= start
        {
            self.kept.remove(&before);
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.kept.range(start..=end).next() {
            self.kept.remove(&next);
            end = end.max(next_end);
        }
        self.kept.insert(start, end);
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_last();
            self.dropped = true;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All of them, ascending; `None` if there were more than could be kept.
    pub(crate) fn all(&self) -> Option<Vec<Range<u64>>> {
        (!self.dropped).then(|| self.kept.iter().map(|(s, e)| *s..*e).collect())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first ones, ascending.
    pub(crate) fn first(&self) -> Vec<Range<u64>> {
        self.kept.iter().take(SHOWN_MAX).map(|(s, e)| *s..*e).collect()
    }

    /// "12288 bytes in 2 ranges (offset 4096 +4096, offset 65536 +8192)".
    pub(crate) fn describe(&self) -> String {
        let count = self.kept.len();
        let least = if self.dropped { "more than " } else { "" };
        let plural = if count == 1 { "" } else { "s" };
        let named: Vec<String> = self
            .first()
            .iter()
            .map(|r| format!("offset {} +{}", r.start, r.end - r.start))
            .collect();
        let more = if count > SHOWN_MAX { ", …" } else { "" };
        format!("{} bytes in {least}{count} range{plural} ({}{more})", self.bytes, named.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_become_one() {
        let mut set = RangeSet::default();
        for range in [10..20, 30..40, 20..30, 50..60] {
            set.insert(range);
        }
        assert_eq!(set.first(), [10..40, 50..60]);
        assert_eq!(set.describe(), "40 bytes in 2 ranges (offset 10 +30, offset 50 +10)");
    }

    #[test]
    fn it_stays_small() {
        let mut set = RangeSet::default();
        for i in (0..100_000_u64).rev() {
            set.insert(i * 2..i * 2 + 1);
        }
        assert_eq!(set.kept.len(), KEPT_MAX);
        assert_eq!(set.bytes, 100_000);
        assert_eq!(set.first()[0], 0..1);
        assert!(
            set.describe().starts_with("100000 bytes in more than 65536 ranges (offset 0 +1, ")
        );
    }

    proptest! {
        #[test]
        fn it_is_the_union(parts in Just((0..60_u64).collect::<Vec<_>>()).prop_shuffle(), n in 0..60_usize) {
            let mut set = RangeSet::default();
            let mut model = [false; 61];
            for p in &parts[..n] {
                set.insert(*p..*p + 1);
                model[usize::try_from(*p).unwrap()] = true;
            }
            let mut expected = Vec::new();
            let mut start = None;
            for (i, set) in (0..).zip(model) {
                match (set, start) {
                    (true, None) => start = Some(i),
                    (false, Some(s)) => { expected.push(s..i); start = None; }
                    _ => {}
                }
            }
            let kept: Vec<Range<u64>> = set.kept.iter().map(|(s, e)| *s..*e).collect();
            prop_assert_eq!(kept, expected);
        }
    }
}
