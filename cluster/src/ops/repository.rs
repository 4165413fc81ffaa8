//! Repositories: ConfigMaps that say where backups are and how a pod gets at them.

pub mod kind;
pub mod velero;

use crate::api::{Api, ApiError};
pub use crate::engine::repository_key as key_of;
use crate::engine::{
    self, CHANGES_ROLE, Failure, Key, Kind, MANAGER, Meta, Object, REPOSITORY, Repository,
    Selection, Stands, Wait, exit, parse_repository as parse,
};
pub use crate::engine::{DEFAULT_NAME, SHARED_NAMESPACE};
use crate::ops::look::look;
use crate::ops::lookup;
use base64::Engine as _;
use serde_json::{Value, json};

const KEY_BYTES: usize = 32;
/// On a Secret with a key that was made here, until somebody was told of it.
const MADE_HERE: &str = "mover.dev/made-here";

/// The Secret that is made for a Repository without one.
pub fn secret_name(name: &str) -> String {
    format!("mover-key-{name}")
}

fn fields(repository: &Repository) -> Value {
    let env: Vec<String> =
        repository.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    json!({
        "url": repository.url,
        "cluster": repository.cluster,
        "keySecret": repository.key_secret,
        "credentialsSecret": repository.credentials_secret.clone().unwrap_or_default(),
        "caConfigMap": repository.ca_config_map.clone().unwrap_or_default(),
        "env": env.join("\n"),
        "serviceAccount": repository.service_account,
        "image": repository.image,
        "imagePullPolicy": repository.image_pull_policy,
        "memory": repository.memory,
        "cpu": repository.cpu,
        "allowedNamespaces": repository.allowed_namespaces.join(","),
        "allowModeChange": repository.allow_mode_change.to_string(),
        "jobSecurity": if repository.restricted { "restricted" } else { "baseline" },
    })
}

/// The Repository that is meant by `[NAMESPACE/]NAME` for claims of a namespace.
///
/// # Errors
///
/// There is none, or it is not for this namespace.
pub async fn find(api: &Api, text: Option<&str>, of: &str) -> Result<Repository, Failure> {
    look(api, |seen| engine::repository(seen, text, of, engine::DEFAULT_IMAGE)).await
}

/// All Repositories of a namespace, or of all.
///
/// # Errors
///
/// See [`ApiError`].
pub async fn list(
    api: &Api,
    namespace: Option<&str>,
) -> Result<Vec<Result<Repository, Failure>>, Failure> {
    let selection = Selection {
        namespace: namespace.map(str::to_owned),
        labels: REPOSITORY.to_owned(),
        ..Selection::all(Kind::ConfigMap)
    };
    let (found, _) = api.list(&selection).await?;
    let one = |raw: &Value| {
        let meta = Meta::of(raw);
        let key = Key {
            kind: Kind::ConfigMap,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        };
        let body = serde_json::from_value(raw.clone()).unwrap_or_default();
        parse(&Object { key, meta, body })
    };
    let mut all = objects(api, namespace).await?;
    all.extend(found.iter().map(one));
    Ok(all)
}

/// Those that are objects of our kind; none where the cluster does not know it, or nobody may look.
async fn objects(
    api: &Api,
    namespace: Option<&str>,
) -> Result<Vec<Result<Repository, Failure>>, Failure> {
    let namespace = namespace.map(str::to_owned);
    let selection = Selection { namespace, ..Selection::all(Kind::Repository) };
    let found = match api.list(&selection).await {
        Ok((found, _)) => found,
        Err(ApiError::Refused(why)) => {
            tracing::debug!("{why}");
            return Ok(Vec::new());
        }
        Err(why) => return Err(why.into()),
    };
    let one = |raw: &Value| {
        let meta = Meta::of(raw);
        let stands: Stands = serde_json::from_value(raw.clone())
            .map_err(|why| Failure::new(exit::USAGE, format!("Repository {}: {why}", meta.name)))?;
        // For people alone.
        let cluster = raw["status"]["clusterName"].as_str().unwrap_or_default();
        Ok(engine::of_object(&meta, &stands.spec, cluster, engine::DEFAULT_IMAGE))
    };
    Ok(found.iter().map(one).collect())
}

