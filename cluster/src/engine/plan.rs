//! The plan of an operation: a function of its anchor and of what was observed.
//!
//! ```text
//! running ──▶ work (backup, restore) ──▶ outcome saved ──▶ removal of what was made ──▶ ended
//! ```
//!
//! The outcome is in the anchor before anything is removed, so a run that begins again in the
//! middle of the removal goes on with that. Nothing else in the cluster is read as a decision.

use super::group::Ended;
use super::names::{self, Anchor, CANCEL, STATE};
use super::object::{Key, Kind};
use super::observed::{Object, Observed};
use super::parts::{Context, JOBS_MAX, save};
use super::quiesce::Cut;
use super::request::{Backup, Group, InPlace, Repository, Request, Restore};
use super::step::{Failure, LockState, Next, Outcome, Planned, Step, Stop, exit};
use super::views::{ConfigMap, Lease};
use super::{backup, bind, carried, group, in_place, kept, quiesce, restore, retained};
use serde_json::{Value, json};

/// The request that an anchor holds.
///
/// # Errors
///
/// An anchor that was written by another program.
pub fn request_of(anchor: &Object<ConfigMap>) -> Result<Request, Failure> {
    let unreadable = |why: String| {
        Failure::new(exit::USAGE, format!("{} holds no request: {why}", anchor.key)).hint(format!(
            "it may be of another version of kubectl-mover, or changed by hand: look at it by {}; delete it, then kubectl mover sweep --all-namespaces removes what it made",
            anchor.key.shown_by()
        ))
    };
    let text = anchor
        .body
        .data
        .get("request")
        .ok_or_else(|| unreadable("it has no member `request`".into()))?;
    Request::parse(text).map_err(|why| unreadable(why.to_string()))
}

/// How an anchor says that its operation has ended, if it has.
pub fn outcome_of(anchor: &Object<ConfigMap>) -> Option<Outcome> {
    serde_json::from_str(anchor.body.data.get("outcome")?).ok()
}

/// What a driver is to do. An anchor lies where others may write, so nothing is done because of its
/// text alone: that could make whoever drives it do anything that he has the right to.
#[derive(Debug, Clone, Copy)]
pub enum Mandate<'a> {
    /// This very request.
    Request(&'a Request),
    /// The removal of what has the anchor's uid, and nothing else.
    Removal,
}

/// What the operation of this anchor does next; its outcome when it has ended.
///
/// # Errors
///
/// What comes before that. A failure is one that the anchor cannot hold.
pub fn plan(anchor: &Anchor, mandate: Mandate<'_>, seen: &Observed) -> Planned<Outcome> {
    let found = seen.find::<ConfigMap>(&anchor.key)?;
    let Some(found) = found.filter(|found| found.meta.uid == anchor.uid) else {
        return Err(Failure::new(
            exit::RETRYABLE,
            format!("{} was deleted while its operation ran", anchor.key),
        )
        .hint("remove what it made: kubectl mover sweep --all-namespaces")
        .into());
    };
    let request = request_of(&found)?;
    allowed(anchor, mandate, &request, bind::is_handing_over(&found))?;
    let context = Context { seen, anchor, limits: request.limits() };
    if let Some(outcome) = outcome_of(&found).or_else(|| refused_outcome(anchor, seen)) {
        if seen.lock().is_some_and(|lock| lock.state == LockState::Held) {
            return Err(Stop::Next(Next::Resume(None)));
        }
        return finish(&context, mandate, &request, &found, outcome);
    }
    // Whoever may only remove begins no work, whatever stands there.
    let cancelled =
        found.meta.annotations.contains_key(CANCEL) || matches!(mandate, Mandate::Removal);
    let worked = seen.settle(match (&request, cancelled) {
        (Request::Restore(restore), _) if bind::is_handing_over(&found) => {
            bind::hand_over(&context, restore, &found).map(Ended::from)
        }
        (_, true) => Err(Failure::new(exit::CANCELLED, "cancelled").into()),
        (Request::Backup(backup), _) => backup::plan(&context, backup).map(Ended::from),
        (Request::Group(group), _) => group::plan(&context, group),
        (Request::Restore(restore), _) => restore::plan(&context, restore, &found).map(Ended::from),
    });
    let ends = !matches!(worked, Err(Stop::Next(_)));
    if ends && seen.lock().is_some_and(|lock| lock.state == LockState::Held) {
        return Err(Stop::Next(Next::Resume(None)));
    }
    let Ended { summary, failed } = match worked {
        Ok(ended) => ended,
        Err(Stop::Failure(failure)) => Ended { summary: Value::Null, failed: Some(failure) },
        Err(next) => return Err(next),
    };
    let outcome = match failed {
        None => Outcome {
            exit_code: 0,
            message: format!("{} of {} is complete", request.word(), subject(&request)),
            hint: None,
            summary,
            left: Vec::new(),
        },
        // Each object is watched by itself, so what is known of two may never have been true at once.
        Some(failure) if failure.exit_code != exit::CANCELLED && !seen.is_fresh() => {
            return Err(Stop::Next(Next::Refresh));
        }
        Some(failure) => {
            Outcome { summary, ..explain(&context, &request, &found, failure)?.into() }
        }
    };
    Err(save(&found, &outcome).into())
}

