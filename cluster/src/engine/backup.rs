//! A backup: Lease, snapshot, volume of it, Job.

use super::carried;
use super::choice;
use super::given;
use super::handover;
use super::job::{Access, JobSpec, changes_arguments, job};
use super::names::{self, Anchor, BASE_OF, MODE_CHANGE, SOURCE};
use super::object::{Key, Kind, Query};
use super::observed::Object;
use super::parts::{Context, SummaryFor, with_reason};
use super::quiesce::{self, Cut};
use super::request::{Backup, notes};
use super::retained;
use super::room;
use super::step::{Failure, Planned, Step, Stop, also_on, exit};
use super::views::{Claim, Content, Job, Snapshot, Volume};
use serde_json::{Value, json};

const DEVICE: &str = "/dev/source";

/// The summary of the Job, or what comes before it.
pub(super) fn plan(context: &Context<'_>, backup: &Backup) -> Planned<Value> {
    let Context { anchor, .. } = *context;
    let source = &backup.source;
    context.hold(
        &names::source_lease(&source.namespace, &source.uid),
        &format!("pvc/{} in namespace {}", source.name, source.namespace),
    )?;
    let cut = Cut::of_one(anchor, backup);
    let key = || Ok::<_, Stop>(snapshot_key(anchor, backup, quiesce::attempt(context, &cut)?));
    let snapshot = match begun(context, backup)? {
        Begun::Job => return resumed(context, backup, || context.seen.find(&key()?)),
        Begun::Volume => {
            carried::hand_over(context, backup)?;
            taken(context, &key()?)?
        }
        Begun::Nothing => {
            whole(context, backup)?;
            carried::hand_over(context, backup)?;
            match &backup.given {
                Some(given) => given::take(context, backup, given)?,
                None => quiesce::snapshots(context, &cut)?.remove(0),
            }
        }
    };
    await_ready(context, backup, &snapshot)?;
    let content = content_of(context, backup, &snapshot)?;
    moved(context, backup, (&snapshot, &content), None)
}

/// The snapshot of an attempt: one that was given is that of each.
pub(super) fn snapshot_key(anchor: &Anchor, backup: &Backup, attempt: u32) -> Key {
    match &backup.given {
        Some(given) => given::key(backup, given),
        None => anchor.snapshot(attempt),
    }
}

/// How far the backup of a claim is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// There is nothing of it but a snapshot, maybe.
    Nothing,
    /// There is a volume of its snapshot.
    Volume,
    /// There is a Job.
    Job,
}

pub(super) fn begun(context: &Context<'_>, backup: &Backup) -> Planned<Begun> {
    let namespace = &backup.repository.namespace;
    if context.find_ours::<Job>(&context.anchor.job(namespace, 1))?.is_some() {
        return Ok(Begun::Job);
    }
    Ok(match context.find_ours::<Claim>(&context.anchor.volume(namespace))? {
        Some(_) => Begun::Volume,
        None => Begun::Nothing,
    })
}

/// The summary of a Job that is there already.
pub(super) fn resumed(
    context: &Context<'_>,
    backup: &Backup,
    snapshot: impl FnOnce() -> Planned<Option<Object<Snapshot>>>,
) -> Planned<Value> {
    let namespace = &backup.repository.namespace;
    let volume = context.anchor.volume(namespace);
    unmark(context, backup, &volume, snapshot)?;
    // It has run once: nothing but its number is another.
    let first = context.anchor.job(namespace, 1);
    let make = |key: &Key| again(context, &first, key);
    let finished = context.run_job(namespace, Some(&volume), SummaryFor::Plan, |_| Ok(()), make)?;
    proved(context.anchor, finished.summary)
}

/// A snapshot that a volume was made of already.
pub(super) fn taken(context: &Context<'_>, key: &Key) -> Planned<Object<Snapshot>> {
    context.find_ours(key)?.ok_or_else(|| {
        Failure::new(
            exit::RETRYABLE,
            format!("{key} was deleted by somebody else while it was backed up"),
        )
        .hint("run the same command again")
        .into()
    })
}

pub(super) fn await_ready(
    context: &Context<'_>,
    backup: &Backup,
    snapshot: &Object<Snapshot>,
) -> Planned<()> {
    if snapshot.body.status.ready_to_use == Some(true) {
        return Ok(());
    }
    also_on(room::in_the_storage(context, backup, snapshot), snapshot.key.clone().into())?;
    await_snapshot(context, snapshot, "ready", Vec::new())
}

