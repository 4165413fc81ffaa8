//! From a claim to the request of its backup: all that can be found wrong before anything is made.

use crate::api::Api;
use crate::engine::{
    Backup, ChangesService, Claim, ClaimRef, Failure, Given, Key, Kind, Limits, Meta,
    MetadataService, Object, Repository, Retain, Selection, SnapshotClass, choice, exit, notes,
};
use crate::ops::hook;
use crate::ops::look::{issuer, look};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;

/// How the names of our own notes begin.
const OUR_NOTES: &str = "kubernetes/";

/// What the command line says of a backup.
#[derive(Debug, Clone, Default)]
pub struct BackupOptions {
    /// Class of the snapshot, where the driver's own is not meant.
    pub snapshot_class: Option<String>,
    /// Class of the volume that is made of it, where the claim's own is not meant.
    pub storage_class: Option<String>,
    /// Whether that volume is asked for as one that nobody may write to.
    pub read_only: bool,
    /// Whether the snapshot stays as the next base; without it, where the driver tells changes.
    pub keep_base: Option<bool>,
    /// Whether the snapshot stays for longer.
    pub retain: Option<Retain>,
    /// Reads the whole volume: no changed blocks are asked for.
    pub whole: bool,
    /// The snapshot, where somebody has taken it.
    pub given: Option<Given>,
    /// How the application holds still.
    pub hook: Option<hook::HookOptions>,
    /// Notes on the backup.
    pub labels: BTreeMap<String, String>,
    /// More arguments for `mover backup`.
    pub arguments: Vec<String>,
    /// Bounds on each step.
    pub limits: Limits,
}

/// An object, which must be there.
///
/// # Errors
///
/// It is not, or cannot be read.
pub async fn must<T: DeserializeOwned>(api: &Api, key: &Key) -> Result<(Meta, T), Failure> {
    let raw = api
        .get(key)
        .await?
        .ok_or_else(|| Failure::new(exit::USAGE, format!("there is no {key}")))?;
    let body = serde_json::from_value(raw.clone())
        .map_err(|why| Failure::new(exit::USAGE, format!("{key}: {why}")))?;
    Ok((Meta::of(&raw), body))
}

/// The request for a backup of a claim.
///
/// # Errors
///
/// The first reason why it would not work.
pub async fn request(
    api: &Api,
    namespace: &str,
    name: &str,
    repository: &Repository,
    options: &BackupOptions,
) -> Result<Backup, Failure> {
    are_free(&options.labels)?;
    let key = Key::new(Kind::PersistentVolumeClaim, namespace, name);
    let (meta, claim): (Meta, Claim) = must(api, &key).await?;
    let volume_key = choice::bound(&key, &meta, &claim)?;
    let (volume_meta, volume): (Meta, Value) = must(api, &volume_key).await?;
    choice::whole(&key, &volume_key, &volume_meta)?;
    let csi = &choice::csi(&key, &volume_key, &volume)?;
    let snapshot_class = class(api, &csi.driver, options.snapshot_class.as_deref()).await?;
    let storage_class = choice::storage_class(&key, &claim, options.storage_class.as_deref())?;
    let changes = match options.whole {
        true => None,
        false => service(api, &csi.driver).await?,
    };
    let hook = match &options.hook {
        None => None,
        Some(options) => Some(hook::find(api, namespace, name, options).await?),
    };
    let filesystem = claim.spec.volume_mode.as_deref() != Some("Block");
    let capacity = claim.status.capacity.get("storage").cloned().unwrap_or_default();
    // Ours come last, so they are what a restore reads.
    let mut labels = options.labels.clone();
    labels.extend(own_notes(&claim, csi.fs_type.as_deref(), &storage_class));
    labels
        .extend(namespace_uid(api, namespace).await?.map(|uid| (notes::NAMESPACE_UID.into(), uid)));
    Ok(Backup {
        source: ClaimRef { namespace: namespace.into(), name: name.into(), uid: meta.uid },
        driver: csi.driver.clone(),
        volume_handle: csi.volume_handle.clone(),
        volume: format!("{}/{namespace}/{name}", repository.cluster),
        repository: repository.clone(),
        snapshot_class,
        storage_class,
        read_only: options.read_only,
        filesystem,
        capacity,
        labels,
        keep_base: options.keep_base.unwrap_or(changes.is_some()),
        changes,
        given: options.given.clone(),
        hook,
        retain: options.retain.clone(),
        objects: None,
        arguments: options.arguments.clone(),
        limits: options.limits,
    })
}

