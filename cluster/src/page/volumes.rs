//! The list of volumes: one row each, which opens to pictures and a table.

use super::chart::{self, Figure, list_word};
use super::html::Html;
use super::known::{BackupFacts, Claim, Place};
use super::model::{Level, Line, Model, Volume};
use super::words;
use crate::kinds::Phase;
use chrono::{DateTime, Utc};

/// Volumes on one page.
pub(super) const VOLUMES_MAX: usize = 25;
/// The newest backups of a volume that are shown.
const BACKUPS_MAX: usize = 30;
/// Characters of a message.
pub(super) const MESSAGE_MAX: usize = 400;
/// Characters of a name: longer than any that Kubernetes takes, and shorter than a trick.
pub(super) const NAME_MAX: usize = 260;
/// Namespaces that can be chosen from a list.
const NAMESPACES_MAX: usize = 500;

/// The section, with its filters and pages.
pub(super) fn section(html: &mut Html, model: &Model<'_>) {
    let all = model.volumes.len();
    let pages = all.div_ceil(VOLUMES_MAX).max(1);
    let page = model.view.page.clamp(1, pages);
    let first = (page - 1) * VOLUMES_MAX;
    let shown = &model.volumes[first..all.min(first + VOLUMES_MAX)];
    html.put("<section aria-labelledby=volumes><h2 id=volumes>Volumes <small>");
    match all {
        0 => html.put("none"),
        _ if pages == 1 => html.text(all).put(", worst first"),
        _ => html
            .text(first + 1)
            .put(" to ")
            .text(first + shown.len())
            .put(" of ")
            .text(all)
            .put(", worst first"),
    };
    html.put("</small></h2>");
    form(html, model);
    if shown.is_empty() {
        nothing(html, model);
    } else {
        html.put("<div class=cols aria-hidden=true><span>State</span><span>Volume</span>");
        html.put("<span>Newest good</span><span>Schedule</span><span>Last drill</span>");
        html.put("<span>Read by each backup</span></div><ol class=list>");
        for (number, volume) in shown.iter().enumerate() {
            html.put("<li>");
            one(html, number, volume, model.now);
            html.put("</li>");
        }
        html.put("</ol>");
        chart::key(html);
    }
    pager(html, model, page, pages);
    html.put("</section>");
}

fn nothing(html: &mut Html, model: &Model<'_>) {
    html.put("<div class=none>");
    if model.view.namespace.is_some() || model.view.find.is_some() {
        html.put("<p>No volume is like that. <a href=\"?\">Show all</a></p>");
    } else {
        html.put("<p>Nothing is backed up yet.</p><p>A BackupSchedule backs up claims again and ");
        html.put("again: <code>kubectl mover schedule --help</code> says how to make one.</p>");
    }
    html.put("</div>");
}

fn form(html: &mut Html, model: &Model<'_>) {
    if model.namespaces.is_empty() {
        return;
    }
    html.put("<form class=form method=get action=\"#volumes\" role=search>");
    html.put("<label>Namespace <select name=namespace><option value=\"\">all</option>");
    let chosen = model.view.namespace.as_deref();
    let listed = model.namespaces.iter().copied().take(NAMESPACES_MAX);
    let missing = chosen.filter(|it| listed.clone().all(|other| other != *it));
    for namespace in listed.chain(missing) {
        html.put("<option value=\"").text(namespace).put("\"");
        if chosen == Some(namespace) {
            html.put(" selected");
        }
        html.put(">").cut(namespace, NAME_MAX).put("</option>");
    }
    html.put("</select></label><label>Name contains <input name=find maxlength=250 value=\"");
    html.text(model.view.find.as_deref().unwrap_or_default());
    html.put("\" autocomplete=off></label><button>Show</button></form>");
}

fn pager(html: &mut Html, model: &Model<'_>, page: usize, pages: usize) {
    if pages < 2 {
        return;
    }
    html.put("<nav class=pager aria-label=\"Pages of volumes\">");
    let mut link = |to: usize, words: &'static str| {
        html.put("<a href=\"")
            .text(model.view.address(to))
            .put("#volumes\">")
            .put(words)
            .put("</a>");
    };
    if page > 1 {
        link(1, "First");
        link(page - 1, "Previous");
    }
    if page < pages {
        link(page + 1, "Next");
        link(pages, "Last");
    }
    html.put("<span class=dim>Page ").text(page).put(" of ").text(pages).put("</span></nav>");
}

/// A word on a coloured ground.
pub(super) fn chip(html: &mut Html, line: &Line) {
    html.put("<span class=\"chip ")
        .text(class(line.level))
        .put("\">")
        .put(line.word)
        .put("</span>");
}

pub(super) fn class(level: Level) -> &'static str {
    match level {
        Level::Bad => "Bad",
        Level::Warn => "Warn",
        Level::Busy => "Busy",
        Level::Rest => "Rest",
        Level::Good => "Good",
    }
}

/// A moment, with its exact time for programs and on pointing at it.
pub(super) fn time(html: &mut Html, at: DateTime<Utc>, shown: &str) {
    let exact = words::exact(at);
    html.put("<time datetime=").text(&exact).put(" title=\"").text(exact).put("\">");
    html.text(shown).put("</time>");
}

