//! Backups as people and machines see them: tables, the page of `show`, and the JSON of `list` and
//! `show`.

use super::listing::run_time;
use super::output::one_line;
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use chunkstore::{
    Encryption, Hold, Manifest,
    format::{Attachment, BackupStats, CopiedFrom, KeyInfo, SnapshotInfo, SourceInfo},
    store::time_span,
};
use mover_engine::sizes::show_bytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// One backup as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct BackupView<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    backup_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    short_id: Option<String>,
    volume: &'a str,
    attempt: u32,
    size_bytes: u64,
    started: String,
    finished: String,
    duration_seconds: f64,
    ordered: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_offset_ms: Option<i64>,
    map_root: Option<String>,
    parent: Option<&'a str>,
    snapshot: &'a SnapshotInfo,
    source: &'a SourceInfo,
    stats: &'a BackupStats,
    tool: &'a str,
    labels: &'a BTreeMap<String, String>,
    degraded: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    copied_from: Option<&'a CopiedFrom>,
    attachments: Vec<AttachmentView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HoldView<'a>>,
}

/// The live restore that needs it.
#[derive(Debug, Serialize)]
struct HoldView<'a> {
    hold: String,
    host: &'a str,
    since: String,
}

/// One of its attachments.
#[derive(Debug, Serialize)]
struct AttachmentView<'a> {
    name: &'a str,
    size_bytes: u64,
    map_root: Option<String>,
}

impl<'a> AttachmentView<'a> {
    fn of(attachment: &'a Attachment) -> Self {
        let Attachment { name, size_bytes, map } = attachment;
        let map_root = map.root.map(|root| root.id.to_hex());
        Self { name: name.as_str(), size_bytes: *size_bytes, map_root }
    }
}

impl<'a> BackupView<'a> {
    pub(crate) fn of(m: &'a Manifest) -> Self {
        Self {
            kind: "backup",
            backup_id: m.backup_id.as_str(),
            short_id: None,
            volume: m.volume.as_str(),
            attempt: m.attempt,
            size_bytes: m.size_bytes,
            started: machine_time(&m.started),
            finished: machine_time(&m.finished),
            duration_seconds: run_time(m).as_secs_f64(),
            ordered: machine_time(&m.ordered),
            clock_offset_ms: m.clock_offset_ms,
            map_root: m.map.root.as_ref().map(|root| root.id.to_hex()),
            parent: m.parent.as_ref().map(|p| p.backup_id.as_str()),
            snapshot: &m.snapshot,
            source: &m.source,
            stats: &m.stats,
            tool: &m.tool,
            labels: &m.labels,
            degraded: &m.degraded,
            copied_from: m.copied_from.as_ref(),
            attachments: m.attachments.iter().map(AttachmentView::of).collect(),
            held: None,
        }
    }

    /// In a list, where less of its id tells it from the others.
    pub(crate) fn with_short_id(self, short_id: String) -> Self {
        Self { short_id: Some(short_id), ..self }
    }

    /// With the live restore that needs it.
    pub(crate) fn held(self, hold: Option<&'a Hold>) -> Self {
        let held = hold.map(|Hold { id, host, since, .. }| HoldView {
            hold: id.to_string(),
            host,
            since: machine_time(since),
        });
        Self { held, ..self }
    }
}

/// One key as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct KeyView<'a> {
    #[serde(rename = "type")]
    line: &'static str,
    key_id: String,
    kind: &'a str,
    label: &'a str,
    created: String,
    current: bool,
}

impl<'a> KeyView<'a> {
    pub(crate) fn of(key: &'a KeyInfo, current: bool) -> Self {
        Self {
            line: "key",
            key_id: key.id.to_hex(),
            kind: key.kind.as_str(),
            label: &key.label,
            created: machine_time(&key.created),
            current,
        }
    }
}

/// Parameters of a repository as JSON: what `init` ends with.
#[derive(Debug, Serialize)]
pub(crate) struct RepositoryView<'a> {
    pub(crate) repository: &'a str,
    pub(crate) repository_id: String,
    pub(crate) encryption: Encryption,
    pub(crate) chunk_bytes: u32,
    pub(crate) entry_chunks: u16,
    pub(crate) page_fanout: u16,
    /// By this run; with `--if-absent` it may have been there.
    pub(crate) made: bool,
}

pub(crate) fn machine_time(time: &DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

pub(crate) fn human_time(time: &DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// The table of `key list`.
pub(crate) fn key_table(keys: &[(&KeyInfo, bool)], color: bool) -> String {
    let rows = keys.iter().map(|(key, current)| {
        vec![
            key.id.to_hex(),
            key.kind.as_str().to_owned(),
            human_time(&key.created),
            if *current { "*" } else { "" }.to_owned(),
            key.label.clone(),
        ]
    });
    table(&["KEY", "KIND", "CREATED", "USED", "LABEL"], rows.collect(), &[], color)
}

/// Columns as wide as their widest cell; the columns of `right` are aligned to the right.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>, right: &[usize], color: bool) -> String {
    table_within(head, rows, right, color, None)
}

/// As [`table`], on a terminal that is so many columns wide.
pub(crate) fn table_within(
    head: &[&str],
    rows: Vec<Vec<String>>,
    right: &[usize],
    color: bool,
    columns: Option<usize>,
) -> String {
    // what others put into names must not move the cursor
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head.get(column).map_or(0, |h| h.len())]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.enumerate() {
            let fill = widths.get(column).map_or(0, |w| w.saturating_sub(cell.chars().count()));
            let (before, after) = if right.contains(&column) { (fill, 0) } else { (0, fill) };
            line.extend(std::iter::repeat_n(' ', before));
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', after + 2));
        }
        line.truncate(line.trim_end().len());
        match columns {
            Some(columns) if line.chars().count() > columns.max(1) => {
                line.chars().take(columns.max(1) - 1).chain(['…']).collect()
            }
            _ => line,
        }
    };
    let titles = line(&mut head.iter().copied());
    let mut text = if color { format!("\x1b[1m{titles}\x1b[0m\n") } else { format!("{titles}\n") };
    for row in &rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
        text.push('\n');
    }
    text
}

