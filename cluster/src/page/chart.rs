//! Pictures of a volume's backups. They have no size of their own: places along the time are
//! percentages, so that letters are as large on a phone as on a wall.
//!
//! Sizes are on a logarithmic scale: an increment is a thousandth of a whole volume, and both have
//! to be seen.

use super::html::Html;
use super::known::{BackupFacts, ListKind};
use super::words;
use crate::kinds::Phase;
use chrono::{DateTime, TimeDelta, Utc};

/// Sizes below lie on the ground line.
const LEAST_BYTES: f64 = 1024.0 * 1024.0;
/// Height of a plot, and of the picture with its times.
const PLOT: f64 = 96.0;
const HEIGHT: u32 = 122;
/// Height of the small picture.
const SMALL: f64 = 26.0;

/// What the pictures of a page refer to: a mark for each kind of list, so that colour is not all.
pub(super) fn marks(html: &mut Html) {
    html.put("<svg class=defs aria-hidden=true><defs>");
    html.put("<g id=md><circle r=3.6 stroke=none /></g>");
    html.put("<g id=ma><path d=\"M0-4.6 4.4 3.4H-4.4Z\" stroke=none /></g>");
    html.put("<g id=mw><path d=\"M-3.6-3.6H3.6V3.6H-3.6Z\" stroke=none /></g>");
    html.put("<g id=mu><path d=\"M0-4.4 4.4 0 0 4.4-4.4 0Z\" stroke=none /></g>");
    html.put("<g id=mx><path d=\"M-3.5-3.5 3.5 3.5M3.5-3.5-3.5 3.5\"/></g>");
    html.put("<g id=mo><circle r=3.2 /></g></defs></svg>");
}

/// The meaning of the marks.
pub(super) fn key(html: &mut Html) {
    html.put("<p class=key>");
    for (class, mark, words) in [
        ("d", "#md", "delta: what changed since the base"),
        ("a", "#ma", "allocated: all that is in use"),
        ("w", "#mw", "whole: every block"),
        ("u", "#mu", "kind of list unknown"),
        ("x", "#mx", "failed"),
        ("o", "#mo", "under way"),
    ] {
        html.put("<span><svg aria-hidden=true><use href=\"").text(mark).put("\" class=");
        html.text(class).put(" x=6 y=6 /></svg>").text(words).put("</span>");
    }
    html.put("</p>");
}

/// The time from the oldest backup that is shown until now.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: DateTime<Utc>,
    now: DateTime<Utc>,
}

impl Axis {
    fn of(backups: &[&BackupFacts], now: DateTime<Utc>) -> Self {
        let oldest = backups.iter().filter_map(|it| it.at()).min();
        let from = oldest.unwrap_or(now).min(now - TimeDelta::hours(1));
        Self { from, now }
    }

    /// Percent of the width.
    #[allow(clippy::cast_precision_loss)]
    fn x(self, at: DateTime<Utc>) -> String {
        let part =
            (at - self.from).num_seconds() as f64 / (self.now - self.from).num_seconds() as f64;
        format!("{:.2}%", 1.5 + 97.0 * part.clamp(0.0, 1.0))
    }
}

/// Which of its sizes a picture shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// What was read from the volume: how much of it changed.
    Read,
    /// What was moved to the repository.
    Stored,
}

impl Figure {
    fn of(self, backup: &BackupFacts) -> i64 {
        match self {
            Self::Read => backup.read_bytes,
            Self::Stored => backup.stored_bytes,
        }
    }
}

pub(super) fn list_word(list: Option<ListKind>) -> &'static str {
    match list {
        Some(ListKind::Delta) => "delta",
        Some(ListKind::Allocated) => "allocated",
        Some(ListKind::Whole) => "whole",
        None => "unknown",
    }
}

