//! Snapshots of the storage by the backups that were made of them: which of them the cluster has, one
//! that is brought back into it, and one that goes.

use crate::api::{Api, ApiError};
use crate::drive::Driver;
use crate::engine::{
    Content, Discard, DiscardFrom, Failure, Import, Imported, Key, Kind, Meta, OWNER, Object,
    Observed, Repository, Selection, SnapshotClass, Stop, Wait, choice, discard_snapshot,
    discardable, exit, handle_of, import, notes, withdraw,
};
use crate::ops::backup::must;
use crate::ops::look::look;
use crate::ops::operation::random_text;
use crate::ops::restore::{RestoreOptions, record_of};
use serde_json::Value;
use std::collections::BTreeMap;

/// As many characters of a backup's id as a name has of it.
const ID_CHARS: usize = 8;
const NAME_CHARS: usize = 253;
const RUN_CHARS: usize = 16;

/// What the command line says of an import.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Name of the snapshot, where the one that follows from the backup is not meant.
    pub name: Option<String>,
    /// Class of snapshots, where the driver's own is not meant.
    pub snapshot_class: Option<String>,
    /// The driver, where the backup does not note it.
    pub driver: Option<String>,
    /// How long the driver is waited for.
    pub wait_seconds: u64,
}

/// Where the snapshot of a backup is, as far as this cluster knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It has this VolumeSnapshot, as namespace and name, which can be used.
    Here(String, String),
    /// It has this one, and the driver does not say that it can be used.
    NotReady(String, String, Option<String>),
    /// It has a content, and the VolumeSnapshot that this names is gone.
    Dangling(String, String),
    /// It has none: the storage may have it.
    Elsewhere,
    /// Contents may not be read.
    Unknown,
}

impl Presence {
    /// A word for each.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Here(..) => "ready",
            Self::NotReady(..) => "not-ready",
            Self::Dangling(..) => "dangling",
            Self::Elsewhere => "not-in-cluster",
            Self::Unknown => "unknown",
        }
    }
}

/// All contents of the cluster, by which snapshots are found; none where they may not be read.
///
/// # Errors
///
/// The API server is away.
pub async fn contents(api: &Api) -> Result<Option<Vec<Object<Content>>>, Failure> {
    let all = Selection::all(Kind::VolumeSnapshotContent);
    match api.list(&all).await {
        Ok((found, version)) => {
            let mut seen = Observed::default();
            seen.set_list(all.clone(), found, version);
            match seen.list(&all) {
                Ok(all) => Ok(Some(all)),
                Err(Stop::Failure(why)) => Err(why),
                Err(next) => Err(Failure::new(exit::BUG, format!("it was listed: {next:?}"))),
            }
        }
        Err(ApiError::Refused(why)) => {
            tracing::warn!("{why}: which snapshots this cluster has is not known");
            Ok(None)
        }
        // Its kind is unknown here.
        Err(ApiError::Absent(_)) => Ok(Some(Vec::new())),
        Err(why) => Err(why.into()),
    }
}

/// The same, once the VolumeSnapshot was looked for: where the storage is to keep a snapshot, its content
/// stays without one.
///
/// # Errors
///
/// The API server is away.
pub async fn looked_for(api: &Api, presence: Presence) -> Result<Presence, Failure> {
    let (Presence::Here(namespace, name) | Presence::NotReady(namespace, name, _)) = &presence
    else {
        return Ok(presence);
    };
    match api.get(&Key::new(Kind::VolumeSnapshot, namespace, name)).await {
        Ok(None) => Ok(Presence::Dangling(namespace.clone(), name.clone())),
        Ok(Some(_)) | Err(ApiError::Refused(_)) => Ok(presence),
        Err(why) => Err(why.into()),
    }
}

/// Where the snapshot of a record is.
#[must_use]
pub fn presence_of(record: &Value, contents: Option<&[Object<Content>]>) -> Presence {
    let Some(contents) = contents else { return Presence::Unknown };
    let snapshot = &record["snapshot"];
    let driver = snapshot["csi_driver"].as_str();
    let handle = snapshot["snapshot_handle"].as_str();
    let is_it = |at: &&Object<Content>| {
        handle_of(&at.body).map(String::as_str) == handle
            && driver.is_none_or(|driver| at.body.spec.driver == driver)
    };
    let mut found: Vec<_> = contents.iter().filter(is_it).collect();
    // One that is being handed over is the second of its snapshot, and goes.
    found.sort_by_key(|at| at.meta.labels.contains_key(OWNER));
    let is_ready = |at: &&&Object<Content>| at.body.status.ready_to_use == Some(true);
    let Some(content) = found.iter().find(is_ready).or(found.first()) else {
        return Presence::Elsewhere;
    };
    let back = &content.body.spec.volume_snapshot_ref;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, name) = (text(&back.namespace), text(&back.name));
    match content.body.status.ready_to_use {
        Some(true) => Presence::Here(namespace, name),
        _ => {
            let error = content.body.status.error.as_ref();
            Presence::NotReady(namespace, name, error.and_then(|error| error.message.clone()))
        }
    }
}

