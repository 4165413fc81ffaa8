//! The backups that a schedule makes now, from its spec, its claims and the runs that exist.

use super::cron::{BadCron, Cron};
use super::drills::DrillPlan;
use super::due::{Around, Due, Stream, Timing, counts, due};
use super::mark::{Mark, Settled, Since, backups_of, drills_of};
use super::names::{run_name, time_of};
use crate::kinds::{BackupScheduleSpec, BackupSource};
use chrono::{DateTime, Utc};
use std::collections::{BTreeMap, BTreeSet};

/// How late a run may begin where the spec does not say.
const DEADLINE_SECONDS: u32 = 3_600;
/// Missed runs that are looked at one by one; more are counted as missed by all claims.
const LOOKED_AT_MAX: usize = 1_000;

/// A schedule as it is.
#[derive(Debug, Clone)]
pub struct Schedule<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Since when.
    pub since: Since,
    /// Its spec.
    pub spec: &'a BackupScheduleSpec,
    /// What is settled of it.
    pub mark: Option<&'a Mark>,
}

/// A claim that a schedule backs up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimOf {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// When it was made.
    pub created: DateTime<Utc>,
}

/// How a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has not ended.
    UnderWay,
    /// It ended well, and holds this moment.
    Good {
        /// The moment.
        cut: DateTime<Utc>,
    },
    /// It ended, and not well.
    Failed,
}

/// A VolumeBackup of a schedule: its owner is the schedule's uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// Its claim; none for a group.
    pub claim: Option<String>,
    /// When it was due, as its annotation says it.
    pub scheduled: Option<String>,
    /// When the API made it.
    pub created: DateTime<Utc>,
    /// How it is.
    pub state: State,
}

/// A VolumeBackup to be made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NewRun {
    /// Its name.
    pub name: String,
    /// Its claim; none for a group.
    pub claim: Option<String>,
    /// When it is due.
    pub due: DateTime<Utc>,
}

/// What a schedule does now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Runs to be made. A name that is taken is a run that exists.
    pub create: Vec<NewRun>,
    /// What is settled once all of those are made, and not before.
    pub settled: Settled,
    /// When to look again, if nothing happens before.
    pub look: Option<DateTime<Utc>>,
    /// When the last run was due.
    pub last: Option<DateTime<Utc>>,
    /// When the next one is; none while it rests.
    pub next: Option<DateTime<Utc>>,
    /// Runs that were missed for good.
    pub missed: u64,
}

/// How the runs of a source are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind<'a> {
    /// One claim: the run has no suffix.
    One(&'a str),
    /// One run for each claim.
    Each,
    /// One run for all of them.
    Group,
}

fn kind(source: &BackupSource) -> Kind<'_> {
    match (&source.pvc, source.group) {
        (Some(claim), _) => Kind::One(claim),
        (None, Some(true)) => Kind::Group,
        (None, _) => Kind::Each,
    }
}

