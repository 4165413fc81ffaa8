//! From a claim to the request of its backup: all that can be found wrong before anything is made.

use crate::api::Api;
use crate::engine::{
    Backup, ChangesService, Claim, ClaimRef, Failure, Key, Kind, Limits, Meta, MetadataService,
    Repository, Selection, SnapshotClass, Volume, exit, notes,
};
use crate::ops::hook;
use base64::Engine as _;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

const DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";

/// What the command line says of a backup.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Class of the snapshot, where the driver's own is not meant.
    pub snapshot_class: Option<String>,
    /// Class of the volume that is made of it, where the claim's own is not meant.
    pub storage_class: Option<String>,
    /// Whether the snapshot stays as the next base; without it, where the driver tells changes.
    pub keep_base: Option<bool>,
    /// Reads the whole volume: no changed blocks are asked for.
    pub whole: bool,
    /// How the application holds still.
    pub hook: Option<hook::Options>,
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
    options: &Options,
) -> Result<Backup, Failure> {
    let key = Key::new(Kind::PersistentVolumeClaim, namespace, name);
    let (meta, claim): (Meta, Claim) = must(api, &key).await?;
    let phase = claim.status.phase.as_deref().unwrap_or("Pending");
    let volume_name = claim.spec.volume_name.clone().filter(|_| phase == "Bound");
    let Some(volume_name) = volume_name else {
        let hint = format!("kubectl -n {namespace} describe pvc {name} says why");
        return Err(Failure::new(exit::USAGE, format!("{key} is {phase}, not Bound")).hint(hint));
    };
    let volume_key = Key::wide(Kind::PersistentVolume, &volume_name);
    let (_, volume): (Meta, Volume) = must(api, &volume_key).await?;
    let Some(csi) = &volume.spec.csi else {
        return Err(Failure::new(
            exit::USAGE,
            format!("{key} is on {volume_key}, which has no CSI driver and so no snapshots"),
        ));
    };
    let snapshot_class = class(api, &csi.driver, options.snapshot_class.as_deref()).await?;
    let storage_class = options.storage_class.clone().or(claim.spec.storage_class_name.clone());
    let storage_class = storage_class.filter(|name| !name.is_empty()).ok_or_else(|| {
        Failure::new(exit::USAGE, format!("{key} has no storage class"))
            .hint("name the class of the volume that is made of its snapshot: --storage-class NAME")
    })?;
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
    let mut labels = BTreeMap::from([
        (notes::MODE.into(), if filesystem { "Filesystem" } else { "Block" }.to_owned()),
        (notes::STORAGE_CLASS.into(), storage_class.clone()),
        (notes::CAPACITY.into(), capacity.clone()),
        (notes::ACCESS_MODES.into(), claim.spec.access_modes.join(",")),
    ]);
    if filesystem {
        // Without one it is what the driver makes by itself, and so is the restored one.
        let fs_type = csi.fs_type.clone().filter(|name| !name.is_empty());
        labels.extend(fs_type.map(|name| (notes::FS_TYPE.into(), name)));
    }
    labels.extend(options.labels.clone());
    Ok(Backup {
        source: ClaimRef { namespace: namespace.into(), name: name.into(), uid: meta.uid },
        driver: csi.driver.clone(),
        volume: format!("{}/{namespace}/{name}", repository.cluster),
        repository: repository.clone(),
        snapshot_class,
        storage_class,
        filesystem,
        capacity,
        labels,
        keep_base: options.keep_base.unwrap_or(changes.is_some()),
        changes,
        hook,
        arguments: options.arguments.clone(),
        limits: options.limits,
    })
}

/// The class of snapshots: the named one, else the default, else the only one of the driver.
async fn class(api: &Api, driver: &str, named: Option<&str>) -> Result<String, Failure> {
    let (found, _) = api.list(&Selection::all(Kind::VolumeSnapshotClass)).await?;
    let of_driver: Vec<(Meta, bool)> = found
        .iter()
        .filter(|raw| {
            serde_json::from_value::<SnapshotClass>((*raw).clone())
                .is_ok_and(|class| class.driver == driver)
        })
        .map(Meta::of)
        .map(|meta| {
            let default = meta.annotations.get(DEFAULT_CLASS).map(String::as_str) == Some("true");
            (meta, default)
        })
        .collect();
    let names = |all: &[(Meta, bool)]| {
        let names: Vec<&str> = all.iter().map(|(meta, _)| meta.name.as_str()).collect();
        names.join(", ")
    };
    if let Some(named) = named {
        if of_driver.iter().any(|(meta, _)| meta.name == named) {
            return Ok(named.to_owned());
        }
        return Err(Failure::new(
            exit::USAGE,
            format!("there is no VolumeSnapshotClass {named} of driver {driver}"),
        )
        .hint(format!("it has: {}", names(&of_driver))));
    }
    let default: Vec<(Meta, bool)> =
        of_driver.iter().filter(|(_, default)| *default).cloned().collect();
    match (default.as_slice(), of_driver.as_slice()) {
        ([(one, _)], _) | ([], [(one, _)]) => Ok(one.name.clone()),
        (_, []) if found.is_empty() => {
            Err(Failure::new(exit::USAGE, "the cluster has no VolumeSnapshotClass").hint(
                "install the snapshot controller and its CRDs, and make a class for the driver",
            ))
        }
        (_, []) => {
            Err(Failure::new(exit::USAGE, format!("no VolumeSnapshotClass is of driver {driver}"))
                .hint("make one; the driver has to support snapshots"))
        }
        ([], many) => Err(Failure::new(
            exit::USAGE,
            format!("driver {driver} has several VolumeSnapshotClasses and no default"),
        )
        .hint(format!("name one by --snapshot-class: {}", names(many)))),
        (many, _) => Err(Failure::new(
            exit::USAGE,
            format!("driver {driver} has several default VolumeSnapshotClasses"),
        )
        .hint(format!("name one by --snapshot-class: {}", names(many)))),
    }
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
    let wrong = |why: String| Failure::new(exit::USAGE, format!("{key}: {why}"));
    let service: MetadataService =
        serde_json::from_value(raw).map_err(|why| wrong(why.to_string()))?;
    let MetadataService { spec } = service;
    let ca = base64::engine::general_purpose::STANDARD
        .decode(spec.ca_cert.trim())
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let ca = ca.ok_or_else(|| wrong("caCert is not PEM in base64".into()))?;
    Ok(Some(ChangesService { address: spec.address, audience: spec.audience, ca }))
}
