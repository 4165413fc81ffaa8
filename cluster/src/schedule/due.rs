//! The rule of all that comes by a clock: which run is due now, and when to look again.
//!
//! A *stream* is a sequence of runs, such as those of one claim. Its runs are known by the times
//! that they were due. A time is *handled* if it has a run, or if it lies before one that has, or
//! before a time that is known to be settled. So after a time without a controller only the newest
//! missed run is made, and none twice.
//!
//! A run or a settled time of the near future is that of a clock that went back since: it counts,
//! and the stream waits for the clock. One that is more than [`STEP_MAX_HOURS`] ahead was made by a
//! clock that was wrong, and does not hold up a schedule for years.

use super::cron::Cron;
use chrono::{DateTime, Duration, Utc};

/// A clock that goes back further than that may repeat runs.
pub const STEP_MAX_HOURS: i64 = 25;

/// When runs begin.
#[derive(Debug, Clone)]
pub struct Timing {
    /// When they are due.
    pub cron: Cron,
    /// How much later than that they begin, at most.
    pub jitter_seconds: u32,
    /// How late they may begin. Without it: until the next one is due.
    pub deadline_seconds: Option<u32>,
}

/// A sequence of runs.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// A uid that its share of the jitter follows from.
    pub id: String,
    /// Times until then are none of its.
    pub since: DateTime<Utc>,
    /// When those of its runs were due that exist, or are known to have existed.
    pub ran: Vec<DateTime<Utc>>,
    /// Whether one of them is under way.
    pub is_busy: bool,
}

/// What a stream does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The run to be made, by the time that it is due.
    pub run: Option<DateTime<Utc>>,
    /// The newest time without a run that may still begin: the same, or it waits for another one.
    pub open: Option<DateTime<Utc>>,
    /// Once that is made, all times until then are handled, or were missed for good.
    pub settled: DateTime<Utc>,
    /// When to look again, if nothing happens before.
    pub look: Option<DateTime<Utc>>,
}

/// The times due around a moment: the same for all streams of a schedule.
#[derive(Debug, Clone)]
pub struct Around {
    now: DateTime<Utc>,
    /// The three last ones until now, the newest first, and the three next ones.
    past: [Option<DateTime<Utc>>; 3],
    next: [Option<DateTime<Utc>>; 3],
}

impl Around {
    /// The times due around `now`.
    #[must_use]
    pub fn new(cron: &Cron, now: DateTime<Utc>) -> Around {
        let before = |at: DateTime<Utc>| cron.last_until(at - Duration::seconds(1));
        let after = |at| cron.next_after(at);
        let past = cron.last_until(now);
        let next = after(now);
        let (earlier, later) = (past.and_then(before), next.and_then(after));
        Around {
            now,
            past: [past, earlier, earlier.and_then(before)],
            next: [next, later, later.and_then(after)],
        }
    }

    /// The last time due until now.
    #[must_use]
    pub fn last(&self) -> Option<DateTime<Utc>> {
        self.past[0]
    }

    /// The first one after now.
    #[must_use]
    pub fn next(&self) -> Option<DateTime<Utc>> {
        self.next[0]
    }
}

/// Whether a time counts, though it may be ahead of the clock.
pub(super) fn counts(time: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    time <= now + Duration::hours(STEP_MAX_HOURS)
}

/// What a stream does at the moment of `around`, whose times are those of the timing's cron.
#[must_use]
pub fn due(timing: &Timing, around: &Around, stream: &Stream) -> Due {
    let now = around.now;
    let known = stream.ran.iter().copied().filter(|time| counts(*time, now));
    let handled = known.chain([stream.since]).max().unwrap_or(stream.since);
    let [past, earlier, _] = around.past;
    let [next, later, latest] = around.next;
    let begin = |due, next| start(timing, stream, due, next);
    // The newest one whose time to begin has come, its follower, and the one before it.
    let (last, after, before) = match past.is_none_or(|past| begin(past, next) <= now) {
        true => (past, next, earlier),
        false => (earlier, past, around.past[2]),
    };
    let coming = [(past, next), (next, later), (later, latest)].into_iter();
    let coming = coming.filter_map(|(due, next)| Some((due?, begin(due?, next))));
    let look = coming.filter(|(due, begin)| *due > handled && *begin > now).map(|at| at.1).min();
    let look = look.or(latest);
    let Some(last) = last.filter(|last| *last > handled) else {
        return Due { run: None, open: None, settled: handled, look };
    };
    let seconds = timing.deadline_seconds.map(|seconds| Duration::seconds(seconds.into()));
    let end = seconds.map(|seconds| begin(last, after) + seconds);
    if end.is_some_and(|end| now > end) {
        return Due { run: None, open: None, settled: last, look };
    }
    if stream.is_busy {
        let settled = before.map_or(handled, |before| before.max(handled));
        let over = end.map(|end| end + Duration::seconds(1));
        let look = look.into_iter().chain(over).min();
        return Due { run: None, open: Some(last), settled, look };
    }
    Due { run: Some(last), open: Some(last), settled: last, look }
}

/// When a stream begins a run: always as much later, and before the next one is due.
fn start(
    timing: &Timing,
    stream: &Stream,
    due: DateTime<Utc>,
    next: Option<DateTime<Utc>>,
) -> DateTime<Utc> {
    let period = next.map_or(i64::MAX, |next| (next - due).num_seconds());
    let most = i64::from(timing.jitter_seconds).min(period - 1).max(0).unsigned_abs();
    let hash = blake3::hash(stream.id.as_bytes());
    let share = u64::from_le_bytes(hash.as_bytes()[..8].try_into().unwrap_or_default());
    let seconds = (u128::from(share) * u128::from(most + 1)) >> 64;
    due + Duration::seconds(i64::try_from(seconds).unwrap_or_default())
}
