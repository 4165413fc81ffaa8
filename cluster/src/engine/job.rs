//! The Job that runs `mover`. Everything that decides about an operation is in its arguments, which
//! nothing changes once the Job is there.

use super::carried;
use super::names::{self, Anchor, MANAGER, OWNER, REPOSITORY, ROLE, SLOT};
use super::object::Key;
use super::observed::{Object, Observed};
use super::parts::{Context, Finished, JOBS_MAX, SummaryFor};
use super::request::{ChangesService, Limits, Repository, value};
use super::step::{Planned, Step};
use super::views::Pod;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Longest value of a label.
const LABEL_BYTES: usize = 63;
const KEYS: &str = "/etc/mover/keys";
const CA: &str = "/etc/mover/ca";
const CHANGES: &str = "/etc/mover/changes";
/// An account that no image has, for pods that are not root's.
const NOBODY: u32 = 65532;
/// Holds the authority of the changed blocks' service: an annotation of the pod, so that it is a
/// part of the Job.
const CHANGES_CA: &str = "mover.dev/changes-ca";

/// How the pod has its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The kernel itself refuses writes.
    Read,
    /// For restores.
    Write,
}

/// What the Job runs.
#[derive(Debug, Clone)]
pub struct JobSpec<'a> {
    /// Its repository.
    pub repository: &'a Repository,
    /// Arguments of `mover`.
    pub arguments: Vec<String>,
    /// The claim of its device, the device's path and what it does with it.
    pub device: Option<(&'a str, &'a str, Access)>,
    /// Where changed blocks are asked for.
    pub changes: Option<&'a ChangesService>,
    /// Secrets that are the parts of one file, in their order.
    pub objects: Vec<String>,
}

impl<'a> JobSpec<'a> {
    /// One without a device.
    pub fn of(repository: &'a Repository, arguments: Vec<String>) -> Self {
        Self { repository, arguments, device: None, changes: None, objects: Vec::new() }
    }
}

/// Arguments that lead to a service of changed blocks.
pub(super) fn changes_arguments(service: &ChangesService, namespace: &str) -> Vec<String> {
    vec![
        format!("--changes-server={}", service.address),
        format!("--changes-namespace={namespace}"),
        format!("--changes-token-file={CHANGES}/token"),
        format!("--changes-ca-file={CHANGES}/ca.crt"),
    ]
}

/// A Job of an operation.
pub(super) fn job(anchor: &Anchor, key: &Key, role: &str, spec: &JobSpec<'_>) -> Value {
    names::object(key, anchor.meta(key, role), body(spec, &anchor.uid, role))
}

/// A Job that looks something up, and what it found: it belongs to no operation, and is removed
/// soon after its end by the cluster, should nobody do it before.
pub fn lookup(
    owner: &Anchor,
    spec: &JobSpec<'_>,
    limits: Limits,
    seen: &Observed,
) -> Planned<Finished> {
    alone(owner, "lookup", spec, limits, seen, |made| {
        made["spec"]["ttlSecondsAfterFinished"] = json!(300);
        made["spec"]["activeDeadlineSeconds"] = json!(1800);
    })
}

/// A Job of no operation: `owner` names it and marks it, and owns nothing. `finish` changes the
/// object before it is made.
pub fn alone(
    owner: &Anchor,
    role: &str,
    spec: &JobSpec<'_>,
    limits: Limits,
    seen: &Observed,
    finish: impl Fn(&mut Value),
) -> Planned<Finished> {
    let context = Context { seen, anchor: owner, limits };
    let namespace = &spec.repository.namespace;
    seen.settle(context.run_job(
        namespace,
        None,
        SummaryFor::Nobody,
        |_| Ok(()),
        |key| {
            let mut made = job(owner, key, role, spec);
            if let Some(meta) = made["metadata"].as_object_mut() {
                meta.remove("ownerReferences");
            }
            finish(&mut made);
            made
        },
    ))
}

/// The pod of a Job that runs until it is removed, once it has begun. Should nobody remove it, the
/// cluster ends it after so many seconds, and removes it soon after.
pub fn held(
    owner: &Anchor,
    spec: &JobSpec<'_>,
    seconds: u64,
    seen: &Observed,
) -> Planned<Object<Pod>> {
    let context = Context { seen, anchor: owner, limits: Limits::default() };
    let namespace = &spec.repository.namespace;
    let key = owner.job(namespace, 1);
    let make = || {
        let mut made = job(owner, &key, "lookup", spec);
        if let Some(meta) = made["metadata"].as_object_mut() {
            meta.remove("ownerReferences");
        }
        made["spec"]["ttlSecondsAfterFinished"] = json!(60);
        made["spec"]["activeDeadlineSeconds"] = json!(seconds);
        made
    };
    seen.settle(context.await_pod(&key, make))
}

