//! From a claim that names a restore to the request that populates it.

use super::restore::{RestoreOptions, bytes_of, record_of, was_filesystem};
use crate::api::Api;
use crate::engine::{
    Failure, Key, Kind, Object, Planned, Populate, Repository, Restore, StateOf, StorageClass,
    exit, notes,
};
use crate::ops::kept::{self, Wanted};
use crate::ops::look::look;
use crate::ops::lookup;
use serde_json::Value;

/// On a claim: the node of its first consumer.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The claim, as far as a request depends on it.
#[derive(Debug, Clone)]
pub struct Waiting<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// It, as it stands.
    pub object: &'a Value,
    /// Whether the first consumer of a class that waits for one is waited for.
    pub for_consumer: bool,
    /// Whether the volume may be larger than the claim asks for: whoever made the claim copied what the
    /// source asked for, and the driver had rounded that up.
    pub may_be_larger: bool,
}

/// The request that populates a claim.
///
/// # Errors
///
/// The first reason why it would not work; [`exit::RETRYABLE`] where the claim's consumer is not
/// there yet.
pub async fn request(
    api: &Api,
    backup: &str,
    repository: &Repository,
    claim: &Waiting<'_>,
    options: &RestoreOptions,
) -> Result<Restore, Failure> {
    let Waiting { namespace, name, uid, object, .. } = claim;
    let key = Key::new(Kind::PersistentVolumeClaim, namespace, name);
    let spec = &object["spec"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let class = text(&spec["storageClassName"]).filter(|class| !class.is_empty());
    let class = class.ok_or_else(|| {
        Failure::new(exit::USAGE, format!("{key} has no storage class")).hint("name one in it")
    })?;
    let selected_node = text(&object["metadata"]["annotations"][SELECTED_NODE]);
    if selected_node.is_none() && claim.for_consumer && waits(api, &class).await? {
        let what = format!("{key} waits for its first consumer, as StorageClass {class} says");
        return Err(Failure::new(exit::RETRYABLE, what)
            .hint("start its pod, or set waitForConsumer to false in the VolumeRestore"));
    }
    let (record, volume, id) =
        record_of(api, backup, repository, namespace, options, |_| {}).await?;
    let size_bytes = lookup::bytes(&record, "size_bytes")?;
    let capacity = room(claim, &key, text(&spec["resources"]["requests"]["storage"]), size_bytes)?;
    let note = |name: &str| record["labels"][name].as_str().filter(|text| !text.is_empty());
    let filesystem = filesystem(options, repository, &key, spec, &note)?;
    let kept = match options.prefer_snapshot {
        true => {
            let (volume, backup, url) = (volume.as_str(), id.as_str(), repository.url.as_str());
            let of = StateOf { namespace, volume, backup, url, size_bytes };
            let (record, storage_class) = (&record, class.as_str());
            Some(kept::kept(api, &Wanted { record, of, storage_class }).await?)
        }
        false => None,
    };
    let modes = spec["accessModes"].as_array().into_iter().flatten().filter_map(text);
    Ok(Restore {
        repository: repository.clone(),
        asked: backup.to_owned(),
        volume,
        backup: id,
        size_bytes,
        namespace: (*namespace).to_owned(),
        claim: (*name).to_owned(),
        storage_class: class,
        capacity,
        access_modes: modes.collect(),
        filesystem,
        in_place: None,
        differential: false,
        kept,
        populate: Some(Populate {
            uid: (*uid).to_owned(),
            selected_node,
            attributes_class: text(&spec["volumeAttributesClassName"]),
        }),
        limits: options.limits,
    })
}

/// The type of the filesystem that the volume becomes, if the claim asks for one.
fn filesystem<'r>(
    options: &RestoreOptions,
    repository: &Repository,
    key: &Key,
    spec: &Value,
    note: &impl Fn(&str) -> Option<&'r str>,
) -> Result<Option<String>, Failure> {
    let is_filesystem = spec["volumeMode"] != "Block";
    let of_filesystem = options.filesystem.is_some() || note(notes::MODE) == Some("Filesystem");
    let filesystem = match (is_filesystem, of_filesystem) {
        (false, _) => None,
        (true, true) => {
            let of = options.filesystem.clone().filter(|text| !text.is_empty());
            Some(of.or_else(|| note(notes::FS_TYPE).map(str::to_owned)).unwrap_or_default())
        }
        (true, false) => {
            let what = format!("{key} is of mode Filesystem, and the backup is one of a device");
            return Err(Failure::new(exit::USAGE, what)
                .hint("make the claim of mode Block, or name `filesystem` in the VolumeRestore"));
        }
    };
    if filesystem.is_some() && !repository.allow_mode_change {
        let what = format!(
            "Repository {} does not allow a restored volume to become a filesystem",
            repository.name
        );
        return Err(Failure::new(exit::DENIED, what).hint(
            "make the claim of mode Block, or set allowModeChange in the Repository: whoever has bucket and key can forge a filesystem that the kernel will parse",
        ));
    }
    if filesystem.is_some() {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        was_filesystem(options, repository, namespace, note(notes::MODE))?;
    }
    Ok(filesystem)
}

/// The size of the volume, which the backup has to fit in.
fn room(
    claim: &Waiting<'_>,
    key: &Key,
    asked: Option<String>,
    size_bytes: u64,
) -> Result<String, Failure> {
    let asked = asked.unwrap_or_default();
    match bytes_of(&asked) {
        Some(room) if room >= size_bytes => Ok(asked),
        _ if claim.may_be_larger => Ok(size_bytes.to_string()),
        _ => {
            let what = format!("{key} asks for {asked}, and the backup has {size_bytes} bytes");
            Err(Failure::new(exit::USAGE, what).hint("make the claim again, and larger"))
        }
    }
}

/// Whether volumes of a class are made for their first consumer.
async fn waits(api: &Api, class: &str) -> Result<bool, Failure> {
    let key = Key::wide(Kind::StorageClass, class);
    let question = |seen: &crate::engine::Observed| -> Planned<Option<Object<StorageClass>>> {
        seen.find(&key)
    };
    let found = look(api, question).await?.ok_or_else(|| {
        Failure::new(exit::USAGE, format!("there is no {key}")).hint("name another one")
    })?;
    Ok(found.body.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::restore::Guard;
    use serde_json::json;

    #[test]
    fn a_claim_elsewhere_gets_no_filesystem_of_a_device() {
        let repository = Repository {
            namespace: "vault".into(),
            allow_mode_change: true,
            ..Repository::default()
        };
        let options = RestoreOptions {
            guard: Some(Guard { grants: Vec::new(), uid: "u".into() }),
            filesystem: Some("ext4".into()),
            ..RestoreOptions::default()
        };
        let of = |namespace: &str, volume_mode: &str, mode: &'static str| {
            let key = Key::new(Kind::PersistentVolumeClaim, namespace, "db");
            let note = |name: &str| Some(mode).filter(|_| name == notes::MODE);
            filesystem(&options, &repository, &key, &json!({ "volumeMode": volume_mode }), &note)
        };
        let why = of("shop", "Filesystem", "Block").expect_err("it was a device");
        assert_eq!(why.exit_code, exit::DENIED, "{why}");
        assert_eq!(of("shop", "Block", "Block").unwrap(), None);
        for (namespace, mode) in [("shop", "Filesystem"), ("vault", "Block")] {
            let found = of(namespace, "Filesystem", mode).unwrap();
            assert_eq!(found.as_deref(), Some("ext4"), "{namespace}");
        }
    }
}
