//! `kubectl mover operations`, `describe`, `logs`, `cancel` and `sweep`.

use super::super::args;
use super::super::output::Output;
use crate::api::Api;
use crate::engine::{
    self, Failure, Key, Kind, MANAGER, Mandate, Meta, OWNER, Pod, RETAINED, ROLE, Request, SOURCE,
    STATE, Selection, exit,
};
use crate::ops::operation::{self, Operation};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write as _;

fn row(operation: &Operation) -> (Vec<String>, Value) {
    let meta = &operation.found.meta;
    let label = |name: &str| meta.labels.get(name).cloned().unwrap_or_default();
    let (claim, volume) = match engine::request_of(&operation.found) {
        Ok(Request::Backup(backup)) => (backup.source.name, backup.volume),
        Ok(Request::Group(group)) => {
            let all = |of: fn(&engine::Backup) -> &str| {
                group.members.iter().map(of).collect::<Vec<_>>().join(",")
            };
            (all(|member| &member.source.name), all(|member| &member.volume))
        }
        Ok(Request::Restore(restore)) => (restore.claim, restore.volume),
        Err(_) => ("?".to_owned(), "?".to_owned()),
    };
    let outcome = engine::outcome_of(&operation.found);
    let result = match &outcome {
        None => String::new(),
        Some(outcome) if outcome.exit_code == 0 => "ok".to_owned(),
        Some(outcome) => outcome.message.clone(),
    };
    let cells = vec![
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone(),
        label(ROLE),
        format!("pvc/{claim}"),
        label(STATE),
        meta.creation_timestamp.clone().unwrap_or_default(),
        result,
    ];
    let record = json!({
        "name": meta.name,
        "namespace": meta.namespace,
        "kind": label(ROLE),
        "claim": claim,
        "volume": volume,
        "state": label(STATE),
        "created": meta.creation_timestamp,
        "outcome": outcome,
    });
    (cells, record)
}

pub(super) async fn list(
    api: &Api,
    namespace: Option<&str>,
    output: &Output,
) -> Result<u8, Failure> {
    let all = operation::list(api, namespace, "").await?;
    let rows: Vec<_> = all.iter().map(row).collect();
    output.table(&["NAMESPACE", "NAME", "KIND", "CLAIM", "STATE", "CREATED", "RESULT"], 0, &rows);
    Ok(0)
}

/// Objects that operations made, by their label, in the namespaces that may have some.
async fn made(
    api: &Api,
    namespace: Option<&str>,
    owner: Option<&str>,
) -> Result<Vec<Value>, Failure> {
    let labels = match owner {
        Some(owner) => format!("app.kubernetes.io/managed-by={MANAGER},{OWNER}={owner}"),
        None => format!("app.kubernetes.io/managed-by={MANAGER},{OWNER}"),
    };
    let mut all = Vec::new();
    for kind in [
        Kind::Job,
        Kind::PersistentVolumeClaim,
        Kind::PersistentVolume,
        Kind::VolumeGroupSnapshot,
        Kind::VolumeSnapshot,
        Kind::VolumeSnapshotContent,
        Kind::Secret,
        Kind::Lease,
    ] {
        let namespace = namespace.filter(|_| kind.resource().namespaced).map(str::to_owned);
        let selection = Selection { namespace, labels: labels.clone(), ..Selection::all(kind) };
        match api.list(&selection).await {
            // Items of a list have no kind of their own.
            Ok((found, _)) => {
                let found = found.into_iter().filter(|at| is_made(at) && !is_strangers(kind, at));
                all.extend(found.map(|mut object| {
                    object["kind"] = kind.word().into();
                    object
                }));
            }
            Err(crate::api::ApiError::Refused(why)) => tracing::warn!("{why}"),
            Err(why) => return Err(why.into()),
        }
    }
    Ok(all)
}

/// Whether it is a snapshot that no operation of ours has: whoever takes one may copy labels of ours
/// from the claim.
fn is_strangers(kind: Kind, object: &Value) -> bool {
    let meta = Meta::of(object);
    kind == Kind::VolumeSnapshot && !meta.name.starts_with("mover-") && !engine::is_given(&meta)
}

/// Whether it goes with its operation. A volume object that restored data has does not: only one
/// that stands beside another of the same volume of the storage does.
fn is_made(object: &Value) -> bool {
    // The snapshot controller lets no member of a group go by itself.
    if object["status"]["volumeGroupSnapshotName"].is_string() {
        return false;
    }
    let is_volume = object["spec"]["persistentVolumeReclaimPolicy"].is_string();
    !is_volume || object["metadata"]["labels"][ROLE] == "in-place"
}

