//! The command line against an API server of fixed answers: exit codes, tables and records.

mod carried;
mod claims;
mod install;
mod objects;
mod schedules;
mod server;
mod updates;
mod velero;

use serde_json::{Value, json};
use server::{Answer, Server};
use std::collections::BTreeMap;
use std::process::Output;
use std::sync::atomic::AtomicU32;

const SHOP: &str = "/api/v1/namespaces/shop";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";

fn list(items: &[Value]) -> Value {
    json!({ "items": items, "metadata": {} })
}

/// A namespace with a claim that can be backed up, and the Repository for it.
fn healthy() -> BTreeMap<String, Answer> {
    let meta = |name: &str| json!({ "name": name, "namespace": "shop", "uid": name });
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    all.insert(SHOP.into(), json!({ "metadata": { "name": "shop" } }));
    let db = json!({
        "metadata": meta("db"),
        "spec": { "volumeName": "pv-db", "volumeMode": "Block", "storageClassName": "fast" },
        "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } },
    });
    all.insert(format!("{SHOP}/persistentvolumeclaims/db"), db.clone());
    let new = json!({ "metadata": meta("new"), "status": { "phase": "Pending" } });
    all.insert(format!("{SHOP}/persistentvolumeclaims"), list(&[db, new]));
    let csi = json!({ "driver": "d.csi", "volumeHandle": "h" });
    let volume = json!({ "metadata": { "name": "pv-db" }, "spec": { "csi": csi } });
    all.insert("/api/v1/persistentvolumes/pv-db".into(), volume);
    for plural in ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"] {
        let name = format!("{plural}.{SNAPSHOTS}");
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        let versions = json!([{ "name": "v1", "served": true }]);
        all.insert(path, json!({ "metadata": { "name": name }, "spec": { "versions": versions } }));
    }
    let class = json!({
        "metadata": { "name": "snaps" }, "driver": "d.csi", "deletionPolicy": "Delete",
    });
    all.insert(format!("/apis/{SNAPSHOTS}/v1/volumesnapshotclasses"), list(&[class]));
    let old = json!({
        "metadata": meta("old"), "status": { "boundVolumeSnapshotContentName": "content" },
    });
    all.insert(format!("/apis/{SNAPSHOTS}/v1/namespaces/shop/volumesnapshots"), list(&[old]));
    let fast = json!({ "metadata": { "name": "fast" }, "provisioner": "d.csi" });
    all.insert("/apis/storage.k8s.io/v1/storageclasses/fast".into(), fast);
    let driver = json!({ "metadata": { "name": "d.csi" } });
    all.insert("/apis/storage.k8s.io/v1/csidrivers/d.csi".into(), driver);
    let mut place = meta("mover-repository-default");
    place["labels"] = json!({ "mover.dev/repository": "default" });
    let data = json!({
        "url": "s3://bucket", "cluster": "c1", "keySecret": "keys", "serviceAccount": "mover",
        "image": "mover:1", "imagePullPolicy": "IfNotPresent", "memory": "320Mi", "cpu": "1",
    });
    let place = json!({ "metadata": place, "data": data });
    all.insert(format!("{SHOP}/configmaps/mover-repository-default"), place);
    all.insert(format!("{SHOP}/configmaps"), list(&[]));
    let secret = json!({ "metadata": meta("keys"), "data": { "key": "dGV4dA==" } });
    all.insert(format!("{SHOP}/secrets/keys"), secret);
    let account = json!({ "metadata": meta("mover") });
    all.insert(format!("{SHOP}/serviceaccounts/mover"), account);
    all.into_iter().map(|(path, object)| (path, Answer::Object(object))).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn ends(output: &Output, code: i32, said: &[&str]) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    for said in said {
        assert!(out.contains(said), "{said} is not in {out}\n{err}");
    }
}

fn items(output: &Output) -> Vec<Value> {
    let record: Value = serde_json::from_slice(&output.stdout).expect("a record");
    record["items"].as_array().expect("items").clone()
}

