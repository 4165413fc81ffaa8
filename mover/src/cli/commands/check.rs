//! `check`: whether the repository is whole, and what is lost if not.

use super::super::args::CheckArgs;
use super::super::context::Context;
use super::super::metrics::Reads;
use super::super::repository;
use super::super::table::Page;
use super::super::watch::Watch;
use super::restore::lease;
use chunkstore::{
    Error, ErrorKind, Result,
    check::{Finding, LostAttachment, LostBackup, Repaired},
};
use mover_engine::ops::check::{CheckOptions, CheckReport, ReadData, check as run_check};
use mover_engine::run::Progress;
use mover_engine::sizes::{counted, show_bytes, show_duration};
use serde_json::{Value, json};
use std::time::Duration;

/// Ranges of one backup that are named in text; `--json` has them all.
const SHOWN_MAX: usize = 20;

pub(crate) fn check(ctx: &Context, args: &CheckArgs) -> Result<()> {
    if args.repair && args.reading.no_lease {
        let what = "a repair writes to the repository";
        return Err(Error::new(ErrorKind::Usage, "use --repair with --no-lease", what)
            .hint("leave one of them out; MOVER_REPAIR and MOVER_NO_LEASE count too"));
    }
    let options = CheckOptions {
        read_data: read_data(args.read_data.as_deref().filter(|text| !text.is_empty()))?,
        repair: args.repair,
        lease: lease(&args.reading),
        memory: ctx.settings.resources.memory,
        threads: ctx.settings.resources.threads,
    };
    let repository = repository::open(ctx)?;
    let progress = Progress::new();
    let watch = Watch::start(ctx, &progress, Reads::Store, repository.store());
    let done = run_check(ctx.runtime()?, &repository, &options, &progress, &ctx.cancel);
    drop(watch);
    let report = done?;
    for warning in &report.warnings {
        ctx.output.warn(warning);
    }
    show(ctx, &report)?;
    ctx.output.summary(&page(&report, args.repair), &summary(&report, args.repair))?;
    report.to_result(&repository)
}

fn read_data(text: Option<&str>) -> Result<ReadData> {
    let Some(text) = text else { return Ok(ReadData::Nothing) };
    if text == "all" {
        return Ok(ReadData::All);
    }
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    match percent {
        Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(ReadData::Percent(percent)),
        _ => {
            let what = format!("{text:?} is neither `all` nor a share of the packs");
            Err(Error::new(ErrorKind::Usage, "use --read-data", what)
                .hint("give `all`, or a share such as 5%"))
        }
    }
}

/// What is wrong and what is lost: the result, whatever `--quiet` says.
fn show(ctx: &Context, report: &CheckReport) -> Result<()> {
    let json = ctx.settings.output.json;
    for Finding { kind, object, detail } in &report.findings {
        if json {
            let what = kind.as_str();
            let line =
                json!({ "type": "finding", "what": what, "object": object, "detail": detail });
            ctx.output.result_json(&line)?;
        } else {
            let detail = super::super::output::one_line(detail);
            ctx.output.result(&format!("damaged   {object}: {detail}\n"))?;
        }
    }
    let more = not_listed(report);
    if more > 0 && !json {
        ctx.output
            .result(&format!("damaged   and {more} more findings, which are not listed\n"))?;
    }
    for lost in &report.lost {
        if json {
            ctx.output.result_json(&lost_json(lost))?;
        } else {
            ctx.output.result(&lost_text(lost))?;
        }
    }
    for backup in report.elsewhere.iter().chain(&report.lost) {
        let (name, bytes) = (&backup.name, &backup.all_elsewhere_bytes());
        if *bytes == 0 {
            continue;
        }
        let (volume, id) = (name.volume.as_str(), name.backup_id.as_str());
        if json {
            let line = json!({
                "type": "elsewhere", "volume": volume, "backup_id": id, "attempt": name.attempt, "bytes": bytes,
            });
            ctx.output.result_json(&line)?;
        } else {
            let bytes = show_bytes(*bytes);
            ctx.output.result(&format!(
                "elsewhere backup {id} of volume {volume}: {bytes} are damaged, and stand elsewhere too\n"
            ))?;
        }
    }
    Ok(())
}

/// Findings that were counted and not kept.
fn not_listed(report: &CheckReport) -> u64 {
    report.findings_count.saturating_sub(report.findings.len() as u64)
}

fn lost_json(lost: &LostBackup) -> Value {
    let ranges = lost.ranges.as_ref().map(|ranges| {
        let range = |r: &std::ops::Range<u64>| json!({ "offset": r.start, "len": r.end - r.start });
        ranges.iter().map(range).collect::<Vec<_>>()
    });
    json!({
        "type": "lost",
        "volume": lost.name.volume.as_str(),
        "backup_id": lost.name.backup_id.as_str(),
        "attempt": lost.name.attempt,
        "bytes": lost.ranges.as_ref().map(|_| lost.bytes),
        "ranges": ranges,
        "more_ranges": lost.more,
        "attachments": lost_attachments(lost)
            .map(|a| json!({ "name": a.name.as_str(), "bytes": a.bytes }))
            .collect::<Vec<_>>(),
    })
}

