//! The controller's Deployment.

use super::{
    CONTROLLER, JobSecurity, METRICS_PORT, SEAL_SECRET, Settings, differential, labelled, places,
};
use serde_json::{Map, Value, json};

/// An account that no image has: nothing is owned by it.
const USER: u32 = 65532;

/// Labels of its pods.
pub(super) fn labels() -> Value {
    json!({ "app.kubernetes.io/name": "mover", "app.kubernetes.io/component": "controller" })
}

/// The level of Pod Security that Jobs keep to.
pub(super) fn level(security: JobSecurity) -> &'static str {
    match security {
        JobSecurity::Baseline => "baseline",
        JobSecurity::Restricted => "restricted",
    }
}

/// 1,000 operations at once take less than 100 MiB.
pub(super) fn resources() -> Value {
    json!({
        "requests": { "cpu": "50m", "memory": "64Mi" },
        "limits": { "memory": "128Mi" },
    })
}

/// It is of the level *restricted*: no root, no capabilities, nothing to write to.
pub(super) fn deployment(settings: &Settings) -> Value {
    let mut settings = settings.clone();
    if let Some(secret) = settings.differential.clone() {
        differential::extend(&mut settings, &secret);
    }
    let settings = &settings;
    labelled(json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": CONTROLLER, "namespace": settings.namespace },
        "spec": {
            "replicas": 1,
            // Two do no harm, and double the requests.
            "strategy": { "type": "Recreate" },
            "selector": { "matchLabels": labels() },
            "template": {
                "metadata": {
                    "labels": {
                        "app.kubernetes.io/name": "mover",
                        "app.kubernetes.io/component": "controller",
                        "app.kubernetes.io/part-of": "mover",
                    },
                    "annotations": { "kubectl.kubernetes.io/default-container": "controller" },
                },
                "spec": pod(settings),
            },
        },
    }))
}

fn pod(settings: &Settings) -> Value {
    let mut spec = Map::new();
    spec.insert("serviceAccountName".into(), CONTROLLER.into());
    spec.insert("automountServiceAccountToken".into(), true.into());
    spec.insert("enableServiceLinks".into(), false.into());
    spec.insert(
        "securityContext".into(),
        json!({
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        }),
    );
    spec.insert("containers".into(), json!([container(settings)]));
    spec.extend(settings.pod.clone());
    spec.into()
}

fn arguments(settings: &Settings) -> Vec<String> {
    let mut all = vec![
        "controller".to_owned(),
        "--namespace=$(POD_NAMESPACE)".to_owned(),
        // Reached by port-forward alone.
        "--listen-page=127.0.0.1:8080".to_owned(),
        format!("--listen-metrics=0.0.0.0:{METRICS_PORT}"),
        format!("--image={}", settings.image),
        format!("--seal-secret={SEAL_SECRET}"),
    ];
    if settings.job_security == JobSecurity::Restricted {
        all.push("--job-security=restricted".to_owned());
    }
    if !settings.watch_namespaces.is_empty() {
        let named = places::worked_in(settings).into_iter();
        all.extend(named.map(|namespace| format!("--watch-namespace={namespace}")));
    }
    all.extend(settings.arguments.iter().cloned());
    if let Some(namespace) = &settings.velero {
        all.push(format!("{}--velero-namespace={namespace}", settings.velero_mark));
    }
    all
}

fn container(settings: &Settings) -> Value {
    let probe = |path: &str, seconds: u32| {
        json!({
            "httpGet": { "path": path, "port": "metrics" },
            "periodSeconds": seconds,
            "timeoutSeconds": 5,
        })
    };
    let mut ports =
        vec![json!({ "name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP" })];
    ports.extend(settings.ports.iter().cloned());
    let mut container = json!({
        "name": "controller",
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["/kubectl-mover"],
        "args": arguments(settings),
        "env": [{
            "name": "POD_NAMESPACE",
            "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } },
        }],
        "ports": ports,
        "readinessProbe": probe("/readyz", 5),
        "livenessProbe": probe("/healthz", 20),
        "resources": settings.resources,
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    for (name, value) in &settings.container {
        container[name.as_str()] = value.clone();
    }
    container
}
