//! What an operation did, for people. Machines get the same numbers: the summary structs
//! themselves, as JSON.

use super::table::{Page, human_time};
use chunkstore::store::{RequestCounts, Retention};
use mover_engine::ops::backup::{BackupOutcome, BackupSummary};
use mover_engine::ops::copy::{CopyOutcome, CopySummary};
use mover_engine::ops::files::{FilesFigures, FilesSummary};
use mover_engine::ops::live_restore::LiveSummary;
use mover_engine::ops::mount::{MountEnd, MountSummary};
use mover_engine::ops::restore::RestoreSummary;
use mover_engine::ops::serve::ServeSummary;
use mover_engine::ops::verify::VerifySummary;
use mover_engine::reading::LimitLine;
use mover_engine::sizes::{show_bytes, show_duration, show_rate};
use std::time::Duration;

/// The end of a backup.
pub(crate) fn backup_text(s: &BackupSummary) -> String {
    let elapsed = seconds(s.elapsed_seconds);
    let mut page = Page::default();
    let how = match s.outcome {
        BackupOutcome::Committed => "committed",
        BackupOutcome::AlreadyCommitted => "was committed before, nothing was changed",
    };
    page.line("backup", &format!("{} of volume {}: {how}", s.backup_id, s.volume));
    page.line("size", &show_bytes(s.size_bytes));
    if s.outcome == BackupOutcome::Committed {
        page.line("parent", s.parent.as_deref().unwrap_or("none"));
        let (kind, bytes) = (s.kind.as_str(), show_bytes(s.listed_bytes));
        let list = match s.origin.as_str() {
            "device" => kind.to_owned(),
            origin => format!("{kind} from {origin}: {bytes} in {} ranges", s.listed_extents),
        };
        page.line("list", &list);
        if let Some(resumed) = &s.resumed {
            let bytes = show_bytes(resumed.bytes);
            page.line("resumed", &format!("at {}%, {bytes} not read again", resumed.percent));
        }
        if let Some(audit) = s.audit.filter(|audit| audit.chunks > 0) {
            let found =
                if audit.false_at.is_some() { "the list is false" } else { "all as it says" };
            let (chunks, bytes) = (audit.chunks, show_bytes(audit.bytes));
            page.line(
                "audit",
                &format!("{chunks} chunks ({bytes}) that it does not name: {found}"),
            );
        }
        page.line("read", &show_bytes(s.read_bytes));
        page.line("zero", &show_bytes(s.zero_bytes));
        page.line("unchanged", &show_bytes(s.unchanged_bytes));
        page.line("reused", &show_bytes(s.reused_bytes));
        page.line("new", &show_bytes(s.new_bytes));
        let (packs, pages) = (s.packs, s.pages);
        page.line(
            "stored",
            &format!("{} in {packs} packs, {pages} map pages", show_bytes(s.stored_bytes)),
        );
        let rate = show_rate(s.read_bytes, elapsed);
        page.line(
            "time",
            &format!("{}, read {rate} with engine {}", show_duration(elapsed), s.engine),
        );
        page.line("compression", &s.compression.line());
        page.line("limited by", s.bottleneck);
        page.line("requests", &requests(&s.requests));
    }
    if let Some(Retention { mode, until }) = &s.retention {
        page.line("locked", &format!("until {} ({mode})", human_time(until)));
    }
    if let Some(bounds) = &s.bounds {
        page.line("bounds", &bounds.line());
    }
    page.0
}

/// One backup of a `copy`.
pub(crate) fn copy_text(s: &CopySummary) -> String {
    let elapsed = seconds(s.elapsed_seconds);
    let mut page = Page::default();
    let how = match s.outcome {
        CopyOutcome::Copied => "copied",
        CopyOutcome::AlreadyThere => "was copied by somebody else meanwhile",
    };
    page.line("backup", &format!("{} of volume {}: {how}", s.backup_id, s.volume));
    page.line("size", &show_bytes(s.size_bytes));
    page.line("base", s.base.as_deref().unwrap_or("none"));
    if let Some(resumed) = &s.resumed {
        let bytes = show_bytes(resumed.bytes);
        page.line("resumed", &format!("at {}%, {bytes} not read again", resumed.percent));
    }
    let (read, fetched) = (show_bytes(s.read_bytes), show_bytes(s.fetched_bytes));
    page.line("read", &format!("{read}, fetched as {fetched} in {} reads", s.reads));
    page.line("zero", &show_bytes(s.zero_bytes));
    page.line("unchanged", &show_bytes(s.unchanged_bytes));
    page.line("reused", &show_bytes(s.reused_bytes));
    page.line("new", &show_bytes(s.new_bytes));
    let (packs, pages) = (s.packs, s.pages);
    let stored = show_bytes(s.stored_bytes);
    page.line("stored", &format!("{stored} in {packs} packs, {pages} map pages"));
    let rate = show_rate(s.read_bytes, elapsed);
    page.line("time", &format!("{}, {rate}", show_duration(elapsed)));
    page.0
}

