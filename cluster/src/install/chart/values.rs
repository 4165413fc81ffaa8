//! Values of the chart: one table, and what is printed from it.

use super::parsed;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// One value: its name, its default as YAML, the values that it may have, and its meaning.
struct Setting {
    name: &'static str,
    default: &'static str,
    schema: &'static str,
    meaning: &'static str,
}

const TEXT: &str = r#"{"type": "string"}"#;
const FLAG: &str = r#"{"type": "boolean"}"#;
const TEXTS: &str = r#"{"type": "array", "items": {"type": "string", "minLength": 1}}"#;
const OBJECT: &str = r#"{"type": "object"}"#;
const OBJECTS: &str = r#"{"type": "array", "items": {"type": "object"}}"#;

const fn setting(
    name: &'static str,
    default: &'static str,
    schema: &'static str,
    meaning: &'static str,
) -> Setting {
    Setting { name, default, schema, meaning }
}

const SETTINGS: [Setting; 21] = [
    setting(
        "image.repository",
        "mover",
        r#"{"type": "string", "minLength": 1}"#,
        "image of the controller, and of Jobs whose Repository names none: one image has both programs",
    ),
    setting("image.tag", "\"\"", TEXT, "its tag; the version of the chart without it"),
    setting(
        "image.digest",
        "\"\"",
        r#"{"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}"#,
        "its digest, such as sha256:…, instead of the tag: of an index of images for amd64 and arm64",
    ),
    setting(
        "image.pullPolicy",
        "IfNotPresent",
        r#"{"enum": ["Always", "IfNotPresent", "Never"]}"#,
        "when the controller's image is pulled",
    ),
    setting("imagePullSecrets", "[]", OBJECTS, "Secrets that it is pulled with, as {name: …}"),
    setting("jobImages", "[]", TEXTS, "more images that a Repository may name for its Jobs"),
    setting(
        "jobSecurity",
        "baseline",
        r#"{"enum": ["baseline", "restricted"]}"#,
        "Pod Security of Jobs; restricted where the nodes' containerd has device_ownership_from_security_context",
    ),
    setting(
        "watchNamespaces",
        "[]",
        TEXTS,
        "namespaces that the controller works in; all without any",
    ),
    setting("hooks", "false", FLAG, "whether the controller may run hooks in pods (pods/exec)"),
    setting(
        "restoreInPlace",
        "true",
        FLAG,
        "whether it may restore in place: it then deletes and remakes claims of users",
    ),
    setting(
        "differentialSnapshots",
        "\"\"",
        TEXT,
        "Secret of type kubernetes.io/tls for the server of changed blocks (DifferentialSnapshot); off without it",
    ),
    setting(
        "veleroNamespace",
        "\"\"",
        TEXT,
        "namespace of Velero, whose data is moved (velero backup create --data-mover mover); off without it",
    ),
    setting(
        "definitions",
        "true",
        FLAG,
        "whether the kinds are a part of the release; they stay when it goes",
    ),
    setting(
        "policies",
        "true",
        FLAG,
        "admission policies: without them rights alone bound authors and controller",
    ),
    setting("networkPolicies", "true", FLAG, "network policies"),
    setting(
        "monitoring",
        "true",
        FLAG,
        "PodMonitor and PrometheusRule, where there is a Prometheus operator",
    ),
    setting(
        "resources",
        "{requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 128Mi}}",
        OBJECT,
        "requests and limits of the controller",
    ),
    setting("nodeSelector", "{}", OBJECT, "labels of the nodes that may run it"),
    setting("tolerations", "[]", OBJECTS, "taints of nodes that it bears"),
    setting("affinity", "{}", OBJECT, "affinity of its pod"),
    setting("priorityClassName", "\"\"", TEXT, "priority of its pod"),
];

/// `values.yaml`: each value below its meaning.
pub(super) fn file() -> String {
    let mut text = String::new();
    let mut group = "";
    for Setting { name, default, meaning, .. } in &SETTINGS {
        match name.split_once('.') {
            Some((of, member)) => {
                if group != of {
                    let _ = writeln!(text, "{of}:");
                }
                group = of;
                let _ = writeln!(text, "  # {meaning}\n  {member}: {default}");
            }
            None => {
                let _ = writeln!(text, "# {meaning}\n{name}: {default}");
            }
        }
    }
    text
}

/// `values.schema.json`: a value of another name or type is refused.
pub(super) fn schema() -> String {
    let object = |members: Map<String, Value>| json!({ "type": "object", "additionalProperties": false, "properties": members });
    let (mut all, mut image) = (Map::new(), Map::new());
    for Setting { name, schema, .. } in &SETTINGS {
        let schema: Value = serde_json::from_str(schema).expect("JSON");
        match name.split_once('.') {
            Some((_, member)) => image.insert(member.to_owned(), schema),
            None => all.insert((*name).to_owned(), schema),
        };
    }
    all.insert("image".to_owned(), object(image));
    // Helm gives every chart these.
    all.insert("global".to_owned(), json!({ "type": "object" }));
    let mut schema = object(all);
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    let text = serde_json::to_string_pretty(&schema).expect("JSON");
    format!("{text}\n")
}

/// `README.md` of the chart.
pub(super) fn readme() -> String {
    let mut text = String::from(HEAD);
    for Setting { name, default, meaning, .. } in &SETTINGS {
        assert!(!parsed(default).is_null(), "{name} has a default");
        let _ = writeln!(text, "| `{name}` | `{default}` | {meaning} |");
    }
    text.push_str(TAIL);
    text
}

const HEAD: &str = "# mover

A chart of the controller of `mover`: its kinds, rights, admission policies, network policies and alerts. The plain
manifests in `deploy/controller/` are made of the same source.

```sh
kubectl create namespace mover-system
kubectl label namespace mover-system pod-security.kubernetes.io/enforce=baseline
helm install mover deploy/helm/mover --namespace mover-system --set image.repository=registry.example.com/mover
```

The namespace has to allow *baseline*, as Jobs of shared Repositories run in it. The controller itself keeps to
*restricted*.

| value | default | meaning |
|---|---|---|
";

const TAIL: &str = "
Before `helm uninstall`, `kubectl mover uninstall` takes the finalizers off all objects: without that, objects that are
deleted later would wait for a controller that is gone. The kinds and their objects stay in any case.
";
