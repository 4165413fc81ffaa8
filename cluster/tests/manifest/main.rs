//! The object manifest: owners and references, the order of a restore, files, comparisons, and
//! objects that mean ill.

mod cleaning;
mod order;
mod owners;

use mover_cluster::manifest::{
    ItemKind, ManifestBuilder, ManifestScope, ObjectManifest, OwnerRule, restore_order,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// A kind as discovery tells it.
pub(crate) fn kind(group: &str, version: &str, kind: &str, namespaced: bool) -> Arc<ItemKind> {
    let lower = kind.to_lowercase();
    let resource = match lower.strip_suffix('s') {
        Some(_) => format!("{lower}es"),
        None => format!("{lower}s"),
    };
    Arc::new(ItemKind {
        group: group.into(),
        resource,
        version: version.into(),
        kind: kind.into(),
        namespaced,
    })
}

/// `apiVersion/Kind` to its kind; those of the cluster are few.
pub(crate) fn of(object: &Value) -> Arc<ItemKind> {
    let version = object["apiVersion"].as_str().expect("a version");
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let word = object["kind"].as_str().expect("a kind");
    let wide =
        ["Namespace", "PersistentVolume", "StorageClass", "ClusterRole", "ClusterRoleBinding"];
    let is_wide = wide.contains(&word) || word == "CustomResourceDefinition";
    kind(group, version, word, !is_wide)
}

/// An object whose uid is its kind and name.
pub(crate) fn object(version: &str, kind: &str, name: &str, more: Value) -> Value {
    let mut object = json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": { "name": name, "namespace": "shop", "uid": format!("{kind}-{name}") },
    });
    let all = object.as_object_mut().expect("a map");
    for (member, value) in more.as_object().expect("a map") {
        match all.get_mut(member).and_then(Value::as_object_mut) {
            Some(map) => map.extend(value.as_object().expect("a map").clone()),
            None => drop(all.insert(member.clone(), value.clone())),
        }
    }
    object
}

pub(crate) fn owned(version: &str, kind: &str, name: &str) -> Value {
    let uid = format!("{kind}-{name}");
    json!({ "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true })
}

pub(crate) fn built(objects: &[Value], rules: &[&str]) -> ObjectManifest {
    let rules = rules.iter().map(|rule| OwnerRule::parse(rule).expect("a rule")).collect();
    let mut builder = ManifestBuilder::new(rules);
    for object in objects {
        builder.add(&of(object), object, true).expect("an object");
    }
    builder.finish(ManifestScope::default(), Vec::new())
}

/// Names of kinds and objects in the order of a restore.
pub(crate) fn sequence(manifest: &ObjectManifest) -> Vec<String> {
    let order = restore_order(manifest);
    let name = |at: &u32| {
        let item = &manifest.items[*at as usize];
        format!("{}/{}", item.of.kind, item.name)
    };
    order.sequence.iter().map(name).collect()
}