fn class(backup: &BackupFacts) -> &'static str {
    match (backup.phase, backup.list) {
        (Phase::Failed, _) => "x",
        (Phase::Pending | Phase::Running, _) => "o",
        (_, Some(ListKind::Delta)) => "d",
        (_, Some(ListKind::Allocated)) => "a",
        (_, Some(ListKind::Whole)) => "w",
        (_, None) => "u",
    }
}

/// Part of the height, from 0 to 1.
#[allow(clippy::cast_precision_loss)]
fn level(bytes: i64, top: i64) -> f64 {
    let (bytes, top) = (bytes.max(0) as f64, (top.max(0) as f64).max(2.0 * LEAST_BYTES));
    ((bytes / LEAST_BYTES).max(1.0).ln() / (top / LEAST_BYTES).ln()).clamp(0.0, 1.0)
}

/// The small picture of a row: what was read by each backup, and since when one is owed.
pub(super) fn small(
    html: &mut Html,
    backups: &[&BackupFacts],
    due: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) {
    let axis = Axis::of(backups, now);
    let top = backups.iter().map(|it| it.read_bytes.max(it.size_bytes)).max().unwrap_or_default();
    html.put("<svg height=30 role=img aria-label=\"").text(said(backups, now)).put("\">");
    due_band(html, axis, due, 28.0);
    html.put("<line class=g x1=0 x2=100% y1=28 y2=28 />");
    for backup in backups {
        let Some(at) = backup.at() else { continue };
        let (x, class) = (axis.x(at), class(backup));
        if matches!(class, "x" | "o") {
            html.put("<use class=").text(class).put(" href=#m").text(class).put(" x=").text(x);
            html.put(" y=22 />");
            continue;
        }
        let height = 2.0 + (SMALL - 2.0) * level(backup.read_bytes, top);
        html.put("<line class=").text(class).put(" stroke-width=3 x1=").text(&x).put(" x2=");
        html.text(x).put(" y1=28 y2=").text(format_args!("{:.1}", 28.0 - height)).put(" />");
    }
    html.put("</svg>");
}

/// Marks the time since something is owed. It is at least wide enough to be seen.
fn due_band(html: &mut Html, axis: Axis, due: Option<DateTime<Utc>>, height: f64) {
    let Some(due) = due else { return };
    let x = axis.x(due);
    let from: f64 = x.trim_end_matches('%').parse().unwrap_or_default();
    let from = from.min(98.0);
    html.put("<rect class=due y=0 x=").text(format_args!("{from:.2}%")).put(" width=");
    html.text(format_args!("{:.2}%", 100.0 - from)).put(" height=").text(height).put(" />");
}

/// What a picture shows, in a sentence.
fn said(backups: &[&BackupFacts], now: DateTime<Utc>) -> String {
    let failed = backups.iter().filter(|it| it.phase == Phase::Failed).count();
    let good: Vec<_> = backups.iter().filter(|it| it.is_good()).collect();
    let newest = good.iter().filter_map(|it| Some((it.at()?, it.read_bytes))).max();
    let newest = newest.map_or_else(String::new, |(at, read)| {
        format!("; the newest, of {}, read {}", words::moment(at, now), words::size(read))
    });
    let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    format!("{}{newest}{failed}.", words::count(good.len(), "good backup", "good backups"))
}

