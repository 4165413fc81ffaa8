//! What has to be gone through of a volume, from maps of the source alone.

use crate::reading::changed::diff_of;
use chunkstore::salvage::Salvage;
use chunkstore::{ChunkNo, Manifest, MapReader, Repository, Result, VolumeMap, map::MapWalk};
use mover_changes::{ChangeKind, ChangedBlocks, ListOrigin};
use mover_extents::Extents;
use std::ops::Range;
use std::sync::Arc;

/// Leaves of the map that are held at a time.
const LEAVES_AT_ONCE: usize = 256;

/// What of `backup` is not as it is in `base`.
pub(super) async fn delta(
    repo: &Arc<Repository>,
    base: &Manifest,
    backup: &Manifest,
) -> Result<ChangedBlocks> {
    diff_of(repo, base, backup).await
}

/// What of `backup` is stored: no more than `ranges_max` ranges, so that some of what is zero may
/// be among it.
pub(super) async fn allocated(
    repo: &Arc<Repository>,
    backup: &Manifest,
    ranges_max: usize,
    salvage: &Arc<Salvage>,
) -> Result<ChangedBlocks> {
    let mut map = MapReader::new(Arc::clone(repo), VolumeMap::of(repo, backup)?)?;
    map.salvage_with(salvage);
    let geometry = *map.map().geometry();
    let mut stored = Runs::new(ranges_max);
    let mut walk = MapWalk::new(&mut map, 0..geometry.chunks(), LEAVES_AT_ONCE);
    while let Some(window) = walk.next().await? {
        for (chunk, _) in window.pages.nonzero(window.chunks)? {
            stored.push(chunk.0);
        }
    }
    let offset = |chunk| geometry.offset(ChunkNo(chunk)).min(geometry.size_bytes());
    let data: Extents = stored.ranges.iter().map(|r| offset(r.start)..offset(r.end)).collect();
    Ok(ChangedBlocks {
        kind: ChangeKind::Allocated,
        origin: ListOrigin::Mover,
        volume_bytes: Some(backup.size_bytes),
        data,
        zero: Extents::new(),
        notes: Vec::new(),
        contexts: Vec::new(),
    })
}

/// Ascending numbers as ranges. When they become too many, ranges with small gaps between them are
/// joined.
#[derive(Debug)]
struct Runs {
    ranges: Vec<Range<u64>>,
    gap: u64,
    max: usize,
}

impl Runs {
    fn new(max: usize) -> Self {
        Self { ranges: Vec::new(), gap: 0, max: max.max(2) }
    }

    fn push(&mut self, n: u64) {
        if let Some(last) = self.ranges.last_mut()
            && n - last.end <= self.gap
        {
            last.end = n + 1;
            return;
        }
        while self.ranges.len() >= self.max {
            self.gap = (2 * self.gap).max(1);
            let gap = self.gap;
            self.ranges.dedup_by(|next, last| {
                let near = next.start - last.end <= gap;
                if near {
                    last.end = next.end;
                }
                near
            });
        }
        self.ranges.push(n..n + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(max: usize, numbers: &[u64]) -> Vec<Range<u64>> {
        let mut runs = Runs::new(max);
        numbers.iter().for_each(|n| runs.push(*n));
        runs.ranges
    }

    #[test]
    fn few_runs_are_exact() {
        assert_eq!(runs(8, &[]), []);
        assert_eq!(runs(8, &[0, 1, 2, 7, 9, 10]), [0..3, 7..8, 9..11]);
    }

    #[test]
    fn many_runs_become_few_that_cover_them() {
        for max in [2, 3, 10, 100] {
            let numbers: Vec<u64> = (0..5000).map(|n: u64| n * n % 977 + n * 13).collect();
            let mut numbers = numbers;
            numbers.sort_unstable();
            numbers.dedup();
            let found = runs(max, &numbers);
            assert!(found.len() <= max, "{max}: {}", found.len());
            assert!(found.is_sorted_by(|a, b| a.end < b.start));
            assert!(numbers.iter().all(|n| found.iter().any(|r| r.contains(n))));
        }
    }
}