/// How the operation ends where its anchor cannot say so, as the API refuses that: what was made is
/// removed all the same.
fn refused_outcome(anchor: &Anchor, seen: &Observed) -> Option<Outcome> {
    let mut patches = seen.refused_changes(&anchor.key);
    patches.find_map(|patch| serde_json::from_str(patch["data"]["outcome"].as_str()?).ok())
}

fn allowed(
    anchor: &Anchor,
    mandate: Mandate<'_>,
    request: &Request,
    handing_over: bool,
) -> Result<(), Failure> {
    let here = anchor.namespace();
    // What was asked for in the Repository's namespace by whoever may use it for others.
    let by_others = |repository: &Repository| repository.namespace == here;
    let is_here = match request {
        Request::Backup(backup) => {
            backup.source.namespace == here
                || backup.given.is_some() && by_others(&backup.repository)
        }
        Request::Group(group) => {
            let mut members = group.members.iter();
            group.namespace == here && members.all(|member| member.source.namespace == here)
        }
        Request::Restore(restore) => {
            restore.namespace == here
                || restore.populate.is_some() && by_others(&restore.repository)
        }
    };
    let wrong = |what: String, hint: &str| Err(Failure::new(exit::DENIED, what).hint(hint));
    match mandate {
        Mandate::Request(wanted) if !wanted.is_same(request) => wrong(
            format!("{} was changed by somebody: it asks for something else now", anchor.key),
            &format!(
                "find out who may change ConfigMaps there; kubectl mover cancel {} -n {} ends it",
                anchor.key.name,
                anchor.namespace()
            ),
        ),
        _ if !is_here => wrong(
            format!("{} is about another namespace than its own", anchor.key),
            &format!(
                "mover makes no such operation: {} shows who made it; delete it",
                anchor.key.shown_by()
            ),
        ),
        Mandate::Removal if handing_over => wrong(
            format!("{} hands its volume over, which only its own command ends", anchor.key),
            "run that command again",
        ),
        _ => Ok(()),
    }
}

/// A failure, with how it leaves what was there before.
fn explain(
    context: &Context<'_>,
    request: &Request,
    found: &Object<ConfigMap>,
    failure: Failure,
) -> Planned<Failure> {
    match request {
        Request::Restore(restore) => match &restore.in_place {
            Some(place) => in_place::explain(context, restore, place, found, failure),
            None => Ok(failure),
        },
        Request::Backup(_) | Request::Group(_) => Ok(failure),
    }
}

fn subject(request: &Request) -> String {
    match request {
        Request::Backup(backup) => format!("pvc/{}", backup.source.name),
        Request::Group(group) => group.claims(),
        Request::Restore(restore) => format!("pvc/{}", restore.claim),
    }
}

