//! The status of a Repository: what its record says, and why something is waited for.

use super::lanes::{CHECK, COPY, FORGET, GC, INIT, SYNC};
use super::plan::Facts;
use super::record::{Done, Ended, Record};
use crate::drive::show_bytes;
use crate::engine::Failure;
use crate::kinds::{Condition, RepositoryStatus};
use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A pod waits, for whatever reason.
const PENDING: &str = "PodPending";

/// What the plan came to know on its way.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    /// How volumes of this cluster begin.
    pub cluster: Option<String>,
    /// What was done.
    pub record: Record,
    /// Why a lane waits, as long as no pod of it runs.
    pub waits: BTreeMap<String, String>,
    /// Lanes that wait for their Jobs.
    pub running: BTreeSet<String>,
    /// Lanes whose pattern of cron cannot be meant.
    pub bad: BTreeMap<String, String>,
    /// Lanes that go by the clock.
    pub timed: BTreeSet<String>,
    /// Lanes of copies.
    pub copies: BTreeSet<String>,
    /// Copies that were asked for and cannot be made.
    pub refused: Vec<String>,
    /// Whether there is a rule of what stays.
    pub keeps: bool,
    /// Why nothing can be done.
    pub trouble: Option<Failure>,
    /// Why a lane does not go on, while others do.
    pub troubles: BTreeMap<String, Failure>,
}

/// A condition before it has a time.
#[derive(Debug)]
struct New {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl New {
    fn good(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: "True", reason, message: message.into() }
    }

    fn bad(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: "False", reason, message: message.into() }
    }

    fn open(reason: &'static str, message: impl Into<String>) -> Self {
        Self { status: "Unknown", reason, message: message.into() }
    }
}

/// The status that follows.
pub(super) fn of(facts: &Facts<'_>, told: &Told) -> RepositoryStatus {
    let before = facts.status;
    if let Some(trouble) = told.trouble.as_ref().filter(|_| told.record == Record::default()) {
        // Nothing else is known.
        let mut status = before.clone();
        set(facts, &mut status.conditions, "Ready", Some(New::bad("Refused", trouble.to_string())));
        return status;
    }
    let done = |lane: &str| told.record.lane(lane);
    let good = |lane: &str| done(lane).good;
    let mut conditions = before.conditions.clone();
    for (kind, new) in [
        ("Ready", Some(ready(facts, told))),
        ("Synced", synced(&done(SYNC), told)),
        ("Collected", Some(collected(&done(FORGET), &done(GC), told))),
        ("Checked", Some(checked(&done(CHECK), told))),
        ("Copied", copied(told)),
    ] {
        set(facts, &mut conditions, kind, new);
    }
    let number = |ended: &Option<Ended>, name: &str| ended.as_ref()?.summary[name].as_i64();
    let newest = [good(GC), good(CHECK)].into_iter().flatten().max_by_key(|ended| ended.at);
    let stored = number(&newest, "pack_bytes");
    let shown = stored.map(|bytes| show_bytes(u64::try_from(bytes).unwrap_or_default()));
    let looked = good(CHECK).into_iter().chain(told.record.damage.clone()).map(|at| at.at).max();
    let id = good(INIT).and_then(|at| at.summary["repository_id"].as_str().map(str::to_owned));
    RepositoryStatus {
        conditions,
        repository_id: id.or_else(|| before.repository_id.clone()),
        cluster_name: told.cluster.clone(),
        last_gc: good(GC).map(|ended| text(ended.at)),
        last_check: looked.map(text),
        last_sync: good(SYNC).map(|ended| text(ended.at)),
        backups: number(&good(SYNC), "backups"),
        stored_bytes: stored,
        stored: shown,
    }
}

fn text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// Sets a condition, or takes it away; its time changes with its status alone.
fn set(facts: &Facts<'_>, all: &mut Vec<Condition>, kind: &str, new: Option<New>) {
    let at = all.iter().position(|known| known.kind == kind);
    let Some(New { status, reason, message }) = new else {
        at.map(|at| all.remove(at));
        return;
    };
    let mut condition = Condition {
        kind: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message,
        observed_generation: facts.generation,
        last_transition_time: text(facts.now),
    };
    match at {
        Some(at) => {
            if all[at].status == condition.status {
                condition.last_transition_time = all[at].last_transition_time.clone();
            }
            all[at] = condition;
        }
        None => all.push(condition),
    }
}

