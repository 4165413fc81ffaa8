//! Volumes with their backups: which belongs to which, and how each one is.

use super::{Drills, Level, Line, Volume, hint, leads_to, most_urgent, resolve};
use crate::kinds::Phase;
use crate::page::known::{BackupFacts, Claim, Known, Place, ScheduleFacts};
use crate::page::rhythm::Rhythms;
use crate::page::words;
use chrono::{DateTime, Utc};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
struct Group<'a> {
    backups: Vec<(&'a Place, &'a BackupFacts)>,
    schedules: BTreeMap<&'a Place, &'a ScheduleFacts>,
}

type Groups<'a> = BTreeMap<(&'a str, &'a Claim), Group<'a>>;

/// Sorts before all others.
static FIRST: Claim = Claim::Named(String::new());

/// All volumes of the namespaces that are shown, the worst first.
pub(super) fn all<'a>(
    known: &'a Known,
    drills: &Drills<'a>,
    rhythms: &mut Rhythms,
    now: DateTime<Utc>,
    is_shown: &dyn Fn(&str) -> bool,
) -> Vec<Volume<'a>> {
    let groups = groups(known, is_shown);
    let rows = groups.into_iter().map(|((namespace, claim), group)| {
        volume(known, drills, rhythms, now, namespace, claim, group)
    });
    let mut rows: Vec<Volume<'a>> = rows.collect();
    rows.sort_by_cached_key(|volume| {
        let late = volume.owed.filter(|owed| owed.is_late).map(|owed| owed.since);
        let drill = volume.drill.as_ref().map(|line| line.level);
        let name = (volume.namespace.to_owned(), volume.claim.clone());
        // Longest owed first, and whatever is late before the rest.
        (volume.lines[0].level, late.is_none(), late, drill.unwrap_or(Level::Rest), name)
    });
    rows
}

fn groups<'a>(known: &'a Known, is_shown: &dyn Fn(&str) -> bool) -> Groups<'a> {
    // A volume of a repository that claims of this cluster are backed up to.
    let mut local: BTreeMap<&str, (&str, &Claim)> = BTreeMap::new();
    let is_recorded = |it: &BackupFacts| matches!(it.claim, Claim::Recorded(_));
    let any_is_recorded = known.backups.values().any(is_recorded);
    let mut with_parts: BTreeSet<(&str, &str)> = BTreeSet::new();
    for ((namespace, _), it) in &known.backups {
        if let (true, Claim::Named(_), Some(volume)) = (any_is_recorded, &it.claim, &it.volume) {
            local.insert(volume, (namespace, &it.claim));
        }
        with_parts.extend(it.part_of.iter().map(|parent| (namespace.as_str(), parent.as_str())));
    }
    let mut groups = Groups::new();
    for (place, it) in &known.backups {
        let own = (place.0.as_str(), &it.claim);
        let (namespace, claim) = match &it.claim {
            Claim::Recorded(volume) => local.get(volume.as_str()).copied().unwrap_or(own),
            Claim::Chosen(_) if with_parts.contains(&(&place.0, &place.1)) => continue,
            _ => own,
        };
        if is_shown(namespace) {
            groups.entry((namespace, claim)).or_default().backups.push((place, it));
        }
    }
    for group in groups.values_mut() {
        without_doubles(&mut group.backups);
    }
    for (place, schedule) in known.schedules.iter().filter(|(place, _)| is_shown(&place.0)) {
        join(known, &mut groups, place, schedule);
    }
    groups
}

/// A backup that was made here and is listed by a sync as well is shown once.
fn without_doubles(backups: &mut Vec<(&Place, &BackupFacts)>) {
    let is_recorded = |it: &BackupFacts| matches!(it.claim, Claim::Recorded(_));
    if backups.iter().any(|(_, it)| is_recorded(it)) {
        let made = backups.iter().filter(|(_, it)| !is_recorded(it));
        let made: BTreeSet<_> = made.filter_map(|(_, it)| it.backup_id.clone()).collect();
        backups.retain(|(_, it)| {
            !is_recorded(it) || it.backup_id.as_ref().is_none_or(|id| !made.contains(id))
        });
    }
    backups.sort_by_key(|(place, it)| (Reverse(it.at()), *place));
}

/// A schedule belongs to the claim that it names, or to those that it has made backups of.
fn join<'a>(known: &Known, groups: &mut Groups<'a>, place: &'a Place, schedule: &'a ScheduleFacts) {
    let namespace = place.0.as_str();
    let mut has_some = false;
    if !matches!(schedule.claim, Claim::Named(_)) {
        let first = (namespace, &FIRST);
        let of_namespace = groups.range_mut(first..).take_while(|((it, _), _)| *it == namespace);
        for (_, group) in of_namespace {
            let is_mine =
                |it: &BackupFacts| known.schedule_of(namespace, it) == Some(place.1.as_str());
            if group.backups.iter().any(|(_, it)| is_mine(it)) {
                group.schedules.insert(place, schedule);
                has_some = true;
            }
        }
    }
    if !has_some {
        let key = (namespace, &schedule.claim);
        groups.entry(key).or_default().schedules.insert(place, schedule);
    }
}

/// A good backup that was made in another way than asked for.
pub(in crate::page) const DEGRADED: &str = "Degraded";

