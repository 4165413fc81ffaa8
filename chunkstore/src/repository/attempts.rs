//! Several committed attempts of one backup.
//!
//! A repair of a damaged backup commits another attempt of the same id, and then forgets the damaged
//! one. Between the two there are two of the same content. The highest one that is not forgotten is
//! the backup; the others are not listed. Forgetting the backup forgets all of them, the lowest
//! first, so that none comes back.

use super::{Hold, Repository};
use crate::error::{ErrorKind, Result};
use crate::format::names::{AttemptName, manifests_of, parse_manifest_key};
use std::collections::{HashMap, HashSet};

/// Looks for attempts that were committed while others were forgotten.
const LOOKS_MAX: u32 = 8;

/// Keeps of each backup the highest attempt; gives the others.
pub(crate) fn keep_highest<T>(all: &mut Vec<T>, name: impl Fn(&T) -> AttemptName) -> Vec<T> {
    let mut highest: HashMap<AttemptName, u32> = HashMap::new();
    let backup = |name: AttemptName| AttemptName { attempt: 0, ..name };
    for name in all.iter().map(&name) {
        let attempt = name.attempt;
        let known = highest.entry(backup(name)).or_insert(attempt);
        *known = attempt.max(*known);
    }
    let lower = |one: &mut T| {
        let name = name(one);
        let attempt = name.attempt;
        highest.get(&backup(name)).is_some_and(|highest| attempt < *highest)
    };
    all.extract_if(.., lower).collect()
}

impl Repository {
    /// Makes a backup count as absent, for good: all of its attempts that are committed, the lowest
    /// first. `name` is one of them. One that a repair commits meanwhile is forgotten too.
    ///
    /// Refused if it is held; `holds` are those that [`holds`](Self::holds) has just given.
    pub async fn forget_backup(
        &self,
        name: &AttemptName,
        holds: &[Hold],
        tool: &str,
    ) -> Result<()> {
        self.refuse_held(holds, name)?;
        let mut done: HashSet<AttemptName> = HashSet::new();
        let mut next =
            if name.attempt == 0 { vec![name.clone()] } else { self.attempts_at(name).await? };
        for _ in 0..LOOKS_MAX {
            for attempt in next {
                match self.forget(&attempt, tool).await {
                    // a fence, or an attempt that was forgotten and collected before
                    Err(e) if e.kind() == ErrorKind::NotFound && attempt != *name => {}
                    forgotten => forgotten?,
                }
                done.insert(attempt);
            }
            next = self.attempts_at(name).await?;
            next.retain(|attempt| !done.contains(attempt));
            if next.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// What stands at any attempt of a backup, the lowest first.
    async fn attempts_at(&self, name: &AttemptName) -> Result<Vec<AttemptName>> {
        let prefix = format!("{}{}/", manifests_of(&name.volume), name.backup_id);
        let listed = self.store.list(&prefix).await?;
        let mut attempts: Vec<AttemptName> =
            listed.iter().filter_map(|l| parse_manifest_key(&l.key).ok()).collect();
        attempts.sort_unstable_by_key(|name| name.attempt);
        Ok(attempts)
    }
}
