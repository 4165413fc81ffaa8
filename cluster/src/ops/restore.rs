//! From the name of a backup to the request of its restore.

use crate::api::Api;
use crate::engine::{
    self, Detached, Failure, Key, Kind, Limits, Meta, ROLE, Repository, Restore, Selection,
    StateOf, TARGET, Wait, exit, notes,
};
use crate::kinds::Grant;
use crate::ops::kept::{self, Wanted};
use crate::ops::look::look;
use crate::ops::{in_place, lookup};
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
    /// Onto the volume of a claim that exists.
    pub in_place: bool,
    /// Only what differs there.
    pub differential: bool,
    /// The new volume begins as the backup's snapshot, where the storage still has it.
    pub prefer_snapshot: bool,
    /// Of the backups of a volume the newest that has no data younger than this time.
    pub before: Option<String>,
    /// Whether that volume is known to be on no node.
    pub detached: Detached,
    /// Whether the namespace may have the backup, where whoever restores may do more than it.
    pub guard: Option<Guard>,
    /// Bounds on each step.
    pub limits: Limits,
}

/// What a namespace may restore of a Repository that is elsewhere.
#[derive(Debug, Clone)]
pub struct Guard {
    /// Volumes that the Repository grants.
    pub grants: Vec<Grant>,
    /// Uid of the namespace.
    pub uid: String,
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

/// By what the anchors of restores to one claim are found: a label, which has 63 characters at most.
pub fn source_of(claim: &str) -> String {
    format!("to-{:016x}", engine::hash(claim))
}

/// The request for a restore of a backup to a new claim, or onto the volume of one that exists.
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
    let place = match options.in_place {
        true => Some(look(api, |seen| engine::target(seen, &key, options.detached)).await?),
        false => {
            is_free(api, &key).await?;
            None
        }
    };
    let (record, volume, id) = record_of(api, backup, repository, namespace, options, tell).await?;
    let record = &record;
    let note = |name: &str| record["labels"][name].as_str().filter(|text| !text.is_empty());
    let filesystem = filesystem(options, repository, namespace, &note)?;
    let size_bytes = lookup::bytes(record, "size_bytes")?;
    let (storage_class, capacity, access_modes) = match &place {
        Some(place) => {
            let room = bytes_of(&place.capacity);
            in_place::fits(claim, place, filesystem.as_deref(), (size_bytes, room))?;
            (place.storage_class.clone(), place.capacity.clone(), place.access_modes.clone())
        }
        None => {
            let noted = note(notes::STORAGE_CLASS);
            let class = class(api, options.storage_class.as_deref(), noted).await?;
            let size = capacity(options.size.as_deref(), note(notes::CAPACITY), size_bytes)?;
            let modes = note(notes::ACCESS_MODES).unwrap_or("ReadWriteOnce");
            (class, size, modes.split(',').map(str::to_owned).collect())
        }
    };
    let kept = match options.prefer_snapshot && place.is_none() {
        true => {
            let (volume, backup, url) = (volume.as_str(), id.as_str(), repository.url.as_str());
            let of = StateOf { namespace, volume, backup, url, size_bytes };
            let storage_class = storage_class.as_str();
            Some(kept::kept(api, &Wanted { record, of, storage_class }).await?)
        }
        false => None,
    };
    Ok(Restore {
        repository: repository.clone(),
        asked: backup.to_owned(),
        volume,
        backup: id,
        size_bytes,
        namespace: namespace.into(),
        claim: claim.into(),
        storage_class,
        capacity,
        access_modes,
        filesystem,
        differential: options.differential && place.is_some(),
        in_place: place.map(|place| place.place),
        kept,
        populate: None,
        limits: options.limits,
    })
}

