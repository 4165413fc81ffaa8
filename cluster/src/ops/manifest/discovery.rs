//! Which kinds the API server serves: each once, in the version that its group prefers.

use crate::api::{Api, ApiError, Asked};
use crate::engine::Failure;
use crate::manifest::{ItemKind, is_listed};
use http::Method;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The kinds of a cluster.
#[derive(Debug, Default)]
pub struct Served {
    /// Those whose objects can be listed and made, by group and plural name.
    pub kinds: Vec<Arc<ItemKind>>,
    /// Groups whose kinds nobody tells, such as one whose server is down.
    pub broken: Vec<(String, ApiError)>,
    by_kind: BTreeMap<(String, String), usize>,
}

impl Served {
    /// A kind by its group and its name.
    pub fn find(&self, group: &str, kind: &str) -> Option<&Arc<ItemKind>> {
        let at = self.by_kind.get(&(group.to_owned(), kind.to_owned()))?;
        Some(&self.kinds[*at])
    }
}

/// Asks for all kinds.
///
/// # Errors
///
/// Those of the API server, but for those of single groups.
pub async fn discover(api: &Api) -> Result<Served, Failure> {
    let mut all: BTreeSet<ItemKind> = BTreeSet::new();
    let mut served = Served::default();
    all.extend(kinds(api, "", "v1", "/api/v1").await?);
    let groups = ask(api, "/apis", "list the API groups").await?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        let name = group["name"].as_str().unwrap_or_default();
        let versions = group["versions"].as_array().into_iter().flatten();
        let preferred = &group["preferredVersion"]["version"];
        let mut versions: Vec<&Value> = versions.map(|at| &at["version"]).collect();
        // In their order, but for the preferred one.
        versions.sort_by_key(|version| *version != preferred);
        let mut known: BTreeSet<String> = BTreeSet::new();
        for version in versions.into_iter().filter_map(Value::as_str) {
            let path = format!("/apis/{name}/{version}");
            match kinds(api, name, version, &path).await {
                Ok(found) => {
                    for kind in found {
                        if known.insert(kind.resource.clone()) {
                            all.insert(kind);
                        }
                    }
                }
                // A version that has gone since.
                Err(ApiError::Absent(_)) => {}
                Err(why) => {
                    served.broken.push((format!("{name}/{version}"), why));
                    break;
                }
            }
        }
    }
    for kind in all {
        let of = (kind.group.clone(), kind.kind.clone());
        served.by_kind.entry(of).or_insert(served.kinds.len());
        served.kinds.push(Arc::new(kind));
    }
    Ok(served)
}

async fn ask(api: &Api, path: &str, what: &str) -> Result<Value, ApiError> {
    api.request(Method::GET, path, &[], None, Asked::other(what, &format!("get {path}"))).await
}

async fn kinds(
    api: &Api,
    group: &str,
    version: &str,
    path: &str,
) -> Result<Vec<ItemKind>, ApiError> {
    let answer = ask(api, path, &format!("list the kinds of {path}")).await?;
    let mut all = Vec::new();
    for resource in answer["resources"].as_array().into_iter().flatten() {
        let text = |name: &str| resource[name].as_str().unwrap_or_default();
        let verbs = resource["verbs"].as_array().into_iter().flatten();
        let verbs: Vec<&str> = verbs.filter_map(Value::as_str).collect();
        // Parts of objects have a slash; what nobody can make is no object of an application.
        let is_object = ["get", "list", "create"].iter().all(|verb| verbs.contains(verb));
        let name = text("name");
        if is_object && !name.contains('/') && is_listed(group, name) {
            all.push(ItemKind {
                group: group.to_owned(),
                resource: name.to_owned(),
                version: version.to_owned(),
                kind: text("kind").to_owned(),
                namespaced: resource["namespaced"] == true,
            });
        }
    }
    Ok(all)
}
