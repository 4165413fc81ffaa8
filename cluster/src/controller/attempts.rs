//! Attempts at one object's operation: records of the engine, begun, gone on with, and tried again.
//!
//! The records tell what was done, never the object's status. A record's name follows from the uid
//! of its object and the number of the attempt, so two controllers make one record. Both may drive
//! it: the engine bears two drivers. A record without our seal is followed by nobody here.

mod looked_up;
mod subject;
#[cfg(test)]
mod tests;

use super::Context;
use super::task::Why;
use super::turns::{Limited, Turn};
use crate::api::ApiError;
use crate::drive::Driver;
use crate::engine::{
    self, Anchor, ConfigMap, FOR, Failure, Key, Kind, Mandate, Meta, Object, Observed, Outcome,
    Progress, Request, SEAL, STATE, Wait, exit,
};
use crate::ops::operation::{self, random_text};
use looked_up::taken_up;
use serde_json::{Value, json};
use std::time::Duration;
pub(crate) use subject::Subject;

/// Failures that may pass are tried again so often unless the object says otherwise.
pub(crate) const RETRIES: u32 = 2;
/// The usual patience.
pub(crate) const PREFLIGHT: Duration = Duration::from_secs(300);
const AGAIN_FIRST: Duration = Duration::from_secs(5);
const AGAIN_MOST: Duration = Duration::from_secs(60);
const DRIVER_CHARS: usize = 20;

