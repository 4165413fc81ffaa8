//! `backup` and `restore` where the Repository is an object: a controller does the work, and the
//! command makes the object and follows it.

use super::super::args;
use super::super::output::Output;
use super::pair;
use crate::api::Api;
use crate::engine::{self, Failure, Kind, Outcome, Repository, exit};
use crate::kinds::{
    AfterTimeout, BackupSource, Base, Deadlines, HookPair, Hooks, LabelSelector, RepositoryRef,
    RestoreSource, RestoreTarget, RetainSnapshot, SnapshotPolicy, VolumeBackupSpec, VolumeMode,
    VolumeRestoreSpec, VolumeTemplate,
};
use crate::ops::restore::full_name;
use crate::ops::{objects, operation};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How it went, as far as it was waited for.
pub(super) enum Followed {
    /// It has ended.
    Ended(Outcome),
    /// It goes on by itself.
    Made(String),
}

/// A VolumeBackup of one claim.
pub(super) async fn backup(
    api: &Api,
    (namespace, name): (&str, &str),
    place: &Repository,
    given: &args::Backup,
    output: &Output,
) -> Result<Followed, Failure> {
    no_arguments(given)?;
    let source = BackupSource { pvc: Some(name.to_owned()), ..BackupSource::default() };
    let spec = spec_of(source, namespace, place, &given.making)?;
    let (key, uid) = objects::make(api, Kind::VolumeBackup, namespace, name, &spec).await?;
    if !given.wait {
        return Ok(Followed::Made(key.to_string()));
    }
    output.progress(&format!("made {key}"));
    let ended = objects::follow(api, &key, &uid, |text| output.progress(text)).await?;
    let status = &ended["status"];
    let summary = json!({
        "backup_id": status["backupId"],
        "volume": status["volume"],
        "kind": status["changedBlocks"],
        "read_bytes": status["figures"]["readBytes"],
        "stored_bytes": status["figures"]["storedBytes"],
        "warnings": status["warnings"],
        "object": key.name,
    });
    Ok(Followed::Ended(outcome(&ended, summary)))
}

fn no_arguments(given: &args::Backup) -> Result<(), Failure> {
    if given.arguments.is_empty() {
        return Ok(());
    }
    let what = "a VolumeBackup takes no arguments for `mover`";
    Err(Failure::new(exit::USAGE, what)
        .hint("write what you need into its spec: kubectl explain volumebackup.spec"))
}

/// A VolumeBackup of all claims with these labels, at one moment.
pub(super) async fn group(
    api: &Api,
    (namespace, labels): (&str, &BTreeMap<String, String>),
    place: &Repository,
    given: &args::Backup,
    output: &Output,
) -> Result<Followed, Failure> {
    no_arguments(given)?;
    let source = BackupSource {
        selector: Some(LabelSelector { match_labels: labels.clone() }),
        group: Some(true),
        ..BackupSource::default()
    };
    let spec = spec_of(source, namespace, place, &given.making)?;
    let (key, uid) = objects::make(api, Kind::VolumeBackup, namespace, "group", &spec).await?;
    if !given.wait {
        return Ok(Followed::Made(key.to_string()));
    }
    output.progress(&format!("made {key}"));
    let ended = objects::follow(api, &key, &uid, |text| output.progress(text)).await?;
    let record = ended["status"]["record"].as_str().unwrap_or_default();
    let found = operation::find(api, namespace, record).await;
    let done = found.ok().and_then(|found| engine::outcome_of(&found.found));
    let mut summary = done.map_or(Value::Null, |done| done.summary);
    if summary.is_object() {
        summary["object"] = key.name.into();
    }
    Ok(Followed::Ended(outcome(&ended, summary)))
}

/// What the flags say of a backup.
pub(super) fn spec_of(
    source: BackupSource,
    namespace: &str,
    place: &Repository,
    given: &args::Making,
) -> Result<VolumeBackupSpec, Failure> {
    let notes = given.label.iter().map(|text| pair(text, "--label")).collect::<Result<_, _>>()?;
    let policy = match given.keep_base {
        Some(false) => SnapshotPolicy::Never,
        _ => SnapshotPolicy::AsBase,
    };
    Ok(VolumeBackupSpec {
        source,
        repository_ref: reference(place, namespace),
        snapshot_class_name: given.snapshot_class.clone(),
        base: if given.whole { Base::None } else { Base::Auto },
        hooks: hooks(&given.hook),
        retain_snapshot: RetainSnapshot { policy, ..RetainSnapshot::default() },
        volume: volume_of(given),
        notes,
        deadlines: deadlines(given.limits),
        ..VolumeBackupSpec::default()
    })
}