/// Brings the snapshot of a backup into a namespace. Where it fails, what was made is removed.
///
/// # Errors
///
/// The first reason why it would not work, or that of [`import`].
pub async fn import_of(
    api: &Api,
    backup: &str,
    (repository, namespace): (&Repository, &str),
    options: &ImportOptions,
    mut tell: impl FnMut(&Wait),
) -> Result<(Import, Imported), Failure> {
    let any = RestoreOptions::default();
    let (record, volume, id) =
        record_of(api, backup, repository, namespace, &any, &mut tell).await?;
    let (driver, handle) = named(&record, &volume, options.driver.as_deref())?;
    must::<Value>(api, &Key::wide(Kind::CSIDriver, &driver)).await.map_err(|why| {
        why.hint("the driver of the snapshot has to run in this cluster, on the same storage")
    })?;
    let (class, annotations) = class(api, &driver, options.snapshot_class.as_deref()).await?;
    let request = Import {
        namespace: namespace.to_owned(),
        name: options.name.clone().unwrap_or_else(|| name_of(&volume, &id)),
        driver,
        handle,
        mode: record["labels"][notes::MODE].as_str().map(str::to_owned),
        snapshot_class: class,
        annotations,
        of: format!("{volume}@{id}"),
        wait_seconds: options.wait_seconds,
        run: random_text(RUN_CHARS)?,
    };
    let mut driver = Driver::new(api, Observed::default());
    match driver.run(|seen| seen.settle(import(&request, seen)), None, &mut tell).await {
        Ok(done) => Ok((request, done)),
        Err(why) => {
            let mut driver = Driver::new(api, Observed::default());
            let undone = driver.run(|seen| seen.settle(withdraw(&request, seen)), None, tell).await;
            match undone {
                Ok(()) => Err(why),
                Err(left) => {
                    let hint = format!(
                        "{}; and what was made is not all gone: {left}",
                        why.hint.clone().unwrap_or_default()
                    );
                    Err(why.hint(hint))
                }
            }
        }
    }
}

/// Driver and handle of a record.
fn named(record: &Value, volume: &str, driver: Option<&str>) -> Result<(String, String), Failure> {
    let note = |name: &str| record["snapshot"][name].as_str().filter(|text| !text.is_empty());
    let Some(handle) = note("snapshot_handle") else {
        let what = format!("this backup of {volume} was made of no snapshot of a driver");
        return Err(Failure::new(exit::USAGE, what).hint("kubectl mover restore reads the backup"));
    };
    let driver = match (note("csi_driver"), driver) {
        (Some(noted), Some(named)) if noted != named => {
            let what = format!("the snapshot is of driver {noted}, not of {named}");
            return Err(Failure::new(exit::USAGE, what).hint("leave --driver away"));
        }
        (Some(driver), _) | (None, Some(driver)) => driver,
        (None, None) => {
            let what = format!("this backup of {volume} does not note the driver of its snapshot");
            return Err(Failure::new(exit::USAGE, what).hint("name it by --driver"));
        }
    };
    Ok((driver.to_owned(), handle.to_owned()))
}

/// A name that says which backup it is of.
fn name_of(volume: &str, id: &str) -> String {
    let claim = volume.rsplit('/').next().unwrap_or_default();
    let short: String = id.chars().filter(char::is_ascii_alphanumeric).take(ID_CHARS).collect();
    let claim: String = claim.chars().take(NAME_CHARS - ID_CHARS - 1).collect();
    format!("{claim}-{}", short.to_ascii_lowercase())
}

/// The class, and what its parameters say of secrets: the sidecar looks for those on a content.
async fn class(
    api: &Api,
    driver: &str,
    named: Option<&str>,
) -> Result<(Option<String>, BTreeMap<String, String>), Failure> {
    let all = Selection::all(Kind::VolumeSnapshotClass);
    let all = look(api, |seen| seen.list::<SnapshotClass>(&all)).await?;
    let found = match choice::snapshot_class(driver, named, &all) {
        Ok(found) => found,
        Err(why) if named.is_some() => return Err(why),
        // A snapshot that exists needs none.
        Err(_) => return Ok((None, BTreeMap::new())),
    };
    let (_, raw): (Meta, Value) = must(api, &found.key).await?;
    Ok((Some(found.key.name.clone()), secrets(&raw)))
}

