//! What is shown, worst first. A pure function of what is known, the time, and what was asked for.

mod problems;
mod volumes;

pub(super) use volumes::DEGRADED;

use super::known::{Claim, DrillFacts, DrillResult, Known, Place, RepositoryFacts, ScheduleFacts};
use super::rhythm::Rhythms;
use super::view::View;
use super::{BackupFacts, RestoreFacts, words};
use crate::kinds::Phase;
use crate::schedule::Owed;
use chrono::{DateTime, TimeDelta, Utc};
use std::collections::{BTreeMap, BTreeSet};

/// Namespace of Repositories that all namespaces may use.
const SHARED: &str = "mover-system";
/// A drill, a check or a collection may be so much later than due.
const CARE_LEEWAY: TimeDelta = TimeDelta::hours(24);

/// How good something is; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Bad,
    Warn,
    Busy,
    Rest,
    Good,
}

/// One line about something: how bad, in a word, in a sentence, and what to type next.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) level: Level,
    pub(crate) word: &'static str,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

/// A line that is about an object.
#[derive(Debug, Clone)]
pub(crate) struct Problem<'a> {
    /// The kind of the object, and where it is.
    pub(crate) kind: &'a str,
    pub(crate) place: &'a Place,
    pub(crate) line: Line,
}

/// A volume with its backups.
#[derive(Debug)]
pub(crate) struct Volume<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) claim: &'a Claim,
    /// The worst first. There is at least one.
    pub(crate) lines: Vec<Line>,
    /// The newest first.
    pub(crate) backups: Vec<(&'a Place, &'a BackupFacts)>,
    /// With what each is owed of this volume.
    pub(crate) schedules: Vec<(&'a Place, &'a ScheduleFacts, Option<Owed>)>,
    /// The moment that the newest good backup holds.
    pub(crate) newest_good: Option<DateTime<Utc>>,
    /// Whether the newest backup that ended did not end well.
    pub(crate) is_failing: bool,
    /// What the most urgent of its schedules is owed.
    pub(crate) owed: Option<Owed>,
    pub(crate) drill: Option<Line>,
}

/// A schedule, with how its claims are.
#[derive(Debug)]
pub(crate) struct ScheduleRow<'a> {
    pub(crate) place: &'a Place,
    pub(crate) facts: &'a ScheduleFacts,
    pub(crate) level: Level,
    pub(crate) next: Option<DateTime<Utc>>,
    /// What its most urgent claim is owed.
    pub(crate) owed: Option<Owed>,
    /// The oldest of its claims' newest good backups.
    pub(crate) newest_good: Option<DateTime<Utc>>,
    pub(crate) volumes: usize,
    pub(crate) late: usize,
    pub(crate) failing: usize,
    pub(crate) drill: Option<Line>,
    pub(crate) drill_owed: Option<Owed>,
}

/// A Repository.
#[derive(Debug)]
pub(crate) struct RepositoryRow<'a> {
    pub(crate) place: &'a Place,
    pub(crate) facts: &'a RepositoryFacts,
    /// The worst first.
    pub(crate) lines: Vec<Line>,
    pub(crate) check_owed: Option<Owed>,
    pub(crate) gc_owed: Option<Owed>,
}

impl RepositoryRow<'_> {
    pub(crate) fn level(&self) -> Level {
        self.lines.first().map_or(Level::Good, |line| line.level)
    }
}

/// An operation that has not ended.
#[derive(Debug)]
pub(crate) struct Underway<'a> {
    pub(crate) what: &'static str,
    pub(crate) place: &'a Place,
    pub(crate) about: String,
    pub(crate) phase: Phase,
    pub(crate) since: Option<DateTime<Utc>>,
    pub(crate) message: &'a str,
    pub(crate) attempts: u32,
}

impl Underway<'_> {
    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }
}

