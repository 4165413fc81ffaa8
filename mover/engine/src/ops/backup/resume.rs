//! Going on with a run that was killed: whether it was to make the same, and what is left to do.

use super::BackupOptions;
use super::parent::{Known, ParentChoice};
use super::prepare::Prepared;
use crate::ingest::resume::{Digest, Kept, at_bound};
use crate::run::quota::{Bound, Meter};
use chrono::{DateTime, Utc};
use chunkstore::{
    BackupId, Error, ErrorKind, Manifest, Setting, Writer, ids::PlanDigest, protocol::ResumeBy,
};

/// What somebody who reads the error of a run that ended early wants to know. `kept`: `None` if
/// nobody can go on with this run.
pub(super) fn explain(
    e: Error,
    id: &BackupId,
    kept: Option<Kept>,
    bound: Option<Bound>,
    meter: Option<&Meter>,
) -> Error {
    let again = format!(
        "run the same command again, from the start; with {}, or {} and a source that does not change, it would go on",
        Setting("snapshot"),
        Setting("backup-id")
    );
    let stored = |kept: Kept| match kept.percent {
        0 => format!("what is stored of backup {id} is not stored again"),
        percent => format!("{percent}% of backup {id} is stored and need not be read again"),
    };
    match (bound, kept) {
        (Some(bound), Some(kept)) => return at_bound(bound, meter, kept, &stored(kept)),
        (Some(bound), None) => {
            let text = "what is stored is not stored again";
            return at_bound(bound, meter, Kept::NOTHING, text).hint(again);
        }
        (None, _) => {}
    }
    if e.kind() != ErrorKind::Cancelled {
        if let Some(kept) = kept.filter(|kept| kept.percent > 0) {
            let percent = kept.percent;
            tracing::warn!(
                "backup {id}: {percent}% is stored, the same command run again goes on from there"
            );
        }
        return e;
    }
    match kept {
        Some(kept) => {
            Error::new(ErrorKind::Cancelled, "stopped", format!("on request, {}", stored(kept)))
                .hint("run the same command again to go on from there")
        }
        None => Error::new(ErrorKind::Cancelled, "stopped", "on request").hint(again),
    }
}

/// What to say of a backup that is gone on with after a later one was committed: it is the newest
/// then, though its data may be older. `began`: when the first run of it did.
pub(super) fn overtaken(known: &Known, writer: &Writer, began: DateTime<Utc>) -> Option<String> {
    let newest = known.recent.backups.first()?;
    let is_parent = writer.parent().is_some_and(|parent| parent.name() == newest.name());
    if is_parent || newest.backup_id == *writer.backup_id() || newest.ordered <= began {
        return None;
    }
    Some(format!(
        "backup {} of {} was committed after this one had begun: @latest is this one now, though its \
         data may be older; to restore the other, name it",
        newest.backup_id,
        newest.finished.format("%Y-%m-%d %H:%M:%SZ")
    ))
}

/// By what a later run would find this one; `None` if none ever may go on with it.
///
/// Two things have to be known: that it is the same backup, and that the source shows the same. The
/// name of the snapshot that is read says both. The same backup id says the first only: then the
/// kernel has to tell that nothing was written since. A live device of which it cannot tell is read
/// anew.
pub(super) fn resume_by(
    options: &BackupOptions,
    prepared: &Prepared,
    parents: &[Manifest],
) -> Option<ResumeBy> {
    let any_id = options.backup_id.is_none();
    let source = match (&options.snapshot.id, any_id) {
        // a file with that name may have been replaced nevertheless, which costs nothing to see
        (Some(_), _) => prepared.source.file_modified_ns().map(|ns| format!("modified {ns}")),
        (None, false) => Some(prepared.source.state()?),
        (None, true) => return None,
    };
    Some(ResumeBy { plan: digest(options, prepared, parents, source.as_deref()), any_id })
}

/// Everything that decides what is stored and what the manifest says it is. Not the compression,
/// the bounds, the labels.
fn digest(
    options: &BackupOptions,
    prepared: &Prepared,
    parents: &[Manifest],
    source: Option<&str>,
) -> PlanDigest {
    let mut hash = Digest::new("mover plan 1");
    hash.text(Some(prepared.volume.as_str()));
    hash.number(prepared.geometry.size_bytes());
    let s = &options.snapshot;
    for text in [
        &s.id,
        &s.base_id,
        &s.csi_driver,
        &s.volume_handle,
        &s.snapshot_handle,
        &s.change_id,
        &options.base_snapshot,
    ] {
        hash.text(text.as_deref());
    }
    hash.text(source);
    match (&options.parent, parents) {
        (ParentChoice::Auto, _) => hash.text(Some("auto")),
        (ParentChoice::None, _) | (ParentChoice::Id(_), []) => hash.text(Some("none")),
        (ParentChoice::Id(_), [parent, ..]) => hash.text(Some(&parent.name().to_string())),
    }
    match &prepared.changes {
        None => hash.text(None),
        Some(list) => {
            hash.text(Some(list.kind.as_str()));
            hash.extents(&list.data);
            hash.extents(&list.zero);
        }
    }
    hash.finish()
}