/// That notes are under names of the user's own: by ours a restore makes a filesystem, and a namespace
/// has its backups.
fn are_free(labels: &BTreeMap<String, String>) -> Result<(), Failure> {
    match labels.keys().find(|name| name.starts_with(OUR_NOTES)) {
        None => Ok(()),
        Some(name) => {
            let what =
                format!("note {name}: what begins with {OUR_NOTES} is noted by mover itself");
            Err(Failure::new(exit::USAGE, what).hint("give the note another name"))
        }
    }
}

/// How the volume is one in Kubernetes.
fn own_notes(
    claim: &Claim,
    fs_type: Option<&str>,
    storage_class: &str,
) -> BTreeMap<String, String> {
    let filesystem = claim.spec.volume_mode.as_deref() != Some("Block");
    // A restore goes where the source was, not where its snapshot was read.
    let own_class = claim.spec.storage_class_name.as_deref().filter(|name| !name.is_empty());
    let capacity = claim.status.capacity.get("storage").cloned().unwrap_or_default();
    let mut labels = BTreeMap::from([
        (notes::MODE.into(), if filesystem { "Filesystem" } else { "Block" }.to_owned()),
        (notes::STORAGE_CLASS.into(), own_class.unwrap_or(storage_class).to_owned()),
        (notes::CAPACITY.into(), capacity),
        (notes::ACCESS_MODES.into(), claim.spec.access_modes.join(",")),
    ]);
    if filesystem {
        // Without one it is what the driver makes by itself, and so is the restored one.
        let fs_type = fs_type.filter(|name| !name.is_empty());
        labels.extend(fs_type.map(|name| (notes::FS_TYPE.into(), name.to_owned())));
    }
    labels
}

/// The uid of the namespace, where it may be read: nothing but later rights depend on it.
async fn namespace_uid(api: &Api, namespace: &str) -> Result<Option<String>, Failure> {
    match api.get(&Key::wide(Kind::Namespace, namespace)).await {
        Ok(found) => Ok(found.map(|found| Meta::of(&found).uid).filter(|uid| !uid.is_empty())),
        Err(crate::api::ApiError::Refused(why)) => {
            tracing::debug!("{why}: the backup does not note the namespace's uid");
            Ok(None)
        }
        Err(why) => Err(why.into()),
    }
}

/// The class of snapshots.
async fn class(api: &Api, driver: &str, named: Option<&str>) -> Result<String, Failure> {
    let selection = Selection::all(Kind::VolumeSnapshotClass);
    let all = look(api, |seen| seen.list::<SnapshotClass>(&selection)).await?;
    choice::snapshot_class(driver, named, &all).map(|class| class.key.name.clone())
}

/// The driver's service of changed blocks, if the cluster has one.
async fn service(api: &Api, driver: &str) -> Result<Option<ChangesService>, Failure> {
    let key = Key::wide(Kind::SnapshotMetadataService, driver);
    let raw = match api.get(&key).await {
        Ok(raw) => raw,
        Err(crate::api::ApiError::Refused(why)) => {
            tracing::warn!("{why}: changed blocks cannot be asked for, whole volumes are read");
            None
        }
        Err(why) => return Err(why.into()),
    };
    let Some(raw) = raw else { return Ok(None) };
    let body = serde_json::from_value::<MetadataService>(raw.clone())
        .map_err(|why| Failure::new(exit::USAGE, format!("{key}: {why}")))?;
    let issuer = issuer(api).await;
    choice::service(&Object { meta: Meta::of(&raw), key, body }, issuer.as_deref()).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_writes_our_notes() {
        let of = |name: &str| are_free(&BTreeMap::from([(name.to_owned(), "Filesystem".into())]));
        for name in [notes::MODE, notes::NAMESPACE_UID, "kubernetes/volume-mode=Filesystem"] {
            let why = of(name).expect_err("it is ours");
            assert_eq!(why.exit_code, exit::USAGE, "{why}");
            assert!(why.message.contains(name), "{why}");
        }
        for name in ["kubernetes", "team/volume-mode", "velero/backup-name"] {
            of(name).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}
