//! The reading half: from a backup in a repository to the bytes of its volume, checked.
//!
//! | file | |
//! |---|---|
//! | `plan` | pure: chunks of a map → zero ranges, entries, merged range reads |
//! | `limits` | pure: the memory budget → every bound |
//! | `pipeline` | the stages and their threads; why it cannot deadlock |
//! | `fetch`, `open`, `write`, `stream` | the stages: network, decryption and checks, target, output in order |
//! | `stdout` | standard output, from which a reader may go away |
//! | `compare`, `changed` | a device beside a backup; two backups |
//! | `lease`, `damage`, `ranges` | the reader's lease; damaged ranges; small sets of byte ranges |
//! | `view` | a backup as random-access bytes |
//! | `salvage` | what a run does about damage: the same chunks from elsewhere in the repository |
//!
//! Must not: know the operation that reads.

pub(crate) mod changed;
pub(crate) mod compare;
pub(crate) mod damage;
pub(crate) mod fetch;
mod lease;
pub(crate) mod limits;
pub(crate) mod open;
pub(crate) mod pipeline;
pub(crate) mod plan;
pub(crate) mod ranges;
pub(crate) mod salvage;
pub(crate) mod same;
pub(crate) mod stdout;
pub(crate) mod stream;
pub mod view;
pub(crate) mod write;

pub use damage::{SkippedDamage, SkippedRange};
pub(crate) use lease::Reading;
pub use limits::LimitLine;
pub use salvage::SalvagedParts;

use crate::run::RunContext;
use chunkstore::salvage::Salvage;
use chunkstore::{Error, ErrorKind, Manifest, MapReader, Repository, Result, Setting, VolumeMap};
use limits::Limits;
use plan::PlanScope;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A backup's manifest; a request to stop ends the search.
pub(crate) fn find(run: RunContext<'_>, repo: &Repository, spec: &str) -> Result<Manifest> {
    run.wait(repo.find_backup(spec))
}

/// What is wanted of a backup's volume.
pub(crate) fn scope_of(
    repo: &Repository,
    manifest: &Manifest,
    range: Option<Range<u64>>,
    limits: &Limits,
) -> Result<PlanScope> {
    let geometry = manifest.geometry(repo.params())?;
    let size = geometry.size_bytes();
    let want = range.unwrap_or(0..size);
    if want.start >= want.end || want.end > size {
        let context = format!("restore bytes {}..{} of the volume", want.start, want.end);
        return Err(Error::new(ErrorKind::Usage, context, format!("it has {size} bytes")).hint(
            format!(
                "give an offset and an end with {range} OFFSET..END, both within the volume",
                range = Setting("range")
            ),
        ));
    }
    Ok(PlanScope {
        geometry,
        want,
        entry_chunks: repo.params().entry_chunks,
        batch_bytes_max: limits.batch_bytes_max(),
        same: None,
    })
}

/// What a reader of a map does about a page that is damaged or missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDamage {
    /// It is an error.
    Stop,
    /// It is passed over, and known to be lost. Of the root it is an error all the same: nothing
    /// would be left.
    GoOn,
}

/// All bytes of one map.
pub(crate) fn scope_of_map(repo: &Repository, map: &VolumeMap, limits: &Limits) -> PlanScope {
    let geometry = *map.geometry();
    PlanScope {
        geometry,
        want: 0..geometry.size_bytes(),
        entry_chunks: repo.params().entry_chunks,
        batch_bytes_max: limits.batch_bytes_max(),
        same: None,
    }
}

/// A reader of one of a backup's maps, with the path to the first wanted chunk read: a wrong or missing
/// root shows here.
pub(crate) fn map_reader(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    map: VolumeMap,
    limits: &Limits,
    scope: &PlanScope,
    salvage: &Arc<Salvage>,
    damage: OnDamage,
) -> Result<MapReader> {
    let root = map.root().root;
    let mut reader = MapReader::with_limits(Arc::clone(repo), map, limits.map_reads())?;
    reader.salvage_with(salvage);
    if damage == OnDamage::GoOn {
        reader.tolerate_damage();
    }
    let first = scope.chunks().start;
    run.wait(reader.load(std::slice::from_ref(&(first..first + 1))))?;
    // what lies below the root is met again
    for lost in reader.take_lost() {
        if let (true, Some(e)) = (Some(lost.page) == root, lost.error) {
            return Err(e);
        }
    }
    Ok(reader)
}