/// What is told while an operation goes on.
#[derive(Debug)]
pub(crate) enum News<'a> {
    /// Something comes first.
    Waits(&'a str),
    /// This attempt is under way, by this record.
    Runs { attempt: u32, record: &'a str, request: &'a Request, progress: &'a Progress },
}

/// How an operation ended.
#[derive(Debug)]
pub(crate) struct Attempted {
    /// How.
    pub(crate) outcome: Outcome,
    /// Number of the last attempt.
    pub(crate) attempt: u32,
    /// Name of its record.
    pub(crate) record: String,
    /// Uid of its record, which is the id of its backup.
    pub(crate) uid: String,
    /// Its request, if one was made and the seal on it is ours.
    pub(crate) request: Option<Request>,
    /// Why the controller ended it, if it did.
    pub(crate) why: Option<Why>,
}

struct Record {
    attempt: u32,
    object: Object<ConfigMap>,
}

impl Record {
    fn is_running(&self) -> bool {
        self.object.meta.labels.get(STATE).map(String::as_str) != Some("ended")
    }
}

/// The records of an object, oldest first. Others that claim to be are left out.
fn records(context: &Context, subject: &Subject<'_>) -> Vec<Record> {
    let prefix = prefix(subject);
    let one = |raw: &Value| {
        let meta = Meta::of(raw);
        let attempt = meta.name.strip_prefix(&prefix)?.parse().ok()?;
        if meta.namespace != subject.task.key.namespace {
            return None;
        }
        let key = Key {
            kind: Kind::ConfigMap,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        };
        let body = serde_json::from_value(raw.clone()).ok()?;
        Some(Record { attempt, object: Object { key, meta, body } })
    };
    let mut all: Vec<Record> =
        context.objects.records(&subject.task.uid).iter().filter_map(|raw| one(raw)).collect();
    all.sort_by_key(|record| record.attempt);
    all
}

/// Whether an earlier attempt began as a snapshot.
fn began_as_snapshot(context: &Context, subject: &Subject<'_>) -> bool {
    let is_one = |record: &Record| {
        engine::request_of(&record.object).is_ok_and(|request| request.snapshot().is_some())
    };
    records(context, subject).iter().any(is_one)
}

fn prefix(subject: &Subject<'_>) -> String {
    format!("mover-{}-{}-", subject.word, subject.task.uid)
}

/// Whether an operation of this object has not ended, so that its end has to be waited for.
pub(crate) fn is_running(context: &Context, subject: &Subject<'_>) -> bool {
    records(context, subject).iter().any(Record::is_running)
}

/// Whether anything was begun or noted for this object.
pub(crate) fn has_record(context: &Context, subject: &Subject<'_>) -> bool {
    !records(context, subject).is_empty()
}

/// Notes that all is done which comes only once.
///
/// # Errors
///
/// The API's.
pub(crate) async fn note(
    context: &Context,
    subject: &Subject<'_>,
    message: &str,
) -> Result<(), Failure> {
    let outcome = Outcome {
        exit_code: 0,
        message: message.to_owned(),
        hint: None,
        summary: Value::Null,
        left: Vec::new(),
    };
    over(context, subject, 1, &outcome, None).await
}

/// How the operation ended, if it has: no attempt follows.
pub(crate) fn ended(context: &Context, subject: &Subject<'_>) -> Option<Attempted> {
    let last = records(context, subject).pop().filter(|record| !record.is_running())?;
    let ended = ended_by(context, subject, &last)?;
    is_last(&ended, subject).then_some(ended)
}

fn ended_by(context: &Context, subject: &Subject<'_>, record: &Record) -> Option<Attempted> {
    let outcome = engine::outcome_of(&record.object)?;
    let why = record.object.meta.annotations.get(engine::CANCEL).and_then(|text| Why::read(text));
    Some(Attempted {
        outcome,
        attempt: record.attempt,
        record: record.object.key.name.clone(),
        uid: record.object.meta.uid.clone(),
        request: sealed(context, subject, record).ok(),
        why,
    })
}

fn is_last(ended: &Attempted, subject: &Subject<'_>) -> bool {
    ended.outcome.exit_code != exit::RETRYABLE || ended.attempt > subject.retries
}

/// Drives an object's operation to its end, with as many attempts as it has. `make` looks the
/// request up; what it finds missing may come for a while.
///
/// # Errors
///
/// Nothing has ended: it is tried again later.
pub(crate) async fn operate(
    context: &Context,
    subject: &Subject<'_>,
    make: impl AsyncFn() -> Result<Request, Failure>,
    limits: impl Fn(&Request) -> Vec<Limited>,
    report: &dyn Fn(News<'_>),
) -> Result<Attempted, Failure> {
    let left;
    let subject = match records(context, subject).is_empty() {
        true => subject,
        false => {
            left = subject.going_on(context);
            &left
        }
    };
    loop {
        let last = records(context, subject).pop();
        if let Some(record) = &last
            && record.is_running()
        {
            let request = match sealed(context, subject, record) {
                Ok(request) => request,
                Err(_) if subject.task.is_going() => {
                    return removed(context, subject, record).await;
                }
                // Whoever asked for the end waits for it, whatever became of the record.
                Err(_) if subject.task.is_cancelled() => {
                    let ended = removed(context, subject, record).await?;
                    return Ok(Attempted { why: Some(Why::Cancelled), ..ended });
                }
                Err(why) => return Err(why),
            };
            let turn = context.turns.force((&subject.task.key, limits(&request)));
            let begun = Begun {
                attempt: record.attempt,
                key: record.object.key.clone(),
                uid: record.object.meta.uid.clone(),
                request,
                seen: Observed::default(),
            };
            Box::pin(drive(context, subject, begun, turn, report)).await?;
            continue;
        }
        let ended = last.as_ref().and_then(|last| ended_by(context, subject, last));
        if let Some(ended) = ended {
            if is_last(&ended, subject) {
                return Ok(ended);
            }
            report(News::Waits(&format!(
                "attempt {} failed and is made again: {}",
                ended.attempt, ended.outcome.message
            )));
            let pause = AGAIN_FIRST * (1 << ended.attempt.min(5));
            if let Some(why) = subject.ends_within(pause).await {
                return Ok(Attempted { why: Some(why), ..ended });
            }
        }
        let attempt = last.map_or(0, |record| record.attempt) + 1;
        // What went wrong may be the storage's snapshot.
        let make = async || match began_as_snapshot(context, subject) {
            true => Ok(make().await?.without_snapshot("an attempt that began as it failed")),
            false => make().await,
        };
        let Some((begun, turn)) = begin(context, subject, attempt, &make, &limits, report).await?
        else {
            // Its record is there now, whoever made it.
            continue;
        };
        Box::pin(drive(context, subject, begun, turn, report)).await?;
    }
}

/// Removes what a record made that is not ours any more: what has its uid, and nothing else.
async fn removed(
    context: &Context,
    subject: &Subject<'_>,
    record: &Record,
) -> Result<Attempted, Failure> {
    let anchor = Anchor::new(record.object.key.clone(), record.object.meta.uid.clone());
    let seen = Observed::default();
    let removal = operation::drive(&context.api, &anchor, Mandate::Removal, seen, |_| {}).await;
    let outcome = match removal {
        Ok((outcome, _)) => outcome,
        // What nobody can read is left to `sweep`, and holds up no deletion.
        Err(why) => {
            tracing::warn!("{}: {why}; kubectl mover sweep removes what it made", subject.task.key);
            why.into()
        }
    };
    Ok(Attempted {
        outcome,
        attempt: record.attempt,
        record: record.object.key.name.clone(),
        uid: record.object.meta.uid.clone(),
        request: None,
        why: Some(Why::Deleted),
    })
}

/// The request of a record, if it is ours.
fn sealed(context: &Context, subject: &Subject<'_>, record: &Record) -> Result<Request, Failure> {
    if context.seal.holds(&record.object, &subject.task.uid) {
        return engine::request_of(&record.object);
    }
    let key = &record.object.key;
    Err(Failure::new(
        exit::INTEGRITY,
        format!("{key} has no seal of this controller: somebody changed or made it"),
    )
    .hint(format!(
        "find out who may change ConfigMaps there; kubectl mover cancel {} -n {} removes what it made, then delete it",
        key.name,
        key.namespace.as_deref().unwrap_or_default()
    )))
}

/// An attempt that has a record.
struct Begun {
    attempt: u32,
    key: Key,
    uid: String,
    request: Request,
    seen: Observed,
}

/// Makes the record of an attempt once its turn has come; none where it ended before it began.
async fn begin(
    context: &Context,
    subject: &Subject<'_>,
    attempt: u32,
    make: &impl AsyncFn() -> Result<Request, Failure>,
    limits: &impl Fn(&Request) -> Vec<Limited>,
    report: &dyn Fn(News<'_>),
) -> Result<Option<(Begun, Turn)>, Failure> {
    let (request, turn) = match taken_up(subject, context, make, limits, report).await {
        Ok(both) => both,
        Err((failure, why)) => return failed(context, subject, attempt, failure, why).await,
    };
    let name = format!("{}{attempt}", prefix(subject));
    let namespace = subject.task.key.namespace.as_deref().unwrap_or_default();
    let source = operation::source_of(&request);
    let mut object = engine::anchor(&name, namespace, &source, &request);
    let key = Key::new(Kind::ConfigMap, namespace, &name);
    let seal = context.seal.of(&key, &subject.task.uid, &request.text());
    mark(&mut object, subject, Some(seal));
    let Some(made) = create(context, object).await? else { return Ok(None) };
    let uid = Meta::of(&made).uid;
    let anchor = Anchor::new(key.clone(), uid.clone());
    let mut seen = Observed::default();
    seen.set_object(key.clone(), Some(made));
    operation::nothing_made(&mut seen, &anchor, &request);
    Ok(Some((Begun { attempt, key, uid, request, seen }, turn)))
}

/// Whose record it is.
fn mark(object: &mut Value, subject: &Subject<'_>, seal: Option<String>) {
    let metadata = &mut object["metadata"];
    metadata["labels"][FOR] = subject.task.uid.clone().into();
    if let Some(seal) = seal {
        metadata["annotations"] = json!({ SEAL: seal });
    }
    metadata["ownerReferences"] = json!([subject.task.reference()]);
}

/// Makes a record, which may be there already; none where somebody else made it.
async fn create(context: &Context, object: Value) -> Result<Option<Value>, Failure> {
    let key = engine::key_of(&object);
    match context.api.create(&object).await {
        Ok(made) => {
            context.objects.wrote(made.clone());
            Ok(Some(made))
        }
        Err(ApiError::Conflict(why)) => {
            let found = context.api.get(&key).await?.ok_or(why)?;
            let of = Meta::of(&found).labels.get(FOR).cloned();
            if of.as_deref() != object["metadata"]["labels"][FOR].as_str() {
                return Err(Failure::new(exit::USAGE, format!("{key} exists and is not ours"))
                    .hint(format!("{} shows where it comes from; delete it", key.shown_by())));
            }
            context.objects.wrote(found);
            Ok(None)
        }
        Err(why) => Err(why.into()),
    }
}

/// An attempt that ended before it began has a record of that, so nobody makes it once more.
async fn failed<T>(
    context: &Context,
    subject: &Subject<'_>,
    attempt: u32,
    failure: Failure,
    why: Option<Why>,
) -> Result<Option<T>, Failure> {
    over(context, subject, attempt, &Outcome::from(failure), why).await?;
    Ok(None)
}

/// A record of what has ended already.
async fn over(
    context: &Context,
    subject: &Subject<'_>,
    attempt: u32,
    outcome: &Outcome,
    why: Option<Why>,
) -> Result<(), Failure> {
    let name = format!("{}{attempt}", prefix(subject));
    let namespace = subject.task.key.namespace.as_deref().unwrap_or_default();
    let key = Key::new(Kind::ConfigMap, namespace, &name);
    let outcome = serde_json::to_string(outcome).expect("its keys are texts");
    let metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": {
            "app.kubernetes.io/managed-by": engine::MANAGER,
            engine::ROLE: subject.word,
            STATE: "ended",
        },
    });
    let mut object = engine::object(&key, metadata, json!({ "data": { "outcome": outcome } }));
    mark(&mut object, subject, None);
    if let Some(why) = why {
        object["metadata"]["annotations"] = json!({ engine::CANCEL: why.text() });
    }
    create(context, object).await?;
    Ok(())
}

