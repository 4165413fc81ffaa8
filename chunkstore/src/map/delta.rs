//! The bytes that differ between two backups, from their maps alone: pages are read only where the
//! two maps differ, and no chunk is read.

use crate::error::Result;
use crate::format::manifest::Manifest;
use crate::map::diff::diff;
use crate::map::pages::PageSet;
use crate::map::reader::MapReader;
use crate::map::volume::VolumeMap;
use crate::map::walk::MapWalk;
use crate::repository::Repository;
use crate::salvage::Salvage;
use crate::units::{ChunkNo, Geometry};
use mover_extents::Extents;
use std::ops::Range;
use std::sync::Arc;

/// Leaves of the second map that are held at a time.
const LEAVES_AT_ONCE: u16 = 256;

/// Bytes of a backup that are not as they are in another one, in whole chunks, cut at the volume's
/// end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MapDelta {
    /// Stored in the second backup.
    pub data: Extents,
    /// Zero in the second backup.
    pub zero: Extents,
}

/// From backup `a` to backup `b`. All that lies behind the end of `a` counts as changed.
pub async fn delta_of(repo: &Arc<Repository>, a: &Manifest, b: &Manifest) -> Result<MapDelta> {
    let salvage = Arc::new(Salvage::new(repo));
    let reader = |m| -> Result<MapReader> {
        let mut reader = MapReader::new(Arc::clone(repo), VolumeMap::of(repo, m)?)?;
        reader.salvage_with(&salvage);
        Ok(reader)
    };
    between(&mut reader(a)?, &mut reader(b)?).await
}

async fn between(old: &mut MapReader, new: &mut MapReader) -> Result<MapDelta> {
    let geometry = *new.map().geometry();
    let changed = with_growth(diff(old, new).await?, old.map().geometry(), &geometry);
    let stored = stored_chunks(new, &changed).await?;
    let listed = bytes_of(&changed, &geometry);
    let data = bytes_of(&stored, &geometry);
    Ok(MapDelta { zero: listed.subtract(&data), data })
}

/// Which chunks of ascending ranges are not zero, ascending and merged. Scattered ranges are loaded
/// together.
async fn stored_chunks(map: &mut MapReader, ranges: &[Range<u64>]) -> Result<Vec<Range<u64>>> {
    let fanout = u64::from(map.map().fanout());
    let mut stored = Vec::new();
    let mut rest = ranges;
    while let Some(first) = rest.first() {
        let mut leaves = 0;
        let fits = |r: &&Range<u64>| {
            leaves += (r.end - r.start).div_ceil(fanout) + 1;
            leaves <= u64::from(LEAVES_AT_ONCE)
        };
        let count = rest.iter().take_while(fits).count();
        if count == 0 {
            let mut walk = MapWalk::new(map, first.clone(), usize::from(LEAVES_AT_ONCE));
            while let Some(window) = walk.next().await? {
                note(&window.pages, window.chunks, &mut stored)?;
            }
            rest = &rest[1..];
            continue;
        }
        let (group, behind) = rest.split_at(count);
        let pages = map.load(group).await?;
        for range in group {
            note(&pages, range.clone(), &mut stored)?;
        }
        rest = behind;
    }
    Ok(stored)
}

/// Appends the stored chunks of a range that lies behind all before it.
fn note(pages: &PageSet, chunks: Range<u64>, stored: &mut Vec<Range<u64>>) -> Result<()> {
    for (chunk, _) in pages.nonzero(chunks)? {
        match stored.last_mut() {
            Some(last) if last.end == chunk.0 => last.end += 1,
            _ => stored.push(chunk.0..chunk.0 + 1),
        }
    }
    Ok(())
}

/// The chunks that differ by the maps, cut at the new end, and all that the base does not have.
fn with_growth(changed: Vec<Range<u64>>, old: &Geometry, new: &Geometry) -> Vec<Range<u64>> {
    let end = new.chunks();
    let grown = (new.size_bytes() > old.size_bytes())
        .then(|| new.chunks_of(old.size_bytes()..new.size_bytes()));
    let all: Extents = changed.into_iter().chain(grown).map(|r| r.start..r.end.min(end)).collect();
    all.into_vec()
}

fn bytes_of(chunks: &[Range<u64>], geometry: &Geometry) -> Extents {
    let end = |chunk| geometry.offset(ChunkNo(chunk)).min(geometry.size_bytes());
    chunks.iter().map(|r| geometry.offset(ChunkNo(r.start))..end(r.end)).collect()
}

#[cfg(test)]
mod tests;