/// The type of the filesystem that the volume becomes, if it becomes one.
fn filesystem<'r>(
    options: &RestoreOptions,
    repository: &Repository,
    namespace: &str,
    note: &impl Fn(&str) -> Option<&'r str>,
) -> Result<Option<String>, Failure> {
    let filesystem = match (options.block, &options.filesystem, note(notes::MODE)) {
        (true, _, _) => None,
        (false, Some(fs_type), _) => Some(fs_type.clone()),
        (false, None, Some("Filesystem")) => {
            Some(note(notes::FS_TYPE).unwrap_or_default().to_owned())
        }
        (false, None, _) => None,
    };
    if filesystem.is_none() {
        return Ok(None);
    }
    if !repository.allow_mode_change {
        return Err(Failure::new(
            exit::DENIED,
            format!("Repository {} does not allow a restored volume to become a filesystem", repository.name),
        )
        .hint("restore it as a block volume by --block, or set allowModeChange in its ConfigMap: whoever has bucket and key can forge a filesystem that the kernel will parse"));
    }
    was_filesystem(options, repository, namespace, note(notes::MODE))?;
    Ok(filesystem)
}

/// That a volume may become a filesystem in a namespace that is only guarded: it was one when we read
/// it. Whoever had it as a device could have written anything for the kernel to parse.
pub(super) fn was_filesystem(
    options: &RestoreOptions,
    repository: &Repository,
    namespace: &str,
    mode: Option<&str>,
) -> Result<(), Failure> {
    let is_elsewhere = options.guard.is_some() && repository.namespace != namespace;
    if !is_elsewhere || mode == Some("Filesystem") {
        return Ok(());
    }
    let what = format!(
        "the backup is not noted as one of a filesystem, and namespace {namespace} is not that of Repository {}: it gets it as a device alone",
        repository.name
    );
    Err(Failure::new(exit::DENIED, what).hint(format!(
        "restore it with `mode: Block`, or to a claim of mode Block; in namespace {} it can become a filesystem",
        repository.namespace
    )))
}

/// What the repository says of a backup, with the volume and the id of it.
pub(crate) async fn record_of(
    api: &Api,
    backup: &str,
    repository: &Repository,
    namespace: &str,
    options: &RestoreOptions,
    tell: impl FnMut(&Wait),
) -> Result<(Value, String, String), Failure> {
    let name = full_name(backup, repository, namespace)?;
    let mut asked = vec!["show", &name];
    if let Some(before) = &options.before {
        let volume = name.rsplit_once('@').map_or(name.as_str(), |(volume, _)| volume);
        asked = vec!["show", volume, "--before", before];
    }
    let lines = lookup::ask(api, repository, &asked, tell).await?;
    let record = lookup::of_type(&lines, "backup").next().ok_or_else(|| {
        Failure::new(exit::BUG, format!("nothing was printed about backup {name}"))
    })?;
    let volume = text(record, "volume")?;
    if let Some(Guard { grants, uid }) = &options.guard {
        let home = (repository.namespace.as_str(), repository.cluster.as_str());
        let note = |name: &str| record["labels"][name].as_str();
        engine::may_restore(home, grants, &volume, note, engine::Asker { namespace, uid })?;
    }
    Ok((record.clone(), volume, text(record, "backup_id")?))
}

/// Whether a restore that hands its volume over is the one that is asked for. Its record lies where
/// others may write, so it is followed only as far as the Repository and the command allow it now.
///
/// # Errors
///
/// It is another one.
pub fn goes_on(
    stored: &Restore,
    name: &str,
    (backup, in_place): (&str, bool),
    repository: &Repository,
    (namespace, claim): (&str, &str),
) -> Result<(), Failure> {
    let asked = full_name(backup, repository, namespace)?;
    let volume = asked.rsplit_once('@').map_or(asked.as_str(), |(volume, _)| volume);
    let at = |of: &Repository| (of.namespace.clone(), of.name.clone(), of.url.clone());
    let same = stored.volume == volume
        && (stored.namespace.as_str(), stored.claim.as_str()) == (namespace, claim)
        && stored.in_place.is_some() == in_place
        && at(&stored.repository) == at(repository)
        && (stored.filesystem.is_none() || repository.allow_mode_change);
    if same {
        return Ok(());
    }
    let Restore { volume, backup, .. } = stored;
    Err(Failure::new(
        exit::RETRYABLE,
        format!(
            "{name} in namespace {namespace} hands backup {backup} of {volume} over to pvc/{claim}, and something else is asked for now"
        ),
    )
    .hint("go on with it first, by the command that began it"))
}

