//! How far an operation is, for people and conditions: a reading of what is known already. It asks
//! for nothing, and nothing follows from it.

use super::backup::snapshot_key;
use super::group;
use super::names::{Anchor, QUIESCED};
use super::object::Key;
use super::observed::{Object, Observed};
use super::parts::JOBS_MAX;
use super::quiesce::ATTEMPTS_MAX;
use super::request::{Backup, Group, Request, Restore};
use super::views::{Claim, Content, Job, Snapshot};
use serde::de::DeserializeOwned;

/// Whether a stage of an operation is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is known of it.
    #[default]
    Unknown,
    /// It is not over.
    Open,
    /// It is.
    Done,
}

/// How far an operation is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the snapshot is ready.
    pub snapshot: Stage,
    /// Name of the snapshot.
    pub snapshot_name: Option<String>,
    /// Its name in the storage.
    pub snapshot_handle: Option<String>,
    /// The moment that it holds, as the API tells it.
    pub cut_time: Option<String>,
    /// What the annotation about the lock says: `true`, or why the snapshot was taken without one.
    pub quiesced: Option<String>,
    /// Whether the Job's volume is bound.
    pub volume: Stage,
    /// Whether a Job has ended well.
    pub moved: Stage,
    /// Name of the newest Job.
    pub job: Option<String>,
    /// Bytes that it has moved, of all that it will.
    pub bytes: Option<(u64, u64)>,
}

impl Progress {
    /// What was known stays known: objects of a stage that is over go again.
    pub fn learn(&mut self, new: Self) {
        fn stage(old: &mut Stage, new: Stage) {
            if new == Stage::Done || *old != Stage::Done && new != Stage::Unknown {
                *old = new;
            }
        }
        stage(&mut self.snapshot, new.snapshot);
        stage(&mut self.volume, new.volume);
        stage(&mut self.moved, new.moved);
        self.snapshot_name = new.snapshot_name.or(self.snapshot_name.take());
        self.snapshot_handle = new.snapshot_handle.or(self.snapshot_handle.take());
        self.cut_time = new.cut_time.or(self.cut_time.take());
        self.quiesced = new.quiesced.or(self.quiesced.take());
        self.job = new.job.or(self.job.take());
        self.bytes = new.bytes.or(self.bytes.take());
    }
}

/// How far the operation of this anchor is.
pub fn progress(anchor: &Anchor, request: &Request, seen: &Observed) -> Progress {
    let mut progress = Progress::default();
    match request {
        Request::Backup(backup) => of_backup(anchor, backup, seen, &mut progress),
        Request::Group(group) => of_group(anchor, group, seen, &mut progress),
        Request::Restore(restore) => of_restore(anchor, restore, seen, &mut progress),
    }
    progress
}

fn known<T: DeserializeOwned>(seen: &Observed, key: &Key) -> Option<Object<T>> {
    seen.find::<T>(key).ok().flatten()
}

fn of_backup(anchor: &Anchor, backup: &Backup, seen: &Observed, progress: &mut Progress) {
    for attempt in 1..=ATTEMPTS_MAX {
        let key = snapshot_key(anchor, backup, attempt);
        let Some(snapshot) = known::<Snapshot>(seen, &key) else { continue };
        of_snapshot(&snapshot, progress);
        if let Some(name) = &snapshot.body.status.bound_volume_snapshot_content_name {
            let key = Key::wide(super::object::Kind::VolumeSnapshotContent, name);
            let content = known::<Content>(seen, &key);
            progress.snapshot_handle = content.and_then(|at| at.body.status.snapshot_handle);
        }
    }
    of_job(anchor, &backup.repository.namespace, seen, progress);
}

fn of_snapshot(snapshot: &Object<Snapshot>, progress: &mut Progress) {
    let status = &snapshot.body.status;
    progress.snapshot = match status.ready_to_use {
        Some(true) => Stage::Done,
        _ => Stage::Open,
    };
    progress.snapshot_name = Some(snapshot.key.name.clone());
    progress.cut_time.clone_from(&status.creation_time);
    progress.quiesced = snapshot.meta.annotations.get(QUIESCED).cloned();
}

/// A stage of a group is over once it is over for each claim.
fn of_group(anchor: &Anchor, group: &Group, seen: &Observed, progress: &mut Progress) {
    let mut all = Vec::new();
    for (anchor, member) in group::members(anchor, group) {
        let mut one = Progress::default();
        of_backup(&anchor, member, seen, &mut one);
        all.push(one);
    }
    let stage = |of: fn(&Progress) -> &Stage| match () {
        () if all.iter().all(|one| *of(one) == Stage::Done) => Stage::Done,
        () if all.iter().all(|one| *of(one) == Stage::Unknown) => Stage::Unknown,
        () => Stage::Open,
    };
    progress.snapshot = stage(|one| &one.snapshot);
    progress.volume = stage(|one| &one.volume);
    progress.moved = stage(|one| &one.moved);
    for one in all {
        // The last moment of all of them, where they have one each.
        progress.cut_time = one.cut_time.max(progress.cut_time.take());
        progress.quiesced = one.quiesced.or(progress.quiesced.take());
        progress.job = one.job.or(progress.job.take());
    }
    for attempt in 1..=ATTEMPTS_MAX {
        if let Some(snapshot) = known::<Snapshot>(seen, &anchor.group(attempt)) {
            of_snapshot(&snapshot, progress);
        }
    }
}

fn of_restore(anchor: &Anchor, restore: &Restore, seen: &Observed, progress: &mut Progress) {
    of_job(anchor, &restore.repository.namespace, seen, progress);
}

fn of_job(anchor: &Anchor, namespace: &str, seen: &Observed, progress: &mut Progress) {
    if let Some(claim) = known::<Claim>(seen, &anchor.volume(namespace)) {
        progress.volume = match claim.body.status.phase.as_deref() {
            Some("Bound") => Stage::Done,
            _ => Stage::Open,
        };
    }
    for number in 1..=JOBS_MAX {
        let Some(job) = known::<Job>(seen, &anchor.job(namespace, number)) else { continue };
        progress.job = Some(job.key.name.clone());
        let is = |word: &str| {
            let conditions = &job.body.status.conditions;
            conditions.iter().any(|at| at.r#type == word && at.status == "True")
        };
        progress.moved = if is("Complete") { Stage::Done } else { Stage::Open };
    }
}
