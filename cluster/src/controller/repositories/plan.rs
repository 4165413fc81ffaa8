//! The plan of the work for a Repository: a function of its spec, of the schedules that mean it, of
//! the time of day and of what was observed.
//!
//! ```text
//! account ──▶ record ──▶ init ──▶ sync, forget ▶ gc, check, copies: each by itself
//!                                  due ▶ in the record ▶ Job ▶ end in the record ▶ Job removed
//! ```
//!
//! Its status is what the record says, and the reason of a wait. Nothing is decided by it.

use super::accounts::accounts;
use super::calendar::Calendar;
use super::jobs::{self, anchor};
use super::lanes::{self, CHECK, COPY, Due, FORGET, GC, INIT, SYNC};
use super::record::{Done, Ended, Record, Sealer, failed};
use super::rules::{self, Copies, ScheduleOf, Words};
use super::status::{self, Told};
use crate::engine::{
    ConfigMap, Failure, Finished, Key, Kind, Meta, Next, Object, Observed, Planned, Query,
    Repository, Stands, Stop, Wait, cluster_name, exit, of_object, remove_alone,
};
use crate::kinds::{self, RepositorySpec, RepositoryStatus};
use crate::schedule::Cron;
use chrono::{DateTime, Utc};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Newest backups of each volume that are listed, and may become objects.
pub const NEWEST: usize = 10;
/// What is refused, or cannot be looked up, is tried again then.
const TROUBLE: Duration = Duration::from_secs(60);
/// Nothing is waited for longer: a clock may be put forward.
const LONGEST: Duration = Duration::from_secs(600);

/// All that the plan is made from, beside what was observed.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The Repository.
    pub meta: &'a Meta,
    /// Generation of its spec.
    pub generation: i64,
    /// When it was made.
    pub created: DateTime<Utc>,
    /// What it asks for.
    pub spec: &'a RepositorySpec,
    /// What stands in its status: written where it is another.
    pub status: &'a RepositoryStatus,
    /// All BackupSchedules.
    pub schedules: &'a [ScheduleOf],
    /// Patterns of cron that were read before.
    pub calendar: &'a Calendar,
    /// Image of Jobs of Repositories that name none.
    pub image: &'a str,
    /// Whether pods of Jobs are of the level *restricted*.
    pub restricted: bool,
    /// The time of day.
    pub now: DateTime<Utc>,
    /// Marks the record.
    pub seal: Sealer<'a>,
    /// How the backups were listed, since that was asked for.
    pub listed: Option<&'a Ended>,
}

impl std::fmt::Debug for Facts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Facts")
            .field("meta", self.meta)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// What the plan cannot do by a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Read the list of backups out of the log of this pod, and have the objects follow it. How
    /// that ended is to be told by [`Facts::listed`].
    List {
        /// When the run was due.
        due: DateTime<Utc>,
        /// Where the log is, and what the program said of it.
        finished: Finished,
        /// The Repository, as it was resolved.
        place: Box<Repository>,
    },
    /// Write this status.
    Status(Box<RepositoryStatus>),
}

/// What comes next for a Repository.
///
/// # Errors
///
/// A step, or a wait. It does not fail: what fails stands in the status, and is tried again.
pub fn plan(facts: &Facts<'_>, seen: &Observed) -> Planned<Act> {
    let mut told = Told::default();
    let wait = match work(facts, seen, &mut told) {
        Err(Stop::Next(Next::Wait(wait))) => wait,
        // What is known of two objects may never have been true at once; and a refusal may pass.
        Err(Stop::Failure(_)) if !seen.is_fresh() => return Err(Stop::Next(Next::Refresh)),
        Err(Stop::Failure(why)) => {
            told.trouble = Some(why);
            let on = vec![key_of(facts.meta).into()];
            Box::new(Wait::new(on, "it is tried again".into(), TROUBLE))
        }
        other => return other,
    };
    let status = status::of(facts, &told);
    if status != *facts.status {
        return Ok(Act::Status(Box::new(status)));
    }
    Err(Stop::Next(Next::Wait(wait)))
}

fn key_of(meta: &Meta) -> Key {
    Key::new(Kind::Repository, meta.namespace.as_deref().unwrap_or_default(), &meta.name)
}

