//! Velero, where `mover` moves its data: reasons why a backup of it would leave volumes out, wait
//! for hours for nobody, or go elsewhere than `--data-mover mover` says.

use super::{Level, Look};
use crate::engine::names::REPOSITORY;
use crate::engine::object::{Key, Kind, Selection};
use crate::engine::observed::Object;
use crate::engine::place::repository_key;
use crate::engine::step::Planned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Our name in `--data-mover`, and the ConfigMap that leads from locations to Repositories.
const MOVER: &str = "mover";
/// Those that Velero has itself.
const BUILT_IN: [&str; 4] = ["", "velero", "velero-fs", "velero-block"];
const SERVER: &str = "velero";
/// Its Role in Velero's namespace.
const ROLE: &str = "mover-controller-velero";
const CLASS_LABEL: &str = "velero.io/csi-volumesnapshot-class";
const CLASS_DEFAULT: &str = "snapshot.storage.kubernetes.io/is-default-class";
const AS_FILES: &str = "backup.velero.io/backup-volumes";

pub(super) fn check(look: &mut Look<'_>, namespace: &str) -> Planned<()> {
    if !definitions(look)? {
        return Ok(());
    }
    server(look, namespace)?;
    controller(look, namespace)?;
    locations(look, namespace)?;
    classes(look)?;
    movements(look, namespace)?;
    policies(look, namespace)?;
    files(look)
}

/// Whether Velero's kinds are there, in the versions that are read.
fn definitions(look: &mut Look<'_>) -> Planned<bool> {
    const INSTALL: &str = "install Velero 1.12 or later: velero install --features=EnableCSI …";
    let kinds = [Kind::DataUpload, Kind::DataDownload, Kind::BackupStorageLocation];
    look.serves(&kinds, "it is missing: the cluster has no such Velero", INSTALL)
}

