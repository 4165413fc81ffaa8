//! A VolumeBackup of a selector: one VolumeBackup for each claim that it chooses, and their sum.

use super::super::status::{self, Is};
use super::super::task::{Pause, Task};
use super::super::{Context, attempts};
use crate::api::ApiError;
use crate::engine::{self, Failure, Key, Kind, Meta, SCHEDULED, exit};
use crate::kinds::{BackupSource, Phase, VolumeBackup, VolumeBackupSpec, VolumeBackupStatus};
use crate::ops::look::look;
use crate::ops::sources;
use serde_json::{Value, json};

/// On a part: the uid of the VolumeBackup that it is a part of.
pub(in crate::controller) const PART_OF: &str = "mover.dev/part-of";
/// On a part of a group, `true`: the operation of the whole is its own.
pub(in crate::controller) const GROUPED: &str = "mover.dev/grouped";
const NAME_MOST: usize = 253;

/// The parts that there are; they are made once, when the selector is first looked at.
pub(super) async fn work(
    context: &Context,
    task: &Task,
    meta: &Meta,
    backup: &VolumeBackup,
) -> Result<Pause, Failure> {
    if meta.deletion_timestamp.is_some() {
        // Its parts have it as their owner.
        return Ok(Pause::Changed);
    }
    let is_over = |phase| matches!(phase, Phase::Completed | Phase::Failed);
    let status = backup.status.clone().unwrap_or_default();
    let subject = super::subject(task, &backup.spec);
    // The record says that all parts were made: one that is deleted later does not come back.
    if !attempts::has_record(context, &subject) {
        if let Err(why) = make(context, task, meta, backup).await {
            return failed(context, task, backup, status, &why).await;
        }
        attempts::note(context, &subject, "its parts are made").await?;
    }
    let mut changes = context.objects.changes(Kind::VolumeBackup);
    changes.mark_unchanged();
    let parts = parts(context, &task.uid);
    if parts.is_empty() {
        // They were deleted since.
        return Ok(Pause::Changed);
    }
    let sum = sum(context, meta, backup, status, &parts);
    let done = is_over(sum.phase);
    status::write(context, task, &sum).await?;
    if done {
        return Ok(Pause::Changed);
    }
    let _ = changes.changed().await;
    Ok(Pause::Within(std::time::Duration::ZERO))
}

fn parts(context: &Context, uid: &str) -> Vec<(Meta, VolumeBackup)> {
    let of = |object: &std::rc::Rc<Value>| {
        let meta = Meta::of(object);
        (meta.labels.get(PART_OF).map(String::as_str) == Some(uid)).then_some(())?;
        Some((meta, serde_json::from_value((**object).clone()).ok()?))
    };
    context.objects.all(Kind::VolumeBackup).iter().filter_map(of).collect()
}

async fn make(
    context: &Context,
    task: &Task,
    meta: &Meta,
    backup: &VolumeBackup,
) -> Result<(), Failure> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let labels = backup.spec.source.selector.as_ref().map(|at| &at.match_labels);
    let pairs = labels.into_iter().flatten().map(|(name, value)| format!("{name}={value}"));
    let labels = pairs.collect::<Vec<_>>().join(",");
    let found = match labels.as_str() {
        "" => {
            let words = [format!("ns/{namespace}")];
            look(&context.api, |seen| sources::expand(seen, namespace, &words, None)).await?
        }
        labels => {
            look(&context.api, |seen| sources::expand(seen, namespace, &[], Some(labels))).await?
        }
    };
    for claim in found.claims {
        part(context, task, meta, backup, (&claim.name, false)).await?;
    }
    Ok(())
}

