//! Whether a schedule's claims have the backups that they should have by now.

use super::cron::BadCron;
use super::history::newest_good;
use super::lateness::{Beat, leeway};
use super::runs::{ClaimOf, Run, Schedule, State};
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;

/// Claims that a message names.
const NAMED_MAX: usize = 5;

/// What a condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Why, as one word.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Verdict {
    pub(super) fn yes(reason: &'static str, message: String) -> Verdict {
        Verdict { status: "True", reason, message }
    }

    pub(super) fn no(reason: &'static str, message: String) -> Verdict {
        Verdict { status: "False", reason, message }
    }

    pub(super) fn unknown(reason: &'static str, message: String) -> Verdict {
        Verdict { status: "Unknown", reason, message }
    }
}

/// How the backups of a schedule are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether they are as the schedule wants them.
    pub up_to_date: Verdict,
    /// The oldest of the claims' newest good backups: none if a claim has none.
    pub newest_good: Option<DateTime<Utc>>,
    /// Number of claims.
    pub claims: usize,
}

impl Schedule<'_> {
    /// How its backups are. They are well if none is late, and if no last run failed.
    ///
    /// # Errors
    ///
    /// The field of its spec that is wrong.
    pub fn health(
        &self,
        claims: &[ClaimOf],
        runs: &[Run],
        now: DateTime<Utc>,
    ) -> Result<Health, BadCron> {
        let timing = self.timing()?;
        let beat = Beat::new(timing.cron, now);
        let leeway = leeway(self.spec);
        let since = self.settled(now).since;
        let good = newest_good(runs);
        let of = |claim: &ClaimOf| {
            // A run of a group is of each of its claims: of both the API's later one counts, as a
            // source may have been changed from one to the other.
            let own = [good.get(&Some(claim.name.as_str())), good.get(&None)];
            let good = own.into_iter().flatten().max_by_key(|(run, _)| run.created);
            // By a clock that is ahead it would be in time for as long.
            good.map(|(run, cut)| if *cut <= now { *cut } else { run.created })
        };
        // Since when a claim that is behind waits for one.
        let behind_since = |claim: &ClaimOf| {
            let last = since.max(claim.created).max(of(claim).unwrap_or(since));
            beat.owed(last, leeway).filter(|owed| owed.is_late).map(|owed| owed.since)
        };
        let ended = newest_ended(runs);
        let has_failed = |claim: &&ClaimOf| {
            let own = [ended.get(&Some(claim.name.as_str())), ended.get(&None)];
            let last = own.into_iter().flatten().max_by_key(|run| run.created);
            last.is_some_and(|run| run.state == State::Failed)
        };
        let waits: BTreeMap<&str, DateTime<Utc>> = claims
            .iter()
            .filter_map(|claim| Some((claim.name.as_str(), behind_since(claim)?)))
            .collect();
        let behind: Vec<&ClaimOf> =
            claims.iter().filter(|claim| waits.contains_key(claim.name.as_str())).collect();
        let failed: Vec<&ClaimOf> = claims.iter().filter(has_failed).collect();
        let up_to_date = if self.spec.suspend {
            Verdict::unknown("Suspended", "it rests: set spec.suspend to false".into())
        } else if claims.is_empty() {
            Verdict::no("NoClaims", "no claim of this namespace is meant by its source".into())
        } else if !behind.is_empty() {
            let due = waits.values().min().map(DateTime::to_rfc3339).unwrap_or_default();
            let what = format!("no good backup since {due}: {}", named(&behind));
            Verdict::no("Behind", what)
        } else if !failed.is_empty() {
            Verdict::no("LastRunFailed", format!("the last backup failed: {}", named(&failed)))
        } else {
            Verdict::yes("UpToDate", "each claim has the backup that it should have".into())
        };
        let newest_good = claims.iter().map(of).min().flatten();
        Ok(Health { up_to_date, newest_good, claims: claims.len() })
    }
}

/// The run of each claim that ended, and that the API made last.
fn newest_ended(runs: &[Run]) -> BTreeMap<Option<&str>, &Run> {
    let mut newest: BTreeMap<Option<&str>, &Run> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.state != State::UnderWay) {
        let last = newest.entry(run.claim.as_deref()).or_insert(run);
        if run.created > last.created {
            *last = run;
        }
    }
    newest
}

fn named(claims: &[&ClaimOf]) -> String {
    let names: Vec<&str> = claims.iter().take(NAMED_MAX).map(|at| at.name.as_str()).collect();
    let more = claims.len() - names.len();
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