/// Drives an attempt to its end. Its object's deletion, and its deadline, cancel it.
async fn drive(
    context: &Context,
    subject: &Subject<'_>,
    begun: Begun,
    turn: Turn,
    report: &dyn Fn(News<'_>),
) -> Result<(), Failure> {
    let Begun { attempt, key, uid, request, seen } = begun;
    let anchor = Anchor::new(key, uid);
    let mandate = Mandate::Request(&request);
    let mut driver = Driver::new(&context.api, seen.named(random_text(DRIVER_CHARS)?));
    let said = std::cell::RefCell::new(Progress::default());
    let tell = |wait: &Wait| {
        report(News::Waits(&wait.why));
        said.borrow_mut().learn(Progress { bytes: wait.moved, ..Progress::default() });
        let progress = said.borrow();
        let record = &anchor.key.name;
        report(News::Runs { attempt, record, request: &request, progress: &progress });
    };
    let plan = |seen: &Observed| {
        let progress = engine::progress(&anchor, &request, seen);
        said.borrow_mut().learn(progress);
        engine::plan(&anchor, mandate, seen)
    };
    let driven = driver.run(plan, Some(anchor.key.clone().into()), tell);
    tokio::pin!(driven);
    let outcome = tokio::select! {
        outcome = &mut driven => outcome,
        why = subject.ended() => {
            cancel(context, &anchor, why).await?;
            driven.await
        }
    };
    let progress = said.borrow().clone();
    report(News::Runs {
        attempt,
        record: &anchor.key.name,
        request: &request,
        progress: &progress,
    });
    drop(turn);
    outcome?;
    // The watch may be behind; the record is read once more, so that its end is known here.
    if let Some(found) = context.api.get(&anchor.key).await? {
        context.objects.wrote(found);
    }
    Ok(())
}

async fn cancel(context: &Context, anchor: &Anchor, why: Why) -> Result<(), Failure> {
    let patch = json!({ "metadata": { "annotations": { engine::CANCEL: why.text() } } });
    match context.api.patch(&anchor.key, (&anchor.uid, None), &patch).await {
        Ok(_) | Err(ApiError::Absent(_)) => Ok(()),
        Err(why) => Err(why.into()),
    }
}
