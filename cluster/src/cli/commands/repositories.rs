//! `kubectl mover repository`.

use super::super::args::{PodSecurity, Settings};
use super::super::output::Output;
use super::pair;
use crate::api::{Api, ApiError};
use crate::engine::{Failure, Meta, Repository, exit};
use crate::ops::lookup;
use crate::ops::repository::{self, Made, velero};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn variables(given: &Settings) -> Result<BTreeMap<String, String>, Failure> {
    given.env.iter().map(|text| pair(text, "--env")).collect()
}

/// A Repository out of the flags.
async fn settle(
    api: &Api,
    namespace: &str,
    name: &str,
    given: &Settings,
    as_object: bool,
) -> Result<Repository, Failure> {
    let url = given.url.clone().ok_or_else(|| {
        Failure::new(exit::USAGE, "a new Repository needs --url, such as s3://BUCKET/PREFIX")
    })?;
    let env = variables(given)?;
    let cluster = match &given.cluster_name {
        Some(name) => name.clone(),
        // The controller knows it.
        None if as_object => String::new(),
        None => repository::cluster_name(api).await?,
    };
    Ok(Repository {
        namespace: namespace.into(),
        name: name.into(),
        url,
        cluster,
        key_secret: given.key_secret.clone().unwrap_or_else(|| repository::secret_name(name)),
        credentials_secret: given.credentials.clone(),
        ca_config_map: given.ca.clone(),
        env,
        service_account: given.service_account.clone(),
        image: given.image.clone(),
        image_pull_policy: given.image_pull_policy.clone(),
        memory: given.memory.clone(),
        cpu: given.cpu.clone(),
        allowed_namespaces: given.allow_namespace.clone(),
        allow_mode_change: given.allow_mode_change,
        restricted: given.job_security == PodSecurity::Restricted,
        ..Repository::default()
    })
}

/// Makes one, and says where its key is.
pub(super) async fn make(
    api: &Api,
    namespace: &str,
    name: &str,
    given: &Settings,
    output: &Output,
) -> Result<Repository, Failure> {
    let as_object = repository::kind::installed(api).await?;
    let mut made = settle(api, namespace, name, given, as_object).await?;
    let key = match &given.key_file {
        None => None,
        Some(file) => Some(std::fs::read(file).map_err(|why| {
            Failure::new(exit::USAGE, format!("read --key-file {}: {why}", file.display()))
        })?),
    };
    let tell = |wait: &_| output.waiting(wait);
    let done = match as_object {
        true => {
            let cluster = given.cluster_name.as_deref();
            repository::add_object(api, &made, cluster, key, tell).await
        }
        false => repository::add(api, &made, key, tell).await,
    }?;

    if let Made::Key { secret } = done {
        output.say(&format!(
            "The key of Repository {name} was made in {secret}. Without it no backup can be read.\n\
             Keep a copy of it outside of this cluster:\n  \
             kubectl -n {namespace} get secret {} -o jsonpath='{{.data.key}}' | base64 -d > mover-{name}.key",
            secret.name
        ));
        if let Err(why) = repository::told(api, &secret).await {
            tracing::debug!("{why}: it is told again the next time");
        }
    }
    if as_object {
        made = repository::find(api, Some(&format!("{namespace}/{name}")), namespace).await?;
    }
    Ok(made)
}

pub(super) async fn add(
    api: &Api,
    namespace: &str,
    name: Option<&str>,
    given: &Settings,
    output: &Output,
) -> Result<u8, Failure> {
    let name = name.unwrap_or(repository::DEFAULT_NAME);
    let made = make(api, namespace, name, given, output).await?;
    let text = format!("Repository {name} in namespace {namespace} is ready: {}", made.url);
    output.result(&json!(made), &text);
    Ok(0)
}

