//! Which claims a source means.

use super::*;
use mover_cluster::engine::{Failure, exit};
use mover_cluster::ops::sources::{Sources, expand, is_one_claim};
use serde_json::Value;

fn claim(fake: &mut Fake, name: &str, labels: &Value, phase: &str, volume: Option<&str>) {
    fake.create(&json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels },
        "spec": { "volumeName": volume },
        "status": { "phase": phase },
    }));
}

fn cluster() -> Fake {
    let mut fake = Fake::default();
    let csi = json!({ "csi": { "driver": DRIVER, "volumeHandle": "h" } });
    for (name, spec) in [("pv-csi", csi), ("pv-nfs", json!({ "nfs": { "server": "a" } }))] {
        fake.create(
            &json!({ "kind": "PersistentVolume", "metadata": { "name": name }, "spec": spec }),
        );
    }
    for name in ["data-db-10", "data-db-2", "log-db-2", "data-db-01", "data-db-x", "data-dbx-1"] {
        claim(&mut fake, name, &json!({ "app": "db" }), "Bound", Some("pv-csi"));
    }
    claim(&mut fake, "web", &json!({ "app": "web" }), "Bound", Some("pv-nfs"));
    claim(&mut fake, "new", &json!({ "app": "web" }), "Pending", None);
    let ours = json!({ "app": "web", "mover.dev/owner": "u", "mover.dev/role": "volume" });
    claim(&mut fake, "mover-u", &ours, "Bound", Some("pv-csi"));
    let restored = json!({ "mover.dev/owner": "u", "mover.dev/role": "target" });
    claim(&mut fake, "restored", &restored, "Bound", Some("pv-csi"));
    let volumes = json!([
        { "name": "a", "persistentVolumeClaim": { "claimName": "web" } },
        { "name": "b", "emptyDir": {} },
        { "name": "scratch", "ephemeral": { "volumeClaimTemplate": {} } },
    ]);
    let pod = json!({ "spec": { "volumes": volumes } });
    let meta = |name: &str| json!({ "name": name, "namespace": NAMESPACE });
    let templates = json!([{ "metadata": { "name": "data" } }, { "metadata": { "name": "log" } }]);
    fake.create(&json!({
        "kind": "StatefulSet", "metadata": meta("db"),
        "spec": { "volumeClaimTemplates": templates, "template": pod },
    }));
    fake.create(&json!({
        "kind": "Deployment", "metadata": meta("web"), "spec": { "template": pod },
    }));
    fake.create(&json!({ "kind": "Pod", "metadata": meta("one"), "spec": pod["spec"] }));
    fake
}

fn ask(words: &[&str], selector: Option<&str>) -> Result<Sources, Failure> {
    let fake = cluster();
    let words: Vec<String> = words.iter().map(|text| (*text).to_owned()).collect();
    let mut seen = Observed::default();
    loop {
        match expand(&seen, NAMESPACE, &words, selector) {
            Ok(found) => return Ok(found),
            Err(Stop::Failure(why)) => return Err(why),
            Err(Stop::Next(Next::Read(query))) => fake.read(&query, &mut seen),
            Err(other) => panic!("it only reads: {other:?}"),
        }
    }
}

fn names(found: &Sources) -> Vec<&str> {
    assert!(found.claims.iter().all(|at| at.namespace == NAMESPACE));
    found.claims.iter().map(|at| at.name.as_str()).collect()
}

#[test]
fn claims_by_their_names_each_once() {
    let found = ask(&["pvc/b", "a", "persistentvolumeclaim/b"], None).expect("claims");
    assert_eq!(names(&found), ["b", "a"]);
    let one = |words: &[&str], selector| {
        let words: Vec<String> = words.iter().map(|text| (*text).to_owned()).collect();
        is_one_claim(&words, selector)
    };
    assert!(one(&["pvc/a"], None) && one(&["a"], None));
    assert!(!one(&["a", "b"], None) && !one(&["sts/a"], None) && !one(&["a"], Some("x=y")));
}

#[test]
fn a_stateful_set_by_its_templates_and_its_pods() {
    let found = ask(&["statefulset/db"], None).expect("claims");
    assert_eq!(names(&found), ["data-db-2", "log-db-2", "data-db-10", "web"]);
    assert_eq!(found.skipped.len(), 1);
    assert_eq!(found.skipped[0].claim, "ephemeral volume scratch");
}

#[test]
fn a_deployment_and_a_pod() {
    assert_eq!(names(&ask(&["deploy/web"], None).expect("claims")), ["web"]);
    assert_eq!(names(&ask(&["pod/one"], None).expect("claims")), ["web", "one-scratch"]);
}

#[test]
fn a_namespace_without_that_which_cannot_be_backed_up() {
    let found = ask(&["ns/shop"], None).expect("claims");
    let wanted = [
        "data-db-01",
        "data-db-2",
        "data-db-10",
        "data-db-x",
        "data-dbx-1",
        "log-db-2",
        "restored",
    ];
    assert_eq!(names(&found), wanted);
    let why: Vec<(&str, &str)> =
        found.skipped.iter().map(|at| (at.claim.as_str(), at.why.as_str())).collect();
    assert_eq!(why.len(), 3, "{why:?}");
    for (name, said) in
        [("pvc/mover-u", "belongs to an operation"), ("pvc/new", "is Pending"), ("pvc/web", "nfs")]
    {
        let is_it = |(claim, why): &&(&str, &str)| claim.starts_with(name) && why.contains(said);
        assert_eq!(why.iter().filter(is_it).count(), 1, "{name}: {why:?}");
    }
}

#[test]
fn claims_by_their_labels() {
    let found = ask(&[], Some("app=db")).expect("claims");
    assert_eq!(found.claims.len(), 6);
    // One that was chosen and cannot be backed up fails by itself: it is not left out.
    let found = ask(&["pvc/web"], Some("app=web")).expect("claims");
    assert_eq!(names(&found), ["web", "new"]);
    assert_eq!(found.skipped[0].claim, "pvc/mover-u in namespace shop");
}

#[test]
fn what_means_no_claim_is_an_error() {
    for (words, selector, said) in [
        (vec!["job/x"], None, "job is not a kind"),
        (vec!["pvc/"], None, "names no source"),
        (vec!["pvc/a/b"], None, "names no source"),
        (vec!["sts/none"], None, "there is no statefulset/none in namespace shop"),
        (vec!["deployment/none"], None, "there is no deployment/none"),
        (vec!["pod/none"], None, "there is no pod/none"),
        (vec!["ns/empty"], None, "ns/empty has no claim"),
        (vec![], Some("app=none"), "no claim in namespace shop has the labels app=none"),
    ] {
        let why = ask(&words, selector).expect_err("no claim");
        assert_eq!(why.exit_code, exit::USAGE);
        assert!(why.message.contains(said), "{why:?}");
    }
}
