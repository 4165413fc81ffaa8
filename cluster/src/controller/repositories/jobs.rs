//! The Jobs of the lanes: accounts, credentials and arguments.

use super::lanes::{self, COPY, GC, INIT, SYNC};
use crate::engine::{
    Anchor, Finished, JobSpec, Key, Kind, Limits, MAINTENANCE, Meta, Observed, Planned, Repository,
    alone,
};
use crate::kinds::RepositorySpec;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

/// Where the keys of a copy's target are in its pod.
pub(super) const TO_KEYS: &str = "/etc/mover/to-keys";
/// Service account of collections, where nothing else is said.
pub const GC_ACCOUNT: &str = "mover-gc";
/// Before the names of variables that are for the target of a copy.
const TO: &str = "MOVER_TO_";
/// Variables of object stores begin so.
const STORES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];
/// Should nobody remove a Job whose result is recorded, the cluster does after a day.
const TTL_SECONDS: u32 = 86_400;
/// What answers at once is ended after so long.
const SHORT_SECONDS: u32 = 1800;

/// Names and marks of the run of a lane that was due at a time.
#[must_use]
pub fn anchor(of: &Meta, lane: &str, due: DateTime<Utc>) -> Anchor {
    let namespace = of.namespace.as_deref().unwrap_or_default();
    Anchor::new(
        Key::new(Kind::Repository, namespace, &of.name),
        format!("{}-{}-{}", of.uid, lanes::short(lane), due.format("%y%m%d%H%M")),
    )
}

/// As the owner of another object.
#[must_use]
pub(super) fn reference(of: &Meta) -> Value {
    json!({
        "apiVersion": Kind::Repository.api_version(),
        "kind": Kind::Repository.word(),
        "name": of.name,
        "uid": of.uid,
    })
}

/// The service account of collections. Without credentials of their own they have those of all
/// Jobs, and so the same identity, if an account gives it.
#[must_use]
pub(super) fn gc_account(spec: &RepositorySpec) -> String {
    let given = match &spec.gc_credentials {
        Some(own) => own.service_account_name.as_ref(),
        None => spec.credentials.as_ref().and_then(|of| of.service_account_name.as_ref()),
    };
    given.map_or_else(|| GC_ACCOUNT.to_owned(), Clone::clone)
}

/// The Repository as the Jobs of a lane use it.
fn used_by(lane: &str, spec: &RepositorySpec, place: &Repository) -> Repository {
    let mut place = place.clone();
    if lane == GC {
        place.service_account = gc_account(spec);
        if let Some(own) = &spec.gc_credentials {
            place.credentials_secret = own.secret_ref.as_ref().map(|secret| secret.name.clone());
        }
    }
    place
}

/// Runs the Job of a lane to its end.
///
/// # Errors
///
/// What comes first, or its failure.
pub(super) fn run(
    of: &Meta,
    (lane, due): (&str, DateTime<Utc>),
    (spec, place): (&RepositorySpec, &Repository),
    (arguments, target): (Vec<String>, Option<&Repository>),
    seen: &Observed,
) -> Planned<Finished> {
    let used = used_by(lane, spec, place);
    let job = JobSpec::of(&used, arguments);
    let finish = |made: &mut Value| {
        made["metadata"]["ownerReferences"] = json!([reference(of)]);
        made["spec"]["ttlSecondsAfterFinished"] = json!(TTL_SECONDS);
        if matches!(lane, INIT | SYNC) {
            made["spec"]["activeDeadlineSeconds"] = json!(SHORT_SECONDS);
        }
        if let Some(target) = target.filter(|_| lane.starts_with(COPY)) {
            add_target(made, target);
        }
    };
    alone(&anchor(of, lane, due), MAINTENANCE, &job, Limits::default(), seen, finish)
}

/// Keys, variables and credentials of a copy's target.
fn add_target(job: &mut Value, target: &Repository) {
    let pod = &mut job["spec"]["template"]["spec"];
    push(
        &mut pod["volumes"],
        json!({ "name": "to-keys", "secret": { "secretName": target.key_secret, "defaultMode": 256 } }),
    );
    let container = &mut pod["containers"][0];
    push(
        &mut container["volumeMounts"],
        json!({ "name": "to-keys", "mountPath": TO_KEYS, "readOnly": true }),
    );
    for (name, value) in &target.env {
        if STORES.iter().any(|store| name.starts_with(store)) {
            push(&mut container["env"], json!({ "name": format!("{TO}{name}"), "value": value }));
        }
    }
    if let Some(secret) = &target.credentials_secret {
        push(&mut container["envFrom"], json!({ "prefix": TO, "secretRef": { "name": secret } }));
    }
}

fn push(list: &mut Value, value: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{Credentials, SecretRef};

    fn by(secret: Option<&str>, account: Option<&str>) -> Option<Credentials> {
        Some(Credentials {
            secret_ref: secret.map(|name| SecretRef { name: name.into() }),
            service_account_name: account.map(Into::into),
        })
    }

    #[test]
    fn a_collection_has_an_account_of_its_own() {
        let place = Repository {
            service_account: "mover".into(),
            credentials_secret: Some("store".into()),
            ..Repository::default()
        };
        for (credentials, own, account, secret) in [
            (by(Some("store"), None), None, "mover-gc", Some("store")),
            (by(Some("store"), None), by(Some("gc"), None), "mover-gc", Some("gc")),
            (by(Some("store"), None), by(None, Some("deleter")), "deleter", None),
            (by(None, Some("cloud")), None, "cloud", Some("store")),
            (by(None, Some("cloud")), by(Some("gc"), None), "mover-gc", Some("gc")),
        ] {
            let spec = RepositorySpec {
                credentials: credentials.clone(),
                gc_credentials: own.clone(),
                ..RepositorySpec::default()
            };
            let used = used_by(GC, &spec, &place);
            let got = (used.service_account.as_str(), used.credentials_secret.as_deref());
            assert_eq!(got, (account, secret), "{credentials:?} {own:?}");
            assert_eq!(used_by("check", &spec, &place), place);
        }
    }

    #[test]
    fn names_of_jobs_fit() {
        let uid = "01234567-0123-0123-0123-0123456789ab";
        let of = Meta { uid: uid.into(), namespace: Some("shop".into()), ..Meta::default() };
        let long = format!("copy-{}", "far-away-".repeat(20));
        let due = DateTime::UNIX_EPOCH;
        for lane in [INIT, SYNC, lanes::FORGET, GC, lanes::CHECK, "copy-far", &long] {
            let anchor = anchor(&of, lane, due);
            let name = anchor.job("shop", crate::engine::JOBS_MAX).name;
            assert!(name.len() <= 63 && anchor.uid.len() <= 63, "{name}");
            assert!(name.contains("-7001010000-"), "{name}");
        }
    }
}
