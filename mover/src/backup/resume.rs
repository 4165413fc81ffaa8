//! Going on with a run that was killed: whether it was to make the same, and what is left to do.

use super::BackupOptions;
use super::parent::{Known, ParentChoice};
use super::prepare::Prepared;
use crate::control::Cancel;
use crate::quota::{Bound, Meter, too_small};
use chrono::{DateTime, Utc};
use chunkstore::{BackupId, Error, ErrorKind, Manifest, PlanDigest, ResumeBy, Writer};
use mover_extents::Extents;
use serde::Serialize;
use std::time::Duration;

/// What a run did not have to do, because an earlier one had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Resumed {
    /// Where it went on, in hundredths of what is to be read.
    pub percent: u64,
    /// Bytes of the volume that were not read again.
    pub bytes: u64,
}

/// How long a run that has to stop asks its own lease how far it is, and tries to give it back: a
/// request to the store that is under way holds both up.
pub(crate) const ASKED_WITHIN: Duration = Duration::from_millis(300);
pub(crate) const FINISH_WITHIN: Duration = Duration::from_millis(500);

/// The bound that ended a run, if it was one.
pub(crate) fn bound_of(e: &Error, cancel: &Cancel, meter: Option<&Meter>) -> Option<Bound> {
    match e.kind() {
        ErrorKind::Cancelled => cancel.bound(),
        ErrorKind::Limit => meter.and_then(Meter::reached),
        _ => None,
    }
}

/// How a run ended that has kept to a bound: `kept` says what need not be done again. One that got
/// no further than the one before would do so for ever: it says that instead.
pub(crate) fn at_bound(bound: Bound, meter: Option<&Meter>, further: bool, kept: String) -> Error {
    let further = further || meter.is_some_and(Meter::has_progress);
    let most = meter.and_then(|meter| meter.most(bound));
    match most {
        Some(most) if !further => too_small(bound, most).hint(format!("raise {bound}")),
        None if !further => Error::new(
            ErrorKind::Limit,
            "stopped",
            format!(
                "{bound} is reached, and nothing was stored that the next run could go on from"
            ),
        )
        .hint(format!("give it more time with {bound}, or look at what it waited for")),
        most => {
            let most = most.map_or_else(String::new, |most| format!(" {most}"));
            let detail = format!("{bound}{most} is reached, {kept}");
            Error::new(ErrorKind::Limit, "stopped", detail)
                .hint("run the same command again to go on from there")
        }
    }
}

/// What a later run has of one that ended early.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) percent: u64,
    /// Further than where this run itself went on from.
    pub(super) further: bool,
}

/// What somebody who reads the error of a run that ended early wants to know. `kept`: `None` if
/// nobody can go on with this run.
pub(super) fn explain(
    e: Error,
    id: &BackupId,
    kept: Option<Kept>,
    bound: Option<Bound>,
    meter: Option<&Meter>,
) -> Error {
    const AGAIN: &str = "run the same command again, from the start; with --snapshot, or --backup-id and a source that does \
                         not change, it would go on";
    let stored = |kept: Kept| match kept.percent {
        0 => format!("what is stored of backup {id} is not stored again"),
        percent => format!("{percent}% of backup {id} is stored and need not be read again"),
    };
    match (bound, kept) {
        (Some(bound), Some(kept)) => return at_bound(bound, meter, kept.further, stored(kept)),
        (Some(bound), None) => {
            let kept = "what is stored is not stored again".to_owned();
            return at_bound(bound, meter, false, kept).hint(AGAIN);
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
        None => Error::new(ErrorKind::Cancelled, "stopped", "on request").hint(AGAIN),
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

impl Resumed {
    pub(crate) fn of(total_bytes: u64, left_bytes: u64) -> Self {
        let bytes = total_bytes - left_bytes;
        let percent = u128::from(bytes) * 100 / u128::from(total_bytes.max(1));
        Self { percent: u64::try_from(percent).unwrap_or(100), bytes }
    }
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

/// Every part with its length before it, so that no two plans give the same bytes.
pub(crate) struct Digest(blake3::Hasher);

impl Digest {
    /// Of one kind of plan.
    pub(crate) fn new(kind: &str) -> Self {
        let mut hash = Self(blake3::Hasher::new());
        hash.text(Some(kind));
        hash
    }

    pub(crate) fn finish(self) -> PlanDigest {
        PlanDigest::from_bytes(*self.0.finalize().as_bytes())
    }

    pub(crate) fn number(&mut self, n: u64) {
        self.0.update(&n.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: Option<&str>) {
        match text {
            None => self.number(u64::MAX),
            Some(text) => {
                self.number(text.len() as u64);
                self.0.update(text.as_bytes());
            }
        }
    }

    fn extents(&mut self, extents: &Extents) {
        self.number(extents.count() as u64);
        for range in extents.iter() {
            self.number(range.start);
            self.number(range.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_is_done_is_no_more_than_it_is() {
        assert_eq!(Resumed::of(1000, 590), Resumed { percent: 41, bytes: 410 });
        assert_eq!(Resumed::of(1000, 1), Resumed { percent: 99, bytes: 999 });
        assert_eq!(Resumed::of(0, 0), Resumed { percent: 0, bytes: 0 });
        assert_eq!(Resumed::of(u64::MAX, 0).percent, 100);
    }
}