/// Arguments of a Deployment's containers.
fn arguments(deployment: &Value) -> Vec<String> {
    let pod = &deployment["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().into_iter().flatten();
    let of = |container: &Value| {
        ["command", "args"].map(|member| container[member].as_array().cloned().unwrap_or_default())
    };
    let texts = containers.flat_map(of).flatten();
    texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

/// The value of a flag by its name, as `--name=value` or in the next argument; empty where it has none.
fn flag<'a>(all: &'a [String], name: &str) -> Option<&'a str> {
    let at = all.iter().rposition(|text| {
        let rest = text.strip_prefix("--").and_then(|text| text.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    match all[at].split_once('=') {
        Some((_, value)) => Some(value),
        None => {
            all.get(at + 1).map(String::as_str).filter(|text| !text.starts_with("--")).or(Some(""))
        }
    }
}

fn server(look: &mut Look<'_>, namespace: &str) -> Planned<()> {
    let key = Key::new(Kind::Deployment, namespace, SERVER);
    let Some(read) = look.known(Level::Note, &key, look.seen.raw(&key))? else { return Ok(()) };
    let Some(found) = read else {
        let what =
            "there is none: whether Velero's server has the feature EnableCSI cannot be seen";
        look.say(Level::Warning, &key, what, "name Velero's namespace: --velero NAMESPACE");
        return Ok(());
    };
    let all = arguments(&found);
    let features = flag(&all, "features").unwrap_or_default();
    if !features.split(',').any(|at| at.trim() == "EnableCSI") {
        let what = "Velero's server runs without --features=EnableCSI: no volume is snapshotted, and \
                    backups succeed without them";
        let hint = format!(
            "add the argument: kubectl -n {namespace} edit deployment {SERVER}, or velero install \
             --features=EnableCSI"
        );
        look.say(Level::Error, &key, what, &hint);
    }
    if matches!(flag(&all, "default-volumes-to-fs-backup"), Some("" | "true")) {
        let what = "its server backs up volumes of pods as files unless a pod or a backup says \
                    otherwise: those are not snapshotted, and not moved by mover";
        let hint = "velero backup create --default-volumes-to-fs-backup=false …, or take the \
                    argument away";
        look.say(Level::Warning, &key, what, hint);
    }
    Ok(())
}

/// Whether the controller was told to look after Velero's objects, and may.
fn controller(look: &mut Look<'_>, namespace: &str) -> Planned<()> {
    let hint = format!("kubectl mover install --apply --velero {namespace}");
    let selection = Selection {
        labels: "app.kubernetes.io/part-of=mover".to_owned(),
        ..Selection::all(Kind::Deployment)
    };
    let read = look.seen.list::<Value>(&selection);
    let Some(all) = look.known(Level::Note, "deployments of mover", read)? else { return Ok(()) };
    let told =
        |at: &Object<Value>| flag(&arguments(&at.body), "velero-namespace").map(str::to_owned);
    if all.is_empty() {
        let what = "there is none: nobody takes up DataUploads with the data mover mover";
        look.say(Level::Warning, "deployments of mover", what, &hint);
    } else if !all.iter().any(|at| told(at).as_deref() == Some(namespace)) {
        let at = &all[0];
        let what = match told(at) {
            Some(other) => format!("it looks after Velero in namespace {other}, not {namespace}"),
            None => "it runs without --velero-namespace: it looks after no DataUpload".to_owned(),
        };
        look.say(Level::Error, &at.key, &what, &hint);
    }
    let key = Key::new(Kind::Role, namespace, ROLE);
    if let Some(None) = look.known(Level::Note, &key, look.seen.raw(&key))? {
        let what = "there is no such Role: the controller may not read and change DataUploads";
        look.say(Level::Warning, &key, what, &hint);
    }
    Ok(())
}

fn locations(look: &mut Look<'_>, namespace: &str) -> Planned<()> {
    let selection = Selection::labelled(Kind::BackupStorageLocation, namespace, "");
    let place = format!("backupstoragelocations in namespace {namespace}");
    let Some(all) = look.known(Level::Error, &place, look.seen.list::<Value>(&selection))? else {
        return Ok(());
    };
    if all.is_empty() {
        let hint = "velero backup-location create NAME --provider aws --bucket BUCKET --prefix \
                    PREFIX";
        look.say(Level::Error, &place, "Velero has no place for backups", hint);
    }
    let entries = Key::new(Kind::ConfigMap, namespace, MOVER);
    let read = look.known(Level::Error, &entries, look.seen.raw(&entries))?;
    let entries = read.flatten().unwrap_or_default();
    for location in &all {
        available(look, location);
        let is_usual = all.len() == 1 || location.body["spec"]["default"] == true;
        let entry = entries["data"][&location.key.name].as_str().map(str::trim);
        let name = entry.filter(|name| !name.is_empty()).unwrap_or(&location.key.name);
        repository(look, &location.key, (namespace, name), is_usual)?;
    }
    Ok(())
}

/// Whether Velero itself can use it.
fn available(look: &mut Look<'_>, location: &Object<Value>) {
    let status = &location.body["status"];
    let said = status["message"].as_str().unwrap_or_default();
    match status["phase"].as_str() {
        Some("Available") => {}
        Some(phase) if said.contains("invalid top-level directories") => {
            let what = format!("it is {phase}, as folders of others are in it: {said}");
            let hint = format!(
                "move them out of its prefix; a repository of mover belongs beside it: kubectl \
                 mover repository add --velero-location {}",
                location.key.name
            );
            look.say(Level::Error, &location.key, &what, &hint);
        }
        Some(phase) => {
            let what = format!("it is {phase}: {said}");
            look.say(Level::Error, &location.key, &what, "velero backup-location get");
        }
        None => {
            let what = "Velero has not looked at it yet: its server may not run";
            let namespace = location.key.namespace.as_deref().unwrap_or_default();
            let hint = format!("kubectl -n {namespace} logs deployment/{SERVER}");
            look.say(Level::Warning, &location.key, what, &hint);
        }
    }
}

/// The Repository that uploads to a location go to.
fn repository(
    look: &mut Look<'_>,
    location: &Key,
    (namespace, name): (&str, &str),
    is_usual: bool,
) -> Planned<()> {
    let level = if is_usual { Level::Error } else { Level::Warning };
    let key = Key::new(Kind::Repository, namespace, name);
    let Some(read) = look.known(level, &key, look.seen.raw(&key))? else { return Ok(()) };
    if let Some(found) = read {
        let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions.into_iter().find(|at| at["type"] == "Ready");
        if ready.is_none_or(|at| at["status"] != "True") {
            let said =
                ready.and_then(|at| at["message"].as_str()).unwrap_or("nobody opened it yet");
            let what = format!("it is not ready, and {location} needs it: {said}");
            look.say(level, &key, &what, &key.shown_by());
        }
        return Ok(());
    }
    let map = repository_key(namespace, name);
    let Some(read) = look.known(level, &map, look.seen.raw(&map))? else { return Ok(()) };
    if read.is_some_and(|found| found["metadata"]["labels"][REPOSITORY] == name) {
        return Ok(());
    }
    let what = format!("there is no such Repository, which uploads to {location} go to");
    let hint = format!(
        "kubectl mover repository add {name} --velero-location {} --velero-namespace {namespace}",
        location.name
    );
    look.say(level, &key, &what, &hint);
    Ok(())
}

/// The class by which Velero snapshots volumes of each driver: with its label, the default one, or
/// the driver's only one.
fn classes(look: &mut Look<'_>) -> Planned<()> {
    let read = look.seen.list::<Value>(&Selection::all(Kind::StorageClass));
    let Some(all) = look.known(Level::Note, "storageclasses", read)? else { return Ok(()) };
    let read = look.seen.list::<Value>(&Selection::all(Kind::VolumeSnapshotClass));
    let Some(snapshots) = look.known(Level::Note, "volumesnapshotclasses", read)? else {
        return Ok(());
    };
    let mut drivers: BTreeMap<&str, &Key> = BTreeMap::new();
    for class in &all {
        if let Some(driver) = class.body["provisioner"].as_str() {
            drivers.entry(driver).or_insert(&class.key);
        }
    }
    let is_marked = |at: &&Object<Value>| {
        at.meta.labels.contains_key(CLASS_LABEL)
            || at.meta.annotations.get(CLASS_DEFAULT).is_some_and(|text| text == "true")
    };
    for (driver, class) in drivers {
        let of: Vec<_> = snapshots.iter().filter(|at| at.body["driver"] == driver).collect();
        if of.is_empty() {
            // A provisioner that is no driver of CSI has no snapshots at all.
            let key = Key::wide(Kind::CSIDriver, driver);
            if let Some(Some(_)) = look.known(Level::Note, &key, look.seen.raw(&key))? {
                let what = format!(
                    "driver {driver} has no VolumeSnapshotClass: Velero snapshots no volume of it"
                );
                let hint = format!("make a VolumeSnapshotClass with driver: {driver}");
                look.say(Level::Warning, class, &what, &hint);
            }
        } else if of.len() > 1 && !of.iter().any(is_marked) {
            let what = format!(
                "driver {driver} has {} VolumeSnapshotClasses, and none is marked for Velero: it \
                 snapshots no volume of it",
                of.len()
            );
            let hint = format!("kubectl label {} {CLASS_LABEL}=true", shown(&of[0].key));
            look.say(Level::Error, &of[0].key, &what, &hint);
        }
    }
    Ok(())
}

/// As kubectl takes it.
fn shown(key: &Key) -> String {
    format!("{} {}", key.kind.resource().short, key.name)
}

/// What nobody has taken up: of our name, or of a name that nobody has.
fn movements(look: &mut Look<'_>, namespace: &str) -> Planned<()> {
    let limit = look.question.stale_before.clone().unwrap_or_default();
    for kind in [Kind::DataUpload, Kind::DataDownload] {
        let selection = Selection::labelled(kind, namespace, "");
        let place = format!("{} in namespace {namespace}", kind.resource().plural);
        let read = look.seen.list::<Value>(&selection);
        let Some(all) = look.known(Level::Error, &place, read)? else { continue };
        for at in all {
            let mover = at.body["spec"]["datamover"].as_str().unwrap_or_default();
            let phase = at.body["status"]["phase"].as_str().unwrap_or_default();
            let made = at.meta.creation_timestamp.clone().unwrap_or_default();
            if !matches!(phase, "" | "New") || BUILT_IN.contains(&mover) || made >= limit {
                continue;
            }
            if mover == MOVER {
                let what = format!("it was made at {made}, and nobody has taken it up");
                let hint = format!(
                    "look whether the controller runs, and for this namespace: kubectl mover \
                     install --apply --velero {namespace}"
                );
                look.say(Level::Error, &at.key, &what, &hint);
            } else {
                let what = format!("its data mover is {mover:?}, and nobody has taken it up");
                let hint =
                    format!("ours is called {MOVER}: velero backup create --data-mover {MOVER} …");
                look.say(Level::Warning, &at.key, &what, &hint);
            }
        }
    }
    Ok(())
}

/// Resource policies that choose another mover.
fn policies(look: &mut Look<'_>, namespace: &str) -> Planned<()> {
    let selection = Selection::labelled(Kind::ConfigMap, namespace, "");
    let place = format!("configmaps in namespace {namespace}");
    let read = look.seen.list::<Value>(&selection);
    let Some(all) = look.known(Level::Note, &place, read)? else { return Ok(()) };
    for map in all {
        let texts = map.body["data"].as_object().into_iter().flatten();
        let texts = texts.filter_map(|(_, text)| text.as_str());
        let count: usize =
            texts.filter(|text| text.contains("volumePolicies")).map(snapshots).sum();
        if count > 0 {
            let what = format!(
                "{count} of its volume policies have the action snapshot without a dataMover: from \
                 Velero 1.19 on that means velero-fs, whatever --data-mover says, and mover cannot \
                 be named there"
            );
            let hint = "leave these volumes to no policy: a volume that none is about is \
                        snapshotted, and moved as velero backup create --data-mover says";
            look.say(Level::Warning, &map.key, &what, hint);
        }
    }
    Ok(())
}

/// How many volume policies of a text have the action `snapshot` without a mover.
fn snapshots(text: &str) -> usize {
    let Ok(read) = serde_saphyr::from_str::<Value>(text) else { return 0 };
    let all = read["volumePolicies"].as_array().into_iter().flatten();
    let is_plain = |action: &Value| {
        action["type"] == "snapshot"
            && action["parameters"]["dataMover"].as_str().unwrap_or_default().is_empty()
    };
    all.filter(|policy| is_plain(&policy["action"])).count()
}

/// Volumes that pods have backed up as files: those are not snapshotted.
fn files(look: &mut Look<'_>) -> Planned<()> {
    let named: BTreeSet<&str> =
        look.question.claims.iter().map(|(namespace, _)| namespace.as_str()).collect();
    let mut places: Vec<Option<String>> =
        named.into_iter().map(|name| Some(name.to_owned())).collect();
    if places.is_empty() {
        places.push(None);
    }
    for namespace in places {
        let place = match &namespace {
            Some(name) => format!("pods in namespace {name}"),
            None => "pods".to_owned(),
        };
        let selection = Selection { namespace, ..Selection::all(Kind::Pod) };
        let read = look.seen.list::<Value>(&selection);
        let Some(all) = look.known(Level::Note, place, read)? else { continue };
        for pod in all {
            let Some(volumes) = pod.meta.annotations.get(AS_FILES) else { continue };
            let what = format!(
                "its annotation {AS_FILES} has volumes {volumes} backed up as files: those are not \
                 snapshotted, and not moved by mover"
            );
            let hint = format!(
                "take it away where mover is meant: kubectl -n {} annotate pod {} {AS_FILES}-",
                pod.key.namespace.as_deref().unwrap_or_default(),
                pod.key.name
            );
            look.say(Level::Warning, &pod.key, &what, &hint);
        }
    }
    Ok(())
}
