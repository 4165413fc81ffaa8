//! The removal of an installation, also of one whose controller is long dead.
//!
//! First the controller is stopped, so that nothing is made anew. Then our finalizers come off all
//! objects that may have one, ours and others': from there on nothing waits for us for good. Then
//! the installation goes, rights before what bounds them. Definitions and with them our objects
//! stay unless they are asked for. No repository is touched, and no Secret, claim, snapshot or
//! record.

use super::places::{DEFINITIONS, HELD, INSTALLED, OWN, Place, RECORDS, shown};
use super::{FINALIZERS, PART_OF};
use crate::api::{Api, ApiError, Asked};
use crate::engine::Failure;
use http::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const AGAIN: Duration = Duration::from_millis(500);
/// Pods of the controller end within their grace period.
const STOPPED: Duration = Duration::from_secs(60);

/// What is to go.
#[derive(Debug, Clone, Copy, Default)]
pub struct Removal {
    /// The definitions too, and with them all our objects.
    pub definitions: bool,
    /// Only say what would go.
    pub dry_run: bool,
}

/// What became of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Its kind, name and namespace.
    pub object: String,
    /// For people.
    pub done: String,
}

/// What was done, what stays, and what somebody has to look at.
#[derive(Debug, Default)]
pub struct Report {
    /// Objects that went or changed.
    pub done: Vec<Removed>,
    /// For people: what stays, and who removes it.
    pub stays: Vec<String>,
    /// For people: what was refused.
    pub refused: Vec<Failure>,
}

fn asked(place: Place, word: &str, verb: &str) -> Asked {
    Asked::other(&format!("{word} {}", place.plural), &place.right(verb))
}

fn about(place: Place, word: &str, verb: &str, object: &Value) -> Asked {
    Asked::other(&format!("{word} {}", shown(place, object)), &place.right(verb))
}

fn path_of(place: Place, object: &Value) -> String {
    let meta = &object["metadata"];
    let name = meta["name"].as_str().unwrap_or_default();
    format!("{}/{name}", place.path(meta["namespace"].as_str()))
}

/// All objects of a kind; none where the cluster does not know it.
async fn list(api: &Api, place: Place, labels: &str) -> Result<Vec<Value>, Failure> {
    let found = api.list_at(&place.path(None), labels, || asked(place, "list", "list")).await;
    match found {
        Err(ApiError::Absent(_)) => Ok(Vec::new()),
        found => Ok(found?),
    }
}

/// Removes the installation.
///
/// # Errors
///
/// The finalizers could not be looked for: nothing else is removed then. What is refused later is
/// in the report.
pub async fn remove(
    api: &Api,
    removal: Removal,
    mut tell: impl FnMut(&str),
) -> Result<Report, Failure> {
    // Nothing happens in a dry run, and its report says what would.
    let mut tell = |what: &str| {
        if !removal.dry_run {
            tell(what);
        }
    };
    let mut report = Report::default();
    let labels = format!("{}={}", PART_OF.0, PART_OF.1);
    let [deployments, rest @ ..] = INSTALLED;
    tell("the controller is stopped");
    take(api, deployments, &labels, removal, &mut report).await?;
    if !removal.dry_run {
        stopped(api, &labels).await?;
    }
    tell("finalizers come off");
    for place in OWN.into_iter().chain(HELD) {
        for object in list(api, place, "").await? {
            release(api, place, &object, removal, &mut report).await;
        }
    }
    if !report.refused.is_empty() {
        report.stays.push(
            "finalizers of ours, as some could not be taken off: the rest of the installation \
             stays too; remove the cause and run it again"
                .to_owned(),
        );
        return Ok(report);
    }
    kept(api, removal, &mut report).await?;
    if removal.definitions {
        tell("definitions go, and with them their objects");
        take(api, DEFINITIONS, &labels, removal, &mut report).await?;
    }
    tell("the installation goes");
    for place in rest.into_iter().filter(|place| place.kind != "Namespace") {
        take(api, place, &labels, removal, &mut report).await?;
    }
    Ok(report)
}