/// How this cluster's volumes begin in a repository: part of the uid of `kube-system`, which no
/// other cluster has.
///
/// # Errors
///
/// It may not be read.
pub async fn cluster_name(api: &Api) -> Result<String, Failure> {
    look(api, engine::cluster_name).await.map_err(|why| match why.exit_code {
        exit::DENIED => why.hint("name the cluster yourself: --cluster-name NAME"),
        _ => why,
    })
}

/// What making a Repository says.
#[derive(Debug)]
pub enum Made {
    /// Its key was made just now: without a copy of it no backup can be read in another cluster.
    Key {
        /// The Secret that holds it.
        secret: Key,
    },
    /// The Secret was there.
    Nothing,
}

/// Makes a Repository: account, key if there is none, the repository itself if there is none, and
/// last the ConfigMap, so that one which can be seen is one which works.
///
/// # Errors
///
/// The first of these that fails. A key that was made stays: something may be sealed with it already,
/// and the next try takes it.
pub async fn add(
    api: &Api,
    repository: &Repository,
    given_key: Option<Vec<u8>>,
    tell: impl FnMut(&Wait),
) -> Result<Made, Failure> {
    account(api, repository).await?;
    let made = ensure_key(api, repository, given_key).await?;
    lookup::ask(api, repository, &["init", "--if-absent"], tell).await?;
    save(api, repository).await?;
    Ok(made)
}

/// The same as an object of our kind, which the controller opens: `cluster_name` is how this
/// cluster's volumes begin, if that was given.
///
/// # Errors
///
/// As [`add`]; the object stays once it is made.
pub async fn add_object(
    api: &Api,
    repository: &Repository,
    cluster_name: Option<&str>,
    given_key: Option<Vec<u8>>,
    tell: impl FnMut(&Wait),
) -> Result<Made, Failure> {
    let made = ensure_key(api, repository, given_key).await?;
    kind::save(api, repository, cluster_name).await?;
    let key = kind::key_of(&repository.namespace, &repository.name);
    kind::opened(api, &key, tell).await?;
    Ok(made)
}

/// The Secret of the key, made if there is none.
async fn ensure_key(
    api: &Api,
    repository: &Repository,
    given_key: Option<Vec<u8>>,
) -> Result<Made, Failure> {
    let secret = Key::new(Kind::Secret, &repository.namespace, &repository.key_secret);
    let found = match api.get(&secret).await {
        Ok(found) => found,
        // Whoever may not read Secrets names one that is there.
        Err(ApiError::Refused(why)) if given_key.is_none() => {
            tracing::warn!("{why}: it is taken to exist");
            Some(json!({}))
        }
        Err(why) => return Err(why.into()),
    };
    // One that we made, of which nobody has been told yet.
    let is_new = |secret: &Value| {
        let meta = Meta::of(secret);
        meta.labels.get(REPOSITORY) == Some(&repository.name)
            && secret["metadata"]["annotations"][MADE_HERE] == "true"
    };
    let is_new = match (found, given_key) {
        (Some(found), None) => is_new(&found),
        // The same command was run before.
        (Some(found), Some(given)) if found["data"]["key"] == in_base64(&given) => is_new(&found),
        (Some(_), Some(_)) => {
            return Err(Failure::new(exit::USAGE, format!("{secret} exists already"))
                .hint("name it by --key-secret and give no key, or name another Secret"));
        }
        (None, given) => make_key(api, repository, &secret, given).await?,
    };
    Ok(if is_new { Made::Key { secret } } else { Made::Nothing })
}