fn volume_of(given: &args::Making) -> Option<VolumeTemplate> {
    let volume = VolumeTemplate {
        storage_class_name: given.storage_class.clone(),
        read_only: given.read_only_volume,
    };
    (volume != VolumeTemplate::default()).then_some(volume)
}

pub(super) fn reference(place: &Repository, namespace: &str) -> RepositoryRef {
    RepositoryRef {
        name: place.name.clone(),
        namespace: (place.namespace != namespace).then(|| place.namespace.clone()),
    }
}

fn hooks(given: &args::Hook) -> Option<Hooks> {
    let pair = given.hook_before.clone().zip(given.hook_after.clone());
    if given.hook_session.is_none() && pair.is_none() && given.fsfreeze.is_none() {
        return None;
    }
    Some(Hooks {
        pod: given.hook_pod.clone(),
        container: given.hook_container.clone(),
        session: given.hook_session.clone(),
        pair: pair.map(|(before, after)| HookPair { before, after }),
        fsfreeze: given.fsfreeze.clone(),
        timeout_seconds: u32::try_from(given.hook_timeout).ok(),
        on_timeout: match given.hook_on_timeout {
            args::OnTimeout::Fail => AfterTimeout::Fail,
            args::OnTimeout::Continue => AfterTimeout::Continue,
        },
    })
}

fn deadlines(given: args::Limits) -> Option<Deadlines> {
    let seconds = |seconds: u64| u32::try_from(seconds).ok();
    Some(Deadlines {
        snapshot_seconds: seconds(given.snapshot_timeout),
        volume_seconds: seconds(given.volume_timeout),
        start_seconds: seconds(given.start_timeout),
        total_seconds: None,
    })
}

/// A VolumeRestore to one claim.
pub(super) async fn restore(
    api: &Api,
    (namespace, target): (&str, &str),
    place: &Repository,
    given: &args::Restore,
    output: &Output,
) -> Result<Followed, Failure> {
    let name = full_name(&given.backup, place, namespace)?;
    let (volume, backup) = name.rsplit_once('@').unwrap_or((&name, "latest"));
    let mode = match (given.block, &given.filesystem) {
        (true, _) => Some(VolumeMode::Block),
        (false, Some(_)) => Some(VolumeMode::Filesystem),
        (false, None) => None,
    };
    let spec = VolumeRestoreSpec {
        source: RestoreSource {
            repository_ref: Some(reference(place, namespace)),
            volume: Some(volume.to_owned()),
            backup: Some(backup.to_owned()),
            ..RestoreSource::default()
        },
        target: Some(RestoreTarget {
            pvc: target.to_owned(),
            in_place: given.in_place,
            assume_detached: given.assume_detached,
            differential: given.differential,
        }),
        prefer_snapshot: given.prefer_snapshot,
        storage_class_name: given.storage_class.clone(),
        size: given.size.clone(),
        mode,
        filesystem: given.filesystem.clone().filter(|text| !text.is_empty()),
        deadlines: deadlines(given.limits),
        ..VolumeRestoreSpec::default()
    };
    let (key, uid) = objects::make(api, Kind::VolumeRestore, namespace, target, &spec).await?;
    if !given.wait {
        return Ok(Followed::Made(key.to_string()));
    }
    output.progress(&format!("made {key}"));
    let ended = objects::follow(api, &key, &uid, |text| output.progress(text)).await?;
    let status = &ended["status"];
    let same = status["proof"]["sameBytes"].as_i64();
    let summary = json!({
        "backup_id": status["backupId"],
        "volume": status["volume"],
        "data_bytes": status["proof"]["dataBytes"].as_i64().map(|all| all - same.unwrap_or(0)),
        "same_data_bytes": same,
        "from_bucket": status["proof"]["fromBucket"],
        "verified": status["proof"],
        "object": key.name,
    });
    Ok(Followed::Ended(outcome(&ended, summary)))
}

fn outcome(ended: &Value, summary: Value) -> Outcome {
    let status = &ended["status"];
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let left = conditions
        .filter(|at| at["type"] == "CleanedUp" && at["status"] == "False")
        .filter_map(|at| at["message"].as_str().map(str::to_owned));
    Outcome {
        exit_code: objects::exit_code(ended),
        message: status["message"].as_str().unwrap_or_default().to_owned(),
        hint: None,
        left: left.collect(),
        summary,
    }
}

/// What is said of an object that goes on by itself.
pub(super) fn made(what: &str, output: &Output) -> Result<u8, Failure> {
    output.result(&json!({ "made": what }), &format!("made {what}"));
    Ok(0)
}