pub(super) async fn describe(
    api: &Api,
    namespace: &str,
    name: &str,
    output: &Output,
) -> Result<u8, Failure> {
    let operation = operation::find(api, namespace, name).await?;
    let (_, mut record) = row(&operation);
    let request = engine::request_of(&operation.found)?;
    record["request"] = json!(request);
    let objects = made(api, None, Some(&operation.anchor.uid)).await?;
    let names: Vec<String> =
        objects.iter().map(|object| crate::api::key_of(object).to_string()).collect();
    record["objects"] = json!(names);
    let mut text = String::new();
    for (name, value) in record.as_object().into_iter().flatten() {
        match value {
            Value::Array(all) => {
                text.push_str(&format!("{name}:\n"));
                for one in all {
                    text.push_str(&format!("  {}\n", one.as_str().unwrap_or_default()));
                }
            }
            Value::Object(members) => {
                text.push_str(&format!("{name}:\n"));
                for (name, value) in members {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    text.push_str(&format!("  {name}: {value}\n"));
                }
            }
            other => {
                let other = other.as_str().map_or_else(|| other.to_string(), str::to_owned);
                text.push_str(&format!("{name}: {other}\n"));
            }
        }
    }
    output.result(&record, &text);
    Ok(0)
}

pub(super) async fn logs(api: &Api, namespace: &str, name: &str) -> Result<u8, Failure> {
    let operation = operation::find(api, namespace, name).await?;
    let jobs = engine::request_of(&operation.found)?.jobs_in().to_owned();
    let selection =
        Selection::labelled(Kind::Pod, &jobs, format!("{OWNER}={}", operation.anchor.uid));
    let (mut pods, _) = api.list(&selection).await?;
    pods.sort_by_key(|pod| Meta::of(pod).creation_timestamp);
    let begun = |pod: &Value| {
        let parsed: Pod = serde_json::from_value(pod.clone()).unwrap_or_default();
        parsed.is_running() || parsed.terminated().is_some()
    };
    let Some(pod) = pods.iter().rev().find(|pod| begun(pod)) else {
        return Err(Failure::new(exit::RETRYABLE, format!("{name} has no pod with a log")).hint(
            "an operation that has ended has none: its result is in `kubectl mover describe`",
        ));
    };
    let log = api.log(&Key::new(Kind::Pod, &jobs, &Meta::of(pod).name)).await?;
    let _ = std::io::stdout().write_all(log.text.as_bytes());
    if let Some(why) = log.cut {
        return Err(Failure::new(exit::RETRYABLE, format!("that is not the whole log: {why}"))
            .hint("kubectl logs reads all of it, while the pod is there"));
    }
    Ok(0)
}

pub(super) async fn cancel(
    api: &Api,
    namespace: &str,
    name: &str,
    output: &Output,
) -> Result<u8, Failure> {
    let operation = operation::find(api, namespace, name).await?;
    if operation.is_running() {
        operation::cancel(api, &operation).await?;
        // Whoever began it may be gone: this command removes what it made, and two of us do no harm.
        let seen = engine::Observed::default();
        let tell = |wait: &_| output.waiting(wait);
        let (outcome, _) =
            operation::drive(api, &operation.anchor, Mandate::Removal, seen, tell).await?;
        for left in &outcome.left {
            output.say(&format!("warning: {left}"));
        }
        output.result(&json!(outcome), &format!("{name} has ended: {}", outcome.message));
        return Ok(0);
    }
    output.result(&row(&operation).1, &format!("{name} had ended already"));
    Ok(0)
}

