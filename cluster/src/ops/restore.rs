//! From the name of a backup to the request of its restore.

use crate::api::Api;
use crate::engine::{
    self, Anchor, Failure, Key, Kind, Limits, Meta, ROLE, Repository, Request, Restore, SOURCE,
    Selection, Wait, exit, notes,
};
use crate::ops::{lookup, operation};
use serde_json::Value;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const MIB: u64 = 1 << 20;

/// What the command line says of a restore.
#[derive(Debug, Clone, Default)]
pub struct RestoreOptions {
    /// Class of the new claim, where the source's is not meant.
    pub storage_class: Option<String>,
    /// Size of the new claim, where the source's is not meant.
    pub size: Option<String>,
    /// As a block volume, whatever the source was.
    pub block: bool,
    /// As a filesystem of this type, whatever is written about the source.
    pub filesystem: Option<String>,
    /// Bounds on each step.
    pub limits: Limits,
}

/// `VOLUME@WHICH` as `mover` takes it. A plain name is a claim of this cluster and namespace; all
/// other volumes are named in full.
///
/// # Errors
///
/// A text that is neither.
pub fn full_name(text: &str, repository: &Repository, namespace: &str) -> Result<String, Failure> {
    let (volume, which) = text.split_once('@').unwrap_or((text, "latest"));
    match volume.split('/').collect::<Vec<_>>().as_slice() {
        [name] if !name.is_empty() => {
            Ok(format!("{}/{namespace}/{name}@{which}", repository.cluster))
        }
        [of, name] if !of.is_empty() && !name.is_empty() => {
            Ok(format!("{}/{of}/{name}@{which}", repository.cluster))
        }
        [_, _, _] => Ok(format!("{volume}@{which}")),
        _ => Err(Failure::new(exit::USAGE, format!("{text} names no backup")).hint(
            "write PVC@latest, PVC@2026-11-22, PVC@ID, or CLUSTER/NAMESPACE/PVC@… for a volume of another place",
        )),
    }
}

/// By what the anchors of restores to one claim are found: a label, so as short as that.
pub fn source_of(claim: &str) -> String {
    let mut name = format!("to-{claim}");
    name.truncate(63);
    // A label ends with a letter or a digit.
    name.trim_end_matches(['-', '.', '_']).to_owned()
}

/// A restore of this backup to this claim that has not ended.
///
/// # Errors
///
/// One of another backup has not ended.
pub async fn running(
    api: &Api,
    namespace: &str,
    source: &str,
    asked: &str,
) -> Result<Option<Anchor>, Failure> {
    let labels = format!("{SOURCE}={source},{ROLE}=restore");
    let all = operation::list(api, Some(namespace), &labels).await?;
    let Some(found) = all.into_iter().find(operation::Operation::is_running) else {
        return Ok(None);
    };
    match engine::request_of(&found.found)? {
        Request::Restore(restore) if restore.asked == asked => Ok(Some(found.anchor)),
        _ => {
            let name = &found.anchor.key.name;
            let what =
                format!("{name} in namespace {namespace} restores another backup to that claim");
            Err(Failure::new(exit::RETRYABLE, what).hint(format!(
                "go on with it by the command that began it, or end it: kubectl mover cancel {name} -n {namespace}"
            )))
        }
    }
}

/// The request for a restore of a backup to a new claim.
///
/// # Errors
///
/// The first reason why it would not work.
pub async fn request(
    api: &Api,
    backup: &str,
    repository: &Repository,
    (namespace, claim): (&str, &str),
    options: &RestoreOptions,
    tell: impl FnMut(&Wait),
) -> Result<Restore, Failure> {
    let key = Key::new(Kind::PersistentVolumeClaim, namespace, claim);
    if api.get(&key).await?.is_some() {
        return Err(Failure::new(exit::USAGE, format!("{key} exists already"))
            .hint("name another claim, or delete that one if nobody needs it"));
    }
    let name = full_name(backup, repository, namespace)?;
    let lines = lookup::ask(api, repository, &["show", &name], tell).await?;
    let record = lookup::of_type(&lines, "backup").next().ok_or_else(|| {
        Failure::new(exit::BUG, format!("nothing was printed about backup {name}"))
    })?;
    let note = |name: &str| record["labels"][name].as_str().filter(|text| !text.is_empty());
    let filesystem = match (options.block, &options.filesystem, note(notes::MODE)) {
        (true, _, _) => None,
        (false, Some(fs_type), _) => Some(fs_type.clone()),
        (false, None, Some("Filesystem")) => {
            Some(note(notes::FS_TYPE).unwrap_or_default().to_owned())
        }
        (false, None, _) => None,
    };
    if filesystem.is_some() && !repository.allow_mode_change {
        return Err(Failure::new(
            exit::DENIED,
            format!("Repository {} does not allow a restored volume to become a filesystem", repository.name),
        )
        .hint("restore it as a block volume by --block, or set allowModeChange in its ConfigMap: whoever has bucket and key can forge a filesystem that the kernel will parse"));
    }
    let size_bytes = lookup::bytes(record, "size_bytes")?;
    let capacity = match (&options.size, note(notes::CAPACITY)) {
        (Some(size), _) => size.clone(),
        (None, Some(size)) => size.to_owned(),
        (None, None) => format!("{}Mi", size_bytes.div_ceil(MIB)),
    };
    let modes = note(notes::ACCESS_MODES).unwrap_or("ReadWriteOnce");
    Ok(Restore {
        repository: repository.clone(),
        asked: backup.to_owned(),
        volume: text(record, "volume")?,
        backup: text(record, "backup_id")?,
        size_bytes,
        namespace: namespace.into(),
        claim: claim.into(),
        storage_class: class(api, options.storage_class.as_deref(), note(notes::STORAGE_CLASS))
            .await?,
        capacity,
        access_modes: modes.split(',').map(str::to_owned).collect(),
        filesystem,
        limits: options.limits,
    })
}

fn text(record: &Value, name: &str) -> Result<String, Failure> {
    record[name].as_str().map(str::to_owned).ok_or_else(|| {
        Failure::new(exit::BUG, format!("the record of a backup has no text {name}: {record}"))
    })
}

/// The class of the new claim: the named one, else the source's if this cluster has it, else the
/// default.
async fn class(api: &Api, named: Option<&str>, noted: Option<&str>) -> Result<String, Failure> {
    let (found, _) = api.list(&Selection::all(Kind::StorageClass)).await?;
    let all: Vec<Meta> = found.iter().map(Meta::of).collect();
    let has = |name: &str| all.iter().any(|class| class.name == name);
    let names: Vec<&str> = all.iter().map(|class| class.name.as_str()).collect();
    let hint = format!("name one by --storage-class: {}", names.join(", "));
    if let Some(named) = named {
        if has(named) {
            return Ok(named.to_owned());
        }
        let what = format!("there is no StorageClass {named}");
        return Err(Failure::new(exit::USAGE, what).hint(hint));
    }
    if let Some(noted) = noted.filter(|name| has(name)) {
        return Ok(noted.to_owned());
    }
    let default = all
        .iter()
        .find(|class| class.annotations.get(DEFAULT_CLASS).map(String::as_str) == Some("true"));
    default.map(|class| class.name.clone()).ok_or_else(|| {
        let what = match noted {
            Some(noted) => format!("this cluster has no StorageClass {noted}, and no default"),
            None => "this cluster has no default StorageClass".to_owned(),
        };
        Failure::new(exit::USAGE, what).hint(hint)
    })
}