/// The end of a run that served.
pub(crate) fn serve_text(s: &ServeSummary) -> String {
    let elapsed = seconds(s.elapsed_seconds);
    let mut page = Page::default();
    page.line("served", &s.exports.join(", "));
    page.line("clients", &s.clients.to_string());
    page.line("sent", &format!("{} in {} reads", show_bytes(s.served_bytes), s.served_reads));
    if s.served_changes > 0 {
        let (changes, flushes) = (s.served_changes, s.served_flushes);
        let bytes = show_bytes(s.served_written_bytes);
        page.line("written", &format!("{bytes} in {changes} changes, {flushes} flushes"));
    }
    if s.overlay_bytes > 0 {
        page.line("overlay", &show_bytes(s.overlay_bytes));
    }
    page.line("fetched", &format!("{} in {} reads", show_bytes(s.fetched_bytes), s.reads));
    let wanted = s.cache_hits + s.cache_misses;
    page.line("kept", &format!("{} of {wanted} entries were there when wanted", s.cache_hits));
    if s.disk_hits > 0 {
        page.line("disk", &format!("{} entries came from the disk cache", s.disk_hits));
    }
    if s.served_errors > 0 {
        page.line("failed", &format!("{} requests", s.served_errors));
    }
    page.line("time", &show_duration(elapsed));
    page.line("requests", &requests(&s.requests));
    page.0
}

/// The end of a live restore.
pub(crate) fn live_text(s: &LiveSummary) -> String {
    let mut page = Page::default();
    let how = if s.complete { "restored" } else { "not whole" };
    page.line(how, &format!("backup {} of volume {} to {}", s.backup_id, s.volume, s.target));
    page.line("size", &show_bytes(s.volume_bytes));
    page.line(
        "there",
        &format!("{}, {} of it brought now", show_bytes(s.done_bytes), show_bytes(s.landed_bytes)),
    );
    if let Some(damaged) = &s.damaged {
        let count = damaged.ranges.len();
        page.line("damaged", &format!("{} in {count} ranges", show_bytes(damaged.bytes)));
        for range in &damaged.ranges {
            page.line("", &format!("offset {} +{}", range.offset, range.len));
        }
    }
    if s.clients > 0 {
        page.line("clients", &s.clients.to_string());
        page.line("sent", &format!("{} in {} reads", show_bytes(s.served_bytes), s.served_reads));
        let (changes, flushes) = (s.served_changes, s.served_flushes);
        let bytes = show_bytes(s.served_written_bytes);
        page.line("written", &format!("{bytes} in {changes} changes, {flushes} flushes"));
    }
    if s.served_errors > 0 {
        page.line("failed", &format!("{} requests", s.served_errors));
    }
    page.line("fetched", &format!("{} in {} reads", show_bytes(s.fetched_bytes), s.reads));
    page.line("journal", &s.journal);
    page.line("time", &show_duration(seconds(s.elapsed_seconds)));
    page.line("requests", &requests(&s.requests));
    page.0
}

/// The end of a mount.
pub(crate) fn mount_text(s: &MountSummary) -> String {
    let mut page = Page::default();
    let how = match s.end {
        MountEnd::Unmounted => "is unmounted",
        MountEnd::InUse => "is unmounted, and was in use",
        MountEnd::Outside => "was unmounted by somebody else",
    };
    page.line("mount", &format!("{} {how}", s.directory.display()));
    page.line("backups", &format!("{} opened", s.opened_backups));
    page.line("read", &format!("{} in {} reads", show_bytes(s.served_bytes), s.served_reads));
    page.line("fetched", &format!("{} in {} reads", show_bytes(s.fetched_bytes), s.reads));
    let wanted = s.cache_hits + s.cache_misses;
    page.line("kept", &format!("{} of {wanted} entries were there when wanted", s.cache_hits));
    if s.disk_hits > 0 {
        page.line("disk", &format!("{} entries came from the disk cache", s.disk_hits));
    }
    if s.served_errors > 0 {
        page.line("failed", &format!("{} requests", s.served_errors));
    }
    page.line("time", &show_duration(seconds(s.elapsed_seconds)));
    page.line("requests", &requests(&s.requests));
    page.0
}

/// The end of a copy of files.
pub(crate) fn files_text(target: &str, copied: &FilesSummary, figures: &FilesFigures) -> String {
    let mut page = Page::default();
    page.line("copied", &format!("{} files to {target}", copied.files));
    page.line("data", &show_bytes(copied.data_bytes));
    let FilesSummary { directories, symlinks, hard_links, specials, .. } = copied;
    page.line("besides", &format!(
        "{directories} directories, {symlinks} symbolic links, {hard_links} hard links, {specials} others"
    ));
    page.line("from", &figures.filesystem);
    page.line(
        "fetched",
        &format!("{} in {} reads", show_bytes(figures.fetched_bytes), figures.reads),
    );
    page.line("requests", &requests(&figures.requests));
    page.0
}

