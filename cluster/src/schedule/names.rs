//! Names that follow from a schedule and a time, so that a run is made once whoever makes it.

use chrono::{DateTime, Datelike as _, NaiveDateTime, Timelike as _, Utc};

/// On what a schedule makes: the name of the claim that it is about.
pub const CLAIM: &str = "mover.dev/claim";
/// On a schedule: what is settled of it, as [`Mark`](super::Mark) writes it.
pub const MARK: &str = "mover.dev/settled";

/// Most characters of our names: so they are values of labels too.
const NAME_MAX: usize = 63;
const HASH_CHARACTERS: usize = 10;

/// Name of the run of a time: `SCHEDULE-yyyymmddhhmm`, then `-CLAIM` where there is one for each.
/// A name that would be too long ends with a hash of all of it instead.
#[must_use]
pub fn run_name(schedule: &str, due: DateTime<Utc>, claim: Option<&str>) -> String {
    let minute = minute_of(due);
    let claim_part = claim.map(|claim| format!("-{claim}")).unwrap_or_default();
    let name = format!("{schedule}-{minute}{claim_part}");
    if name.len() <= NAME_MAX {
        return name;
    }
    let hash = hash(&format!("{schedule}\n{minute}\n{}", claim.unwrap_or_default()));
    let room = NAME_MAX - "-".len() * 2 - "yyyymmddhhmm".len() - HASH_CHARACTERS;
    let (schedule, claim) = match claim {
        None => (cut(schedule, room), String::new()),
        Some(claim) => {
            let room = room - "-".len();
            // Each gets its half, and what the other one leaves of its own.
            let schedule = cut(schedule, (room / 2).max(room.saturating_sub(claim.len())));
            let claim = cut(claim, room - schedule.len());
            (schedule, format!("-{claim}"))
        }
    };
    format!("{schedule}-{minute}{claim}-{hash}")
}

/// Name of the drill of a time: of its restore, claim and Job. The admission policies know claims
/// of ours by its beginning.
#[must_use]
pub fn drill_name(schedule: &str, due: DateTime<Utc>) -> String {
    run_name(&drills_of(schedule), due, None)
}

/// What the names of a schedule's drills begin with.
pub(super) fn drills_of(schedule: &str) -> String {
    format!("mover-drill-{schedule}")
}

/// Name of a Job that looks after a repository.
#[must_use]
pub fn maintenance_name(repository: &str, task: &str, due: DateTime<Utc>) -> String {
    run_name(&format!("{repository}-{task}"), due, None)
}

/// The time of a run, if `name` is its name.
pub(super) fn time_of(
    name: &str,
    schedule: &str,
    claim: Option<&str>,
    noted: Option<&str>,
) -> Option<DateTime<Utc>> {
    let noted = noted.and_then(|text| DateTime::parse_from_rfc3339(text).ok());
    let noted = noted.map(|time| time.to_utc());
    if noted.is_some_and(|time| run_name(schedule, time, claim) == name) {
        return noted;
    }
    // Somebody took the note away or changed it: the name says it too, to the minute.
    let rest = name.strip_prefix(schedule)?.strip_prefix('-')?;
    let minute = rest.get(.."yyyymmddhhmm".len())?;
    let time = NaiveDateTime::parse_from_str(&format!("{minute}00"), "%Y%m%d%H%M%S").ok()?;
    Some(time.and_utc()).filter(|time| run_name(schedule, *time, claim) == name)
}

fn minute_of(time: DateTime<Utc>) -> String {
    let (year, month, day) = (time.year(), time.month(), time.day());
    format!("{year:04}{month:02}{day:02}{:02}{:02}", time.hour(), time.minute())
}

/// The first bytes of a name, which are characters of DNS; what is left ends like a name.
fn cut(name: &str, bytes: usize) -> String {
    let end = (0..=bytes.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    name[..end.unwrap_or_default()].trim_end_matches(['-', '.']).to_owned()
}

fn hash(text: &str) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(HASH_CHARACTERS);
    hex
}