#[test]
fn doctor_says_ok_where_nothing_is_wrong() {
    let server = Server::start("ok", healthy());
    ends(&server.run(&["doctor", "pvc/db", "--whole"]), 0, &["ok: nothing is found"]);
    ends(&server.run(&["doctor", "--whole"]), 0, &["ok: nothing is found"]);
    assert!(items(&server.run(&["doctor", "pvc/db", "--whole", "-o", "json"])).is_empty());
    // There is no service of changed blocks: a note is no reason to fail.
    let output = server.run(&["doctor", "pvc/db"]);
    ends(&output, 0, &["LEVEL", "note", "snapshotmetadataservice/d.csi"]);
    assert!(text(&output.stderr).contains("ok: nothing is found"));
}

#[test]
fn doctor_names_all_that_is_wrong() {
    let mut answers = healthy();
    answers.remove(&format!("{SHOP}/secrets/keys"));
    answers.remove("/apis/storage.k8s.io/v1/storageclasses/fast");
    let denied = Answer::Refused(403, "resourcequotas is forbidden");
    answers.insert(format!("{SHOP}/resourcequotas"), denied);
    let server = Server::start("wrong", answers);
    let output = server.run(&["doctor", "pvc/db", "pvc/new", "sts/none", "--connect"]);
    let said = [
        "secret/keys in namespace shop",
        "storageclass/fast",
        "pvc/new in namespace shop",
        "there is no statefulset/none in namespace shop",
        "resourcequotas is forbidden",
    ];
    ends(&output, 2, &said);
    assert!(text(&output.stderr).contains("no Job is run until"));
    let output = server.run(&["doctor", "pvc/db", "-o", "json"]);
    ends(&output, 2, &[]);
    let all = items(&output);
    assert_eq!(all[0]["level"], "error");
    assert!(all.iter().all(|at| at["object"].is_string() && at["message"].is_string()), "{all:?}");
}

/// Each claim has its row, and the worst of their exit codes is that of the command.
#[test]
fn a_backup_that_fails_does_not_stop_the_others() {
    let mut answers = healthy();
    let denied = Answer::Refused(403, "no right to read it");
    answers.insert(format!("{SHOP}/persistentvolumeclaims/secret"), denied);
    let server = Server::start("many", answers);
    let output = server.run(&["backup", "pvc/secret", "pvc/none"]);
    ends(
        &output,
        4,
        &["CLAIM", "failed (4)", "no right to read it", "failed (2)", "there is no pvc"],
    );
    let output = server.run(&["backup", "pvc/none", "pvc/gone", "-o", "json"]);
    ends(&output, 2, &[]);
    let all = items(&output);
    assert_eq!(all.len(), 2);
    assert_eq!(all[0]["claim"], "pvc/none in namespace shop");
    assert_eq!(all[1]["outcome"]["exitCode"], 2);
    // What a namespace has besides is named with its reason.
    let output = server.run(&["backup", "ns/shop", "--snapshot-class", "none"]);
    ends(&output, 2, &["there is no VolumeSnapshotClass none", "skipped", "is Pending, not Bound"]);
}