/// Everything that is shown.
#[derive(Debug)]
pub(crate) struct Model<'a> {
    pub(crate) now: DateTime<Utc>,
    /// How old the facts may be, and whether they are too old.
    pub(crate) age: Option<TimeDelta>,
    pub(crate) is_stale: bool,
    pub(crate) view: View,
    /// All namespaces with something to show, whatever the view.
    pub(crate) namespaces: BTreeSet<&'a str>,
    pub(crate) problems: Vec<Problem<'a>>,
    pub(crate) volumes: Vec<Volume<'a>>,
    pub(crate) underway: Vec<Underway<'a>>,
    pub(crate) schedules: Vec<ScheduleRow<'a>>,
    pub(crate) repositories: Vec<RepositoryRow<'a>>,
    /// Restores that ended well, the newest proof first.
    pub(crate) restored: Vec<(&'a Place, &'a RestoreFacts)>,
}

impl<'a> Model<'a> {
    /// What a view shows at a moment.
    pub(crate) fn of(known: &'a Known, view: &View, now: DateTime<Utc>) -> Self {
        let mut rhythms = Rhythms::new(now);
        let is_shown = |namespace: &str| view.namespace.as_ref().is_none_or(|it| it == namespace);
        let drills = drills(known, &mut rhythms, now);
        let mut volumes = volumes::all(known, &drills, &mut rhythms, now, &is_shown);
        let schedules = schedules(known, &volumes, &drills, &mut rhythms, &is_shown);
        let repositories = repositories(known, &volumes, &mut rhythms, now, &is_shown);
        let problems = problems::all(known, &schedules, &repositories, &mut rhythms, &is_shown);
        if let Some(find) = &view.find {
            let find = find.to_lowercase();
            volumes.retain(|volume| {
                let name = format!("{}/{}", volume.namespace, volume.claim.shown());
                name.to_lowercase().contains(&find)
            });
        }
        Self {
            now,
            age: known.age(now),
            is_stale: known.is_stale(now),
            view: view.clone(),
            namespaces: namespaces(known),
            problems,
            volumes,
            underway: underway(known, &is_shown),
            schedules,
            repositories,
            restored: restored(known, &is_shown),
        }
    }
}

/// How a schedule's drills are, and what is owed of them.
type Drills<'a> = BTreeMap<&'a Place, (Line, Option<Owed>)>;

fn drills<'a>(known: &'a Known, rhythms: &mut Rhythms, now: DateTime<Utc>) -> Drills<'a> {
    let mut found = BTreeMap::new();
    for (place, schedule) in &known.schedules {
        let Some(drill) = &schedule.drill else { continue };
        // Of a spec that was just changed nothing is owed yet.
        let last = drill.since.map(|since| drill.time.max(Some(since.min(now))));
        let owed = last
            .flatten()
            .filter(|_| !schedule.suspended)
            .and_then(|last| rhythms.owed(&drill.rhythm, last, CARE_LEEWAY));
        found.insert(place, (drill_line(place, drill, owed, now), owed));
    }
    found
}

fn drill_line(place: &Place, drill: &DrillFacts, owed: Option<Owed>, now: DateTime<Utc>) -> Line {
    let late = owed.filter(|owed| owed.is_late);
    let ago = drill.time.map(|at| words::when(at, now));
    let ago = ago.unwrap_or_else(|| "at an unknown time".into());
    let (level, word, text) = match drill.result {
        DrillResult::Failed => (Level::Bad, "Drill failed", format!("{}: {}", ago, drill.message)),
        DrillResult::Never => {
            let first = owed.map(|owed| match owed.since > now {
                true => format!(" The first one is due {}.", words::when(owed.since, now)),
                false => format!(" The first one was due {}.", words::when(owed.since, now)),
            });
            let text = "No drill has proved yet that these backups restore.";
            (Level::Bad, "Drill never ran", format!("{text}{}", first.unwrap_or_default()))
        }
        DrillResult::Running => (Level::Busy, "Drill under way", drill.message.clone()),
        DrillResult::Passed => match late {
            Some(owed) => {
                let due = words::when(owed.since, now);
                let text = format!("The last one passed {ago}, the next one was due {due}.");
                (Level::Warn, "Drill late", text)
            }
            None => (Level::Good, "Drill passed", ago),
        },
    };
    let hint = (level <= Level::Warn).then(|| hint("backupschedule", place)).flatten();
    Line { level, word, text, hint }
}

