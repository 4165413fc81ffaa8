//! Server-side apply of an installation, and the wait until it is at work.

use super::places::{DEFINITIONS, Place, shown};
use super::{CONTROLLER, File, Manifest, Settings};
use crate::api::{Api, ApiError, Asked};
use crate::engine::{Failure, exit};
use http::Method;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Names whoever applies, in managed fields.
const MANAGER: &str = "kubectl-mover-install";
/// Until something that is waited for is asked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// What became of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its kind, name and namespace.
    pub object: String,
    /// For people.
    pub done: String,
}

fn place_of(object: &Value) -> Place {
    Place::of(object).expect("each object of an installation has a place")
}

fn asked(place: Place, word: &str, verb: &str, object: &Value) -> Asked {
    Asked::other(&format!("{word} {}", shown(place, object)), &place.right(verb))
}

/// Applies these objects in their order. With `dry_run` the server says whether it would take them.
///
/// # Errors
///
/// The first that is refused. Objects for the Prometheus operator are left away where there is
/// none.
pub async fn apply(
    api: &Api,
    manifests: &[Manifest],
    dry_run: bool,
    mut tell: impl FnMut(&Applied),
) -> Result<Vec<Applied>, Failure> {
    let mut all = Vec::new();
    for manifest in manifests {
        let object = &manifest.object;
        let place = place_of(object);
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{}/{name}", place.path(object["metadata"]["namespace"].as_str()));
        let mut query = vec![("fieldManager", MANAGER), ("force", "true")];
        if dry_run {
            query.push(("dryRun", "All"));
        }
        let body = serde_json::to_vec(object).expect("JSON");
        let sent = Some(("application/apply-patch+yaml", body));
        let asked = asked(place, "apply", "patch", object);
        let done = match api.request(Method::PATCH, &path, &query, sent, asked).await {
            Ok(_) if dry_run => "would be applied",
            Ok(_) => "applied",
            Err(ApiError::Absent(_)) if manifest.file == File::Monitoring => {
                "left away: the cluster has no Prometheus operator"
            }
            // A dry run makes no namespace, so nothing can be tried in it.
            Err(ApiError::Absent(_)) if dry_run && place.namespaced => {
                "would be applied, in a namespace that is not there yet"
            }
            Err(why) => return Err(why.into()),
        };
        let one = Applied { object: shown(place, object), done: done.to_owned() };
        tell(&one);
        all.push(one);
    }
    Ok(all)
}

/// Waits until the definitions are served and the Deployment runs as it was applied.
///
/// # Errors
///
/// Neither within this time; the message says what is missing.
pub async fn rolled_out(
    api: &Api,
    settings: &Settings,
    manifests: &[Manifest],
    limit: Duration,
    mut tell: impl FnMut(&str),
) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let Some((why, hint)) = missing(api, settings, manifests).await? else { return Ok(()) };
        if begun.elapsed() >= limit {
            let what = format!("{why}, and after {} s that is given up", limit.as_secs());
            return Err(Failure::new(exit::RETRYABLE, what).hint(hint));
        }
        tell(&why);
        tokio::time::sleep(AGAIN).await;
    }
}

/// What is not there yet, and where to look.
async fn missing(
    api: &Api,
    settings: &Settings,
    manifests: &[Manifest],
) -> Result<Option<(String, String)>, Failure> {
    for manifest in manifests.iter().filter(|at| at.file == File::Definitions) {
        let name = manifest.object["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("{}/{name}", DEFINITIONS.path(None));
        let asked = asked(DEFINITIONS, "read", "get", &manifest.object);
        let found = api.request(Method::GET, &path, &[], None, asked).await?;
        if !has_condition(&found, "Established") {
            let hint = format!("kubectl get crd {name} -o yaml");
            return Ok(Some((format!("crd/{name} is not served"), hint)));
        }
    }
    let deployment = manifests.iter().find(|at| at.file == File::Controller);
    let Some(deployment) = deployment else { return Ok(None) };
    let place = place_of(&deployment.object);
    let path = format!("{}/{CONTROLLER}", place.path(Some(&settings.namespace)));
    let asked = asked(place, "read", "get", &deployment.object);
    let found = api.request(Method::GET, &path, &[], None, asked).await?;
    if is_rolled_out(&found) {
        return Ok(None);
    }
    let hint = format!(
        "kubectl -n {0} describe pods -l app.kubernetes.io/component=controller; kubectl -n {0} logs deployment/{CONTROLLER}",
        settings.namespace
    );
    Ok(Some((format!("deployment/{CONTROLLER} is not ready"), hint)))
}

fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|at| at["type"] == kind && at["status"] == "True")
}

/// All its pods are of the newest template, and ready.
fn is_rolled_out(found: &Value) -> bool {
    let number = |of: &Value| of.as_i64().unwrap_or_default();
    let status = &found["status"];
    let wanted = found["spec"]["replicas"].as_i64().unwrap_or(1);
    number(&status["observedGeneration"]) >= number(&found["metadata"]["generation"])
        && number(&status["updatedReplicas"]) == wanted
        && number(&status["readyReplicas"]) == wanted
        && number(&status["replicas"]) == wanted
}
