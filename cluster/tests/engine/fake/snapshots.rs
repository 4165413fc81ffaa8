//! The snapshot controller and its sidecar.

use super::{DRIVER, Fake};
use mover_cluster::engine::{Key, Kind, Meta};
use serde_json::{Value, json};

impl Fake {
    pub(super) fn snapshots(&mut self) -> bool {
        for (key, snapshot) in self.of_kind(Kind::VolumeSnapshot) {
            if Self::is_member(&snapshot) {
                continue;
            }
            let content = snapshot["status"]["boundVolumeSnapshotContentName"].as_str();
            let content = content.map(|name| Key::wide(Kind::VolumeSnapshotContent, name));
            if Self::is_deleted(&snapshot) {
                self.end_snapshot(&key, content);
                return true;
            }
            let did = match content {
                None => self.bind_snapshot(&key, &snapshot),
                Some(content) => self.take_snapshot(&key, &snapshot, &content),
            };
            if did {
                return true;
            }
        }
        false
    }

    pub(super) fn end_snapshot(&mut self, key: &Key, content: Option<Key>) {
        if let Some(content) = content {
            let policy = self.get(&content).map(|at| at["spec"]["deletionPolicy"].clone());
            if policy == Some("Delete".into()) {
                self.change(&content, &json!({ "metadata": { "deletionTimestamp": "now" } }));
            }
        }
        self.objects.remove(key);
    }

    pub(super) fn source_of(key: &Key, snapshot: &Value) -> Key {
        let claim = snapshot["spec"]["source"]["persistentVolumeClaimName"].as_str();
        let namespace = key.namespace.as_ref().expect("one");
        Key::new(Kind::PersistentVolumeClaim, namespace, claim.expect("a claim"))
    }

    pub(super) fn bind_snapshot(&mut self, key: &Key, snapshot: &Value) -> bool {
        let meta = Meta::of(snapshot);
        if let Some(content) = snapshot["spec"]["source"]["volumeSnapshotContentName"].as_str() {
            let name = Key::wide(Kind::VolumeSnapshotContent, content);
            let Some(found) = self.get(&name) else { return false };
            let handle = found["spec"]["source"]["snapshotHandle"].clone();
            let back = json!({ "volumeSnapshotRef": { "uid": meta.uid } });
            self.change(&name, &json!({ "spec": back, "status": { "snapshotHandle": handle } }));
            self.change(key, &json!({ "status": { "boundVolumeSnapshotContentName": content } }));
            return true;
        }
        let name = format!("snapcontent-{}", meta.uid);
        let claim = Self::source_of(key, snapshot);
        let mode = self.get(&claim).expect("it exists")["spec"]["volumeMode"].clone();
        let uid = if self.faults.foreign_content { "another".to_owned() } else { meta.uid };
        let back = json!({ "uid": uid, "namespace": key.namespace, "name": key.name });
        self.create(&json!({
            "kind": "VolumeSnapshotContent",
            "metadata": { "name": name },
            "spec": {
                "driver": DRIVER,
                "source": { "volumeHandle": self.handle_of(&claim) },
                "deletionPolicy": "Retain",
                "sourceVolumeMode": mode,
                "volumeSnapshotRef": back,
            },
        }));
        self.change(key, &json!({ "status": { "boundVolumeSnapshotContentName": name } }));
        true
    }

    pub(super) fn take_snapshot(&mut self, key: &Key, snapshot: &Value, content: &Key) -> bool {
        let Some(found) = self.get(content).cloned() else { return false };
        if found["status"]["snapshotHandle"].is_null() {
            if let Some(error) = &self.faults.snapshot_error {
                let status = json!({ "status": { "error": { "message": error } } });
                if snapshot["status"]["error"].is_null() {
                    self.change(key, &status);
                    return true;
                }
                return false;
            }
            let taken = self.storage.keys().filter(|name| name.starts_with("snap-")).count();
            if self.faults.snapshots_max.is_some_and(|most| taken >= most) {
                return self.has_no_room(key, snapshot);
            }
            let Some(data) = self.data_of(&Self::source_of(key, snapshot)) else { return false };
            let data = if self.writes && !self.is_locked() { "torn".to_owned() } else { data };
            let handle = format!("snap-{}", self.next());
            let time = self.time();
            self.storage.insert(handle.clone(), data);
            self.change(content, &json!({ "status": { "snapshotHandle": handle } }));
            self.change(key, &json!({ "status": { "creationTime": time, "restoreSize": "1Gi" } }));
            return true;
        }
        if let Some(handle) = found["spec"]["source"]["snapshotHandle"].as_str()
            && found["status"]["readyToUse"] != true
        {
            return self.look_for(content, handle, &found);
        }
        if snapshot["status"]["readyToUse"] != true && !self.faults.snapshot_never_ready {
            let is_said = found["spec"]["source"]["snapshotHandle"].is_null();
            let size = if is_said || !self.faults.lists_nothing { "1Gi" } else { "0" };
            self.change(key, &json!({ "status": { "readyToUse": true, "restoreSize": size } }));
            self.change(
                content,
                &json!({ "status": { "readyToUse": true, "restoreSize": 1 << 30 } }),
            );
            return true;
        }
        false
    }

    /// The sidecar looks for a snapshot that is named by its handle.
    fn look_for(&mut self, content: &Key, handle: &str, found: &Value) -> bool {
        let status = match (self.faults.lists_nothing, self.storage.contains_key(handle)) {
            (true, _) | (false, true) => json!({ "readyToUse": true }),
            (false, false) => {
                let message = format!("can not find snapshot {handle}");
                json!({ "readyToUse": false, "error": { "message": message } })
            }
        };
        if found["status"]["error"].is_object() {
            return false;
        }
        self.change(content, &json!({ "status": status }));
        true
    }

    /// The sidecar says so, and tries again every minute.
    fn has_no_room(&mut self, key: &Key, snapshot: &Value) -> bool {
        let time = format!("minute-{}", self.now.as_secs() / 60);
        if snapshot["status"]["error"]["time"] == time.as_str() {
            return false;
        }
        let message = "failed to take snapshot of the volume vol-db: \"rpc error: code = \
                       ResourceExhausted desc = the pool has no room\"";
        let error = json!({ "message": message, "time": time });
        self.change(key, &json!({ "status": { "error": error } }));
        true
    }

    pub(super) fn contents(&mut self) -> bool {
        for (key, content) in self.of_kind(Kind::VolumeSnapshotContent) {
            if Self::is_deleted(&content) {
                let of_group = content["status"]["volumeGroupSnapshotHandle"].is_string();
                if content["spec"]["deletionPolicy"] == "Delete" && !of_group {
                    let handle = content["status"]["snapshotHandle"].as_str().unwrap_or_default();
                    self.storage.remove(handle);
                }
                self.objects.remove(&key);
                return true;
            }
        }
        false
    }
}
