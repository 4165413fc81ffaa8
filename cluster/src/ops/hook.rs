//! Where a hook runs: the pod that uses the claim, and its container.

use crate::api::Api;
use crate::engine::{self, Failure, Hook, Key, Kind, Meta, OnTimeout, Selection, exit};
use crate::hooks::containers;
use serde_json::Value;

/// What the command line says of a hook.
#[derive(Debug, Clone)]
pub struct HookOptions {
    /// The pod, where not the only one that uses the claim is meant.
    pub pod: Option<String>,
    /// Its container, where it has several.
    pub container: Option<String>,
    /// See [`crate::hooks`].
    pub commands: crate::hooks::Commands,
    /// Seconds after which the lock is let go of.
    pub timeout_seconds: u64,
    /// What follows then.
    pub on_timeout: OnTimeout,
}

/// The hook for a claim.
///
/// # Errors
///
/// No pod, or no container, that can be meant; one that no hook can run in.
pub async fn find(
    api: &Api,
    namespace: &str,
    claim: &str,
    options: &HookOptions,
) -> Result<Hook, Failure> {
    let pod = match &options.pod {
        Some(name) => {
            let key = Key::new(Kind::Pod, namespace, name);
            api.get(&key)
                .await?
                .ok_or_else(|| Failure::new(exit::USAGE, format!("there is no {key}")))?
        }
        None => the_pod_of(api, namespace, claim).await?,
    };
    let Meta { name, uid, .. } = Meta::of(&pod);
    let (container, container_id) = container_of(&pod, options.container.as_deref())
        .map_err(|why| Failure::new(exit::USAGE, format!("pod/{name}: {why}")))?;
    let crate::hooks::Commands { command, after, whole } = options.commands.clone();
    let hook = Hook {
        namespace: namespace.into(),
        pod: name,
        uid,
        container,
        container_id,
        command,
        after,
        whole,
        timeout_seconds: options.timeout_seconds,
        on_timeout: options.on_timeout,
    };
    crate::hooks::probe(api, &hook).await?;
    Ok(hook)
}

async fn the_pod_of(api: &Api, namespace: &str, claim: &str) -> Result<Value, Failure> {
    let (all, _) = api.list(&Selection::labelled(Kind::Pod, namespace, "")).await?;
    let claim_key = Key::new(Kind::PersistentVolumeClaim, namespace, claim);
    let uses = |pod: &&Value| pod["status"]["phase"] == "Running" && engine::uses(pod, &claim_key);
    let found: Vec<&Value> = all.iter().filter(uses).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(Failure::new(exit::USAGE, format!("no running pod uses pvc/{claim}"))
            .hint("without a running application nothing has to hold still: leave the hook away")),
        many => {
            let names: Vec<String> = many.iter().map(|pod| Meta::of(pod).name).collect();
            Err(Failure::new(exit::USAGE, format!("several pods use pvc/{claim}"))
                .hint(format!("name one by --hook-pod: {}", names.join(", "))))
        }
    }
}

fn container_of(pod: &Value, named: Option<&str>) -> Result<(String, String), String> {
    let running: Vec<&Value> =
        containers(pod).filter(|at| at["state"]["running"].is_object()).collect();
    let found = match (named, running.as_slice()) {
        (Some(name), all) => all.iter().find(|at| at["name"] == name).copied(),
        (None, [only]) => Some(*only),
        (None, _) => None,
    };
    let names: Vec<&str> = running.iter().filter_map(|at| at["name"].as_str()).collect();
    let found = found.ok_or_else(|| match (named, names.is_empty()) {
        (_, true) => "no container of it runs".to_owned(),
        (Some(name), _) => {
            format!("no container {name} of it runs; there are: {}", names.join(", "))
        }
        (None, _) => format!("name its container by --hook-container: {}", names.join(", ")),
    })?;
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    Ok((text("name"), text("containerID")))
}
