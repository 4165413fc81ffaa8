//! A restore onto the volume of a claim that exists, and that nobody uses.
//!
//! A block claim in the Repository's own namespace is written as it is. Any other claim is
//! exchanged first ([`super::rebind`]), so that pods wait. The volume has a mark before anything is
//! written to it, and loses it after the proof.
//!
//! ```text
//! begun in the anchor ─▶ (exchange) ─▶ mark ─▶ Job named in the anchor ─▶ proof ─▶ hand-over
//!        │                                          │
//!        └─ a failure gives all back                └─ a failure leaves the mark, or a claim that waits
//! ```
//!
//! Each write to the volume's object is by its version, and the last one of an operation names it
//! ([`ENDED`]): so a driver that is late cannot begin again.

use super::bind::{self, detached};
use super::fence;
use super::job::job;
use super::names::{self, COMPLETED, ENDED, HALF_WRITTEN, RESTORED};
use super::object::{Key, Kind, Query};
use super::observed::Object;
use super::parts::{Context, SummaryFor};
use super::plan::remove_jobs;
use super::rebind::{self, Record};
use super::request::{InPlace, Restore};
use super::restore::{self, target_of};
use super::step::{Failure, Planned, Step, Stop, Wait, also_on, exit};
use super::users;
use super::views::{Claim, ConfigMap, Job, Volume};
use serde_json::{Value, json};
use std::time::Duration;

/// Member of the anchor: the volume that the operation has begun to take.
const PLACE: &str = "place";
/// Member of the anchor: who used the claim while it was written.
const USED: &str = "used";

/// Whether the Job mounts the claim itself.
fn is_direct(restore: &Restore) -> bool {
    restore.filesystem.is_none() && restore.repository.namespace == restore.namespace
}

/// The claim of the Job's device.
fn device(context: &Context<'_>, restore: &Restore) -> Key {
    match is_direct(restore) {
        true => target_of(restore),
        false => context.anchor.volume(&restore.repository.namespace),
    }
}

fn find(context: &Context<'_>, place: &InPlace) -> Planned<Option<Object<Volume>>> {
    let key = Key::wide(Kind::PersistentVolume, &place.volume);
    let found = context.seen.find::<Volume>(&key)?;
    Ok(found.filter(|found| found.meta.uid == place.uid))
}

fn must(context: &Context<'_>, place: &InPlace) -> Planned<Object<Volume>> {
    find(context, place)?.ok_or_else(|| {
        Failure::new(exit::RETRYABLE, format!("pv/{} was deleted by somebody else", place.volume))
            .into()
    })
}

fn has_ended(context: &Context<'_>, volume: &Object<Volume>) -> bool {
    volume.meta.annotations.get(ENDED) == Some(&context.anchor.uid)
}

fn holds(volume: &Object<Volume>, uid: &str) -> bool {
    volume.body.spec.claim_ref.as_ref().and_then(|holder| holder.uid.as_deref()) == Some(uid)
}

/// Up to the proof, and its record in the anchor.
pub(super) fn plan(
    context: &Context<'_>,
    restore: &Restore,
    place: &InPlace,
    anchor: &Object<ConfigMap>,
) -> Planned<Value> {
    let target = target_of(restore);
    context.hold(&names::target_lease(&restore.namespace, &restore.claim), &target.to_string())?;
    let volume = must(context, place)?;
    if has_ended(context, &volume) {
        return match anchor.body.data.contains_key(PLACE) {
            false => finished(restore, &volume),
            true => {
                let what = format!("{} has ended on {}", context.anchor.key, volume.key);
                Err(Failure::new(exit::RETRYABLE, what).into())
            }
        };
    }
    let restored = Record::of(&volume.key, &volume.meta)?
        .filter(|record| record.is_restored() && record.is_of(&target));
    match restored {
        // This driver has an old view of the anchor, which has the proof.
        Some(record) if record.operation == context.anchor.uid => {
            let what = format!("{} has given {target} its data", context.anchor.key);
            return Err(Failure::new(exit::RETRYABLE, what).into());
        }
        // Of an operation that is over, as its Lease is ours. Policy and record are all that is
        // left to do; the volume is in use by now.
        Some(record) if !anchor.body.data.contains_key(PLACE) => {
            rebind::give(context, restore, &volume, &record, true)?;
        }
        _ => {}
    }
    if is_direct(restore) {
        same_mode(restore, &volume)?;
        // No snapshot is taken of it meanwhile.
        if let Some(lease) = source_lease(restore, &volume) {
            context.hold(&lease, &target.to_string())?;
        }
    }
    if fence::named(anchor).next().is_none() {
        begin(context, restore, place, anchor, &volume)?;
    }
    let device = device(context, restore);
    let make = |key: &Key| {
        fence::closed(job(
            context.anchor,
            key,
            "job",
            &restore::spec(restore, &device, restore.differential),
        ))
    };
    let open = |job: &Object<Job>| {
        let first = fence::named(anchor).next().is_none();
        fence::open(anchor, job, || ready(context, restore, place, first))
    };
    let namespace = &restore.repository.namespace;
    let finished = context.run_job(namespace, Some(&device), SummaryFor::Plan, open, make);
    let finished = match is_direct(restore) {
        true => watched(context, anchor, &target, finished)?,
        false => finished?,
    };
    let summary = restore::proved(restore, finished.summary)?;
    Err(bind::record(anchor, &volume, summary).into())
}

