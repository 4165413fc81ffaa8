//! What is kept of an object, and what a new cluster gets of it.
//!
//! [`stored`] takes off what belongs to the old cluster alone: status, node, tokens, what the API
//! server manages. Uid and owners stay, as restored objects find their owners by them. [`ready`]
//! makes of that an object that can be created: in another namespace if that is asked for, and with
//! its owners' new uids.

use super::item::ItemKind;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What the API server manages.
const MANAGED: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generateName",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
];
/// The volume of a token, which each pod gets anew.
const TOKEN_VOLUME: &str = "kube-api-access-";
/// Annotation of an object that was made before its owners; it goes when it has them.
pub const OWNERS_LATER: &str = "mover.dev/owners-later";
/// The label of a namespace that has its name.
const NAMED: &str = "kubernetes.io/metadata.name";

/// The object without what is never kept.
pub fn stored(of: &ItemKind, mut object: Value) -> Value {
    object["apiVersion"] = of.api_version().into();
    object["kind"] = of.kind.clone().into();
    let Some(members) = object.as_object_mut() else { return object };
    members.remove("status");
    if let Some(metadata) = members.get_mut("metadata").and_then(Value::as_object_mut) {
        MANAGED.iter().for_each(|name| drop(metadata.remove(*name)));
    }
    // Of a restore that is under way.
    remove(&mut object, &["metadata", "annotations"], OWNERS_LATER);
    if (of.group.as_str(), of.kind.as_str()) == ("", "Pod") {
        pod(&mut object["spec"]);
    }
    object
}

/// Old namespaces and their new names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespaceMap(pub BTreeMap<String, String>);

impl NamespaceMap {
    /// Where objects of this namespace go.
    pub fn of<'a>(&'a self, namespace: &'a str) -> &'a str {
        self.0.get(namespace).map_or(namespace, String::as_str)
    }
}

/// The object as it is created, of one that was [`stored`]. `new_uid` knows the owners that are
/// there: other owners are left away, and their uids are returned.
pub fn ready(
    of: &ItemKind,
    mut object: Value,
    namespaces: &NamespaceMap,
    new_uid: impl Fn(&str) -> Option<String>,
) -> (Value, Vec<String>) {
    let mut absent = Vec::new();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("uid");
        // Whoever needs one sets it again; of others nobody would take it off.
        metadata.remove("finalizers");
        if let Some(Value::Array(mut owners)) = metadata.remove("ownerReferences") {
            owners.retain_mut(|owner| {
                let old = owner["uid"].as_str().unwrap_or_default().to_owned();
                match new_uid(&old) {
                    Some(new) => owner["uid"] = new.into(),
                    None => {
                        absent.push(old);
                        return false;
                    }
                }
                true
            });
            if !owners.is_empty() {
                metadata.insert("ownerReferences".into(), owners.into());
            }
        }
        if let Some(namespace) = metadata.get("namespace").and_then(Value::as_str) {
            let new = namespaces.of(namespace).to_owned();
            metadata.insert("namespace".into(), new.into());
        }
    }
    by_kind(of, &mut object);
    if (of.group.as_str(), of.kind.as_str()) == ("", "Namespace") {
        let new = namespaces.of(object["metadata"]["name"].as_str().unwrap_or_default()).to_owned();
        object["metadata"]["name"] = new.into();
    }
    if namespaces.0.iter().any(|(old, new)| old != new) {
        remap(&mut object, namespaces);
    }
    (object, absent)
}

