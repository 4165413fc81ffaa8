//! A claim that names a VolumeRestore in `dataSourceRef`: one operation for it. Our mark holds the
//! claim until that has ended, so that nothing of it is left in another namespace.

use super::attempts::{self, News, Subject};
use super::backups::limits_of;
use super::restores::{self, asked, message};
use super::task::{Pause, Task};
use super::{Context, events, marks};
use crate::engine::{Failure, Key, Kind, Meta, POPULATE, Request, exit};
use crate::kinds::{VolumeMode, VolumeRestore};
use crate::ops::populate::{self as ops, Waiting};
use crate::ops::restore::RestoreOptions;
use serde_json::Value;
use std::cell::RefCell;
use std::time::Duration;

/// One that does not exist yet is looked for again so often.
const AGAIN: Duration = Duration::from_secs(15);

/// The next thing that a claim asks for.
pub(super) async fn work(context: &Context, task: &Task) -> Result<Pause, Failure> {
    let Some(object) = task.object() else { return Ok(Pause::Changed) };
    let meta = Meta::of(&object);
    let namespace = meta.namespace.clone().unwrap_or_default();
    let name = object["spec"]["dataSourceRef"]["name"].as_str().unwrap_or_default();
    let key = Key::new(Kind::VolumeRestore, &namespace, name);
    let restore: Option<VolumeRestore> = context
        .objects
        .get(&key)
        .map(|found| serde_json::from_value((*found).clone()))
        .transpose()
        .map_err(|why| Failure::new(exit::USAGE, format!("{key}: {why}")))?;
    let spec = restore.map(|restore| restore.spec).unwrap_or_default();
    let subject = restores::subject(task, &spec);
    let is_bound = object["status"]["phase"] == "Bound";
    let is_running = attempts::is_running(context, &subject);
    if !is_running && (meta.deletion_timestamp.is_some() || is_bound) {
        marks::take_off(context, task, POPULATE).await?;
        return Ok(Pause::Changed);
    }
    if let Some(ended) = attempts::ended(context, &subject) {
        if ended.outcome.exit_code != 0 {
            events::tell(context, task, true, "PopulateFailed", &message(&ended)).await;
        }
        marks::take_off(context, task, POPULATE).await?;
        return Ok(Pause::Changed);
    }
    // What runs goes on, whatever became of the restore since: its record says all that it needs.
    if !is_running && let Some(why) = cannot(&object, &key, context.objects.get(&key).as_deref()) {
        events::tell(context, task, true, "PopulateWaits", &why.to_string()).await;
        return Ok(Pause::Within(AGAIN));
    }
    if meta.deletion_timestamp.is_none() {
        marks::put(context, task, POPULATE).await?;
    }
    Box::pin(populate(context, &subject, &spec, &namespace)).await?;
    Ok(Pause::Within(Duration::ZERO))
}

/// Why a claim is not populated now.
fn cannot(claim: &Value, key: &Key, restore: Option<&Value>) -> Option<Failure> {
    let source = &claim["spec"]["dataSourceRef"];
    let elsewhere = source["namespace"].as_str().filter(|of| Some(*of) != key.namespace.as_deref());
    if let Some(of) = elsewhere {
        let what = format!("a restore of another namespace ({of}) populates no claim");
        return Some(Failure::new(exit::USAGE, what).hint("make the VolumeRestore in this one"));
    }
    match restore {
        None => Some(Failure::new(exit::USAGE, format!("there is no {key}"))),
        Some(found) if found["spec"]["target"].is_object() => Some(
            Failure::new(exit::USAGE, format!("{key} has a target of its own"))
                .hint("make another VolumeRestore, without `target`"),
        ),
        Some(_) => None,
    }
}

/// On a claim: which member of a group's backup it gets, where that has another name than the claim.
const MEMBER: &str = "mover.dev/member";

/// The member of a group that a claim gets.
fn member(task: &super::task::Task) -> String {
    let named = task.object().and_then(|claim| Meta::of(&claim).annotations.remove(MEMBER));
    named.unwrap_or_else(|| task.key.name.clone())
}

async fn populate(
    context: &Context,
    subject: &Subject<'_>,
    spec: &crate::kinds::VolumeRestoreSpec,
    namespace: &str,
) -> Result<(), Failure> {
    let task = subject.task;
    let make = async || {
        let asked = asked(context, &spec.source, namespace, &member(task))?;
        let object = task
            .object()
            .ok_or_else(|| Failure::new(exit::CANCELLED, format!("{} was deleted", task.key)))?;
        let claim = Waiting {
            namespace,
            name: &task.key.name,
            uid: &task.uid,
            object: &object,
            for_consumer: spec.wait_for_consumer.unwrap_or(true),
            may_be_larger: false,
        };
        let options = RestoreOptions {
            before: asked.before.clone(),
            guard: Some(restores::guard(context, &asked, namespace).await?),
            block: spec.mode == Some(VolumeMode::Block),
            filesystem: spec.filesystem.clone(),
            prefer_snapshot: spec.prefer_snapshot,
            limits: super::backups::deadlines(spec.deadlines.as_ref()),
            ..RestoreOptions::default()
        };
        let request =
            ops::request(&context.api, &asked.backup, &asked.place, &claim, &options).await?;
        Ok(Request::Restore(Box::new(request)))
    };
    let limits = |request: &Request| {
        let of = asked(context, &spec.source, namespace, &member(task)).ok();
        limits_of(of.and_then(|of| of.repository.spec.concurrency).as_ref(), request)
    };
    // Told once each: a claim has no status of ours.
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let told = RefCell::new(0);
    let report = |report: News<'_>| match report {
        News::Waits(why) if *told.borrow() == 0 => drop(sender.send((false, why.to_owned()))),
        News::Waits(_) => {}
        News::Runs { attempt, record, .. } => {
            if told.replace(attempt) != attempt {
                drop(sender.send((true, format!("{record} writes and proves its volume"))));
            }
        }
    };
    let tell = async {
        while let Some((runs, text)) = receiver.recv().await {
            let reason = if runs { "Populating" } else { "PopulateWaits" };
            events::tell(context, task, false, reason, &text).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = attempts::operate(context, subject, make, limits, &report) => drop(ended?),
        () = tell => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