/// A command that shows more, where the names are ones that a shell takes as they are.
fn hint(kind: &str, (namespace, name): &Place) -> Option<String> {
    let is_plain = |text: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        !text.is_empty() && !text.starts_with('-') && text.len() <= 253 && text.chars().all(plain)
    };
    (is_plain(namespace) && is_plain(name))
        .then(|| format!("kubectl describe {kind} {name} -n {namespace}"))
}

/// The Repository that is meant from a namespace.
fn resolve(known: &Known, from: &str, (namespace, name): &(Option<String>, String)) -> Place {
    let place = |namespace: &str| (namespace.to_owned(), name.clone());
    match namespace {
        Some(namespace) => place(namespace),
        None if known.repositories.contains_key(&place(from)) => place(from),
        None => place(SHARED),
    }
}

/// Whether a name leads to that Repository. `has_own` says whether the namespace that it is meant
/// from has one of this name.
fn leads_to(
    (namespace, name): &(Option<String>, String),
    from: &str,
    place: &Place,
    has_own: bool,
) -> bool {
    let meant = match namespace {
        Some(namespace) => namespace,
        None if has_own => from,
        None => SHARED,
    };
    *name == place.1 && meant == place.0
}

fn namespaces(known: &Known) -> BTreeSet<&str> {
    let (backups, restores) = (known.backups.keys(), known.restores.keys());
    let all =
        backups.chain(restores).chain(known.schedules.keys()).chain(known.repositories.keys());
    let mut found = BTreeSet::new();
    let mut last = None;
    for namespace in all.map(|place| place.0.as_str()) {
        // They come in order, many of one.
        if last != Some(namespace) {
            found.insert(namespace);
        }
        last = Some(namespace);
    }
    found
}

/// The one that is late, and among such the one that waits longest.
fn most_urgent(all: impl Iterator<Item = Owed>) -> Option<Owed> {
    all.min_by_key(|owed| (!owed.is_late, owed.since))
}

fn schedules<'a>(
    known: &'a Known,
    volumes: &[Volume<'a>],
    drills: &Drills<'a>,
    rhythms: &mut Rhythms,
    is_shown: &dyn Fn(&str) -> bool,
) -> Vec<ScheduleRow<'a>> {
    let mut of: BTreeMap<&Place, Vec<(&Volume<'_>, Option<Owed>)>> = BTreeMap::new();
    for volume in volumes {
        for (place, _, owed) in &volume.schedules {
            of.entry(place).or_default().push((volume, *owed));
        }
    }
    let mut rows = Vec::new();
    for (place, facts) in known.schedules.iter().filter(|(place, _)| is_shown(&place.0)) {
        let mine = of.remove(place).unwrap_or_default();
        let is_late = |owed: &Owed| owed.is_late;
        let (drill, drill_owed) = match drills.get(place) {
            Some((line, owed)) => (Some(line.clone()), *owed),
            None => (None, None),
        };
        let late = mine.iter().filter_map(|(_, owed)| *owed).filter(is_late).count();
        let failing = mine.iter().filter(|(volume, _)| volume.is_failing).count();
        let goods = mine.iter().map(|(volume, _)| volume.newest_good);
        let is_refused =
            facts.conditions.iter().any(|it| it.kind == "Ready" && it.holds == Some(false));
        let is_bad = late + failing > 0 || is_refused || !rhythms.is_readable(&facts.rhythm);
        let level = match is_bad {
            true => Level::Bad,
            false if facts.suspended => Level::Rest,
            false => Level::Good,
        };
        rows.push(ScheduleRow {
            place,
            facts,
            level: drill.as_ref().map_or(level, |line| line.level.min(level)),
            next: (!facts.suspended).then(|| rhythms.next(&facts.rhythm)).flatten(),
            owed: most_urgent(mine.iter().filter_map(|(_, owed)| *owed)),
            newest_good: goods.min().flatten(),
            volumes: mine.len(),
            late,
            failing,
            drill,
            drill_owed,
        });
    }
    rows.sort_by_key(|row| (row.level, row.place));
    rows
}

