//! `repository add --velero-location` against an API server of fixed answers: what is made of a
//! location, and what is not.

use crate::server::{Answer, Sent, Server};
use crate::{ends, list, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NAMESPACE: &str = "/api/v1/namespaces/velero";
const OURS: &str = "/apis/mover.dev/v1alpha1";
const LOCATION: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations/main";
/// `[default]`, and another profile.
const CLOUD: &str =
    "W2RlZmF1bHRdCmF3c19hY2Nlc3Nfa2V5X2lkID0gaWQKYXdzX3NlY3JldF9hY2Nlc3Nfa2V5PXNlY3JldAo=";

fn location() -> Value {
    json!({
        "metadata": { "name": "main", "namespace": "velero", "uid": "l" },
        "spec": {
            "provider": "aws",
            "objectStorage": { "bucket": "vault", "prefix": "velero", "caCert": "UEVN" },
            "config": { "region": "r", "s3Url": "http://s3:9000", "s3ForcePathStyle": "true" },
        },
    })
}

/// A cluster with Velero, our kinds, and a controller that opens each Repository at once.
fn cluster(location: Value) -> BTreeMap<String, Answer> {
    let opened = json!({
        "apiVersion": "mover.dev/v1alpha1", "kind": "Repository",
        "metadata": { "name": "main", "namespace": "velero", "uid": "r", "generation": 1 },
        "spec": {
            "url": "s3://vault/velero-mover", "keySecretRef": { "name": "mover-key-main" },
            "clusterName": "c1", "jobTemplate": {},
        },
        "status": { "conditions": [{
            "type": "Ready", "status": "True", "reason": "Opened", "observedGeneration": 1,
        }] },
    });
    let repositories = format!("{OURS}/namespaces/velero/repositories");
    let kinds = json!({ "resources": [{ "name": "repositories" }] });
    let secret = json!({
        "metadata": { "name": "cloud-credentials", "uid": "s" }, "data": { "cloud": CLOUD },
    });
    let made = json!({ "metadata": { "name": "made", "uid": "m" } });
    let mut all = BTreeMap::from([
        (OURS.to_owned(), kinds),
        (LOCATION.to_owned(), location),
        (format!("{NAMESPACE}/secrets/cloud-credentials"), secret),
        (format!("POST {NAMESPACE}/secrets"), made.clone()),
        (format!("POST {NAMESPACE}/configmaps"), made),
        (format!("POST {repositories}"), opened.clone()),
        (format!("{repositories}/main"), opened.clone()),
    ]);
    all.insert(repositories, list(&[opened]));
    all.into_iter().map(|(path, object)| (path, Answer::Object(object))).collect()
}

fn made<'a>(sent: &'a [Sent], name: &str) -> &'a Value {
    let is_it = |at: &&Sent| at.0 == "POST" && at.2["metadata"]["name"] == name;
    &sent.iter().find(is_it).unwrap_or_else(|| panic!("no {name}: {sent:#?}")).2
}

#[test]
fn a_location_becomes_a_repository_beside_it() {
    let server = Server::start("velero-add", cluster(location()));
    let arguments = ["repository", "add", "--velero-location", "main", "--image", "mover:9"];
    let said =
        ["Repository main in namespace velero is ready: s3://vault/velero-mover", "location main"];
    ends(&server.run(&arguments), 0, &said);
    let sent = server.sent();
    let credentials = &made(&sent, "mover-store-main")["data"];
    assert_eq!(credentials["AWS_ACCESS_KEY_ID"], "aWQ=");
    assert_eq!(credentials["AWS_SECRET_ACCESS_KEY"], "c2VjcmV0");
    assert_eq!(made(&sent, "mover-ca-main")["data"]["ca.crt"], "PEM");
    assert!(made(&sent, "mover-key-main")["data"]["key"].is_string());
    let spec = &made(&sent, "main")["spec"];
    assert_eq!(spec["url"], "s3://vault/velero-mover");
    assert_eq!(spec["credentials"]["secretRef"]["name"], "mover-store-main");
    assert_eq!(spec["caConfigMapRef"]["name"], "mover-ca-main");
    assert_eq!(spec["jobTemplate"]["image"], "mover:9");
    let env = json!({
        "AWS_REGION": "r", "AWS_ENDPOINT_URL": "http://s3:9000", "AWS_ALLOW_HTTP": "true",
    });
    assert_eq!(spec["env"], env);
    let entry = made(&sent, "mover");
    assert_eq!(entry["data"], json!({ "main": "main" }));
    assert_eq!(entry["metadata"]["labels"]["app.kubernetes.io/managed-by"], "mover");
    assert!(sent.iter().all(|(_, path, _)| !path.contains("/namespaces/shop")), "{sent:#?}");
}

