//! The snapshot controller and its sidecar, as far as they make groups and their members
//! (`pkg/common-controller/groupsnapshot_controller_helper.go` of external-snapshotter).

use super::{DRIVER, Fake};
use mover_cluster::engine::{Key, Kind, Meta};
use serde_json::{Value, json};

fn content_of(group: &Value) -> Key {
    let name = format!("groupsnapcontent-{}", Meta::of(group).uid);
    Key::wide(Kind::VolumeGroupSnapshotContent, &name)
}

impl Fake {
    /// Whether the controller of groups made a snapshot.
    pub(super) fn is_member(snapshot: &Value) -> bool {
        snapshot["metadata"]["ownerReferences"][0]["kind"] == "VolumeGroupSnapshot"
    }

    pub(super) fn groups(&mut self) -> bool {
        for (key, group) in self.of_kind(Kind::VolumeGroupSnapshot) {
            let did = match Self::is_deleted(&group) {
                true => self.end_group(&key, &group),
                false => self.make_group(&key, &group),
            };
            if did {
                return true;
            }
        }
        self.group_contents() || self.end_members()
    }

    /// One write on the way of a group; false where none is left.
    fn make_group(&mut self, key: &Key, group: &Value) -> bool {
        let content = content_of(group);
        let Some(found) = self.get(&content).cloned() else { return self.choose(key, group) };
        if group["status"]["boundVolumeGroupSnapshotContentName"].is_null() {
            let status = json!({ "boundVolumeGroupSnapshotContentName": content.name });
            self.change(key, &json!({ "status": status }));
            return true;
        }
        if found["status"].is_null() {
            return self.take_group(key, group, &content, &found);
        }
        if group["status"]["creationTime"].is_null() {
            self.change(key, &json!({ "status": { "creationTime": "then" } }));
            return true;
        }
        for info in found["status"]["volumeSnapshotInfoList"].as_array().into_iter().flatten() {
            if self.make_member(key, group, info) {
                return true;
            }
        }
        if group["status"]["readyToUse"] != true && !self.faults.snapshot_never_ready {
            self.change(key, &json!({ "status": { "readyToUse": true } }));
            return true;
        }
        false
    }

    /// The volumes are chosen once, by the labels of their claims. One that is not bound is an error.
    fn choose(&mut self, key: &Key, group: &Value) -> bool {
        let labels = group["spec"]["source"]["selector"]["matchLabels"].as_object();
        let labels = labels.expect("labels").clone();
        let mut handles = Vec::new();
        for (claim, found) in self.of_kind(Kind::PersistentVolumeClaim) {
            let has = &found["metadata"]["labels"];
            if claim.namespace != key.namespace || labels.iter().any(|(at, of)| has[at] != *of) {
                continue;
            }
            let Some(handle) = self.handle_of(&claim) else {
                let message = format!("the PVC {} is not yet bound to a PV", claim.name);
                if group["status"]["error"].is_object() {
                    return false;
                }
                self.change(key, &json!({ "status": { "error": { "message": message } } }));
                return true;
            };
            handles.push(handle);
        }
        let reference = json!({
            "namespace": key.namespace, "name": key.name, "uid": Meta::of(group).uid,
        });
        self.create(&json!({
            "kind": "VolumeGroupSnapshotContent",
            "metadata": { "name": content_of(group).name },
            "spec": {
                "driver": DRIVER,
                "deletionPolicy": "Retain",
                "source": { "volumeHandles": handles },
                "volumeGroupSnapshotRef": reference,
            },
        }));
        true
    }

    /// All of them at one moment.
    fn take_group(&mut self, key: &Key, group: &Value, content: &Key, found: &Value) -> bool {
        if let Some(error) = &self.faults.snapshot_error {
            if group["status"]["error"].is_object() {
                return false;
            }
            self.change(key, &json!({ "status": { "error": { "message": error } } }));
            return true;
        }
        if self.faults.group_never_taken {
            return false;
        }
        let mut infos = Vec::new();
        for volume in found["spec"]["source"]["volumeHandles"].as_array().into_iter().flatten() {
            let volume = volume.as_str().expect("a handle");
            let data = match self.writes && !self.is_locked() {
                true => "torn".to_owned(),
                false => self.storage[volume].clone(),
            };
            let handle = format!("snap-{}", self.next());
            self.storage.insert(handle.clone(), data);
            infos.push(json!({ "volumeHandle": volume, "snapshotHandle": handle }));
        }
        let status = json!({
            "volumeGroupSnapshotHandle": format!("group-{}", content.name),
            "volumeSnapshotInfoList": infos,
        });
        self.change(content, &json!({ "status": status }));
        true
    }