impl Schedule<'_> {
    /// When its runs begin.
    ///
    /// # Errors
    ///
    /// The field of its spec that is wrong.
    pub fn timing(&self) -> Result<Timing, BadCron> {
        Ok(Timing {
            cron: Cron::parse(&self.spec.cron, self.spec.time_zone.as_deref())?,
            jitter_seconds: self.spec.jitter_seconds.unwrap_or_default(),
            deadline_seconds: self.spec.starting_deadline_seconds.or(Some(DEADLINE_SECONDS)),
        })
    }

    /// What it does now. `known` are runs that exist no more, but that this process has seen.
    ///
    /// # Errors
    ///
    /// The field of its spec that is wrong.
    pub fn plan(
        &self,
        claims: &[ClaimOf],
        runs: &[Run],
        known: &BTreeSet<NewRun>,
        now: DateTime<Utc>,
    ) -> Result<Plan, BadCron> {
        let timing = self.timing()?;
        let around = Around::new(&timing.cron, now);
        let settled = self.settled(now);
        let mut streams = self.streams(claims, runs, known, settled.until);
        let last = streams.iter().flat_map(|(_, stream)| stream.ran.iter().copied());
        let last = last.filter(|time| counts(*time, now)).max();
        let mut plan = Plan {
            create: Vec::new(),
            settled,
            look: None,
            last,
            next: None,
            missed: self.mark.map_or(0, |mark| mark.missed),
        };
        if self.spec.suspend {
            return Ok(plan);
        }
        let does: Vec<Due> =
            streams.iter().map(|(_, stream)| due(&timing, &around, stream)).collect();
        for ((claim, stream), does) in streams.iter_mut().zip(&does) {
            plan.create.extend(does.run.map(|due| self.new_run(claim.as_deref(), due)));
            stream.ran.extend(does.run);
        }
        plan.look = does.iter().filter_map(|does| does.look).min().or(around.next());
        plan.next = around.next();
        if let Some(until) = does.iter().map(|does| does.settled).min() {
            // Without a mark, runs that were removed since would count as missed.
            if self.mark.is_some() || runs.is_empty() {
                plan.missed += missed_by(&timing.cron, &streams, plan.settled.until, until);
            }
            plan.settled.until = until;
        }
        Ok(plan)
    }

    /// The mark to be written once the runs of a plan are made, if it is another one.
    #[must_use]
    pub fn mark(&self, backups: &Plan, drills: &DrillPlan) -> Option<Mark> {
        let mark = Mark {
            backups: backups.settled.clone(),
            missed: backups.missed,
            drills: drills.settled.clone(),
        };
        Some(mark).filter(|mark| Some(mark) != self.mark)
    }

    /// What is settled of its backups before anything is made.
    pub(super) fn settled(&self, now: DateTime<Utc>) -> Settled {
        let before = self.mark.map(|mark| &mark.backups);
        Settled::now(before, backups_of(self.spec), self.since, now)
    }

    /// Whether the mark is of another spec, so that it matters when the spec changed.
    #[must_use]
    pub fn was_changed(&self) -> bool {
        self.mark.is_some_and(|mark| {
            mark.backups.spec != backups_of(self.spec) || mark.drills.spec != drills_of(self.spec)
        })
    }

    fn new_run(&self, claim: Option<&str>, due: DateTime<Utc>) -> NewRun {
        let suffix = claim.filter(|_| kind(&self.spec.template.spec.source) == Kind::Each);
        NewRun { name: run_name(self.name, due, suffix), claim: claim.map(str::to_owned), due }
    }

    /// When a run was due, if its name is that of a run of this schedule.
    #[must_use]
    pub fn time(&self, run: &Run) -> Option<DateTime<Utc>> {
        let claim = run.claim.as_deref();
        let of = |claim| time_of(&run.name, self.name, claim, run.scheduled.as_deref());
        // A source that was changed since may have named its runs the other way.
        claim.and_then(|claim| of(Some(claim))).or_else(|| of(None))
    }

    /// The streams, with the claim of each.
    pub(super) fn streams(
        &self,
        claims: &[ClaimOf],
        runs: &[Run],
        known: &BTreeSet<NewRun>,
        since: DateTime<Utc>,
    ) -> Vec<(Option<String>, Stream)> {
        let kind = kind(&self.spec.template.spec.source);
        let each: Vec<(Option<String>, String, DateTime<Utc>)> = match kind {
            Kind::Group => vec![(None, self.uid.to_owned(), since)],
            Kind::One(name) => {
                // Whether it exists is the run's business: it says so, and ends badly.
                let found = claims.iter().find(|claim| claim.name == name);
                let id = found.map_or(self.uid, |claim| &claim.uid);
                vec![(Some(name.to_owned()), id.to_owned(), since)]
            }
            Kind::Each => claims
                .iter()
                .map(|at| (Some(at.name.clone()), at.uid.clone(), since.max(at.created)))
                .collect(),
        };
        let of = |claim: &Option<String>| claim.clone().filter(|_| kind == Kind::Each);
        let mut ran: BTreeMap<Option<String>, (Vec<DateTime<Utc>>, bool)> = BTreeMap::new();
        for (run, time) in runs.iter().filter_map(|run| Some((run, self.time(run)?))) {
            let (times, is_busy) = ran.entry(of(&run.claim)).or_default();
            times.push(time);
            *is_busy |= run.state == State::UnderWay;
        }
        for run in known {
            ran.entry(of(&run.claim)).or_default().0.push(run.due);
        }
        let streams = each.into_iter().map(|(claim, id, since)| {
            let (ran, is_busy) = ran.remove(&of(&claim)).unwrap_or_default();
            (claim, Stream { id, since, ran, is_busy })
        });
        streams.collect()
    }
}

/// The times after `after` and until `until` that some stream has no run of.
fn missed_by(
    cron: &Cron,
    streams: &[(Option<String>, Stream)],
    after: DateTime<Utc>,
    until: DateTime<Utc>,
) -> u64 {
    let all = cron.between(after, until);
    if all.len() > LOOKED_AT_MAX {
        return all.len() as u64;
    }
    let is_missed = |time: &&DateTime<Utc>| {
        streams.iter().any(|(_, stream)| stream.since < **time && !stream.ran.contains(time))
    };
    all.iter().filter(is_missed).count() as u64
}
