//! Repositories as objects of our kind, where the cluster knows it: made here, looked after by the
//! controller.

use crate::api::{Api, ApiError, Asked};
use crate::drive::Driver;
use crate::engine::{
    self, Failure, GROUP, Key, Kind, MANAGER, Meta, Observed, Planned, Repository, SERVICE_ACCOUNT,
    Wait, exit,
};
use crate::kinds::VERSION;
use crate::ops::objects;
use http::Method;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A controller that has not opened it by then may not be there.
const READY_SECONDS: u64 = 300;
/// One that has said nothing of it by then is not there.
const TAKEN_UP_SECONDS: u64 = 60;

/// Whether the cluster knows the kind. Everybody may ask that.
///
/// # Errors
///
/// The server did not answer.
pub async fn installed(api: &Api) -> Result<bool, Failure> {
    let asked = Asked::other("ask for the kinds of mover", "get /apis");
    let path = format!("/apis/{GROUP}/{VERSION}");
    match api.request(Method::GET, &path, &[], None, asked).await {
        Ok(found) => {
            let plural = Kind::Repository.resource().plural;
            let kinds = found["resources"].as_array();
            Ok(kinds.into_iter().flatten().any(|kind| kind["name"] == plural))
        }
        Err(ApiError::Absent(_) | ApiError::Refused(_)) => Ok(false),
        Err(why) => Err(why.into()),
    }
}

/// The object of a Repository.
#[must_use]
pub fn key_of(namespace: &str, name: &str) -> Key {
    Key::new(Kind::Repository, namespace, name)
}

/// What the object asks for. `cluster_name` is how this cluster's volumes begin, if that was given.
fn spec(repository: &Repository, cluster_name: Option<&str>) -> Value {
    let named = |name: &Option<String>| name.as_ref().map(|name| json!({ "name": name }));
    let account = Some(&repository.service_account).filter(|name| *name != SERVICE_ACCOUNT);
    let mut credentials = Map::new();
    if let Some(secret) = named(&repository.credentials_secret) {
        credentials.insert("secretRef".into(), secret);
    }
    if let Some(account) = account {
        credentials.insert("serviceAccountName".into(), account.clone().into());
    }
    // What is left out is taken away from one that is there.
    json!({
        "url": repository.url,
        "keySecretRef": { "name": repository.key_secret },
        "credentials": (!credentials.is_empty()).then_some(credentials),
        "caConfigMapRef": named(&repository.ca_config_map),
        "env": repository.env,
        "clusterName": cluster_name,
        "allowedNamespaces": repository.allowed_namespaces,
        "allowModeChange": repository.allow_mode_change,
        "jobTemplate": {
            "image": repository.image,
            "imagePullPolicy": repository.image_pull_policy,
            "memory": repository.memory,
            "cpu": repository.cpu,
        },
    })
}

/// Members that stand in the old object and not in the new one, as a merge patch takes them away.
fn without(old: &Value, new: &mut Value) {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object_mut()) else { return };
    for name in old.keys() {
        new.entry(name).or_insert(Value::Null);
    }
}

/// Makes the object, or has one that is there be as this one. Rules of retention, times and all else
/// that no flag says stay as they are.
///
/// # Errors
///
/// The API refuses it: `url` and `clusterName` never change.
pub async fn save(
    api: &Api,
    repository: &Repository,
    cluster_name: Option<&str>,
) -> Result<(), Failure> {
    let key = key_of(&repository.namespace, &repository.name);
    let labels = json!({ "app.kubernetes.io/managed-by": MANAGER });
    let metadata = json!({ "name": key.name, "namespace": key.namespace, "labels": labels });
    let mut wanted = spec(repository, cluster_name);
    let mut made = wanted.clone();
    if let Some(members) = made.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    let object = engine::object(&key, metadata, json!({ "spec": made }));
    match api.create(&object).await {
        Err(ApiError::Conflict(_)) => {
            let found = api.get(&key).await?.unwrap_or_default();
            without(&found["spec"]["env"], &mut wanted["env"]);
            without(&found["spec"]["credentials"], &mut wanted["credentials"]);
            if cluster_name.is_none()
                && let Some(members) = wanted.as_object_mut()
            {
                members.remove("clusterName");
            }
            let patch = json!({ "spec": wanted });
            api.patch(&key, (&Meta::of(&found).uid, None), &patch).await?;
            Ok(())
        }
        made => made.map(drop).map_err(Failure::from),
    }
}

/// Waits until the controller has opened the repository.
///
/// # Errors
///
/// It cannot be opened, or nobody tries.
pub async fn opened(api: &Api, key: &Key, tell: impl FnMut(&Wait)) -> Result<(), Failure> {
    Driver::new(api, Observed::default()).run(|seen| is_open(key, seen), None, tell).await
}

