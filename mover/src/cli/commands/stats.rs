//! `stats`: how large backups are and how they grow, by volume.
//!
//! Everything comes from what each manifest says of the run that made it, and the size of all packs
//! from one listing of them. A figure that these cannot tell is left out, never guessed:
//!
//! - A copy has the figures of its original, which was stored in another repository.
//! - A run that went on with an unfinished one counts its own part alone.

use super::super::args::StatsArgs;
use super::super::context::Context;
use super::super::listing::short_ids;
use super::super::repository;
use super::super::table::{Page, human_time, machine_time, table_within};
use super::browse::{unreadable, warn_of_unknown};
use chrono::{DateTime, Utc};
use chunkstore::format::ChangeKind;
use chunkstore::repository::PackTotals;
use chunkstore::{BackupEntry, Manifest, Result, VolumeName};
use mover_engine::sizes::{counted, show_bytes};
use serde::Serialize;

/// One volume.
#[derive(Debug, Serialize)]
struct VolumeView<'a> {
    #[serde(rename = "type")]
    line: &'static str,
    volume: &'a str,
    backups: usize,
    copies: usize,
    degraded: usize,
    first: String,
    newest: String,
    #[serde(skip)]
    newest_time: DateTime<Utc>,
    /// Of the newest backup.
    size_bytes: u64,
    /// Of the newest: what is not zero, where its run has looked at all of it.
    data_bytes: Option<u64>,
    /// All sizes, as a restore of each would write.
    logical_bytes: u64,
    new_bytes: u64,
    stored_bytes: u64,
    dedup_ratio: Option<f64>,
    compression_ratio: Option<f64>,
    growth: Vec<Growth<'a>>,
}

/// What one backup has added.
#[derive(Debug, Serialize)]
struct Growth<'a> {
    backup_id: &'a str,
    short_id: String,
    finished: String,
    #[serde(skip)]
    time: DateTime<Utc>,
    size_bytes: u64,
    /// Null of a copy, as all that follows.
    new_bytes: Option<u64>,
    stored_bytes: Option<u64>,
    /// Of a run that went on with another, which has stored more than is said here.
    resumed: bool,
}

/// The repository.
#[derive(Debug, Serialize)]
struct TotalView {
    volumes: usize,
    backups: usize,
    packs: u64,
    pack_bytes: u64,
    stored_bytes: u64,
}

pub(crate) fn stats(ctx: &Context, args: &StatsArgs) -> Result<()> {
    let volume =
        args.volume.as_deref().filter(|v| !v.is_empty()).map(VolumeName::new).transpose()?;
    let repository = repository::open(ctx)?;
    let (backups, problems) = ctx.block_on(repository.list_backups(volume.as_ref()))?;
    warn_of_unknown(ctx, &repository, volume.as_ref(), backups.len() + problems.len());
    let packs = ctx.block_on(repository.pack_totals())?;
    let of_volumes = backups.chunk_by(|a, b| a.manifest.volume == b.manifest.volume);
    let views: Vec<VolumeView<'_>> = of_volumes.filter_map(view).collect();
    let total = TotalView {
        volumes: views.len(),
        backups: backups.len(),
        packs: packs.packs,
        pack_bytes: packs.bytes,
        stored_bytes: views.iter().map(|v| v.stored_bytes).sum(),
    };
    if ctx.settings.output.json {
        for view in &views {
            ctx.output.result_json(view)?;
        }
    } else {
        show(ctx, &views, volume.is_some())?;
    }
    ctx.output.summary(&text(&total, packs), &total)?;
    unreadable(ctx, problems)
}

