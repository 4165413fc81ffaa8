//! `backup --objects` and `objects … --from` against fixed answers: what is made, in which order, and
//! that nothing of a Secret is said or kept.

use super::objects::{named, shop, shown};
use super::server::{Answer, Server};
use super::{ends, healthy, list, text};
use base64::Engine as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const SHOP: &str = "/api/v1/namespaces/shop";
const JOBS: &str = "/apis/batch/v1/namespaces/shop/jobs";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots";
const HUSH: &str = "hush-hush-value";

fn in_base64(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// A claim, its Repository, objects of the namespace, and a repository that answers with this line.
fn cluster(line: &Value) -> BTreeMap<String, Answer> {
    let mut all = shop();
    all.extend(healthy());
    let secret = named("password", json!({ "data": { "p": in_base64(HUSH) } }));
    all.insert(format!("{SHOP}/secrets"), Answer::Object(list(&[secret])));
    let done = json!({ "status": { "conditions": [{ "type": "Complete", "status": "True" }] } });
    all.insert(format!("POST {JOBS}"), Answer::Made(done));
    let message = json!({ "state": "ok", "summary": {} }).to_string();
    let end = json!({ "terminated": { "exitCode": 0, "message": message } });
    let pod = json!({
        "metadata": { "name": "p", "namespace": "shop", "uid": "p" },
        "status": { "containerStatuses": [{ "name": "mover", "state": end }] },
    });
    all.insert(format!("{SHOP}/pods"), Answer::Object(list(&[pod])));
    all.insert(format!("{SHOP}/pods/p/log"), Answer::Object(line.clone()));
    for path in [
        format!("POST {SHOP}/configmaps"),
        format!("POST {SHOP}/secrets"),
        "POST /apis/coordination.k8s.io/v1/namespaces/shop/leases".to_owned(),
    ] {
        let metadata = json!({ "uid": "run", "resourceVersion": "1" });
        all.insert(path, Answer::Made(json!({ "metadata": metadata })));
    }
    all.insert(format!("POST {SNAPSHOTS}"), Answer::Refused(403, "no snapshots today"));
    all
}

fn with_feature() -> Value {
    json!({ "type": "summary", "features": [{ "name": "attachments" }] })
}

/// What was made: the last part of each path, and the object.
fn made(server: &Server) -> Vec<(String, Value)> {
    let sent = server.sent().into_iter().filter(|(method, ..)| method == "POST");
    let plural = |path: &str| {
        let path = path.split('?').next().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default().to_owned()
    };
    sent.map(|(_, path, body)| (plural(&path), body)).collect()
}

fn said(output: &std::process::Output) -> String {
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn objects_are_handed_over_by_a_secret_before_a_snapshot_is_taken() {
    let server = Server::start("carried", cluster(&with_feature()));
    let output = server.run(&["backup", "pvc/db", "--objects", "-vv"]);
    let said = said(&output);
    assert_ne!(output.status.code(), Some(0), "{said}");
    let all = made(&server);
    let kinds: Vec<&str> = all.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["jobs", "configmaps", "leases", "secrets", "volumesnapshots"], "{said}");
    let request: Value =
        serde_json::from_str(all[1].1["data"]["request"].as_str().expect("text")).expect("JSON");
    let objects = &request["objects"];
    let secret = &all[3].1;
    assert_eq!(secret["metadata"]["name"], "mover-run-objects-1");
    assert_eq!((&secret["immutable"], &secret["type"]), (&json!(true), &json!("Opaque")));
    assert_eq!(secret["metadata"]["labels"]["mover.dev/owner"], "run");
    let part = secret["data"]["part"].as_str().expect("a part");
    let bytes = base64::engine::general_purpose::STANDARD.decode(part).expect("base64");
    assert_eq!(objects["digest"], blake3::hash(&bytes).to_hex().as_str());
    assert_eq!((&objects["parts"], &objects["sizeBytes"]), (&json!(1), &json!(bytes.len())));
    let plain = zstd::stream::decode_all(bytes.as_slice()).expect("a frame with its checksum");
    let plain = text(&plain);
    assert!(plain.contains("\"mover.dev/object-manifest/v1\""), "{plain}");
    assert!(plain.contains(&in_base64(HUSH)), "{plain}");
    // Nowhere else, however much is said.
    for text in [&said, &request.to_string(), &all[4].1.to_string()] {
        for secret in [HUSH, &in_base64(HUSH), part] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    assert!(said.contains("objects of namespace shop go with the backup"), "{said}");
}

#[test]
fn a_repository_that_keeps_no_objects_is_said_before_anything_is_made() {
    let server = Server::start("carried-none", cluster(&json!({ "features": [] })));
    let output = server.run(&["backup", "pvc/db", "--objects"]);
    ends(&output, 2, &[]);
    let err = text(&output.stderr);
    let hint = "kubectl mover repository upgrade default -n shop --add attachments";
    assert!(err.contains("keeps no objects") && err.contains(hint), "{err}");
    // Nothing but the Job that asked, and no object was read for nothing.
    let all = made(&server);
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(!server.sent().iter().any(|(_, path, _)| path.starts_with(&format!("{SHOP}/secrets"))));
    // Of two claims one has asked for both.
    let mut answers = cluster(&json!({ "features": [] }));
    let claim = |name: &str| {
        json!({
            "metadata": { "name": name, "namespace": "shop", "uid": name },
            "spec": { "volumeName": "pv-db", "volumeMode": "Block", "storageClassName": "fast" },
            "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } },
        })
    };
    let claims = format!("{SHOP}/persistentvolumeclaims");
    answers.insert(claims.clone(), Answer::Object(list(&[claim("db"), claim("files")])));
    answers.insert(format!("{claims}/files"), Answer::Object(claim("files")));
    let server = Server::start("carried-none-of-many", answers);
    let many = server.run(&["backup", "ns/shop", "--objects"]);
    ends(&many, 2, &[]);
    assert_eq!(made(&server).len(), 1, "{}", said(&many));
    assert_eq!(said(&many).matches(hint).count(), 2, "{}", said(&many));
    // of many, the table says it for each
    assert!(said(&many).contains(hint), "{}", said(&many));
}

/// Of two namespaces the first one has Secrets that this user may not read.
#[test]
fn a_namespace_that_may_not_be_read_stops_no_other() {
    let mut answers = cluster(&with_feature());
    let elsewhere = |text: &str| text.replace("shop", "another");
    for (path, answer) in cluster(&with_feature()).into_iter().filter(|(at, _)| at.contains("shop"))
    {
        let moved = |object: &Value| serde_json::from_str(&elsewhere(&object.to_string()));
        let answer = match answer {
            Answer::Object(object) => Answer::Object(moved(&object).expect("JSON")),
            Answer::Made(object) => Answer::Made(moved(&object).expect("JSON")),
            other => other,
        };
        answers.insert(elsewhere(&path), answer);
    }
    let secrets = format!("{}/secrets", elsewhere(SHOP));
    answers.insert(secrets, Answer::Refused(403, "secrets is forbidden"));
    let server = Server::start("carried-two", answers);
    let said = said(&server.run(&["backup", "ns/another", "ns/shop", "--objects"]));
    let why = "pvc/db in namespace another: secrets in namespace another cannot be read: ";
    assert!(said.contains(why), "{said}");
    assert!(said.contains("objects of namespace shop go with the backup"), "{said}");
    // Of the first one nothing but the Job that asked for its repository's features.
    let sent = server.sent();
    let of = |namespace: &str, plural: &str| {
        let path = format!("/namespaces/{namespace}/{plural}");
        sent.iter().filter(|(method, at, _)| method == "POST" && at.contains(&path)).count()
    };
    assert_eq!((of("another", ""), of("another", "jobs")), (1, 1), "{said}");
    assert_eq!(of("shop", "secrets"), 1, "{said}");
}

#[test]
fn what_may_not_be_read_ends_it_before_anything_is_made() {
    let mut answers = cluster(&with_feature());
    let cannot = "secrets is forbidden: User \"u\" cannot list resource \"secrets\"";
    answers.insert(format!("{SHOP}/secrets"), Answer::Refused(403, cannot));
    let server = Server::start("carried-denied", answers);
    let output = server.run(&["backup", "pvc/db", "--objects"]);
    ends(&output, 4, &[]);
    let err = text(&output.stderr);
    assert!(err.contains("secrets in namespace shop cannot be read: "), "{err}");
    assert_eq!(made(&server).len(), 1);
    // Flags of objects are for objects.
    for flag in ["--skip-unreadable", "--accept=x", "--owner-rule=x", "--objects-selector=a=b"] {
        ends(&server.run(&["backup", "pvc/db", flag]), 2, &[]);
    }
}

/// A controller has no right to read what it would have to bring along.
#[test]
fn with_objects_the_command_itself_makes_the_backup() {
    let mut answers = cluster(&with_feature());
    let ours = "/apis/mover.dev/v1alpha1";
    let kinds = json!({ "resources": [{ "name": "repositories" }] });
    answers.insert(ours.to_owned(), Answer::Object(kinds));
    let object = json!({
        "metadata": { "name": "default", "namespace": "shop", "uid": "r" },
        "spec": {
            "url": "s3://bucket", "keySecretRef": { "name": "keys" }, "clusterName": "c1",
            "jobTemplate": {},
        },
    });
    let at = format!("{ours}/namespaces/shop/repositories/default");
    answers.insert(at, Answer::Object(object));
    let server = Server::start("carried-object", answers);
    let output = server.run(&["backup", "pvc/db", "--objects"]);
    let all = made(&server);
    let has = |kind: &str| all.iter().any(|(of, _)| of == kind);
    assert!(has("secrets") && !has("volumebackups"), "{}", said(&output));
}

/// A file that is not there yet.
fn place(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn a_backup_without_objects_and_wrong_arguments_are_said() {
    let record = json!({
        "type": "backup", "volume": "c1/shop/db", "backup_id": "b1", "labels": {},
        "attachments": [{ "name": "other", "size_bytes": 1 }],
    });
    let server = Server::start("stored-none", cluster(&record));
    let file = place("stored-none");
    for arguments in [
        vec!["objects", "restore", "--from", "db@latest"],
        vec!["objects", "save", shown(&file), "--from", "db@latest"],
    ] {
        let output = server.run(&arguments);
        ends(&output, 2, &[]);
        let err = text(&output.stderr);
        assert!(err.contains("backup b1 of c1/shop/db has no objects"), "{err}");
    }
    let asked = made(&server).last().expect("a Job").1.clone();
    let args = &asked["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(*args, json!(["show", "c1/shop/db@latest"]));
    assert!(!file.exists());
    for (arguments, why) in [
        (vec!["objects", "restore", "x", "--from", "db@latest"], "cannot be used with"),
        (vec!["objects", "restore"], "required"),
        (vec!["objects", "restore", "x", "--repository", "r"], "there is no --from"),
        (vec!["objects", "save", shown(&file), "--repository", "r"], "there is no --from"),
        (vec!["objects", "save", shown(&file), "ns/shop", "--from", "db"], "leave namespaces"),
        (vec!["objects", "restore", "--from", "a/b/c/d@latest"], "names no backup"),
    ] {
        let output = server.run(&arguments);
        ends(&output, 2, &[]);
        assert!(text(&output.stderr).contains(why), "{why}: {}", text(&output.stderr));
    }
}

/// Plain or compressed, by its first bytes; one that was cut makes nothing.
#[test]
fn a_compressed_file_is_restored_as_the_plain_one() {
    let old = Server::start("compressed-old", shop());
    let file = place("compressed-old.jsonl");
    ends(&old.run(&["objects", "save", shown(&file)]), 0, &[]);
    let plain = std::fs::read(&file).expect("the file");
    let mut frame = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("an encoder");
    frame.include_checksum(true).expect("a checksum");
    std::io::Write::write_all(&mut frame, &plain).expect("compressed");
    let packed = frame.finish().expect("a frame");
    let mut answers = shop();
    answers.retain(|path, _| path.matches('/').count() < 4);
    let server = Server::start("compressed", answers);
    let run = |bytes: &[u8], more: &[&str]| {
        let file = place("compressed.zst");
        std::fs::write(&file, bytes).expect("the file");
        server.run(&[&["objects", "restore", shown(&file)], more].concat())
    };
    let (one, other) = (run(&plain, &["--dry-run"]), run(&packed, &["--dry-run"]));
    ends(&one, 0, &["games.example.com/a in namespace shop"]);
    assert_eq!(text(&one.stdout), text(&other.stdout));
    for cut in [packed.len() - 1, packed.len() / 2, 5] {
        let output = run(&packed[..cut], &[]);
        assert!([2, 3].contains(&output.status.code().unwrap_or(0)), "{}", said(&output));
    }
    assert!(made(&server).is_empty());
}