fn one(html: &mut Html, number: usize, volume: &Volume<'_>, now: DateTime<Utc>) {
    let worst = &volume.lines[0];
    let shown: Vec<&BackupFacts> =
        volume.backups.iter().take(BACKUPS_MAX).map(|(_, it)| *it).collect();
    let due = volume.owed.filter(|owed| owed.is_late).map(|owed| owed.since);
    html.put("<details class=\"vol ")
        .text(class(worst.level))
        .put("\"><summary><span class=state>");
    chip(html, worst);
    html.put("</span><h3>").cut(&volume.claim.shown(), NAME_MAX).put("<small>");
    html.cut(volume.namespace, NAME_MAX).put("</small></h3>");
    html.put("<span class=\"cell age s ").text(if due.is_some() { "Bad" } else { "" });
    html.put("\" data-l=\"Newest good\">");
    match volume.newest_good {
        Some(at) => time(html, at, &words::when(at, now)),
        None => drop(html.put("none")),
    }
    html.put("</span><span class=cell data-l=Schedule>");
    schedules(html, volume);
    html.put("</span><span class=cell data-l=\"Last drill\">");
    match &volume.drill {
        Some(line) => {
            chip(html, line);
            if line.level >= Level::Busy {
                html.put("<small>").cut(&line.text, 60).put("</small>");
            }
        }
        None => drop(html.put("<span class=dim>none planned</span>")),
    }
    html.put("</span><span class=pic>");
    if !shown.is_empty() {
        chart::small(html, &shown, due, now);
    }
    html.put("</span>");
    if !worst.text.is_empty() {
        html.put("<span class=say>");
        for (number, line) in volume.lines.iter().enumerate() {
            html.put("<span>");
            if number > 0 {
                html.put(line.word).put(" ");
            }
            html.cut(&line.text, MESSAGE_MAX).put("</span>");
        }
        html.put("</span>");
    }
    html.put("</summary><div class=in>");
    inside(html, number, volume, &shown, due, now);
    html.put("</div></details>");
}

fn schedules(html: &mut Html, volume: &Volume<'_>) {
    if volume.schedules.is_empty() {
        html.put("<span class=dim>none</span>");
    }
    for (place, schedule, _) in volume.schedules.iter().take(2) {
        html.cut(&place.1, 80).put("<small>").cut(&schedule.rhythm.cron, 60);
        if let Some(zone) = &schedule.rhythm.zone {
            html.put(", ").cut(zone, 60);
        }
        html.put("</small>");
    }
    if let more @ 1.. = volume.schedules.len().saturating_sub(2) {
        html.put("<small>and ").text(more).put(" more</small>");
    }
}

fn inside(
    html: &mut Html,
    number: usize,
    volume: &Volume<'_>,
    shown: &[&BackupFacts],
    due: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) {
    html.put("<ul class=lines>");
    let bad = |line: &&Line| line.hint.is_some() || line.level <= Level::Warn;
    for line in volume.lines.iter().chain(volume.drill.as_ref()).filter(bad) {
        html.put("<li><span>");
        chip(html, line);
        html.put(" ").cut(&line.text, MESSAGE_MAX).put("</span>");
        if let Some(hint) = &line.hint {
            html.put("<span class=dim>Look closer: <code>").text(hint).put("</code></span>");
        }
        html.put("</li>");
    }
    html.put("</ul>");
    if shown.is_empty() {
        html.put("<p class=dim>There is no backup to show.</p>");
        return;
    }
    html.put("<div class=pics>");
    chart::large(html, &format!("r{number}"), Figure::Read, shown, due, now);
    chart::large(html, &format!("s{number}"), Figure::Stored, shown, due, now);
    html.put("</div>");
    table(html, volume, shown.len(), now);
}

fn table(html: &mut Html, volume: &Volume<'_>, rows: usize, now: DateTime<Utc>) {
    html.put("<table><caption>");
    match volume.backups.len() - rows {
        0 => {
            html.text(words::count(rows, "backup", "backups")).put(", newest first. Times are UTC.")
        }
        more => html
            .put("The newest ")
            .text(rows)
            .put(" backups. Times are UTC. ")
            .text(more)
            .put(" older ones: <code>kubectl get volumebackups</code>"),
    };
    html.put("</caption><thead><tr><th scope=col>Data of<th scope=col>List<th scope=col class=n>");
    html.put("Read<th scope=col class=n>Stored<th scope=col class=n>Took<th scope=col>Result");
    html.put("</tr></thead><tbody>");
    for (place, backup) in volume.backups.iter().take(rows) {
        row(html, place, backup, now);
    }
    html.put("</tbody></table>");
}

fn row(html: &mut Html, place: &Place, backup: &BackupFacts, now: DateTime<Utc>) {
    html.put("<tr><th scope=row class=s>");
    match backup.at() {
        Some(at) => time(html, at, &words::moment(at, now)),
        None => drop(html.put("unknown")),
    }
    html.put("<td class=s>");
    if backup.is_good() {
        html.text(list_word(backup.list)).put("<td class=\"n s\">");
        html.text(words::size(backup.read_bytes)).put("<td class=\"n s\">");
        html.text(words::size(backup.stored_bytes)).put("<td class=\"n s\">");
    } else {
        html.put("<td><td><td class=\"n s\">");
    }
    let began = backup.scheduled.max(backup.created);
    if let (Some(began), Some(ended), false) =
        (began, backup.completed, matches!(backup.claim, Claim::Recorded(_)))
    {
        html.text(words::span(ended - began));
    }
    html.put("<td>");
    match backup.phase {
        Phase::Completed if backup.warnings.is_empty() => drop(html.put("good")),
        Phase::Completed => drop(html.put("good, degraded: ").cut(&backup.warnings.join(" "), 160)),
        Phase::Failed => {
            html.put("<span class=Bad><b>failed</b></span> ").cut(&backup.message, 160);
        }
        Phase::Running => drop(html.put("under way ").cut(&backup.message, 160)),
        Phase::Pending => drop(html.put("waits ").cut(&backup.message, 160)),
    }
    html.put(" <span class=dim>").cut(&place.1, NAME_MAX).put("</span></tr>");
}