/// The figures of one volume, whose backups are in their order.
fn view(backups: &[BackupEntry]) -> Option<VolumeView<'_>> {
    let all: Vec<&Manifest> = backups.iter().map(|b| &b.manifest).collect();
    let (first, newest) = (backups.first()?, backups.last()?);
    let made = || all.iter().filter(|m| m.copied_from.is_none());
    let sum = |of: fn(&Manifest) -> u64| made().map(|m| of(m)).sum::<u64>();
    let whole = || made().filter(|m| !went_on(m));
    let data = whole().map(|m| m.size_bytes.saturating_sub(m.stats.zero_bytes)).sum();
    let (new, stored) = whole()
        .fold((0, 0), |(new, stored), m| (new + m.stats.new_bytes, stored + m.stats.stored_bytes));
    Some(VolumeView {
        line: "volume",
        volume: newest.manifest.volume.as_str(),
        backups: all.len(),
        copies: all.len() - made().count(),
        degraded: all.iter().filter(|m| !m.degraded.is_empty()).count(),
        first: machine_time(&first.time()),
        newest: machine_time(&newest.time()),
        newest_time: newest.time(),
        size_bytes: newest.manifest.size_bytes,
        data_bytes: data_bytes(&newest.manifest),
        logical_bytes: all.iter().map(|m| m.size_bytes).sum(),
        new_bytes: sum(|m| m.stats.new_bytes),
        stored_bytes: sum(|m| m.stats.stored_bytes),
        dedup_ratio: ratio(data, new),
        compression_ratio: ratio(new, stored),
        growth: all.iter().zip(short_ids(&all)).map(|(m, id)| growth(m, id)).collect(),
    })
}

fn growth(m: &Manifest, short_id: String) -> Growth<'_> {
    let made_here = m.copied_from.is_none();
    Growth {
        backup_id: m.backup_id.as_str(),
        short_id,
        finished: machine_time(&m.finished),
        time: m.finished,
        size_bytes: m.size_bytes,
        new_bytes: made_here.then_some(m.stats.new_bytes),
        stored_bytes: made_here.then_some(m.stats.stored_bytes),
        resumed: went_on(m),
    }
}

/// Whether its run has left out what an earlier one had done: then its figures are less than its
/// size.
fn went_on(m: &Manifest) -> bool {
    let stats = &m.stats;
    let told = [stats.zero_bytes, stats.unchanged_bytes, stats.reused_bytes, stats.new_bytes];
    told.iter().sum::<u64>() < m.size_bytes
}

/// A delta takes over what it does not list, which may be zero or not.
fn data_bytes(m: &Manifest) -> Option<u64> {
    let told = m.source.kind != ChangeKind::Delta && !went_on(m);
    told.then(|| m.size_bytes.saturating_sub(m.stats.zero_bytes))
}

#[allow(clippy::cast_precision_loss)] // shown with three digits
fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| of as f64 / to as f64)
}

fn show(ctx: &Context, views: &[VolumeView<'_>], one: bool) -> Result<()> {
    let output = &ctx.settings.output;
    if views.is_empty() {
        return Ok(());
    }
    let shown = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), show_bytes);
    let times = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}"));
    let rows = views.iter().map(|v| {
        let last = v.growth.last().and_then(|g| g.stored_bytes);
        vec![
            v.volume.to_owned(),
            v.backups.to_string(),
            human_time(&v.newest_time),
            show_bytes(v.size_bytes),
            shown(v.data_bytes),
            show_bytes(v.stored_bytes),
            shown(last),
            times(v.dedup_ratio),
            times(v.compression_ratio),
        ]
    });
    let head =
        ["VOLUME", "BACKUPS", "NEWEST", "SIZE", "DATA", "STORED", "LAST", "DEDUP", "COMPRESSION"];
    let (color, columns) = (output.color_stdout, output.stdout_columns);
    let mut text = table_within(&head, rows.collect(), &[1, 3, 4, 5, 6, 7, 8], color, columns);
    if one {
        let of_one = |v: &VolumeView<'_>| {
            let rows = v.growth.iter().map(|g| {
                let mark = if g.resumed { "went on" } else { "" };
                let (size, new) = (show_bytes(g.size_bytes), shown(g.new_bytes));
                vec![
                    g.short_id.clone(),
                    human_time(&g.time),
                    size,
                    new,
                    shown(g.stored_bytes),
                    mark.to_owned(),
                ]
            });
            let head = ["BACKUP", "FINISHED", "SIZE", "NEW", "STORED", ""];
            table_within(&head, rows.collect(), &[2, 3, 4], color, columns)
        };
        text.push('\n');
        text.extend(views.iter().map(of_one));
    }
    text.push('\n');
    ctx.output.result(&text)
}

fn text(total: &TotalView, packs: PackTotals) -> String {
    let mut page = Page::default();
    let backups = counted(total.backups as u64, "backups");
    page.line("backups", &format!("{backups} of {}", counted(total.volumes as u64, "volumes")));
    page.line("their runs", &format!("stored {}", show_bytes(total.stored_bytes)));
    let packs_text = format!("{} in {}", show_bytes(packs.bytes), counted(packs.packs, "packs"));
    page.line("repository", &packs_text);
    page.0
}