/// Says that whoever made the Repository was told of its key.
///
/// # Errors
///
/// See [`ApiError`]; then it is told again the next time.
pub async fn told(api: &Api, secret: &Key) -> Result<(), Failure> {
    let found = api.get(secret).await?.unwrap_or_default();
    let patch = json!({ "metadata": { "annotations": { MADE_HERE: null } } });
    api.patch(secret, (&Meta::of(&found).uid, None), &patch).await?;
    Ok(())
}

fn in_base64(key: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(key)
}

/// Whether its key is new.
async fn make_key(
    api: &Api,
    repository: &Repository,
    secret: &Key,
    given: Option<Vec<u8>>,
) -> Result<bool, Failure> {
    let is_new = given.is_none();
    let bytes = match given {
        Some(bytes) => bytes,
        None => {
            let mut bytes = [0; KEY_BYTES];
            getrandom::fill(&mut bytes)
                .map_err(|why| Failure::new(exit::RETRYABLE, format!("get random bytes: {why}")))?;
            format!("{}\n", hex::encode(bytes)).into_bytes()
        }
    };
    let metadata = json!({
        "name": secret.name,
        "namespace": secret.namespace,
        "labels": { "app.kubernetes.io/managed-by": MANAGER, REPOSITORY: repository.name },
        "annotations": { MADE_HERE: is_new.to_string() },
    });
    let data = json!({ "key": in_base64(&bytes) });
    let object = engine::object(secret, metadata, json!({ "type": "Opaque", "data": data }));
    api.create(&object).await.map_err(|why| match why {
        ApiError::Absent(_) => {
            Failure::new(exit::USAGE, format!("there is no namespace {}", repository.namespace))
        }
        why => why.into(),
    })?;
    Ok(is_new)
}

async fn save(api: &Api, repository: &Repository) -> Result<(), Failure> {
    let key = key_of(&repository.namespace, &repository.name);
    let labels = json!({ "app.kubernetes.io/managed-by": MANAGER, REPOSITORY: repository.name });
    let metadata = json!({ "name": key.name, "namespace": key.namespace, "labels": labels });
    let object = engine::object(&key, metadata, json!({ "data": fields(repository) }));
    match api.create(&object).await {
        Err(ApiError::Conflict(_)) => {
            let found = api.get(&key).await?.unwrap_or_default();
            let patch = json!({ "metadata": { "labels": labels }, "data": fields(repository) });
            api.patch(&key, (&Meta::of(&found).uid, None), &patch).await?;
            Ok(())
        }
        made => made.map(drop).map_err(Failure::from),
    }
}

/// The account of the Jobs, and the one right that it has.
async fn account(api: &Api, repository: &Repository) -> Result<(), Failure> {
    let namespace = &repository.namespace;
    let labels = json!({ "app.kubernetes.io/managed-by": MANAGER });
    let meta = |name: &str| json!({ "name": name, "namespace": namespace, "labels": labels });
    let account = &repository.service_account;
    let subject = json!({ "kind": "ServiceAccount", "name": account, "namespace": namespace });
    let role =
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": CHANGES_ROLE });
    let rule = json!({
        "apiGroups": ["snapshot.storage.k8s.io"],
        "resources": ["volumesnapshots"],
        "verbs": ["get"],
    });
    for (kind, name, body) in [
        (Kind::ServiceAccount, account.as_str(), json!({ "automountServiceAccountToken": false })),
        (Kind::Role, CHANGES_ROLE, json!({ "rules": [rule] })),
        (Kind::RoleBinding, CHANGES_ROLE, json!({ "roleRef": role, "subjects": [subject] })),
    ] {
        let key = Key::new(kind, namespace, name);
        match api.create(&engine::object(&key, meta(name), body)).await {
            Ok(_) | Err(ApiError::Conflict(_)) => {}
            Err(ApiError::Absent(_)) => {
                let what = format!("there is no namespace {namespace}");
                return Err(Failure::new(exit::USAGE, what));
            }
            Err(ApiError::Refused(why)) if kind != Kind::ServiceAccount => {
                tracing::warn!("{why}: changed blocks cannot be asked for, whole volumes are read");
            }
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}