    fn make_member(&mut self, key: &Key, group: &Value, info: &Value) -> bool {
        let volume = info["volumeHandle"].as_str().expect("a handle");
        let uid = Meta::of(group).uid;
        let content =
            Key::wide(Kind::VolumeSnapshotContent, &format!("snapcontent-{uid}-{volume}"));
        let namespace = key.namespace.as_deref().expect("one");
        let name = format!("snapshot-{uid}-{volume}");
        let snapshot = Key::new(Kind::VolumeSnapshot, namespace, &name);
        let policy = self.objects[&content_of(group)]["spec"]["deletionPolicy"].clone();
        let claims = self.of_kind(Kind::PersistentVolumeClaim);
        let claim = claims.iter().find(|(at, _)| self.handle_of(at).as_deref() == Some(volume));
        let Some((claim, found)) = claim else { return false };
        if self.faults.member_missing.as_ref() == Some(&claim.name) {
            return false;
        }
        let Some(at) = self.get(&content) else {
            let back = json!({ "namespace": namespace, "name": name });
            self.create(&json!({
                "kind": "VolumeSnapshotContent",
                "metadata": { "name": content.name },
                "spec": {
                    "driver": DRIVER,
                    "source": { "volumeHandle": volume },
                    "deletionPolicy": policy,
                    "sourceVolumeMode": found["spec"]["volumeMode"],
                    "volumeSnapshotRef": back,
                },
            }));
            return true;
        };
        let Some(member) = self.get(&snapshot) else {
            let owner = json!({ "kind": "VolumeGroupSnapshot", "name": key.name, "uid": uid });
            self.create(&json!({
                "kind": "VolumeSnapshot",
                "metadata": { "name": name, "namespace": namespace, "ownerReferences": [owner] },
                "spec": { "source": { "persistentVolumeClaimName": claim.name } },
            }));
            return true;
        };
        let member_uid = Meta::of(member).uid;
        if at["spec"]["volumeSnapshotRef"]["uid"].is_null() {
            let back = json!({ "uid": member_uid });
            let status = json!({
                "snapshotHandle": info["snapshotHandle"],
                "volumeGroupSnapshotHandle": format!("group-groupsnapcontent-{uid}"),
            });
            self.change(
                &content,
                &json!({ "spec": { "volumeSnapshotRef": back }, "status": status }),
            );
            return true;
        }
        if member["status"]["boundVolumeSnapshotContentName"].is_null() {
            let status = json!({ "boundVolumeSnapshotContentName": content.name });
            self.change(&snapshot, &json!({ "status": status }));
            return true;
        }
        if member["status"]["readyToUse"].is_null() {
            let status = json!({
                "volumeGroupSnapshotName": key.name,
                "readyToUse": true,
                "creationTime": "then",
                "restoreSize": "1Gi",
            });
            self.change(&snapshot, &json!({ "status": status }));
            return true;
        }
        false
    }

    /// Its content goes first where its policy says so, then its members are deleted, then it.
    fn end_group(&mut self, key: &Key, group: &Value) -> bool {
        let content = group["status"]["boundVolumeGroupSnapshotContentName"].as_str();
        let content = content.map(|name| Key::wide(Kind::VolumeGroupSnapshotContent, name));
        if let Some(content) = content
            && let Some(found) = self.get(&content)
            && found["spec"]["deletionPolicy"] == "Delete"
        {
            if Self::is_deleted(found) {
                return false;
            }
            self.change(&content, &json!({ "metadata": { "deletionTimestamp": "now" } }));
            return true;
        }
        for (member, found) in self.of_kind(Kind::VolumeSnapshot) {
            let of = found["status"]["volumeGroupSnapshotName"].as_str();
            if of == Some(&key.name) && !Self::is_deleted(&found) {
                self.change(&member, &json!({ "metadata": { "deletionTimestamp": "now" } }));
                return true;
            }
        }
        self.objects.remove(key);
        true
    }

    fn group_contents(&mut self) -> bool {
        for (key, content) in self.of_kind(Kind::VolumeGroupSnapshotContent) {
            if !Self::is_deleted(&content) {
                continue;
            }
            for info in content["status"]["volumeSnapshotInfoList"].as_array().into_iter().flatten()
            {
                self.storage.remove(info["snapshotHandle"].as_str().expect("a handle"));
            }
            self.objects.remove(&key);
            return true;
        }
        false
    }

    /// No member goes before its group.
    fn end_members(&mut self) -> bool {
        for (key, member) in self.of_kind(Kind::VolumeSnapshot) {
            if !Self::is_member(&member) {
                continue;
            }
            let owner = member["metadata"]["ownerReferences"][0]["name"].as_str();
            let namespace = key.namespace.as_deref().expect("one");
            let group = Key::new(Kind::VolumeGroupSnapshot, namespace, owner.expect("a name"));
            if self.get(&group).is_some() {
                continue;
            }
            // The garbage collector deletes what its owner has left.
            let content = member["status"]["boundVolumeSnapshotContentName"].as_str();
            let content = content.map(|name| Key::wide(Kind::VolumeSnapshotContent, name));
            self.end_snapshot(&key, content);
            return true;
        }
        false
    }
}
