//! A restore to a new claim, or for one that waits: a block volume, the Job that writes and proves it,
//! and the record by which that volume is handed over.
//!
//! A new claim appears last. So nobody ever sees one that is bound to an empty or half-written
//! volume.

use super::bind::record;
use super::fence;
use super::in_place;
use super::job::{Access, JobSpec, job};
use super::kept::{self, Beginning};
use super::names;
use super::object::{Key, Kind};
use super::observed::Object;
use super::parts::{Context, SummaryFor};
use super::populate;
use super::request::Restore;
use super::step::{Failure, Planned, Step, Stop, also_on, exit};
use super::views::{Claim, ConfigMap, Job, Volume};
use serde_json::{Value, json};

const DEVICE: &str = "/dev/target";

/// Up to the proof, and the beginning of the hand-over.
pub(super) fn plan(
    context: &Context<'_>,
    restore: &Restore,
    anchor: &Object<ConfigMap>,
) -> Planned<Value> {
    if let Some(place) = &restore.in_place {
        return in_place::plan(context, restore, place, anchor);
    }
    let target = target_of(restore);
    context.hold(&names::target_lease(&restore.namespace, &restore.claim), &target.to_string())?;
    let namespace = &restore.repository.namespace;
    let volume = context.anchor.volume(namespace);
    let started = context.find_ours::<Job>(&context.anchor.job(namespace, 1))?.is_some();
    if !started || restore.populate.is_some() {
        claimable(context, restore)?;
    }
    let made = context.find_ours::<Claim>(&volume)?;
    if !started && made.is_none() {
        let of = kept::beginning(context, restore)?;
        return Err(Step::Create(block_claim(context, restore, &volume, of)).into());
    }
    let differs = made.as_ref().is_some_and(kept::is_made_of_one);
    let make = |key: &Key| {
        fence::closed(job(context.anchor, key, "job", &spec(restore, &volume, differs)))
    };
    let open = |job: &Object<Job>| fence::open(anchor, job, || Ok(()));
    let finished = context.run_job(namespace, Some(&volume), SummaryFor::Plan, open, make);
    let finished = match finished {
        Err(Stop::Failure(why)) => Err(kept::explain(context, &volume, why)?.into()),
        other => other,
    };
    let finished = match &restore.populate {
        // It ends where the claim is deleted meanwhile.
        Some(_) => also_on(finished, target.into())?,
        None => finished?,
    };
    let mut summary = proved(restore, finished.summary)?;
    let Some(claim) = context.find_ours::<Claim>(&volume)? else {
        return Err(Failure::new(
            exit::RETRYABLE,
            format!("{volume} was deleted by somebody else after it was written"),
        )
        .hint("run the same command again")
        .into());
    };
    kept::note(&claim, &mut summary);
    begin(context, restore, anchor, &claim, summary)
}

/// The summary, if it is a proof of this backup.
pub(super) fn proved(restore: &Restore, summary: Value) -> Result<Value, Failure> {
    if !summary["verified"].is_null() && summary["backup_id"] == restore.backup.as_str() {
        return Ok(summary);
    }
    Err(Failure::new(
        exit::BUG,
        format!("the Job ended well and did not prove backup {}: {summary}", restore.backup),
    ))
}

pub(super) fn target_of(restore: &Restore) -> Key {
    Key::new(Kind::PersistentVolumeClaim, &restore.namespace, &restore.claim)
}

/// Nobody has the claim that the volume is for; one that is populated waits.
fn claimable(context: &Context<'_>, restore: &Restore) -> Planned<()> {
    let target = target_of(restore);
    if let Some(populate) = &restore.populate {
        return populate::claim(context, restore, populate, None).map(drop);
    }
    match context.seen.find::<Claim>(&target)? {
        Some(_) => Err(taken(&target).into()),
        None => Ok(()),
    }
}

pub(super) fn taken(target: &Key) -> Failure {
    Failure::new(exit::USAGE, format!("{target} exists already"))
        .hint("name another claim, or restore onto that one by --in-place")
}

fn block_claim(context: &Context<'_>, restore: &Restore, key: &Key, beginning: Beginning) -> Value {
    let mut spec = json!({
        "volumeMode": "Block",
        "accessModes": restore.access_modes,
        "storageClassName": restore.storage_class,
        "resources": { "requests": { "storage": restore.capacity } },
    });
    let mut meta = context.anchor.meta(key, "volume");
    if let Some(populate) = &restore.populate {
        populate::like_its(populate, &mut meta, &mut spec);
    }
    beginning.into_claim(&mut meta, &mut spec);
    names::object(key, meta, json!({ "spec": spec }))
}

/// Of a Job; `differs` where the volume has data that may be that of the backup.
pub(super) fn spec<'a>(restore: &'a Restore, volume: &'a Key, differs: bool) -> JobSpec<'a> {
    let mut arguments = vec![
        "restore".to_owned(),
        names::stored_name(&restore.volume, &restore.backup),
        DEVICE.to_owned(),
        "--verify".to_owned(),
        // It holds a part of this backup if it runs again, and what is restored in place.
        "--force".to_owned(),
    ];
    if differs {
        arguments.push("--differential".to_owned());
    }
    JobSpec {
        repository: &restore.repository,
        arguments,
        device: Some((&volume.name, DEVICE, Access::Write)),
        changes: None,
        objects: Vec::new(),
    }
}

fn begin(
    context: &Context<'_>,
    restore: &Restore,
    anchor: &Object<ConfigMap>,
    claim: &Object<Claim>,
    summary: Value,
) -> Planned<Value> {
    let unbound = || Failure::new(exit::RETRYABLE, format!("{} has lost its volume", claim.key));
    let name = claim.body.spec.volume_name.clone().ok_or_else(unbound)?;
    let key = Key::wide(Kind::PersistentVolume, &name);
    let volume = context.seen.find::<Volume>(&key)?.ok_or_else(unbound)?;
    let holds = volume.body.spec.claim_ref.as_ref().and_then(|holder| holder.uid.as_ref());
    if holds != Some(&claim.meta.uid) || volume.body.spec.csi.is_none() {
        return Err(Failure::new(
            exit::DENIED,
            format!("{} names {key}, which is not bound to it or has no CSI driver", claim.key),
        )
        .into());
    }
    claimable(context, restore)?;
    Err(record(anchor, &volume, summary).into())
}
