//! Backups that a repository has, as objects in its namespace: which of them, and what is to be made
//! and removed for that.
//!
//! A Repository fills its own namespace alone. An object is named by its volume and id, so it is made
//! once, whoever makes it. Only what has the mark of this very Repository is removed, and only by a
//! list that is whole. There are bounds on the number of objects; the repository has all.

use super::record::Ended;
use crate::engine::{
    FOUND, Failure, Key, Kind, MANAGER, Meta, RECORDED, Repository, Step, exit, notes, object,
};
use crate::kinds::DeletionPolicy;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Most objects that a Repository makes.
pub const OBJECTS_MAX: usize = 2_000;
const NAME_CLAIM_CHARS: usize = 40;
const NAME_HASH_CHARS: usize = 16;

/// A list as it was printed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct List {
    /// Records of backups, the oldest first.
    pub backups: Vec<Value>,
    /// Whether all that was printed is here.
    pub complete: bool,
    /// How many the repository has.
    pub total: u64,
}

/// Reads the log of the Job. A node begins a new file of a log that has become long, and answers
/// with that one alone; the summary says how many records there are.
#[must_use]
pub fn read(log: &str, was_cut: bool, summary: &Value) -> List {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_backup = |line: &Value| {
        line["type"] == "backup" && line["volume"].is_string() && line["backup_id"].is_string()
    };
    let backups: Vec<Value> = lines.filter(is_backup).collect();
    let found = backups.len() as u64;
    // A program that does not say how many it printed proves nothing.
    let complete = !was_cut && summary["records"].as_u64() == Some(found);
    List { complete, total: summary["backups"].as_u64().unwrap_or(found), backups }
}

/// What there is in the cluster.
#[derive(Debug, Clone, Default)]
pub struct Present {
    /// VolumeBackups of the Repository's namespace.
    pub objects: Vec<Value>,
    /// Ids of backups that VolumeBackups of this namespace have made.
    pub made: BTreeSet<String>,
    /// Uids of namespaces, by name; none where they may not be read.
    pub namespaces: Option<BTreeMap<String, String>>,
}

/// What is to be done, and what is said of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Changes {
    /// Creations, and then removals.
    pub steps: Vec<Step>,
    /// Volumes in the list.
    pub volumes: usize,
    /// Backups that are objects afterwards, made here or by others.
    pub shown: usize,
    /// Newest of each volume that are shown at most.
    pub each: usize,
}

/// What makes the objects follow a list.
#[must_use]
pub fn changes(of: &Meta, place: &Repository, list: &List, present: &Present) -> Changes {
    let mut volumes: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for backup in &list.backups {
        if is_shown(place, backup, present.namespaces.as_ref()) {
            volumes.entry(text(backup, "volume")).or_default().push(backup);
        }
    }
    let count = volumes.len();
    let each = (OBJECTS_MAX / count.max(1)).clamp(1, super::plan::NEWEST);
    let mut newest: Vec<Vec<&Value>> = volumes.into_values().collect();
    for of_volume in &mut newest {
        let stale = of_volume.len().saturating_sub(each);
        of_volume.drain(..stale);
    }
    // Of too many volumes, those whose newest backup is the youngest.
    newest.sort_by(|a, b| finished(b).cmp(finished(a)));
    newest.truncate(OBJECTS_MAX);
    let wanted: Vec<&Value> = newest.into_iter().flatten().collect();
    let shown = wanted.len();
    let known: BTreeMap<String, (Meta, &Value)> = present
        .objects
        .iter()
        .map(|object| (Meta::of(object).name, (Meta::of(object), object)))
        .collect();
    let mut names = BTreeSet::new();
    let mut steps = Vec::new();
    for backup in wanted {
        if present.made.contains(crate::engine::operation_of(text(backup, "backup_id"))) {
            continue;
        }
        let name = name(text(backup, "volume"), text(backup, "backup_id"));
        if !known.contains_key(&name) {
            steps.push(Step::Create(recorded(of, place, &name, backup)));
        }
        names.insert(name);
    }
    if list.complete {
        let stale = known.into_values().filter(|(meta, _)| {
            meta.labels.get(RECORDED) == Some(&of.uid)
                && meta.deletion_timestamp.is_none()
                && !names.contains(&meta.name)
        });
        steps.extend(stale.flat_map(|(meta, object)| removal(place, meta, object)));
    }
    Changes { steps, volumes: count, shown, each }
}