/// The page of `show`.
pub(crate) fn backup_page(m: &Manifest) -> String {
    let stats = &m.stats;
    let mut page = Page::default();
    page.line("backup", m.backup_id.as_str());
    page.line("volume", m.volume.as_str());
    page.line("size", &exact(m.size_bytes));
    page.line("started", &human_time(&m.started));
    page.line("finished", &human_time(&m.finished));
    for (name, value) in [("ordered", ordered(m)), ("clock", clock(m))] {
        if let Some(value) = value {
            page.line(name, &value);
        }
    }
    page.line("parent", m.parent.as_ref().map_or("none", |p| p.backup_id.as_str()));
    page.line("source", &m.source.path);
    if let Some(identity) = &m.source.identity {
        page.line("identity", identity);
    }
    page.line(
        "list",
        &format!(
            "{} from {}: {} in {} extents",
            m.source.kind.as_str(),
            m.source.origin,
            show_bytes(m.source.listed_bytes),
            m.source.listed_extents
        ),
    );
    let snapshot = &m.snapshot;
    for (name, value) in [
        ("snapshot", &snapshot.id),
        ("base snapshot", &snapshot.base_id),
        ("CSI driver", &snapshot.csi_driver),
        ("volume handle", &snapshot.volume_handle),
        ("snapshot handle", &snapshot.snapshot_handle),
        ("change id", &snapshot.change_id),
    ] {
        if let Some(value) = value {
            page.line(name, value);
        }
    }
    page.line("read", &exact(stats.read_bytes));
    page.line("zero", &exact(stats.zero_bytes));
    page.line("unchanged", &exact(stats.unchanged_bytes));
    page.line("reused", &exact(stats.reused_bytes));
    page.line("new", &exact(stats.new_bytes));
    let stored = exact(stats.stored_bytes);
    page.line("stored", &format!("{stored} in {} packs, {} map pages", stats.packs, stats.pages));
    page.line("map root", &m.map.root.map_or("all zero".into(), |root| root.id.to_hex()));
    page.line("tool", &m.tool);
    if let Some(from) = &m.copied_from {
        let (repository, time) = (from.repository_id.to_hex(), human_time(&from.time));
        page.line("copied", &format!("from repository {repository}, {time}"));
    }
    for Attachment { name, size_bytes, .. } in &m.attachments {
        page.line("attachment", &format!("{name}, {}", exact(*size_bytes)));
    }
    for (name, value) in &m.labels {
        page.line("label", &format!("{name}={value}"));
    }
    for why in &m.degraded {
        page.line("degraded", why);
    }
    page.0
}

/// Its place, where that is another than its time tells.
fn ordered(m: &Manifest) -> Option<String> {
    let behind = m.ordered.signed_duration_since(m.finished);
    (behind >= TimeDelta::seconds(5))
        .then(|| format!("after the backup before it, {}", human_time(&m.ordered)))
}

/// That the clock of the machine was off.
fn clock(m: &Manifest) -> Option<String> {
    let ms = m.clock_offset_ms?;
    let side = if ms < 0 { "behind" } else { "ahead of" };
    let span = time_span(ms.unsigned_abs().saturating_add(500) / 1000);
    Some(format!("the machine's was {span} {side} the store's; the times are by the store's"))
}

fn exact(bytes: u64) -> String {
    if bytes < 1024 { show_bytes(bytes) } else { format!("{} ({bytes} bytes)", show_bytes(bytes)) }
}

/// Names and values below each other.
#[derive(Debug, Default)]
pub(crate) struct Page(pub(crate) String);

impl Page {
    pub(crate) fn line(&mut self, name: &str, value: &str) {
        self.0.push_str(format!("{name:<16}{}", one_line(value)).trim_end());
        self.0.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_its_columns() {
        let rows = vec![
            vec!["a".to_owned(), "1.00 KiB".to_owned(), String::new()],
            vec!["bé\u{1b}[31m".to_owned(), "5 B".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            table(&["ID", "SIZE", "LABEL"], rows, &[1], false),
            "ID                SIZE  LABEL\n\
             a             1.00 KiB\n\
             bé\\u{1b}[31m       5 B  x\n"
        );
    }

    #[test]
    fn a_line_ends_where_the_terminal_does() {
        let rows = || vec![vec!["abc".to_owned(), "déf".to_owned()]];
        assert_eq!(table_within(&["ID", "X"], rows(), &[], false, Some(7)), "ID   X\nabc  d…\n");
        assert_eq!(table_within(&["ID", "X"], rows(), &[], false, Some(8)), "ID   X\nabc  déf\n");
    }

    #[test]
    fn the_title_is_bold_only_with_colour() {
        assert_eq!(table(&["A"], Vec::new(), &[], true), "\x1b[1mA\x1b[0m\n");
        assert_eq!(table(&["A"], Vec::new(), &[], false), "A\n");
    }

    #[test]
    fn times_are_plain_and_in_utc() {
        let time = DateTime::from_timestamp(1_790_000_000, 5_000_000).unwrap();
        assert_eq!(human_time(&time), "2026-09-21 14:13:20Z");
        assert_eq!(machine_time(&time), "2026-09-21T14:13:20.005Z");
    }
}
