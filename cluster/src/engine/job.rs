//! The Job that runs `mover`. Everything that decides about an operation is in its arguments, which
//! nothing changes once the Job is there.

use super::names::{self, Anchor, MANAGER, OWNER, ROLE};
use super::object::Key;
use super::observed::Observed;
use super::parts::{Context, Finished, SummaryFor};
use super::request::{ChangesService, Limits, Repository, value};
use super::step::Planned;
use serde_json::{Value, json};

const KEYS: &str = "/etc/mover/keys";
const CA: &str = "/etc/mover/ca";
const CHANGES: &str = "/etc/mover/changes";
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
    let context = Context { seen, anchor: owner, limits };
    let namespace = &spec.repository.namespace;
    seen.settle(context.run_job(
        namespace,
        None,
        SummaryFor::Nobody,
        |_| Ok(()),
        |key| {
            let mut made = job(owner, key, "lookup", spec);
            if let Some(meta) = made["metadata"].as_object_mut() {
                meta.remove("ownerReferences");
            }
            made["spec"]["ttlSecondsAfterFinished"] = json!(300);
            made["spec"]["activeDeadlineSeconds"] = json!(1800);
            made
        },
    ))
}

fn body(spec: &JobSpec<'_>, owner: &str, role: &str) -> Value {
    let labels = json!({ "app.kubernetes.io/name": "mover", "app.kubernetes.io/managed-by": MANAGER, OWNER: owner, ROLE: role });
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
                "spec": pod(spec),
            },
        },
    })
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
        "securityContext": {
            // The device node belongs to root.
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [container],
        "volumes": volumes,
    })
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