/// A large picture. Each mark says on pointing at it what stands in the table as well.
pub(super) fn large(
    html: &mut Html,
    id: &str,
    figure: Figure,
    backups: &[&BackupFacts],
    due: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) {
    let axis = Axis::of(backups, now);
    let most = backups.iter().map(|it| figure.of(it)).max().unwrap_or_default();
    let size = backups.iter().map(|it| it.size_bytes).max().unwrap_or_default();
    let top = if figure == Figure::Read { most.max(size) } else { most };
    let (title, about) = match figure {
        Figure::Read => {
            ("Changes of the volume", "bytes read from it by each backup; dashed: its size")
        }
        Figure::Stored => ("Moved to the repository", "bytes stored by each backup"),
    };
    html.put("<figure><figcaption>").text(title).put(" <small>").text(about);
    let sizes = sizes(top, if figure == Figure::Read { size } else { 0 });
    html.put("</small></figcaption><div class=plot><svg aria-hidden=true height=").text(HEIGHT);
    html.put(">");
    for (y, _, text) in &sizes {
        html.put("<text class=r x=100% y=").text(format_args!("{:.1}", y + 4.0)).put(">");
        html.text(text).put("</text>");
    }
    html.put("</svg><svg role=img height=").text(HEIGHT).put(" aria-labelledby=\"");
    html.text(id).put("t ").text(id).put("d\"><title id=").text(id).put("t>").text(title);
    html.put("</title><desc id=").text(id).put("d>").text(said(backups, now));
    html.put(" The table below has all figures.</desc>");
    due_band(html, axis, due, PLOT);
    for (y, class, _) in &sizes {
        let y = format_args!("{y:.1}");
        html.put("<line class=").text(class).put(" x1=0 x2=100% y1=").text(y).put(" y2=").text(y);
        html.put(" />");
    }
    html.put("<line class=ax x1=0 x2=100% y1=96 y2=96 />");
    for backup in backups {
        mark(html, axis, figure, backup, top, now);
    }
    times(html, axis);
    html.put("</svg></div></figure>");
}

/// A size without a part that is nothing.
fn round(bytes: i64) -> String {
    words::size(bytes).replace(".0 ", " ")
}

/// Lines at a few sizes: height, class and words. They keep apart from each other, and from that of
/// the volume's own size, if there is one.
fn sizes(top: i64, size: i64) -> Vec<(f64, &'static str, String)> {
    let height = |bytes: i64| PLOT - (PLOT - 14.0) * level(bytes, top);
    let mut lines = Vec::new();
    if size > 0 {
        lines.push((height(size), "sz", round(size)));
    }
    for power in [50, 45, 40, 35, 30, 25] {
        let y = height(1 << power);
        let is_apart = lines.iter().all(|(other, ..)| f64::abs(other - y) > 15.0);
        if 1 << power <= top && is_apart && y < PLOT - 10.0 {
            lines.push((y, "g", round(1 << power)));
        }
    }
    lines
}

fn mark(
    html: &mut Html,
    axis: Axis,
    figure: Figure,
    backup: &BackupFacts,
    top: i64,
    now: DateTime<Utc>,
) {
    let Some(at) = backup.at() else { return };
    let (x, class) = (axis.x(at), class(backup));
    let is_size = !matches!(class, "x" | "o");
    let y = match is_size {
        true => PLOT - (PLOT - 14.0) * level(figure.of(backup), top),
        false => PLOT - 8.0,
    };
    html.put("<g class=").text(class).put(">");
    if is_size {
        html.put("<line x1=").text(&x).put(" x2=").text(&x).put(" y1=96 y2=");
        html.text(format_args!("{y:.1}")).put(" />");
    }
    html.put("<use href=#m").text(class).put(" x=").text(x).put(" y=");
    html.text(format_args!("{y:.1}")).put(" /><title>").text(words::moment(at, now)).put(", ");
    match class {
        "x" => html.put("failed"),
        "o" => html.put("under way"),
        _ => html.text(list_word(backup.list)).put(", ").text(words::size(figure.of(backup))),
    };
    html.put("</title></g>");
}

/// Three or four times below the picture; those within the day without the day.
fn times(html: &mut Html, axis: Axis) {
    let whole = axis.now - axis.from;
    let form = if whole > TimeDelta::hours(36) { "%-d %b" } else { "%H:%M" };
    for (part, anchor) in [(0, "start"), (1, "middle"), (2, "middle")] {
        let at = axis.from + whole * part / 3;
        html.put("<text y=112 x=").text(axis.x(at)).put(" text-anchor=").text(anchor).put(">");
        html.text(at.format(form)).put("</text>");
    }
    html.put("<text y=112 x=100% text-anchor=end>now</text>");
}
