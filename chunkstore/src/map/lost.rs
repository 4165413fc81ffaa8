//! Which chunks of a map lead into what is recorded as damaged.
//!
//! For: a backup that inherits. It must read such chunks again instead of taking them over. All
//! pages of the map are looked at, a shared one for each place that it stands at, so this is for
//! repositories that have damage records only.

use crate::advice::Advice;
use crate::error::{Error, ErrorKind, Result};
use crate::map::reach::{PageAt, Visitor, reach};
use crate::map::reader::ReadLimits;
use crate::map::volume::{VolumeMap, normalise};
use crate::repository::DamagedSet;
use crate::repository::Repository;
use crate::units::ChunkRef;
use std::ops::Range;

/// The chunks of a map whose entry is damaged, or one of the pages that lead to it: ascending,
/// merged.
pub async fn damaged_chunks(
    repo: &Repository,
    map: &VolumeMap,
    damaged: &DamagedSet,
    limits: ReadLimits,
) -> Result<Vec<Range<u64>>> {
    if damaged.is_empty() {
        return Ok(Vec::new());
    }
    let mut finder = Finder { map, damaged, ranges: Vec::new() };
    reach(repo, std::slice::from_ref(map), limits, &mut finder).await?;
    Ok(normalise(finder.ranges, map.geometry().chunks()))
}

struct Finder<'a> {
    map: &'a VolumeMap,
    damaged: &'a DamagedSet,
    ranges: Vec<Range<u64>>,
}

impl Finder<'_> {
    fn lose(&mut self, chunks: Range<u64>) {
        match self.ranges.last_mut() {
            Some(last) if last.end == chunks.start => last.end = chunks.end,
            _ => self.ranges.push(chunks),
        }
    }
}

impl Visitor for Finder<'_> {
    fn page(&mut self, at: &PageAt) -> Result<bool> {
        let lost = self.damaged.covers(&at.page.location);
        if lost {
            self.lose(self.map.page_chunks(at.level, at.number));
        }
        Ok(!lost)
    }

    fn chunk(&mut self, _: &PageAt, number: u64, chunk: &ChunkRef) -> Result<()> {
        if self.damaged.covers(&chunk.location) {
            self.lose(number..number + 1);
        }
        Ok(())
    }

    fn unreadable(&mut self, _: &PageAt, error: Error) -> Result<()> {
        let known = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Missing);
        let e = error.within("find out which chunks of the parent are damaged");
        Err(if known { e.hint(Advice::RecordDamage.words()) } else { e })
    }
}
