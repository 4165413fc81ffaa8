//! Snapshots that the storage still has and the cluster does not know: a content names one by the
//! driver's handle, and a snapshot names the content. No data moves.
//!
//! Such a content is `Retain` from its first moment, so nothing that becomes of these objects reaches
//! the storage. Only [`discard_snapshot`] sets `Delete`, and first.

use super::choice;
use super::names::{self, Anchor, IMPORT, IMPORTED, MANAGER, SOURCE};
use super::object::{Key, Kind, Query, Selection};
use super::observed::{Meta, Object, Observed};
use super::parts::{Context, with_reason};
use super::request::Limits;
use super::retained::{has_stayed, made_here};
use super::step::{Failure, Next, Planned, Step, Stop, exit};
use super::views::{Content, Lease, Snapshot};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What is to be imported.
#[derive(Debug, Clone, PartialEq)]
pub struct Import {
    /// Where the snapshot is to be.
    pub namespace: String,
    /// Its name there.
    pub name: String,
    /// Name of the driver.
    pub driver: String,
    /// The driver's name for the snapshot.
    pub handle: String,
    /// Mode of the volume, where that is known.
    pub mode: Option<String>,
    /// Class of snapshots, if one is meant.
    pub snapshot_class: Option<String>,
    /// More annotations of the content, such as those that name secrets of the driver.
    pub annotations: BTreeMap<String, String>,
    /// The backup that was made of it, as `VOLUME@ID`.
    pub of: String,
    /// How long the driver is waited for.
    pub wait_seconds: u64,
    /// Names this run: it takes back what it has made, and nothing else.
    pub run: String,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The snapshot.
    pub snapshot: Key,
    /// Its content.
    pub content: Key,
    /// Size of a volume of it, where the driver says that.
    ///
    /// Without one nobody may have looked: of a driver that lists no snapshots the sidecar takes each
    /// name as one that is there, ready, made just now, and of no size.
    pub size: Option<String>,
}

impl Import {
    fn snapshot(&self) -> Key {
        Key::new(Kind::VolumeSnapshot, &self.namespace, &self.name)
    }

    /// One of each snapshot of the storage: two imports at once make one.
    fn content(&self) -> Key {
        let text = format!("{}\n{}", self.driver, self.handle);
        let name = format!("mover-import-{:016x}", names::hash(&text));
        Key::wide(Kind::VolumeSnapshotContent, &name)
    }

    fn meta(&self, key: &Key) -> Value {
        let mut annotations = json!({ IMPORTED: self.of, IMPORT: self.run });
        if key.kind == Kind::VolumeSnapshotContent {
            for (name, text) in &self.annotations {
                annotations[name] = json!(text);
            }
        }
        json!({
            "name": key.name,
            "namespace": key.namespace,
            "labels": { "app.kubernetes.io/managed-by": MANAGER },
            "annotations": annotations,
        })
    }

    fn is_mine(&self, meta: &Meta) -> bool {
        meta.annotations.get(IMPORTED) == Some(&self.of)
    }

    fn is_of(&self, content: &Content) -> bool {
        content.spec.driver == self.driver && handle_of(content) == Some(&self.handle)
    }
}

/// The storage's name for the snapshot of a content.
pub fn handle_of(content: &Content) -> Option<&String> {
    content.status.snapshot_handle.as_ref().or(content.spec.source.snapshot_handle.as_ref())
}