/// Whether there is no claim of that name. One of ours is where a restore that was interrupted had
/// come to.
async fn is_free(api: &Api, key: &Key) -> Result<(), Failure> {
    let found = api.get(key).await?.map(|found| Meta::of(&found));
    if found.is_none_or(|found| found.labels.get(ROLE).map(String::as_str) == Some(TARGET)) {
        return Ok(());
    }
    Err(Failure::new(exit::USAGE, format!("{key} exists already"))
        .hint("name another claim, or restore onto that one by --in-place"))
}

/// The size that was asked for, else that of the source, which may have grown since it was noted.
fn capacity(asked: Option<&str>, noted: Option<&str>, least: u64) -> Result<String, Failure> {
    let fits = |size: &str| bytes_of(size).is_some_and(|bytes| bytes >= least);
    match (asked, noted) {
        (Some(size), _) if fits(size) => Ok(size.to_owned()),
        (Some(size), _) => Err(Failure::new(
            exit::USAGE,
            format!("--size {size} is less than the backup's {least} bytes, or no size"),
        )
        .hint("write it as Kubernetes does, such as 20Gi")),
        (None, Some(size)) if fits(size) => Ok(size.to_owned()),
        (None, _) => Ok(format!("{}Mi", least.div_ceil(MIB))),
    }
}

/// Bytes of a quantity as Kubernetes writes it; sizes of volumes have no fractions.
pub(super) fn bytes_of(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1000_u64.pow(2),
        "G" => 1000_u64.pow(3),
        "T" => 1000_u64.pow(4),
        "P" => 1000_u64.pow(5),
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_claim_is_large_enough() {
        assert_eq!(capacity(None, Some("1Gi"), 1 << 30).unwrap(), "1Gi");
        assert_eq!(capacity(None, Some("1G"), 1 << 30).unwrap(), "1024Mi");
        assert_eq!(capacity(None, None, (1 << 20) + 1).unwrap(), "2Mi");
        assert_eq!(capacity(Some("2Gi"), Some("1Gi"), 1 << 30).unwrap(), "2Gi");
        for wrong in ["512Mi", "1.5Gi", "", "Gi", "99999999999999999999"] {
            assert_eq!(capacity(Some(wrong), None, 1 << 30).unwrap_err().exit_code, exit::USAGE);
        }
    }

    /// What a namespace wrote onto a device is parsed by no kernel that it asks for.
    #[test]
    fn a_guarded_namespace_makes_no_filesystem_of_a_device() {
        let repository = Repository {
            namespace: "vault".into(),
            allow_mode_change: true,
            ..Repository::default()
        };
        let guard = || Some(Guard { grants: Vec::new(), uid: "u".into() });
        let becomes =
            |guard: Option<Guard>, asked: Option<&str>, mode: Option<&'static str>, at| {
                let filesystem = asked.map(str::to_owned);
                let options = RestoreOptions { guard, filesystem, ..RestoreOptions::default() };
                filesystem_of(&options, &repository, at, mode)
            };
        for mode in [None, Some("Block")] {
            let why = becomes(guard(), Some("ext4"), mode, "shop").expect_err("it was a device");
            assert_eq!(why.exit_code, exit::DENIED, "{why}");
            assert!(why.hint.is_some_and(|hint| hint.contains("mode: Block")));
            // Who has the keys, or uses rights of his own, may.
            for (guard, at) in [(guard(), "vault"), (None, "shop")] {
                assert_eq!(
                    becomes(guard, Some("ext4"), mode, at).unwrap().as_deref(),
                    Some("ext4")
                );
            }
            assert_eq!(becomes(guard(), None, mode, "shop").unwrap(), None, "it stays a device");
        }
        let found = becomes(guard(), Some("xfs"), Some("Filesystem"), "shop");
        assert_eq!(found.unwrap().as_deref(), Some("xfs"));
    }

    fn filesystem_of(
        options: &RestoreOptions,
        repository: &Repository,
        namespace: &str,
        mode: Option<&'static str>,
    ) -> Result<Option<String>, Failure> {
        filesystem(options, repository, namespace, &|name| mode.filter(|_| name == notes::MODE))
    }

    #[test]
    fn names_that_begin_alike_have_labels_of_their_own() {
        let long = "a".repeat(80);
        assert_ne!(source_of(&format!("{long}-0")), source_of(&format!("{long}-1")));
        assert!(source_of(&long).len() <= 63);
    }
}
