//! What controllers, the storage and the programs in pods do.

use super::{DRIVER, Fake};
use mover_cluster::engine::{Key, Kind, MODE_CHANGE, Meta};
use serde_json::{Value, json};

impl Fake {
    /// One thing that some controller has to do; false where there is none.
    pub(crate) fn tick(&mut self) -> bool {
        self.snapshots()
            || self.contents()
            || self.claims()
            || self.volumes()
            || self.jobs()
            || self.pods()
            || self.attachments()
    }

    pub(super) fn is_deleted(object: &Value) -> bool {
        object["metadata"]["deletionTimestamp"].is_string()
    }

    pub(super) fn snapshots(&mut self) -> bool {
        for (key, snapshot) in self.of_kind(Kind::VolumeSnapshot) {
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
            let Some(data) = self.data_of(&Self::source_of(key, snapshot)) else { return false };
            let data = if self.writes && !self.is_locked() { "torn".to_owned() } else { data };
            let handle = format!("snap-{}", self.next());
            self.storage.insert(handle.clone(), data);
            self.change(content, &json!({ "status": { "snapshotHandle": handle } }));
            self.change(
                key,
                &json!({ "status": { "creationTime": "then", "restoreSize": "1Gi" } }),
            );
            return true;
        }
        if snapshot["status"]["readyToUse"] != true && !self.faults.snapshot_never_ready {
            self.change(key, &json!({ "status": { "readyToUse": true, "restoreSize": "1Gi" } }));
            return true;
        }
        false
    }

    pub(super) fn contents(&mut self) -> bool {
        for (key, content) in self.of_kind(Kind::VolumeSnapshotContent) {
            if Self::is_deleted(&content) {
                if content["spec"]["deletionPolicy"] == "Delete" {
                    let handle = content["status"]["snapshotHandle"].as_str().unwrap_or_default();
                    self.storage.remove(handle);
                }
                self.objects.remove(&key);
                return true;
            }
        }
        false
    }

    pub(super) fn handle_of(&self, claim: &Key) -> Option<String> {
        let volume = self.get(claim)?["spec"]["volumeName"].as_str()?;
        let volume = self.get(&Key::wide(Kind::PersistentVolume, volume))?;
        volume["spec"]["csi"]["volumeHandle"].as_str().map(str::to_owned)
    }

    pub(super) fn data_of(&self, claim: &Key) -> Option<String> {
        self.storage.get(&self.handle_of(claim)?).cloned()
    }