/// Makes the part of a claim. One of a group is shown, and nothing is done for it: the whole is one
/// operation.
pub(super) async fn part(
    context: &Context,
    task: &Task,
    meta: &Meta,
    backup: &VolumeBackup,
    (claim, is_grouped): (&str, bool),
) -> Result<(), Failure> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let spec = VolumeBackupSpec {
        source: BackupSource { pvc: Some(claim.to_owned()), ..BackupSource::default() },
        ..backup.spec.clone()
    };
    let key = Key::new(Kind::VolumeBackup, namespace, &part_name(&meta.name, claim));
    let mut labels = meta.labels.clone();
    labels.insert(PART_OF.into(), task.uid.clone());
    if is_grouped {
        labels.insert(GROUPED.into(), "true".into());
    }
    let mut metadata = json!({
        "name": key.name,
        "namespace": namespace,
        "labels": labels,
        "ownerReferences": [task.reference()],
    });
    if let Some(time) = meta.annotations.get(SCHEDULED) {
        metadata["annotations"] = json!({ SCHEDULED: time });
    }
    let object = engine::object(&key, metadata, json!({ "spec": spec }));
    match context.api.create(&object).await {
        Ok(made) => context.objects.wrote(made),
        Err(ApiError::Conflict(why)) => {
            let found = context.api.get(&key).await?.ok_or(why)?;
            if Meta::of(&found).labels.get(PART_OF) != Some(&task.uid) {
                let what = format!("{key} exists and is no part of {}", task.key);
                return Err(Failure::new(exit::USAGE, what)
                    .hint("delete it, or give the backup another name"));
            }
            context.objects.wrote(found);
        }
        Err(why) => return Err(why.into()),
    }
    Ok(())
}

/// The name of a part; a long one is cut, and told apart by a hash.
fn part_name(of: &str, claim: &str) -> String {
    let whole = format!("{of}-{claim}");
    if whole.len() <= NAME_MOST {
        return whole;
    }
    let hash = blake3::hash(whole.as_bytes()).to_hex();
    let short: String = whole.chars().take(NAME_MOST - 17).collect();
    format!("{}-{}", short.trim_end_matches(['-', '.']), &hash[..16])
}

async fn failed(
    context: &Context,
    task: &Task,
    backup: &VolumeBackup,
    mut status: VolumeBackupStatus,
    why: &Failure,
) -> Result<Pause, Failure> {
    let now = status::now(context);
    let at = (backup.metadata.generation.unwrap_or_default(), now.as_str());
    status.phase = Phase::Pending;
    status.message = why.to_string();
    status::set(&mut status.conditions, "Complete", (Is::Unknown, "Waits"), &why.to_string(), at);
    status::write(context, task, &status).await?;
    Err(why.clone())
}

fn sum(
    context: &Context,
    meta: &Meta,
    backup: &VolumeBackup,
    mut status: VolumeBackupStatus,
    parts: &[(Meta, VolumeBackup)],
) -> VolumeBackupStatus {
    let phase = |of: &VolumeBackup| of.status.as_ref().map_or(Phase::Pending, |at| at.phase);
    let count = |wanted: Phase| parts.iter().filter(|(_, part)| phase(part) == wanted).count();
    let (good, bad) = (count(Phase::Completed), count(Phase::Failed));
    let all = parts.len();
    let now = status::now(context);
    let at = (backup.metadata.generation.unwrap_or_default(), now.as_str());
    status.claim = format!("{all} claims");
    status.scheduled_time = meta.annotations.get(SCHEDULED).cloned();
    let failed: Vec<&str> = parts
        .iter()
        .filter(|(_, part)| phase(part) == Phase::Failed)
        .map(|(meta, _)| meta.name.as_str())
        .collect();
    let (new, is, reason) = match (good + bad == all, bad) {
        (true, 0) => (Phase::Completed, Is::True, "Complete"),
        (true, _) => (Phase::Failed, Is::False, "Failed"),
        (false, _) if good + bad + count(Phase::Running) > 0 => {
            (Phase::Running, Is::Unknown, "Runs")
        }
        (false, _) => (Phase::Pending, Is::Unknown, "Waits"),
    };
    status.phase = new;
    status.message = match failed.is_empty() {
        true => format!("{good} of {all} are complete"),
        false => format!("{good} of {all} are complete; failed: {}", failed.join(", ")),
    };
    status::set(&mut status.conditions, "Complete", (is, reason), &status.message.clone(), at);
    if new == Phase::Completed {
        status.completion_time.get_or_insert_with(|| now.clone());
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_of_parts_stay_apart() {
        assert_eq!(part_name("nightly", "db-0"), "nightly-db-0");
        let long = "x".repeat(250);
        let (one, other) = (part_name(&long, "db-0"), part_name(&long, "db-1"));
        assert_ne!(one, other);
        assert!(one.len() <= NAME_MOST && other.len() <= NAME_MOST);
    }
}