fn ready(facts: &Facts<'_>, told: &Told) -> New {
    if let Some(why) = &told.trouble {
        return New::bad("Refused", why.to_string());
    }
    let opened = told.record.lane(INIT).good.is_some();
    let mut stuck = told.waits.values().filter_map(|why| stuck(facts, why));
    // A pod that waits for a node says nothing about a repository that was opened before.
    if let Some((reason, message)) = stuck.find(|(reason, _)| !opened || *reason != PENDING) {
        return New::bad(reason, message);
    }
    if let Some((lane, why)) = told.bad.first_key_value() {
        let field = if lane == FORGET { GC } else { lane };
        return New::bad("BadSchedule", format!("spec.{field}: {why}"));
    }
    let init = told.record.lane(INIT);
    match (&init.good, &init.last) {
        (Some(good), _) => {
            let id = good.summary["repository_id"].as_str().unwrap_or_default();
            New::good("Opened", format!("repository {id} at {}", facts.spec.url))
        }
        // A pod that was given up lacked what it lacks now, until the next one.
        (None, Some(last)) => match self::stuck(facts, &last.message) {
            Some((reason, message)) if reason != PENDING => New::bad(reason, message),
            _ => New::bad("InitFailed", last.text()),
        },
        (None, None) => {
            let why = told.waits.get(INIT).cloned();
            New::open("Opening", why.unwrap_or_else(|| "its first Job runs".into()))
        }
    }
}

/// What keeps a pod from its begin, as far as the kubelet says so: the Secrets are named and never
/// read.
fn stuck(facts: &Facts<'_>, why: &str) -> Option<(&'static str, String)> {
    let namespace = facts.meta.namespace.as_deref().unwrap_or_default();
    let lacks = |kind: &str, name: &str| why.contains(&format!("{kind} \"{name}\" not found"));
    let secret = |name: &str| lacks("secret", name);
    let key = &facts.spec.key_secret_ref.name;
    if secret(key) {
        return Some((
            "KeySecretMissing",
            format!(
                "secret/{key} in namespace {namespace} is missing: it holds the repository's key. Make it from your copy; \
                 for a new repository make one of 32 random bytes: kubectl mover repository add, or kubectl -n {namespace} create secret generic {key} --from-file=key=FILE"
            ),
        ));
    }
    let credentials = [&facts.spec.credentials, &facts.spec.gc_credentials];
    for of in credentials.into_iter().flatten() {
        if let Some(name) = of.secret_ref.as_ref().map(|of| &of.name).filter(|name| secret(name)) {
            return Some((
                "CredentialsMissing",
                format!(
                    "secret/{name} in namespace {namespace} is missing: make it, with the store's credentials as members such as AWS_ACCESS_KEY_ID"
                ),
            ));
        }
        if let Some(name) =
            of.service_account_name.as_ref().filter(|name| lacks("serviceaccount", name))
        {
            return Some((
                "AccountMissing",
                format!(
                    "serviceaccount/{name} in namespace {namespace} is missing: make it, with the cloud's identity"
                ),
            ));
        }
    }
    if let Some(name) = facts.spec.ca_config_map_ref.as_ref().map(|of| &of.name)
        && lacks("configmap", name)
    {
        return Some((
            "AuthorityMissing",
            format!(
                "configmap/{name} in namespace {namespace} is missing: make it, with the authority in ca.crt"
            ),
        ));
    }
    let said = why.split_once(": ").is_some_and(|(_, said)| !said.is_empty());
    said.then(|| (PENDING, format!("{why}; kubectl -n {namespace} describe pods says more")))
}

/// A lane's condition, where no run of it has ended well or badly.
fn unknown(told: &Told, lane: &str, field: &str) -> New {
    if told.timed.contains(lane) || told.running.contains(lane) {
        return New::open("NotYet", "its first time has not come, or it runs");
    }
    New::open("NotScheduled", format!("spec.{field} says no time"))
}

fn synced(done: &Done, told: &Told) -> Option<New> {
    let last = done.last.as_ref();
    if let Some(why) = told.troubles.get(SYNC) {
        return Some(New::bad("ListFailed", why.to_string()));
    }
    Some(match last {
        None => {
            told.record.lane(INIT).good?;
            New::open("NotYet", "the list of backups is to come")
        }
        Some(last) if last.exit_code != 0 => New::bad("ListFailed", last.text()),
        Some(last) if last.summary["complete"] == false => New::bad("ListCut", last.text()),
        Some(last) => New::good("Listed", last.text()),
    })
}

