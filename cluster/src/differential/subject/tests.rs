//! What counts as the snapshot of a name, and which two of them have a list.

use super::*;
use serde_json::json;

fn object(name: &str) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": name, "uid": format!("uid-{name}") },
        "status": { "boundVolumeSnapshotContentName": format!("c-{name}"), "readyToUse": true },
    })
}

fn content(name: &str) -> Value {
    json!({
        "metadata": { "name": format!("c-{name}") },
        "spec": {
            "driver": "csi.one",
            "source": { "volumeHandle": "vol" },
            "volumeSnapshotRef": { "namespace": "shop", "name": name, "uid": format!("uid-{name}") },
        },
        "status": { "readyToUse": true, "snapshotHandle": format!("h-{name}") },
    })
}

fn taken(name: &str) -> Snapshot {
    snapshot(Some(&object(name)), Some(&content(name))).expect("good").expect("there")
}

fn found(spec: Value, base: Option<Option<Snapshot>>) -> Found {
    Found { spec: serde_json::from_value(spec).expect("a spec"), target: taken("new"), base }
}

fn failure(found: &Found) -> String {
    match found.judged() {
        Err(Trouble::Failure(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_snapshot_counts_if_its_content_points_back() {
    assert_eq!(taken("new").handle, "h-new");
    for (at, value) in [
        ("/spec/volumeSnapshotRef/uid", json!("uid-of-an-older-one")),
        ("/spec/volumeSnapshotRef/name", json!("other")),
        ("/spec/volumeSnapshotRef/namespace", json!("theirs")),
        ("/spec/volumeSnapshotRef/uid", Value::Null),
    ] {
        let mut content = content("new");
        *content.pointer_mut(at).expect("a member") = value;
        match snapshot(Some(&object("new")), Some(&content)) {
            Err(Trouble::Failure(what)) => assert!(what.contains("point back"), "{what}"),
            other => panic!("{at}: {other:?}"),
        }
    }
    assert_eq!(snapshot(None, None), Ok(None));
    assert_eq!(snapshot(Some(&object("new")), None), Ok(None), "its content is gone");
}

#[test]
fn what_is_not_ready_is_waited_for() {
    for at in ["/status/readyToUse", "/status/snapshotHandle"] {
        let mut content = content("new");
        *content.pointer_mut(at).expect("a member") = Value::Null;
        let said = snapshot(Some(&object("new")), Some(&content));
        assert!(matches!(said, Err(Trouble::Pending(_))), "{at}: {said:?}");
    }
    let mut unbound = object("new");
    unbound["status"] = json!({});
    assert!(matches!(snapshot(Some(&unbound), None), Err(Trouble::Pending(_))));
}

#[test]
fn base_and_target_are_of_one_volume() {
    let spec = json!({ "targetVolumeSnapshotName": "new", "baseVolumeSnapshotName": "old" });
    let good = found(spec.clone(), Some(Some(taken("old"))));
    assert_eq!(good.judged(), Ok((Listing::Delta, Some("h-old".to_owned()))));
    let with = |base: Snapshot| failure(&found(spec.clone(), Some(Some(base))));
    assert!(
        with(Snapshot { volume: Some("other".into()), ..taken("old") }).contains("two volumes")
    );
    assert!(with(Snapshot { volume: None, ..taken("old") }).contains("does not say"));
    assert!(with(Snapshot { driver: "csi.two".into(), ..taken("old") }).contains("drivers"));
    assert!(with(Snapshot { handle: "h-new".into(), ..taken("old") }).contains("one snapshot"));
    let mut named = spec.clone();
    named["volumeId"] = "vol".into();
    assert!(found(named.clone(), Some(Some(taken("old")))).judged().is_ok());
    named["volumeId"] = "another".into();
    assert!(failure(&found(named, Some(Some(taken("old"))))).contains("not of the volume"));
}

#[test]
fn a_base_that_is_gone_is_an_error_or_all_changed() {
    let mut spec = json!({ "targetVolumeSnapshotName": "new", "baseVolumeSnapshotName": "old" });
    assert!(failure(&found(spec.clone(), Some(None))).contains("is gone"));
    spec["parameters"] = json!({ "deletedBase": "error" });
    assert!(failure(&found(spec.clone(), Some(None))).contains("is gone"));
    spec["parameters"] = json!({ "deletedBase": "all-changed" });
    assert_eq!(found(spec, Some(None)).judged(), Ok((Listing::AllChanged, None)));
    let alone = json!({ "targetVolumeSnapshotName": "new" });
    assert_eq!(found(alone, None).judged(), Ok((Listing::Allocated, None)));
}

#[test]
fn a_driver_without_a_service_has_no_list() {
    let Err(Trouble::Failure(what)) = service("csi.one", None) else { panic!("it has none") };
    assert!(what.contains("csi.one") && what.contains("snapshotmetadataservice"), "{what}");
    let good = json!({ "spec": { "address": "h:1", "audience": "a", "caCert": "UEVN" } });
    assert_eq!(service("csi.one", Some(&good)).expect("good").ca, b"PEM");
    for member in ["address", "audience", "caCert"] {
        let mut bad = good.clone();
        bad["spec"][member] = "".into();
        let Err(Trouble::Failure(what)) = service("csi.one", Some(&bad)) else { panic!("bad") };
        assert!(what.contains(member), "{what}");
    }
}

#[test]
fn a_name_is_no_path() {
    for good in ["a", "new", "a.b-c", "0"] {
        assert!(is_name(good), "{good}");
    }
    for bad in ["", "..", ".", "a/b", "../secrets/x", "A", "a?b", "a%2fb", "a b", "-a", "a-"] {
        assert!(!is_name(bad), "{bad}");
    }
    assert!(!is_name(&"a".repeat(254)));
}