/// Names of secrets that follow from nothing else. Others are for whoever wrote the class to tell.
fn secrets(class: &Value) -> BTreeMap<String, String> {
    let of = |member: &str| {
        let text = class["parameters"][format!("csi.storage.k8s.io/snapshotter-secret-{member}")]
            .as_str()?;
        (!text.contains("${")).then(|| {
            (format!("snapshot.storage.kubernetes.io/deletion-secret-{member}"), text.to_owned())
        })
    };
    match (of("name"), of("namespace")) {
        (Some(name), Some(namespace)) => BTreeMap::from([name, namespace]),
        _ => BTreeMap::new(),
    }
}

/// Removes a snapshot of ours from the cluster, and from the storage unless it is to keep it.
///
/// # Errors
///
/// It is not ours, or those of [`discard_snapshot`].
pub async fn discard(
    api: &Api,
    (namespace, name): (&str, &str),
    removal: DiscardFrom,
    tell: impl FnMut(&Wait),
) -> Result<Discard, Failure> {
    let key = Key::new(Kind::VolumeSnapshot, namespace, name);
    let of = look(api, |seen| discardable(seen, &key, removal)).await?;
    let mut driver = Driver::new(api, Observed::default());
    driver.run(|seen| seen.settle(discard_snapshot(&of, seen)), None, tell).await?;
    Ok(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn content(name: &str, status: Value) -> Object<Content> {
        let raw = json!({ "spec": {
            "driver": "d", "source": { "snapshotHandle": "s-1" },
            "volumeSnapshotRef": { "namespace": "shop", "name": name },
        }, "status": status });
        let body = serde_json::from_value(raw).expect("a content");
        Object { meta: Meta::default(), body, key: Key::wide(Kind::VolumeSnapshotContent, name) }
    }

    #[test]
    fn a_snapshot_is_found_by_driver_and_handle() {
        let record = |driver: Value| json!({ "snapshot": { "csi_driver": driver, "snapshot_handle": "s-1" } });
        let ready = content("a", json!({ "readyToUse": true }));
        let not = content("b", json!({ "readyToUse": false, "error": { "message": "gone" } }));
        let here = |name: &str| Presence::Here("shop".into(), name.into());
        let all = [not.clone(), ready];
        assert_eq!(presence_of(&record("d".into()), Some(&all)), here("a"));
        assert_eq!(presence_of(&record(Value::Null), Some(&all)), here("a"), "an older backup");
        assert_eq!(presence_of(&record("e".into()), Some(&all)), Presence::Elsewhere);
        let not_ready = Presence::NotReady("shop".into(), "b".into(), Some("gone".into()));
        assert_eq!(presence_of(&record("d".into()), Some(&[not])), not_ready);
        assert_eq!(presence_of(&record("d".into()), None), Presence::Unknown);
    }

    #[test]
    fn what_a_record_does_not_say_is_asked_for() {
        let record = |snapshot: Value| json!({ "snapshot": snapshot });
        let whole = record(json!({ "csi_driver": "d", "snapshot_handle": "s" }));
        assert_eq!(named(&whole, "v", None).unwrap(), ("d".into(), "s".into()));
        assert!(named(&whole, "v", Some("e")).unwrap_err().message.contains("not of e"));
        let older = record(json!({ "snapshot_handle": "s" }));
        assert_eq!(named(&older, "v", Some("e")).unwrap(), ("e".into(), "s".into()));
        assert!(named(&older, "v", None).unwrap_err().hint.unwrap().contains("--driver"));
        assert!(named(&record(json!({})), "v", None).unwrap_err().message.contains("no snapshot"));
    }

    #[test]
    fn names_say_which_backup_it_is() {
        assert_eq!(name_of("c/shop/db", "12308530-0137-4d0a"), "db-12308530");
        assert_eq!(name_of("c/shop/db", "A1"), "db-a1");
        assert!(name_of(&"x".repeat(300), "12345678").len() <= NAME_CHARS);
    }

    #[test]
    fn secrets_are_those_that_are_named_outright() {
        let class = |name: &str| {
            json!({ "parameters": {
            "csi.storage.k8s.io/snapshotter-secret-name": name,
            "csi.storage.k8s.io/snapshotter-secret-namespace": "kube-system",
        } })
        };
        assert_eq!(secrets(&class("key")).len(), 2);
        assert_eq!(secrets(&class("${volumesnapshot.name}")).len(), 0);
        assert_eq!(secrets(&json!({})).len(), 0);
    }
}