/// Removes what the operation made, and says so in its anchor. What cannot be removed is named.
fn finish(
    context: &Context<'_>,
    mandate: Mandate<'_>,
    request: &Request,
    found: &Object<ConfigMap>,
    mut outcome: Outcome,
) -> Planned<Outcome> {
    // What could not be removed then may be gone by now, and is looked at again.
    outcome.left.clear();
    // Another driver may have ended it before this one knew, and this one have made something anew:
    // so the end is looked at again.
    let ended = found.meta.labels.get(STATE).map(String::as_str) == Some("ended");
    let steps = match request {
        Request::Backup(backup) => {
            let good = outcome.exit_code == 0 && matches!(mandate, Mandate::Request(_));
            after_backup(context, backup, good)
        }
        Request::Group(group) => {
            let good = outcome.exit_code == 0 && matches!(mandate, Mandate::Request(_));
            after_group(context, group, good)
        }
        Request::Restore(restore) => match &restore.in_place {
            Some(place) => after_in_place(context, restore, place, found, outcome.exit_code == 0),
            None => after_restore(context, restore, found, outcome.exit_code == 0),
        },
    };
    for step in steps {
        match context.seen.settle(step()) {
            Ok(()) => {}
            Err(Stop::Failure(why)) => outcome.left.push(why.message),
            Err(next) => return Err(next),
        }
    }
    if ended {
        return Ok(outcome);
    }
    let text = serde_json::to_string(&outcome).expect("an outcome has texts as keys");
    let patch =
        json!({ "metadata": { "labels": { STATE: "ended" } }, "data": { "outcome": text } });
    let step = Step::change(&found.key, &found.meta, patch);
    if let Some(why) = context.seen.refusal(&step) {
        let exit_code = if outcome.exit_code == 0 { why.exit_code } else { outcome.exit_code };
        let message =
            format!("{}; and its record does not say so: {}", outcome.message, why.message);
        return Err(Failure { exit_code, message, hint: why.hint.clone() }.into());
    }
    Err(step.into())
}

type Steps<'a> = Vec<Box<dyn Fn() -> Planned<()> + 'a>>;

fn after_backup<'a>(context: &'a Context<'_>, backup: &'a Backup, good: bool) -> Steps<'a> {
    let cut = || Cut::of_one(context.anchor, backup);
    let mut steps = after_jobs(context, context.anchor.clone(), backup);
    // nobody but its Jobs needs them
    steps.insert(1, Box::new(move || carried::remove(context, backup)));
    let stays = good && backup.stays();
    if stays {
        steps.push(Box::new(move || {
            retained::keep(context, backup, quiesce::attempt(context, &cut())?)
        }));
    }
    steps.push(Box::new(move || remove_snapshots(context, &cut(), stays)));
    let source = &backup.source;
    steps.push(Box::new(move || {
        let_go(context, &names::source_lease(&source.namespace, &source.uid))
    }));
    steps
}

fn after_group<'a>(context: &'a Context<'_>, group: &'a Group, good: bool) -> Steps<'a> {
    let cut = || Cut::of_group(context.anchor, group);
    let mut steps: Steps<'a> = Vec::new();
    for (anchor, member) in group::members(context.anchor, group) {
        steps.extend(after_jobs(context, anchor, member));
    }
    if let Some(first) = group.members.first() {
        steps.push(Box::new(move || carried::remove(context, first)));
    }
    let stays = good && group.stays();
    if stays {
        steps.push(Box::new(move || group::keep(context, group)));
    }
    steps.push(Box::new(move || remove_snapshots(context, &cut(), stays)));
    for member in &group.members {
        let source = &member.source;
        steps.push(Box::new(move || {
            let_go(context, &names::source_lease(&source.namespace, &source.uid))
        }));
    }
    steps
}