/// The group that the Job of a member notes on its backup.
pub(super) fn group_of_job(context: &Context<'_>, backup: &Backup) -> Planned<Option<String>> {
    let first = context.anchor.job(&backup.repository.namespace, 1);
    let Some(job) = context.seen.raw(&first)? else { return Ok(None) };
    let args = job["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    let begins = format!("--label={}=", notes::GROUP);
    let mut args = args.into_iter().flatten().filter_map(Value::as_str);
    Ok(args.find_map(|text| text.strip_prefix(&begins)).map(str::to_owned))
}

/// The summary of the Job that reads a snapshot, or what comes before it. Of a member of a group the
/// backup notes which group that is.
pub(super) fn moved(
    context: &Context<'_>,
    backup: &Backup,
    (snapshot, content): (&Object<Snapshot>, &Object<Content>),
    group: Option<&str>,
) -> Planned<Value> {
    let Context { anchor, .. } = *context;
    let namespace = &backup.repository.namespace;
    let volume = anchor.volume(namespace);
    let handle = content.body.status.snapshot_handle.clone().unwrap_or_default();
    let named = handover::snapshot(context, backup, snapshot, content)?;
    let size = snapshot.body.status.restore_size.as_ref().filter(|size| *size != "0");
    let size = size.unwrap_or(&backup.capacity);
    let made: Object<Claim> =
        context.ensure(&volume, || volume_of(anchor, backup, &volume, &named, size))?;
    let of = made.body.spec.data_source.and_then(|source| source.name);
    if of.as_ref() != Some(&named) {
        let of = of.unwrap_or_default();
        let what = format!("{volume} is of snapshot {of:?}, not of {named}");
        return Err(Failure::new(exit::RETRYABLE, what).hint("run the same command again").into());
    }
    let taken = Taken {
        snapshot: &snapshot.key.name,
        handed: &named,
        handle: &handle,
        group,
        base: base(context, backup, snapshot)?,
    };
    let make = |key: &Key| job(anchor, key, "job", &spec(backup, anchor, &volume, &taken));
    let finished = context.run_job(namespace, Some(&volume), SummaryFor::Plan, |_| Ok(()), make)?;
    proved(anchor, finished.summary)
}

/// The claim is the one that was asked for, and no restore has left it half written. A restore in
/// place takes the same Lease, so it stays so until the snapshot is taken.
pub(super) fn whole(context: &Context<'_>, backup: &Backup) -> Planned<()> {
    let source = &backup.source;
    let key = Key::new(Kind::PersistentVolumeClaim, &source.namespace, &source.name);
    let claim = context.seen.find::<Claim>(&key)?.filter(|claim| claim.meta.uid == source.uid);
    let name = claim.and_then(|claim| claim.body.spec.volume_name);
    let Some(name) = name else {
        let what = format!("{key} is another one than when this backup was asked for");
        return Err(Failure::new(exit::RETRYABLE, what).hint("run the same command again").into());
    };
    let volume = Key::wide(Kind::PersistentVolume, &name);
    match context.seen.find::<Volume>(&volume)? {
        Some(found) => Ok(choice::whole(&key, &volume, &found.meta)?),
        None => Ok(()),
    }
}

/// The summary, if it is that of this backup.
fn proved(anchor: &Anchor, summary: Value) -> Planned<Value> {
    let id = anchor.id();
    if summary["backup_id"] == id.as_str() {
        return Ok(summary);
    }
    let what = format!("the Job ended well and did not make backup {id}: {summary}");
    Err(Failure::new(exit::BUG, what).into())
}

/// Asks for the snapshot of a claim.
pub(super) fn make(anchor: &Anchor, backup: &Backup, key: &Key) -> Step {
    let mut meta = anchor.meta(key, "snapshot");
    meta["labels"][SOURCE] = backup.source.uid.clone().into();
    let body = json!({ "spec": {
        "source": { "persistentVolumeClaimName": backup.source.name },
        "volumeSnapshotClassName": backup.snapshot_class,
    } });
    Step::Create(names::object(key, meta, body))
}

pub(super) fn await_snapshot<T>(
    context: &Context<'_>,
    snapshot: &Object<Snapshot>,
    what: &str,
    mut on: Vec<Query>,
) -> Planned<T> {
    let error = snapshot.body.status.error.as_ref().and_then(|error| error.message.clone());
    let said = match error {
        Some(error) => Some(error),
        None => context.warning(&snapshot.key, &snapshot.meta.uid)?,
    };
    // The driver tries again by itself: an error in the status is not its last word.
    let why = with_reason(format!("{} is not {what}", snapshot.key), said);
    on.push(snapshot.key.clone().into());
    context.wait(on, &snapshot.meta.uid, context.limits.snapshot_seconds, why)
}

/// The snapshot's content, if each of both names the other and the driver is the claim's own:
/// whoever may write a snapshot's status must not lead to another volume.
pub(super) fn content_of(
    context: &Context<'_>,
    backup: &Backup,
    snapshot: &Object<Snapshot>,
) -> Planned<Object<Content>> {
    let Some(name) = &snapshot.body.status.bound_volume_snapshot_content_name else {
        return await_snapshot(context, snapshot, "bound", Vec::new());
    };
    let key = Key::wide(Kind::VolumeSnapshotContent, name);
    let Some(content) = context.seen.find::<Content>(&key)? else {
        return Err(Failure::new(
            exit::RETRYABLE,
            format!("{} names {key}, which does not exist", snapshot.key),
        )
        .into());
    };
    if !is_content_of(&content, snapshot, backup) {
        return Err(Failure::new(
            exit::DENIED,
            format!(
                "{} names {key}, which is the content of another snapshot, volume or driver than {}'s",
                snapshot.key, backup.driver
            ),
        )
        .hint("the claim was made anew meanwhile, or somebody wrote the snapshot's status")
        .into());
    }
    if content.body.status.snapshot_handle.is_none() {
        return await_snapshot(context, snapshot, "taken", vec![key.into()]);
    }
    Ok(content)
}

/// Whether a content is that of a snapshot, and of the very volume that is to be backed up.
pub(super) fn is_content_of(
    content: &Object<Content>,
    snapshot: &Object<Snapshot>,
    backup: &Backup,
) -> bool {
    let back = &content.body.spec.volume_snapshot_ref;
    back.uid.as_deref() == Some(&snapshot.meta.uid)
        && back.namespace == snapshot.key.namespace
        && back.name.as_deref() == Some(&snapshot.key.name)
        && content.body.spec.driver == backup.driver
        // The claim was looked up by its name: another one may have it by now.
        && content.body.spec.source.volume_handle.as_ref() == Some(&backup.volume_handle)
}

/// The mode of the content may change for as long as the volume is made, and no longer.
pub(super) fn mark(context: &Context<'_>, content: &Key) -> Planned<()> {
    let Some(found) = context.seen.find::<Content>(content)? else { return Ok(()) };
    if found.meta.annotations.get(MODE_CHANGE).map(String::as_str) == Some("true") {
        return Ok(());
    }
    let patch = json!({ "metadata": { "annotations": { MODE_CHANGE: "true" } } });
    Err(Step::change(content, &found.meta, patch).into())
}

/// Takes the mark away again, once the volume is bound.
fn unmark(
    context: &Context<'_>,
    backup: &Backup,
    volume: &Key,
    snapshot: impl FnOnce() -> Planned<Option<Object<Snapshot>>>,
) -> Planned<()> {
    if !backup.filesystem || backup.repository.namespace != backup.source.namespace {
        return Ok(());
    }
    let Some(claim) = context.seen.find::<Claim>(volume)? else { return Ok(()) };
    let Some(snapshot) = snapshot()? else { return Ok(()) };
    if claim.body.status.phase.as_deref() != Some("Bound") {
        return Ok(());
    }
    let Some(name) = &snapshot.body.status.bound_volume_snapshot_content_name else {
        return Ok(());
    };
    let key = Key::wide(Kind::VolumeSnapshotContent, name);
    let Some(content) = context.seen.find::<Content>(&key)? else { return Ok(()) };
    let ours = content.body.spec.volume_snapshot_ref.uid.as_deref() == Some(&snapshot.meta.uid);
    if !ours || !content.meta.annotations.contains_key(MODE_CHANGE) {
        return Ok(());
    }
    let patch = json!({ "metadata": { "annotations": { MODE_CHANGE: null } } });
    Err(Step::change(&key, &content.meta, patch).into())
}

fn volume_of(anchor: &Anchor, backup: &Backup, key: &Key, snapshot: &str, size: &str) -> Value {
    names::object(
        key,
        anchor.meta(key, "volume"),
        json!({ "spec": {
            "volumeMode": "Block",
            "accessModes": [if backup.read_only { "ReadOnlyMany" } else { "ReadWriteOnce" }],
            "storageClassName": backup.storage_class,
            "dataSource": { "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot },
            "resources": { "requests": { "storage": size } },
        } }),
    )
}

/// The snapshot that is backed up.
struct Taken<'a> {
    /// Its name in the claim's namespace, by which its backup is found as a base.
    snapshot: &'a str,
    /// Its name in the Repository's namespace.
    handed: &'a str,
    /// The storage's own name of it.
    handle: &'a str,
    /// The group that it is a member of.
    group: Option<&'a str>,
    /// Name of the snapshot that changes are asked since.
    base: Option<String>,
}

fn spec<'a>(
    backup: &'a Backup,
    anchor: &Anchor,
    volume: &'a Key,
    taken: &Taken<'_>,
) -> JobSpec<'a> {
    let mut arguments = vec![
        "backup".to_owned(),
        DEVICE.to_owned(),
        format!("--volume={}", backup.volume),
        format!("--backup-id={}", anchor.id()),
        format!("--snapshot={}", taken.snapshot),
        format!("--snapshot-handle={}", taken.handle),
        format!("--csi-driver={}", backup.driver),
    ];
    arguments.extend(backup.labels.iter().map(|(name, value)| format!("--label={name}={value}")));
    arguments.extend(taken.group.iter().map(|group| format!("--label={}={group}", notes::GROUP)));
    if let Some(changes) = &backup.changes {
        arguments.extend(changes_arguments(changes, &backup.repository.namespace));
        arguments.push(format!("--changes-target={}", taken.handed));
        arguments.extend(taken.base.iter().map(|base| format!("--base-snapshot={base}")));
    }
    arguments.extend(carried::arguments(backup));
    arguments.extend(backup.arguments.iter().cloned());
    let parts = backup.objects.as_ref().map(|objects| {
        carried::keys(anchor, &backup.repository.namespace, objects).into_iter().map(|key| key.name)
    });
    JobSpec {
        repository: &backup.repository,
        arguments,
        device: Some((&volume.name, DEVICE, Access::Read)),
        changes: backup.changes.as_ref(),
        objects: parts.into_iter().flatten().collect(),
    }
}

