//! Which runs leave the cluster.

use super::{Draw, at};
use chrono::Duration;
use mover_cluster::schedule::{Run, State, newest_good, surplus};
use std::collections::BTreeSet;

fn run(number: i64, claim: &str, state: char) -> Run {
    let created = at("2026-05-01T00:00:00Z") + Duration::hours(number);
    Run {
        name: format!("{claim}-{number:03}"),
        claim: Some(claim.into()),
        scheduled: None,
        created,
        state: match state {
            'g' => State::Good { cut: created },
            'f' => State::Failed,
            _ => State::UnderWay,
        },
    }
}

/// Runs of one claim, the oldest first, as letters.
fn runs(claim: &str, states: &str) -> Vec<Run> {
    (0..).zip(states.chars()).map(|(number, state)| run(number, claim, state)).collect()
}

fn gone(runs: &[Run], keep: Option<u32>, held: &[&str]) -> Vec<String> {
    let held = held.iter().map(ToString::to_string).collect();
    let mut gone: Vec<String> =
        surplus(runs, keep, &held).into_iter().map(|run| run.name.clone()).collect();
    gone.sort();
    gone
}

#[test]
fn the_newest_stay_and_the_newest_good_one_besides() {
    assert_eq!(gone(&runs("a", "ggggg"), None, &[]), ["a-000", "a-001"]);
    assert_eq!(gone(&runs("a", "gggff"), Some(1), &[]), ["a-000", "a-001", "a-003"]);
    assert_eq!(gone(&runs("a", "gfff"), Some(2), &[]), ["a-001"]);
    assert_eq!(gone(&runs("a", "gggrr"), Some(1), &[]), ["a-000", "a-001"], "running ones stay");
    assert_eq!(gone(&runs("a", "rrrrr"), Some(1), &[]), [""; 0]);
    assert_eq!(gone(&runs("a", "ggggg"), Some(1), &["a-001"]), ["a-000", "a-002", "a-003"]);
    let mut two = runs("a", "ggg");
    two.extend(runs("b", "gg"));
    assert_eq!(gone(&two, Some(1), &[]), ["a-000", "a-001", "b-000"]);
}

#[test]
fn a_moment_that_a_status_says_decides_nothing() {
    let mut all = runs("a", "ggg");
    all[0].state = State::Good { cut: at("2026-06-01T00:00:00Z") };
    assert_eq!(newest_good(&all)[&Some("a")].0.name, "a-002");
    assert_eq!(gone(&all, Some(1), &[]), ["a-000", "a-001"]);
}

#[test]
fn no_draw_of_runs_loses_a_newest_good_one() {
    for seed in 0..500 {
        let mut draw = Draw(seed);
        let mut all = Vec::new();
        for number in 0..20 {
            let claim = ["a", "b", "c"][usize::try_from(draw.below(3)).expect("small")];
            let state = ['g', 'f', 'r'][usize::try_from(draw.below(3)).expect("small")];
            all.push(run(number, claim, state));
        }
        let keep = 1 + u32::try_from(draw.below(4)).expect("small");
        let gone: BTreeSet<String> = gone(&all, Some(keep), &[]).into_iter().collect();
        for (run, _) in newest_good(&all).values() {
            assert!(!gone.contains(&run.name), "seed {seed}");
        }
        for claim in ["a", "b", "c"] {
            let own = all.iter().filter(|run| run.claim.as_deref() == Some(claim));
            let (running, ended): (Vec<_>, Vec<_>) =
                own.partition(|run| run.state == State::UnderWay);
            assert!(running.iter().all(|run| !gone.contains(&run.name)), "seed {seed}");
            let left = ended.iter().filter(|run| !gone.contains(&run.name)).count();
            let keep = usize::try_from(keep).expect("small");
            assert!(left >= ended.len().min(keep) && left <= keep + 1, "seed {seed}: {left}");
        }
    }
}
