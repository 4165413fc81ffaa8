//! The drills of a schedule: when one is due, over which backup, and what is known of the last one.
//!
//! One drill is one restore of one claim's newest good backup. Drills go round: the next one takes
//! the claim that follows the last one's, in an order of hashes of uids. So the turn of each claim
//! comes, that of a new one too, and the last record alone says whose it is.
//!
//! A drill that is due waits for a good backup, and is caught up on until the next one is due. One
//! that failed is bad, and so is one that did not begin: both make `Drilled` false.

use super::cron::{BadCron, Cron};
use super::due::{Around, Due, Stream, Timing, counts, due};
use super::health::Verdict;
use super::mark::{Settled, drills_of};
use super::names::{self, drill_name};
use super::runs::Schedule;
use chrono::{DateTime, Duration, Utc};
use std::collections::BTreeSet;

/// How late a drill may begin before that is bad.
const LATE_SECONDS: i64 = 1_800;

/// A claim with its newest good backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the claim.
    pub claim: String,
    /// Its uid, or what else stays the same of it.
    pub uid: String,
    /// The VolumeBackup.
    pub backup: String,
}

/// How a drill is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrillState {
    /// It has not ended.
    UnderWay,
    /// It proved the backup.
    Passed,
    /// It did not.
    Failed,
}

/// A drill that was begun: its VolumeRestore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrillRecord {
    /// Its name.
    pub name: String,
    /// When it was due, as its annotation says it.
    pub scheduled: Option<String>,
    /// Name and uid of the claim.
    pub claim: (String, String),
    /// The VolumeBackup.
    pub backup: String,
    /// How it is.
    pub state: DrillState,
    /// When it ended.
    pub ended: Option<DateTime<Utc>>,
    /// For people: what it does, or how it ended.
    pub message: String,
}

/// A drill to be begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDrill {
    /// Its name: of its restore, claim and Job.
    pub name: String,
    /// When it is due.
    pub due: DateTime<Utc>,
    /// What is restored.
    pub of: Candidate,
}

/// What the drills of a schedule do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrillPlan {
    /// The drill to be begun. A name that is taken is one that was begun.
    pub begin: Option<NewDrill>,
    /// When one was due that has not begun.
    pub open: Option<DateTime<Utc>>,
    /// What is settled once it is begun.
    pub settled: Settled,
    /// When to look again, if nothing happens before.
    pub look: Option<DateTime<Utc>>,
    /// When the next one is due.
    pub next: Option<DateTime<Utc>>,
}

impl Schedule<'_> {
    /// What its drills do now. `known` are times of drills whose record exists no more.
    ///
    /// # Errors
    ///
    /// The field of its spec that is wrong.
    pub fn plan_drills(
        &self,
        records: &[DrillRecord],
        candidates: &[Candidate],
        known: &BTreeSet<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<DrillPlan, BadCron> {
        let before = self.mark.map(|mark| &mark.drills);
        let settled = Settled::now(before, drills_of(self.spec), self.since, now);
        let idle = DrillPlan { begin: None, open: None, settled, look: None, next: None };
        let Some(drill) = self.spec.drill.as_ref().filter(|_| !self.spec.suspend) else {
            return Ok(idle);
        };
        let cron = Cron::of(&drill.at)?;
        let around = Around::new(&cron, now);
        let times = records.iter().filter_map(|record| self.drill_time(record));
        let stream = Stream {
            id: self.uid.to_owned(),
            since: idle.settled.until,
            ran: times.chain(known.iter().copied()).collect(),
            is_busy: records.iter().any(|record| record.state == DrillState::UnderWay),
        };
        let timing = Timing { cron, jitter_seconds: 0, deadline_seconds: None };
        let Due { run, open, settled: until, look } = due(&timing, &around, &stream);
        let last = self.last_drill(records, now);
        let of = next_of(candidates, last.map(|last| last.claim.1.as_str()));
        let begin = run.zip(of).map(|(due, of)| NewDrill {
            name: drill_name(self.name, due),
            due,
            of: of.clone(),
        });
        let late = open.map(|open| open + Duration::seconds(LATE_SECONDS + 1));
        let look = look.into_iter().chain(late.filter(|late| *late > now)).min();
        let settled = Settled { until, ..idle.settled };
        Ok(DrillPlan { begin, open, settled, look, next: around.next() })
    }

    /// When a drill was due, if its name is that of a drill of this schedule.
    #[must_use]
    pub fn drill_time(&self, record: &DrillRecord) -> Option<DateTime<Utc>> {
        let drills = names::drills_of(self.name);
        names::time_of(&record.name, &drills, None, record.scheduled.as_deref())
    }

    /// The drill that was due last of those that began. One of a clock that was far ahead says
    /// nothing: it would hide all others until then.
    #[must_use]
    pub fn last_drill<'a>(
        &self,
        records: &'a [DrillRecord],
        now: DateTime<Utc>,
    ) -> Option<&'a DrillRecord> {
        self.last_of(records.iter(), now)
    }

    fn last_of<'a>(
        &self,
        records: impl Iterator<Item = &'a DrillRecord>,
        now: DateTime<Utc>,
    ) -> Option<&'a DrillRecord> {
        let timed = records.map(|record| (self.drill_time(record), record));
        let known = timed.filter(|(time, _)| time.is_none_or(|time| counts(time, now)));
        known.max_by_key(|(time, _)| *time).map(|(_, record)| record)
    }

    /// Whether its backups were proved by a drill when they had to be; nothing without drills.
    #[must_use]
    pub fn drilled(
        &self,
        plan: &DrillPlan,
        records: &[DrillRecord],
        now: DateTime<Utc>,
    ) -> Option<Verdict> {
        self.spec.drill.as_ref()?;
        let ended = records.iter().filter(|record| record.state != DrillState::UnderWay);
        let last = self.last_of(ended, now);
        if let Some(last) = last.filter(|last| last.state == DrillState::Failed) {
            let what = format!("the drill of {} failed: {}", last.backup, last.message);
            return Some(Verdict::no("DrillFailed", what));
        }
        let late = |open: &DateTime<Utc>| now > *open + Duration::seconds(LATE_SECONDS);
        if let Some(open) = plan.open.filter(late) {
            let busy = records.iter().find(|record| record.state == DrillState::UnderWay);
            let why = match busy {
                Some(busy) => format!("{} has not ended: {}", busy.name, busy.message),
                None if plan.begin.is_none() => "no claim has a good backup yet".into(),
                None => "it begins now".into(),
            };
            let what = format!("the drill due at {} did not run: {why}", open.to_rfc3339());
            return Some(Verdict::no("DrillMissed", what));
        }
        Some(match last {
            Some(last) => Verdict::yes("DrillPassed", format!("{} was restored", last.backup)),
            None => Verdict::unknown("NoDrillYet", "no drill was due yet".into()),
        })
    }
}

/// The claim whose turn it is after the one of uid `last`.
fn next_of<'a>(candidates: &'a [Candidate], last: Option<&str>) -> Option<&'a Candidate> {
    let place = |uid: &str| *blake3::hash(uid.as_bytes()).as_bytes();
    let last = last.map(place);
    let follows = |at: &&Candidate| last.is_some_and(|last| place(&at.uid) > last);
    let first = candidates.iter().min_by_key(|at| place(&at.uid));
    candidates.iter().filter(follows).min_by_key(|at| place(&at.uid)).or(first)
}