fn work(facts: &Facts<'_>, seen: &Observed, told: &mut Told) -> Planned<Act> {
    let cluster = match &facts.spec.cluster_name {
        Some(name) => name.clone(),
        None => cluster_name(seen)?,
    };
    told.cluster = Some(cluster.clone());
    let place = Repository {
        restricted: facts.restricted,
        ..of_object(facts.meta, facts.spec, &cluster, facts.image)
    };
    let key = Record::key(&place.namespace, &facts.meta.uid);
    let found = seen.find::<ConfigMap>(&key)?;
    let record = found.as_ref().and_then(|found| Record::read(found, facts.seal));
    told.record = record.clone().unwrap_or_default();
    accounts(facts, seen, &place)?;
    let Some(found) = found else {
        let made =
            Record::default().create(&key, facts.meta, &jobs::reference(facts.meta), facts.seal);
        return seen.settle(Err(made.into()));
    };
    let work = Work { facts, seen, place: &place, found: &found, record: &told.record.clone() };
    work.all(told)
}

struct Work<'a> {
    facts: &'a Facts<'a>,
    seen: &'a Observed,
    place: &'a Repository,
    found: &'a Object<ConfigMap>,
    record: &'a Record,
}

/// What a lane has to do next.
enum Lane {
    /// Nothing until then.
    Idle(Option<DateTime<Utc>>),
    /// Its log is to be read.
    List(DateTime<Utc>, Finished),
}

