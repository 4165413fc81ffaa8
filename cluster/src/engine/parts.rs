//! Steps that a backup and a restore share.

use super::choice::{busy, holder, newest_warning};
use super::names::{self, Anchor, OWNER, REPOSITORY, SLOT};
use super::object::{Key, Kind, Query, Selection};
use super::observed::{Meta, Object, Observed, on_node};
use super::request::Limits;
use super::step::{Failure, Outcome, Planned, Step, Stop, Wait, exit};
use super::views::{Claim, ConfigMap, Event, Job, Lease, Pod, Volume};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;

/// A Job whose pod took its result with it runs again, with the same id; so often.
pub const JOBS_MAX: u32 = 3;
/// A pod's end may be told after its Job's.
const POD_LAG: Duration = Duration::from_secs(5);
/// An event says more than "pending" after so long.
pub(super) const EXPLAIN_AFTER: Duration = Duration::from_secs(10);
/// Looks again at what no watch tells.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A Job that ended well.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The pod that ended well, whose log is still there.
    pub pod: Key,
    /// The summary out of its termination message.
    pub summary: Value,
}

/// Whether a Job's summary decides about what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SummaryFor {
    /// It does: without it the Job runs again.
    Plan,
    /// Its log is all that is wanted.
    Nobody,
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) seen: &'a Observed,
    pub(super) anchor: &'a Anchor,
    pub(super) limits: Limits,
}