/// Brings it into the cluster.
///
/// # Errors
///
/// What comes first; or the cluster has it already, the names are taken, or the driver does not find it.
pub fn import(request: &Import, seen: &Observed) -> Planned<Imported> {
    let (key, content_key) = (request.snapshot(), request.content());
    let taken = seen.find::<Snapshot>(&key)?;
    if let Some(found) = &taken
        && !request.is_mine(&found.meta)
    {
        let what = format!("{key} exists, and is not of {}", request.of);
        return Err(Failure::new(exit::USAGE, what)
            .hint("import it under another name, by --name")
            .into());
    }
    for other in contents_of(seen, &request.driver, &request.handle)? {
        let is_dangling = !has_snapshot(seen, &other)?;
        let is_ours = other.key == content_key && other.meta.annotations.contains_key(IMPORTED);
        let retains = other.body.spec.deletion_policy.as_deref() == Some("Retain");
        if is_dangling && is_ours && retains {
            // What an import left whose snapshot is gone since, or that was cut off.
            let back = &other.body.spec.volume_snapshot_ref;
            if back.uid.is_some() || !is_back(&other, &key) {
                return Err(replaced(seen, &other));
            }
        } else if is_dangling && !is_ours {
            let what = format!(
                "{} has this snapshot of the storage already, and its VolumeSnapshot is gone",
                other.key
            );
            let hint = match retains {
                true => format!(
                    "kubectl delete volumesnapshotcontent {}: the storage keeps the snapshot; then import it",
                    other.key.name
                ),
                false => "it is being deleted in the storage".to_owned(),
            };
            return Err(Failure::new(exit::USAGE, what).hint(hint).into());
        } else if !(is_ours && is_back(&other, &key)) {
            return Err(has_already(&other));
        }
    }
    let Some(content) = seen.find::<Content>(&content_key)? else {
        return Err(Step::Create(new_content(request, &content_key)).into());
    };
    if !request.is_mine(&content.meta) || !request.is_of(&content.body) {
        let what = format!("{content_key} exists, and is not of {}", request.of);
        let hint = format!("{} shows where it comes from", content_key.shown_by());
        return Err(Failure::new(exit::USAGE, what).hint(hint).into());
    }
    let retains = content.body.spec.deletion_policy.as_deref() == Some("Retain");
    if !retains || content.meta.deletion_timestamp.is_some() {
        let what = format!("{content_key} is being deleted");
        return Err(Failure::new(exit::RETRYABLE, what)
            .hint("run the same command again when it is gone")
            .into());
    }
    let Some(snapshot) = taken else {
        let mut body =
            json!({ "spec": { "source": { "volumeSnapshotContentName": content_key.name } } });
        if let Some(class) = &request.snapshot_class {
            body["spec"]["volumeSnapshotClassName"] = json!(class);
        }
        return Err(Step::Create(names::object(&key, request.meta(&key), body)).into());
    };
    await_driver(request, seen, &snapshot, &content)?;
    let size = snapshot.body.status.restore_size.clone().filter(|size| size != "0");
    Ok(Imported { snapshot: key, content: content_key, size })
}

/// Contents of a snapshot of the storage.
fn contents_of(seen: &Observed, driver: &str, handle: &str) -> Planned<Vec<Object<Content>>> {
    let all = seen.list::<Content>(&Selection::all(Kind::VolumeSnapshotContent))?;
    let is_it = |at: &Object<Content>| {
        at.body.spec.driver == driver && handle_of(&at.body).map(String::as_str) == Some(handle)
    };
    Ok(all.into_iter().filter(is_it).collect())
}

fn is_back(content: &Object<Content>, key: &Key) -> bool {
    let back = &content.body.spec.volume_snapshot_ref;
    back.namespace == key.namespace && back.name.as_ref() == Some(&key.name)
}

/// The VolumeSnapshot that a content names.
fn snapshot_of(content: &Object<Content>) -> Key {
    let back = &content.body.spec.volume_snapshot_ref;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Key::new(Kind::VolumeSnapshot, &text(&back.namespace), &text(&back.name))
}

/// Whether that is there: where the storage is to keep it, a content stays without one.
fn has_snapshot(seen: &Observed, content: &Object<Content>) -> Planned<bool> {
    let found = seen.find::<Snapshot>(&snapshot_of(content))?;
    let uid = content.body.spec.volume_snapshot_ref.uid.as_ref();
    Ok(found.is_some_and(|found| uid.is_none_or(|uid| *uid == found.meta.uid)))
}

/// A content that leads nowhere goes first.
fn replaced(seen: &Observed, content: &Object<Content>) -> Stop {
    match remove(seen, &content.key, &content.meta) {
        Err(stop) => stop,
        Ok(()) => Stop::Next(Next::Refresh),
    }
}

fn has_already(content: &Object<Content>) -> Stop {
    let key = snapshot_of(content);
    let what = format!("the cluster has this snapshot of the storage already: {key}");
    let hint =
        "make a volume of that one; two that own one snapshot would delete it for each other";
    Failure::new(exit::USAGE, what).hint(hint).into()
}

fn new_content(request: &Import, key: &Key) -> Value {
    let mut body = json!({ "spec": {
        "driver": request.driver,
        "deletionPolicy": "Retain",
        "source": { "snapshotHandle": request.handle },
        "volumeSnapshotRef": { "namespace": request.namespace, "name": request.name },
    } });
    if let Some(mode) = &request.mode {
        body["spec"]["sourceVolumeMode"] = json!(mode);
    }
    if let Some(class) = &request.snapshot_class {
        body["spec"]["volumeSnapshotClassName"] = json!(class);
    }
    names::object(key, request.meta(key), body)
}