/// A claim that stays bound may be used while it is written. Whoever does that is noted in the
/// anchor, as nobody may find it any more at the end.
fn watched<T>(
    context: &Context<'_>,
    anchor: &Object<ConfigMap>,
    target: &Key,
    planned: Planned<T>,
) -> Planned<T> {
    if let Some(used) = anchor.body.data.get(USED) {
        let what = format!("{used}, and did while it was written");
        return Err(Failure::new(exit::USAGE, what).hint("end its pods").into());
    }
    if fence::named(anchor).next().is_none() {
        return planned;
    }
    let pods: Query = users::pods(target.namespace.as_deref().unwrap_or_default()).into();
    match users::without_pods(context.seen, target, Some(&context.anchor.uid)) {
        Ok(()) => {}
        Err(Stop::Failure(why)) => {
            context.seen.confirm(&pods)?;
            let patch = json!({ "data": { USED: why.message } });
            return Err(Step::change(&anchor.key, &anchor.meta, patch).into());
        }
        Err(next) => return Err(next),
    }
    also_on(planned, pods)
}

/// How one ends that found such a record and completed it.
fn finished(restore: &Restore, volume: &Object<Volume>) -> Planned<Value> {
    let target = target_of(restore);
    let has = volume.meta.annotations.get(RESTORED).map_or("", String::as_str);
    if has == format!("{}@{}", restore.volume, restore.backup) {
        return Ok(
            json!({ "backup_id": restore.backup, "volume": restore.volume, COMPLETED: has }),
        );
    }
    let what = format!("an earlier restore gave {target} the data of {has}, and was not complete");
    Err(Failure::new(exit::RETRYABLE, format!("{what}: now it is"))
        .hint("to overwrite that data by a new restore, run the same command again")
        .into())
}

fn source_lease(restore: &Restore, volume: &Object<Volume>) -> Option<Key> {
    let uid = volume.body.spec.claim_ref.as_ref()?.uid.as_deref()?;
    Some(names::source_lease(&restore.namespace, uid))
}

/// Nothing of the request is wrong by what the objects say, and the claim is in nobody's way.
fn begin(
    context: &Context<'_>,
    restore: &Restore,
    place: &InPlace,
    anchor: &Object<ConfigMap>,
    volume: &Object<Volume>,
) -> Planned<()> {
    same_mode(restore, volume)?;
    let target = target_of(restore);
    if is_direct(restore) {
        let claim = context.seen.find::<Claim>(&target)?;
        let is_its = |claim: &Object<Claim>| {
            holds(volume, &claim.meta.uid)
                && claim.body.spec.volume_name.as_ref() == Some(&place.volume)
                && claim.meta.deletion_timestamp.is_none()
        };
        if !claim.as_ref().is_some_and(is_its) {
            return rebind::not_its(context, &target, &volume.key);
        }
    }
    if !anchor.body.data.contains_key(PLACE) {
        // Looked at before anything is written, and again before each thing that cannot be undone.
        rebind::unused(context, &target, &volume.key)?;
        let patch = json!({ "data": { PLACE: volume.key.name } });
        return Err(Step::change(&anchor.key, &anchor.meta, patch).into());
    }
    match is_direct(restore) {
        true => Ok(()),
        false => rebind::take(context, restore, place, volume),
    }
}

fn same_mode(restore: &Restore, volume: &Object<Volume>) -> Result<(), Failure> {
    let is_filesystem = volume.body.spec.volume_mode.as_deref() != Some("Block");
    if is_filesystem == restore.filesystem.is_some() {
        return Ok(());
    }
    let mode = if is_filesystem { "Filesystem" } else { "Block" };
    Err(Failure::new(exit::USAGE, format!("{} is of mode {mode}", volume.key)))
}