    pub(super) fn pods_of(&self, claim: &Key) -> bool {
        self.of_kind(Kind::Pod).iter().any(|(key, pod)| {
            key.namespace == claim.namespace
                && pod["spec"]["claim"] == claim.name.as_str()
                && !["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or(""))
        })
    }

    pub(super) fn claims(&mut self) -> bool {
        for (key, claim) in self.of_kind(Kind::PersistentVolumeClaim) {
            if self.faults.owner_gone && claim["metadata"]["ownerReferences"][0]["uid"] == "1" {
                self.objects.remove(&key);
                return true;
            }
            if Self::is_deleted(&claim) {
                // That of Kubernetes itself goes with the last pod.
                let finalizers = Meta::of(&claim).finalizers;
                let held = finalizers.iter().any(|name| !name.starts_with("kubernetes.io/"));
                if self.pods_of(&key) || held {
                    continue;
                }
                self.objects.remove(&key);
                return true;
            }
            if claim["status"]["phase"] == "Bound" || self.faults.volume_never_bound {
                continue;
            }
            let meta = Meta::of(&claim);
            if let Some(name) = claim["spec"]["volumeName"].as_str() {
                let volume = Key::wide(Kind::PersistentVolume, name);
                let Some(found) = self.get(&volume) else { continue };
                let holder = &found["spec"]["claimRef"];
                let fits = holder["name"] == key.name.as_str()
                    && holder["namespace"].as_str() == key.namespace.as_deref()
                    && (holder["uid"].is_null() || holder["uid"] == meta.uid.as_str())
                    && found["spec"]["volumeMode"] == claim["spec"]["volumeMode"];
                if fits {
                    self.change(&volume, &json!({ "spec": { "claimRef": { "uid": meta.uid } }, "status": { "phase": "Bound" } }));
                    self.change(&key, &json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } }));
                    return true;
                }
                continue;
            }
            let data = match claim["spec"]["dataSource"]["name"].as_str() {
                None => "empty".to_owned(),
                Some(snapshot) => {
                    let namespace = key.namespace.as_ref().expect("one");
                    let Some(data) = self.snapshot_data(namespace, snapshot) else { continue };
                    data
                }
            };
            let number = self.next();
            let (name, handle) = (format!("pv-{number}"), format!("vol-{number}"));
            self.storage.insert(handle.clone(), data);
            self.create(&json!({
                "kind": "PersistentVolume",
                "metadata": { "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": DRIVER } },
                "spec": {
                    "csi": { "driver": DRIVER, "volumeHandle": handle },
                    "volumeMode": claim["spec"]["volumeMode"],
                    "storageClassName": claim["spec"]["storageClassName"],
                    "persistentVolumeReclaimPolicy": if self.faults.retains { "Retain" } else { "Delete" },
                    "claimRef": { "namespace": key.namespace, "name": key.name, "uid": meta.uid },
                },
                "status": { "phase": "Bound" },
            }));
            self.change(&key, &json!({ "spec": { "volumeName": name }, "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } }));
            return true;
        }
        false
    }

    /// As the provisioner has it: ready, of this driver, and its mode may change.
    pub(super) fn snapshot_data(&self, namespace: &str, name: &str) -> Option<String> {
        let snapshot = self.get(&Key::new(Kind::VolumeSnapshot, namespace, name))?;
        let content = snapshot["status"]["boundVolumeSnapshotContentName"].as_str()?;
        let content = self.get(&Key::wide(Kind::VolumeSnapshotContent, content))?;
        let changes = content["spec"]["sourceVolumeMode"] == "Filesystem";
        let may_change = content["metadata"]["annotations"][MODE_CHANGE] == "true";
        if snapshot["status"]["readyToUse"] != true || (changes && !may_change) {
            return None;
        }
        self.storage.get(content["status"]["snapshotHandle"].as_str()?).cloned()
    }

    pub(super) fn volumes(&mut self) -> bool {
        for (key, volume) in self.of_kind(Kind::PersistentVolume) {
            let holder = &volume["spec"]["claimRef"];
            let claim = holder["name"].as_str().zip(holder["namespace"].as_str());
            let claim = claim.map(|(name, at)| Key::new(Kind::PersistentVolumeClaim, at, name));
            let held = claim.as_ref().and_then(|claim| self.get(claim)).is_some_and(|claim| {
                Meta::of(claim).uid == holder["uid"].as_str().unwrap_or_default()
            });
            if Self::is_deleted(&volume) {
                if held {
                    continue;
                }
                self.objects.remove(&key);
                return true;
            }
            // The provisioner waits until it is detached.
            let free = !held && !self.is_attached(&key.name);
            if free && holder["uid"].is_string() && volume["status"]["phase"] == "Bound" {
                if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
                    let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap_or_default();
                    self.storage.remove(handle);
                    self.objects.remove(&key);
                } else {
                    self.change(&key, &json!({ "status": { "phase": "Released" } }));
                }
                return true;
            }
        }
        false
    }

    pub(super) fn is_attached(&self, volume: &str) -> bool {
        let of = |(_, at): &(Key, Value)| at["spec"]["source"]["persistentVolumeName"] == volume;
        self.of_kind(Kind::VolumeAttachment).iter().any(of)
    }

    pub(super) fn jobs(&mut self) -> bool {
        for (key, job) in self.of_kind(Kind::Job) {
            let namespace = key.namespace.clone().expect("one");
            let pod = Key::new(Kind::Pod, &namespace, &format!("{}-pod", key.name));
            let found = self.get(&pod).cloned();
            if Self::is_deleted(&job) {
                self.objects.remove(&pod);
                self.objects.remove(&key);
                return true;
            }
            if job["status"]["conditions"].is_array() {
                continue;
            }
            if job["spec"]["suspend"] == true {
                continue;
            }
            let Some(found) = found else {
                let mut labels = job["spec"]["template"]["metadata"]["labels"].clone();
                labels["batch.kubernetes.io/job-name"] = key.name.clone().into();
                let volumes = job["spec"]["template"]["spec"]["volumes"].as_array().cloned();
                let claim = volumes.into_iter().flatten().find_map(|at| {
                    at["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned)
                });
                self.create(&json!({
                    "kind": "Pod",
                    "metadata": { "name": pod.name, "namespace": namespace, "labels": labels },
                    "spec": {
                        "claim": claim,
                        "args": job["spec"]["template"]["spec"]["containers"][0]["args"],
                    },
                    "status": { "phase": "Pending" },
                }));
                return true;
            };
            let phase = found["status"]["phase"].as_str().unwrap_or_default();
            let condition = match phase {
                "Succeeded" => "Complete",
                "Failed" => "Failed",
                _ => continue,
            };
            let conditions = json!([{ "type": condition, "status": "True" }]);
            self.change(&key, &json!({ "status": { "conditions": conditions } }));
            if self.faults.pods_lost > 0 {
                self.faults.pods_lost -= 1;
                self.objects.remove(&pod);
            }
            return true;
        }
        false
    }

    pub(super) fn pods(&mut self) -> bool {
        for (key, pod) in self.of_kind(Kind::Pod) {
            let namespace = key.namespace.clone().expect("one");
            let claim = pod["spec"]["claim"].as_str();
            let claim = claim.map(|name| Key::new(Kind::PersistentVolumeClaim, &namespace, name));
            let volume = claim
                .as_ref()
                .and_then(|claim| self.get(claim))
                .filter(|claim| claim["status"]["phase"] == "Bound")
                .and_then(|claim| claim["spec"]["volumeName"].as_str())
                .map(str::to_owned);
            let running = json!([{ "state": { "running": {} } }]);
            match (pod["status"]["phase"].as_str(), &volume, &claim) {
                (Some("Pending"), volume, claim) if volume.is_some() || claim.is_none() => {
                    if self.faults.pod_never_begins {
                        continue;
                    }
                    if let Some(volume) = volume {
                        let name = format!("attachment-{volume}");
                        self.create(&json!({
                            "kind": "VolumeAttachment",
                            "metadata": { "name": name },
                            "spec": { "nodeName": "node1", "source": { "persistentVolumeName": volume } },
                        }));
                    }
                    self.change(
                        &key,
                        &json!({ "status": { "phase": "Running", "containerStatuses": running } }),
                    );
                    return true;
                }
                // Others run until somebody ends them.
                (Some("Running"), Some(volume), _) if pod["spec"]["args"].is_array() => {
                    let volume = volume.clone();
                    let Some((code, message)) = self.run(&pod, &volume) else { return true };
                    let phase = if code == 0 { "Succeeded" } else { "Failed" };
                    let end = json!({ "exitCode": code, "message": message, "finishedAt": "then" });
                    let status = json!({ "phase": phase, "containerStatuses": [{ "state": { "terminated": end } }] });
                    self.change(&key, &json!({ "status": status }));
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    pub(super) fn attachments(&mut self) -> bool {
        if self.faults.never_detached {
            return false;
        }
        for (key, attachment) in self.of_kind(Kind::VolumeAttachment) {
            let volume = attachment["spec"]["source"]["persistentVolumeName"].as_str();
            let used =
                self.of_kind(Kind::PersistentVolumeClaim).into_iter().any(|(claim, found)| {
                    found["spec"]["volumeName"].as_str() == volume && self.pods_of(&claim)
                });
            if !used {
                self.objects.remove(&key);
                return true;
            }
        }
        false
    }
}
