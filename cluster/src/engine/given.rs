//! A snapshot that somebody else took of a claim and gave away, such as Velero's of a backup that
//! moves its data.
//!
//! One change makes it the operation's own: labels that name the operation, and the snapshot's own uid
//! in an annotation. From then on it is as if we had taken it: it is the base of the next backup, or
//! goes with its operation. Labels alone do not count, as whoever takes a snapshot may copy them from
//! the claim, and a claim that was restored by us has labels of ours.

use super::names::{ANCHOR, Anchor, GIVEN, MANAGER, OWNER, ROLE, SOURCE};
use super::object::{Key, Kind};
use super::observed::{Meta, Object, Observed};
use super::parts::Context;
use super::request::{Backup, Given, Limits};
use super::retained;
use super::step::{Failure, Planned, Step, exit};
use super::views::Snapshot;
use chrono::DateTime;
use serde_json::{Map, Value, json};

/// Labels of the giver: whoever looks for its own by them finds this one no more.
const OF_GIVER: &str = "velero.io/";
/// Labels of ours that were copied from a claim.
const OURS: &str = "mover.dev/";

/// Whether a snapshot was given to an operation of ours.
pub fn is_given(meta: &Meta) -> bool {
    !meta.uid.is_empty() && meta.annotations.get(GIVEN) == Some(&meta.uid)
}

/// Where it is.
pub(super) fn key(backup: &Backup, given: &Given) -> Key {
    Key::new(Kind::VolumeSnapshot, &backup.source.namespace, &given.name)
}

/// The snapshot, once it is the operation's own.
pub(super) fn take(
    context: &Context<'_>,
    backup: &Backup,
    given: &Given,
) -> Planned<Object<Snapshot>> {
    let key = key(backup, given);
    let gone = |what: String| Failure::new(exit::RETRYABLE, what).hint("take another backup");
    let Some(found) = context.seen.find::<Snapshot>(&key)? else {
        return Err(gone(format!("{key} was deleted before it was backed up")).into());
    };
    if found.meta.uid != given.uid {
        return Err(gone(format!("{key} was made anew, and is another snapshot")).into());
    }
    if found.meta.deletion_timestamp.is_some() {
        return Err(gone(format!("{key} is being deleted")).into());
    }
    if !is_given(&found.meta) {
        let patch = mark(context.anchor, Some(&backup.source.uid), &found.meta);
        return Err(Step::change(&key, &found.meta, patch).into());
    }
    if !context.is_ours(&found.meta) {
        let owner = found.meta.annotations.get(ANCHOR).map_or("another operation", String::as_str);
        return Err(Failure::new(exit::USAGE, format!("{key} was given to {owner} already"))
            .hint("take another backup")
            .into());
    }
    Ok(found)
}

/// Whether a snapshot was taken after another one, as the driver tells the times of both. One that we
/// take is younger than all that stayed before, as it is taken under the Lease of its claim. One that
/// is given was taken before, and may have waited for its turn while others came and went: a driver is
/// never asked for what changed since a time that is later.
pub(super) fn is_after(snapshot: &Object<Snapshot>, other: &Object<Snapshot>) -> bool {
    let taken = |of: &Object<Snapshot>| {
        let text = of.body.status.creation_time.as_deref()?;
        DateTime::parse_from_rfc3339(text).ok()
    };
    taken(snapshot).zip(taken(other)).is_some_and(|(taken, other)| taken > other)
}

/// Makes it one of the operation of `anchor`, on the claim of `source`.
fn mark(anchor: &Anchor, source: Option<&str>, meta: &Meta) -> Value {
    let mut labels: Map<String, Value> = meta
        .labels
        .keys()
        .filter(|name| name.starts_with(OF_GIVER) || name.starts_with(OURS))
        .map(|name| (name.clone(), Value::Null))
        .collect();
    labels.extend([
        ("app.kubernetes.io/managed-by".to_owned(), MANAGER.into()),
        (OWNER.to_owned(), anchor.uid.clone().into()),
        (ROLE.to_owned(), "snapshot".into()),
    ]);
    labels.extend(source.map(|uid| (SOURCE.to_owned(), uid.into())));
    let annotations = json!({
        ANCHOR: format!("{}/{}", anchor.namespace(), anchor.key.name),
        GIVEN: meta.uid,
    });
    json!({ "metadata": { "labels": labels, "annotations": annotations } })
}

/// Removes a snapshot that was given for an operation which never began, with that of the storage;
/// nothing else would. One that an operation has is left to that. `owner` is what it was given for.
///
/// # Errors
///
/// The next step, until it is being deleted.
pub fn discard(seen: &Observed, owner: &Anchor, namespace: &str, given: &Given) -> Planned<()> {
    let context = Context { seen, anchor: owner, limits: Limits::default() };
    let key = Key::new(Kind::VolumeSnapshot, namespace, &given.name);
    let Some(found) = seen.find::<Snapshot>(&key)? else { return Ok(()) };
    if found.meta.uid != given.uid || found.meta.deletion_timestamp.is_some() {
        return Ok(());
    }
    if !is_given(&found.meta) {
        return Err(Step::change(&key, &found.meta, mark(owner, None, &found.meta)).into());
    }
    if !context.is_ours(&found.meta) {
        return Ok(());
    }
    retained::remove(&context, &found)
}