/// What reads the snapshot of a claim, and stands on it.
fn after_jobs<'a>(context: &'a Context<'_>, anchor: Anchor, backup: &'a Backup) -> Steps<'a> {
    let namespace = backup.repository.namespace.as_str();
    let volume = anchor.volume(namespace);
    let (handed, content) = (anchor.handed_snapshot(namespace), anchor.handed_content());
    let mut steps: Steps<'a> = vec![
        Box::new(move || remove_jobs(&Context { anchor: &anchor, ..*context }, namespace)),
        Box::new(move || context.remove_volume(&volume)),
    ];
    if namespace != backup.source.namespace {
        steps.push(Box::new(move || context.remove(&handed)));
        steps.push(Box::new(move || context.remove(&content)));
    }
    steps
}

/// All snapshots of an operation, but for those that stay.
fn remove_snapshots(context: &Context<'_>, cut: &Cut<'_>, stays: bool) -> Planned<()> {
    let kept = match stays {
        true => Some(quiesce::attempt(context, cut)?),
        false => None,
    };
    (1..=cut.attempts())
        .filter(|attempt| Some(*attempt) != kept)
        .try_for_each(|attempt| cut.remove(context, attempt))
}

fn after_restore<'a>(
    context: &'a Context<'_>,
    restore: &'a Restore,
    found: &'a Object<ConfigMap>,
    good: bool,
) -> Steps<'a> {
    let namespace = restore.repository.namespace.as_str();
    let mut steps: Steps<'a> = vec![Box::new(move || remove_jobs(context, namespace))];
    if !good {
        steps.push(Box::new(move || bind::park(context, restore, found)));
    }
    // Once the volume is being handed over it is the restored data, and nothing removes it.
    steps.push(Box::new(move || {
        let volume = context.anchor.volume(namespace);
        match bind::holds_restored_data(context, namespace, found)? {
            // The volume stays without its claim.
            true if restore.populate.is_some() => context.remove(&volume),
            true => Ok(()),
            false => context.remove_volume(&volume),
        }
    }));
    steps.push(Box::new(move || kept::remove(context, restore)));
    steps.push(Box::new(move || {
        let_go(context, &names::target_lease(&restore.namespace, &restore.claim))
    }));
    steps
}

fn after_in_place<'a>(
    context: &'a Context<'_>,
    restore: &'a Restore,
    place: &'a InPlace,
    found: &'a Object<ConfigMap>,
    good: bool,
) -> Steps<'a> {
    let mut steps: Steps<'a> = vec![
        Box::new(move || remove_jobs(context, &restore.repository.namespace)),
        Box::new(move || in_place::remove_block(context, restore)),
    ];
    if !good {
        steps.push(Box::new(move || in_place::give_back(context, restore, place, found)));
    }
    steps.push(Box::new(move || match in_place::backups_lease(context, restore, place)? {
        Some(lease) => let_go(context, &lease),
        None => Ok(()),
    }));
    steps.push(Box::new(move || {
        let_go(context, &names::target_lease(&restore.namespace, &restore.claim))
    }));
    steps
}

/// All Jobs of the operation, with their pods.
pub(super) fn remove_jobs(context: &Context<'_>, namespace: &str) -> Planned<()> {
    for number in 1..=JOBS_MAX {
        // Its pods go first: the deletion is one in the foreground.
        context.remove(&context.anchor.job(namespace, number))?;
    }
    Ok(())
}

fn let_go(context: &Context<'_>, key: &Key) -> Planned<()> {
    let Some(lease) = context.seen.find::<Lease>(key)? else { return Ok(()) };
    if lease.body.spec.holder_identity.as_deref() != Some(&context.anchor.uid) {
        return Ok(());
    }
    // Whoever takes it over keeps its uid.
    let (uid, version) = (lease.meta.uid, lease.meta.resource_version);
    Err(Step::DeleteVersion { key: key.clone(), uid, version }.into())
}

/// A new anchor: a ConfigMap whose uid the API gives.
pub fn anchor(name: &str, namespace: &str, source_uid: &str, request: &Request) -> Value {
    let key = Key::new(Kind::ConfigMap, namespace, name);
    let metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": {
            "app.kubernetes.io/managed-by": names::MANAGER,
            names::ROLE: request.word(),
            names::STATE: "running",
            names::SOURCE: source_uid,
        },
    });
    names::object(&key, metadata, json!({ "data": { "request": request.text() } }))
}