impl Context<'_> {
    /// Our object, made if there is none.
    pub(super) fn ensure<T: DeserializeOwned>(
        &self,
        key: &Key,
        make: impl FnOnce() -> Value,
    ) -> Planned<Object<T>> {
        match self.find_ours(key)? {
            Some(object) => Ok(object),
            None => Err(Step::Create(make()).into()),
        }
    }

    /// Our object, if there is one. One of that name that is not ours ends the operation: nothing
    /// is adopted.
    pub(super) fn find_ours<T: DeserializeOwned>(&self, key: &Key) -> Planned<Option<Object<T>>> {
        let Some(object) = self.seen.find::<T>(key)? else { return Ok(None) };
        if !self.is_ours(&object.meta) {
            return Err(Failure::new(
                exit::USAGE,
                format!("{key} exists and does not belong to this operation"),
            )
            .hint(format!(
                "{} shows where it comes from; delete it if nobody needs it",
                key.shown_by()
            ))
            .into());
        }
        if object.meta.deletion_timestamp.is_some() {
            return Err(Failure::new(
                exit::RETRYABLE,
                format!("{key} was deleted by somebody else while it was needed"),
            )
            .hint("run the same command again")
            .into());
        }
        Ok(Some(object))
    }

    pub(super) fn is_ours(&self, meta: &Meta) -> bool {
        meta.labels.get(OWNER) == Some(&self.anchor.uid)
    }

    /// Waits for one of these, or fails after `limit` since the object came.
    pub(super) fn wait<T>(
        &self,
        on: Vec<Query>,
        uid: &str,
        limit_seconds: u64,
        why: String,
    ) -> Planned<T> {
        self.wait_since(on, self.seen.age(uid), limit_seconds, why)
    }

    /// The same, where it has been waited for so long.
    pub(super) fn wait_since<T>(
        &self,
        on: Vec<Query>,
        age: Duration,
        limit_seconds: u64,
        why: String,
    ) -> Planned<T> {
        let limit = Duration::from_secs(limit_seconds);
        if age >= limit {
            on.iter().try_for_each(|query| self.seen.confirm(query))?;
            return Err(Failure::new(
                exit::RETRYABLE,
                format!("{why}, and after {limit_seconds} s that is given up"),
            )
            .hint("remove the cause and run the same command again")
            .into());
        }
        // Told once more when the reason can be looked up, and then ever more rarely: it may come
        // late, or be another one by then.
        let time = match age < EXPLAIN_AFTER {
            true => EXPLAIN_AFTER - age,
            false => age.min(LOOK_AGAIN),
        };
        let time = time.min(limit - age);
        Err(Wait::new(on, why, time).into())
    }

    /// What the newest warning about an object says, once that is worth a request.
    pub(super) fn warning(&self, about: &Key, uid: &str) -> Planned<Option<String>> {
        if self.seen.age(uid) < EXPLAIN_AFTER {
            return Ok(None);
        }
        let namespace = about.namespace.as_deref().unwrap_or("default");
        let selection = Selection::events(namespace, &about.name);
        match self.seen.list::<Event>(&selection) {
            Ok(events) => Ok(newest_warning(&events)),
            // It is a reason in a message: without it nothing fails.
            Err(Stop::Failure(_)) => Ok(None),
            Err(next) => Err(next),
        }
    }

    /// Holds the Lease: one operation at a time. Another one's end is waited for, unless an application
    /// holds still. All take that of a target before those of sources, and those in order: no deadlock.
    pub(super) fn hold(&self, key: &Key, of: &str) -> Planned<()> {
        let Some(lease) = self.seen.find::<Lease>(key)? else {
            return Err(Step::Create(self.lease(key)).into());
        };
        if lease.body.spec.holder_identity.as_deref() == Some(&self.anchor.uid) {
            return Ok(());
        }
        if let Some((namespace, name)) = holder(self.seen, &lease)? {
            let why = busy((&namespace, &name), of);
            let holder = lease.body.spec.holder_identity.as_deref().unwrap_or_default();
            let (age, limit) = (self.seen.age(holder), self.seen.turn());
            let anchor = Key::new(Kind::ConfigMap, &namespace, &name);
            let on = [key.clone(), anchor].map(Query::from).to_vec();
            if self.seen.holds_still() || age >= limit {
                on.iter().try_for_each(|query| self.seen.confirm(query))?;
                return Err(why.into());
            }
            return Err(Wait::new(on, why.to_string(), limit - age).into());
        }
        // Its operation is over, however it ended. Of two who see that one gets it, by the version.
        let mut patch = self.lease(key);
        let fields = patch.as_object_mut().expect("an object");
        fields.retain(|name, _| name == "metadata" || name == "spec");
        // Attempts were those of the operation before.
        for of_before in [names::ATTEMPT, names::DRIVER, names::ROOM] {
            patch["metadata"]["annotations"][of_before] = Value::Null;
        }
        Err(Step::change(key, &lease.meta, patch).into())
    }

    fn lease(&self, key: &Key) -> Value {
        let spec = json!({ "spec": { "holderIdentity": self.anchor.uid } });
        names::object(key, self.anchor.meta(key, "lease"), spec)
    }

    /// Runs a Job to its end, on a volume if it has one. `open` is what lets it have pods.
    pub(super) fn run_job(
        &self,
        namespace: &str,
        volume: Option<&Key>,
        summary: SummaryFor,
        open: impl Fn(&Object<Job>) -> Planned<()>,
        make: impl Fn(&Key) -> Value,
    ) -> Planned<Finished> {
        for number in 1..=JOBS_MAX {
            let key = self.anchor.job(namespace, number);
            let job = self.ensure::<Job>(&key, || make(&key))?;
            open(&job)?;
            let pods = Selection::labelled(
                Kind::Pod,
                namespace,
                format!("batch.kubernetes.io/job-name={}", key.name),
            );
            if let Some(failed) = job.body.condition("Failed") {
                return Err(
                    job_failure(&key, failed.message.as_deref(), &self.seen.list(&pods)?).into()
                );
            }
            if job.body.condition("Complete").is_none() {
                return self.await_job(&job, &pods, volume);
            }
            let all: Vec<Object<Pod>> = self.seen.list(&pods)?;
            let of = |pod: &Object<Pod>| {
                summary_of(&pod.body, summary)
                    .map(|summary| Finished { pod: pod.key.clone(), summary })
            };
            if let Some(finished) = all.iter().find_map(of) {
                return Ok(finished);
            }
            self.seen.confirm(&pods.clone().into())?;
            let lag = self.seen.unchanged(&Query::One(key.clone()));
            if lag < POD_LAG {
                let why = format!("waiting for the result of {key}");
                return Err(Wait::new(vec![pods.into()], why, POD_LAG - lag).into());
            }
        }
        Err(Failure::new(
            exit::RETRYABLE,
            format!("{JOBS_MAX} Jobs ended well, and the pod of each was gone before its result was read"),
        )
        .hint("find out who deletes finished pods in the Repository's namespace, and run the same command again")
        .into())
    }

    /// The pod of a Job that does not end by itself, once it has begun.
    pub(super) fn await_pod(
        &self,
        key: &Key,
        make: impl FnOnce() -> Value,
    ) -> Planned<Object<Pod>> {
        let job = self.ensure::<Job>(key, make)?;
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let labels = format!("batch.kubernetes.io/job-name={}", key.name);
        let pods = Selection::labelled(Kind::Pod, namespace, labels);
        let all: Vec<Object<Pod>> = self.seen.list(&pods)?;
        let ended = |what| job.body.condition(what);
        if let Some(end) = ended("Failed").or_else(|| ended("Complete")) {
            return Err(job_failure(key, end.message.as_deref(), &all).into());
        }
        let runs = |pod: &Object<Pod>| {
            pod.body.is_running()
                && pod.meta.deletion_timestamp.is_none()
                && self.is_ours(&pod.meta)
        };
        match all.into_iter().find(runs) {
            Some(pod) => Ok(pod),
            None => self.await_job(&job, &pods, None),
        }
    }

    fn await_job<T>(
        &self,
        job: &Object<Job>,
        pods: &Selection,
        volume: Option<&Key>,
    ) -> Planned<T> {
        let all: Vec<Object<Pod>> = self.seen.list(pods)?;
        let mut on = vec![job.key.clone().into(), pods.clone().into()];
        on.extend(volume.map(|volume| Query::One(volume.clone())));
        let newest = all.iter().max_by_key(|pod| pod.meta.creation_timestamp.clone());
        let stays = |pod: &&Object<Pod>| pod.meta.deletion_timestamp.is_none();
        if let Some(pod) = newest.filter(stays).filter(|pod| pod.body.is_running()) {
            let why = format!("{} runs", pod.key);
            let pod = Some(pod.key.clone());
            return Err(Wait { pod, ..Wait::new(on, why, LOOK_AGAIN) }.into());
        }
        if let Some(pod) =
            newest.filter(|pod| pod.body.is_running() || pod.body.terminated().is_some())
        {
            return self.await_successor(on, job, pod, pods);
        }
        if let Some(pod) = newest {
            self.await_turn(&on, pod)?;
        }
        // One that waited for its turn has all of its time from then on.
        let had_turn = |pod: &&Object<Pod>| {
            pod.meta.labels.contains_key(SLOT) && pod.body.spec.node_name.is_some()
        };
        let turn = newest.filter(had_turn).map(|pod| on_node(&pod.meta.uid));
        let since = |meta: &Meta| turn.clone().unwrap_or_else(|| meta.uid.clone());
        let claim = match volume {
            Some(volume) => self.seen.find::<Claim>(volume)?,
            None => None,
        };
        let bound = |claim: &Object<Claim>| claim.body.status.phase.as_deref() == Some("Bound");
        if let Some(claim) = claim.filter(|claim| !bound(claim)) {
            let said = self.warning(&claim.key, &claim.meta.uid)?;
            let why = with_reason(format!("{} is not bound", claim.key), said);
            return self.wait(on, &since(&claim.meta), self.limits.volume_seconds, why);
        }
        let Some(pod) = newest else {
            let said = self.warning(&job.key, &job.meta.uid)?;
            let why = with_reason(format!("{} has no pod", job.key), said);
            return self.wait(on, &job.meta.uid, self.limits.start_seconds, why);
        };
        let said = match pod.body.why_not_begun() {
            Some(said) => Some(said),
            None => self.warning(&pod.key, &pod.meta.uid)?,
        };
        let why = with_reason(format!("{} has not begun", pod.key), said);
        self.wait(on, &since(&pod.meta), self.limits.start_seconds, why)
    }

    /// A pod that has no node because others of its slot have them: it waits for as long as there
    /// are such, and then has its own time. That the scheduler names the rule decides about nothing
    /// but that patience.
    fn await_turn(&self, on: &[Query], pod: &Object<Pod>) -> Planned<()> {
        let labels = &pod.meta.labels;
        let (Some(slot), Some(repository), None) =
            (labels.get(SLOT), labels.get(REPOSITORY), &pod.body.spec.node_name)
        else {
            return Ok(());
        };
        if !pod.body.why_not_begun().is_some_and(|why| why.contains("anti-affinity")) {
            return Ok(());
        }
        let namespace = pod.key.namespace.as_deref().unwrap_or_default();
        let labels = format!("{REPOSITORY}={repository},{SLOT}={slot}");
        let others = Selection::labelled(Kind::Pod, namespace, labels);
        let all: Vec<Object<Pod>> = self.seen.list(&others)?;
        let holds = |other: &&Object<Pod>| {
            let has_ended =
                matches!(other.body.status.phase.as_deref(), Some("Succeeded" | "Failed"));
            other.key != pod.key && other.body.spec.node_name.is_some() && !has_ended
        };
        let limit = Duration::from_secs(self.limits.start_seconds);
        let waited = self.seen.unchanged(&others.clone().into());
        let (why, time) = match all.iter().find(holds) {
            Some(other) => {
                (format!("{} waits for its turn: {} runs", pod.key, other.key), LOOK_AGAIN)
            }
            None if waited < limit => {
                (format!("{} waits for a node", pod.key), (limit - waited).min(LOOK_AGAIN))
            }
            None => return Ok(()),
        };
        let mut on = on.to_vec();
        on.push(others.into());
        Err(Wait::new(on, why, time).into())
    }

    /// A pod that has ended, or that a lost node cannot end: its Job says so soon, or makes another.
    fn await_successor<T>(
        &self,
        on: Vec<Query>,
        job: &Object<Job>,
        pod: &Object<Pod>,
        pods: &Selection,
    ) -> Planned<T> {
        let limit = Duration::from_secs(self.limits.start_seconds);
        let waited = self.seen.unchanged(&pods.clone().into());
        let does = if pod.body.is_running() { "is going away" } else { "has ended" };
        let how = pod.body.how_ended().map_or(String::new(), |how| format!(" ({how})"));
        let why = format!("{} {does}{how}", pod.key);
        if waited < EXPLAIN_AFTER {
            return Err(Wait::new(on, why, EXPLAIN_AFTER - waited).into());
        }
        let said = match self.warning(&job.key, &job.meta.uid)? {
            Some(said) => Some(said),
            None => self.warning(&pod.key, &pod.meta.uid)?,
        };
        let why = with_reason(format!("{why}, and {} has no other", job.key), said);
        if waited < limit {
            let time = (limit - waited).min(LOOK_AGAIN);
            return Err(Wait::new(on, why, time).into());
        }
        on.iter().try_for_each(|query| self.seen.confirm(query))?;
        let hint = match pod.body.terminated() {
            Some(end) if end.is_out_of_memory() => more_memory(&job.key),
            _ => "look at the pod's node, and run the same command again".to_owned(),
        };
        Err(Failure::new(exit::RETRYABLE, format!("{why}; that is given up")).hint(hint).into())
    }

    /// Removes an object of ours, and waits until it is gone. What is not ours stays.
    pub(super) fn remove(&self, key: &Key) -> Planned<()> {
        let Some(object) = self.seen.find::<Value>(key)? else { return Ok(()) };
        if !self.is_ours(&object.meta) {
            return Ok(());
        }
        if object.meta.deletion_timestamp.is_none() {
            return Err(Step::Delete { key: key.clone(), uid: object.meta.uid }.into());
        }
        self.gone(key, &object.meta)
    }

    /// Removes a block volume of ours. With a class that retains, the storage would keep it for good.
    pub(super) fn remove_volume(&self, key: &Key) -> Planned<()> {
        if let Some(claim) = self.seen.find::<Claim>(key)?
            && self.is_ours(&claim.meta)
            && claim.meta.deletion_timestamp.is_none()
            && let Some(name) = &claim.body.spec.volume_name
        {
            let volume_key = Key::wide(Kind::PersistentVolume, name);
            if let Some(volume) = self.seen.find::<Volume>(&volume_key)? {
                let holder = volume.body.spec.claim_ref.as_ref();
                let holds = holder.is_some_and(|at| at.uid.as_deref() == Some(&claim.meta.uid));
                let policy = volume.body.spec.persistent_volume_reclaim_policy.as_deref();
                if holds && policy != Some("Delete") {
                    let patch = json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
                    return Err(Step::change(&volume_key, &volume.meta, patch).into());
                }
            }
        }
        self.remove(key)
    }

    /// Waits until what is being deleted is gone.
    pub(super) fn gone<T>(&self, key: &Key, meta: &Meta) -> Planned<T> {
        let query = Query::One(key.clone());
        let waited = self.seen.unchanged(&query);
        let limit = Duration::from_secs(self.limits.removal_seconds);
        if waited >= limit {
            self.seen.confirm(&query)?;
            let said = self.warning(key, &meta.uid)?;
            let held = match meta.finalizers.as_slice() {
                [] => String::new(),
                held => format!("; finalizers hold it: {}", held.join(", ")),
            };
            let why = with_reason(format!("{key} is deleted and does not go away{held}"), said);
            return Err(Failure::new(exit::RETRYABLE, why)
                .hint("look at who is to take the finalizers away, then: kubectl mover sweep")
                .into());
        }
        let why = format!("{key} goes away");
        Err(Stop::from(Wait::new(vec![query], why, limit - waited)))
    }
}

