//! Whether a run is about the volume and the snapshot that its names stand for.
//!
//! A name is all that joins the backups of a volume, and names are typed, templated and kept in
//! variables. So what can be told of a mix-up is told before anything is read, and once more before
//! the commit. `--volume-changed` says that it is none.

use super::BackupOptions;
use super::parent::{self, Known};
use super::prepare::Prepared;
use super::resume;
use crate::run::RunContext;
use crate::sizes::show_bytes;
use chunkstore::{
    Error, ErrorKind, Manifest, Repository, Result, Setting, VolumeName, protocol::find_unfinished,
};
use mover_changes::ListOrigin;
use std::sync::Arc;

/// Newest backups that are looked at for one of the same snapshot: names that are used again are
/// used again soon. Read at once, so they cost no time.
pub(super) const SNAPSHOTS_LOOKED_AT: usize = 8;

/// What is asked for contradicts itself.
pub(super) fn check_names(options: &BackupOptions) -> Result<()> {
    match (&options.snapshot.id, &options.base_snapshot) {
        (Some(snapshot), Some(base)) if snapshot == base => {
            let what = format!("back up snapshot {snapshot:?}");
            Err(Error::new(ErrorKind::Usage, what, "it is its own base: nothing has changed since")
                .hint(format!("name the snapshot that is read with {snapshot}, and the earlier one that the list starts from with {base_snapshot}", snapshot = Setting("snapshot"), base_snapshot = Setting("base-snapshot"))))
        }
        _ => Ok(()),
    }
}

/// That the source may be the volume that the backups of its name are of.
///
/// It is compared with the newest. Work may be late, though: a snapshot that was made before the
/// volume grew, a run that goes on, one that is repeated. So an older backup vouches too, but only
/// where something says that the source is an older state: its snapshot's name, the checkpoint of
/// an earlier run, or the backup itself, which is there already.
pub(super) fn check_source(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    options: &BackupOptions,
    prepared: &Prepared,
    known: &Known,
) -> Result<()> {
    let Some(newest) = known.recent.backups.first().filter(|_| !options.volume_changed) else {
        return Ok(());
    };
    let seen =
        Seen { size_bytes: prepared.geometry.size_bytes(), identity: prepared.identity.as_deref() };
    let Some(differs) = seen.differs_from(newest) else { return Ok(()) };
    let older = known.recent.backups.iter().filter(|_| options.snapshot.id.is_some());
    if older.skip(1).any(|m| seen.is_that_of(m))
        || is_there_already(run, repo, options, &seen, &prepared.volume)?
        || goes_on(run, repo, options, &seen, prepared, known)?
    {
        return Ok(());
    }
    let volume = &prepared.volume;
    let what = format!("back up {} as volume {volume}", options.source.display());
    let detail = format!("backup {} was made of another disk: {differs}", newest.backup_id);
    Err(Error::new(ErrorKind::Usage, what, detail).hint(
        format!("give another volume a name of its own with {volume}; if this one was formatted anew, wiped or made smaller, say {volume_changed}", volume = Setting("volume"), volume_changed = Setting("volume-changed")),
    ))
}

/// Whether the backup was committed before. The run then ends at once, or the commit compares the
/// content.
fn is_there_already(
    run: RunContext<'_>,
    repo: &Repository,
    options: &BackupOptions,
    seen: &Seen<'_>,
    volume: &VolumeName,
) -> Result<bool> {
    let Some(id) = &options.backup_id else { return Ok(false) };
    let there = run.wait_to_begin(repo.backup_named(volume, id))?;
    Ok(there.is_some_and(|m| parent::is_done(options, &m) || seen.is_that_of(&m)))
}

/// Whether the run goes on with one that began when the source was still the volume: as its parent
/// says. Without a parent there was nothing to compare with then.
fn goes_on(
    run: RunContext<'_>,
    repo: &Repository,
    options: &BackupOptions,
    seen: &Seen<'_>,
    prepared: &Prepared,
    known: &Known,
) -> Result<bool> {
    let Some(by) = resume::resume_by(options, prepared, &known.parents) else { return Ok(false) };
    let id = options.backup_id.as_ref();
    let found = run.wait_to_begin(find_unfinished(repo, &prepared.volume, id, by))?;
    Ok(found.is_some_and(|found| found.parent.is_none_or(|m| seen.differs_from(&m).is_none())))
}

/// What the source shows.
struct Seen<'a> {
    size_bytes: u64,
    identity: Option<&'a str>,
}

impl Seen<'_> {
    /// Why it cannot be what this backup was made of, some time later.
    ///
    /// A larger volume has grown, which is ordinary, as is a file system on one that had none. A
    /// smaller one is another, and so is one whose name is gone: what shrinks or wipes a volume is
    /// rarer than a mix-up.
    fn differs_from(&self, m: &Manifest) -> Option<String> {
        match (m.source.identity.as_deref(), self.identity) {
            (Some(then), Some(now)) if then != now => {
                Some(format!("it had {then}, and this has {now}"))
            }
            (Some(then), None) => {
                Some(format!("it had {then}, and on this nothing known is found"))
            }
            _ if self.size_bytes < m.size_bytes => Some(format!(
                "it had {} ({} bytes), and this has {} ({} bytes)",
                show_bytes(m.size_bytes),
                m.size_bytes,
                show_bytes(self.size_bytes),
                self.size_bytes
            )),
            _ => None,
        }
    }

    /// Whether an older backup vouches for it. That one had nothing on it says nothing of what has
    /// a name now, where a newer one has another.
    fn is_that_of(&self, m: &Manifest) -> bool {
        m.source.identity.as_deref() == self.identity && self.differs_from(m).is_none()
    }
}

/// That what was read is what a backup of the same snapshot has.
pub(super) fn check_content(options: &BackupOptions, made: &Manifest, known: &Known) -> Result<()> {
    let Some(id) = options.snapshot.id.as_deref().filter(|_| !options.volume_changed) else {
        return Ok(());
    };
    let others = known.recent.backups.iter().filter(|m| m.backup_id != made.backup_id);
    let same = others.filter(|m| m.snapshot.id.as_deref() == Some(id));
    let Some(other) = same.filter(|m| tells_all(m) && tells_all(made)).find(|m| !equal(m, made))
    else {
        return Ok(());
    };
    let what = format!("commit backup {}", made.name());
    let detail = format!(
        "backup {} of {} was made of snapshot {id:?} too, and has other content",
        other.backup_id,
        other.finished.format("%Y-%m-%d %H:%M:%SZ")
    );
    Err(Error::new(ErrorKind::AlreadyExists, what, detail).hint(
        format!("check that the source shows this snapshot; if a new one was made under the name, give it another, or say {volume_changed}", volume_changed = Setting("volume-changed")),
    ))
}

/// Whether a backup is all that its snapshot was: free blocks are left out by one that knows the
/// file system, and a degraded one may be of no one time.
fn tells_all(m: &Manifest) -> bool {
    m.degraded.is_empty() && m.source.origin != ListOrigin::FileSystem.as_str()
}

fn equal(a: &Manifest, b: &Manifest) -> bool {
    let root = |m: &Manifest| m.map.root.map(|root| root.id);
    a.size_bytes == b.size_bytes && root(a) == root(b)
}
