//! Lines about all that is no volume: repositories, drills, schedules, restores.

use super::{Level, Line, Problem, RepositoryRow, ScheduleRow, hint};
use crate::kinds::Phase;
use crate::page::known::{Known, Place, RepositoryFacts};
use crate::page::rhythm::Rhythms;
use crate::page::words;
use crate::schedule::Owed;
use chrono::{DateTime, TimeDelta, Utc};

/// A new Repository may take so long until it is ready.
const FIRST: TimeDelta = TimeDelta::minutes(10);

/// All of them, the worst first.
pub(super) fn all<'a>(
    known: &'a Known,
    schedules: &[ScheduleRow<'a>],
    repositories: &[RepositoryRow<'a>],
    rhythms: &mut Rhythms,
    is_shown: &dyn Fn(&str) -> bool,
) -> Vec<Problem<'a>> {
    let mut found = Vec::new();
    for row in repositories {
        let lines = row.lines.iter().filter(|line| line.level <= Level::Warn).cloned();
        found.extend(lines.map(|line| Problem { kind: "Repository", place: row.place, line }));
    }
    for row in schedules {
        let place = row.place;
        found.extend(of_schedule(row, rhythms).into_iter().map(|line| Problem {
            kind: "BackupSchedule",
            place,
            line,
        }));
    }
    for (place, it) in known.restores.iter().filter(|(place, _)| is_shown(&place.0)) {
        if it.phase != Phase::Failed || it.drill_of.is_some() {
            continue;
        }
        let failed = it.consumers.iter().filter(|(_, phase, _)| *phase == Phase::Failed);
        let claims = failed.map(|(name, _, message)| format!("{name}: {message}"));
        let text = claims.chain((!it.message.is_empty()).then(|| it.message.clone()));
        let text = text.collect::<Vec<_>>().join(" ");
        let hint = hint("volumerestore", place);
        let line = Line { level: Level::Bad, word: "Restore failed", text, hint };
        found.push(Problem { kind: "VolumeRestore", place, line });
    }
    for ((kind, place), why) in known.unreadable.iter().filter(|((_, place), _)| is_shown(&place.0))
    {
        let text = format!("It counts as absent: {why}");
        let hint = hint(&kind.to_lowercase(), place);
        let line = Line { level: Level::Warn, word: "Cannot be read", text, hint };
        found.push(Problem { kind, place, line });
    }
    found.sort_by_key(|it| (it.line.level, it.kind, it.place));
    found
}

fn of_schedule(row: &ScheduleRow<'_>, rhythms: &mut Rhythms) -> Vec<Line> {
    let mut lines = Vec::new();
    lines.extend(row.drill.iter().filter(|line| line.level <= Level::Warn).cloned());
    let bad = |word, text: String| Line {
        level: Level::Bad,
        word,
        text,
        hint: hint("backupschedule", row.place),
    };
    let conditions = row.facts.conditions.iter();
    let ready = conditions.filter(|it| it.kind == "Ready" && it.holds == Some(false));
    lines.extend(ready.map(|it| bad("Not ready", it.message.clone())));
    if lines.iter().all(|line| line.word != "Not ready") && !rhythms.is_readable(&row.facts.rhythm)
    {
        let zone = row.facts.rhythm.zone.as_deref().unwrap_or("UTC");
        let text =
            format!("Nothing can be made of the times “{}” in {zone}.", row.facts.rhythm.cron);
        lines.push(bad("Not readable", text));
    }
    lines
}

/// How a Repository is, the worst first.
pub(super) fn of_repository(
    place: &Place,
    facts: &RepositoryFacts,
    check_owed: Option<Owed>,
    gc_owed: Option<Owed>,
    now: DateTime<Utc>,
) -> Vec<Line> {
    let line = |level, word, text: String| Line {
        level,
        word,
        text,
        hint: (level <= Level::Warn).then(|| hint("repository", place)).flatten(),
    };
    let mut lines = Vec::new();
    for (kind, word) in [
        ("Ready", "Not ready"),
        ("Checked", "Check failed"),
        ("Collected", "Collection failed"),
        ("Synced", "Sync failed"),
        ("Copied", "Copy failed"),
    ] {
        match facts.condition(kind) {
            Some(it) if it.holds == Some(false) => {
                let level = if kind == "Synced" { Level::Warn } else { Level::Bad };
                let text = if it.message.is_empty() { &it.reason } else { &it.message };
                let since = it.since.map(|at| format!(" ({})", words::when(at, now)));
                lines.push(line(level, word, format!("{text}{}", since.unwrap_or_default())));
            }
            Some(it) if kind == "Ready" && it.holds == Some(true) => {
                lines.push(line(Level::Good, "Ready", String::new()));
            }
            _ if kind == "Ready" => {
                let is_new = facts.created.is_some_and(|at| now - at < FIRST);
                let level = if is_new { Level::Busy } else { Level::Warn };
                lines.push(line(level, "Not ready yet", "Nothing is known of it yet.".into()));
            }
            _ => {}
        }
    }
    for (owed, word, what, last) in [
        (check_owed, "Check late", "checked", facts.last_check),
        (gc_owed, "Collection late", "collected", facts.last_gc),
    ] {
        let Some(owed) = owed.filter(|owed| owed.is_late) else { continue };
        let last = last.map_or_else(|| "never".into(), |at| words::when(at, now));
        let due = words::when(owed.since, now);
        let text = format!("It was due {due}, and last {what} {last}.");
        lines.push(line(Level::Warn, word, text));
    }
    lines.sort_by_key(|line| line.level);
    lines
}
