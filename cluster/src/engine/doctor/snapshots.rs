//! Snapshots: their definitions, their controller, their class, and the driver's own objects.

use super::{Level, Look};
use crate::engine::choice;
use crate::engine::names::CHANGES_ROLE;
use crate::engine::object::{Key, Kind, Selection};
use crate::engine::observed::{Meta, Object};
use crate::engine::request::Repository;
use crate::engine::step::Planned;
use crate::engine::views::{MetadataService, Snapshot, SnapshotClass};
use serde_json::Value;

const INSTALL: &str = "install the CRDs and the controller of \
                       github.com/kubernetes-csi/external-snapshotter";

/// Whether the cluster has snapshots at all, as far as can be seen.
pub(super) fn installed(look: &mut Look<'_>, namespace: &str) -> Planned<bool> {
    let kinds = [Kind::VolumeSnapshot, Kind::VolumeSnapshotContent, Kind::VolumeSnapshotClass];
    let all = look.serves(&kinds, "it is missing: the cluster has no snapshots", INSTALL)?;
    if all {
        controller(look, namespace)?;
    }
    Ok(all)
}

/// A controller cannot be seen, but the status that it writes can.
fn controller(look: &mut Look<'_>, namespace: &str) -> Planned<()> {
    let selection = Selection::labelled(Kind::VolumeSnapshot, namespace, "");
    let place = format!("volumesnapshots in namespace {namespace}");
    let read = look.known(Level::Note, &place, look.seen.list::<Snapshot>(&selection))?;
    let Some(all) = read else { return Ok(()) };
    let is_seen = |snapshot: &Object<Snapshot>| {
        let status = &snapshot.body.status;
        status.bound_volume_snapshot_content_name.is_some() || status.error.is_some()
    };
    let made = |meta: &Meta| meta.creation_timestamp.clone().unwrap_or_default();
    let newest_seen = all.iter().filter(|at| is_seen(at)).map(|at| made(&at.meta)).max();
    let limit = look.question.stale_before.clone().unwrap_or_default();
    let is_stale = |snapshot: &&Object<Snapshot>| {
        let at = made(&snapshot.meta);
        !is_seen(snapshot)
            && snapshot.meta.deletion_timestamp.is_none()
            && at < limit
            && newest_seen.as_ref().is_none_or(|seen| *seen < at)
    };
    if let Some(stale) = all.iter().find(is_stale) {
        let what = format!(
            "it was made at {} and has no status yet: no snapshot controller seems to run",
            made(&stale.meta)
        );
        look.say(Level::Error, &stale.key, &what, INSTALL);
    } else if newest_seen.is_none() {
        let what = "there is none yet that would tell whether a snapshot controller runs";
        look.say(Level::Note, &place, what, "");
    }
    Ok(())
}

/// The class that a backup would choose.
pub(super) fn class(look: &mut Look<'_>, driver: &str) -> Planned<()> {
    let selection = Selection::all(Kind::VolumeSnapshotClass);
    let read = look.seen.list::<SnapshotClass>(&selection);
    let Some(all) = look.known(Level::Error, "volumesnapshotclasses", read)? else {
        return Ok(());
    };
    let named = look.question.snapshot_class.as_deref();
    match choice::snapshot_class(driver, named, &all) {
        Err(why) => look.fail(Level::Error, "volumesnapshotclasses", &why),
        Ok(class) if class.body.deletion_policy == "Retain" => {
            let what = "its deletionPolicy is Retain: a backup sets its own snapshots to Delete \
                        before it removes them, so none stays in the storage";
            look.say(Level::Note, &class.key, what, "");
        }
        Ok(_) => {}
    }
    Ok(())
}

/// The driver's own object.
pub(super) fn driver(look: &mut Look<'_>, driver: &str) -> Planned<()> {
    let key = Key::wide(Kind::CSIDriver, driver);
    if let Some(None) = look.known(Level::Note, &key, look.seen.raw(&key))? {
        let what = "the cluster has no such object: the driver may be gone";
        let hint = "look whether its controller and its node pods run";
        look.say(Level::Warning, &key, what, hint);
    }
    Ok(())
}

/// The driver's service of changed blocks, and the right to ask it.
pub(super) fn service(
    look: &mut Look<'_>,
    driver: &str,
    repository: Option<&Repository>,
) -> Planned<()> {
    if look.question.whole {
        return Ok(());
    }
    let key = Key::wide(Kind::SnapshotMetadataService, driver);
    let read = look.known(Level::Note, &key, look.seen.find::<MetadataService>(&key))?;
    let Some(found) = read else { return Ok(()) };
    let Some(found) = found else {
        let what = "there is none: nobody can be asked what changed, and whole volumes are read";
        look.say(Level::Note, &key, what, "");
        return Ok(());
    };
    if let Err(why) = choice::service(&found, look.question.issuer.as_deref()) {
        look.fail(Level::Error, &key, &why);
    }
    match repository {
        Some(repository) => right(look, repository),
        None => Ok(()),
    }
}

fn right(look: &mut Look<'_>, repository: &Repository) -> Planned<()> {
    let Repository { namespace, service_account, .. } = repository;
    let hint = format!(
        "give serviceaccount/{service_account} the right to `get volumesnapshots` there: kubectl \
         mover repository add makes the Role"
    );
    let key = Key::new(Kind::Role, namespace, CHANGES_ROLE);
    let role = look.known(Level::Note, &key, look.seen.raw(&key))?;
    let has = |rule: &Value, name: &str, wanted: &str| {
        let mut all = rule[name].as_array().into_iter().flatten();
        all.any(|at| at == wanted || at == "*")
    };
    let allows = |role: &Value| {
        role["rules"].as_array().into_iter().flatten().any(|rule| {
            has(rule, "verbs", "get")
                && has(rule, "resources", "volumesnapshots")
                && has(rule, "apiGroups", Kind::VolumeSnapshot.resource().group)
        })
    };
    if role.is_some_and(|role| !role.as_ref().is_some_and(allows)) {
        let what = "no such Role lets the Jobs look at snapshots: the service of changed blocks \
                    may refuse them, and then whole volumes are read";
        look.say(Level::Note, &key, what, &hint);
    }
    let key = Key::new(Kind::RoleBinding, namespace, CHANGES_ROLE);
    let binding = look.known(Level::Note, &key, look.seen.raw(&key))?;
    let binds = |binding: &Value| {
        let mut subjects = binding["subjects"].as_array().into_iter().flatten();
        binding["roleRef"]["name"] == CHANGES_ROLE
            && subjects.any(|at| {
                at["kind"] == "ServiceAccount"
                    && at["name"] == service_account.as_str()
                    && at["namespace"] == namespace.as_str()
            })
    };
    if binding.is_some_and(|binding| !binding.as_ref().is_some_and(binds)) {
        let what = format!(
            "it does not bind serviceaccount/{service_account}: the service of changed blocks may \
             refuse the Jobs, and then whole volumes are read"
        );
        look.say(Level::Note, &key, &what, &hint);
    }
    Ok(())
}