/// The end of a restore.
pub(crate) fn restore_text(s: &RestoreSummary) -> String {
    let elapsed = seconds(s.elapsed_seconds);
    let mut page = Page::default();
    page.line(
        "restored",
        &format!("backup {} of volume {} to {}", s.backup_id, s.volume, s.target),
    );
    let wanted = s.range_end.saturating_sub(s.range_start);
    if wanted == s.volume_bytes {
        page.line("size", &show_bytes(s.volume_bytes));
    } else {
        let (start, end) = (s.range_start, s.range_end);
        page.line("range", &format!("{start}..{end} of {} bytes", s.volume_bytes));
    }
    page.line("data", &show_bytes(s.data_bytes));
    page.line("zero", &show_bytes(s.zero_bytes));
    if let Some(same) = s.same_bytes {
        page.line("same", &format!("{} were there already", show_bytes(same)));
    }
    page.line("fetched", &format!("{} in {} reads", show_bytes(s.fetched_bytes), s.reads));
    if s.moved_entries > 0 {
        page.line("moved", &format!("{} entries were found at new places", s.moved_entries));
    }
    if let Some(damaged) = &s.damaged {
        let count = damaged.ranges.len();
        page.line("not there", &format!("{} in {count} ranges", show_bytes(damaged.bytes)));
        for range in &damaged.ranges {
            page.line("", &format!("offset {} +{}", range.offset, range.len));
        }
    }
    if s.flushed == Some(false) {
        page.line("not flushed", "the server cannot: what was written may not be on its disk yet");
    }
    if let Some(verified) = &s.verified {
        let through = if verified.direct { "from the device" } else { "through the page cache" };
        let read = show_bytes(verified.read_bytes);
        page.line(
            "verified",
            &format!("{read} read back {through}, {} in holes", show_bytes(verified.hole_bytes)),
        );
    }
    let rate = show_rate(wanted, elapsed);
    let engine = s.engine.as_ref().map_or(String::new(), |name| format!(" with engine {name}"));
    page.line("time", &format!("{}, {rate}{engine}", show_duration(elapsed)));
    page.line("limited by", &s.bottleneck);
    page.line("requests", &requests(&s.requests));
    page.line("bounds", &limits(&s.limits));
    page.0
}

/// The end of a verification that found nothing.
pub(crate) fn verify_text(s: &VerifySummary) -> String {
    let elapsed = seconds(s.elapsed_seconds);
    let mut page = Page::default();
    let what = match &s.device {
        Some(device) => format!("{device} holds backup {} of volume {}", s.backup_id, s.volume),
        None => format!("backup {} of volume {} is whole", s.backup_id, s.volume),
    };
    page.line("verified", &what);
    page.line("size", &show_bytes(s.volume_bytes));
    page.line("checked", &format!("{} against {} map pages", show_bytes(s.checked_bytes), s.pages));
    page.line("zero", &show_bytes(s.zero_bytes));
    if s.device.is_some() {
        page.line(
            "read",
            &format!("{}, {} in holes", show_bytes(s.read_bytes), show_bytes(s.hole_bytes)),
        );
    } else {
        page.line("fetched", &format!("{} in {} reads", show_bytes(s.fetched_bytes), s.reads));
    }
    let rate = show_rate(s.checked_bytes, elapsed);
    page.line("time", &format!("{}, {rate}", show_duration(elapsed)));
    page.line("requests", &requests(&s.requests));
    page.line("bounds", &limits(&s.limits));
    page.0
}

fn seconds(elapsed_seconds: f64) -> Duration {
    Duration::try_from_secs_f64(elapsed_seconds).unwrap_or_default()
}

fn requests(counts: &RequestCounts) -> String {
    let kinds = [
        ("gets", counts.gets),
        ("puts", counts.puts),
        ("creates", counts.creates),
        ("heads", counts.heads),
        ("lists", counts.lists),
        ("deletes", counts.deletes),
        ("failed tries", counts.failed_tries),
    ];
    let made: Vec<_> =
        kinds.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{n} {name}")).collect();
    if made.is_empty() { "none".into() } else { made.join(", ") }
}

fn limits(lines: &[LimitLine]) -> String {
    let each: Vec<_> =
        lines.iter().map(|l| format!("{} {}", l.what, show_bytes(l.bytes))).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_that_were_made_are_named() {
        assert_eq!(requests(&RequestCounts::default()), "none");
        let counts = RequestCounts { gets: 3, lists: 1, ..RequestCounts::default() };
        assert_eq!(requests(&counts), "3 gets, 1 lists");
    }

    #[test]
    fn a_nonsense_duration_is_no_panic() {
        assert_eq!(seconds(f64::NAN), Duration::ZERO);
        assert_eq!(seconds(-1.0), Duration::ZERO);
    }
}
