//! The mark of a schedule: an annotation that says which times are settled. Whoever may write the
//! spec may write it too.
//!
//! Runs tell by themselves which times have been handled. The mark tells what no run can: that one
//! was made which its user has deleted since, how many were missed for good, and since when the
//! spec is as it is. Times before that are not caught up on: those of another pattern, and those at
//! which the schedule rested. Without the mark a schedule works all the same, from its runs and
//! its creation.

use super::due::counts;
use crate::kinds::{BackupScheduleSpec, CronTimes};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// What is settled of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Of its backups.
    pub backups: Settled,
    /// Runs of backups that were missed for good.
    #[serde(default)]
    pub missed: u64,
    /// Of its drills.
    pub drills: Settled,
}

/// What is settled of one pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// No time until then is due any more.
    pub until: DateTime<Utc>,
    /// Since when the pattern is as it is: until then, nothing was to be expected of it.
    pub since: DateTime<Utc>,
    /// What decides when: pattern, zone, and whether the schedule rests, as a hash.
    pub spec: String,
}

/// When a schedule began to be as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since {
    /// When it was made.
    pub created: DateTime<Utc>,
    /// When its spec changed last, if anybody knows.
    pub changed: Option<DateTime<Utc>>,
}

impl Mark {
    /// Reads an annotation. One that nobody of us wrote says nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Mark> {
        serde_json::from_str(text).ok()
    }

    /// As an annotation.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Settled {
    /// What is settled for a spec of this hash at a moment, by what was settled before.
    pub(super) fn now(
        before: Option<&Settled>,
        spec: String,
        since: Since,
        now: DateTime<Utc>,
    ) -> Settled {
        let created = since.created;
        let Some(before) = before else { return Settled { until: created, since: created, spec } };
        let known = if counts(before.until, now) { before.until.max(created) } else { created };
        if before.spec == spec {
            return Settled {
                until: known,
                since: before.since.clamp(created, now.max(created)),
                spec,
            };
        }
        let changed = since.changed.unwrap_or(now).min(now).max(created);
        Settled { until: known.max(changed), since: changed, spec }
    }
}

/// Since when backups, and since when drills, are to be expected of a schedule, for whoever only
/// looks at it. `None` where its mark is of another spec, until the next one is written.
#[must_use]
pub fn expected_since(
    spec: &BackupScheduleSpec,
    mark: Option<&Mark>,
    created: DateTime<Utc>,
) -> [Option<DateTime<Utc>>; 2] {
    let Some(mark) = mark else { return [Some(created); 2] };
    let of = |settled: &Settled, spec: String| {
        (settled.spec == spec).then(|| settled.since.max(created))
    };
    [of(&mark.backups, backups_of(spec)), of(&mark.drills, drills_of(spec))]
}

/// What decides when a schedule makes backups.
pub(super) fn backups_of(spec: &BackupScheduleSpec) -> String {
    hash(
        Some(&CronTimes { cron: spec.cron.clone(), time_zone: spec.time_zone.clone() }),
        spec.suspend,
    )
}

/// What decides when it makes drills.
pub(super) fn drills_of(spec: &BackupScheduleSpec) -> String {
    hash(spec.drill.as_ref().map(|drill| &drill.at), spec.suspend)
}

fn hash(cron: Option<&CronTimes>, rests: bool) -> String {
    let zone = cron.and_then(|cron| cron.time_zone.as_deref()).unwrap_or("UTC");
    let text = cron.map(|cron| cron.cron.as_str()).unwrap_or_default();
    let mut hex = blake3::hash(format!("{text}\n{zone}\n{rests}").as_bytes()).to_hex().to_string();
    hex.truncate(16);
    hex
}

#[cfg(test)]
impl Mark {
    /// Of a schedule whose spec is as it is since then.
    pub(crate) fn since(spec: &BackupScheduleSpec, since: DateTime<Utc>) -> Mark {
        let settled = |spec| Settled { until: since, since, spec };
        let (backups, drills) = (settled(backups_of(spec)), settled(drills_of(spec)));
        Mark { backups, missed: 0, drills }
    }
}