/// A second time, and beside what others have there.
#[test]
fn what_is_there_is_brought_up_to_date() {
    let mut answers = cluster(location());
    let taken = || Answer::Refused(409, "it exists");
    for path in ["secrets", "configmaps"] {
        answers.insert(format!("POST {NAMESPACE}/{path}"), taken());
    }
    let ours = json!({ "app.kubernetes.io/managed-by": "mover" });
    for (path, data) in [
        (
            "secrets/mover-store-main",
            json!({ "AWS_ACCESS_KEY_ID": "b2xk", "AWS_SESSION_TOKEN": "b2xk" }),
        ),
        ("secrets/mover-key-main", json!({ "key": "a2V5" })),
        ("configmaps/mover-ca-main", json!({ "ca.crt": "PEM" })),
        ("configmaps/mover", json!({ "other": "other" })),
    ] {
        let meta = json!({ "name": path.split('/').next_back(), "uid": "u", "labels": ours });
        let object = json!({ "metadata": meta, "data": data });
        answers.insert(format!("{NAMESPACE}/{path}"), Answer::Object(object));
    }
    let server = Server::start("velero-again", answers);
    ends(&server.run(&["repository", "add", "--velero-location", "main"]), 0, &["is ready"]);
    let sent = server.sent();
    let patches: Vec<&Sent> = sent.iter().filter(|(method, _, _)| method == "PATCH").collect();
    assert_eq!(patches.len(), 2, "{patches:#?}");
    let store = patches.iter().find(|at| at.1.contains("/mover-store-main")).expect("the Secret");
    let data = json!({
        "AWS_ACCESS_KEY_ID": "aWQ=", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0", "AWS_SESSION_TOKEN": null,
    });
    assert_eq!(store.2["data"], data);
    let entry = patches.iter().find(|at| at.1.contains("/configmaps/mover?")).expect("the entry");
    assert_eq!(entry.2["data"], json!({ "main": "main" }));
}

#[test]
fn what_cannot_be_taken_over_makes_nothing() {
    let with = |member: &str, value: Value| {
        let mut changed = location();
        changed["spec"][member] = value;
        changed
    };
    let no_prefix = with("objectStorage", json!({ "bucket": "vault" }));
    let within = ["--url", "s3://vault/velero/mover"];
    for (name, location, more, said) in [
        ("azure", with("provider", json!("azure")), &[][..], "only locations of provider aws"),
        ("bucket", no_prefix, &[][..], "--url s3://BUCKET/PREFIX"),
        ("within", location(), &within[..], "among the folders of Velero"),
        ("read", with("accessMode", json!("ReadOnly")), &[][..], "--key-file"),
        (
            "secret",
            with("credential", json!({ "name": "none", "key": "x" })),
            &[][..],
            "secret/none",
        ),
        ("profile", with("config", json!({ "region": "r", "profile": "p" })), &[][..], "profile p"),
    ] {
        let server = Server::start(&format!("velero-{name}"), cluster(location));
        let arguments = ["repository", "add", "--velero-location", "main"];
        let output = server.run(&[&arguments[..], more].concat());
        ends(&output, 2, &[]);
        assert!(text(&output.stderr).contains(said), "{name}: {}", text(&output.stderr));
        assert!(server.sent().iter().all(|(method, _, _)| method == "GET"), "{name}");
    }
    let server = Server::start("velero-none", BTreeMap::new());
    let output = server.run(&["repository", "add", "--velero-location", "main", "-n", "backups"]);
    ends(&output, 2, &[]);
    let said = text(&output.stderr);
    assert!(said.contains("backupstoragelocation/main in namespace backups"), "{said}");
}