fn collected(forget: &Done, gc: &Done, told: &Told) -> New {
    for (lane, reason) in [(FORGET, "ForgetFailed"), (GC, "GcFailed")] {
        if let Some(why) = told.troubles.get(lane) {
            return New::bad(reason, why.to_string());
        }
    }
    if let Some(last) = forget.last.as_ref().filter(|last| last.exit_code != 0) {
        return New::bad("ForgetFailed", last.text());
    }
    let Some(last) = &gc.last else {
        let open = unknown(told, GC, GC);
        let idle = told.keeps && open.reason == "NotScheduled";
        let message = "nothing is forgotten by keep, nor collected: spec.gc says no time";
        return if idle { New::open(open.reason, message) } else { open };
    };
    if last.exit_code != 0 {
        return New::bad("GcFailed", last.text());
    }
    if let Some(last) = forget.last.as_ref().filter(|last| !last.message.is_empty()) {
        return New::bad("RuleRefused", last.text());
    }
    let size = |name: &str| show_bytes(last.summary[name].as_u64().unwrap_or_default());
    let mut message = String::new();
    if let Some(forgot) = &forget.good {
        let number = |name: &str| forgot.summary[name].as_u64().unwrap_or_default();
        message = format!("{} backups forgotten, {} stay; ", number("forgotten"), number("kept"));
    }
    message.push_str(&format!("{} deleted, {} stored", size("deleted_bytes"), size("pack_bytes")));
    if last.summary["held_back"] == true {
        message.push_str("; nothing new was condemned, as several collections wait for others");
    }
    New::good("Collected", message)
}

fn checked(done: &Done, told: &Told) -> New {
    let last = done.last.as_ref();
    if let Some(damage) = &told.record.damage {
        let mut message = format!("check of {}: {}", text(damage.at), damage.text());
        if let Some(last) = last.filter(|last| *last != damage) {
            message.push_str(&format!("; one after it could not look: {}", last.text()));
        }
        return New::bad("Damaged", message);
    }
    if let Some(why) = told.troubles.get(CHECK) {
        return New::bad("CheckFailed", why.to_string());
    }
    match last {
        None => unknown(told, CHECK, CHECK),
        Some(last) if last.exit_code != 0 => New::bad("CheckFailed", last.text()),
        Some(last) => {
            let number = |name: &str| last.summary[name].as_u64().unwrap_or_default();
            let (backups, packs) = (number("backups"), number("packs"));
            let stored = show_bytes(number("pack_bytes"));
            New::good("Whole", format!("{backups} backups, {packs} packs, {stored}: all is there"))
        }
    }
}

fn copied(told: &Told) -> Option<New> {
    if !told.refused.is_empty() {
        return Some(New::bad("Refused", told.refused.join("; ")));
    }
    if told.copies.is_empty() {
        return None;
    }
    let mut said = Vec::new();
    let mut open = false;
    for lane in &told.copies {
        let target = lane.trim_start_matches(COPY);
        if let Some(why) = told.troubles.get(lane) {
            return Some(New::bad("CopyFailed", format!("to {target}: {why}")));
        }
        match &told.record.lane(lane).last {
            Some(last) if last.exit_code != 0 => {
                return Some(New::bad("CopyFailed", format!("to {target}: {}", last.text())));
            }
            Some(last) if !last.message.is_empty() => {
                return Some(New::bad("Refused", format!("to {target}: {}", last.text())));
            }
            Some(last) => said.push(format!("to {target}: {}", copies_of(&last.summary))),
            None => open = true,
        }
    }
    Some(match open {
        true => New::open("NotYet", "copies are to come, within the hour"),
        false => New::good("Copied", said.join("; ")),
    })
}

fn copies_of(summary: &Value) -> String {
    let number = |name: &str| summary[name].as_u64().unwrap_or_default();
    format!("{} copied, {} were there", number("copied"), number("already_there"))
}

/// Changes of conditions that are worth an event: whether it is a warning, reason and message.
#[must_use]
pub fn transitions(old: &RepositoryStatus, new: &RepositoryStatus) -> Vec<(bool, String, String)> {
    let mut all = Vec::new();
    for condition in &new.conditions {
        let before = old.conditions.iter().find(|known| known.kind == condition.kind);
        let is_same = before.is_some_and(|before| {
            // Each check that finds damage is told anew.
            let is_damage = condition.reason == "Damaged" && before.message != condition.message;
            before.status == condition.status && before.reason == condition.reason && !is_damage
        });
        if !is_same && condition.status != "Unknown" {
            let warns = condition.status == "False";
            all.push((warns, condition.reason.clone(), condition.message.clone()));
        }
    }
    all
}

#[cfg(test)]
mod tests;
