//! A VolumeBackup of a group: one operation of all claims that its selector chooses, and one
//! VolumeBackup for each of them, which says what became of it.

use super::super::schedules::task_of;
use super::super::status::{self, Is};
use super::super::task::{Pause, Task};
use super::super::{Context, attempts, marks};
use super::many::{self, PART_OF};
use super::{begun, generation, gone, is_free, options, over, stored, subject};
use crate::engine::{self, Backup, Failure, Kind, Meta, OPERATION, Outcome, Repository, Request};
use crate::kinds::{DeletionPolicy, Figures, Phase, VolumeBackup, VolumeBackupStatus};
use crate::ops::group as ops;
use attempts::Attempted;
use serde_json::Value;
use std::time::Duration;

/// The request of the whole, once nobody works on a claim of it; its parts are made with it.
pub(super) async fn request(
    context: &Context,
    task: &Task,
    meta: &Meta,
    backup: &VolumeBackup,
    (place, immutable_for): (&Repository, Option<&str>),
) -> Result<Request, Failure> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let selector = backup.spec.source.selector.clone().unwrap_or_default().match_labels;
    let options = options(&backup.spec, immutable_for);
    let group = ops::request(&context.api, namespace, &selector, place, &options).await?;
    for member in &group.members {
        is_free(context, member).await?;
    }
    for member in &group.members {
        many::part(context, task, meta, backup, (&member.source.name, true)).await?;
    }
    Ok(Request::Group(Box::new(group)))
}

/// The members of an operation that has ended, each with what became of it.
pub(super) fn ends(ended: &Attempted) -> Vec<(&Backup, Attempted)> {
    let Some(Request::Group(group)) = &ended.request else { return Vec::new() };
    let summaries = ended.outcome.summary["members"].as_array();
    let end = |number: u32, member: &Backup| {
        let is_its = |summary: &&Value| summary["claim"] == member.source.name.as_str();
        let summary = summaries.into_iter().flatten().find(is_its).cloned();
        // The id follows from the record, whatever its end says.
        let uid = format!("{}-m{number}", ended.uid);
        let outcome = match summary {
            Some(summary) if summary["backup_id"] == uid.as_str() => Outcome {
                exit_code: 0,
                message: format!("backup of pvc/{} is complete", member.source.name),
                hint: None,
                summary,
                left: Vec::new(),
            },
            Some(summary) => Outcome {
                exit_code: code(&summary),
                message: summary["failed"].as_str().unwrap_or_default().to_owned(),
                hint: None,
                summary: Value::Null,
                left: Vec::new(),
            },
            None => Outcome { left: Vec::new(), ..ended.outcome.clone() },
        };
        Attempted {
            outcome,
            attempt: ended.attempt,
            record: ended.record.clone(),
            uid,
            request: Some(Request::Backup(Box::new(member.clone()))),
            why: ended.why,
        }
    };
    (1..).zip(&group.members).map(|(number, member)| (member, end(number, member))).collect()
}

fn code(summary: &Value) -> u8 {
    let code = summary["exit_code"].as_u64().and_then(|code| u8::try_from(code).ok());
    code.filter(|code| *code != 0).unwrap_or(engine::exit::RETRYABLE)
}

/// What the whole says of its members.
pub(super) fn summed(ended: &Attempted, status: &mut VolumeBackupStatus) {
    let Some(Request::Group(group)) = &ended.request else { return };
    status.claim = format!("{} claims", group.members.len());
    let members = ended.outcome.summary["members"].as_array();
    let sum = |name: &str| -> i64 {
        members.into_iter().flatten().filter_map(|member| member[name].as_i64()).sum()
    };
    status.figures = Some(Figures {
        size_bytes: sum("size_bytes"),
        read_bytes: sum("read_bytes"),
        stored_bytes: sum("stored_bytes"),
    });
    let bytes = |name: &str| crate::drive::show_bytes(sum(name).unsigned_abs());
    status.read = Some(bytes("read_bytes"));
    status.stored = Some(bytes("stored_bytes"));
    let warnings = ended.outcome.summary["warnings"].as_array();
    status.warnings =
        warnings.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
}

/// The VolumeBackup of the group that another one is a part of, in the same namespace: a label can be
/// anybody's.
fn whole(context: &Context, task: &Task, meta: &Meta) -> Option<(Task, VolumeBackup)> {
    let of = meta.labels.get(PART_OF)?;
    let all = context.objects.all(Kind::VolumeBackup);
    let found = all.into_iter().find(|object| {
        let meta = Meta::of(object);
        meta.uid == *of && meta.namespace == task.key.namespace
    })?;
    let backup: VolumeBackup = serde_json::from_value((*found).clone()).ok()?;
    let is_group = backup.spec.source.group == Some(true);
    is_group.then(|| (task_of(context, &found), backup))
}

/// How the operation of the whole ended for a part.
pub(super) fn ended(
    context: &Context,
    task: &Task,
    meta: &Meta,
    backup: &VolumeBackup,
) -> Option<Attempted> {
    let (whole, of) = whole(context, task, meta)?;
    let ended = attempts::ended(context, &subject(&whole, &of.spec))?;
    let claim = backup.spec.source.pvc.as_deref()?;
    let mut all = ends(&ended).into_iter();
    all.find(|(member, _)| member.source.name == claim).map(|(_, end)| end)
}

