//! What the rendered objects hold on to: whatever is applied later, a Job that is there backs up and
//! restores the same, and another day's or another volume's objects stand beside it.

use super::Stage;
use super::manifests::{
    OPERATIONS, containers, list, manifests, pod, render, strings, validated, words,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use tests::{Mover, Rng, work_dir};

/// Meant to be shared by all volumes and days of a namespace.
const SHARED: [(&str, &str); 2] = [("ServiceAccount", "mover"), ("ConfigMap", "mover-repository")];

/// Twins that say how, or by which way, but not what: a Job may read them anew.
const HOW: &str = "REPO KEY_FILE PASSWORD_FILE PASSWORD_COMMAND JSON QUIET NO_PROGRESS COLOR VERBOSE \
    MEMORY ENGINE DIRECT_IO SCRATCH THREADS LIMIT_UPLOAD LIMIT_DOWNLOAD LIMIT_READ LOG_LEVEL \
    TERMINATION_LOG STALL_TIMEOUT METRICS_ADDR METRICS_LINGER PUSH_GATEWAY NEW_KEY_FILE MAX_UPLOAD \
    MAX_REQUESTS DEADLINE CHECKPOINT_INTERVAL COMPRESSION";

/// What leads to places that this machine does not have.
const ELSEWHERE: [&str; 2] = ["MOVER_REPO", "MOVER_PUSH_GATEWAY"];

/// Renders operations with some settings of a user's.
fn rendered(operations: &[&str], settings: &[(&str, &str)]) -> Option<Vec<Value>> {
    let directory = work_dir("rendered");
    let kubernetes = manifests(directory.path());
    let path = kubernetes.join("settings/settings.env");
    let mut text = fs::read_to_string(&path).unwrap();
    for (name, value) in settings {
        let prefix = format!("{name}=");
        let old = text.lines().find(|line| line.starts_with(&prefix));
        let old = old.unwrap_or_else(|| panic!("no setting {name}")).to_owned();
        text = text.replace(&format!("\n{old}\n"), &format!("\n{prefix}{value}\n"));
    }
    fs::write(&path, text).unwrap();
    let mut files = Vec::new();
    for operation in operations {
        let file = directory.path().join(format!("{operation}.yaml"));
        render(&kubernetes.join(operation), &file)?;
        files.push(file);
    }
    Some(validated(&files))
}

fn id(object: &Value) -> (&str, &str) {
    (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
}

/// All names of objects, and the names of objects that they mount.
fn names(objects: &[Value]) -> BTreeSet<(&str, &str)> {
    let mut names: BTreeSet<_> = objects.iter().map(id).collect();
    for volume in objects.iter().filter_map(pod).flat_map(|pod| list(pod, "volumes")) {
        let claim = &volume["persistentVolumeClaim"]["claimName"];
        let mounted =
            [("PersistentVolumeClaim", claim), ("ConfigMap", &volume["configMap"]["name"])];
        names.extend(mounted.into_iter().filter_map(|(kind, name)| Some((kind, name.as_str()?))));
    }
    names
}

/// Twins of all flags of `backup`, `restore`, `forget` and `gc` that say more than how.
fn deciding() -> BTreeSet<String> {
    let how: BTreeSet<_> = HOW.split_whitespace().map(|name| format!("MOVER_{name}")).collect();
    let mut all = BTreeSet::new();
    for command in ["backup", "restore", "forget", "gc"] {
        let help = Mover::new().ok([command, "--help"]).text();
        let twins = help.split("[env: ").skip(1).filter_map(|rest| rest.split_once(']'));
        all.extend(twins.map(|(name, _)| name.trim_end_matches('=').to_owned()));
    }
    assert!(how.is_subset(&(&all | &BTreeSet::from(["MOVER_NEW_KEY_FILE".to_owned()]))), "{all:?}");
    &all - &how
}

#[test]
fn a_job_reads_nothing_that_decides() {
    let Some(objects) = rendered(&OPERATIONS, &[]) else { return };
    let deciding = deciding();
    for name in ["MOVER_VOLUME", "MOVER_SNAPSHOT", "MOVER_BACKUP_ID", "MOVER_FORCE"] {
        assert!(deciding.contains(name), "{deciding:?}");
    }
    for map in objects.iter().filter(|object| object["kind"] == "ConfigMap") {
        assert_eq!(id(map), SHARED[1]);
        for name in map["data"].as_object().unwrap().keys() {
            assert!(!deciding.contains(name), "{name} can change while a Job is tried again");
            assert!(name.contains('_'), "{name} is a setting for rendering");
        }
    }
    for container in objects.iter().filter_map(pod).flat_map(containers) {
        let args = strings(&list(container, "args"));
        assert!(!args.iter().any(|arg| arg.contains("$(")), "{args:?}");
        // but how the store is reached
        for source in list(container, "envFrom") {
            let map = &source["configMapRef"]["name"];
            assert!(map == "mover-repository" || source["secretRef"].is_object(), "{source}");
        }
        for variable in list(container, "env") {
            assert!(variable["value"].is_string(), "{variable}");
        }
    }
    // what a replacement was to fill in
    let open = |word: &str| word.len() > 2 && word.bytes().all(|b| b.is_ascii_uppercase());
    for text in objects.iter().filter(|o| o["kind"] != "ConfigMap").flat_map(words) {
        let mut parts = text.split(['-', '=']);
        let exempt = ["ALL", "TERM"];
        assert!(!parts.any(|part| open(part) && !exempt.contains(&part)), "{text}");
    }
    for (operation, flags) in [
        ("backup", "--volume= --snapshot= --backup-id="),
        ("incremental", "--volume= --snapshot= --backup-id= --base-snapshot= --changed-blocks="),
    ] {
        let objects = rendered(&[operation], &[]).unwrap();
        let container = objects.iter().find_map(pod).map(containers).unwrap()[0];
        let args = strings(&list(container, "args"));
        for flag in flags.split(' ') {
            assert!(args.iter().any(|arg| arg.starts_with(flag)), "{flag} in {args:?}");
        }
    }
}

#[test]
fn another_day_and_another_volume_share_no_name() {
    let parts = ["snapshot", "backup", "incremental", "restore"];
    let day = |day: &'static str, base: &'static str| {
        [("SNAPSHOT", day), ("BASE_SNAPSHOT", base), ("RESTORE_PVC", "back")]
    };
    let Some(first) = rendered(&parts, &day("db-1", "db-0")) else { return };
    let second = [&day("db-2", "db-1")[..2], &[("RESTORE_PVC", "again")]].concat();
    let second = rendered(&parts, &second).unwrap();
    let other = [
        ("VOLUME", "shop/other"),
        ("SOURCE_PVC", "other"),
        ("SNAPSHOT", "other-1"),
        ("BASE_SNAPSHOT", "other-0"),
        ("RESTORE_BACKUP", "shop/other@other-1"),
        ("RESTORE_PVC", "other-back"),
    ];
    let other = rendered(&parts, &other).unwrap();
    for (one, two) in [(&first, &second), (&first, &other), (&second, &other)] {
        let common: BTreeSet<_> = names(one).intersection(&names(two)).copied().collect();
        assert_eq!(common, SHARED.into(), "only these");
        for shared in SHARED {
            let in_both = [one, two].map(|objects| objects.iter().find(|o| id(o) == shared));
            assert_eq!(in_both[0], in_both[1], "and they say the same");
        }
    }
    for (objects, snapshot, target) in
        [(&first, "db-1", "back"), (&second, "db-2", "again"), (&other, "other-1", "other-back")]
    {
        let expected = [
            ("VolumeSnapshot", snapshot.to_owned()),
            ("PersistentVolumeClaim", format!("mover-backup-{snapshot}")),
            ("Job", format!("mover-backup-{snapshot}")),
            ("ConfigMap", format!("mover-changes-{snapshot}")),
            ("PersistentVolumeClaim", target.to_owned()),
            ("Job", format!("mover-restore-{target}")),
        ];
        let expected: BTreeSet<_> = expected.iter().map(|(kind, name)| (*kind, &**name)).collect();
        assert_eq!(names(objects), &expected | &SHARED.into());
    }
}

/// The objects of a cluster, where an applied Job cannot be changed and a ConfigMap can.
#[derive(Default)]
struct Cluster(BTreeMap<(String, String), Value>);

impl Cluster {
    fn apply(&mut self, objects: Vec<Value>) {
        for object in objects {
            let (kind, name) = id(&object);
            let key = (kind.to_owned(), name.to_owned());
            if kind == "Job" && self.0.contains_key(&key) {
                continue; // spec.template: Invalid value: field is immutable
            }
            self.0.insert(key, object);
        }
    }

    /// The Job whose volume was made of a snapshot.
    fn job_of(&self, snapshot: &str) -> Option<&Value> {
        let jobs = self.0.values().filter(|object| object["kind"] == "Job");
        jobs.into_iter().find(|job| {
            let volumes = list(pod(job).unwrap(), "volumes");
            let claim =
                volumes.iter().find_map(|v| v["persistentVolumeClaim"]["claimName"].as_str());
            let claim = &self.0[&("PersistentVolumeClaim".into(), claim.unwrap().into())];
            claim["spec"]["dataSource"]["name"] == snapshot
        })
    }

    /// Runs the next pod of a Job, with the environment and the arguments that a kubelet makes of
    /// what is in the cluster now, but for places elsewhere and the device's path.
    fn run(&self, job: &Value, stage: &Stage, device: &Path) {
        let container = containers(pod(job).unwrap())[0];
        let mut environment = BTreeMap::new();
        for source in list(container, "envFrom") {
            let Some(name) = source["configMapRef"]["name"].as_str() else { continue };
            let data = &self.0[&("ConfigMap".to_owned(), name.to_owned())]["data"];
            for (name, value) in data
                .as_object()
                .unwrap()
                .iter()
                .filter(|(name, _)| !ELSEWHERE.contains(&name.as_str()))
            {
                environment.insert(name.clone(), value.as_str().unwrap().to_owned());
            }
        }
        let mut args = strings(&list(container, "args"));
        for arg in &mut args {
            for (name, value) in &environment {
                *arg = arg.replace(&format!("$({name})"), value);
            }
            *arg = arg.replace("/dev/source", device.to_str().unwrap());
        }
        let mut command = stage.mover.command(args);
        let output = command.envs(environment).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Yesterday's Job is tried again after today's objects were applied.
#[test]
fn a_job_that_is_tried_again_backs_up_its_own_snapshot() {
    let Some(first) = rendered(&["backup"], &[("SNAPSHOT", "db-1")]) else { return };
    let second = rendered(&["backup"], &[("SNAPSHOT", "db-2")]).unwrap();
    let stage = Stage::new("tried-again", 2);
    let later = stage.path("later");
    fs::copy(&stage.image, &later).unwrap();
    let mut bytes = fs::read(&later).unwrap();
    Rng::new(8).fill(&mut bytes[1 << 20..2 << 20]);
    fs::write(&later, bytes).unwrap();

    let mut cluster = Cluster::default();
    cluster.apply(first);
    cluster.apply(second);
    let days = [("db-1", &stage.image), ("db-2", &later)];
    for (day, device) in days {
        // where the second one's Job was refused, there is only the first
        if let Some(job) = cluster.job_of(day) {
            cluster.run(job, &stage, device);
        }
    }
    for (day, device) in days {
        let restored = stage.path(&format!("{day}.img"));
        let id = format!("shop/mysql-data@{day}");
        let _ = stage.mover.ok(["restore", &id, restored.to_str().unwrap()]);
        assert!(fs::read(&restored).unwrap() == fs::read(device).unwrap(), "{day} is another's");
        let shown = stage.mover.ok(["show", &id, "--json"]).summary();
        assert!(shown.to_string().contains(&format!(r#""{day}""#)), "{shown}");
    }
}
