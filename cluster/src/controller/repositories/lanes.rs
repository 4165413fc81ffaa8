//! The lanes of the work for a Repository, and when a run of one is due.
//!
//! Runs of one lane follow each other, and lanes go beside each other, as the operations of `mover`
//! may. A time that was missed is made up for once, however often it came. A clock that is put back
//! does no run twice; one that was far ahead and is right again does one more, and goes on from that.

use super::record::{Done, Ended};
use crate::engine::exit;
use crate::schedule::{self, Around, Cron, STEP_MAX_HOURS, Stream, Timing};
use chrono::{DateTime, TimeDelta, Timelike as _, Utc};

/// Makes the repository, where there is none, and opens it.
pub const INIT: &str = "init";
/// Lists its backups.
pub const SYNC: &str = "sync";
/// Forgets backups by rules.
pub const FORGET: &str = "forget";
/// Collects garbage.
pub const GC: &str = "gc";
/// Follows every reference.
pub const CHECK: &str = "check";
/// Copies backups to another Repository, whose name follows.
pub const COPY: &str = "copy-";

/// Minutes until a run that failed is made again.
const AGAIN_MINUTES: [i64; 5] = [1, 5, 15, 30, 60];
/// What may pass is tried so often before the next time of its own.
const AGAIN_MOST: u32 = 3;
/// Copies are looked for so long after each time that a schedule makes backups.
const COPY_HOURS: i64 = 6;
/// And after so long in any case.
const COPY_REST_HOURS: i64 = 24;

/// When a run is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// One is, which has this time.
    pub now: Option<DateTime<Utc>>,
    /// When to look again.
    pub next: Option<DateTime<Utc>>,
}

/// The short name of a lane in those of its Jobs: 7 characters at most.
#[must_use]
pub(super) fn short(lane: &str) -> String {
    match lane.strip_prefix(COPY) {
        Some(target) => format!("copy{}", &blake3::hash(target.as_bytes()).to_hex()[..3]),
        None => lane.to_owned(),
    }
}

/// When the repository is to be made or opened: at once, then after failures, and at once after a
/// change of the spec.
#[must_use]
pub(super) fn init(done: &Done, generation: i64, now: DateTime<Utc>) -> Due {
    match &done.last {
        None => at_once(done, now),
        Some(last) if last.exit_code == 0 => Due::default(),
        Some(last) if last.generation != generation => at_once(done, now),
        Some(last) => again(done, last, u32::MAX, now),
    }
}

/// When the backups are to be listed: at once, by `cron`, and after failures.
#[must_use]
pub(super) fn sync(
    done: &Done,
    cron: Option<&Cron>,
    created: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Due {
    let Some(last) = &done.last else { return at_once(done, now) };
    sooner(timed(done, cron, created, now), again(done, last, u32::MAX, now))
}

/// When a run by the clock is due: by `cron`, and soon after a failure that may pass.
#[must_use]
pub(super) fn regular(
    done: &Done,
    cron: Option<&Cron>,
    created: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Due {
    let due = timed(done, cron, created, now);
    match &done.last {
        Some(last) if may_pass(last) => sooner(due, again(done, last, AGAIN_MOST, now)),
        _ => due,
    }
}

/// When copies are to be looked for: each hour, as long as a schedule may have made a backup since.
/// `minute` is that of the hour.
#[must_use]
pub(super) fn copy(done: &Done, crons: &[Cron], minute: u32, now: DateTime<Utc>) -> Due {
    let hour = TimeDelta::hours(1);
    let this = now.with_minute(minute).map_or(now, to_minute);
    let this = if this > now { this - hour } else { this };
    let next = Some(this + hour);
    let floor = floor(done, now);
    let rested = done.good.as_ref().is_none_or(|good| {
        this - good.due >= TimeDelta::hours(COPY_REST_HOURS)
            || good.due - now > TimeDelta::hours(STEP_MAX_HOURS)
    });
    let made = crons.iter().any(|cron| {
        cron.last_until(this).is_some_and(|at| this - at <= TimeDelta::hours(COPY_HOURS))
    });
    let is_new = floor.is_none_or(|floor| this > floor);
    Due { now: Some(this).filter(|_| is_new && (rested || made)), next }
}

/// The newest time of `cron` that no run was for.
fn timed(done: &Done, cron: Option<&Cron>, created: DateTime<Utc>, now: DateTime<Utc>) -> Due {
    let Some(cron) = cron else { return Due::default() };
    let around = Around::new(cron, now);
    let timing = Timing { cron: cron.clone(), jitter_seconds: 0, deadline_seconds: None };
    let ran = done.last.iter().map(|last| last.due).collect();
    let stream = Stream { id: String::new(), since: created, ran, is_busy: false };
    let due = schedule::due(&timing, &around, &stream);
    Due { now: due.run, next: due.look }
}

/// The time of the last run; none where only a clock that was wrong can have given it.
fn floor(done: &Done, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let last = done.last.as_ref()?.due;
    (last - now <= TimeDelta::hours(STEP_MAX_HOURS)).then_some(last)
}

fn at_once(done: &Done, now: DateTime<Utc>) -> Due {
    Due { now: Some(later(done, to_minute(now), now)), next: None }
}

/// After a failure, with longer and longer pauses.
fn again(done: &Done, last: &Ended, most: u32, now: DateTime<Utc>) -> Due {
    if done.failures == 0 || done.failures > most {
        return Due::default();
    }
    let tried = usize::try_from(done.failures - 1).unwrap_or(usize::MAX);
    let pause = AGAIN_MINUTES[tried.min(AGAIN_MINUTES.len() - 1)];
    let at = last.at + TimeDelta::minutes(pause);
    // After a clock that was ahead nobody waits until then.
    match at <= now || last.at - now > TimeDelta::hours(1) {
        true => Due { now: Some(later(done, to_minute(now), now)), next: None },
        false => Due { now: None, next: Some(at) },
    }
}

/// A time that no run of the lane had: its Jobs may still be there.
fn later(done: &Done, due: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc> {
    match floor(done, now) {
        Some(floor) if due <= floor => floor + TimeDelta::minutes(1),
        _ => due,
    }
}

/// Whether the same again may end otherwise.
const fn may_pass(ended: &Ended) -> bool {
    matches!(ended.exit_code, exit::RETRYABLE | exit::CANCELLED)
}

fn sooner(one: Due, other: Due) -> Due {
    let next = one.next.into_iter().chain(other.next).min();
    Due { now: one.now.into_iter().chain(other.now).max(), next }
}

fn to_minute(time: DateTime<Utc>) -> DateTime<Utc> {
    time.with_second(0).and_then(|time| time.with_nanosecond(0)).unwrap_or(time)
}

#[cfg(test)]
mod tests;
