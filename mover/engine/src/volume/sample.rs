//! Where to look at a device to tell from a few places what all of it is like.

use mover_extents::Extents;

/// Members of `data` that are evenly spread over it: the middle one of each of `count` equal parts,
/// ascending.
pub fn places(data: &Extents, count: u64) -> Vec<u64> {
    let total = data.total();
    let mut ranges = data.iter();
    let Some(mut range) = ranges.next().filter(|_| total > 0) else { return Vec::new() };
    let mut before = 0;
    let mut found = Vec::new();
    for n in 0..count {
        let wanted = u128::from(total) * u128::from(2 * n + 1) / u128::from(2 * count);
        let wanted = u64::try_from(wanted).unwrap_or(total);
        while before + (range.end - range.start) <= wanted {
            let Some(next) = ranges.next() else { break };
            before += range.end - range.start;
            range = next;
        }
        found.push((range.start + (wanted - before)).min(range.end - 1));
    }
    found
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges, of one too
mod tests {
    use super::*;

    #[test]
    fn places_are_the_middles_of_equal_parts() {
        let of = |ranges: &[std::ops::Range<u64>], count| {
            places(&ranges.iter().cloned().collect(), count)
        };
        assert_eq!(of(&[], 4), Vec::<u64>::new());
        assert_eq!(of(&[0..8], 4), [1, 3, 5, 7]);
        assert_eq!(of(&[10..12, 100..106], 4), [11, 101, 103, 105]);
        assert_eq!(of(&[7..8], 3), [7, 7, 7]);
        assert_eq!(of(&[0..u64::MAX], 2), [u64::MAX / 4, u64::MAX / 4 * 3 + 2]);
    }
}