fn lost_attachments(lost: &LostBackup) -> impl Iterator<Item = &LostAttachment> {
    lost.attachments.iter().filter(|attachment| attachment.bytes > 0)
}

fn lost_text(lost: &LostBackup) -> String {
    let backup = format!("backup {} of volume {}", lost.name.backup_id, lost.name.volume);
    let Some(ranges) = &lost.ranges else {
        return format!("lost      {backup}: all of it, its manifest cannot be read\n");
    };
    let mut text = match lost.bytes {
        0 => format!("lost      {backup}: nothing of the volume, which can be restored\n"),
        bytes => format!("lost      {backup}: {} in {} ranges\n", show_bytes(bytes), ranges.len()),
    };
    for range in ranges.iter().take(SHOWN_MAX) {
        text.push_str(&format!("          offset {} +{}\n", range.start, range.end - range.start));
    }
    if ranges.len() > SHOWN_MAX {
        let more = ranges.len() - SHOWN_MAX;
        text.push_str(&format!("          and {more} more, which --json lists\n"));
    }
    for LostAttachment { name, bytes, .. } in lost_attachments(lost) {
        text.push_str(&format!("          attachment {name}: {}\n", show_bytes(*bytes)));
    }
    text
}

fn page(report: &CheckReport, repair: bool) -> String {
    let mut page = Page::default();
    let f = &report.figures;
    let stored = show_bytes(f.pack_bytes);
    page.line(
        "checked",
        &format!("{}, {} chunks and pages", counted(f.backups, "backups"), f.chunks),
    );
    page.line("stored", &format!("{stored} in {}", counted(f.packs, "packs")));
    page.line(
        "records",
        &format!(
            "{}, {}, {}",
            counted(f.segments, "segments"),
            counted(f.stubs, "stubs"),
            counted(f.records, "others")
        ),
    );
    let read = show_bytes(report.read_bytes);
    page.line("read", &format!("{read} of {}", counted(report.read_packs, "packs")));
    if repair {
        let Repaired {
            base,
            stubs,
            found_chunks,
            segments,
            recorded,
            cleared,
            backups,
            superseded,
        } = report.repaired;
        page.line(
            "repaired",
            &format!(
                "{base} copies of `format` and texts, {stubs} stubs ({found_chunks} chunks found again), {segments} segments written; \
                 {recorded} damaged entries recorded, {cleared} records of what is whole removed"
            ),
        );
        if backups + superseded > 0 {
            let made = counted(backups, "backups");
            let left = counted(superseded, "attempts");
            page.line("whole", &format!("{made} made whole, {left} of earlier repairs forgotten"));
        }
    }
    let elapsed = Duration::try_from_secs_f64(report.elapsed_seconds).unwrap_or_default();
    page.line("time", &show_duration(elapsed));
    if report.unrepaired.is_some() {
        page.line("repair", "stopped before its end");
    }
    let verdict = if report.is_clean() {
        "whole".to_owned()
    } else {
        let lost = counted(report.lost.len() as u64, "backups");
        format!("{}, {lost} lost data", counted(report.findings_count, "findings"))
    };
    page.line("result", &verdict);
    page.0
}

fn summary(report: &CheckReport, repair: bool) -> Value {
    let f = &report.figures;
    let Repaired { base, stubs, found_chunks, segments, recorded, cleared, backups, superseded } =
        report.repaired;
    json!({
        "clean": report.is_clean(),
        "findings": report.findings_count,
        "findings_not_listed": not_listed(report),
        "lost_backups": report.lost.len(),
        "lost_bytes": report.lost.iter().map(|lost| lost.bytes).sum::<u64>(),
        "backups": f.backups,
        "packs": f.packs,
        "pack_bytes": f.pack_bytes,
        "chunks": f.chunks,
        "pages": f.pages,
        "segments": f.segments,
        "stubs": f.stubs,
        "records": f.records,
        "mark_bytes": f.mark_bytes,
        "read_packs": report.read_packs,
        "read_bytes": report.read_bytes,
        "repair": repair,
        "repaired_base": base,
        "repaired_stubs": stubs,
        "found_chunks": found_chunks,
        "repaired_segments": segments,
        "recorded_entries": recorded,
        "cleared_records": cleared,
        "backups_made_whole": backups,
        "superseded_attempts": superseded,
        "elsewhere_backups": report.elsewhere.len(),
        "elapsed_seconds": report.elapsed_seconds,
        "requests": report.requests,
        "warnings": report.warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_understood() {
        assert_eq!(read_data(None).unwrap(), ReadData::Nothing);
        assert_eq!(read_data(Some("all")).unwrap(), ReadData::All);
        assert_eq!(read_data(Some("5%")).unwrap(), ReadData::Percent(5.0));
        assert_eq!(read_data(Some("0.5%")).unwrap(), ReadData::Percent(0.5));
        for wrong in ["5", "0%", "101%", "-1%", "NaN%", "none", "%"] {
            assert_eq!(read_data(Some(wrong)).unwrap_err().kind(), ErrorKind::Usage, "{wrong}");
        }
    }
}