/// Until each of both names the other, and the driver has said that it is there.
fn await_driver(
    request: &Import,
    seen: &Observed,
    snapshot: &Object<Snapshot>,
    content: &Object<Content>,
) -> Planned<()> {
    let status = &snapshot.body.status;
    let back = content.body.spec.volume_snapshot_ref.uid.as_ref();
    let is_bound = status.bound_volume_snapshot_content_name.as_ref() == Some(&content.key.name)
        && back == Some(&snapshot.meta.uid);
    if is_bound && status.ready_to_use == Some(true) {
        return Ok(());
    }
    for (key, meta) in [(&snapshot.key, &snapshot.meta), (&content.key, &content.meta)] {
        if meta.deletion_timestamp.is_some() {
            let what = format!("{key} was deleted by somebody else while it was imported");
            return Err(Failure::new(exit::RETRYABLE, what)
                .hint("run the same command again")
                .into());
        }
    }
    let errors = [&content.body.status.error, &status.error];
    let said = errors.into_iter().flatten().find_map(|error| error.message.clone());
    let why = with_reason(format!("{} is not ready", snapshot.key), said);
    let on = vec![Query::One(snapshot.key.clone()), Query::One(content.key.clone())];
    let owner = owner(&snapshot.key);
    let context = Context { seen, anchor: &owner, limits: Limits::default() };
    match context.wait(on, &snapshot.meta.uid, request.wait_seconds, why) {
        Err(Stop::Failure(why)) => Err(why
            .hint(format!(
                "the storage may have snapshot {} no more: kubectl mover restore {} --to pvc/NAME reads the backup instead",
                request.handle, request.of
            ))
            .into()),
        other => other,
    }
}

/// These Steps belong to no operation.
fn owner(key: &Key) -> Anchor {
    Anchor::new(key.clone(), String::new())
}

/// Takes an import back that did not come to its end. The storage keeps the snapshot.
///
/// # Errors
///
/// What comes first.
pub fn withdraw(request: &Import, seen: &Observed) -> Planned<()> {
    let is_of_this_run = |meta: &Meta| meta.annotations.get(IMPORT) == Some(&request.run);
    let content = seen.find::<Content>(&request.content())?;
    // Once somebody has taken the content over, a deletion would reach the storage.
    if let Some(found) = &content
        && found.body.spec.deletion_policy.as_deref() != Some("Retain")
    {
        return Ok(());
    }
    let snapshot = seen.find::<Snapshot>(&request.snapshot())?;
    if let Some(found) = snapshot.filter(|found| is_of_this_run(&found.meta)) {
        return remove(seen, &found.key, &found.meta);
    }
    match content.filter(|found| is_of_this_run(&found.meta)) {
        Some(found) => remove(seen, &found.key, &found.meta),
        None => Ok(()),
    }
}

/// Deletes an object, and waits until it is gone.
fn remove(seen: &Observed, key: &Key, meta: &Meta) -> Planned<()> {
    if meta.deletion_timestamp.is_none() {
        return Err(Step::Delete { key: key.clone(), uid: meta.uid.clone() }.into());
    }
    let owner = owner(key);
    Context { seen, anchor: &owner, limits: Limits::default() }.gone(key, meta)
}

/// A snapshot that is to go, as it was when that was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Discard {
    /// It.
    pub snapshot: Key,
    /// Its uid.
    pub uid: String,
    /// Its content, and the uid of that.
    pub content: (Key, String),
    /// The storage's name of it.
    pub handle: Option<String>,
    /// The storage keeps it.
    pub leaves: bool,
}

/// How a snapshot is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardFrom {
    /// From this cluster alone.
    Leave,
    /// From the storage too. One that was imported may be another cluster's.
    InStorage,
    /// As fits: from the storage too, if this cluster took it.
    Unsaid,
}

