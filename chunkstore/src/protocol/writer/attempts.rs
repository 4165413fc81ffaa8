//! Which attempts at a backup id there are, and which one a run makes.

use crate::error::{Error, ErrorKind, Result};
use crate::format::manifest::Manifest;
use crate::format::names::{
    AttemptName, forgotten_of, manifests_of, parse_forgotten_key, parse_manifest_key,
};
use crate::ids::{BackupId, VolumeName};
use crate::protocol::reader::backup_at;
use crate::repository::Repository;
use std::collections::HashSet;

/// The attempts at a backup id that something stands at, the last one first, and those that are
/// forgotten.
pub(super) async fn attempts_of(
    repo: &Repository,
    volume: &VolumeName,
    backup_id: &BackupId,
) -> Result<(Vec<AttemptName>, HashSet<AttemptName>)> {
    let store = repo.store();
    let (made, forgot) = (
        format!("{}{backup_id}/", manifests_of(volume)),
        format!("{}{backup_id}/", forgotten_of(volume)),
    );
    // in this order: an attempt is forgotten after the one in its place was committed
    let forgot = store.list(&forgot).await?;
    let made = store.list(&made).await?;
    let mut made: Vec<AttemptName> =
        made.iter().filter_map(|l| parse_manifest_key(&l.key).ok()).collect();
    made.sort_unstable_by_key(|name| std::cmp::Reverse(name.attempt));
    let forgot = forgot.iter().filter_map(|l| parse_forgotten_key(&l.key).ok());
    Ok((made, forgot.collect()))
}

/// Which attempt a run makes: the first that is not fenced. Also the backup that is there already:
/// the last committed attempt.
pub(super) async fn next_attempt(
    repo: &Repository,
    volume: &VolumeName,
    backup_id: &BackupId,
) -> Result<(u32, Option<Manifest>)> {
    let (made, forgot) = attempts_of(repo, volume, backup_id).await?;
    // one that could not be read may be forgotten above the one that counts
    for name in made.iter().filter(|name| !forgot.contains(name)) {
        if let Some(manifest) = Box::pin(backup_at(repo, name)).await? {
            return Ok((name.attempt, Some(manifest)));
        }
    }
    if !forgot.is_empty() {
        let name = AttemptName { volume: volume.clone(), backup_id: backup_id.clone(), attempt: 0 };
        return Err(forgotten(repo, made.first().unwrap_or(&name)));
    }
    let Some(last) = made.first() else { return Ok((0, None)) };
    let context = format!("begin backup {last}");
    let attempt = last.attempt.checked_add(1);
    let attempt =
        attempt.ok_or_else(|| Error::new(ErrorKind::Corrupt, context, "no attempt is left"))?;
    Ok((attempt, None))
}

pub(super) fn forgotten(repo: &Repository, name: &AttemptName) -> Error {
    Error::new(
        ErrorKind::Forgotten,
        format!("make backup {name} in {}", repo.store().url()),
        "a backup of that name was forgotten, and it stays so",
    )
    .hint("use another backup id")
}