/// The newest base whose backup is in this repository. `mover` looks whether it is there, and reads
/// more where it is not.
fn base(
    context: &Context<'_>,
    backup: &Backup,
    snapshot: &Object<Snapshot>,
) -> Planned<Option<String>> {
    if backup.changes.is_none() {
        return Ok(None);
    }
    let wanted = retained::base_of(backup);
    let all = context.seen.list::<Snapshot>(&retained::bases(backup))?;
    let usable = all.into_iter().filter(|base| {
        (backup.given.is_none() || given::is_after(snapshot, base))
            && base.meta.deletion_timestamp.is_none()
            && base.body.status.ready_to_use == Some(true)
            && base.meta.annotations.get(BASE_OF) == Some(&wanted)
    });
    Ok(usable.max_by_key(|base| base.meta.creation_timestamp.clone()).map(|base| base.key.name))
}

/// The Job once more under another name: as the first one stands in the API, without its end.
fn again(context: &Context<'_>, first: &Key, key: &Key) -> Value {
    let raw = context.seen.raw(first).ok().flatten().unwrap_or_default();
    let template = &raw["spec"]["template"];
    let mut labels = template["metadata"]["labels"].clone();
    if let Some(labels) = labels.as_object_mut() {
        labels.retain(|name, _| !name.contains("job-name") && !name.contains("controller-uid"));
    }
    let spec = json!({
        "backoffLimit": raw["spec"]["backoffLimit"],
        "podReplacementPolicy": raw["spec"]["podReplacementPolicy"],
        "podFailurePolicy": raw["spec"]["podFailurePolicy"],
        "template": {
            "metadata": { "labels": labels, "annotations": template["metadata"]["annotations"] },
            "spec": template["spec"],
        },
    });
    names::object(key, context.anchor.meta(key, "job"), json!({ "spec": spec }))
}

/// The snapshot of an attempt, with that of the storage.
pub(super) fn remove_snapshot(context: &Context<'_>, key: &Key) -> Planned<()> {
    if let Some(snapshot) = context.seen.find::<Snapshot>(key)?
        && context.is_ours(&snapshot.meta)
        && snapshot.meta.deletion_timestamp.is_none()
    {
        // Whoever looks at an operation that has ended well removes nothing that stays.
        if retained::has_stayed(&snapshot.meta) {
            return Ok(());
        }
        retained::release(context, &snapshot)?;
        // One that is bound since has a content, whose policy comes first.
        return Err(Step::delete_seen(key, &snapshot.meta).into());
    }
    context.remove(key)
}
