//! All that is no list of volumes: what needs a hand, what is under way, schedules, repositories.

use super::html::Html;
use super::known::{ConditionFacts, Place};
use super::model::{Level, Model, RepositoryRow, ScheduleRow};
use super::volumes::{MESSAGE_MAX, NAME_MAX, chip, class, time};
use super::words;
use crate::kinds::Phase;
use crate::schedule::Owed;
use chrono::{DateTime, Utc};

/// Rows of each section: the worst, or the oldest.
const ROWS_MAX: usize = 50;
/// Restores that ended well.
const RESTORED_MAX: usize = 10;

/// Says how many rows are left away.
fn left(html: &mut Html, all: usize, max: usize) {
    if let more @ 1.. = all.saturating_sub(max) {
        html.put("<p class=pager><span class=dim>and ").text(more);
        html.put(" more; choose a namespace to see its own.</span></p>");
    }
}

fn named(html: &mut Html, place: &Place) {
    html.cut(&place.1, NAME_MAX).put(" <span class=dim>").cut(&place.0, NAME_MAX).put("</span>");
}

pub(super) fn problems(html: &mut Html, model: &Model<'_>) {
    if model.problems.is_empty() {
        return;
    }
    html.put("<section aria-labelledby=attention><h2 id=attention>Needs a hand <small>");
    html.put("besides the volumes below</small></h2><ul class=list>");
    for problem in model.problems.iter().take(ROWS_MAX) {
        let line = &problem.line;
        html.put("<li class=\"prob ").text(class(line.level)).put("\"><span>");
        chip(html, line);
        html.put("</span><span><b>").cut(&problem.place.1, NAME_MAX).put("</b> <span class=dim>");
        html.cut(problem.kind, NAME_MAX).put(" in ").cut(&problem.place.0, NAME_MAX);
        html.put("</span></span>");
        if !line.text.is_empty() {
            html.put("<p>").cut(&line.text, MESSAGE_MAX).put("</p>");
        }
        if let Some(hint) = &line.hint {
            html.put("<p class=dim>Look closer: <code>").text(hint).put("</code></p>");
        }
        html.put("</li>");
    }
    html.put("</ul>");
    left(html, model.problems.len(), ROWS_MAX);
    html.put("</section>");
}

pub(super) fn underway(html: &mut Html, model: &Model<'_>) {
    html.put("<section aria-labelledby=underway><h2 id=underway>Under way <small>");
    let running = model.underway.iter().filter(|it| it.phase == Phase::Running).count();
    html.text(words::count(running, "operation running", "operations running")).put(", ");
    html.text(model.underway.len() - running).put(" waiting</small></h2>");
    if model.underway.is_empty() {
        html.put("<p class=none>No backup, restore or drill is under way.</p></section>");
        return;
    }
    html.put("<table class=wide><thead><tr><th scope=col>What<th scope=col>About<th scope=col>");
    html.put("State<th scope=col>Since<th scope=col>Message</tr></thead><tbody>");
    for row in model.underway.iter().take(ROWS_MAX) {
        html.put("<tr><th scope=row class=s data-l=What>").put(row.what).put("<td data-l=About>");
        html.cut(&row.about, NAME_MAX).put(" <span class=dim>").cut(&row.place.0, NAME_MAX);
        html.put("/").cut(&row.place.1, NAME_MAX).put("</span><td class=s data-l=State>");
        html.put(if row.phase == Phase::Running { "runs" } else { "waits" });
        if row.attempts > 1 {
            html.put(", attempt ").text(row.attempts);
        }
        html.put("<td class=s data-l=Since>");
        match row.since {
            Some(at) => time(html, at, &words::when(at, model.now)),
            None => drop(html.put("unknown")),
        }
        html.put("<td class=\"all m\" data-l=Message>").cut(row.message, MESSAGE_MAX).put("</tr>");
    }
    html.put("</tbody></table>");
    left(html, model.underway.len(), ROWS_MAX);
    html.put("</section>");
}

pub(super) fn schedules(html: &mut Html, model: &Model<'_>) {
    if model.schedules.is_empty() {
        return;
    }
    html.put("<section aria-labelledby=schedules><h2 id=schedules>Schedules and drills <small>");
    html.text(model.schedules.len()).put(", worst first</small></h2>");
    html.put(
        "<table class=wide><thead><tr><th scope=col>Schedule<th scope=col>Times<th scope=col>",
    );
    html.put("Next<th scope=col>Volumes<th scope=col class=n>Missed<th scope=col>Last drill");
    html.put("</tr></thead><tbody>");
    for row in model.schedules.iter().take(ROWS_MAX) {
        schedule(html, row, model.now);
    }
    html.put("</tbody></table>");
    left(html, model.schedules.len(), ROWS_MAX);
    html.put("</section>");
}

