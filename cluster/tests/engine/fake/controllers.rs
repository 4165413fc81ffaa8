//! What controllers, the storage and the programs in pods do.

use super::{DRIVER, Fake};
use mover_cluster::engine::{Key, Kind, MODE_CHANGE, Meta};
use serde_json::{Value, json};

const SELECTED: &str = "volume.kubernetes.io/selected-node";
const COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// Whether a volume is reserved for a claim, and may be bound to it.
fn is_for(volume: &Value, claim: &Key, found: &Value) -> bool {
    let holder = &volume["spec"]["claimRef"];
    let class = |object: &Value| object["spec"]["volumeAttributesClassName"].clone();
    holder["name"] == claim.name.as_str()
        && holder["namespace"].as_str() == claim.namespace.as_deref()
        && (holder["uid"].is_null() || holder["uid"] == Meta::of(found).uid.as_str())
        && volume["spec"]["volumeMode"] == found["spec"]["volumeMode"]
        && class(volume) == class(found)
}

impl Fake {
    /// One thing that some controller has to do; false where there is none.
    pub(crate) fn tick(&mut self) -> bool {
        let did = self.controllers();
        if did {
            self.application();
        }
        did
    }

    fn controllers(&mut self) -> bool {
        self.alone()
            || self.groups()
            || self.snapshots()
            || self.contents()
            || self.claims()
            || self.volumes()
            || self.jobs()
            || self.pods()
            || self.attachments()
            || self.quotas()
    }

    fn application(&mut self) {
        let Some(writes) = self.pair.filter(|_| !self.is_locked()) else { return };
        self.pair = Some(writes + 1);
        let to = if writes.is_multiple_of(2) { "vol-db" } else { "vol-log" };
        self.storage.insert(to.into(), (writes / 2).to_string());
    }

    /// A quota is counted anew late, and at most every ten seconds.
    fn quotas(&mut self) -> bool {
        let counted = self.of_kind(Kind::VolumeSnapshot).len();
        match &mut self.quota {
            Some((_, used)) if *used != counted && self.now >= self.counts_at => {
                *used = counted;
                self.counts_at = self.now + std::time::Duration::from_secs(10);
                true
            }
            _ => false,
        }
    }

    pub(super) fn is_deleted(object: &Value) -> bool {
        object["metadata"]["deletionTimestamp"].is_string()
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

    /// Makes the volume of a claim, if its source is there.
    fn provision(&mut self, key: &Key, claim: &Value) -> bool {
        let node = claim["metadata"]["annotations"][SELECTED].clone();
        let data = match claim["spec"]["dataSource"]["name"].as_str() {
            None => "empty".to_owned(),
            Some(snapshot) => {
                let namespace = key.namespace.as_ref().expect("one");
                let Some(data) = self.snapshot_data(namespace, snapshot) else { return false };
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
                "volumeAttributesClassName": claim["spec"]["volumeAttributesClassName"],
                "nodeAffinity": node,
                "claimRef": { "namespace": key.namespace, "name": key.name, "uid": Meta::of(claim).uid },
            },
        }));
        true
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
            if claim["status"]["phase"] == "Bound" || claim["status"]["phase"] == "Lost" {
                if self.is_misbound(&claim) && claim["status"]["phase"] != "Lost" {
                    self.change(&key, &json!({ "status": { "phase": "Lost" } }));
                    return true;
                }
                continue;
            }
            if self.faults.volume_never_bound {
                continue;
            }
            if let Some(name) = claim["spec"]["volumeName"].as_str() {
                let volume = Key::wide(Kind::PersistentVolume, name);
                let Some(found) = self.get(&volume) else { continue };
                if is_for(found, &key, &claim) {
                    self.bind(&volume, &key);
                    return true;
                }
                continue;
            }
            let volumes = self.of_kind(Kind::PersistentVolume);
            let reserved = volumes
                .iter()
                .find(|(_, found)| !Self::is_deleted(found) && is_for(found, &key, &claim));
            if let Some((volume, _)) = reserved {
                self.bind(volume, &key);
                return true;
            }
            // A source that the provisioner does not know is a populator's.
            if claim["spec"]["dataSourceRef"]["kind"] == "VolumeRestore" {
                continue;
            }
            if self.faults.waits_for_consumer
                && claim["metadata"]["annotations"][SELECTED].is_null()
            {
                // The scheduler chooses it for the first pod.
                if self.pods_of(&key) {
                    let notes = json!({ "annotations": { SELECTED: "node1" } });
                    self.change(&key, &json!({ "metadata": notes }));
                    return true;
                }
                continue;
            }
            if !self.provision(&key, &claim) {
                continue;
            }
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

    /// One write of the binding, the first that is not done: the volume's `claimRef`, its phase, the
    /// claim's volume, its phase.
    fn bind(&mut self, volume: &Key, claim: &Key) {
        let (found, held) = (self.objects[volume].clone(), self.objects[claim].clone());
        let uid = Meta::of(&held).uid;
        if found["spec"]["claimRef"]["uid"] != uid.as_str() {
            self.change(volume, &json!({ "spec": { "claimRef": { "uid": uid } } }));
        } else if found["status"]["phase"] != "Bound" {
            self.change(volume, &json!({ "status": { "phase": "Bound" } }));
        } else if held["spec"]["volumeName"] != volume.name.as_str() {
            let notes = json!({ COMPLETED: "yes", BY_CONTROLLER: "yes" });
            let patch = json!({
                "metadata": { "annotations": notes }, "spec": { "volumeName": volume.name },
            });
            self.change(claim, &patch);
        } else {
            let status = json!({ "phase": "Bound", "capacity": { "storage": "1Gi" } });
            let notes = json!({ "annotations": { COMPLETED: "yes" } });
            self.change(claim, &json!({ "metadata": notes, "status": status }));
        }
    }

