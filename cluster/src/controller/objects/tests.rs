//! What is known of objects: told late, written here, and listed.

use super::*;
use serde_json::json;

#[test]
fn what_was_written_here_is_told_once() {
    let objects = Objects::default();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    objects.tell_by(sender);
    objects.wrote(backup("a", "1", "10"));
    assert_eq!(receiver.try_recv().expect("its task is begun").uid, "1");
    // The watch tells the same a moment later.
    assert!(objects.set(backup("a", "1", "10")).is_none());
    objects.wrote(backup("a", "1", "10"));
    assert!(receiver.try_recv().is_err(), "it is known");
}

fn backup(name: &str, uid: &str, version: &str) -> Value {
    json!({
        "kind": "VolumeBackup",
        "apiVersion": "mover.dev/v1alpha1",
        "metadata": { "namespace": "shop", "name": name, "uid": uid, "resourceVersion": version },
    })
}

#[test]
fn a_late_telling_changes_nothing_and_a_list_removes_what_it_lacks() {
    let objects = Objects::default();
    assert!(objects.set(backup("a", "1", "10")).is_some());
    assert!(objects.set(backup("a", "1", "9")).is_none(), "it is older");
    assert!(objects.set(backup("b", "2", "11")).is_some());
    let all = Selection::all(Kind::VolumeBackup);
    let changed = objects.replace(&all, vec![backup("b", "3", "12")], Some("12"));
    let uids: Vec<&str> = changed.iter().map(|changed| changed.uid.as_str()).collect();
    assert_eq!(uids, ["1", "2", "3"], "one is gone, one was made anew");
    assert_eq!(objects.all(Kind::VolumeBackup).len(), 1);
}

/// An outage ends: the list was made before this process wrote, and comes after it.
#[test]
fn what_was_written_since_a_list_stays() {
    let objects = Objects::default();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    objects.set(backup("old", "1", "90"));
    objects.tell_by(sender);
    objects.wrote(backup("new", "2", "120"));
    objects.wrote(backup("anew", "4", "121"));
    assert_eq!([receiver.try_recv().is_ok(), receiver.try_recv().is_ok()], [true, true]);
    let all = Selection::all(Kind::VolumeBackup);
    let changed = objects.replace(&all, vec![backup("anew", "3", "80")], Some("100"));
    let uids: Vec<&str> = changed.iter().map(|changed| changed.uid.as_str()).collect();
    assert_eq!(uids, ["1"], "only that one was there when the list was made");
    assert_eq!(objects.all(Kind::VolumeBackup).len(), 2);
    // The watch tells of the one that had this name before.
    assert!(objects.gone(&backup("anew", "3", "101")).is_none());
    assert!(objects.gone(&backup("anew", "4", "122")).is_some());
    assert_eq!(objects.replace(&all, Vec::new(), Some("130")).len(), 1);
    assert!(receiver.try_recv().is_err());
}

#[test]
fn a_populated_claim_makes_no_other_one_count_as_gone() {
    let objects = Objects::default();
    objects.set(json!({
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "metadata": { "namespace": "shop", "name": "new", "uid": "1", "resourceVersion": "1" },
        "spec": { "dataSourceRef": { "apiGroup": "mover.dev", "kind": "VolumeRestore" } },
    }));
    let known = objects.shown();
    let known = known.lock().expect("nobody else has it");
    assert!(known.has_claim("shop", "old"));
}

#[test]
fn a_claim_counts_if_it_names_a_restore_of_ours() {
    let claim = |source: Value| json!({ "kind": "PersistentVolumeClaim", "spec": { "dataSourceRef": source } });
    assert!(is_wanted(&claim(
        json!({ "apiGroup": "mover.dev", "kind": "VolumeRestore", "name": "x" })
    )));
    assert!(!is_wanted(&claim(
        json!({ "apiGroup": "other.dev", "kind": "VolumeRestore", "name": "x" })
    )));
    assert!(!is_wanted(&claim(Value::Null)));
    let marked = json!({ "kind": "PersistentVolumeClaim", "metadata": { "name": "c", "finalizers": [POPULATE] } });
    assert!(is_wanted(&marked));
}

/// Most of what a controller knows has ended.
#[test]
fn what_has_ended_is_kept_as_text_and_is_the_same() {
    let objects = Objects::default();
    let mut record = json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {
            "namespace": "shop", "name": "mover-backup-1-1", "uid": "r", "resourceVersion": "1",
            "labels": { FOR: "1", STATE: "running" },
        },
        "data": { "request": "{}" },
    });
    let mut upload = json!({
        "kind": "DataUpload", "apiVersion": "velero.io/v2alpha1",
        "metadata": { "namespace": "velero", "name": "u", "uid": "u", "resourceVersion": "1" },
        "status": { "phase": "InProgress" },
    });
    let is_text = |object: &Value| {
        let state = objects.state.borrow();
        matches!(state.all.get(&key_of(object)), Some(Kept::Text(_)))
    };
    for object in [&record, &upload] {
        objects.set(object.clone());
        assert!(!is_text(object), "it goes on");
    }
    record["metadata"]["labels"][STATE] = "ended".into();
    upload["status"]["phase"] = "Completed".into();
    for object in [&mut record, &mut upload] {
        object["metadata"]["resourceVersion"] = "2".into();
        objects.set(object.clone());
        assert!(is_text(object), "{object}");
        assert_eq!(objects.get(&key_of(object)).as_deref(), Some(&*object));
    }
    assert_eq!(*objects.records("1")[0], record);
    assert!(objects.set(upload.clone()).is_none(), "it is as old as before");
    assert_eq!(
        objects.remove(&key_of(&record)).expect("it was there").for_uid.as_deref(),
        Some("1")
    );
    assert_eq!(objects.records("1").len(), 0);
}
