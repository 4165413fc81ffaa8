//! The Repository that an object means.

use super::Context;
use crate::engine::{self, Failure, Key, Kind, Meta, SHARED_NAMESPACE, exit};
use crate::kinds::{Repository, RepositoryRef};

/// The Repository that a reference of an object in a namespace means.
///
/// # Errors
///
/// There is none, or it is not for this namespace.
pub(crate) fn place(
    context: &Context,
    reference: &RepositoryRef,
    of: &str,
) -> Result<(engine::Repository, Repository), Failure> {
    let name = &reference.name;
    let places: Vec<&str> = match &reference.namespace {
        Some(namespace) => vec![namespace],
        None if of == SHARED_NAMESPACE => vec![of],
        None => vec![of, SHARED_NAMESPACE],
    };
    for namespace in &places {
        let key = Key::new(Kind::Repository, namespace, name);
        let Some(found) = context.objects.get(&key) else { continue };
        let found: Repository = serde_json::from_value((*found).clone())
            .map_err(|why| Failure::new(exit::USAGE, format!("{key}: {why}")))?;
        let allowed = found.spec.allowed_namespaces.iter().any(|at| at == of || at == "*");
        if *namespace != of && !allowed {
            return Err(Failure::new(exit::DENIED, format!("{key} is not for namespace {of}"))
                .hint(format!("add {of} to its allowedNamespaces, or name another Repository")));
        }
        return convert(context, namespace, &found).map(|place| (place, found));
    }
    Err(Failure::new(
        exit::USAGE,
        format!("there is no Repository {name} in namespace {}", places.join(" or ")),
    )
    .hint("make one, or name another one"))
}

fn convert(
    context: &Context,
    namespace: &str,
    found: &Repository,
) -> Result<engine::Repository, Failure> {
    let cluster = match &found.spec.cluster_name {
        Some(name) => name.clone(),
        None => context.cluster.clone()?,
    };
    let name = found.metadata.name.clone().unwrap_or_default();
    let meta = Meta { name, namespace: Some(namespace.to_owned()), ..Meta::default() };
    let made = engine::of_object(&meta, &found.spec, &cluster, &context.settings.image);
    Ok(engine::Repository { restricted: context.settings.restricted, ..made })
}