fn schedule(html: &mut Html, row: &ScheduleRow<'_>, now: DateTime<Utc>) {
    html.put("<tr><th scope=row class=\"all m\" data-l=Schedule>");
    named(html, row.place);
    html.put("<td class=m data-l=Times>").cut(&row.facts.rhythm.cron, 100).put("<span class=dim> ");
    html.cut(row.facts.rhythm.zone.as_deref().unwrap_or("UTC"), 64)
        .put("</span><td class=s data-l=Next>");
    match row.next {
        _ if row.facts.suspended => drop(html.put("suspended")),
        Some(at) => time(html, at, &words::when(at, now)),
        None => drop(html.put("<span class=Bad><b>never</b></span>")),
    }
    html.put("<td data-l=Volumes>");
    match row.facts.claims {
        Some(claims) => html.text(claims),
        None => html.text(row.volumes),
    };
    if row.late > 0 {
        html.put(", <span class=Bad><b>").text(row.late).put(" late</b></span>");
    }
    if row.failing > 0 {
        html.put(", <span class=Bad><b>").text(row.failing).put(" failing</b></span>");
    }
    html.put("<td class=n data-l=Missed>")
        .text(row.facts.missed)
        .put("<td class=\"all m\" data-l=\"Last drill\">");
    match &row.drill {
        None => drop(html.put("<span class=dim>none planned</span>")),
        Some(line) => {
            chip(html, line);
            html.put(" <span class=dim>").cut(&line.text, 200);
            let backup = row.facts.drill.as_ref().and_then(|drill| drill.backup.as_deref());
            if let Some(backup) = backup.filter(|it| line.level != Level::Busy && !it.is_empty()) {
                html.put(" of ").cut(backup, NAME_MAX);
            }
            html.put("</span>");
        }
    }
    html.put("</tr>");
}

pub(super) fn repositories(html: &mut Html, model: &Model<'_>) {
    html.put("<section aria-labelledby=repositories><h2 id=repositories>Repositories <small>");
    html.text(model.repositories.len()).put("</small></h2>");
    if model.repositories.is_empty() {
        html.put(
            "<div class=none><p>There is no Repository.</p><p>A Repository says where backups ",
        );
        html.put("go: <code>kubectl mover repository add --help</code>.</p></div></section>");
        return;
    }
    html.put("<table class=wide><thead><tr><th scope=col>Repository<th scope=col>State");
    html.put("<th scope=col>Last check<th scope=col>Last collection<th scope=col>Last list");
    html.put("<th scope=col class=n>Backups<th scope=col class=n>Stored</tr></thead><tbody>");
    for row in model.repositories.iter().take(ROWS_MAX) {
        repository(html, row, model.now);
    }
    html.put("</tbody></table>");
    left(html, model.repositories.len(), ROWS_MAX);
    html.put("</section>");
}

fn repository(html: &mut Html, row: &RepositoryRow<'_>, now: DateTime<Utc>) {
    let facts = row.facts;
    html.put("<tr><th scope=row class=\"all m\" data-l=Repository>");
    named(html, row.place);
    html.put("<br><span class=dim>").cut(&facts.url, 200).put("</span><td class=all data-l=State>");
    for (number, line) in row.lines.iter().enumerate() {
        html.put(if number > 0 { " " } else { "" });
        chip(html, line);
    }
    html.put("<td data-l=\"Last check\">");
    done(html, facts.last_check, facts.condition("Checked"), row.check_owed, now);
    html.put("<td data-l=\"Last collection\">");
    done(html, facts.last_gc, facts.condition("Collected"), row.gc_owed, now);
    html.put("<td data-l=\"Last list\">");
    done(html, facts.last_sync, facts.condition("Synced"), None, now);
    html.put("<td class=n data-l=Backups>");
    match facts.backups {
        Some(backups) => html.text(backups),
        None => html.put("—"),
    };
    html.put("<td class=n data-l=Stored>");
    match facts.stored_bytes {
        Some(bytes) => html.text(words::size(bytes)),
        None => html.put("—"),
    };
    html.put("</tr>");
}

/// When something was done last, whether it went well, and when it is due.
fn done(
    html: &mut Html,
    last: Option<DateTime<Utc>>,
    condition: Option<&ConditionFacts>,
    owed: Option<Owed>,
    now: DateTime<Utc>,
) {
    match last {
        Some(at) => time(html, at, &words::when(at, now)),
        None => drop(html.put("never")),
    }
    if condition.and_then(|it| it.holds) == Some(false) {
        html.put(" <span class=Bad><b>failed</b></span>");
    }
    if let Some(owed) = owed {
        let word = if owed.since > now { "due " } else { "was due " };
        html.put(" <span class=dim>").put(word).text(words::when(owed.since, now)).put("</span>");
    }
}

pub(super) fn restored(html: &mut Html, model: &Model<'_>) {
    if model.restored.is_empty() {
        return;
    }
    html.put("<section aria-labelledby=restores><h2 id=restores>Restores that ended well <small>");
    html.put("newest first</small></h2><table class=wide><thead><tr><th scope=col>Restore");
    html.put("<th scope=col>Of<th scope=col>To<th scope=col>Proof</tr></thead><tbody>");
    for (place, it) in model.restored.iter().take(RESTORED_MAX) {
        html.put("<tr><th scope=row data-l=Restore>");
        named(html, place);
        html.put("<td data-l=Of>").cut(&it.source, NAME_MAX).put("<td data-l=To>");
        if it.consumers.is_empty() {
            html.cut(&it.target, NAME_MAX);
        }
        for (number, (claim, ..)) in it.consumers.iter().take(5).enumerate() {
            html.put(if number > 0 { ", " } else { "" }).cut(claim, NAME_MAX);
        }
        html.put("<td data-l=Proof>");
        match it.proof {
            Some((at, bytes)) => {
                html.text(words::size(bytes)).put(" read back ");
                if let Some(at) = at {
                    time(html, at, &words::when(at, model.now));
                }
            }
            None => drop(html.put("<span class=Bad><b>none</b></span>")),
        }
        html.put("</tr>");
    }
    html.put("</tbody></table>");
    if let more @ 1.. = model.restored.len().saturating_sub(RESTORED_MAX) {
        html.put("<p class=pager><span class=dim>and ").text(more).put(" older ones</span></p>");
    }
    html.put("</section>");
}