/// Removes an object alone: the stored backup of one that is past the bounds is still there, and its
/// deletion policy is for whoever deletes the object.
fn removal(place: &Repository, meta: Meta, object: &Value) -> impl Iterator<Item = Step> {
    let key = Key::new(Kind::VolumeBackup, &place.namespace, &meta.name);
    let forgets = object["spec"]["deletionPolicy"] == json!(DeletionPolicy::Forget);
    let retained = forgets.then(|| Step::Patch {
        key: key.clone(),
        uid: meta.uid.clone(),
        version: meta.resource_version,
        patch: json!({ "spec": { "deletionPolicy": DeletionPolicy::Retain } }),
    });
    retained.into_iter().chain([Step::Delete { key, uid: meta.uid }])
}

fn text<'v>(record: &'v Value, name: &str) -> &'v str {
    record[name].as_str().unwrap_or_default()
}

fn finished<'v>(backups: &[&'v Value]) -> &'v str {
    backups.last().map_or("", |backup| text(backup, "finished"))
}

/// Whether a backup belongs into the Repository's namespace. Those that this cluster makes in another
/// namespace are objects there, for as long as that is the same one.
fn is_shown(
    place: &Repository,
    backup: &Value,
    namespaces: Option<&BTreeMap<String, String>>,
) -> bool {
    let mut parts = text(backup, "volume").splitn(3, '/');
    let own = parts.next() == Some(place.cluster.as_str());
    let Some(namespace) = parts.next() else { return true };
    if !own || parts.next().is_none() || namespace == place.namespace {
        return true;
    }
    // Where nobody knows, they count as theirs.
    let Some(namespaces) = namespaces else { return false };
    match namespaces.get(namespace) {
        Some(uid) => {
            backup["labels"][notes::NAMESPACE_UID].as_str().is_some_and(|noted| noted != uid)
        }
        None => true,
    }
}

/// The name of an object follows from its volume and id, and begins with the claim.
#[must_use]
pub fn name(volume: &str, id: &str) -> String {
    let claim = volume.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let claim: String = claim.chars().filter(|c| fit(*c)).take(NAME_CLAIM_CHARS).collect();
    let claim = claim.trim_matches('-');
    let mut hash = blake3::Hasher::new();
    for part in [volume, id] {
        hash.update(&part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    let hash = hash.finalize().to_hex();
    let begin = if claim.is_empty() { "backup" } else { claim };
    format!("{begin}-{}", &hash[..NAME_HASH_CHARS])
}

fn recorded(of: &Meta, place: &Repository, name: &str, backup: &Value) -> Value {
    let key = Key::new(Kind::VolumeBackup, &place.namespace, name);
    let found = json!({
        "finished": backup["finished"],
        "started": backup["started"],
        "sizeBytes": backup["size_bytes"],
        "storedBytes": backup["stats"]["stored_bytes"],
        "readBytes": backup["stats"]["read_bytes"],
        "kind": backup["source"]["kind"],
        "degraded": backup["degraded"],
    });
    let metadata = json!({
        "name": name,
        "namespace": place.namespace,
        "labels": { "app.kubernetes.io/managed-by": MANAGER, RECORDED: of.uid },
        "annotations": { FOUND: found.to_string() },
        "ownerReferences": [super::jobs::reference(of)],
    });
    let spec = json!({
        "source": { "recorded": {
            "volume": text(backup, "volume"),
            "backupId": text(backup, "backup_id"),
        } },
        "repositoryRef": { "name": place.name, "namespace": place.namespace },
    });
    object(&key, metadata, json!({ "spec": spec }))
}

/// How a sync ended, as the record has it.
#[must_use]
pub fn ended(
    list: &List,
    changes: &Changes,
    (due, at): (DateTime<Utc>, DateTime<Utc>),
    generation: i64,
) -> Ended {
    let Changes { volumes, shown, each, .. } = changes;
    let newest = match list.total <= *shown as u64 {
        true => "all of them".to_owned(),
        false => format!("the newest {each} of each volume at most"),
    };
    let mut message = format!(
        "{} backups in the repository; {shown} of {volumes} volumes are VolumeBackups here: {newest}",
        list.total
    );
    let mut hint = None;
    if !list.complete {
        message.push_str("; the list was cut, so no object was removed");
        hint = Some(
            "the node keeps too little of a log (containerLogMaxSize), or the Jobs' image is an older one"
                .to_owned(),
        );
    }
    let summary = json!({
        "backups": list.total, "volumes": volumes, "shown": shown, "each": each, "complete": list.complete,
    });
    Ended { due, at, exit_code: 0, message, hint, summary, generation }
}

/// What is said of objects that the API refuses.
#[must_use]
pub fn refused(why: Failure) -> Failure {
    let message = format!("have the VolumeBackups follow the list: {}", why.message);
    Failure { exit_code: exit::RETRYABLE, message, hint: why.hint }
}

#[cfg(test)]
mod tests;
