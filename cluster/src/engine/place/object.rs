//! From an object of our kind to what the Jobs need of it.

use super::super::object::{Key, Kind};
use super::super::observed::{Meta, Observed};
use super::super::request::Repository;
use super::super::step::{Failure, Planned, exit};
use crate::kinds::RepositorySpec;
use serde_json::{Value, json};

/// Service account of Jobs whose Repository names none.
pub const SERVICE_ACCOUNT: &str = "mover";
/// Image of Jobs, where neither the Repository nor the controller names one.
pub const DEFAULT_IMAGE: &str = concat!("mover:", env!("CARGO_PKG_VERSION"));
/// Memory of Jobs whose Repository says nothing.
pub const DEFAULT_MEMORY: &str = "320Mi";
/// Processor of Jobs whose Repository says nothing.
pub const DEFAULT_CPU: &str = "1";

/// A Repository out of its object. `cluster` is how volumes of this cluster begin in it, and
/// `image` that of Jobs, where the object names none.
#[must_use]
pub fn of_object(meta: &Meta, spec: &RepositorySpec, cluster: &str, image: &str) -> Repository {
    let template = &spec.job_template;
    let credentials = spec.credentials.clone().unwrap_or_default();
    let usual = |given: &Option<String>, usual: &str| given.clone().unwrap_or_else(|| usual.into());
    Repository {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone(),
        url: spec.url.clone(),
        cluster: usual(&spec.cluster_name, cluster),
        key_secret: spec.key_secret_ref.name.clone(),
        credentials_secret: credentials.secret_ref.map(|secret| secret.name),
        ca_config_map: spec.ca_config_map_ref.as_ref().map(|at| at.name.clone()),
        env: spec.env.clone(),
        service_account: usual(&credentials.service_account_name, SERVICE_ACCOUNT),
        image: usual(&template.image, image),
        image_pull_policy: template.image_pull_policy.word(),
        memory: usual(&template.memory, DEFAULT_MEMORY),
        cpu: usual(&template.cpu, DEFAULT_CPU),
        allowed_namespaces: spec.allowed_namespaces.clone(),
        allow_mode_change: spec.allow_mode_change,
        node_selector: template.node_selector.clone(),
        tolerations: template.tolerations.iter().map(|one| json!(one)).collect(),
        priority_class: template.priority_class_name.clone(),
        image_pull_secrets: template.image_pull_secrets.iter().map(|at| at.name.clone()).collect(),
        pods_per_node: spec.concurrency.as_ref().and_then(|most| most.node),
        ..Repository::default()
    }
}

/// How this cluster's volumes begin in a repository: part of the uid of `kube-system`, which no
/// other cluster has.
///
/// # Errors
///
/// The read, which comes first; or it may not be read.
pub fn cluster_name(seen: &Observed) -> Planned<String> {
    let found = seen.find::<Value>(&Key::wide(Kind::Namespace, "kube-system"))?;
    let uid = found.map(|found| found.meta.uid).unwrap_or_default();
    match uid.split('-').next() {
        Some(first) if !first.is_empty() => Ok(first.to_owned()),
        _ => Err(Failure::new(exit::USAGE, "the namespace kube-system has no uid")
            .hint("name the cluster yourself: clusterName of the Repository")
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_object_leaves_out_is_as_usual() {
        let spec: RepositorySpec = serde_json::from_value(json!({
            "url": "s3://b/p", "keySecretRef": { "name": "key" }, "jobTemplate": {},
        }))
        .expect("a spec");
        let namespace = Some("shop".to_owned());
        let meta = Meta { name: "default".into(), namespace, ..Meta::default() };
        let made = of_object(&meta, &spec, "c1", "mover:7");
        let wanted = Repository {
            namespace: "shop".into(),
            name: "default".into(),
            url: "s3://b/p".into(),
            cluster: "c1".into(),
            key_secret: "key".into(),
            service_account: "mover".into(),
            image: "mover:7".into(),
            image_pull_policy: "IfNotPresent".into(),
            memory: "320Mi".into(),
            cpu: "1".into(),
            ..Repository::default()
        };
        assert_eq!(made, wanted);
        let spec = RepositorySpec { cluster_name: Some("old".into()), ..spec };
        assert_eq!(of_object(&meta, &spec, "c1", "mover:7").cluster, "old");
    }
}
