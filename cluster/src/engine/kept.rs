//! A restore whose volume begins as a snapshot that the storage still has, of the backup's own state.
//!
//! The snapshot saves the transfer and nothing else: the Job reads the volume, and fetches and writes
//! whatever differs from the backup, so the proof is the same. Where the snapshot is gone, is another
//! one, or cannot be handed over, the volume begins empty, and all comes from the bucket.
//!
//! What a claim is made of is told by the claim itself, with the reason where it is made of nothing. So
//! it stays so however often this begins anew.
//!
//! Neither the bucket nor the record of the operation is believed: a snapshot is one that a backup of
//! this volume to this Repository left, or that was imported for this very backup, and it says so
//! itself.

use super::handover::{self, Hand};
use super::names::{BASE_OF, FROM_BUCKET, IMPORTED};
use super::object::{Key, Kind};
use super::observed::{Object, Observed};
use super::parts::Context;
use super::request::{Request, Restore};
use super::retained::stored_in;
use super::step::{Failure, Planned, Stop, exit};
use super::views::{Claim, Content, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A driver that has the snapshot says so at once.
const READY_SECONDS: u64 = 120;
const REASON_CHARS: usize = 500;

/// How a volume begins that was asked for as a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kept {
    /// As this one.
    Snapshot(KeptSnapshot),
    /// Empty, and why.
    Missing(String),
}

/// A snapshot that a backup was made of, in the namespace of the claim that is restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeptSnapshot {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// The storage's name of it.
    pub handle: String,
    /// Its class, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

/// The backup that a snapshot has to be of.
#[derive(Debug, Clone, Copy)]
pub struct StateOf<'a> {
    /// Namespace of the claim that is restored.
    pub namespace: &'a str,
    /// Its volume in the repository.
    pub volume: &'a str,
    /// Its id.
    pub backup: &'a str,
    /// The repository.
    pub url: &'a str,
    /// Its bytes.
    pub size_bytes: u64,
}

/// The owner of a snapshot that serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usable {
    /// Its content.
    pub content: Key,
    /// Whether it is one of a filesystem, as the snapshot controller says.
    pub filesystem: bool,
}

/// Whether a snapshot is one of that state which can be used, or why not. Each of snapshot and content
/// names the other, as whoever may write a snapshot's status must not lead to another one.
///
/// # Errors
///
/// A read, which comes first.
pub fn usable(
    seen: &Observed,
    kept: &KeptSnapshot,
    of: StateOf<'_>,
) -> Planned<Result<Usable, String>> {
    let key = Key::new(Kind::VolumeSnapshot, of.namespace, &kept.name);
    let no = |why: &str| Ok(Err(format!("{key} {why}")));
    let Some(found) = seen.find::<Snapshot>(&key)? else { return no("is gone") };
    let note = |name: &str| found.meta.annotations.get(name).map(String::as_str);
    let left_by_backup = note(BASE_OF) == Some(stored_in(of.volume, of.url).as_str());
    let imported = note(IMPORTED) == Some(format!("{}@{}", of.volume, of.backup).as_str());
    if !left_by_backup && !imported {
        return no("is of no backup of this volume in this Repository");
    }
    let status = &found.body.status;
    if found.meta.deletion_timestamp.is_some() {
        return no("is being deleted");
    }
    let Some(name) = &status.bound_volume_snapshot_content_name else { return no("is not bound") };
    let content_key = Key::wide(Kind::VolumeSnapshotContent, name);
    let Some(content) = seen.find::<Content>(&content_key)? else { return no("has no content") };
    let (spec, said) = (&content.body.spec, &content.body.status);
    let back = &spec.volume_snapshot_ref;
    let is_its = back.uid.as_deref() == Some(&found.meta.uid)
        && back.namespace == found.key.namespace
        && back.name.as_deref() == Some(&found.key.name)
        && content.meta.deletion_timestamp.is_none();
    if !is_its {
        return no("names the content of another one");
    }
    if spec.driver != kept.driver || said.snapshot_handle.as_ref() != Some(&kept.handle) {
        return no("is another one of the storage");
    }
    if status.ready_to_use != Some(true) || said.ready_to_use != Some(true) {
        return no("is not ready");
    }
    // What lies beyond the backup would stay in the volume. No size, or 0, is one that nobody knows.
    match said.restore_size.and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0) {
        None => no("has a size that its driver does not say"),
        Some(size) if size > of.size_bytes => {
            no(&format!("has {size} bytes, and the backup {}", of.size_bytes))
        }
        Some(_) => Ok(Ok(Usable {
            content: content_key,
            filesystem: spec.source_volume_mode.as_deref() == Some("Filesystem"),
        })),
    }
}

/// What a new block claim is made of.
pub(super) enum Beginning {
    /// Nothing, as it was asked for.
    Empty,
    /// This snapshot in the Repository's namespace.
    Snapshot(String),
    /// Nothing, and why.
    Instead(String),
}