/// A snapshot of ours that may go: one that was imported, or that outlived its backup.
///
/// # Errors
///
/// The reads, which come first; or there is none, it is not ours, or others have it too.
pub fn discardable(seen: &Observed, key: &Key, from: DiscardFrom) -> Planned<Discard> {
    let leaves = from == DiscardFrom::Leave;
    let Some(snapshot) = seen.find::<Snapshot>(key)? else {
        return Err(Failure::new(exit::USAGE, format!("{key} does not exist"))
            .hint("kubectl mover snapshots list")
            .into());
    };
    let denied =
        |what: String, hint: String| Stop::from(Failure::new(exit::DENIED, what).hint(hint));
    let source = &snapshot.body.spec.source.volume_snapshot_content_name;
    let bound = snapshot.body.status.bound_volume_snapshot_content_name.as_ref();
    let content = match bound.or(source.as_ref()) {
        None => None,
        Some(name) => seen.find::<Content>(&Key::wide(Kind::VolumeSnapshotContent, name))?,
    };
    // A mark on the snapshot alone can be anybody's.
    let mark = snapshot.meta.annotations.get(IMPORTED);
    let is_imported = mark.is_some()
        && content.as_ref().is_some_and(|at| at.meta.annotations.get(IMPORTED) == mark);
    let was_kept = made_here(&snapshot) && has_stayed(&snapshot.meta);
    if !(is_imported || was_kept) {
        let what = format!("{key} is neither imported nor kept by mover: it stays");
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let hint =
            format!("if it is yours: kubectl -n {namespace} delete volumesnapshot {}", key.name);
        return Err(denied(what, hint));
    }
    let Some(content) = content else {
        let what = format!("{key} has no content: what the storage has of it cannot be told");
        return Err(denied(what, format!("{} says more", key.shown_by())));
    };
    let back = &content.body.spec.volume_snapshot_ref;
    if back.uid.as_ref().is_some_and(|uid| *uid != snapshot.meta.uid) || !is_back(&content, key) {
        let what = format!("{key} names {}, which is the content of another snapshot", content.key);
        let hint = "somebody wrote its status; kubectl delete removes the snapshot alone";
        return Err(denied(what, hint.to_owned()));
    }
    if is_imported && from == DiscardFrom::Unsaid {
        let what = format!("{key} was imported: another cluster may need it in the storage");
        let hint = "--leave removes it from this cluster alone, --in-storage deletes it there";
        return Err(Failure::new(exit::USAGE, what).hint(hint).into());
    }
    let handle = handle_of(&content.body).cloned();
    if !leaves {
        may_go_from_storage(seen, &snapshot, &content)?;
    }
    Ok(Discard {
        snapshot: key.clone(),
        uid: snapshot.meta.uid,
        content: (content.key, content.meta.uid),
        handle,
        leaves,
    })
}

/// Nobody else has it, nor is at work with it.
fn may_go_from_storage(
    seen: &Observed,
    snapshot: &Object<Snapshot>,
    content: &Object<Content>,
) -> Planned<()> {
    let key = &snapshot.key;
    if let Some(group) = &content.body.status.volume_group_snapshot_handle {
        let what = format!(
            "{key} is a member of group snapshot {group}: the driver deletes those together"
        );
        return Err(Failure::new(exit::DENIED, what)
            .hint("--leave removes it from this cluster alone")
            .into());
    }
    if let Some(handle) = handle_of(&content.body) {
        let all = contents_of(seen, &content.body.spec.driver, handle)?;
        if let Some(other) = all.iter().find(|other| other.key != content.key) {
            let what = format!("{} is of the same snapshot of the storage as {key}", other.key);
            return Err(Failure::new(exit::DENIED, what)
                .hint("try again when that is gone, or use --leave")
                .into());
        }
    }
    let Some(source) = snapshot.meta.labels.get(SOURCE) else { return Ok(()) };
    let lease = names::source_lease(key.namespace.as_deref().unwrap_or_default(), source);
    let Some(lease) = seen.find::<Lease>(&lease)? else { return Ok(()) };
    match choice::holder(seen, &lease)? {
        None => Ok(()),
        Some((namespace, name)) => {
            let what = format!("{name} in namespace {namespace} is at work on the claim of {key}");
            Err(Failure::new(exit::RETRYABLE, what).hint("try again when it has ended").into())
        }
    }
}

/// Removes it: from the storage too, or from the cluster alone. The policy comes first, so that nothing
/// stays that nobody knows of, and nothing goes that is to stay.
///
/// # Errors
///
/// What comes first.
pub fn discard_snapshot(of: &Discard, seen: &Observed) -> Planned<()> {
    let (key, uid) = &of.content;
    let content = seen.find::<Content>(key)?.filter(|found| found.meta.uid == *uid);
    let policy = if of.leaves { "Retain" } else { "Delete" };
    if let Some(found) = &content
        && found.meta.deletion_timestamp.is_none()
        && found.body.spec.deletion_policy.as_deref() != Some(policy)
    {
        let patch = json!({ "spec": { "deletionPolicy": policy } });
        return Err(Step::change(&found.key, &found.meta, patch).into());
    }
    let snapshot = seen.find::<Snapshot>(&of.snapshot)?.filter(|found| found.meta.uid == of.uid);
    if let Some(found) = snapshot {
        return remove(seen, &of.snapshot, &found.meta);
    }
    // The snapshot controller deletes it where it has seen the policy. Where it has not, we do.
    match content {
        Some(found) => remove(seen, &found.key, &found.meta),
        None => Ok(()),
    }
}
