//! Whether a run is about the volume and the snapshot that its names stand for.
//!
//! A name is all that joins the backups of a volume, and names are typed, templated and kept in
//! variables. So what can be told of a mix-up is told before anything is read, and once more before
//! the commit. `--volume-changed` says that it is none.

use super::BackupOptions;
use super::parent::Known;
use crate::changes::Origin;
use crate::cli::show_bytes;
use chunkstore::{Error, ErrorKind, Manifest, Result, VolumeName};

/// Newest backups that are looked at for one of the same snapshot: names that are used again are
/// used again soon. Read at once, so they cost no time.
pub(super) const SNAPSHOTS_LOOKED_AT: usize = 8;

/// What is asked for contradicts itself.
pub(super) fn check_names(options: &BackupOptions) -> Result<()> {
    match (&options.snapshot.id, &options.base_snapshot) {
        (Some(snapshot), Some(base)) if snapshot == base => {
            let what = format!("back up snapshot {snapshot:?}");
            Err(Error::new(ErrorKind::Usage, what, "it is its own base: nothing has changed since")
                .hint("name the snapshot that is read with --snapshot, and the earlier one that the list starts from with --base-snapshot"))
        }
        _ => Ok(()),
    }
}

/// That the source may be the volume of the newest backup.
///
/// A larger volume has grown, which is ordinary. A smaller one is another: what shrinks a volume is
/// rarer than a mix-up. Names of file systems are compared where both are known.
pub(super) fn check_source(
    options: &BackupOptions,
    volume: &VolumeName,
    size_bytes: u64,
    identity: Option<&str>,
    known: &Known,
) -> Result<()> {
    let Some(newest) = known.recent.backups.first().filter(|_| !options.volume_changed) else {
        return Ok(());
    };
    let differs = match (newest.source.identity.as_deref(), identity) {
        (Some(then), Some(now)) if then != now => format!("it had {then}, and this has {now}"),
        _ if size_bytes < newest.size_bytes => format!(
            "it had {} ({} bytes), and this has {} ({size_bytes} bytes)",
            show_bytes(newest.size_bytes),
            newest.size_bytes,
            show_bytes(size_bytes)
        ),
        _ => return Ok(()),
    };
    let what = format!("back up {} as volume {volume}", options.source.display());
    let detail = format!("backup {} was made of another disk: {differs}", newest.backup_id);
    Err(Error::new(ErrorKind::Usage, what, detail).hint(
        "give another volume a name of its own with --volume; if this one was formatted anew or made smaller, say --volume-changed",
    ))
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
        "check that the source shows this snapshot; if a new one was made under the name, give it another, or say --volume-changed",
    ))
}

/// Whether a backup is all that its snapshot was: free blocks are left out by one that knows the
/// file system, and a degraded one may be of no one time.
fn tells_all(m: &Manifest) -> bool {
    m.degraded.is_empty() && m.source.origin != Origin::FileSystem.as_str()
}

fn equal(a: &Manifest, b: &Manifest) -> bool {
    let root = |m: &Manifest| m.map.root.map(|root| root.id);
    a.size_bytes == b.size_bytes && root(a) == root(b)
}
