//! `kubectl mover restore`.

use super::super::args;
use super::super::output::Output;
use super::volumes::{Done, report, run, seconds, size};
use super::{claim, limits, objects, turn, waits};
use crate::api::Api;
use crate::drive::Times;
use crate::engine::{
    COMPLETED, Detached, Failure, Mandate, Observed, Outcome, Repository, Request,
};
use crate::ops::objects::is_object;
use crate::ops::{in_place, operation, repository, restore as restores};
use serde_json::{Value, json};
use std::time::Instant;

pub(super) async fn restore(
    api: &Api,
    namespace: &str,
    given: &args::Restore,
    output: &Output,
) -> Result<u8, Failure> {
    let target = claim(&given.to)?;
    let place = repository::find(api, given.repository.as_deref(), namespace).await?;
    if is_object(api, &place).await? {
        return Box::pin(restore_by_object(api, (namespace, target), &place, given, output)).await;
    }
    Box::pin(restore_here(api, (namespace, target), &place, given, output)).await
}

async fn restore_by_object(
    api: &Api,
    (namespace, target): (&str, &str),
    place: &Repository,
    given: &args::Restore,
    output: &Output,
) -> Result<u8, Failure> {
    let begun = Instant::now();
    let made = objects::restore(api, (namespace, target), place, given, output).await?;
    let outcome = match made {
        objects::Followed::Ended(outcome) => outcome,
        objects::Followed::Made(what) => return objects::made(&what, output),
    };
    let text = said(target, namespace, &outcome.summary);
    let seconds = json!({ "total": begun.elapsed().as_secs_f64() });
    report(&Done { text, outcome, seconds }, output)
}

/// By this command itself.
async fn restore_here(
    api: &Api,
    (namespace, target): (&str, &str),
    place: &Repository,
    given: &args::Restore,
    output: &Output,
) -> Result<u8, Failure> {
    waits(given.wait)?;
    let options = restores::RestoreOptions {
        storage_class: given.storage_class.clone(),
        size: given.size.clone(),
        block: given.block,
        filesystem: given.filesystem.clone(),
        in_place: given.in_place,
        differential: given.differential,
        prefer_snapshot: given.prefer_snapshot,
        before: None,
        guard: None,
        detached: match given.assume_detached {
            true => Detached::Assumed,
            false => Detached::Seen,
        },
        limits: limits(given.limits),
    };
    let source = restores::source_of(target);
    let tell = |wait: &_| output.waiting(wait);
    let to = (namespace, target);
    if let Some((anchor, stored)) = operation::handing_over(api, namespace, &source).await? {
        let asked = (given.backup.as_str(), given.in_place);
        restores::goes_on(&stored, &anchor.key.name, asked, place, to)?;
        output.say(&format!("going on with {}: its data is proved", anchor.key));
        let begun = Instant::now();
        let request = Request::Restore(Box::new(stored));
        let mandate = Mandate::Request(&request);
        let done = operation::drive(api, &anchor, mandate, Observed::default(), tell).await?;
        return restored(to, done, begun, output);
    }
    let request = restores::request(api, &given.backup, place, to, &options, tell).await?;
    if given.in_place {
        in_place::allowed(api, &request).await?;
    }
    let request = Request::Restore(Box::new(request));
    if let Some(kept) = request.snapshot() {
        output.say(&format!("the volume is to begin as volumesnapshot/{}", kept.name));
    }
    let begun = Instant::now();
    // The backup is the one that was asked for, whatever comes meanwhile.
    let mut turn = turn(given.limits);
    Box::pin(operation::free(api, namespace, &source, &request, &mut turn, tell)).await?;
    let done = run(api, (namespace, target, turn), &source, (&request, None), output).await?;
    restored(to, done, begun, output)
}

fn restored(
    (namespace, target): (&str, &str),
    (outcome, times): (Outcome, Times),
    begun: Instant,
    output: &Output,
) -> Result<u8, Failure> {
    let text = said(target, namespace, &outcome.summary);
    report(&Done { text, outcome, seconds: seconds(begun, times) }, output)
}

/// What is said of a restore that ended well.
fn said(target: &str, namespace: &str, summary: &Value) -> String {
    let claim = format!("pvc/{target} in namespace {namespace}");
    let name = |member: &str| summary[member].as_str().unwrap_or_default().to_owned();
    let (backup, volume) = (name("backup_id"), name("volume"));
    match summary[COMPLETED].is_null() {
        true => {
            let data = size(&summary["data_bytes"]);
            let moved = match &summary["same_data_bytes"] {
                Value::Null => format!("{data} of data"),
                same => format!("{data} of data written, {} there already", size(same)),
            };
            let from = match summary["from_bucket"].as_str() {
                Some(why) => format!("\nall came from the bucket: {why}"),
                None => String::new(),
            };
            format!(
                "{claim} is restored and proved\nbackup {backup} of {volume}, {moved}, all read back{from}"
            )
        }
        false => format!(
            "{claim} has the data of an earlier restore, which is complete now: nothing was \
             written\nbackup {backup} of {volume}; to restore it once more, run the same command again"
        ),
    }
}
