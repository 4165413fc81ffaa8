use super::*;
use serde_json::json;
use tonic::Code;

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).expect("an object")
}

fn snapshot(status: Value) -> DynamicObject {
    object(json!({"metadata": {"name": "s", "uid": "u1"}, "status": status}))
}

fn content(driver: &str, uid: &str, status: Value) -> DynamicObject {
    let spec = json!({"driver": driver, "volumeSnapshotRef": {"uid": uid}});
    object(json!({"metadata": {"name": "c"}, "spec": spec, "status": status}))
}

#[test]
fn only_a_ready_snapshot_with_a_content_is_taken() {
    let code = |status| bound_content(&snapshot(status), "s").expect_err("an error").code();
    assert_eq!(code(json!(null)), Code::Unavailable);
    assert_eq!(code(json!({"boundVolumeSnapshotContentName": "c"})), Code::Unavailable);
    assert_eq!(code(json!({"readyToUse": true})), Code::Unavailable);
    let ready = snapshot(json!({"readyToUse": true, "boundVolumeSnapshotContentName": "c"}));
    assert_eq!(bound_content(&ready, "s").expect("a name"), "c");
}

#[test]
fn a_content_must_be_ready_of_the_driver_and_point_back() {
    let snapshot = snapshot(json!({"readyToUse": true}));
    let ready = || json!({"readyToUse": true, "snapshotHandle": "h"});
    let handle = |driver: &str, uid: &str, status| {
        let content = content(driver, uid, status);
        handle_of(&content, "c", &snapshot, "s", "d").map_err(|status| status.code())
    };
    assert_eq!(handle("d", "u1", ready()), Ok("h".to_owned()));
    assert_eq!(handle("other", "u1", ready()), Err(Code::InvalidArgument));
    assert_eq!(handle("d", "u2", ready()), Err(Code::InvalidArgument));
    assert_eq!(handle("d", "", ready()), Err(Code::InvalidArgument));
    assert_eq!(handle("d", "u1", json!({"readyToUse": true})), Err(Code::Unavailable));
    assert_eq!(handle("d", "u1", json!({"snapshotHandle": "h"})), Err(Code::Unavailable));
}
