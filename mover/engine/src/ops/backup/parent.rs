//! Which backup to build on, and whether there is anything to do at all.

use super::BackupOptions;
use super::same::SNAPSHOTS_LOOKED_AT;
use crate::run::RunContext;
use chunkstore::{
    Error, ErrorKind, Manifest, Repository, Result, Setting, VolumeName, Writer, repository::Recent,
};
use mover_changes::ListOrigin;
use std::sync::Arc;

/// How a backup finds the one it builds on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ParentChoice {
    /// A delta: the newest backup of its base snapshot. Otherwise: the newest of the volume.
    #[default]
    Auto,
    /// None: nothing is inherited, nothing compared.
    None,
    /// This one: an id, a unique prefix, or `VOLUME@latest`.
    Id(String),
}

/// What there is of a volume before a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// Backups that may serve as parent, best first. For a delta each of them was made of the very
    /// snapshot it starts from.
    pub(super) parents: Vec<Manifest>,
    /// Its newest backups, whatever is built upon.
    pub(super) recent: Recent,
}

/// The backup that this very run made before: same id, same volume, same snapshot. Without a
/// snapshot's name only the content can tell, so the run goes on and the commit compares.
pub(super) fn already_done(options: &BackupOptions, writer: &Writer) -> Option<Manifest> {
    writer.existing().filter(|m| is_done(options, m)).cloned()
}

/// Whether the backup of that id that is there is the one that is asked for.
pub(super) fn is_done(options: &BackupOptions, there: &Manifest) -> bool {
    options.snapshot.id.is_some() && there.snapshot.id == options.snapshot.id
}

/// Looks for what may be built upon.
pub(super) fn known(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    options: &BackupOptions,
    volume: &VolumeName,
    delta: bool,
) -> Result<Known> {
    let base = options.base_snapshot.as_deref().filter(|_| delta);
    let at_least = if options.snapshot.id.is_some() { SNAPSHOTS_LOOKED_AT } else { 1 };
    let recent = run.wait_to_begin(repo.recent(volume, base, at_least))?;
    let parents = candidates(run, repo, options, volume, &recent, delta)?;
    Ok(Known { parents, recent })
}

fn candidates(
    run: RunContext<'_>,
    repo: &Arc<Repository>,
    options: &BackupOptions,
    volume: &VolumeName,
    recent: &Recent,
    delta: bool,
) -> Result<Vec<Manifest>> {
    match (&options.parent, delta) {
        (ParentChoice::None, false) => Ok(Vec::new()),
        (ParentChoice::None, true) => Err(refused(
            volume,
            format!("{parent} none leaves nothing to build on", parent = Setting("parent")),
        )
        .hint(format!(
            "leave {parent} out, or run the backup without a list",
            parent = Setting("parent")
        ))),
        (ParentChoice::Id(spec), _) => {
            let parent = run.wait_to_begin(repo.find_backup(spec))?;
            if parent.volume != *volume {
                let why = format!("backup {} is of volume {}", parent.backup_id, parent.volume);
                return Err(Error::new(ErrorKind::Usage, format!("build on backup {spec}"), why)
                    .hint(format!(
                        "choose a backup of volume {volume}, or set {}",
                        Setting("volume")
                    )));
            }
            if delta {
                check_base(options, volume, &parent)?;
                check_complete(volume, &parent)?;
                check_volume(options, volume, &parent)?;
            }
            Ok(vec![parent])
        }
        (ParentChoice::Auto, false) => Ok(recent.backups.first().cloned().into_iter().collect()),
        (ParentChoice::Auto, true) => {
            let Some(base) = &options.base_snapshot else {
                return Err(refused(volume, "the snapshot that it starts from is not named").hint(
                    format!(
                        "give {base_snapshot} ID, or choose the parent yourself with {parent}",
                        base_snapshot = Setting("base-snapshot"),
                        parent = Setting("parent")
                    ),
                ));
            };
            match recent.of_snapshot(base) {
                Some(parent) => {
                    check_volume(options, volume, parent)?;
                    check_complete(volume, parent)?;
                    Ok(vec![parent.clone()])
                }
                None => {
                    let mut why = format!("no backup was made of base snapshot {base:?}");
                    if let Some(unreadable) = recent.unreadable.first() {
                        why = format!("{why}, unless it is one that cannot be read: {unreadable}");
                    }
                    Err(absent(volume, why)
                        .hint("run the backup without a list, or with an allocated list"))
                }
            }
        }
    }
}

/// A backup without the free blocks of a file system is not what its snapshot was: a delta leaves
/// out a block that came into use as it was.
fn check_complete(volume: &VolumeName, parent: &Manifest) -> Result<()> {
    if parent.source.origin != ListOrigin::FileSystem.as_str() {
        return Ok(());
    }
    let id = &parent.backup_id;
    let why = format!("backup {id} was made without the file system's free blocks");
    Err(absent(volume, why).hint("run the backup without a list, or with an allocated list"))
}

/// A delta fits a parent that the user chose if the snapshot it starts from is the one the parent
/// was made of. Where neither side names a snapshot, the user's choice is the only statement there
/// is.
fn check_base(options: &BackupOptions, volume: &VolumeName, parent: &Manifest) -> Result<()> {
    if options.base_snapshot == parent.snapshot.id {
        return Ok(());
    }
    let name =
        |s: &Option<String>| s.as_ref().map_or("no named snapshot".into(), |s| format!("{s:?}"));
    let why = format!(
        "it starts from {}, but backup {} was made of {}",
        name(&options.base_snapshot),
        parent.backup_id,
        name(&parent.snapshot.id)
    );
    let hint = match (&options.base_snapshot, &parent.snapshot.id) {
        (None, Some(id)) => format!(
            "if the list starts from it, say so: {base_snapshot} {id}",
            base_snapshot = Setting("base-snapshot")
        ),
        _ => "choose the parent made of that snapshot, or leave the list out".into(),
    };
    Err(refused(volume, why).hint(hint))
}

/// Two volumes may follow one another under one name. A tracker compares snapshots of one volume
/// only, and does not always say so when they are of two.
fn check_volume(options: &BackupOptions, volume: &VolumeName, parent: &Manifest) -> Result<()> {
    match (&options.snapshot.volume_handle, &parent.snapshot.volume_handle) {
        (Some(now), Some(then)) if now != then => {
            let id = &parent.backup_id;
            let why = format!("backup {id} was made of another volume: {then:?}, not {now:?}");
            Err(absent(volume, why)
                .hint("run the backup without a list, or with an allocated list"))
        }
        _ => Ok(()),
    }
}

fn absent(volume: &VolumeName, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::NotFound, format!("use a delta list for volume {volume}"), why)
}

fn refused(volume: &VolumeName, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, format!("use a delta list for volume {volume}"), why)
}
