//! A model of the commit and collection protocol, searched exhaustively, and runs of the code
//! held against it.
//!
//! What is modelled, what was seen, and what is not covered: `docs/protocol.md`.
//!
//! - `steps` is the list of operations on the store. `writer`, `reader`, `collector`, `mark` and
//!   `sweep` are the actors: which step comes when, and what it does to a `store` of a few bits.
//!   `rules` are switches: all on is the protocol.
//! - `scenarios` are small worlds of a few actors. `search` visits every state that any
//!   interleaving of their steps leads to, and asks in each whether every backup is whole. A
//!   crash is an actor that never moves again, so all crashes are contained; `settle` asks what
//!   two collections would leave if everybody crashed right there.
//! - `replay` records every request of real runs and follows them step by step as a path of the
//!   model.
//!
//! `MOVER_TEST_MODEL=large` searches the worlds too that take more than a minute together.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test that cannot go on has failed; figures are shown

mod collector;
mod mark;
mod reader;
mod replay;
mod rules;
mod scenarios;
mod search;
mod settle;
mod steps;
mod store;
mod sweep;
mod world;
mod writer;

use rules::{MarkOrder, Rules};
use scenarios as s;
use search::search;
use std::collections::BTreeSet;
use world::World;

/// Far above any of these worlds: one that grows beyond it is not searched whole, and the test
/// fails.
const STATES_MAX: usize = 400_000_000;

fn is_large() -> bool {
    #[allow(clippy::disallowed_methods)] // a test's own setting
    let size = std::env::var("MOVER_TEST_MODEL").unwrap_or_default();
    assert!(["", "small", "large"].contains(&size.as_str()), "MOVER_TEST_MODEL is small or large");
    size == "large"
}

/// Every state of each world has all properties.
fn holds(worlds: &[(&str, World)]) {
    for (name, world) in worlds {
        let found = search(world, STATES_MAX);
        println!("{name}: {found}");
        assert!(found.exhausted, "{name}: {found}");
    }
}

#[test]
fn writers_reuse_and_inherit() {
    holds(&[
        ("reuse", s::reuse()),
        ("chain", s::chain()),
        ("forgotten parent", s::forgotten_parent()),
        ("torn list", s::torn_list()),
        ("double start", s::double_start()),
        ("heartbeat", s::heartbeat()),
    ]);
}

#[test]
fn writers_go_on() {
    holds(&[
        ("fenced writer", s::fenced_writer()),
        ("checkpoint", s::checkpoint()),
        ("adopted child", s::adopted_child()),
        ("adopted and forgotten", s::adopted_and_forgotten()),
    ]);
}

#[test]
fn several_collections_rewrite() {
    holds(&[
        ("two rewrites", s::two_rewrites()),
        ("rewrite and condemn", s::rewrite_and_condemn()),
        ("rewrite beside reuse", s::rewrite_beside_reuse()),
        ("rescued and rewritten", s::rescued_and_rewritten()),
    ]);
}

#[test]
fn stubs_lead_to_stubs() {
    holds(&[
        ("stub chain, reader", s::stub_chain(true)),
        ("longer chain", s::longer_chain()),
        ("stubs removed", s::stubs_removed()),
        ("stubs put back", s::stubs_put_back()),
    ]);
}

#[test]
fn damage_is_not_inherited() {
    holds(&[("damage", s::damage())]);
}

#[test]
fn features_are_safe_from_who_does_not_know_them() {
    holds(&[("feature", s::feature()), ("feature and rewrite", s::feature_and_rewrite())]);
}

#[test]
fn several_lists_are_read_in_turn() {
    holds(&[("three lists", s::three_lists())]);
}

#[test]
fn large_worlds() {
    if is_large() {
        holds(&[("stub chain, writer", s::stub_chain(false)), ("two lists", s::two_lists())]);
    } else {
        println!("left out: MOVER_TEST_MODEL=large searches them");
    }
}