/// A message with its cause, if one is known.
pub(super) fn with_reason(text: String, said: Option<String>) -> String {
    match said {
        Some(said) => format!("{text}: {said}"),
        None => text,
    }
}

/// What the program said at its end, if the pod ended well and said so.
fn summary_of(pod: &Pod, wanted: SummaryFor) -> Option<Value> {
    let end = pod.terminated().filter(|end| end.exit_code == 0)?;
    let said = end.message.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let summary = said.filter(|said| said["state"] == "ok").map(|said| said["summary"].clone());
    match wanted {
        SummaryFor::Plan => summary,
        SummaryFor::Nobody => Some(summary.unwrap_or_default()),
    }
}

/// Why a Job failed: the words of its last pod, else those of its condition.
fn job_failure(key: &Key, said: Option<&str>, pods: &[Object<Pod>]) -> Failure {
    let ends = pods.iter().filter_map(|pod| pod.body.terminated());
    let last = ends.filter(|end| end.exit_code != 0).max_by_key(|end| end.finished_at.clone());
    // Without a termination message it is the end of the log, whose last line says it.
    let lines = last.and_then(|end| end.message.as_deref()).into_iter().flat_map(str::lines);
    let message: Option<Value> = lines
        .rev()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find(|line: &Value| line["message"].is_string());
    let code = last.and_then(|end| u8::try_from(end.exit_code).ok()).filter(|code| *code != 0);
    let text = |name: &str| message.as_ref().and_then(|at| at[name].as_str()).map(str::to_owned);
    let killed = last.filter(|end| end.is_out_of_memory()).and_then(|end| end.reason.clone());
    // Killed by a signal is 128 and more: the same again may end otherwise.
    let code = code.filter(|code| *code < 128).unwrap_or(exit::RETRYABLE);
    let again = || (code == exit::RETRYABLE).then(|| "run the same command again".to_owned());
    // Who was killed could say beforehand what may happen, and not what has happened.
    let hint = killed.as_ref().map(|_| more_memory(key)).or_else(|| text("hint")).or_else(again);
    let why = text("message")
        .or_else(|| said.map(str::to_owned))
        .unwrap_or_else(|| "nothing is known of its pods".to_owned());
    let why = with_reason(
        format!("{key} failed"),
        Some(match killed {
            Some(reason) => format!("{reason}: {why}"),
            None => why,
        }),
    );
    Failure { exit_code: code, message: why, hint }
}

/// The next step where the kernel has killed a pod of a Job for its memory.
fn more_memory(job: &Key) -> String {
    let namespace = job.namespace.as_deref().unwrap_or_default();
    format!(
        "set a larger `memory` in the Repository's ConfigMap in namespace {namespace}, and run the \
         same command again"
    )
}

/// Writes how the operation ends, before anything is removed: a second run must not begin anew.
pub(super) fn save(anchor: &Object<ConfigMap>, outcome: &Outcome) -> Step {
    let text = serde_json::to_string(outcome).expect("an outcome has texts as keys");
    Step::change(&anchor.key, &anchor.meta, json!({ "data": { "outcome": text } }))
}
