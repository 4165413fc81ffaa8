//! A claim: bound, to a volume of a CSI driver, of a class that can make another one.

use super::quota::{self, Demand};
use super::{Level, Look, operations, snapshots};
use crate::engine::choice;
use crate::engine::object::{Key, Kind, Selection};
use crate::engine::observed::Object;
use crate::engine::request::Repository;
use crate::engine::step::Planned;
use crate::engine::views::{Claim, CsiSource, Event, StorageClass, Volume};

pub(super) fn check(
    look: &mut Look<'_>,
    (namespace, name): (&str, &str),
    repository: Option<&Repository>,
    installed: bool,
) -> Planned<()> {
    let key = Key::new(Kind::PersistentVolumeClaim, namespace, name);
    let Some(read) = look.known(Level::Error, &key, look.seen.find::<Claim>(&key))? else {
        return Ok(());
    };
    let Some(claim) = read else {
        let hint = format!("kubectl -n {namespace} get pvc lists those that are there");
        look.say(Level::Error, &key, "there is no such claim", &hint);
        return Ok(());
    };
    operations::check(look, &claim)?;
    access(look, &claim);
    quota::check(look, &Demand::records(namespace))?;
    let csi = volume(look, &claim)?;
    let class = storage_class(look, &claim, csi.as_ref())?;
    let capacity = claim.body.status.capacity.get("storage");
    let capacity = capacity.or(claim.body.spec.resources.requests.get("storage"));
    if let (Some(repository), Some(class), Some(capacity)) = (repository, &class, capacity) {
        quota::check(look, &Demand::volume(&repository.namespace, class, capacity))?;
    }
    let Some(csi) = csi else { return Ok(()) };
    snapshots::driver(look, &csi.driver)?;
    if installed {
        snapshots::class(look, &csi.driver)?;
    }
    snapshots::service(look, &csi.driver, repository)?;
    filesystem(look, &claim, &csi, repository);
    Ok(())
}

fn access(look: &mut Look<'_>, claim: &Object<Claim>) {
    if claim.body.spec.access_modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        let what = "its access mode is ReadWriteOncePod: a backup reads a copy, so the pod goes \
                    on; a restored claim has the same mode, and one pod alone may use it";
        look.say(Level::Note, &claim.key, what, "");
    }
}

/// The CSI volume behind it.
fn volume(look: &mut Look<'_>, claim: &Object<Claim>) -> Planned<Option<CsiSource>> {
    let key = &claim.key;
    let volume_key = match choice::bound(key, &claim.meta, &claim.body) {
        Ok(volume_key) => volume_key,
        Err(mut why) => {
            if let Some(said) = warning(look, claim)? {
                why.message = format!("{}: {said}", why.message);
            }
            look.fail(Level::Error, key, &why);
            // One that waits for its volume, which a restore in place began to write.
            if let Some(name) = &claim.body.spec.volume_name {
                half_written(look, key, &Key::wide(Kind::PersistentVolume, name))?;
            }
            return Ok(None);
        }
    };
    let Some(read) = look.known(Level::Error, &volume_key, look.seen.raw(&volume_key))? else {
        return Ok(None);
    };
    let Some(raw) = read else {
        let what = format!("{key} names it, and it does not exist");
        let hint = "delete the claim, and restore it from its newest backup";
        look.say(Level::Error, &volume_key, &what, hint);
        return Ok(None);
    };
    let csi = choice::csi(key, &volume_key, &raw);
    half_written(look, key, &volume_key)?;
    match csi {
        Ok(csi) => Ok(Some(csi)),
        Err(why) => {
            look.fail(Level::Error, key, &why);
            Ok(None)
        }
    }
}

/// Whether a restore in place began to write it, and did not prove it.
fn half_written(look: &mut Look<'_>, claim: &Key, volume: &Key) -> Planned<()> {
    let read = look.known(Level::Error, volume, look.seen.find::<Volume>(volume))?;
    if let Some(found) = read.flatten()
        && let Err(why) = choice::whole(claim, volume, &found.meta)
    {
        look.fail(Level::Error, claim, &why);
    }
    Ok(())
}

/// Why a claim is not bound, as its newest event says.
fn warning(look: &mut Look<'_>, claim: &Object<Claim>) -> Planned<Option<String>> {
    let namespace = claim.key.namespace.as_deref().unwrap_or_default();
    let selection = Selection::events(namespace, &claim.key.name);
    let place = format!("events in namespace {namespace}");
    let events = look.known(Level::Note, place, look.seen.list::<Event>(&selection))?;
    Ok(events.and_then(|events| choice::newest_warning(&events)))
}

/// The class of the volume that is made of the snapshot.
fn storage_class(
    look: &mut Look<'_>,
    claim: &Object<Claim>,
    csi: Option<&CsiSource>,
) -> Planned<Option<String>> {
    let named = look.question.storage_class.as_deref();
    let name = match choice::storage_class(&claim.key, &claim.body, named) {
        Ok(name) => name,
        Err(why) => {
            look.fail(Level::Error, &claim.key, &why);
            return Ok(None);
        }
    };
    let key = Key::wide(Kind::StorageClass, &name);
    let hint = "name a class of the same driver by --storage-class";
    let Some(read) = look.known(Level::Note, &key, look.seen.find::<StorageClass>(&key))? else {
        return Ok(Some(name));
    };
    let Some(class) = read else {
        let what = format!("the cluster has no such class, which {} names", claim.key);
        look.say(Level::Error, &key, &what, hint);
        return Ok(Some(name));
    };
    let provisioner = &class.body.provisioner;
    if let Some(csi) = csi.filter(|csi| csi.driver != *provisioner) {
        // Those of the tree are translated to a driver's, for some drivers.
        let in_tree = provisioner.starts_with("kubernetes.io/");
        let level = if in_tree { Level::Warning } else { Level::Error };
        let what = format!(
            "its provisioner is {provisioner}, which makes no volumes of snapshots of {}",
            csi.driver
        );
        look.say(level, &key, &what, hint);
    }
    if class.body.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer") {
        let what = "its volumes wait for their first pod: the volume of the Job is made where the \
                    Job's pod is scheduled";
        look.say(Level::Note, &key, what, "");
    }
    Ok(Some(name))
}

/// What matters of a claim that holds a filesystem.
fn filesystem(
    look: &mut Look<'_>,
    claim: &Object<Claim>,
    csi: &CsiSource,
    repository: Option<&Repository>,
) {
    if claim.body.spec.volume_mode.as_deref() == Some("Block") {
        return;
    }
    if csi.fs_type.as_deref() == Some("xfs") {
        let what = "its filesystem is XFS: a restored copy that is mounted on the node of its \
                    source has the same id, and is refused";
        let hint = "mount it with the option nouuid, or on another node";
        look.say(Level::Note, &claim.key, what, hint);
    }
    if let Some(repository) = repository.filter(|repository| !repository.allow_mode_change) {
        let what = format!(
            "it holds a filesystem, and Repository {} does not allow a restored volume to become \
             one",
            repository.name
        );
        let hint = "set allowModeChange in its ConfigMap, or restore as a block volume by --block";
        look.say(Level::Warning, &claim.key, &what, hint);
    }
}