/// What other objects say of a namespace: maps with a name and a namespace, and selectors of
/// namespaces by their names.
fn remap(object: &mut Value, namespaces: &NamespaceMap) {
    let foreign = ["metadata", "data", "binaryData", "stringData"];
    if let Some(metadata) = object["metadata"].as_object_mut()
        && let Some(notes) = metadata.get_mut("annotations").and_then(Value::as_object_mut)
    {
        // It repeats the object with its old namespace, and `kubectl apply` would follow it.
        notes.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    let members = object.as_object_mut().into_iter().flatten();
    let members = members.filter(|(name, _)| !foreign.contains(&name.as_str()));
    let mut stack: Vec<&mut Value> = members.map(|(_, value)| value).collect();
    while let Some(value) = stack.pop() {
        match value {
            Value::Array(all) => stack.extend(all),
            Value::Object(members) => {
                if members.get("name").is_some_and(Value::is_string) {
                    renamed(members, "namespace", namespaces);
                }
                renamed(members, NAMED, namespaces);
                if members.get("key").and_then(Value::as_str) == Some(NAMED)
                    && let Some(Value::Array(values)) = members.get_mut("values")
                {
                    for value in values {
                        if let Value::String(name) = value {
                            *name = namespaces.of(name).to_owned();
                        }
                    }
                }
                stack.extend(members.values_mut());
            }
            _ => {}
        }
    }
}

fn renamed(members: &mut Map<String, Value>, member: &str, namespaces: &NamespaceMap) {
    if let Some(Value::String(name)) = members.get_mut(member) {
        *name = namespaces.of(name).to_owned();
    }
}

fn by_kind(of: &ItemKind, object: &mut Value) {
    match (of.group.as_str(), of.kind.as_str()) {
        ("", "Namespace") => {
            remove(object, &["spec"], "finalizers");
            remove(object, &["metadata", "labels"], NAMED);
        }
        ("", "Service") => service(&mut object["spec"]),
        ("", "ServiceAccount") => {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let is_token = |of: &Value| {
                let of = of["name"].as_str().unwrap_or_default();
                let rest = of.strip_prefix(name.as_str()).unwrap_or_default();
                rest.starts_with("-token-") || rest.starts_with("-dockercfg-")
            };
            for list in ["secrets", "imagePullSecrets"] {
                if let Some(all) = object.get_mut(list).and_then(Value::as_array_mut) {
                    all.retain(|of| !is_token(of));
                }
            }
        }
        ("apps", "Deployment") => {
            let revision = "deployment.kubernetes.io/revision";
            remove(object, &["metadata", "annotations"], revision);
        }
        ("apps", "DaemonSet") => {
            let generation = "deprecated.daemonset.template.generation";
            remove(object, &["metadata", "annotations"], generation);
        }
        ("batch", "Job") if object["spec"]["manualSelector"] != true => {
            remove(object, &["spec"], "selector");
            for label in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
                remove(object, &["metadata", "labels"], label);
                remove(object, &["spec", "template", "metadata", "labels"], label);
            }
        }
        _ => {}
    }
}

fn remove(object: &mut Value, path: &[&str], member: &str) {
    let mut at = Some(object);
    for step in path {
        at = at.and_then(|value| value.get_mut(*step));
    }
    if let Some(map) = at.and_then(Value::as_object_mut) {
        map.remove(member);
    }
}

/// Addresses and ports are given by the cluster; that there is none stays.
fn service(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else { return };
    if spec.get("clusterIP").and_then(Value::as_str) != Some("None") {
        spec.remove("clusterIP");
        spec.remove("clusterIPs");
    }
    if spec.get("ipFamilyPolicy").and_then(Value::as_str) == Some("SingleStack") {
        spec.remove("ipFamilies");
    }
    spec.remove("healthCheckNodePort");
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(port) = port.as_object_mut() {
            port.remove("nodePort");
        }
    }
}

/// Of a pod that nobody makes: its node, its token, what its classes computed.
fn pod(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else { return };
    for member in ["nodeName", "priority", "ephemeralContainers"] {
        spec.remove(member);
    }
    let is_token = |of: &Value| of["name"].as_str().is_some_and(|of| of.starts_with(TOKEN_VOLUME));
    if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| !is_token(volume));
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
                mounts.retain(|mount| !is_token(mount));
            }
        }
    }
}
