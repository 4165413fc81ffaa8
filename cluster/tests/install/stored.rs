//! Objects of our kinds as API servers have stored them for another version of this program, in
//! `stored/VERSION.jsonl`: this one reads all of each, its definitions take it, and a write of it
//! loses nothing.
//!
//! After a change of a kind, write a file of the new version from a cluster that the tests have
//! filled (`kubectl get -A -o json`, an object a line), and keep the old ones for as long as that
//! version may be what an upgrade finds.

use crate::{examples, text};
use kube_cel::Validator;
use mover_cluster::kinds::{
    BackupSchedule, DifferentialSnapshot, Repository, VolumeBackup, VolumeRestore, definitions,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

const VERSIONS: [&str; 1] = ["0.1.0"];

fn again<T: DeserializeOwned + Serialize>(stored: &Value) -> Value {
    let read: T = serde_json::from_value(stored.clone())
        .unwrap_or_else(|why| panic!("{}: {why}: {stored}", text(stored, "kind")));
    serde_json::to_value(read).expect("JSON")
}

/// What this version writes of an object that it has read.
fn written(stored: &Value) -> Value {
    match text(stored, "kind") {
        "Repository" => again::<Repository>(stored),
        "VolumeBackup" => again::<VolumeBackup>(stored),
        "VolumeRestore" => again::<VolumeRestore>(stored),
        "BackupSchedule" => again::<BackupSchedule>(stored),
        "DifferentialSnapshot" => again::<DifferentialSnapshot>(stored),
        other => panic!("no kind of ours: {other}"),
    }
}

/// What is said by leaving it out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    }
}

/// Members that are lost or others, by their paths.
fn lost(stored: &Value, written: &Value, path: &str, found: &mut Vec<String>) {
    match (stored, written) {
        (Value::Object(stored), Value::Object(_)) => {
            for (name, member) in stored {
                lost(member, &written[name], &format!("{path}.{name}"), found);
            }
        }
        (Value::Array(stored), Value::Array(now)) if stored.len() == now.len() => {
            for (at, (member, now)) in stored.iter().zip(now).enumerate() {
                lost(member, now, &format!("{path}[{at}]"), found);
            }
        }
        (stored, now) if stored == now || now.is_null() && is_empty(stored) => {}
        (stored, now) => found.push(format!("{path}: {stored} is {now}")),
    }
}

#[test]
fn objects_that_another_version_stored_are_read() {
    for version in VERSIONS {
        let all = examples(&format!("stored/{version}.jsonl"));
        let mut seen = BTreeSet::new();
        for stored in &all {
            let kind = text(stored, "kind");
            seen.insert(kind.to_owned());
            let written = written(stored);
            let mut found = Vec::new();
            for part in ["spec", "status"] {
                // A status that is not there yet is no status.
                if stored.get(part).is_some() {
                    lost(&stored[part], &written[part], part, &mut found);
                }
            }
            let name = &stored["metadata"]["name"];
            assert!(found.is_empty(), "{version}, {kind} {name}: {found:#?}");
            let definition = definitions();
            let definition = definition.iter().find(|at| at["spec"]["names"]["kind"] == kind);
            let schema =
                &definition.expect("a kind")["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
            if let Err(why) = Validator::new().validate(schema, &written, Some(stored)) {
                let why: Vec<_> = why.iter().map(|one| one.message.clone()).collect();
                panic!("{version}, {kind} {name} cannot be written: {why:?}");
            }
        }
        let kinds: Vec<&str> = seen.iter().map(String::as_str).collect();
        let wanted = [
            "BackupSchedule",
            "DifferentialSnapshot",
            "Repository",
            "VolumeBackup",
            "VolumeRestore",
        ];
        assert_eq!(kinds, wanted, "{version}");
    }
}