/// Before a Job is named: nobody uses the claim, and the volume has its mark.
fn ready(context: &Context<'_>, restore: &Restore, place: &InPlace, first: bool) -> Planned<()> {
    // A driver whose view is old names no Job for a volume that was given back.
    let key = Key::wide(Kind::PersistentVolume, &place.volume);
    context.seen.confirm(&key.into())?;
    let volume = must(context, place)?;
    if has_ended(context, &volume) {
        let what = format!("{} has ended on {}", context.anchor.key, volume.key);
        return Err(Failure::new(exit::RETRYABLE, what).into());
    }
    if first {
        rebind::unused(context, &target_of(restore), &volume.key)?;
    }
    if volume.meta.annotations.contains_key(HALF_WRITTEN) {
        return Ok(());
    }
    let anchor = context.anchor;
    let text = format!("{}/{} {}", anchor.namespace(), anchor.key.name, anchor.uid);
    let patch = json!({ "metadata": { "annotations": { HALF_WRITTEN: text } } });
    Err(Step::change(&volume.key, &volume.meta, patch).into())
}

/// From the proof to the claim in use. Each step looks at the objects alone, so it may begin anew
/// anywhere.
pub(super) fn hand_over(
    context: &Context<'_>,
    restore: &Restore,
    place: &InPlace,
    summary: &Value,
) -> Planned<Value> {
    let volume = must(context, place)?;
    if has_ended(context, &volume) {
        return Ok(summary.clone());
    }
    remove_jobs(context, &restore.repository.namespace)?;
    if is_direct(restore) {
        let target = target_of(restore);
        alone(context, &target, &volume)?;
        let mut patch = json!({ "metadata": { "annotations": rebind::proved(restore) } });
        patch["metadata"]["annotations"][ENDED] = context.anchor.uid.clone().into();
        return Err(Step::change(&volume.key, &volume.meta, patch).into());
    }
    let Some(record) = Record::of(&volume.key, &volume.meta)?.filter(|record| {
        record.operation == context.anchor.uid && record.is_of(&target_of(restore))
    }) else {
        let what = format!("{} is not held by this operation any more", volume.key);
        return Err(Failure::new(exit::DENIED, what)
            .hint("somebody changed its annotations: find out who may")
            .into());
    };
    rebind::give(context, restore, &volume, &record, true)?;
    Ok(summary.clone())
}

/// Nothing of ours can write any more, and nobody else did.
fn alone(context: &Context<'_>, target: &Key, volume: &Object<Volume>) -> Planned<()> {
    let uid = &context.anchor.uid;
    let namespace = target.namespace.as_deref().unwrap_or_default();
    let pods: Query = users::pods(namespace).into();
    context.seen.confirm(&pods)?;
    if let Err(stop) = users::without_pods(context.seen, target, Some(uid)) {
        return Err(match stop {
            Stop::Failure(why) => {
                Failure { message: format!("{}, and did while it was written", why.message), ..why }
                    .into()
            }
            next => next,
        });
    }
    if users::has_own_pods(context.seen, target, uid)? {
        let waited = context.seen.unchanged(&pods);
        let limit = Duration::from_secs(context.limits.removal_seconds);
        let why = format!("the Job's pod goes away from {target}");
        if waited >= limit {
            return Err(Failure::new(exit::RETRYABLE, format!("{why}, and does not end")).into());
        }
        return Err(Wait::new(vec![pods], why, limit - waited).into());
    }
    detached(context, &volume.key)
}

/// The end of one that failed: what was there before where nothing was written, else the mark.
pub(super) fn give_back(
    context: &Context<'_>,
    restore: &Restore,
    place: &InPlace,
    anchor: &Object<ConfigMap>,
) -> Planned<()> {
    if !anchor.body.data.contains_key(PLACE) {
        return Ok(());
    }
    let Some(volume) = find(context, place)? else { return Ok(()) };
    let target = target_of(restore);
    if !anchor.body.data.contains_key("outcome") {
        // Another driver may still name a Job.
        let what = format!("{} does not say that its operation is over", anchor.key);
        return Err(kept(&volume, Failure::new(exit::RETRYABLE, what)).into());
    }
    if has_ended(context, &volume) {
        return rebind::unclaim(context, &target);
    }
    let record = Record::of(&volume.key, &volume.meta)?
        .filter(|record| record.operation == context.anchor.uid && record.is_of(&target));
    let mark = volume.meta.annotations.get(HALF_WRITTEN);
    let is_mine = mark.is_some_and(|mark| is_of(mark, &context.anchor.uid));
    let is_written = fence::named(anchor).next().is_some();
    if is_mine && !is_written {
        let patch = json!({ "metadata": { "annotations": { HALF_WRITTEN: null } } });
        return Err(Step::change(&volume.key, &volume.meta, patch).into());
    }
    match record {
        // The claim has its data. The next run finds the record, completes it and writes nothing.
        Some(record) if record.is_restored() => rebind::unclaim(context, &target),
        // With a mark of an operation before, it is that one's data.
        Some(record) if !is_written && mark.is_none() => {
            let given = rebind::give(context, restore, &volume, &record, false);
            context.seen.settle(given).map_err(|stop| match stop {
                Stop::Failure(why) => kept(&volume, why).into(),
                next => next,
            })
        }
        _ => {
            let holder = volume.body.spec.claim_ref.as_ref();
            let is_its = holder.is_some_and(|holder| {
                holder.namespace == target.namespace && holder.name.as_ref() == Some(&target.name)
            });
            if !is_its {
                return Ok(());
            }
            rebind::unclaim(context, &target)?;
            let patch = json!({ "metadata": { "annotations": { ENDED: context.anchor.uid } } });
            Err(Step::change(&volume.key, &volume.meta, patch).into())
        }
    }
}

