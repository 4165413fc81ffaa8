//! How far a backup is, in its status.

use super::super::Context;
use super::super::attempts::News;
use super::super::status::{self, Is};
use super::super::task::Task;
use crate::engine::{Progress, Request, Stage};
use crate::kinds::{Phase, SnapshotStatus, VolumeBackupStatus};

/// What a report says, in the status.
pub(super) fn told(
    context: &Context,
    task: &Task,
    status: &mut VolumeBackupStatus,
    report: &News<'_>,
) {
    let now = status::now(context);
    let generation = task.object().map_or(0, |object| status::generation(&object));
    let at = (generation, now.as_str());
    match report {
        News::Waits(why) => {
            status.message = (*why).to_owned();
            let reason = if status.phase == Phase::Running { "Runs" } else { "Waits" };
            status::set(&mut status.conditions, "Complete", (Is::Unknown, reason), why, at);
        }
        News::Runs { attempt, record, request, progress } => {
            status.phase = Phase::Running;
            status.attempts = *attempt;
            status.record = Some((*record).to_owned());
            match request {
                Request::Backup(request) => {
                    status.volume = Some(request.volume.clone());
                    progressed(status, &request.driver, request.hook.is_some(), progress, at);
                }
                Request::Group(group) => {
                    status.claim = format!("{} claims", group.members.len());
                    let driver = group.members.first().map_or("", |first| &first.driver);
                    progressed(status, driver, !group.hooks.is_empty(), progress, at);
                }
                Request::Restore(_) => {}
            }
        }
    }
}

fn progressed(
    status: &mut VolumeBackupStatus,
    driver: &str,
    has_hook: bool,
    progress: &Progress,
    at: (i64, &str),
) {
    let stages = [
        ("SnapshotTaken", &progress.snapshot, "Ready", "NotReady"),
        ("VolumeReady", &progress.volume, "Bound", "Unbound"),
        ("Moved", &progress.moved, "JobEnded", "JobRuns"),
    ];
    for (kind, stage, done, open) in stages {
        match stage {
            Stage::Unknown => {}
            Stage::Open => status::set(&mut status.conditions, kind, (Is::False, open), "", at),
            Stage::Done => status::set(&mut status.conditions, kind, (Is::True, done), "", at),
        }
    }
    if let Some(text) = progress.quiesced.as_deref().filter(|_| has_hook) {
        match text {
            "true" => status::set(&mut status.conditions, "Quiesced", (Is::True, "Held"), "", at),
            why => {
                status::set(&mut status.conditions, "Quiesced", (Is::False, "LetGoEarly"), why, at);
            }
        }
    }
    if let Some(name) = &progress.snapshot_name {
        status.snapshot = Some(SnapshotStatus {
            name: name.clone(),
            driver: driver.to_owned(),
            handle: progress.snapshot_handle.clone(),
        });
    }
    status.cut_time = progress.cut_time.clone().or(status.cut_time.take());
}