fn repositories<'a>(
    known: &'a Known,
    volumes: &[Volume<'a>],
    rhythms: &mut Rhythms,
    now: DateTime<Utc>,
    is_shown: &dyn Fn(&str) -> bool,
) -> Vec<RepositoryRow<'a>> {
    let mut used = BTreeSet::new();
    for volume in volumes {
        let backups = volume.backups.iter().map(|(_, it)| &it.repository);
        let schedules = volume.schedules.iter().map(|(_, it, _)| &it.repository);
        let mut last = None;
        for it in backups.chain(schedules) {
            if last != Some(it) {
                used.insert(resolve(known, volume.namespace, it));
            }
            last = Some(it);
        }
    }
    let shown =
        known.repositories.iter().filter(|(place, _)| is_shown(&place.0) || used.contains(place));
    let mut rows = Vec::new();
    for (place, facts) in shown {
        let mut owed = |rhythm: &Option<_>, last: Option<_>| {
            rhythms.owed(rhythm.as_ref()?, last.or(facts.created)?, CARE_LEEWAY)
        };
        let check_owed = owed(&facts.check, facts.last_check);
        let gc_owed = owed(&facts.gc, facts.last_gc);
        let lines = problems::of_repository(place, facts, check_owed, gc_owed, now);
        rows.push(RepositoryRow { place, facts, lines, check_owed, gc_owed });
    }
    rows.sort_by_key(|row| (row.level(), row.place));
    rows
}

fn underway<'a>(known: &'a Known, is_shown: &dyn Fn(&str) -> bool) -> Vec<Underway<'a>> {
    let is_open = |phase: Phase| matches!(phase, Phase::Pending | Phase::Running);
    let mut rows = Vec::new();
    for (place, it) in
        known.backups.iter().filter(|(place, it)| is_shown(&place.0) && is_open(it.phase))
    {
        rows.push(Underway {
            what: "Backup",
            place,
            about: it.claim.shown(),
            phase: it.phase,
            since: it.created.or(it.scheduled),
            message: &it.message,
            attempts: it.attempts,
        });
    }
    for (place, it) in
        known.restores.iter().filter(|(place, it)| is_shown(&place.0) && is_open(it.phase))
    {
        let claims = it.consumers.iter().filter(|(_, phase, _)| is_open(*phase));
        let claims: Vec<_> = claims.map(|(name, ..)| name.as_str()).take(5).collect();
        let to = if it.target.is_empty() { claims.join(", ") } else { it.target.clone() };
        // A restore without a target waits for claims that name it, and may do so for ever.
        if to.is_empty() && it.drill_of.is_none() {
            continue;
        }
        rows.push(Underway {
            what: if it.drill_of.is_some() { "Drill" } else { "Restore" },
            place,
            about: format!("{} → {}", it.source, if to.is_empty() { "a drill" } else { &to }),
            phase: it.phase,
            since: it.created,
            message: &it.message,
            attempts: it.attempts,
        });
    }
    rows.sort_by_key(|row| (row.phase != Phase::Running, row.since, row.place));
    rows
}

fn restored<'a>(
    known: &'a Known,
    is_shown: &dyn Fn(&str) -> bool,
) -> Vec<(&'a Place, &'a RestoreFacts)> {
    let good = |it: &RestoreFacts| it.phase == Phase::Completed && it.drill_of.is_none();
    let shown = known.restores.iter().filter(|(place, it)| is_shown(&place.0) && good(it));
    let mut rows: Vec<_> = shown.collect();
    let proved = |it: &RestoreFacts| it.proof.and_then(|(at, _)| at).or(it.created);
    rows.sort_by_key(|(place, it)| (std::cmp::Reverse(proved(it)), *place));
    rows
}

#[cfg(test)]
mod tests;
