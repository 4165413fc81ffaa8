//! The table of `list`: short ids, a mark on degraded backups, and a line of totals below it.

use super::table::{human_time, table_within};
use chunkstore::{Hold, Manifest, hold_on};
use mover_engine::sizes::{counted, show_bytes, show_duration};
use std::collections::BTreeSet;
use std::time::Duration;

/// Characters of a random id that are shown at least.
const SHORT_ID_CHARS: usize = 8;
/// Of a whole one: 128 bits in hex.
const RANDOM_ID_CHARS: usize = 32;

/// What each backup is called in a list: of a random id as much as tells it from the others, and
/// any other id as the user has chosen it.
pub(crate) fn short_ids(backups: &[&Manifest]) -> Vec<String> {
    let mut ids: Vec<&str> = backups.iter().map(|m| m.backup_id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let common = |a: &str, b: &str| a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let short = |id: &str| {
        let random = id.len() == RANDOM_ID_CHARS && id.bytes().all(|b| b.is_ascii_hexdigit());
        // in their order neighbours have the most in common
        let at = ids.partition_point(|other| *other < id);
        let before = at.checked_sub(1).and_then(|at| ids.get(at));
        let after = ids.get(at + 1);
        let same = before.into_iter().chain(after).map(|other| common(id, other)).max();
        let chars = same.map_or(0, |same| same + 1).max(SHORT_ID_CHARS);
        if random { id[..chars.min(id.len())].to_owned() } else { id.to_owned() }
    };
    backups.iter().map(|m| short(m.backup_id.as_str())).collect()
}

/// How long the run of a backup took, by its own manifest.
pub(crate) fn run_time(m: &Manifest) -> Duration {
    m.finished.signed_duration_since(m.started).to_std().unwrap_or_default()
}

/// The table; `backups` are in the order to show. Lines are cut to `columns`, where a person sees
/// them on a terminal.
pub(crate) fn backup_table(
    backups: &[&Manifest],
    holds: &[Hold],
    color: bool,
    columns: Option<usize>,
) -> String {
    let ids = short_ids(backups);
    let rows: Vec<Vec<String>> =
        backups.iter().zip(&ids).map(|(m, id)| row(m, id, hold_on(holds, &m.name()))).collect();
    let head = [
        "BACKUP", "VOLUME", "FINISHED", "TOOK", "SIZE", "READ", "STORED", "LIST", "STATE",
        "SNAPSHOT", "LABELS",
    ];
    // what no backup has takes no place
    let shown: Vec<usize> = (0..head.len())
        .filter(|column| *column < 8 || rows.iter().any(|row| !row[*column].is_empty()))
        .collect();
    let pick = |row: &Vec<String>| shown.iter().map(|column| row[*column].clone()).collect();
    let head: Vec<&str> = shown.iter().map(|column| head[*column]).collect();
    let rows = rows.iter().map(pick).collect();
    table_within(&head, rows, &[3, 4, 5, 6], color, columns) + &totals(backups)
}

fn row(m: &Manifest, id: &str, hold: Option<&Hold>) -> Vec<String> {
    let states = [(!m.degraded.is_empty(), "degraded"), (hold.is_some(), "held")];
    let states: Vec<_> = states.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    let labels: Vec<_> = m.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    vec![
        id.to_owned(),
        m.volume.to_string(),
        human_time(&m.finished),
        show_duration(run_time(m)),
        show_bytes(m.size_bytes),
        show_bytes(m.stats.read_bytes),
        show_bytes(m.stats.stored_bytes),
        m.source.kind.as_str().to_owned(),
        states.join(","),
        m.snapshot.id.clone().unwrap_or_default(),
        labels.join(","),
    ]
}

fn totals(backups: &[&Manifest]) -> String {
    let volumes: BTreeSet<_> = backups.iter().map(|m| &m.volume).collect();
    let degraded = backups.iter().filter(|m| !m.degraded.is_empty()).count();
    // a copy has the figures of its original, which was stored elsewhere
    let made = backups.iter().filter(|m| m.copied_from.is_none());
    let stored = made.map(|m| m.stats.stored_bytes).sum();
    let mut text = format!(
        "{} of {}",
        counted(backups.len() as u64, "backups"),
        counted(volumes.len() as u64, "volumes")
    );
    if degraded > 0 {
        text.push_str(&format!(", {degraded} degraded"));
    }
    text + &format!("; their runs have stored {}\n", show_bytes(stored))
}

/// Whether a backup has all of the labels, each given as `NAME` or `NAME=VALUE`.
pub(crate) fn has_labels(m: &Manifest, wanted: &[String]) -> bool {
    wanted.iter().filter(|label| !label.is_empty()).all(|label| match label.split_once('=') {
        Some((name, value)) => m.labels.get(name).is_some_and(|known| known == value),
        None => m.labels.contains_key(label),
    })
}
