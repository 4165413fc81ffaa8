//! What `mover` does in its pods.

use super::Fake;
use base64::Engine as _;
use mover_cluster::engine::{Key, Kind, Meta, OWNER};
use serde_json::{Value, json};

/// What a volume holds while a restore writes to it.
pub(crate) const HALF: &str = "half of it";

impl Fake {
    /// One turn of the program; how it ended, if that was its last one.
    pub(super) fn run(&mut self, pod: &Value, volume: &str) -> Option<(i64, String)> {
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
        let failed = self.faults.pod_fails.clone();
        match args[0] {
            "backup" => {
                if failed.is_some() {
                    return failed;
                }
                let id = flag("--backup-id=").expect("an id").to_owned();
                if let Some(digest) = flag("--attach-digest=objects=blake3:")
                    && let Err(failed) = self.attach(pod, &id, digest)
                {
                    return Some(failed);
                }
                let data = self.storage[&handle].clone();
                // Once it is there it stays as it is.
                self.repository.entry(id.clone()).or_insert(data);
                Some((0, json!({ "state": "ok", "summary": { "backup_id": id } }).to_string()))
            }
            "restore" => {
                let id = args[1].rsplit_once(":").expect("an id").1.to_owned();
                self.writes_rightly(pod);
                let Some(data) = self.repository.get(&id).cloned() else {
                    let message = json!({ "state": "failed", "message": "no such backup" });
                    return Some((2, message.to_string()));
                };
                if self.storage[&handle] != "empty" && !args.contains(&"--force") {
                    let message = json!({ "state": "failed", "message": "it holds a file system" });
                    return Some((2, message.to_string()));
                }
                if self.storage[&handle] != HALF {
                    self.storage.insert(handle, HALF.into());
                    return None;
                }
                if failed.is_some() {
                    return failed;
                }
                self.storage.insert(handle, data);
                let summary = json!({ "backup_id": id, "verified": { "read_bytes": 1 } });
                Some((0, json!({ "state": "ok", "summary": summary }).to_string()))
            }
            other => panic!("mover {other}"),
        }
    }

    /// The parts of a pod's volume, which are as they were told to be.
    fn attach(&mut self, pod: &Value, id: &str, digest: &str) -> Result<(), (i64, String)> {
        let namespace = Meta::of(pod).namespace.expect("a namespace");
        let mut all = Vec::new();
        let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
        let of = volumes.iter().find(|at| at["name"] == "objects").expect("a volume of objects");
        for source in of["projected"]["sources"].as_array().expect("sources") {
            let name = source["secret"]["name"].as_str().expect("a name");
            let key = Key::new(Kind::Secret, &namespace, name);
            let Some(secret) = self.get(&key) else {
                return Err((1, json!({ "message": format!("no {key}") }).to_string()));
            };
            assert_eq!(secret["immutable"], true);
            let part = secret["data"]["part"].as_str().expect("a part");
            let part = base64::engine::general_purpose::STANDARD.decode(part).expect("base64");
            all.extend(part);
        }
        if blake3::hash(&all).to_hex().as_str() != digest {
            return Err((2, json!({ "message": "its bytes are others" }).to_string()));
        }
        self.attached.entry(id.to_owned()).or_insert(all);
        Ok(())
    }

    /// Nothing writes to a volume once its hand-over is recorded.
    fn writes_rightly(&self, pod: &Value) {
        let owner = &Meta::of(pod).labels[OWNER];
        let anchors = self.of_kind(Kind::ConfigMap);
        let of = |(_, anchor): &&(Key, Value)| Meta::of(anchor).uid == *owner;
        let handed =
            anchors.iter().find(of).is_some_and(|(_, at)| at["data"]["handover"].is_string());
        assert!(!handed, "a pod writes after the proof: {:#?}", self.written);
    }
}