fn kept(volume: &Object<Volume>, why: Failure) -> Failure {
    let message = format!(
        "{}; nothing was written, and the data is in {}, which is retained: run the same command \
         again, it goes on from there",
        why.message, volume.key
    );
    Failure { message, ..why }
}

/// What the operation made, but for what is given back: the Job's claim and its volume object.
pub(super) fn remove_block(context: &Context<'_>, restore: &Restore) -> Planned<()> {
    if is_direct(restore) {
        return Ok(());
    }
    rebind::remove_block(context, restore)
}

/// The Lease that kept backups away.
pub(super) fn backups_lease(
    context: &Context<'_>,
    restore: &Restore,
    place: &InPlace,
) -> Planned<Option<Key>> {
    if !is_direct(restore) {
        return Ok(None);
    }
    Ok(find(context, place)?.and_then(|volume| source_lease(restore, &volume)))
}

/// A failure, with how it leaves the claim.
///
/// # Errors
///
/// The read of the volume, which comes first.
pub(super) fn explain(
    context: &Context<'_>,
    restore: &Restore,
    place: &InPlace,
    anchor: &Object<ConfigMap>,
    why: Failure,
) -> Planned<Failure> {
    let volume = match find(context, place) {
        Err(Stop::Failure(_)) => None,
        found => found?,
    };
    let (state, next) = state(context, restore, place, anchor, volume.as_ref());
    let hint = match (why.hint, next) {
        (hint, "") => hint,
        (Some(hint), next) => Some(format!("{hint}; {next}")),
        (None, next) => Some(next.to_owned()),
    };
    Ok(Failure { message: format!("{}; {state}", why.message), hint, ..why })
}

/// How the claim is, and what to do about it.
fn state(
    context: &Context<'_>,
    restore: &Restore,
    place: &InPlace,
    anchor: &Object<ConfigMap>,
    volume: Option<&Object<Volume>>,
) -> (String, &'static str) {
    let (claim, name) = (target_of(restore), &place.volume);
    let record = volume.and_then(|volume| Record::of(&volume.key, &volume.meta).ok().flatten());
    if record.is_some_and(|record| record.is_restored() && record.is_of(&claim)) {
        let found = context.seen.find::<Claim>(&claim).ok().flatten();
        let has = found.zip(volume).is_some_and(|(claim, volume)| holds(volume, &claim.meta.uid));
        let state = match has {
            true => format!(
                "{claim} has the restored data: only the reclaim policy of pv/{name} and the \
                 record on it remain"
            ),
            false => format!("the restored data is in pv/{name}, which is retained"),
        };
        return (state, "run the same command again: it completes this and writes nothing");
    }
    let is_named = fence::named(anchor).next().is_some();
    // The mark of this operation goes where none of its Jobs was named.
    let mark = volume.and_then(|volume| volume.meta.annotations.get(HALF_WRITTEN));
    let is_half = mark.is_some_and(|mark| !is_of(mark, &context.anchor.uid));
    let again =
        "run the same command again: it writes the volume anew, and nothing else makes it whole";
    if !is_named && !is_half {
        (format!("nothing was written to {claim}"), "")
    } else if is_direct(restore) {
        (format!("{claim} may be half written, and pv/{name} has a mark that says so"), again)
    } else if is_named && bind::is_handing_over(anchor) {
        let state = format!("the data in pv/{name} is whole, and {claim} does not have it yet");
        (state, "run the same command again")
    } else {
        let state = format!(
            "pv/{name} may be half written: it is retained, and {claim} stays Pending so that \
             nobody uses it"
        );
        (state, again)
    }
}

/// Whether the mark is that of an operation.
fn is_of(mark: &str, uid: &str) -> bool {
    mark.split_once(' ').is_some_and(|(_, of)| of == uid)
}
