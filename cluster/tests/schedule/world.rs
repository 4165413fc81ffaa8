//! An API server that keeps a schedule's objects, and controllers that look at it: late, twice,
//! with clocks that are wrong, and with crashes between any two requests.

use super::Draw;
use chrono::{DateTime, Duration, Utc};
use mover_cluster::kinds::{BackupScheduleSpec, BackupSource, LabelSelector};
use mover_cluster::schedule::{
    ClaimOf, DrillPlan, Mark, NewRun, Plan, Run, Schedule, Since, State, surplus,
};
use std::collections::{BTreeMap, BTreeSet};

/// One creation that the server took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) run: NewRun,
    /// By the server's clock, which is right.
    pub(crate) when: DateTime<Utc>,
}

/// The server, with all that it has.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) name: String,
    pub(crate) spec: BackupScheduleSpec,
    pub(crate) since: Since,
    pub(crate) claims: Vec<ClaimOf>,
    pub(crate) runs: BTreeMap<String, Run>,
    pub(crate) mark: Option<Mark>,
    /// Changes with each write of the mark or the spec.
    pub(crate) version: u64,
    pub(crate) made: Vec<Made>,
    /// When runs under way end, and whether well.
    pub(crate) ends: BTreeMap<String, (DateTime<Utc>, bool)>,
    /// How long a run takes.
    pub(crate) takes: Duration,
}

/// Spec of a schedule of all claims.
pub(crate) fn spec(cron: &str, zone: &str) -> BackupScheduleSpec {
    let mut spec = BackupScheduleSpec {
        cron: cron.into(),
        time_zone: Some(zone.into()),
        ..BackupScheduleSpec::default()
    };
    spec.template.spec.source =
        BackupSource { selector: Some(LabelSelector::default()), ..BackupSource::default() };
    spec
}

pub(crate) fn claim(name: &str, created: DateTime<Utc>) -> ClaimOf {
    ClaimOf { name: name.into(), uid: format!("uid-of-{name}"), created }
}

impl World {
    pub(crate) fn new(spec: BackupScheduleSpec, claims: usize, created: DateTime<Utc>) -> World {
        World {
            name: "nightly".into(),
            spec,
            since: Since { created, changed: None },
            claims: (0..claims).map(|at| claim(&format!("data-{at}"), created)).collect(),
            runs: BTreeMap::new(),
            mark: None,
            version: 0,
            made: Vec::new(),
            ends: BTreeMap::new(),
            takes: Duration::minutes(2),
        }
    }

    /// Lets time pass for what runs.
    pub(crate) fn pass(&mut self, now: DateTime<Utc>) {
        let ended: Vec<String> =
            self.ends.iter().filter(|(_, (end, _))| *end <= now).map(|at| at.0.clone()).collect();
        for name in ended {
            let (_, well) = self.ends.remove(&name).expect("it is there");
            if let Some(run) = self.runs.get_mut(&name) {
                let good = State::Good { cut: run.created };
                run.state = if well { good } else { State::Failed };
            }
        }
    }

    /// Whether the server took it.
    fn create(&mut self, run: &NewRun, now: DateTime<Utc>) -> bool {
        if self.runs.contains_key(&run.name) {
            return false;
        }
        self.made.push(Made { run: run.clone(), when: now });
        self.ends.insert(run.name.clone(), (now + self.takes, !self.made.len().is_multiple_of(5)));
        let object = Run {
            name: run.name.clone(),
            claim: run.claim.clone(),
            scheduled: Some(run.due.to_rfc3339()),
            created: now,
            state: State::UnderWay,
        };
        self.runs.insert(run.name.clone(), object);
        true
    }

    pub(crate) fn change(
        &mut self,
        now: DateTime<Utc>,
        with: impl FnOnce(&mut BackupScheduleSpec),
    ) {
        with(&mut self.spec);
        self.since.changed = Some(now);
        self.version += 1;
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.runs.remove(name);
        self.ends.remove(name);
    }
}

/// What a controller knows of the server.
#[derive(Debug, Clone)]
struct View {
    spec: BackupScheduleSpec,
    since: Since,
    claims: Vec<ClaimOf>,
    runs: Vec<Run>,
    mark: Option<Mark>,
    version: u64,
}

/// A controller.
#[derive(Debug, Clone, Default)]
pub(crate) struct Controller {
    /// How far its clock is ahead.
    pub(crate) ahead: Duration,
    view: Option<View>,
    /// Runs that it has seen or made, which others may have deleted since.
    known: BTreeSet<NewRun>,
}

impl Controller {
    /// Looks at the server.
    pub(crate) fn refresh(&mut self, world: &World) {
        let runs: Vec<Run> = world.runs.values().cloned().collect();
        self.view = Some(View {
            spec: world.spec.clone(),
            since: world.since,
            claims: world.claims.clone(),
            runs,
            mark: world.mark.clone(),
            version: world.version,
        });
    }

    /// A crash: it forgets all.
    pub(crate) fn crash(&mut self) {
        *self = Controller { ahead: self.ahead, ..Controller::default() };
    }

    /// Plans by its view, and asks the server for at most `requests` things.
    pub(crate) fn act(&mut self, world: &mut World, now: DateTime<Utc>, mut requests: u64) -> Plan {
        if self.view.is_none() {
            self.refresh(world);
        }
        let view = self.view.clone().expect("it looked");
        let schedule = Schedule {
            name: &world.name.clone(),
            uid: "uid-of-schedule",
            since: view.since,
            spec: &view.spec,
            mark: view.mark.as_ref(),
        };
        for run in &view.runs {
            if let Some(due) = schedule.time(run) {
                let (name, claim) = (run.name.clone(), run.claim.clone());
                self.known.insert(NewRun { name, claim, due });
            }
        }
        let clock = now + self.ahead;
        let plan = schedule.plan(&view.claims, &view.runs, &self.known, clock).expect("a plan");
        let drills = schedule.plan_drills(&[], &[], &BTreeSet::new(), clock).expect("a plan");
        for run in &plan.create {
            if requests == 0 {
                self.crash();
                return plan;
            }
            requests -= 1;
            world.create(run, now);
            self.known.insert(run.clone());
        }
        for run in surplus(&view.runs, view.spec.history, &BTreeSet::new()) {
            world.delete(&run.name);
        }
        self.write_mark(world, &schedule, &plan, &drills, requests);
        plan
    }

    fn write_mark(
        &mut self,
        world: &mut World,
        schedule: &Schedule<'_>,
        plan: &Plan,
        drills: &DrillPlan,
        requests: u64,
    ) {
        let Some(mark) = schedule.mark(plan, drills) else { return };
        if requests == 0 {
            self.crash();
            return;
        }
        let known = self.view.as_mut().expect("it looked");
        if known.version == world.version {
            world.version += 1;
            world.mark = Some(mark.clone());
            known.version = world.version;
            // The mark tells of these from now on.
            self.known.retain(|run| run.due > mark.backups.until);
            known.mark = Some(mark);
        } else {
            // Refused: the object is read again.
            self.view = None;
        }
    }
}

/// Who made what: each name once.
pub(crate) fn doubles(world: &World) -> Vec<&Made> {
    let mut names = BTreeSet::new();
    world.made.iter().filter(|made| !names.insert(&made.run.name)).collect()
}

/// An interval that is drawn.
pub(crate) fn seconds(draw: &mut Draw, end: u64) -> Duration {
    Duration::seconds(i64::try_from(draw.below(end)).expect("small"))
}
