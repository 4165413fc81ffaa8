//! Operations by their anchors: begun, gone on with, and ended.

use crate::api::{Api, ApiError};
use crate::drive::{Driver, Times};
use crate::engine::{
    self, Anchor, ConfigMap, FOR, Failure, Key, Kind, MANAGER, Mandate, Meta, Object, Observed,
    Outcome, ROLE, Request, Restore, SOURCE, STATE, Selection, Wait, exit,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Anchors of ended operations that stay for each claim, to be looked at.
const HISTORY: usize = 3;
const RANDOM_CHARS: usize = 5;
/// Of the name of a driver, which no other has.
const DRIVER_CHARS: usize = 20;

/// Text at random, for names that must not be guessed twice.
///
/// # Errors
///
/// The system gives no random bytes.
pub fn random_text(chars: usize) -> Result<String, Failure> {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut bytes = vec![0; chars];
    getrandom::fill(&mut bytes)
        .map_err(|why| Failure::new(exit::RETRYABLE, format!("get random bytes: {why}")))?;
    Ok(bytes.iter().map(|byte| LETTERS[usize::from(*byte) % LETTERS.len()] as char).collect())
}

/// An anchor of the cluster.
#[derive(Debug)]
pub struct Operation {
    /// Names it.
    pub anchor: Anchor,
    /// As it stands.
    pub found: Object<ConfigMap>,
}

impl Operation {
    fn of(found: Object<ConfigMap>) -> Self {
        let anchor = Anchor::new(found.key.clone(), found.meta.uid.clone());
        Self { anchor, found }
    }

    /// Whether it has not ended.
    pub fn is_running(&self) -> bool {
        self.found.meta.labels.get(STATE).map(String::as_str) != Some("ended")
    }
}

/// The operations of a role, of one claim or of all.
///
/// # Errors
///
/// See [`ApiError`].
pub async fn list(
    api: &Api,
    namespace: Option<&str>,
    labels: &str,
) -> Result<Vec<Operation>, Failure> {
    let mut selector = format!("app.kubernetes.io/managed-by={MANAGER},{STATE}");
    if !labels.is_empty() {
        selector = format!("{selector},{labels}");
    }
    let selection = Selection {
        namespace: namespace.map(str::to_owned),
        labels: selector,
        ..Selection::all(Kind::ConfigMap)
    };
    let (found, _) = api.list(&selection).await?;
    let object = |raw: &Value| {
        let meta = Meta::of(raw);
        let key = Key {
            kind: Kind::ConfigMap,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        };
        serde_json::from_value(raw.clone()).ok().map(|body| Object { key, meta, body })
    };
    let mut all: Vec<Operation> = found.iter().filter_map(object).map(Operation::of).collect();
    all.sort_by_key(|operation| operation.found.meta.creation_timestamp.clone());
    Ok(all)
}

/// One operation by the name of its anchor.
///
/// # Errors
///
/// There is none of that name.
pub async fn find(api: &Api, namespace: &str, name: &str) -> Result<Operation, Failure> {
    let key = Key::new(Kind::ConfigMap, namespace, name);
    let mut seen = Observed::default();
    api.read(&key.clone().into(), &mut seen).await?;
    let found = match seen.find::<ConfigMap>(&key) {
        Ok(found) => found,
        Err(engine::Stop::Failure(why)) => return Err(why),
        Err(engine::Stop::Next(_)) => None,
    };
    let found = found.filter(|found| found.meta.labels.contains_key(STATE));
    found.map(Operation::of).ok_or_else(|| {
        Failure::new(exit::USAGE, format!("no operation {name} in namespace {namespace}"))
            .hint(format!("kubectl mover operations -n {namespace} lists them"))
    })
}

/// The restore to a claim that hands its volume over, if there is one: only its own command ends it,
/// so it is gone on with before anything is looked up, which may be another backup by now.
///
/// # Errors
///
/// Its record cannot be read.
pub async fn handing_over(
    api: &Api,
    namespace: &str,
    source: &str,
) -> Result<Option<(Anchor, Restore)>, Failure> {
    let labels = format!("{SOURCE}={source},{ROLE}=restore");
    for operation in list(api, Some(namespace), &labels).await? {
        if operation.is_running()
            && engine::is_handing_over(&operation.found)
            && let Request::Restore(restore) = engine::request_of(&operation.found)?
        {
            return Ok(Some((operation.anchor, *restore)));
        }
    }
    Ok(None)
}

/// What a claim has of the operations of a role, and what a request is to them.
struct Known {
    ended: Vec<Operation>,
    /// The same as is asked for.
    same: Option<Operation>,
    /// Another one, the oldest.
    other: Option<Operation>,
}

async fn known(
    api: &Api,
    namespace: &str,
    source_uid: &str,
    request: &Request,
) -> Result<Known, Failure> {
    let labels = format!("{SOURCE}={source_uid},{ROLE}={}", request.word());
    let all = list(api, Some(namespace), &labels).await?;
    let (running, ended): (Vec<_>, Vec<_>) = all.into_iter().partition(Operation::is_running);
    let is_same =
        |of: &Operation| engine::request_of(&of.found).is_ok_and(|other| other.is_same(request));
    let (same, other): (Vec<_>, Vec<_>) = running.into_iter().partition(is_same);
    Ok(Known { ended, same: same.into_iter().next(), other: other.into_iter().next() })
}

fn otherwise(of: &Anchor) -> Failure {
    let (name, namespace) = (&of.key.name, of.namespace());
    Failure::new(
        exit::RETRYABLE,
        format!("{name} in namespace {namespace} has not ended, and was asked for otherwise"),
    )
    .hint(format!(
        "go on with it by the command that began it, or end it: kubectl mover cancel {name} -n {namespace}"
    ))
}

/// Waits until no other operation of this role is at work on the claim, for what is left of a turn's
/// time, and takes that off. Whether it had to wait: what was looked up before may be otherwise by
/// then. The same operation is gone on with.
///
/// # Errors
///
/// Another one has not ended in time.
pub async fn free(
    api: &Api,
    namespace: &str,
    source_uid: &str,
    request: &Request,
    turn: &mut Duration,
    mut tell: impl FnMut(&Wait),
) -> Result<bool, Failure> {
    let mut has_waited = false;
    loop {
        let other = match known(api, namespace, source_uid, request).await? {
            Known { same: None, other: Some(other), .. } => other.anchor,
            _ => return Ok(has_waited),
        };
        let Anchor { key, uid, .. } = &other;
        let (begun, most) = (Instant::now(), *turn);
        let plan = |seen: &Observed| {
            let found = seen.find::<ConfigMap>(key)?.filter(|found| found.meta.uid == *uid);
            if found.is_none_or(|found| !Operation::of(found).is_running()) {
                return Ok(());
            }
            let (why, left) = (otherwise(&other), most.saturating_sub(begun.elapsed()));
            if left.is_zero() {
                seen.confirm(&key.clone().into())?;
                return Err(why.into());
            }
            Err(Wait::new(vec![key.clone().into()], why.to_string(), left).into())
        };
        has_waited = true;
        let done = Driver::new(api, Observed::default()).run(plan, None, &mut tell).await;
        *turn = most.saturating_sub(begun.elapsed());
        done?;
    }
}

/// Begins an operation, or goes on with the same one that has not ended. `subject` is the claim's
/// name, `source_uid` what its anchors are found by.
///
/// # Errors
///
/// Another operation of this role is at work on the claim.
pub async fn begin(
    api: &Api,
    (namespace, subject): (&str, &str),
    source_uid: &str,
    request: &Request,
) -> Result<(Anchor, Observed, bool), Failure> {
    let Known { ended, same, other } = known(api, namespace, source_uid, request).await?;
    if let Some(same) = same {
        return Ok((same.anchor, Observed::default(), true));
    }
    if let Some(other) = other {
        return Err(otherwise(&other.anchor));
    }
    // A record of the controller goes with the object that it is for.
    let is_ours = |of: &Operation| !of.found.meta.labels.contains_key(FOR);
    let ended: Vec<Operation> = ended.into_iter().filter(is_ours).collect();
    let stale = ended.len().saturating_sub(HISTORY - 1);
    for operation in ended.into_iter().take(stale) {
        api.delete(&operation.anchor.key, &operation.anchor.uid).await?;
    }
    let name = format!("mover-{}-{subject}-{}", request.word(), random_text(RANDOM_CHARS)?);
    let made = match api.create(&engine::anchor(&name, namespace, source_uid, request)).await {
        Err(ApiError::Absent(_)) => {
            return Err(Failure::new(exit::USAGE, format!("there is no namespace {namespace}")));
        }
        made => made?,
    };
    let key = Key::new(Kind::ConfigMap, namespace, &name);
    let anchor = Anchor::new(key.clone(), Meta::of(&made).uid);
    let mut seen = Observed::default();
    seen.set_object(key, Some(made));
    nothing_made(&mut seen, &anchor, request);
    Ok((anchor, seen, false))
}

/// Whose operations a request is one of: a label of its anchor.
pub fn source_of(request: &Request) -> String {
    match request {
        Request::Backup(backup) => backup.source.uid.clone(),
        Request::Group(group) => {
            let labels = group.selector.iter().map(|(name, value)| format!("{name}={value}"));
            let labels = labels.collect::<Vec<_>>().join(",");
            format!("group-{:016x}", engine::hash(&labels))
        }
        Request::Restore(restore) => super::restore::source_of(&restore.claim),
    }
}

/// The uid of an anchor is new, so nothing can have a name that follows from it.
pub fn nothing_made(seen: &mut Observed, anchor: &Anchor, request: &Request) {
    let jobs = request.jobs_in();
    for number in 1..=request.objects().map_or(0, |objects| objects.parts) {
        seen.set_object(anchor.part(jobs, number), None);
    }
    let all = match request {
        Request::Group(group) => {
            seen.set_object(anchor.group(1), None);
            (1..).zip(&group.members).map(|(number, _)| anchor.of_member(number)).collect()
        }
        _ => vec![anchor.clone()],
    };
    for anchor in all {
        seen.set_object(anchor.volume(jobs), None);
        seen.set_object(anchor.snapshot(1), None);
        for number in 1..=engine::JOBS_MAX {
            seen.set_object(anchor.job(jobs, number), None);
        }
    }
}

/// Drives an operation to its end.
///
/// # Errors
///
/// It has not ended, or its anchor is gone.
pub async fn drive(
    api: &Api,
    anchor: &Anchor,
    mandate: Mandate<'_>,
    seen: Observed,
    tell: impl FnMut(&Wait),
) -> Result<(Outcome, Times), Failure> {
    let always = Some(anchor.key.clone().into());
    let mut driver = Driver::new(api, seen.named(random_text(DRIVER_CHARS)?));
    let outcome = driver.run(|seen| engine::plan(anchor, mandate, seen), always, tell).await?;
    Ok((outcome, driver.times()))
}

/// Asks an operation to stop. Whoever drives it removes what it made.
///
/// # Errors
///
/// See [`ApiError`].
pub async fn cancel(api: &Api, operation: &Operation) -> Result<(), Failure> {
    let patch = json!({ "metadata": { "annotations": { engine::CANCEL: "true" } } });
    api.patch(&operation.anchor.key, (&operation.anchor.uid, None), &patch).await?;
    Ok(())
}