/// Removes such Jobs. Nobody waits until they are gone.
///
/// # Errors
///
/// What comes first.
pub fn remove_alone(owner: &Anchor, namespace: &str, seen: &Observed) -> Planned<()> {
    let context = Context { seen, anchor: owner, limits: Limits::default() };
    for number in 1..=JOBS_MAX {
        let key = owner.job(namespace, number);
        let Some(found) = seen.find::<Value>(&key)? else { return Ok(()) };
        if context.is_ours(&found.meta) && found.meta.deletion_timestamp.is_none() {
            return Err(Step::Delete { key, uid: found.meta.uid }.into());
        }
    }
    Ok(())
}

fn body(spec: &JobSpec<'_>, owner: &str, role: &str) -> Value {
    let mut labels = json!({ "app.kubernetes.io/name": "mover", "app.kubernetes.io/managed-by": MANAGER, OWNER: owner, ROLE: role });
    // A lookup has no device, and hardly any work.
    let most = spec.repository.pods_per_node.filter(|_| spec.device.is_some());
    let slot = most.map(|most| slot(spec.repository, owner, most));
    for (name, text) in slot.iter().flatten() {
        labels[*name] = json!(text);
    }
    let mut annotations = json!({});
    if let Some(changes) = spec.changes {
        annotations[CHANGES_CA] = json!(changes.ca);
    }
    json!({
        "spec": {
            // Code 1 may pass, and so may 137 and 143: tried again after 10 s, 20 s, 40 s, …
            "backoffLimit": 6,
            // A volume that one node has attached is free again only when its pod has ended.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": { "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": { "containerName": "mover", "operator": "In", "values": [2, 3, 4, 5, 6, 70] },
                },
                {
                    "action": "Ignore",
                    "onPodConditions": [{ "type": "DisruptionTarget", "status": "True" }],
                },
            ] },
            "template": {
                "metadata": { "labels": labels, "annotations": annotations },
                "spec": scheduled(pod(spec), spec.repository, slot.as_ref()),
            },
        },
    })
}

