//! Pods without a volume: what `mover` does in them to a repository.

use super::Fake;
use mover_cluster::engine::{Key, Kind, Meta, OWNER};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The repository as such pods see it, and what they did.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Alone {
    /// Exit code and message or summary of a command.
    pub(crate) ends: BTreeMap<String, (i64, Value)>,
    /// What a command waits for: its pod does not begin, and says this.
    pub(crate) stuck: Option<String>,
    /// What a list prints.
    pub(crate) list: Vec<Value>,
    /// How many lines of it a node has kept, from the end.
    pub(crate) kept: Option<usize>,
    /// Runs that ended: their owner and arguments.
    pub(crate) runs: Vec<(String, Vec<String>)>,
    /// Logs by pod.
    pub(crate) logs: BTreeMap<Key, String>,
}

impl Fake {
    pub(super) fn alone(&mut self) -> bool {
        for (key, pod) in self.of_kind(Kind::Pod) {
            if !pod["spec"]["args"].is_array() || pod["spec"]["claim"].is_string() {
                continue;
            }
            match pod["status"]["phase"].as_str() {
                Some("Pending") => {
                    let waiting = json!({ "reason": "CreateContainerConfigError", "message": self.alone.stuck });
                    let stuck = json!([{ "state": { "waiting": waiting } }]);
                    if self.alone.stuck.is_none() {
                        let running = json!([{ "state": { "running": {} } }]);
                        let status = json!({ "phase": "Running", "containerStatuses": running });
                        self.change(&key, &json!({ "status": status }));
                        return true;
                    }
                    if pod["status"]["containerStatuses"] != stuck {
                        self.change(&key, &json!({ "status": { "containerStatuses": stuck } }));
                        return true;
                    }
                }
                Some("Running") => {
                    self.end_alone(&key, &pod);
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    fn end_alone(&mut self, key: &Key, pod: &Value) {
        let owner = Meta::of(pod).labels[OWNER].clone();
        self.one_of_its_lane(&owner);
        let args: Vec<String> = serde_json::from_value(pod["spec"]["args"].clone()).expect("texts");
        let (code, said) = self.alone.ends.get(&args[0]).cloned().unwrap_or((0, json!({})));
        let message = match code {
            0 => json!({ "state": "ok", "summary": said }),
            _ => json!({ "state": "failed", "message": said, "hint": "look" }),
        };
        if args[0] == "list" {
            let all = &self.alone.list;
            let from = all.len() - self.alone.kept.unwrap_or(all.len()).min(all.len());
            let lines: Vec<String> = all[from..].iter().map(ToString::to_string).collect();
            self.alone.logs.insert(key.clone(), lines.join("\n"));
        }
        let message = match args[0].as_str() {
            "list" if code == 0 => {
                let number = self.alone.list.len();
                json!({ "state": "ok", "summary": { "records": number, "backups": number } })
            }
            _ => message,
        };
        self.alone.runs.push((owner, args));
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let end = json!({ "exitCode": code, "message": message.to_string(), "finishedAt": "then" });
        let statuses = json!([{ "state": { "terminated": end } }]);
        self.change(key, &json!({ "status": { "phase": phase, "containerStatuses": statuses } }));
    }

    /// Never two pods of one lane at once.
    fn one_of_its_lane(&self, owner: &str) {
        let lane = owner.rsplit_once('-').expect("lane and time").0;
        let pods = self.of_kind(Kind::Pod);
        let running = pods.iter().filter(|(_, pod)| {
            let of = &Meta::of(pod).labels[OWNER];
            pod["status"]["phase"] == "Running" && of.starts_with(lane)
        });
        let names: Vec<String> = running.map(|(key, _)| key.to_string()).collect();
        assert_eq!(names.len(), 1, "two at once: {names:?} {:#?}", self.written);
    }
}
