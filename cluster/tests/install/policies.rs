//! Admission policies: for authors with more and with fewer rights, and for the controller.

use crate::cel::{Request, looks, refusals};
use crate::{examples, text};
use mover_cluster::install::{Policy, Settings, policies};
use serde_json::Value;
use std::collections::BTreeSet;

const CONTROLLER: &str = "system:serviceaccount:mover-system:mover-controller";

fn all() -> Vec<Policy> {
    policies(&Settings::new("mover-system", "mover:1"))
}

/// Those of an installation that moves data for Velero.
fn all_of_velero() -> Vec<Policy> {
    let velero = Some("velero".to_owned());
    policies(&Settings { velero, ..Settings::new("mover-system", "mover:1") })
}

fn request(example: &Value, user: &str) -> Request {
    let object = example.get("object").cloned().unwrap_or_default();
    let old = example.get("old").cloned().unwrap_or_default();
    let operation = match (object.is_null(), old.is_null()) {
        (true, _) => "DELETE",
        (false, true) => "CREATE",
        (false, false) => "UPDATE",
    };
    let about = if object.is_null() { &old } else { &object };
    let namespace = about["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    let rights = example["rights"].as_array().into_iter().flatten();
    Request {
        operation: operation.into(),
        user: user.into(),
        namespace,
        rights: rights.filter_map(Value::as_str).map(str::to_owned).collect(),
        object,
        old,
    }
}

fn tried(policies: &[Policy], file: &str, user: &str) -> BTreeSet<String> {
    let mut refused = BTreeSet::new();
    for example in examples(file) {
        let said = refusals(policies, &request(&example, user))
            .unwrap_or_else(|why| panic!("{}: {why}", text(&example, "about")));
        match example["refused"].as_str() {
            None => assert_eq!(said, Vec::<String>::new(), "{example}"),
            Some(wanted) => {
                assert!(said.iter().any(|said| said.contains(wanted)), "{said:?} for {example}");
                refused.extend(said);
            }
        }
    }
    refused
}

/// A condition that nothing is refused by may say anything.
fn each_refuses(policies: &[Policy], refused: &BTreeSet<String>, prefix: &str) {
    let mut count = 0;
    for policy in policies.iter().filter(|policy| policy.name.starts_with(prefix)) {
        for validation in &policy.validations {
            count += 1;
            assert!(
                refused.contains(&validation.message),
                "{}: no example is refused by: {}",
                policy.name,
                validation.message
            );
        }
    }
    assert!(count > 10, "{count} conditions");
}

#[test]
fn authors_get_no_more_than_they_have() {
    // Where restores in place are switched off, one more condition speaks.
    let off = Settings { in_place: "false".into(), ..Settings::new("mover-system", "mover:1") };
    let mut refused = tried(&all(), "authors.jsonl", "ann");
    let in_place = examples("authors.jsonl")
        .into_iter()
        .find(|at| text(at, "about") == "in place, with both rights")
        .expect("that example");
    let said = refusals(&policies(&off), &request(&in_place, "ann")).expect("a verdict");
    assert_eq!(said.len(), 1, "{said:?}");
    refused.extend(said);
    each_refuses(&all(), &refused, "mover-authors-");
}

/// The controller acts for authors that were asked already.
#[test]
fn the_policies_of_authors_are_not_about_the_controller() {
    let policies: Vec<Policy> =
        all().into_iter().filter(|policy| policy.name.starts_with("mover-authors-")).collect();
    for example in examples("authors.jsonl") {
        let said = refusals(&policies, &request(&example, CONTROLLER)).expect("a verdict");
        assert_eq!(said, Vec::<String>::new(), "{example}");
    }
}

#[test]
fn the_controller_keeps_to_what_is_its_own() {
    let refused = tried(&all(), "controller.jsonl", CONTROLLER);
    each_refuses(&all(), &refused, "mover-controller-");
}

/// What is moved for Velero takes more, and all else is bounded as it is without.
#[test]
fn the_controller_takes_what_velero_gives_it() {
    let policies = all_of_velero();
    let mut refused = tried(&policies, "velero.jsonl", CONTROLLER);
    refused.extend(tried(&policies, "controller.jsonl", CONTROLLER));
    each_refuses(&policies, &refused, "mover-controller-");
}

#[test]
fn without_velero_nothing_is_taken_over() {
    let policies = all();
    for about in ["a snapshot of Velero is taken over", "it is to be kept"] {
        let all = examples("velero.jsonl");
        let example = all.iter().find(|at| text(at, "about") == about).expect("that example");
        let said = refusals(&policies, &request(example, CONTROLLER)).expect("a verdict");
        assert_eq!(said.len(), 1, "{about}: {said:?}");
    }
}

/// Everybody else may do what their rights allow.
#[test]
fn the_bounds_of_the_controller_are_nobody_elses() {
    let policies: Vec<Policy> = all_of_velero()
        .into_iter()
        .filter(|policy| policy.name.starts_with("mover-controller-"))
        .collect();
    for example in examples("controller.jsonl").into_iter().chain(examples("velero.jsonl")) {
        let said = refusals(&policies, &request(&example, "ann")).expect("a verdict");
        assert_eq!(said, Vec::<String>::new(), "{example}");
    }
}

/// A look at somebody's rights counts 350,000 of the 1,000,000 that one expression may cost.
#[test]
fn no_expression_looks_at_more_than_two_rights() {
    for policy in all_of_velero() {
        for validation in &policy.validations {
            let looks = looks(&policy, &validation.expression);
            assert!(looks <= 2, "{}: {looks} in {}", policy.name, validation.expression);
        }
    }
}
