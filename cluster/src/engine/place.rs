//! Repositories as they stand in the cluster: objects of our kind, or ConfigMaps that say the same
//! where the kind is not known.

mod access;
mod object;

pub use access::{Asker, may_restore};
pub use object::{
    DEFAULT_CPU, DEFAULT_IMAGE, DEFAULT_MEMORY, SERVICE_ACCOUNT, cluster_name, of_object,
};

use super::names::REPOSITORY;
use super::object::{Key, Kind};
use super::observed::{Object, Observed};
use super::request::Repository;
use super::step::{Failure, Planned, Stop, exit};
use super::views::ConfigMap;
use crate::kinds;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Where Repositories for all namespaces are.
pub const SHARED_NAMESPACE: &str = "mover-system";
/// The one that is meant where none is named.
pub const DEFAULT_NAME: &str = "default";

/// The ConfigMap of a Repository.
pub fn repository_key(namespace: &str, name: &str) -> Key {
    Key::new(Kind::ConfigMap, namespace, &format!("mover-repository-{name}"))
}

/// A Repository out of its ConfigMap.
///
/// # Errors
///
/// A member that is missing or wrong.
pub fn parse_repository(object: &Object<ConfigMap>) -> Result<Repository, Failure> {
    let data = &object.body.data;
    let some = |name: &str| data.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
    let wrong = |name: &str, why: &str| {
        Failure::new(exit::USAGE, format!("{}: member {name} {why}", object.key))
            .hint("write it again by kubectl mover repository add, or correct it")
    };
    let needed =
        |name: &str| some(name).map(str::to_owned).ok_or_else(|| wrong(name, "is missing"));
    let mut env = BTreeMap::new();
    for line in some("env").into_iter().flat_map(str::lines) {
        let Some((name, value)) = line.trim().split_once('=') else {
            return Err(wrong("env", "has a line without ="));
        };
        env.insert(name.to_owned(), value.to_owned());
    }
    let allow_mode_change = match some("allowModeChange") {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(wrong("allowModeChange", "is neither true nor false")),
    };
    let name = object.meta.labels.get(REPOSITORY).ok_or_else(|| {
        Failure::new(exit::USAGE, format!("{} has no label {REPOSITORY}", object.key))
            .hint("it is the Repository's name: write it again by kubectl mover repository add")
    })?;
    let list = |name: &str| {
        let names = some(name).into_iter().flat_map(|text| text.split(','));
        names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    Ok(Repository {
        namespace: object.meta.namespace.clone().unwrap_or_default(),
        name: name.clone(),
        url: needed("url")?,
        cluster: needed("cluster")?,
        key_secret: needed("keySecret")?,
        credentials_secret: some("credentialsSecret").map(str::to_owned),
        ca_config_map: some("caConfigMap").map(str::to_owned),
        env,
        service_account: needed("serviceAccount")?,
        image: needed("image")?,
        image_pull_policy: needed("imagePullPolicy")?,
        memory: needed("memory")?,
        cpu: needed("cpu")?,
        allowed_namespaces: list("allowedNamespaces"),
        allow_mode_change,
        restricted: some("jobSecurity") == Some("restricted"),
        ..Repository::default()
    })
}

/// The Repository that is meant by `[NAMESPACE/]NAME` for claims of a namespace. Without a
/// namespace it is looked for there, and then among the shared ones. In each place the object of
/// our kind comes before the ConfigMap. `image` is that of Jobs where an object names none.
///
/// # Errors
///
/// A read, which comes first; or there is none, or it is not for this namespace.
pub fn repository(
    seen: &Observed,
    text: Option<&str>,
    of: &str,
    image: &str,
) -> Planned<Repository> {
    let text = text.unwrap_or(DEFAULT_NAME);
    let (places, name): (Vec<&str>, &str) = match text.split_once('/') {
        Some((namespace, name)) => (vec![namespace], name),
        None if of == SHARED_NAMESPACE => (vec![of], text),
        None => (vec![of, SHARED_NAMESPACE], text),
    };
    let mut denied = None;
    for namespace in &places {
        let found = match repository_in(seen, namespace, name, image) {
            Err(Stop::Failure(why)) if why.exit_code == exit::DENIED => {
                denied.get_or_insert(why);
                continue;
            }
            found => found?,
        };
        let Some(found) = found else { continue };
        let allowed = found.allowed_namespaces.iter().any(|at| at == of || at == "*");
        if found.namespace == of || allowed {
            return Ok(found);
        }
        return Err(Failure::new(
            exit::DENIED,
            format!("Repository {name} of namespace {namespace} is not for namespace {of}"),
        )
        .hint(format!(
            "allow it: kubectl mover repository add {name} -n {namespace} --allow-namespace {of} \
             …, or name another Repository"
        ))
        .into());
    }
    if let Some(why) = denied {
        return Err(why.into());
    }
    Err(Failure::new(
        exit::USAGE,
        format!("there is no Repository {name} in namespace {}", places.join(" or ")),
    )
    .hint(format!(
        "make one: kubectl mover repository add {name} -n {of} --url s3://BUCKET/PREFIX \
         --credentials SECRET"
    ))
    .into())
}

/// An object of our kind, as far as it is read here.
#[derive(Debug, Clone, Deserialize)]
pub struct Stands {
    /// What it asks for.
    pub spec: kinds::RepositorySpec,
}

/// The Repository of a namespace and name, whoever may use it.
///
/// # Errors
///
/// A read, which comes first; or it cannot be read.
pub fn repository_in(
    seen: &Observed,
    namespace: &str,
    name: &str,
    image: &str,
) -> Planned<Option<Repository>> {
    let key = Key::new(Kind::Repository, namespace, name);
    // Whoever may not read our kind may have a ConfigMap; where that kind is unknown, there is none.
    let (found, denied) = match seen.find::<Stands>(&key) {
        Err(Stop::Failure(why)) if why.exit_code == exit::DENIED => (None, Some(why)),
        found => (found?, None),
    };
    if let Some(found) = found {
        let cluster = match &found.body.spec.cluster_name {
            Some(name) => name.clone(),
            None => cluster_name(seen)?,
        };
        return Ok(Some(of_object(&found.meta, &found.body.spec, &cluster, image)));
    }
    match seen.find::<ConfigMap>(&repository_key(namespace, name))? {
        Some(found) => Ok(Some(parse_repository(&found)?)),
        None => denied.map_or(Ok(None), |why| Err(why.into())),
    }
}