fn is_open(key: &Key, seen: &Observed) -> Planned<()> {
    let Some(found) = seen.find::<Value>(key)? else {
        return Err(Failure::new(exit::RETRYABLE, format!("{key} was deleted")).into());
    };
    let ready = found.body["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready")
        // One of an earlier spec says nothing about this one.
        .filter(|at| at["observedGeneration"] == found.body["metadata"]["generation"]);
    let said = ready.map_or("", |at| at["message"].as_str().unwrap_or_default());
    match ready.map(|at| (at["status"].as_str(), at["reason"].as_str())) {
        Some((Some("True"), _)) => return Ok(()),
        Some((_, Some("InitFailed" | "BadSchedule"))) => {
            return Err(Failure::new(exit::USAGE, format!("{key} is not ready: {said}"))
                .hint("correct it, and run the same command again; the object stays")
                .into());
        }
        _ => {}
    }
    let why = match said {
        "" => format!("{key} waits for the controller"),
        said => format!("{key} is not ready: {said}"),
    };
    let age = seen.age(&found.meta.uid);
    // A controller says something of it at once; one that was just installed has to begin.
    let is_taken_up = found.body["status"].is_object();
    let limit = Duration::from_secs(if is_taken_up { READY_SECONDS } else { TAKEN_UP_SECONDS });
    if !is_taken_up && age >= limit {
        return Err(objects::nobody(key, limit).into());
    }
    if age >= limit {
        let why = format!("{why}, and after {READY_SECONDS} s that is given up");
        return Err(Failure::new(exit::RETRYABLE, why)
            .hint("the object stays, and the controller goes on with it, if it runs: kubectl mover doctor")
            .into());
    }
    Err(Wait::new(vec![key.clone().into()], why, limit - age).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::RepositorySpec;
    use std::collections::BTreeMap;

    fn made() -> Repository {
        Repository {
            namespace: "shop".into(),
            name: "default".into(),
            url: "s3://b/p".into(),
            cluster: "c1".into(),
            key_secret: "key".into(),
            credentials_secret: Some("store".into()),
            ca_config_map: Some("ca".into()),
            env: BTreeMap::from([("AWS_REGION".to_owned(), "x".to_owned())]),
            service_account: "cloud".into(),
            image: "mover:1".into(),
            image_pull_policy: "Never".into(),
            memory: "1Gi".into(),
            cpu: "2".into(),
            allowed_namespaces: vec!["web".into()],
            allow_mode_change: true,
            ..Repository::default()
        }
    }

    #[test]
    fn an_object_says_what_the_flags_said() {
        for repository in [
            made(),
            Repository {
                credentials_secret: None,
                ca_config_map: None,
                env: BTreeMap::new(),
                service_account: SERVICE_ACCOUNT.into(),
                ..made()
            },
        ] {
            let written = spec(&repository, Some("c1"));
            let read: RepositorySpec = serde_json::from_value(written).expect("it is a spec");
            let meta =
                Meta { name: "default".into(), namespace: Some("shop".into()), ..Meta::default() };
            assert_eq!(engine::of_object(&meta, &read, "other", "other"), repository);
        }
    }

    #[test]
    fn a_patch_takes_away_what_is_not_said_any_more() {
        let mut new = json!({ "A": "1" });
        without(&json!({ "A": "0", "B": "2" }), &mut new);
        assert_eq!(new, json!({ "A": "1", "B": null }));
        let mut none = Value::Null;
        without(&json!({ "B": "2" }), &mut none);
        assert_eq!(none, Value::Null, "all of it goes");
    }

    #[test]
    fn it_is_open_once_the_controller_says_so_of_this_spec() {
        let key = key_of("shop", "default");
        let look = |generation: i64, of: i64, status: &str, reason: &str, age: u64| {
            let condition = json!({
                "type": "Ready", "status": status, "reason": reason, "message": "said", "observedGeneration": of,
            });
            let object = json!({
                "metadata": { "name": "default", "uid": "u", "generation": generation },
                "status": { "conditions": [condition] },
            });
            let mut seen = Observed::default();
            seen.set_object(key.clone(), Some(object));
            seen.set_now(Duration::from_secs(age));
            is_open(&key, &seen)
        };
        look(2, 2, "True", "Opened", 0).expect("it is");
        let waits = |planned: Planned<()>| {
            matches!(planned, Err(engine::Stop::Next(engine::Next::Wait(_))))
        };
        assert!(waits(look(2, 1, "True", "Opened", 0)), "of the spec before");
        assert!(waits(look(2, 1, "False", "InitFailed", 0)), "of the spec before");
        assert!(waits(look(2, 2, "False", "KeySecretMissing", 10)), "it may come");
        let mut seen = Observed::default();
        let object = json!({ "metadata": { "name": "default", "uid": "u", "generation": 1 } });
        seen.set_object(key.clone(), Some(object));
        assert!(waits(is_open(&key, &seen)), "a controller may take it up");
        seen.set_now(Duration::from_secs(TAKEN_UP_SECONDS));
        let Err(engine::Stop::Failure(why)) = is_open(&key, &seen) else { panic!("it is no end") };
        assert!(why.message.contains("no controller"), "{why}");
        for (reason, age) in [("InitFailed", 0), ("KeySecretMissing", 301)] {
            let Err(engine::Stop::Failure(why)) = look(2, 2, "False", reason, age) else {
                panic!("it is no end");
            };
            assert!(why.message.contains("said"), "{why}");
        }
    }
}