/// Makes the one for a location of Velero, in Velero's namespace.
pub(super) async fn add_beside(
    api: &Api,
    (namespace, location): (&str, &str),
    name: Option<&str>,
    given: &Settings,
    output: &Output,
) -> Result<u8, Failure> {
    let location = velero::location(api, namespace, location).await?;
    let name = name.unwrap_or(&location.name);
    let said = velero::Chosen {
        name: name.to_owned(),
        url: given.url.clone(),
        credentials: given.credentials.clone(),
        ca: given.ca.clone(),
        env: variables(given)?,
        service_account: given.service_account.clone(),
        has_key: given.key_file.is_some() || given.key_secret.is_some(),
    };
    let needs = velero::needs(api, &location, &said).await?;
    let given = Settings {
        url: Some(needs.url),
        credentials: needs.credentials,
        ca: needs.ca,
        env: needs.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        ..given.clone()
    };
    let made = make(api, namespace, name, &given, output).await?;
    velero::enter(api, &location, name).await?;
    let text = format!(
        "Repository {name} in namespace {namespace} is ready: {}. Volumes that Velero backs up to \
         location {} go there",
        made.url, location.name
    );
    output.result(&json!(made), &text);
    Ok(0)
}

pub(super) async fn list(
    api: &Api,
    namespace: Option<&str>,
    output: &Output,
) -> Result<u8, Failure> {
    let mut rows = Vec::new();
    let mut code = 0;
    for found in repository::list(api, namespace).await? {
        match found {
            Ok(found) => rows.push((
                vec![
                    found.namespace.clone(),
                    found.name.clone(),
                    found.url.clone(),
                    found.cluster.clone(),
                    found.key_secret.clone(),
                    found.image.clone(),
                ],
                json!(found),
            )),
            Err(why) => {
                output.say(&format!("warning: {why}"));
                code = why.exit_code;
            }
        }
    }
    output.table(&["NAMESPACE", "NAME", "URL", "CLUSTER", "KEY", "IMAGE"], 2, &rows);
    Ok(code)
}

/// What the repository is made of, with a feature that is added.
pub(super) async fn upgrade(
    api: &Api,
    namespace: &str,
    (name, add): (Option<&str>, Option<&str>),
    output: &Output,
) -> Result<u8, Failure> {
    let name = name.unwrap_or(repository::DEFAULT_NAME);
    let (at, name) = name.split_once('/').unwrap_or((namespace, name));
    let place = repository::find(api, Some(&format!("{at}/{name}")), at).await?;
    let mut arguments = vec!["upgrade"];
    arguments.extend(add.iter().flat_map(|feature| ["--add", feature]));
    let lines = lookup::ask(api, &place, &arguments, |wait| output.waiting(wait)).await?;
    let found = lines.iter().find(|line| line["features"].is_array()).ok_or_else(|| {
        Failure::new(exit::BUG, format!("nothing was printed about Repository {name}"))
    })?;
    let names = |member: &str| {
        let all = found[member].as_array().into_iter().flatten();
        let all: Vec<&str> = all.filter_map(|at| at["name"].as_str()).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    let text = format!(
        "Repository {name} in namespace {at}: {}\nfeatures: {}\ncan be added: {}",
        place.url,
        names("features"),
        names("can_be_added")
    );
    output.result(found, &text);
    Ok(0)
}

pub(super) async fn remove(
    api: &Api,
    namespace: &str,
    name: &str,
    output: &Output,
) -> Result<u8, Failure> {
    let object = repository::kind::key_of(namespace, name);
    let map = repository::key_of(namespace, name);
    // Whoever may not read our kind has none of it to remove.
    let (key, found) = match api.get(&object).await {
        Ok(Some(found)) => (object, found),
        Ok(None) | Err(ApiError::Refused(_)) => match api.get(&map).await? {
            Some(found) => (map, found),
            None => {
                let what = format!("there is no Repository {name} in namespace {namespace}");
                return Err(Failure::new(exit::USAGE, what));
            }
        },
        Err(why) => return Err(why.into()),
    };
    api.delete(&key, &Meta::of(&found).uid).await?;
    let text = |of_object: &Value, of_map: &Value| {
        of_object.as_str().or(of_map.as_str()).unwrap_or("?").to_owned()
    };
    let secret = text(&found["spec"]["keySecretRef"]["name"], &found["data"]["keySecret"]);
    let url = text(&found["spec"]["url"], &found["data"]["url"]);
    output.result(
        &json!({ "removed": name, "keySecret": secret, "url": url }),
        &format!(
            "Repository {name} is removed. Its backups in {url} and its key in secret/{secret} stay"
        ),
    );
    Ok(0)
}
