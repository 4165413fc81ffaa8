//! The Repository, and what its Jobs need to begin.

use super::quantity::quantity;
use super::{Level, Look, namespace, quota};
use crate::engine::object::{Key, Kind};
use crate::engine::place;
use crate::engine::request::Repository;
use crate::engine::step::Planned;
use serde_json::Value;

/// The Repository for claims of a namespace, if there is one.
pub(super) fn check(look: &mut Look<'_>, of: &str) -> Planned<Option<Repository>> {
    let named = look.question.repository.as_deref();
    let object = format!("Repository {}", named.unwrap_or(place::DEFAULT_NAME));
    let read = look.known(
        Level::Error,
        object,
        place::repository(look.seen, named, of, place::DEFAULT_IMAGE),
    )?;
    let Some(repository) = read else { return Ok(None) };
    namespace::of_jobs(look, &repository.namespace)?;
    keys(look, &repository)?;
    authority(look, &repository)?;
    account(look, &repository)?;
    pod(look, &repository);
    quota::check(look, &quota::Demand::pod(&repository))?;
    Ok(Some(repository))
}

fn keys(look: &mut Look<'_>, repository: &Repository) -> Planned<()> {
    let namespace = &repository.namespace;
    let key = Key::new(Kind::Secret, namespace, &repository.key_secret);
    let hint = "put back the copy that was kept when it was made: no other key reads its backups";
    match look.known(Level::Note, &key, look.seen.raw(&key))? {
        // Whoever backs up need not read Secrets.
        None => {}
        Some(None) => {
            look.say(Level::Error, &key, "the Secret of the repository's key is missing", hint);
        }
        Some(Some(secret)) if members(&secret) == 0 => {
            look.say(Level::Error, &key, "the Secret of the repository's key is empty", hint);
        }
        Some(Some(_)) => {}
    }
    let Some(name) = &repository.credentials_secret else { return Ok(()) };
    let key = Key::new(Kind::Secret, namespace, name);
    let hint = "make it with the store's environment variables, such as AWS_ACCESS_KEY_ID";
    match look.known(Level::Note, &key, look.seen.raw(&key))? {
        None => {}
        Some(None) => {
            look.say(Level::Error, &key, "the Secret of the store's credentials is missing", hint);
        }
        Some(Some(secret)) if members(&secret) == 0 => {
            look.say(Level::Error, &key, "the Secret of the store's credentials is empty", hint);
        }
        Some(Some(_)) => {}
    }
    Ok(())
}

/// Members of a Secret that hold something.
fn members(secret: &Value) -> usize {
    let data = secret["data"].as_object().into_iter().flatten();
    data.filter(|(_, value)| value.as_str().is_some_and(|text| !text.is_empty())).count()
}

fn authority(look: &mut Look<'_>, repository: &Repository) -> Planned<()> {
    let Some(name) = &repository.ca_config_map else { return Ok(()) };
    let key = Key::new(Kind::ConfigMap, &repository.namespace, name);
    let hint = format!(
        "kubectl -n {} create configmap {name} --from-file=ca.crt=FILE",
        repository.namespace
    );
    let what = match look.known(Level::Note, &key, look.seen.raw(&key))? {
        None => return Ok(()),
        Some(None) => "the ConfigMap of the store's authority is missing",
        Some(Some(found)) => match found["data"]["ca.crt"].as_str() {
            None => "it has no member ca.crt",
            Some(text) if !text.contains("-----BEGIN CERTIFICATE-----") => {
                "its ca.crt holds no certificate in PEM"
            }
            Some(_) => return Ok(()),
        },
    };
    look.say(Level::Error, &key, what, &hint);
    Ok(())
}

fn account(look: &mut Look<'_>, repository: &Repository) -> Planned<()> {
    let Repository { namespace, service_account, name, .. } = repository;
    let key = Key::new(Kind::ServiceAccount, namespace, service_account);
    if let Some(None) = look.known(Level::Note, &key, look.seen.raw(&key))? {
        let what =
            format!("the account of Repository {name} is missing: no pod of its Jobs begins");
        let hint = format!("kubectl -n {namespace} create serviceaccount {service_account}");
        look.say(Level::Error, &key, &what, &hint);
    }
    Ok(())
}

/// What its own fields say of the pod.
fn pod(look: &mut Look<'_>, repository: &Repository) {
    let object = place::repository_key(&repository.namespace, &repository.name);
    for (name, text) in [("cpu", &repository.cpu), ("memory", &repository.memory)] {
        if quantity(text).is_none_or(|amount| amount <= 0.0) {
            let what = format!("its {name} is {text}, which is no quantity");
            look.say(Level::Error, &object, &what, "write it as Kubernetes does: 1, 500m, 320Mi");
        }
    }
    match repository.image_pull_policy.as_str() {
        "Always" | "IfNotPresent" => {}
        "Never" => {
            let what = format!(
                "its imagePullPolicy is Never: each node that may run the Job has to have {} \
                 already",
                repository.image
            );
            look.say(Level::Note, &object, &what, "");
        }
        other => {
            let what = format!("its imagePullPolicy is {other}, which Kubernetes does not know");
            look.say(Level::Error, &object, &what, "write Always, IfNotPresent or Never");
        }
    }
}
