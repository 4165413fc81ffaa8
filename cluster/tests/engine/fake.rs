//! A cluster in memory: an API with versions, uids and preconditions, the controllers that matter
//! to an operation, and a storage whose volumes hold one word of data.
//!
//! It is no proof of how Kubernetes behaves (the tests on a real one are), but every order of
//! events, every crash and every second driver can be tried on it.

use mover_cluster::engine::{
    Key, Kind, LockState, MODE_CHANGE, Meta, OWNER, Observed, Query, ROLE, Selection, Step,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const DRIVER: &str = "test.csi.mover";
pub(crate) const CLASS: &str = "fast";

/// What the controllers and the program in the pods do otherwise than they should.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    pub(crate) snapshot_never_ready: bool,
    pub(crate) snapshot_error: Option<String>,
    pub(crate) volume_never_bound: bool,
    /// Exit code and message of every pod.
    pub(crate) pod_fails: Option<(i64, String)>,
    pub(crate) pod_never_begins: bool,
    /// The first so many pods are gone before anybody reads how they ended.
    pub(crate) pods_lost: u32,
    /// The content names another snapshot.
    pub(crate) foreign_content: bool,
    pub(crate) never_detached: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Fake {
    pub(crate) objects: BTreeMap<Key, Value>,
    /// Data of volumes and snapshots, by handle.
    pub(crate) storage: BTreeMap<String, String>,
    /// Data of backups, by id.
    pub(crate) repository: BTreeMap<String, String>,
    pub(crate) faults: Faults,
    counter: u64,
    pub(crate) now: Duration,
    /// The application writes all the time: a snapshot without its lock is torn.
    pub(crate) writes: bool,
    /// For which attempt the application holds still, and until when.
    pub(crate) lock: Option<(u32, Duration)>,
    /// Every write that the API took, for reading by people.
    pub(crate) written: Vec<String>,
}

/// How the API answers a write.
#[derive(Debug, PartialEq)]
pub(crate) enum Answer {
    Object(Option<Value>),
    Absent,
    Conflict,
}

impl Fake {
    fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    pub(crate) fn of_kind(&self, kind: Kind) -> Vec<(Key, Value)> {
        let of = |(key, value): (&Key, &Value)| (key.clone(), value.clone());
        self.objects.iter().filter(|(key, _)| key.kind == kind).map(of).collect()
    }

    fn select(&self, selection: &Selection) -> Vec<Value> {
        let wanted: Vec<(&str, &str)> = selection
            .labels
            .split(',')
            .filter(|text| !text.is_empty())
            .map(|text| text.split_once('=').expect("a label has a value"))
            .collect();
        let fits = |key: &Key, object: &Value| {
            let labels = Meta::of(object).labels;
            key.kind == selection.kind
                && (selection.namespace.is_none() || selection.namespace == key.namespace)
                && wanted
                    .iter()
                    .all(|(name, value)| labels.get(*name).map(String::as_str) == Some(*value))
        };
        self.objects.iter().filter(|(key, at)| fits(key, at)).map(|(_, at)| at.clone()).collect()
    }

    pub(crate) fn create(&mut self, object: &Value) -> Answer {
        let key = mover_cluster::api::key_of(object);
        if self.objects.contains_key(&key) {
            return Answer::Conflict;
        }
        let number = self.next();
        let mut object = object.clone();
        object["metadata"]["uid"] = format!("uid-{number}").into();
        object["metadata"]["resourceVersion"] = number.to_string().into();
        object["metadata"]["creationTimestamp"] = format!("{number:08}").into();
        self.written.push(format!("create {key}"));
        self.objects.insert(key, object.clone());
        Answer::Object(Some(object))
    }

    fn patch(&mut self, key: &Key, uid: &str, version: &str, patch: &Value) -> Answer {
        let Some(found) = self.objects.get(key) else { return Answer::Absent };
        let meta = Meta::of(found);
        if meta.uid != uid || version != meta.resource_version {
            return Answer::Conflict;
        }
        self.written.push(format!("patch {key} {patch}"));
        self.change(key, patch);
        Answer::Object(self.objects.get(key).cloned())
    }

    /// A change by a controller, or by anybody.
    pub(crate) fn change(&mut self, key: &Key, patch: &Value) {
        let number = self.next();
        let object = self.objects.get_mut(key).expect("it exists");
        merge(object, patch);
        object["metadata"]["resourceVersion"] = number.to_string().into();
    }

    pub(crate) fn delete(&mut self, key: &Key, uid: &str) -> Answer {
        let Some(found) = self.objects.get(key) else { return Answer::Absent };
        if Meta::of(found).uid != uid {
            return Answer::Conflict;
        }
        self.written.push(format!("delete {key}"));
        let waits = matches!(
            key.kind,
            Kind::Job
                | Kind::PersistentVolumeClaim
                | Kind::PersistentVolume
                | Kind::VolumeSnapshot
                | Kind::VolumeSnapshotContent
        );
        if !waits {
            self.objects.remove(key);
            return Answer::Object(None);
        }
        self.change(key, &json!({ "metadata": { "deletionTimestamp": "now" } }));
        Answer::Object(self.objects.get(key).cloned())
    }

    pub(crate) fn execute(&mut self, step: &Step, seen: &mut Observed) {
        let (key, answer) = match step {
            Step::Create(object) => (mover_cluster::api::key_of(object), self.create(object)),
            Step::Patch { key, uid, version, patch } => {
                (key.clone(), self.patch(key, uid, version, patch))
            }
            Step::Delete { key, uid } => (key.clone(), self.delete(key, uid)),
        };
        match answer {
            Answer::Object(object) => seen.set_object(key, object),
            Answer::Absent => seen.set_object(key, None),
            Answer::Conflict => seen.forget(&key.into()),
        }
    }

    pub(crate) fn read(&self, query: &Query, seen: &mut Observed) {
        match query {
            Query::One(key) => seen.set_object(key.clone(), self.get(key).cloned()),
            Query::Many(selection) => {
                seen.set_list(selection.clone(), self.select(selection), None);
            }
        }
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_some_and(|(_, until)| self.now < until)
    }

    pub(crate) fn is_locked_by(&self, seen: &Observed) -> bool {
        let held = seen.lock().filter(|lock| lock.state == LockState::Held);
        self.is_locked() && held.map(|lock| lock.attempt) == self.lock.map(|(attempt, _)| attempt)
    }

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

    fn is_deleted(object: &Value) -> bool {
        object["metadata"]["deletionTimestamp"].is_string()
    }

    fn snapshots(&mut self) -> bool {
        for (key, snapshot) in self.of_kind(Kind::VolumeSnapshot) {
            let meta = Meta::of(&snapshot);
            let content_name = snapshot["status"]["boundVolumeSnapshotContentName"].as_str();
            if Self::is_deleted(&snapshot) {
                if let Some(name) = content_name {
                    let content = Key::wide(Kind::VolumeSnapshotContent, name);
                    let policy = self.get(&content).map(|at| at["spec"]["deletionPolicy"].clone());
                    if policy == Some("Delete".into()) {
                        self.change(
                            &content,
                            &json!({ "metadata": { "deletionTimestamp": "now" } }),
                        );
                    }
                }
                self.objects.remove(&key);
                return true;
            }
            let Some(name) = content_name else {
                if let Some(content) =
                    snapshot["spec"]["source"]["volumeSnapshotContentName"].as_str()
                {
                    let content = content.to_owned();
                    let content_key = Key::wide(Kind::VolumeSnapshotContent, &content);
                    if self.get(&content_key).is_none() {
                        continue;
                    }
                    self.change(
                        &content_key,
                        &json!({ "spec": { "volumeSnapshotRef": { "uid": meta.uid } } }),
                    );
                    let handle =
                        self.objects[&content_key]["spec"]["source"]["snapshotHandle"].clone();
                    self.change(&content_key, &json!({ "status": { "snapshotHandle": handle } }));
                    self.change(
                        &key,
                        &json!({ "status": { "boundVolumeSnapshotContentName": content } }),
                    );
                    return true;
                }
                let name = format!("snapcontent-{}", meta.uid);
                let content = Key::wide(Kind::VolumeSnapshotContent, &name);
                let claim = snapshot["spec"]["source"]["persistentVolumeClaimName"]
                    .as_str()
                    .expect("a claim");
                let claim = Key::new(
                    Kind::PersistentVolumeClaim,
                    key.namespace.as_ref().expect("one"),
                    claim,
                );
                let mode = self.get(&claim).expect("it exists")["spec"]["volumeMode"].clone();
                let uid = if self.faults.foreign_content { "another".to_owned() } else { meta.uid };
                self.create(&json!({
                    "kind": "VolumeSnapshotContent",
                    "metadata": { "name": name },
                    "spec": {
                        "driver": DRIVER,
                        "deletionPolicy": "Retain",
                        "sourceVolumeMode": mode,
                        "volumeSnapshotRef": { "uid": uid, "namespace": key.namespace, "name": key.name },
                    },
                }));
                assert!(self.objects.contains_key(&content));
                self.change(&key, &json!({ "status": { "boundVolumeSnapshotContentName": name } }));
                return true;
            };
            let content = Key::wide(Kind::VolumeSnapshotContent, name);
            let Some(found) = self.get(&content).cloned() else { continue };
            if found["status"]["snapshotHandle"].is_null() {
                if let Some(error) = &self.faults.snapshot_error {
                    let status = json!({ "status": { "error": { "message": error } } });
                    if snapshot["status"]["error"].is_null() {
                        self.change(&key, &status);
                        return true;
                    }
                    continue;
                }
                let claim = snapshot["spec"]["source"]["persistentVolumeClaimName"]
                    .as_str()
                    .expect("a claim");
                let claim = Key::new(
                    Kind::PersistentVolumeClaim,
                    key.namespace.as_ref().expect("one"),
                    claim,
                );
                let Some(data) = self.data_of(&claim) else { continue };
                let data = if self.writes && !self.is_locked() { "torn".to_owned() } else { data };
                let handle = format!("snap-{}", self.next());
                self.storage.insert(handle.clone(), data);
                self.change(&content, &json!({ "status": { "snapshotHandle": handle } }));
                self.change(
                    &key,
                    &json!({ "status": { "creationTime": "then", "restoreSize": "1Gi" } }),
                );
                return true;
            }
            if snapshot["status"]["readyToUse"] != true && !self.faults.snapshot_never_ready {
                self.change(
                    &key,
                    &json!({ "status": { "readyToUse": true, "restoreSize": "1Gi" } }),
                );
                return true;
            }
        }
        false
    }

    fn contents(&mut self) -> bool {
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

    fn data_of(&self, claim: &Key) -> Option<String> {
        let volume = self.get(claim)?["spec"]["volumeName"].as_str()?;
        let volume = self.get(&Key::wide(Kind::PersistentVolume, volume))?;
        self.storage.get(volume["spec"]["csi"]["volumeHandle"].as_str()?).cloned()
    }

    fn pods_of(&self, claim: &Key) -> bool {
        self.of_kind(Kind::Pod).iter().any(|(key, pod)| {
            key.namespace == claim.namespace
                && pod["spec"]["claim"] == claim.name.as_str()
                && !["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or(""))
        })
    }

    fn claims(&mut self) -> bool {
        for (key, claim) in self.of_kind(Kind::PersistentVolumeClaim) {
            if Self::is_deleted(&claim) {
                if self.pods_of(&key) {
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
                    "persistentVolumeReclaimPolicy": "Delete",
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
    fn snapshot_data(&self, namespace: &str, name: &str) -> Option<String> {
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

    fn volumes(&mut self) -> bool {
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

    fn is_attached(&self, volume: &str) -> bool {
        let of = |(_, at): &(Key, Value)| at["spec"]["source"]["persistentVolumeName"] == volume;
        self.of_kind(Kind::VolumeAttachment).iter().any(of)
    }

    fn jobs(&mut self) -> bool {
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

    fn pods(&mut self) -> bool {
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
                (Some("Running"), Some(volume), _) => {
                    let volume = volume.clone();
                    let (code, message) = self.run(&pod, &volume);
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

    /// What `mover` does in its pod.
    fn run(&mut self, pod: &Value, volume: &str) -> (i64, String) {
        if let Some((code, message)) = &self.faults.pod_fails {
            return (*code, message.clone());
        }
        let volume = &self.objects[&Key::wide(Kind::PersistentVolume, volume)];
        assert_eq!(volume["spec"]["volumeMode"], "Block", "a pod of ours has a block volume");
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().expect("a handle").to_owned();
        let args: Vec<&str> = pod["spec"]["args"]
            .as_array()
            .expect("args")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let flag = |name: &str| args.iter().find_map(|text| text.strip_prefix(name));
        match args[0] {
            "backup" => {
                let id = flag("--backup-id=").expect("an id").to_owned();
                let data = self.storage[&handle].clone();
                // Once it is there it stays as it is.
                self.repository.entry(id.clone()).or_insert(data);
                (0, json!({ "state": "ok", "summary": { "backup_id": id } }).to_string())
            }
            "restore" => {
                let id = args[1].rsplit_once(":").expect("an id").1.to_owned();
                let Some(data) = self.repository.get(&id) else {
                    return (
                        2,
                        json!({ "state": "failed", "message": "no such backup" }).to_string(),
                    );
                };
                self.storage.insert(handle, data.clone());
                let summary = json!({ "backup_id": id, "verified": { "read_bytes": 1 } });
                (0, json!({ "state": "ok", "summary": summary }).to_string())
            }
            other => panic!("mover {other}"),
        }
    }

    fn attachments(&mut self) -> bool {
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

    /// What an operation made and has not removed, by its label.
    pub(crate) fn left(&self) -> Vec<String> {
        let ours = |(key, object): (&Key, &Value)| {
            let labels = Meta::of(object).labels;
            let role = labels.get(ROLE).map(String::as_str);
            let stays =
                matches!(role, Some("base" | "target")) || key.kind == Kind::PersistentVolume;
            (labels.contains_key(OWNER) && !stays).then(|| key.to_string())
        };
        self.objects.iter().filter_map(ours).collect()
    }
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        if value.is_null() {
            target.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
}
