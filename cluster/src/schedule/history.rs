//! Which ended backups of a schedule leave the cluster. The backups in the repository stay.

use super::runs::{Run, State};
use chrono::{DateTime, Utc};
use std::collections::{BTreeMap, BTreeSet};

/// Ended runs of each claim that stay where the spec does not say.
const KEEP: u32 = 3;

/// The runs to be removed: for each claim, all ended ones but the newest `keep`. The newest good
/// one stays besides, and so does each that is under way or `held` by a restore.
#[must_use]
pub fn surplus<'a>(runs: &'a [Run], keep: Option<u32>, held: &BTreeSet<String>) -> Vec<&'a Run> {
    let keep = usize::try_from(keep.unwrap_or(KEEP)).unwrap_or(usize::MAX);
    let mut by_claim: BTreeMap<Option<&str>, Vec<&Run>> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.state != State::UnderWay) {
        by_claim.entry(run.claim.as_deref()).or_default().push(run);
    }
    let good = newest_good(runs);
    let mut surplus = Vec::new();
    for (claim, mut ended) in by_claim {
        // In the order of the API's own clock: a name may be of a clock that was wrong.
        ended.sort_by_key(|run| (std::cmp::Reverse(run.created), std::cmp::Reverse(&run.name)));
        let good = good.get(&claim).map(|(run, _)| &run.name);
        let rest = ended.into_iter().skip(keep.max(1));
        surplus.extend(rest.filter(|run| Some(&run.name) != good && !held.contains(&run.name)));
    }
    surplus
}

/// The good run of each claim that the API made last, and the moment that it holds.
#[must_use]
pub fn newest_good(runs: &[Run]) -> BTreeMap<Option<&str>, (&Run, DateTime<Utc>)> {
    let mut newest: BTreeMap<Option<&str>, (&Run, DateTime<Utc>)> = BTreeMap::new();
    for run in runs {
        let State::Good { cut } = run.state else { continue };
        let best = newest.entry(run.claim.as_deref()).or_insert((run, cut));
        if (run.created, &run.name) > (best.0.created, &best.0.name) {
            *best = (run, cut);
        }
    }
    newest
}