impl Work<'_> {
    fn all(&self, told: &mut Told) -> Planned<Act> {
        let mut waits = Vec::new();
        let mut next = Vec::new();
        let mut settle = |told: &mut Told, lane: &str, planned: Planned<Lane>| match planned {
            Ok(Lane::Idle(at)) => {
                next.extend(at);
                Ok(None)
            }
            Ok(Lane::List(due, finished)) => {
                Ok(Some(Act::List { due, finished, place: Box::new(self.place.clone()) }))
            }
            Err(Stop::Next(Next::Wait(wait))) => {
                if wait.pod.is_none() {
                    told.waits.insert(lane.to_owned(), wait.why.clone());
                }
                told.running.insert(lane.to_owned());
                waits.push(*wait);
                Ok(None)
            }
            // Without it there is no repository; any other lane holds up none beside it.
            Err(Stop::Failure(why)) if lane != INIT => {
                if !self.seen.is_fresh() {
                    return Err(Stop::Next(Next::Refresh));
                }
                told.troubles.insert(lane.to_owned(), why);
                let on = vec![self.found.key.clone().into()];
                waits.push(Wait::new(on, "it is tried again".into(), TROUBLE));
                Ok(None)
            }
            Err(other) => Err(other),
        };
        settle(told, INIT, self.init())?;
        if self.record.lane(INIT).good.is_some() {
            let schedules =
                rules::of(self.seen, self.place, self.facts.schedules, self.facts.image)?;
            let sync = self.by_cron(told, SYNC, &self.facts.spec.sync, |_, done, cron| {
                Ok(lanes::sync(done, cron, self.facts.created, self.facts.now))
            });
            if let Some(act) = settle(told, SYNC, sync)? {
                return Ok(act);
            }
            for lane in [FORGET, GC] {
                let planned = self.by_cron(told, lane, &self.facts.spec.gc, |told, done, cron| {
                    self.collect(told, lane, &schedules, done, cron)
                });
                settle(told, lane, planned)?;
            }
            let check = self.by_cron(told, CHECK, &self.facts.spec.check, |_, done, cron| {
                Ok(self.regular(done, cron))
            });
            settle(told, CHECK, check)?;
            for lane in self.copies(told, &schedules)? {
                let planned = self.copy(&lane.0, lane.1.as_ref());
                settle(told, &lane.0, planned)?;
            }
        }
        Err(Stop::from(self.wait(waits, next)))
    }

    /// Until the first of them has something, or the first is due.
    fn wait(&self, waits: Vec<Wait>, next: Vec<DateTime<Utc>>) -> Wait {
        let due = next.into_iter().min();
        let until = due.map(|due| (due - self.facts.now).to_std().unwrap_or_default());
        let on = vec![self.found.key.clone().into()];
        let time = until.unwrap_or(LONGEST).min(LONGEST);
        let mut all = Wait::new(on, "nothing is due".into(), time);
        for wait in waits {
            all.time = all.time.min(wait.time);
            all.why = wait.why;
            for query in wait.on {
                if !all.on.contains(&query) {
                    all.on.push(query);
                }
            }
        }
        all
    }

    fn regular(&self, done: &Done, cron: Option<&Cron>) -> Due {
        lanes::regular(done, cron, self.facts.created, self.facts.now)
    }

    fn init(&self) -> Planned<Lane> {
        let due = |done: &Done| Ok(lanes::init(done, self.facts.generation, self.facts.now));
        self.lane(INIT, due, || Ok(Some(Words::of(&["init", "--if-absent"]))), None)
    }

    /// A lane that goes by the clock; a pattern that cannot be meant is told, and nothing is due.
    fn by_cron(
        &self,
        told: &mut Told,
        lane: &str,
        at: &Option<kinds::CronTimes>,
        due: impl Fn(&mut Told, &Done, Option<&Cron>) -> Planned<Due>,
    ) -> Planned<Lane> {
        let cron = match at.as_ref().map(|at| self.facts.calendar.of(at)).transpose() {
            Ok(cron) => cron,
            Err(why) => {
                told.bad.insert(lane.to_owned(), why.to_string());
                None
            }
        };
        if cron.is_some() {
            told.timed.insert(lane.to_owned());
        }
        let told = std::cell::RefCell::new(told);
        let due = |done: &Done| due(&mut told.borrow_mut(), done, cron.as_ref());
        self.lane(lane, due, || self.arguments(lane), None)
    }

    fn arguments(&self, lane: &str) -> Planned<Option<Words>> {
        Ok(Some(match lane {
            SYNC => Words::of(&["list", &format!("--newest={NEWEST}")]),
            FORGET => return self.forgets(),
            GC => Words::of(&["gc"]),
            _ => Words::of(&["check"]),
        }))
    }

    fn forgets(&self) -> Planned<Option<Words>> {
        let schedules = rules::of(self.seen, self.place, self.facts.schedules, self.facts.image)?;
        rules::forget(self.seen, self.place, self.facts.spec.keep.as_ref(), &schedules)
    }

    /// Whether there is anything to forget. Where nobody knows, the lane of it says so, and garbage
    /// is collected all the same.
    fn may_forget(&self) -> Planned<bool> {
        match self.forgets() {
            Ok(words) => Ok(words.is_some()),
            Err(Stop::Failure(_)) if self.seen.is_fresh() => Ok(false),
            Err(next) => Err(next),
        }
    }

    /// Backups are forgotten first, and then collected, both for one time.
    fn collect(
        &self,
        told: &mut Told,
        lane: &str,
        schedules: &[&ScheduleOf],
        done: &Done,
        cron: Option<&Cron>,
    ) -> Planned<Due> {
        let due = self.regular(done, cron);
        let keeps = self.facts.spec.keep.is_some()
            || schedules.iter().any(|schedule| schedule.spec.keep.is_some());
        told.keeps = keeps;
        if lane == FORGET {
            return Ok(if keeps { due } else { Due { now: None, ..due } });
        }
        if due.now.is_none() {
            return Ok(due);
        }
        let before = self.record.lane(FORGET);
        let comes = keeps && self.regular(&before, cron).now.is_some();
        let is_first = before.running.is_none() && (!comes || !self.may_forget()?);
        Ok(if is_first { due } else { Due { now: None, ..due } })
    }

    /// The lanes of copies: those that are wanted, and those that were.
    fn copies<'s>(
        &self,
        told: &mut Told,
        schedules: &[&'s ScheduleOf],
    ) -> Planned<Vec<(String, Option<Copies<'s>>)>> {
        let all = rules::copies(self.seen, self.place, schedules, self.facts.image)?;
        let mut lanes: BTreeMap<String, Option<Copies<'s>>> = BTreeMap::new();
        for (name, copies) in all {
            if let Some(why) = &copies.refused {
                told.refused.push(why.clone());
            }
            if copies.target.is_some() {
                told.copies.insert(format!("{COPY}{name}"));
                lanes.insert(format!("{COPY}{name}"), Some(copies));
            }
        }
        for (name, done) in &self.record.lanes {
            if name.starts_with(COPY) && done.running.is_some() {
                lanes.entry(name.clone()).or_default();
            }
        }
        Ok(lanes.into_iter().collect())
    }

    fn copy(&self, lane: &str, copies: Option<&Copies<'_>>) -> Planned<Lane> {
        let Some(copies) = copies else { return self.no_copy(lane) };
        let Some(target) = &copies.target else { return Ok(Lane::Idle(None)) };
        let crons: Vec<Cron> = copies
            .schedules
            .iter()
            .filter(|schedule| !schedule.spec.suspend)
            .filter_map(|at| {
                let calendar = self.facts.calendar;
                calendar.read(&at.spec.cron, at.spec.time_zone.as_deref()).ok()
            })
            .collect();
        let minute = u32::from(blake3::hash(self.facts.meta.uid.as_bytes()).as_bytes()[0]) % 60;
        let due = |done: &Done| Ok(lanes::copy(done, &crons, minute, self.facts.now));
        let arguments = || {
            let key = Key::new(Kind::Repository, &target.namespace, &target.name);
            let found = self.seen.find::<Stands>(&key)?;
            let retain = found.and_then(|found| found.body.spec.immutable_for);
            rules::copy(self.seen, self.place, (target, retain.as_deref()), &copies.schedules)
        };
        self.lane(lane, due, arguments, Some(target))
    }

    /// Nobody wants these copies any more: their Job goes.
    fn no_copy(&self, lane: &str) -> Planned<Lane> {
        let Some(due) = self.record.lane(lane).running else { return Ok(Lane::Idle(None)) };
        remove_alone(&anchor(self.facts.meta, lane, due), &self.place.namespace, self.seen)?;
        self.ended(
            lane,
            failed(
                Failure::new(exit::CANCELLED, "no schedule asks for these copies any more"),
                due,
                self.facts.now,
                self.facts.generation,
            ),
        )
    }

    /// One lane: a run that is due is written down, its Job is run, its end is written down, and the
    /// Job is removed.
    fn lane(
        &self,
        lane: &str,
        due: impl FnOnce(&Done) -> Planned<Due>,
        arguments: impl Fn() -> Planned<Option<Words>>,
        target: Option<&Repository>,
    ) -> Planned<Lane> {
        let done = self.record.lane(lane);
        let Some(running) = done.running else {
            if let Some(last) = &done.last {
                let anchor = anchor(self.facts.meta, lane, last.due);
                match self.seen.settle(remove_alone(&anchor, &self.place.namespace, self.seen)) {
                    // The cluster removes it later.
                    Err(Stop::Failure(why)) => tracing::debug!("{why}"),
                    done => done?,
                }
            }
            let due = due(&done)?;
            let Some(time) = due.now else { return Ok(Lane::Idle(due.next)) };
            if arguments()?.is_none() {
                return Ok(Lane::Idle(due.next));
            }
            let mut record = self.record.clone();
            record.begin(lane, time);
            return self.write(&record);
        };
        let ends = |why: Failure| {
            let Facts { now, generation, .. } = *self.facts;
            self.ended(lane, failed(why, running, now, generation))
        };
        match self.job(lane, running, &arguments, target) {
            Ok((finished, _)) if lane == SYNC => match self.facts.listed {
                Some(listed) if listed.due == running => self.ended(lane, listed.clone()),
                _ => Ok(Lane::List(running, finished)),
            },
            Ok((Finished { summary, .. }, message)) => {
                let Facts { now: at, generation, .. } = *self.facts;
                let (due, exit_code, hint) = (running, 0, None);
                let ended = Ended { due, at, exit_code, message, hint, summary, generation };
                self.ended(lane, ended)
            }
            Err(Stop::Failure(_)) if !self.seen.is_fresh() => Err(Stop::Next(Next::Refresh)),
            Err(Stop::Failure(why)) => ends(why),
            Err(next) => Err(next),
        }
    }

    /// How the Job ended well, and what it left out.
    fn job(
        &self,
        lane: &str,
        due: DateTime<Utc>,
        arguments: &impl Fn() -> Planned<Option<Words>>,
        target: Option<&Repository>,
    ) -> Planned<(Finished, String)> {
        let first = anchor(self.facts.meta, lane, due).job(&self.place.namespace, 1);
        if self.seen.find::<Value>(&first)?.is_none() {
            // Another controller may have ended the run and removed its Job since the record was
            // read: whoever sees no Job looks at the record after that.
            self.seen.after(&Query::One(self.found.key.clone()), &Query::One(first))?;
        }
        let Some(Words { arguments, left_out }) = arguments()? else {
            return Err(Failure::new(exit::RETRYABLE, "there is nothing to do any more").into());
        };
        let of = (self.facts.spec, self.place);
        let run = jobs::run(self.facts.meta, (lane, due), of, (arguments, target), self.seen)?;
        Ok((run, left_out.join("; ")))
    }

    fn ended(&self, lane: &str, ended: Ended) -> Planned<Lane> {
        let mut record = self.record.clone();
        record.end(lane, ended);
        self.write(&record)
    }

    fn write(&self, record: &Record) -> Planned<Lane> {
        let change = record.change(&self.found.key, &self.found.meta, self.facts.seal);
        self.seen.settle(Err(change.into()))
    }
}
