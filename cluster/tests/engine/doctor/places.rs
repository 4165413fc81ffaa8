//! Findings about namespaces, quotas and other operations.

use super::*;
use mover_cluster::engine::source_lease;

#[test]
fn namespaces() {
    let object = "namespace/shop";
    error(object, "there is no such namespace", |fake| gone(fake, Kind::Namespace, NAMESPACE));
    error(object, "it is being deleted", |fake| {
        set(fake, Kind::Namespace, NAMESPACE, &json!({ "status": { "phase": "Terminating" } }));
    });
    let enforce = |level: &'static str| {
        let labels = json!({ "pod-security.kubernetes.io/enforce": level });
        move |fake: &mut Fake| {
            let patch = json!({ "metadata": { "labels": labels } });
            set(fake, Kind::Namespace, NAMESPACE, &patch);
        }
    };
    error(object, "Pod Security is `restricted`", enforce("restricted"));
    let (mut fake, question) = healthy();
    enforce("baseline")(&mut fake);
    assert_eq!(found(&fake, &question, &[]), Vec::new());
}

#[test]
fn quotas_without_room() {
    let full = |name: &'static str, hard: &'static str, used: &'static str| {
        move |fake: &mut Fake| {
            let status = json!({ "hard": { name: hard }, "used": { name: used } });
            set(fake, Kind::ResourceQuota, "quota", &json!({ "status": status }));
        }
    };
    for (name, hard, used, whom) in [
        ("requests.storage", "10Gi", "9728Mi", "the volume"),
        ("fast.storageclass.storage.k8s.io/requests.storage", "1G", "0", "the volume"),
        ("fast.storageclass.storage.k8s.io/persistentvolumeclaims", "0", "0", "the volume"),
        ("persistentvolumeclaims", "2", "2", "the volume"),
        ("count/persistentvolumeclaims", "2", "2", "the volume"),
        ("count/jobs.batch", "0", "0", "the pod"),
        ("pods", "3", "3", "the pod"),
        ("requests.cpu", "4", "3500m", "the pod"),
        ("limits.cpu", "4", "3500m", "the pod"),
        ("requests.memory", "1Gi", "900Mi", "the pod"),
        ("limits.memory", "300Mi", "0", "the pod"),
        ("count/configmaps", "5", "5", "the snapshot and the record"),
        ("count/volumesnapshots.snapshot.storage.k8s.io", "1", "1", "the snapshot and the record"),
    ] {
        let said = format!("{name} is {hard}, of which {used} is used: no room for {whom}");
        error("resourcequota/quota", &said, full(name, hard, used));
    }
    // One for other pods than ours.
    let (mut fake, question) = healthy();
    full("pods", "0", "0")(&mut fake);
    let scoped = json!({ "spec": { "scopes": ["BestEffort"] } });
    set(&mut fake, Kind::ResourceQuota, "quota", &scoped);
    assert_eq!(found(&fake, &question, &[]), Vec::new());
}

#[test]
fn other_operations() {
    let start =
        |fake: &mut Fake| begin(fake, "first", &backup_request(fake, true, NAMESPACE, false));
    let hold = |fake: &mut Fake| {
        let anchor = start(fake);
        let mut seen = Observed::default();
        while fake.of_kind(Kind::Lease).is_empty() {
            assert_eq!(turn(fake, &anchor, &mut seen), Ok(None));
        }
        anchor
    };
    let at_work = "operation first in namespace shop is at work on it";
    finds(Level::Warning, "pvc/db", at_work, |fake, _| {
        hold(fake);
    });
    // The anchors of these tests have another label than the claim's uid.
    let source =
        |fake: &Fake| Meta::of(fake.get(&of(Kind::PersistentVolumeClaim, "db")).expect("it")).uid;
    finds(Level::Warning, "pvc/db", "operation first has not ended", |fake, _| {
        let anchor = start(fake);
        let labels = json!({ "mover.dev/source-uid": source(fake) });
        fake.change(&anchor.key, &json!({ "metadata": { "labels": labels } }));
    });
    let (mut fake, question) = healthy();
    let anchor = hold(&mut fake);
    fake.change(&anchor.key, &json!({ "metadata": { "labels": { STATE: "ended" } } }));
    assert_eq!(found(&fake, &question, &[]), Vec::new(), "it has ended: its Lease is taken over");
    error("lease/", "was not made by mover", |fake| {
        let key = source_lease(NAMESPACE, &source(fake));
        let meta = json!({ "name": key.name, "namespace": NAMESPACE });
        fake.create(&json!({ "kind": "Lease", "metadata": meta }));
    });
}