/// Ends operations whose anchor is gone: what they made has its uid as a label, and nothing goes on
/// with it. Operations that have not ended are named, and left to `cancel`.
pub(super) async fn sweep(
    api: &Api,
    namespace: Option<&str>,
    given: &args::Sweep,
    output: &Output,
) -> Result<u8, Failure> {
    let dry_run = given.dry_run;
    let mut idle = 0;
    let operations = operation::list(api, None, "").await?;
    let (running, ended): (Vec<&Operation>, Vec<&Operation>) =
        operations.iter().partition(|operation| operation.is_running());
    let alive: BTreeSet<&str> =
        running.iter().map(|operation| operation.anchor.uid.as_str()).collect();
    for operation in &running {
        let name = &operation.anchor.key.name;
        let place = operation.anchor.namespace();
        output.say(&format!(
            "{name} in namespace {place} has not ended: go on with it by the same command, or kubectl mover cancel {name} -n {place}"
        ));
    }
    let mut rows = Vec::new();
    let mut code = 0;
    // The claim first, which uses the snapshot; and a Job first of all, whose pod uses the claim.
    let all = made(api, namespace, None).await?;
    // After the bases: a base has its claim before it is there itself.
    let claims = claims(api, namespace).await?;
    for object in all {
        let meta = Meta::of(&object);
        let role = meta.labels.get(ROLE).map(String::as_str).unwrap_or_default();
        let owner = meta.labels.get(OWNER).map(String::as_str).unwrap_or_default();
        let (may_go, is_idle) = may_go(&meta, &claims, given.bases);
        idle += usize::from(is_idle && !given.bases);
        // A restored claim belongs to its user, and a lookup removes itself.
        // The job of a drill goes with it.
        let others = [engine::TARGET, "lookup", "drill", engine::MAINTENANCE];
        if !may_go || alive.contains(owner) || others.contains(&role) {
            continue;
        }
        // It may have begun since they were listed.
        if !dry_run && runs_now(api, &meta).await? {
            continue;
        }
        let key = crate::api::key_of(&object);
        let done = match dry_run {
            true => "would be removed".to_owned(),
            false => match remove(api, &key, &object).await {
                Ok(()) => "removed".to_owned(),
                Err(why) => {
                    code = why.exit_code;
                    why.message
                }
            },
        };
        rows.push((
            vec![key.to_string(), done.clone()],
            json!({ "object": key.to_string(), "done": done }),
        ));
    }
    // A record of the controller goes with the object that it is for.
    let of = |operation: &&&Operation| {
        namespace.is_none_or(|at| operation.anchor.namespace() == at)
            && !operation.found.meta.labels.contains_key(engine::FOR)
    };
    for operation in ended.iter().filter(of) {
        let name = operation.anchor.key.to_string();
        let done = if dry_run { "would be removed" } else { "removed" };
        if !dry_run {
            api.delete(&operation.anchor.key, &operation.anchor.uid).await?;
        }
        rows.push((vec![name.clone(), done.to_owned()], json!({ "object": name, "done": done })));
    }
    output.table(&["OBJECT", "DONE"], 0, &rows);
    if idle > 0 {
        output.say(&format!(
            "{idle} snapshots are bases of claims that are gone: sweep --bases removes them"
        ));
    }
    Ok(code)
}

/// Whether nobody may need a snapshot any more, and whether it is a base whose claim is gone. A base
/// belongs to the next backup of its claim, and one that is retained to its user.
fn may_go(meta: &Meta, claims: &BTreeSet<String>, bases: bool) -> (bool, bool) {
    let label = |name: &str| meta.labels.get(name).map(String::as_str).unwrap_or_default();
    let is_retained = label(ROLE) == "retained" || meta.labels.contains_key(RETAINED);
    let is_needed = match meta.annotations.get(engine::MEMBERS) {
        Some(members) => engine::claims_of(members).iter().any(|claim| claims.contains(claim)),
        None => claims.contains(label(SOURCE)),
    };
    let is_idle = label(ROLE) == "base" && !is_retained && !is_needed;
    (!is_retained && (label(ROLE) != "base" || is_idle && bases), is_idle)
}

/// The uids of all claims.
async fn claims(api: &Api, namespace: Option<&str>) -> Result<BTreeSet<String>, Failure> {
    let namespace = namespace.map(str::to_owned);
    let selection = Selection { namespace, ..Selection::all(Kind::PersistentVolumeClaim) };
    let (found, _) = api.list(&selection).await?;
    Ok(found.iter().map(|claim| Meta::of(claim).uid).collect())
}

/// Whether the operation that made an object runs now.
async fn runs_now(api: &Api, meta: &Meta) -> Result<bool, Failure> {
    let anchor = meta.annotations.get(engine::ANCHOR).and_then(|text| text.split_once('/'));
    let Some((namespace, name)) = anchor else { return Ok(false) };
    let found = api.get(&Key::new(Kind::ConfigMap, namespace, name)).await?;
    Ok(found.is_some_and(|found| {
        let of = Meta::of(&found);
        Some(&of.uid) == meta.labels.get(OWNER)
            && of.labels.get(STATE).map(String::as_str) != Some("ended")
    }))
}