/// A part says what became of it, and does nothing.
pub(super) async fn part(
    context: &Context,
    task: &Task,
    meta: &Meta,
    backup: &VolumeBackup,
) -> Result<Pause, Failure> {
    let mut changes = context.objects.changes(Kind::VolumeBackup);
    changes.mark_unchanged();
    let ended = ended(context, task, meta, backup);
    if meta.deletion_timestamp.is_some() {
        let all = ended.as_ref().and_then(stored).into_iter().collect::<Vec<_>>();
        return gone(context, task, backup, &all).await;
    }
    let mut status = match &backup.status {
        Some(status) => status.clone(),
        None => begun(context, meta, backup),
    };
    let of_whole = whole(context, task, meta);
    let Some(ended) = ended else {
        let whole_status = of_whole.as_ref().and_then(|(_, of)| of.status.as_ref());
        let is_over =
            whole_status.is_some_and(|at| matches!(at.phase, Phase::Completed | Phase::Failed));
        let (phase, is, reason) = match whole_status.map(|at| at.phase) {
            Some(Phase::Running) => (Phase::Running, Is::Unknown, "Runs"),
            // The last attempt had no such claim any more.
            _ if is_over || of_whole.is_none() => (Phase::Failed, Is::False, "Failed"),
            _ => (Phase::Pending, Is::Unknown, "Waits"),
        };
        status.phase = phase;
        status.message = match &of_whole {
            Some((whole, _)) if phase == Phase::Failed => format!("{} ended without it", whole.key),
            Some((whole, _)) => format!("it is a part of {}", whole.key),
            None => "the VolumeBackup that it is a part of is gone".to_owned(),
        };
        let now = status::now(context);
        let at = (generation(backup), now.as_str());
        status::set(&mut status.conditions, "Complete", (is, reason), &status.message.clone(), at);
        status::write(context, task, &status).await?;
        let _ = changes.changed().await;
        return Ok(Pause::Within(Duration::ZERO));
    };
    over(context, backup, meta, &ended, &mut status);
    if let Some((_, VolumeBackup { status: Some(whole), .. })) = &of_whole {
        status.cut_time = whole.cut_time.clone();
    }
    status::write(context, task, &status).await?;
    if backup.spec.deletion_policy == DeletionPolicy::Forget {
        marks::put(context, task, OPERATION).await?;
    }
    Ok(Pause::Changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn member(name: &str) -> Value {
        json!({
            "source": { "namespace": "shop", "name": name, "uid": format!("uid-{name}") },
            "driver": "none.csi", "volumeHandle": name, "volume": format!("c1/shop/{name}"),
            "repository": {
                "url": "s3://b", "cluster": "c1", "keySecret": "k", "serviceAccount": "mover",
                "image": "mover:1", "imagePullPolicy": "Never", "memory": "1Gi", "cpu": "1",
            },
            "snapshotClass": "snaps", "storageClass": "fast", "filesystem": true,
            "capacity": "1Gi", "labels": {}, "keepBase": false,
        })
    }

    fn ended(summary: Value, exit_code: u8) -> Attempted {
        let request = json!({
            "kind": "group", "namespace": "shop", "selector": { "app": "db" }, "class": "groups",
            "members": [member("db"), member("log"), member("new")],
        });
        Attempted {
            outcome: Outcome {
                exit_code,
                message: "as it ended".into(),
                hint: None,
                summary,
                left: Vec::new(),
            },
            attempt: 1,
            record: "mover-backup-1-1".into(),
            uid: "u".into(),
            request: Some(Request::parse(&request.to_string()).expect("a request")),
            why: None,
        }
    }

    /// What the record says of its end is not sealed: it leads to no backup but those of its own.
    #[test]
    fn a_member_is_the_backup_of_its_number_or_none() {
        let summary = json!({ "members": [
            { "claim": "db", "backup_id": "u-m1", "size_bytes": 5, "read_bytes": 3 },
            { "claim": "log", "backup_id": "somebody-s" },
            { "claim": "new", "failed": "no pod", "exit_code": 2 },
        ] });
        let whole = ended(summary, 2);
        let all = ends(&whole);
        let found: Vec<_> = all.iter().map(|(_, end)| stored(end)).collect();
        assert_eq!(found, [Some(("c1/shop/db".to_owned(), "u-m1".to_owned())), None, None]);
        let codes: Vec<u8> = all.iter().map(|(_, end)| end.outcome.exit_code).collect();
        assert_eq!(codes, [0, 1, 2]);
        assert_eq!(all[2].1.outcome.message, "no pod");
        let mut status = VolumeBackupStatus::default();
        summed(&whole, &mut status);
        assert_eq!(status.claim, "3 claims");
        assert_eq!(status.figures.map(|at| (at.size_bytes, at.read_bytes)), Some((5, 3)));
    }

    #[test]
    fn a_group_that_ended_before_its_members_ends_each_of_them() {
        let whole = ended(Value::Null, 143);
        let all = ends(&whole);
        assert!(all.iter().all(|(_, end)| end.outcome.message == "as it ended"));
        assert!(all.iter().all(|(_, end)| stored(end).is_none()));
    }
}