    /// A claim that was bound, and whose volume is another one's by now.
    fn is_misbound(&self, claim: &Value) -> bool {
        let Some(name) = claim["spec"]["volumeName"].as_str() else { return true };
        let Some(volume) = self.get(&Key::wide(Kind::PersistentVolume, name)) else { return true };
        let holder = &volume["spec"]["claimRef"];
        !holder.is_null() && holder["uid"] != Meta::of(claim).uid.as_str()
    }

    /// What the controller of Kubernetes makes of volumes (`syncVolume`), and the provisioner.
    pub(super) fn volumes(&mut self) -> bool {
        for (key, volume) in self.of_kind(Kind::PersistentVolume) {
            let holder = &volume["spec"]["claimRef"];
            let claim = holder["name"].as_str().zip(holder["namespace"].as_str());
            let claim = claim.map(|(name, at)| Key::new(Kind::PersistentVolumeClaim, at, name));
            let uid = holder["uid"].as_str().unwrap_or_default();
            let held = claim.as_ref().and_then(|claim| self.get(claim));
            let held = held.filter(|claim| Meta::of(claim).uid == uid).cloned();
            if Self::is_deleted(&volume) {
                if held.is_some() {
                    continue;
                }
                self.objects.remove(&key);
                return true;
            }
            let phase = volume["status"]["phase"].as_str().unwrap_or_default();
            if uid.is_empty() {
                if phase != "Available" {
                    self.change(&key, &json!({ "status": { "phase": "Available" } }));
                    return true;
                }
                continue;
            }
            match held.as_ref().map(|claim| claim["spec"]["volumeName"].as_str()) {
                // The claim is bound next.
                Some(None) => {}
                Some(Some(name)) if name == key.name => {
                    if phase != "Bound" {
                        self.change(&key, &json!({ "status": { "phase": "Bound" } }));
                        return true;
                    }
                }
                // The claim has another volume.
                Some(Some(_)) => {
                    let by_controller =
                        volume["metadata"]["annotations"][BY_CONTROLLER].is_string();
                    let holder = if by_controller { Value::Null } else { json!({ "uid": null }) };
                    let notes = json!({ "annotations": { BY_CONTROLLER: null } });
                    let patch = json!({ "metadata": notes, "spec": { "claimRef": holder } });
                    self.change(&key, &patch);
                    return true;
                }
                None if phase != "Released" => {
                    self.change(&key, &json!({ "status": { "phase": "Released" } }));
                    return true;
                }
                None => {
                    // The provisioner waits until it is detached.
                    let goes = volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete";
                    if goes && !self.is_attached(&key.name) {
                        let handle = volume["spec"]["csi"]["volumeHandle"].as_str();
                        self.storage.remove(handle.unwrap_or_default());
                        self.objects.remove(&key);
                        return true;
                    }
                }
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
            if job["spec"]["suspend"] == true || (self.faults.jobs_stand_still && found.is_some()) {
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
                        "volumes": job["spec"]["template"]["spec"]["volumes"],
                        "args": job["spec"]["template"]["spec"]["containers"][0]["args"],
                        "affinity": job["spec"]["template"]["spec"]["affinity"],
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
            if pod["spec"]["claim"].is_null() && pod["spec"]["args"].is_array() {
                continue;
            }
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
                    if self.keeps_away(&key, &pod) {
                        let message = "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.";
                        let condition = json!({
                            "type": "PodScheduled", "status": "False",
                            "reason": "Unschedulable", "message": message,
                        });
                        if pod["status"]["conditions"].is_null() {
                            self.change(&key, &json!({ "status": { "conditions": [condition] } }));
                            return true;
                        }
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
                        &json!({
                            "spec": { "nodeName": "node1" },
                            "status": { "phase": "Running", "conditions": [], "containerStatuses": running },
                        }),
                    );
                    return true;
                }
                // Others run until somebody ends them.
                (Some("Running"), Some(volume), _) if pod["spec"]["args"].is_array() => {
                    let volume = volume.clone();
                    let Some((code, message)) = self.run(&pod, &volume) else { return true };
                    let phase = if code == 0 { "Succeeded" } else { "Failed" };
                    let mut end =
                        json!({ "exitCode": code, "message": message, "finishedAt": "then" });
                    if self.faults.out_of_memory {
                        end["reason"] = "OOMKilled".into();
                    }
                    let status = json!({ "phase": phase, "containerStatuses": [{ "state": { "terminated": end } }] });
                    self.change(&key, &json!({ "status": status }));
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// The scheduler has one node, and a rule of the pod keeps it away from another that is there.
    fn keeps_away(&self, key: &Key, pod: &Value) -> bool {
        let terms = &pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        terms.as_array().into_iter().flatten().any(|term| {
            let wanted = term["labelSelector"]["matchLabels"].as_object().expect("labels");
            assert!(!wanted.is_empty() && term["topologyKey"] == "kubernetes.io/hostname");
            self.of_kind(Kind::Pod).iter().any(|(other, found)| {
                let labels = &found["metadata"]["labels"];
                let phase = found["status"]["phase"].as_str().unwrap_or_default();
                other != key
                    && other.namespace == key.namespace
                    && found["spec"]["nodeName"].is_string()
                    && !["Succeeded", "Failed"].contains(&phase)
                    && wanted.iter().all(|(name, value)| labels[name] == *value)
            })
        })
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