fn volume<'a>(
    known: &Known,
    drills: &Drills<'a>,
    rhythms: &mut Rhythms,
    now: DateTime<Utc>,
    namespace: &'a str,
    claim: &'a Claim,
    group: Group<'a>,
) -> Volume<'a> {
    let is_gone = match claim {
        Claim::Named(name) => !known.has_claim(namespace, name),
        Claim::Chosen(_) | Claim::Recorded(_) => false,
    };
    let good = group.backups.iter().filter(|(_, it)| it.is_good());
    let mut newest_good = good.filter_map(|(_, it)| it.at()).max();
    let mut schedules = Vec::new();
    for (place, schedule) in &group.schedules {
        if group.backups.is_empty() {
            newest_good = newest_good.max(schedule.newest_good);
        }
        let repository = resolve(known, &place.0, &schedule.repository);
        let name = &schedule.repository.1;
        let own = resolve(known, namespace, &(None, name.clone())).0 == namespace;
        let counts = group.backups.iter().filter(|(_, it)| {
            it.is_good() && leads_to(&it.repository, namespace, &repository, own)
        });
        // By a clock that is ahead it would be in time for as long.
        let past = |at: &DateTime<Utc>| *at <= now;
        let last =
            counts.filter_map(|(_, it)| it.cut.max(it.scheduled).filter(past).or(it.created)).max();
        let last = last.max(schedule.newest_good.filter(|_| group.backups.is_empty()));
        // Of a spec that was just changed nothing is owed yet.
        let since = schedule.since.filter(|_| !schedule.suspended && !is_gone);
        let last = since.and_then(|since| last.max(Some(since.min(now))));
        let owed = last.and_then(|last| rhythms.owed(&schedule.rhythm, last, schedule.leeway));
        schedules.push((*place, *schedule, owed));
    }
    let newest_end = group.backups.iter().find(|(_, it)| it.has_ended());
    let is_failing = newest_end.is_some_and(|(_, it)| it.phase == Phase::Failed);
    let drill = group.schedules.keys().filter_map(|place| drills.get(*place));
    let drill = drill.map(|(line, _)| line.clone()).min_by_key(|line| line.level);
    let mut volume = Volume {
        namespace,
        claim,
        lines: Vec::new(),
        backups: group.backups,
        owed: most_urgent(schedules.iter().filter_map(|(.., owed)| *owed)),
        schedules,
        newest_good,
        is_failing,
        drill,
    };
    volume.lines = lines(&volume, is_gone, now);
    volume
}

fn lines(volume: &Volume<'_>, is_gone: bool, now: DateTime<Utc>) -> Vec<Line> {
    let line = |level, word, text: String| Line { level, word, text, hint: None };
    let mut lines = Vec::new();
    let newest = volume.newest_good.map(|at| words::when(at, now));
    let running = volume.backups.iter().find(|(_, it)| it.phase == Phase::Running);
    if let Some(owed) = volume.owed.filter(|owed| owed.is_late) {
        let due = words::when(owed.since, now);
        let text = match (&newest, running) {
            (_, Some(_)) => format!("It was due {due}; it is under way now."),
            (None, None) => format!("The first one was due {due}, and there is none."),
            (Some(_), None) => format!("The next one was due {due}, and there is none."),
        };
        let word = if newest.is_none() { "No backup" } else { "Late" };
        lines.push(Line {
            hint: volume.schedules.iter().find_map(|(place, ..)| hint("backupschedule", place)),
            ..line(Level::Bad, word, text)
        });
    }
    let newest_end = volume.backups.iter().find(|(_, it)| it.has_ended());
    if let Some((place, it)) = newest_end.filter(|_| volume.is_failing) {
        let ago = it.completed.or(it.at()).map(|at| words::when(at, now));
        let said = if it.message.is_empty() { "It says no reason." } else { &it.message };
        let text = format!("{}: {said}", ago.unwrap_or_default());
        let bad = line(Level::Bad, "Failed", text);
        lines.push(Line { hint: hint("volumebackup", place), ..bad });
    } else if let Some((_, it)) = newest_end.filter(|(_, it)| !it.warnings.is_empty()) {
        lines.push(line(Level::Warn, DEGRADED, it.warnings.join(" ")));
    }
    if !lines.is_empty() {
        return lines;
    }
    let all_rest = volume.schedules.iter().all(|(_, it, _)| it.suspended);
    let chosen = matches!(volume.claim, Claim::Chosen(_)) && volume.backups.is_empty();
    lines.push(match (volume.claim, newest, volume.owed) {
        (Claim::Recorded(_), ..) => line(Level::Rest, "In repository", String::new()),
        _ if is_gone => line(Level::Rest, "Claim is gone", "Its backups can be restored.".into()),
        _ if volume.schedules.is_empty() => match running {
            Some(_) => line(Level::Busy, "Under way", String::new()),
            None => line(Level::Rest, "No schedule", String::new()),
        },
        _ if all_rest => line(Level::Rest, "Suspended", String::new()),
        (_, None, Some(owed)) => {
            let due = words::when(owed.since, now);
            let what = if chosen { "No claim has been backed up yet; " } else { "" };
            line(Level::Warn, "No backup yet", format!("{what}the first one is due {due}."))
        }
        (_, None, None) => line(Level::Warn, "No backup yet", String::new()),
        (_, Some(_), _) => line(Level::Good, "In time", String::new()),
    });
    lines
}