/// The volume of the snapshot is another one than the claim's, and a restore goes where the claim was.
#[test]
fn a_backup_asks_for_the_volume_of_its_snapshot_as_it_was_told() {
    let mut answers = healthy();
    let class = json!({ "metadata": { "name": "shallow" }, "provisioner": "d.csi" });
    let path = "/apis/storage.k8s.io/v1/storageclasses/shallow";
    answers.insert(path.into(), Answer::Object(class));
    let refused = Answer::Refused(403, "it ends here");
    answers.insert(format!("POST {SHOP}/configmaps"), refused);
    let server = Server::start("volume-of-snapshot", answers);
    let backup = ["backup", "pvc/db", "--whole"];
    let asked = |more: &[&str]| {
        ends(&server.run(&[&backup[..], more].concat()), 4, &[]);
        let sent = server.sent();
        let made =
            sent.iter().rfind(|(method, path, _)| method == "POST" && path.contains("/configmaps"));
        let (.., body) = made.expect("a record");
        let text = body["data"]["request"].as_str().expect("a request");
        let request: Value = serde_json::from_str(text).expect("JSON");
        let backup = request.get("backup").unwrap_or(&request).clone();
        let class = backup["labels"]["kubernetes/storage-class"].clone();
        (backup["readOnly"].clone(), backup["storageClass"].clone(), class)
    };
    assert_eq!(asked(&[]), (Value::Null, json!("fast"), json!("fast")));
    let told = ["--storage-class", "shallow", "--read-only-volume"];
    assert_eq!(asked(&told), (json!(true), json!("shallow"), json!("fast")));
}

#[test]
fn a_backup_of_nothing_is_an_error() {
    let server = Server::start("nothing", healthy());
    for (arguments, said) in [
        (vec!["backup"], "name a claim or what uses it"),
        (vec!["backup", "job/x"], "job is not a kind"),
        (vec!["backup", "statefulset/none"], "there is no statefulset/none"),
        // One claim alone is reported as before, without a table.
        (vec!["backup", "pvc/none"], "error: there is no pvc/none in namespace shop"),
    ] {
        let output = server.run(&arguments);
        ends(&output, 2, &[]);
        assert!(output.stdout.is_empty());
        let err = text(&output.stderr);
        assert!(err.contains(said), "{said} is not in {err}");
    }
}

/// A server that asks for patience gets it; one that refuses is quoted, with the next step.
#[test]
fn what_the_server_refuses_has_a_next_step() {
    let mut answers = healthy();
    let Some(Answer::Object(claims)) = answers.remove(&format!("{SHOP}/persistentvolumeclaims"))
    else {
        panic!("claims")
    };
    let busy = Answer::Busy(AtomicU32::new(3), claims);
    answers.insert(format!("{SHOP}/persistentvolumeclaims"), busy);
    let server = Server::start("busy", answers);
    let output = server.run(&["backup", "ns/shop", "--snapshot-class", "none"]);
    ends(&output, 2, &["there is no VolumeSnapshotClass none"]);
    assert!(text(&output.stderr).contains("too many requests"), "{}", text(&output.stderr));
    let claim = format!("{SHOP}/persistentvolumeclaims/db");
    let cannot = "User \"u\" cannot get resource";
    for (code, said, code_of_exit, hint) in [
        (403, cannot, 4, "the right to get persistentvolumeclaims in namespace shop is missing"),
        (500, "broken", 1, "kubectl get --raw '/readyz?verbose'"),
    ] {
        let mut answers = healthy();
        answers.insert(claim.clone(), Answer::Refused(code, said));
        let server = Server::start(&format!("refused-{code}"), answers);
        let output = server.run(&["backup", "pvc/db"]);
        ends(&output, code_of_exit, &[]);
        let err = text(&output.stderr);
        assert!(err.contains("read pvc/db in namespace shop: "), "{err}");
        assert!(err.contains(said) && err.contains(hint), "{err}");
    }
}

/// Nothing names a step that leads back to where it was named.
#[test]
fn an_operation_that_cannot_be_read_is_to_be_deleted() {
    let mut answers = healthy();
    let labels = json!({ "mover.dev/state": "running", "mover.dev/role": "backup" });
    let meta = json!({ "name": "bad", "namespace": "shop", "uid": "u", "labels": labels });
    let bad = json!({ "metadata": meta, "data": { "request": "{}" } });
    answers.insert(format!("{SHOP}/configmaps/bad"), Answer::Object(bad));
    let server = Server::start("bad", answers);
    let output = server.run(&["cancel", "bad"]);
    ends(&output, 2, &[]);
    let err = text(&output.stderr);
    assert!(err.contains("kubectl get configmap/bad -n shop -o yaml; delete it"), "{err}");
}