/// Removes an object; with a class that retains, the storage would keep a snapshot for good.
async fn remove(api: &Api, key: &Key, object: &Value) -> Result<(), Failure> {
    let meta = Meta::of(object);
    let content = object["status"]["boundVolumeSnapshotContentName"].as_str();
    // One that was handed over stands for a snapshot that belongs to another content.
    let handed = meta.labels.get(ROLE).map(String::as_str) == Some("handed");
    if let Some(content) = content.filter(|_| key.kind == Kind::VolumeSnapshot && !handed) {
        let content = Key::wide(Kind::VolumeSnapshotContent, content);
        if let Some(found) = api.get(&content).await?
            && found["spec"]["volumeSnapshotRef"]["uid"] == meta.uid.as_str()
            && found["spec"]["deletionPolicy"] != "Delete"
        {
            let patch = json!({ "spec": { "deletionPolicy": "Delete" } });
            api.patch(&content, (&Meta::of(&found).uid, None), &patch).await?;
        }
    }
    if key.kind == Kind::VolumeGroupSnapshot {
        return Box::pin(remove_group(api, key, object)).await;
    }
    let volume = object["spec"]["volumeName"].as_str();
    if let Some(volume) = volume.filter(|_| key.kind == Kind::PersistentVolumeClaim) {
        let volume = Key::wide(Kind::PersistentVolume, volume);
        if let Some(found) = api.get(&volume).await?
            && found["spec"]["claimRef"]["uid"] == meta.uid.as_str()
            && found["spec"]["persistentVolumeReclaimPolicy"] != "Delete"
            // One with our label is another object of a volume that is somebody's.
            && found["metadata"]["labels"][OWNER].is_null()
            && !restored(api, &meta).await?
        {
            let patch = json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
            api.patch(&volume, (&Meta::of(&found).uid, None), &patch).await?;
        }
    }
    if key.kind == Kind::PersistentVolume
        && object["spec"]["persistentVolumeReclaimPolicy"] != "Retain"
    {
        let what = format!("{key} is not of reclaim policy Retain");
        return Err(
            Failure::new(exit::USAGE, what).hint("somebody changed it: look whose data it is")
        );
    }
    // Another operation may have taken over a Lease since, which keeps its uid.
    let version = Some(meta.resource_version.as_str()).filter(|_| key.kind == Kind::Lease);
    api.delete_version(key, &meta.uid, version).await?;
    Ok(())
}

/// Removes a group, with the snapshots of the storage and the contents of its members.
async fn remove_group(api: &Api, key: &Key, object: &Value) -> Result<(), Failure> {
    let meta = Meta::of(object);
    let patch = json!({ "spec": { "deletionPolicy": "Delete" } });
    let content = object["status"]["boundVolumeGroupSnapshotContentName"].as_str();
    if let Some(name) = content {
        let content = Key::wide(Kind::VolumeGroupSnapshotContent, name);
        if let Some(found) = api.get(&content).await?
            && found["spec"]["volumeGroupSnapshotRef"]["uid"] == meta.uid.as_str()
            && found["spec"]["deletionPolicy"] != "Delete"
        {
            api.patch(&content, (&Meta::of(&found).uid, None), &patch).await?;
        }
    }
    let namespace = key.namespace.as_deref().unwrap_or_default();
    let (all, _) = api.list(&Selection::labelled(Kind::VolumeSnapshot, namespace, "")).await?;
    for member in all {
        let name = member["status"]["boundVolumeSnapshotContentName"].as_str();
        let Some(name) =
            name.filter(|_| member["status"]["volumeGroupSnapshotName"] == key.name.as_str())
        else {
            continue;
        };
        let content = Key::wide(Kind::VolumeSnapshotContent, name);
        if let Some(found) = api.get(&content).await?
            && found["spec"]["volumeSnapshotRef"]["uid"] == Meta::of(&member).uid.as_str()
            && found["spec"]["deletionPolicy"] != "Delete"
        {
            api.patch(&content, (&Meta::of(&found).uid, None), &patch).await?;
        }
    }
    api.delete(key, &meta.uid).await?;
    Ok(())
}

/// Whether the volume of this claim may be restored data that was not handed over: it is retained.
async fn restored(api: &Api, meta: &Meta) -> Result<bool, Failure> {
    let anchor = meta.annotations.get(engine::ANCHOR).and_then(|text| text.split_once('/'));
    let Some((namespace, name)) = anchor else { return Ok(true) };
    let found = api.get(&Key::new(Kind::ConfigMap, namespace, name)).await?;
    Ok(found.is_none_or(|found| found["data"]["handover"].is_string()))
}