/// Each rule, and a world in which a backup refers to deleted data without it.
#[allow(clippy::too_many_lines)] // a table
fn without() -> Vec<(&'static str, World, Rules)> {
    let all = Rules::ALL;
    vec![
        ("forgotten records stay", s::chain(), Rules { forgotten_stay: false, ..all }),
        ("verdicts stay", s::torn_list(), Rules { verdicts_stay: false, ..all }),
        ("fences stay", s::fenced_writer(), Rules { fences_stay: false, ..all }),
        (
            "writer 2: the parent is confirmed under the lease",
            s::chain(),
            Rules { parent_after_lease: false, ..all },
        ),
        (
            "writer 3: condemned lists are read",
            s::chain(),
            Rules { writer_reads_condemned: false, ..all },
        ),
        (
            "writer 6: reused packs are looked at",
            s::chain(),
            Rules { reused_are_looked_at: false, ..all },
        ),
        (
            "resumed writer 2: absent from the lists read under the new lease",
            s::chain(),
            Rules { resumed_reads_condemned: false, ..all },
        ),
        (
            "resumed writer 2: found by a look-up after that",
            s::chain(),
            Rules { resumed_looks: false, ..all },
        ),
        (
            "a lease with a checkpoint stays",
            s::checkpoint(),
            Rules { shared_lease_stays: false, ..all },
        ),
        (
            "forget creates its record and nothing else",
            s::torn_list(),
            Rules { forget_deletes_nothing: false, ..all },
        ),
        (
            "condemn 3: lists are read before stubs",
            s::rewrite_and_condemn(),
            Rules { mark_order: MarkOrder::ManifestsStubsLists, ..all },
        ),
        (
            "condemn 3: relocations keep their targets",
            s::rewrite_and_condemn(),
            Rules { relocations_count: false, ..all },
        ),
        (
            "condemn 3: a verdict meanwhile means again",
            s::torn_list(),
            Rules { mark_again: false, ..all },
        ),
        (
            "condemn 5: a fenced collector stops",
            s::rewrite_and_condemn(),
            Rules { fenced_condemn_stops: false, ..all },
        ),
        (
            "condemn 6: leases are listed after condemned is there",
            s::chain(),
            Rules { leases_after_condemned: false, ..all },
        ),
        (
            "sweep 1: blockers that a crash left out are made",
            s::fenced_writer(),
            Rules { sweep_makes_blockers: false, ..all },
        ),
        (
            "sweep 2: the fence comes before the removal",
            s::fenced_writer(),
            Rules { fence_before_removal: false, ..all },
        ),
        ("sweep 3: marks again", s::chain(), Rules { sweep_marks_again: false, ..all }),
        (
            "sweep 3: with the recorded forgotten set",
            s::torn_list(),
            Rules { recorded_forgotten: false, ..all },
        ),
        (
            "sweep 3: features are looked for after the mark",
            s::feature(),
            Rules { sweep_looks_for_features: false, ..all },
        ),
        (
            "a writer uses a feature only after it has seen it",
            s::feature(),
            Rules { features_are_seen: false, ..all },
        ),
        (
            "sweep 6: stubs come after the verdict",
            s::rescued_and_rewritten(),
            Rules { stubs_after_verdict: false, ..all },
        ),
        (
            "stubs that only stubs lead to are live",
            s::stub_chain(true),
            Rules { chains_count: false, ..all },
        ),
        (
            "sweep 9: condemned goes last",
            s::chain(),
            Rules { condemned_removed_last: false, ..all },
        ),
        (
            "damage records go after the second mark",
            s::damage(),
            Rules { damage_waits: false, ..all },
        ),
    ]
}

#[test]
fn no_rule_can_be_left_out() {
    let mut names = BTreeSet::new();
    for (rule, world, rules) in without() {
        assert!(rules != Rules::ALL && names.insert(rule), "{rule} is no switch of its own");
        // garbage that stays is not enough: something must be lost
        let found = search(&World { rules, leftovers: false, ..world }, STATES_MAX);
        let lost = found.violation.as_ref().map(|(property, _)| *property);
        println!(
            "without \"{rule}\": not so after {} steps, {} states: {}",
            found.depth,
            found.states,
            lost.unwrap_or("-")
        );
        assert!(lost.is_some(), "{rule}: nothing is lost without it: {found}");
    }
}