impl Beginning {
    /// Writes it into the claim.
    pub(super) fn into_claim(self, meta: &mut Value, spec: &mut Value) {
        match self {
            Self::Empty => {}
            Self::Snapshot(name) => {
                spec["dataSource"] = json!({
                    "apiGroup": "snapshot.storage.k8s.io",
                    "kind": "VolumeSnapshot",
                    "name": name,
                });
            }
            Self::Instead(why) => {
                let why: String = why.chars().take(REASON_CHARS).collect();
                meta["annotations"][FROM_BUCKET] = why.into();
            }
        }
    }
}

/// What the volume is made of: the snapshot, once it is handed over.
pub(super) fn beginning(context: &Context<'_>, restore: &Restore) -> Planned<Beginning> {
    let kept = match &restore.kept {
        None => return Ok(Beginning::Empty),
        Some(Kept::Missing(why)) => return Ok(Beginning::Instead(why.clone())),
        Some(Kept::Snapshot(kept)) => kept,
    };
    match context.seen.settle(hand_over(context, restore, kept)) {
        // It was for speed alone.
        Err(Stop::Failure(why)) => Ok(Beginning::Instead(why.message)),
        other => other,
    }
}

fn hand_over(context: &Context<'_>, restore: &Restore, kept: &KeptSnapshot) -> Planned<Beginning> {
    let of = StateOf {
        namespace: &restore.namespace,
        volume: &restore.volume,
        backup: &restore.backup,
        url: &restore.repository.url,
        size_bytes: restore.size_bytes,
    };
    let owner = match usable(context.seen, kept, of)? {
        Ok(owner) => owner,
        Err(why) => return Ok(Beginning::Instead(why)),
    };
    let hand = Hand {
        namespace: &restore.repository.namespace,
        driver: &kept.driver,
        handle: &kept.handle,
        class: kept.class.as_deref(),
        // Never because of what the bucket says: the mark lets a kernel parse what a device held.
        filesystem: owner.filesystem,
        seconds: context.limits.snapshot_seconds.min(READY_SECONDS),
    };
    handover::handed(context, &hand, &owner.content).map(Beginning::Snapshot)
}

/// Whether our claim was made of a snapshot.
pub(super) fn is_made_of_one(claim: &Object<Claim>) -> bool {
    claim.body.spec.data_source.is_some()
}

/// Says in a summary why all came from the bucket, where it did.
pub(super) fn note(claim: &Object<Claim>, summary: &mut Value) {
    if let Some(why) = claim.meta.annotations.get(FROM_BUCKET) {
        summary["from_bucket"] = why.clone().into();
    }
}

/// A failure of a restore that began as a snapshot: the storage may make no volume of it, and an older
/// program knows no comparison. The next attempt is another one.
pub(super) fn explain(context: &Context<'_>, volume: &Key, failure: Failure) -> Planned<Failure> {
    let claim = context.seen.find::<Claim>(volume)?;
    let Some(claim) = claim.filter(is_made_of_one) else { return Ok(failure) };
    let unbound = claim.body.status.phase.as_deref() != Some("Bound");
    let hint = "the volume is made of a snapshot: where that is the cause, run it again without it \
                (--prefer-snapshot, preferSnapshot)";
    Ok(match failure.exit_code {
        exit::RETRYABLE if unbound => failure.hint(hint),
        exit::USAGE => Failure { exit_code: exit::RETRYABLE, ..failure.hint(hint) },
        _ => failure,
    })
}

/// Removes what was handed over; the storage keeps the snapshot.
pub(super) fn remove(context: &Context<'_>, restore: &Restore) -> Planned<()> {
    // Also where the record says by now that there was none: others may write to it.
    if restore.kept.is_none() {
        return Ok(());
    }
    context.remove(&context.anchor.handed_snapshot(&restore.repository.namespace))?;
    context.remove(&context.anchor.handed_content())
}

impl Request {
    /// The snapshot that it begins as.
    pub fn snapshot(&self) -> Option<&KeptSnapshot> {
        match self {
            Self::Restore(restore) => match &restore.kept {
                Some(Kept::Snapshot(kept)) => Some(kept),
                _ => None,
            },
            _ => None,
        }
    }

    /// The same, and a restore's data all comes from the bucket.
    #[must_use]
    pub fn without_snapshot(mut self, why: &str) -> Self {
        if self.snapshot().is_some()
            && let Self::Restore(restore) = &mut self
        {
            restore.kept = Some(Kept::Missing(why.to_owned()));
        }
        self
    }

    /// Whether both ask for the same. Which snapshot there was when it was asked is no part of that.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Restore(one), Self::Restore(other)) => {
                let asked = |of: &Restore| Restore { kept: None, ..of.clone() };
                one.kept.is_some() == other.kept.is_some() && asked(one) == asked(other)
            }
            _ => self == other,
        }
    }
}