/// The labels that no two pods on one node share. Kubernetes has no rule for "at most so many on
/// each node", but one for "none beside another": so a pod has one of so many slots, which follows
/// from its operation, and keeps away from all of the same slot.
fn slot(repository: &Repository, owner: &str, most: u32) -> [(&'static str, String); 2] {
    let name = match repository.name.len() <= LABEL_BYTES {
        true => repository.name.clone(),
        false => format!("{:016x}", names::hash(&repository.name)),
    };
    let number = names::hash(owner) % u64::from(most.max(1));
    [(REPOSITORY, name), (SLOT, number.to_string())]
}

/// On which nodes the pod may run, and before which others.
fn scheduled(
    mut pod: Value,
    repository: &Repository,
    slot: Option<&[(&'static str, String); 2]>,
) -> Value {
    if !repository.node_selector.is_empty() {
        pod["nodeSelector"] = json!(repository.node_selector);
    }
    if !repository.tolerations.is_empty() {
        pod["tolerations"] = json!(repository.tolerations);
    }
    if let Some(class) = &repository.priority_class {
        pod["priorityClassName"] = json!(class);
    }
    if !repository.image_pull_secrets.is_empty() {
        let secrets = repository.image_pull_secrets.iter();
        pod["imagePullSecrets"] = secrets.map(|name| json!({ "name": name })).collect();
    }
    if let Some(slot) = slot {
        let labels: BTreeMap<_, _> = slot.iter().map(|(name, text)| (*name, text)).collect();
        let term = json!({
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": { "matchLabels": labels },
        });
        pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!([term]);
    }
    pod
}

fn pod(spec: &JobSpec<'_>) -> Value {
    let repository = spec.repository;
    let mut volumes = vec![
        json!({ "name": "keys", "secret": { "secretName": repository.key_secret, "defaultMode": 256 } }),
        json!({ "name": "scratch", "emptyDir": { "sizeLimit": "1Gi" } }),
    ];
    let mut mounts = vec![
        json!({ "name": "keys", "mountPath": KEYS, "readOnly": true }),
        json!({ "name": "scratch", "mountPath": "/scratch" }),
    ];
    let mut env = vec![
        value("MOVER_REPO", &repository.url),
        value("MOVER_KEY_FILE", KEYS),
        value("MOVER_SCRATCH", "/scratch"),
        value("MOVER_JSON", "1"),
        value("MOVER_LOG_LEVEL", "info"),
    ];
    env.extend(repository.env.iter().map(|(name, text)| value(name, text)));
    if let Some(ca) = &repository.ca_config_map {
        volumes.push(json!({ "name": "ca", "configMap": { "name": ca } }));
        mounts.push(json!({ "name": "ca", "mountPath": CA, "readOnly": true }));
        env.push(value("SSL_CERT_FILE", &format!("{CA}/ca.crt")));
    }
    if let Some(changes) = spec.changes {
        volumes.push(changes_volume(changes));
        mounts.push(json!({ "name": "changes", "mountPath": CHANGES, "readOnly": true }));
    }
    if !spec.objects.is_empty() {
        let (volume, mount) = carried::volume(&spec.objects);
        volumes.push(volume);
        mounts.push(mount);
    }
    let mut container = container(spec, &env, &mounts);
    if let Some((claim, path, access)) = spec.device {
        container["volumeDevices"] = json!([{ "name": "device", "devicePath": path }]);
        volumes.push(json!({
            "name": "device",
            "persistentVolumeClaim": { "claimName": claim, "readOnly": access == Access::Read },
        }));
    }
    json!({
        "restartPolicy": "Never",
        "serviceAccountName": repository.service_account,
        // It never speaks to the Kubernetes API.
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 30,
        "securityContext": security(repository.restricted),
        "containers": [container],
        "volumes": volumes,
    })
}

/// Who the pod is. The device node belongs to root, unless the container runtime gives it to the
/// pod's user. Files of Secrets and the scratch folder are the group's.
fn security(restricted: bool) -> Value {
    let seccomp = json!({ "type": "RuntimeDefault" });
    match restricted {
        false => json!({
            "runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": false, "seccompProfile": seccomp,
        }),
        true => json!({
            "runAsUser": NOBODY, "runAsGroup": NOBODY, "fsGroup": NOBODY, "runAsNonRoot": true,
            "seccompProfile": seccomp,
        }),
    }
}

fn container(spec: &JobSpec<'_>, env: &[Value], mounts: &[Value]) -> Value {
    let repository = spec.repository;
    let env_from: Vec<Value> = repository
        .credentials_secret
        .iter()
        .map(|name| json!({ "secretRef": { "name": name } }))
        .collect();
    json!({
        "name": "mover",
        "image": repository.image,
        "imagePullPolicy": repository.image_pull_policy,
        "args": spec.arguments,
        "env": env,
        "envFrom": env_from,
        "resources": {
            "requests": { "cpu": repository.cpu, "memory": repository.memory },
            "limits": { "cpu": repository.cpu, "memory": repository.memory },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    })
}

fn changes_volume(changes: &ChangesService) -> Value {
    json!({ "name": "changes", "projected": { "sources": [
        { "serviceAccountToken": { "audience": changes.audience, "expirationSeconds": 3600, "path": "token" } },
        { "downwardAPI": { "items": [{
            "path": "ca.crt",
            "fieldRef": { "fieldPath": format!("metadata.annotations['{CHANGES_CA}']") },
        }] } },
    ] } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The level *restricted* of Pod Security asks for all of these.
    #[test]
    fn a_restricted_pod_is_nobody() {
        let repository = Repository { restricted: true, ..Repository::default() };
        let spec = JobSpec::of(&repository, Vec::new());
        let pod = pod(&spec);
        let security = &pod["securityContext"];
        assert_eq!(security["runAsNonRoot"], true);
        assert_eq!(security["runAsUser"], security["fsGroup"]);
        assert_ne!(security["runAsUser"], 0);
        assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["capabilities"], json!({ "drop": ["ALL"] }));
    }

    /// A request of the version before has no word of it, and asks for what it asked for.
    #[test]
    fn a_request_without_a_level_stays_as_it_was() {
        let text = serde_json::to_string(&Repository::default()).expect("JSON");
        assert!(!text.contains("restricted"), "{text}");
        let read: Repository = serde_json::from_str(&text).expect("as before");
        assert!(!read.restricted);
    }
}