/// Deletes what the installation has of a kind.
async fn take(
    api: &Api,
    place: Place,
    labels: &str,
    removal: Removal,
    report: &mut Report,
) -> Result<(), Failure> {
    for object in list(api, place, labels).await? {
        if removal.dry_run {
            let one = Removed { object: shown(place, &object), done: "would be removed".into() };
            report.done.push(one);
            continue;
        }
        // The pods go with their Deployment, before anything else does. The rest has nothing below
        // it, and is gone at once: in the foreground it would stay until a collector comes by.
        let foreground = place.kind == "Deployment";
        let options = json!({
            "propagationPolicy": if foreground { "Foreground" } else { "Background" },
            "preconditions": { "uid": object["metadata"]["uid"] },
        });
        let sent = Some(("application/json", options.to_string().into_bytes()));
        let path = path_of(place, &object);
        let asked = about(place, "delete", "delete", &object);
        match api.request(Method::DELETE, &path, &[], sent, asked).await {
            Ok(_) | Err(ApiError::Absent(_)) => {
                report.done.push(Removed { object: shown(place, &object), done: "removed".into() });
            }
            Err(why) => report.refused.push(why.into()),
        }
        let notes = &object["metadata"]["annotations"];
        if let Some(release) = notes["meta.helm.sh/release-name"].as_str()
            && place.kind == "Deployment"
        {
            let namespace = notes["meta.helm.sh/release-namespace"].as_str().unwrap_or_default();
            report.stays.push(format!(
                "the release of Helm: helm uninstall {release} --namespace {namespace}"
            ));
        }
    }
    Ok(())
}

/// Waits until no pod of the controller is left: it could put finalizers on again.
async fn stopped(api: &Api, labels: &str) -> Result<(), Failure> {
    let labels = format!("{labels},app.kubernetes.io/component=controller");
    let begun = Instant::now();
    loop {
        let asked = || Asked::other("list pods", "list pods");
        let pods = match api.list_at("/api/v1/pods", &labels, asked).await {
            Ok(pods) => pods,
            Err(ApiError::Absent(_)) => return Ok(()),
            Err(ApiError::Refused(why)) => {
                tracing::warn!("{why}: nothing tells whether the controller has stopped");
                return Ok(());
            }
            Err(why) => return Err(why.into()),
        };
        if pods.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= STOPPED {
            tracing::warn!(
                "a pod of the controller does not end: its node may be gone; what it does now is \
                 refused as soon as its rights are removed"
            );
            return Ok(());
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Takes our finalizers off one object, as it was read: somebody else's stay.
async fn release(api: &Api, place: Place, object: &Value, removal: Removal, report: &mut Report) {
    let mut object = object.clone();
    loop {
        let all: Vec<&str> = object["metadata"]["finalizers"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let others: Vec<&str> =
            all.iter().copied().filter(|name| !name.starts_with(FINALIZERS)).collect();
        if others.len() == all.len() {
            return;
        }
        let name = shown(place, &object);
        if removal.dry_run {
            let done = "its finalizer would be taken off".to_owned();
            report.done.push(Removed { object: name, done });
            return;
        }
        let patch = json!({ "metadata": {
            "uid": object["metadata"]["uid"],
            "resourceVersion": object["metadata"]["resourceVersion"],
            "finalizers": others,
        } });
        let sent = Some(("application/merge-patch+json", patch.to_string().into_bytes()));
        let path = path_of(place, &object);
        let asked = about(place, "change", "patch", &object);
        match api.request(Method::PATCH, &path, &[], sent, asked).await {
            Ok(_) | Err(ApiError::Absent(_)) => {
                report.done.push(Removed { object: name, done: "finalizer taken off".into() });
                return;
            }
            // Somebody changed it since it was read: its finalizers may be others now.
            Err(ApiError::Conflict(_)) => {
                let asked = about(place, "read", "get", &object);
                match api.request(Method::GET, &path, &[], None, asked).await {
                    Ok(now) => object = now,
                    Err(ApiError::Absent(_)) => return,
                    Err(why) => return report.refused.push(why.into()),
                }
            }
            Err(why) => return report.refused.push(why.into()),
        }
    }
}

/// Says what stays: our objects, operations that have not ended, and Secrets.
async fn kept(api: &Api, removal: Removal, report: &mut Report) -> Result<(), Failure> {
    for place in OWN {
        let count = list(api, place, "").await?.len();
        if count > 0 && !removal.definitions {
            report.stays.push(format!(
                "{count} objects of kind {}: uninstall --crds removes them; their backups stay in \
                 the repository in any case",
                place.kind
            ));
        }
    }
    let running = list(api, RECORDS, "mover.dev/state=running").await?;
    for record in running {
        let meta = &record["metadata"];
        let (name, namespace) = (meta["name"].as_str(), meta["namespace"].as_str());
        let (name, namespace) = (name.unwrap_or_default(), namespace.unwrap_or_default());
        report.stays.push(format!(
            "operation {name}, which has not ended: kubectl mover cancel {name} -n {namespace}"
        ));
    }
    report.stays.push(
        "Secrets with keys of repositories, other Secrets, the namespace of the installation, and \
         all backups"
            .to_owned(),
    );
    Ok(())
}
