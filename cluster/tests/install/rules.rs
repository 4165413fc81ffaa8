//! The rules of our kinds, by a CEL interpreter of its own: an example that is taken and one that is
//! refused for each.

use crate::{examples, text};
use kube_cel::{Validator, apply_defaults, compile_schema, estimate_rule_cost};
use mover_cluster::kinds::definitions;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn schema(kind: &str) -> Value {
    let all = definitions();
    let found = all.iter().find(|at| at["spec"]["names"]["kind"] == kind).expect("a kind");
    found["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// Rules below a schema, with the paths of their members.
fn rules<'a>(schema: &'a Value, path: &str, found: &mut Vec<(String, &'a Value)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        found.push((path.to_owned(), rule));
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        rules(member, &format!("{path}.{name}"), found);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            rules(&schema[inner], &format!("{path}[]"), found);
        }
    }
}

fn object(schema: &Value, kind: &str, spec: &Value) -> Value {
    let object = json!({
        "apiVersion": "mover.dev/v1alpha1",
        "kind": kind,
        "metadata": { "name": "one", "namespace": "shop" },
        "spec": spec,
    });
    // As the API server does before it looks at rules.
    apply_defaults(schema, &object)
}

/// What is wrong with an example, in the words of the rules.
fn said(example: &Value) -> Vec<String> {
    let kind = text(example, "kind");
    let schema = schema(kind);
    let new = object(&schema, kind, &example["spec"]);
    let old = example.get("old").map(|old| object(&schema, kind, old));
    match Validator::new().validate(&schema, &new, old.as_ref()) {
        Ok(()) => Vec::new(),
        Err(all) => all.iter().map(|one| one.message.clone()).collect(),
    }
}

#[test]
fn examples_are_taken_and_refused_as_they_say() {
    for example in examples("rules.jsonl") {
        let said = said(&example);
        match example["refused"].as_str() {
            None => assert_eq!(said, Vec::<String>::new(), "{example}"),
            Some(wanted) => {
                assert!(said.iter().any(|said| said.contains(wanted)), "{said:?} for {example}");
            }
        }
    }
}

/// A rule that nothing is refused by may say anything.
#[test]
fn each_rule_refuses_an_example() {
    let all = examples("rules.jsonl");
    for definition in definitions() {
        let kind = definition["spec"]["names"]["kind"].as_str().expect("a kind");
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut found = Vec::new();
        rules(schema, "", &mut found);
        assert!(!found.is_empty(), "{kind} has rules");
        for (path, rule) in found {
            let message = rule["message"].as_str().expect("each rule has a message");
            // A schedule has the specs of its backups: their rules are tried there.
            if kind == "BackupSchedule" && path.starts_with(".spec.template.spec") {
                continue;
            }
            let refuses = |example: &&Value| {
                text(example, "kind") == kind
                    && example["refused"].as_str().is_some_and(|said| message.contains(said))
            };
            assert!(all.iter().any(|at| refuses(&at)), "{kind}{path}: {message}");
        }
    }
}

/// A template may change: only what ran stays as it was.
#[test]
fn no_rule_of_a_template_looks_at_what_it_was() {
    let schema = schema("BackupSchedule");
    let mut found = Vec::new();
    rules(&schema["properties"]["spec"]["properties"]["template"], "", &mut found);
    assert!(!found.is_empty());
    for (path, rule) in found {
        assert!(!rule["rule"].as_str().expect("a rule").contains("oldSelf"), "{path}: {rule}");
    }
}

/// The rule names members one by one: one that is added later must not be forgotten.
#[test]
fn no_member_of_a_backup_but_its_deletion_policy_changes() {
    let schema = schema("VolumeBackup");
    let members = &schema["properties"]["spec"]["properties"];
    let all: BTreeSet<&str> =
        members.as_object().expect("members").keys().map(String::as_str).collect();
    let tried: BTreeSet<String> = examples("rules.jsonl")
        .into_iter()
        .filter(|at| text(at, "kind") == "VolumeBackup" && at.get("old").is_some())
        .flat_map(|at| {
            let differs = |name: &&String| at["spec"][*name] != at["old"][*name];
            let of = |side: &str| at[side].as_object().expect("a spec").clone();
            let names: BTreeSet<String> =
                of("spec").keys().chain(of("old").keys()).cloned().collect();
            names.iter().filter(differs).cloned().collect::<Vec<_>>()
        })
        .collect();
    for member in all {
        assert!(tried.contains(member), "no example changes {member}");
    }
}

/// An API server refuses rules that could cost too much, and values of no bound make them so.
#[test]
fn rules_are_cheap_enough() {
    for definition in definitions() {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        check_costs(schema, &definition["spec"]["names"]["kind"].to_string());
    }
}

fn check_costs(schema: &Value, path: &str) {
    let compiled = compile_schema(schema);
    assert!(!compiled.has_errors(), "{path}: {:?}", compiled.compilation_errors());
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = rule["rule"].as_str().expect("a rule");
        let warnings = estimate_rule_cost(text, &compiled);
        assert!(warnings.is_empty(), "{path}: {text}: {warnings:?}");
        if text.contains("self.matches(") {
            assert!(schema["maxLength"].is_u64(), "{path}: {text}: no bound on its length");
        }
    }
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        check_costs(member, &format!("{path}.{name}"));
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            check_costs(&schema[inner], &format!("{path}[]"));
        }
    }
}

/// Schemas that an API server takes as structural: a type everywhere, no references.
#[test]
fn schemas_are_structural() {
    for definition in definitions() {
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        structural(schema, &definition["spec"]["names"]["kind"].to_string());
    }
}

fn structural(schema: &Value, path: &str) {
    assert!(schema["type"].is_string(), "{path} has no type: {schema}");
    for forbidden in ["$ref", "definitions", "$defs", "allOf", "patternProperties"] {
        assert!(schema.get(forbidden).is_none(), "{path} has {forbidden}");
    }
    assert!(
        schema.get("properties").is_none() || schema.get("additionalProperties").is_none(),
        "{path} has both properties and additionalProperties"
    );
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        structural(member, &format!("{path}.{name}"));
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            structural(&schema[inner], &format!("{path}[]"));
        }
    }
}
