//! How the Jobs run: the settings of their Repository, and how many of them share a node.

use super::*;
use mover_cluster::engine::{REPOSITORY, SLOT};
use serde_json::Value;
use std::collections::BTreeSet;

fn settled(mut request: Request, change: impl Fn(&mut Repository)) -> Request {
    match &mut request {
        Request::Backup(backup) => change(&mut backup.repository),
        Request::Group(group) => {
            group.members.iter_mut().for_each(|member| change(&mut member.repository));
        }
        Request::Restore(restore) => change(&mut restore.repository),
    }
    request
}

/// Drives until there is a Job; it, as it stands in the API.
fn job_of(fake: &mut Fake, anchor: &Anchor) -> Value {
    let mut seen = Observed::default();
    while fake.of_kind(Kind::Job).is_empty() {
        assert_eq!(turn(fake, anchor, &mut seen), Ok(None), "{:#?}", fake.written);
    }
    fake.of_kind(Kind::Job)[0].1.clone()
}

#[test]
fn a_job_has_the_settings_of_its_repository() {
    for backup in [true, false] {
        let mut fake = shop(true);
        fake.repository.insert("old".into(), DATA.into());
        let request = match backup {
            true => backup_request(&fake, true, NAMESPACE, false),
            false => restore_request("old", true, NAMESPACE),
        };
        let toleration = json!({ "key": "backup", "operator": "Exists", "effect": "NoSchedule" });
        let plain = begin(&mut fake, "plain", &request);
        let spec = job_of(&mut fake.clone(), &plain)["spec"]["template"]["spec"].clone();
        for name in
            ["nodeSelector", "tolerations", "priorityClassName", "imagePullSecrets", "affinity"]
        {
            assert!(spec.get(name).is_none(), "{name}: {spec}");
        }
        let request = settled(request, |repository| {
            repository.node_selector = BTreeMap::from([("disk".into(), "fast".into())]);
            repository.tolerations = vec![toleration.clone()];
            repository.priority_class = Some("low".into());
            repository.image_pull_secrets = vec!["registry".into()];
        });
        let anchor = begin(&mut fake, "first", &request);
        let spec = job_of(&mut fake, &anchor)["spec"]["template"]["spec"].clone();
        assert_eq!(spec["nodeSelector"], json!({ "disk": "fast" }));
        assert_eq!(spec["tolerations"], json!([toleration]));
        assert_eq!(spec["priorityClassName"], "low");
        assert_eq!(spec["imagePullSecrets"], json!([{ "name": "registry" }]));
        assert!(spec.get("affinity").is_none(), "{spec}");
        assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    }
}

/// Some drivers make a volume that nobody may write to of a snapshot at once.
#[test]
fn the_volume_of_a_snapshot_is_read_only_where_that_is_asked_for() {
    for (read_only, modes) in [(false, "ReadWriteOnce"), (true, "ReadOnlyMany")] {
        let mut fake = shop(true);
        let mut request = backup_request(&fake, true, NAMESPACE, false);
        let Request::Backup(backup) = &mut request else { unreachable!() };
        backup.read_only = read_only;
        let anchor = begin(&mut fake, "first", &request);
        let job = job_of(&mut fake, &anchor);
        let claims = fake.of_kind(Kind::PersistentVolumeClaim);
        let made = claims.iter().find(|(_, claim)| claim["spec"]["dataSource"].is_object());
        let (key, claim) = made.expect("a volume of the snapshot");
        assert_eq!(claim["spec"]["accessModes"], json!([modes]));
        let volumes = job["spec"]["template"]["spec"]["volumes"].as_array().expect("volumes");
        let by_job = volumes.iter().find(|at| at["persistentVolumeClaim"]["claimName"] == key.name);
        assert_eq!(by_job.expect("its volume")["persistentVolumeClaim"]["readOnly"], true);
        assert_eq!(drive(&mut fake, &anchor).exit_code, 0);
    }
}

/// No two pods of one slot share a node, and there are as many slots as may share one.
#[test]
fn as_many_pods_as_were_asked_for_share_a_node() {
    for most in [1, 3] {
        let mut slots = BTreeSet::new();
        for number in 0..40 {
            let mut fake = shop(false);
            for _ in 0..number {
                fake.next();
            }
            let request = backup_request(&fake, false, NAMESPACE, false);
            let request = settled(request, |at| at.pods_per_node = Some(most));
            let anchor = begin(&mut fake, "first", &request);
            let job = job_of(&mut fake, &anchor);
            let template = &job["spec"]["template"];
            let labels = &template["metadata"]["labels"];
            let terms = &template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
            let wanted = json!({ REPOSITORY: "default", SLOT: labels[SLOT] });
            assert_eq!(terms[0]["labelSelector"]["matchLabels"], wanted);
            assert_eq!(labels[REPOSITORY], "default");
            slots.insert(labels[SLOT].as_str().expect("a slot").to_owned());
        }
        let all: BTreeSet<String> = (0..most).map(|slot| slot.to_string()).collect();
        assert_eq!(slots, all);
    }
}

/// A name that is no label has one that follows from it.
#[test]
fn a_repository_of_a_long_name_has_a_label_all_the_same() {
    let mut fake = shop(false);
    let request = settled(backup_request(&fake, false, NAMESPACE, false), |repository| {
        repository.pods_per_node = Some(1);
        repository.name = "r".repeat(200);
    });
    let anchor = begin(&mut fake, "first", &request);
    let job = job_of(&mut fake, &anchor);
    let label = job["spec"]["template"]["metadata"]["labels"][REPOSITORY].clone();
    assert_eq!(label.as_str().map(str::len), Some(16), "{label}");
}

/// A shop where a pod of another operation has the only node.
fn busy() -> (Fake, Anchor, Key) {
    let mut fake = shop(false);
    let request = backup_request(&fake, false, NAMESPACE, false);
    let request = settled(request, |repository| repository.pods_per_node = Some(1));
    let anchor = begin(&mut fake, "first", &request);
    let other = Key::new(Kind::Pod, NAMESPACE, "other");
    fake.create(&json!({
        "kind": "Pod",
        "metadata": { "name": "other", "namespace": NAMESPACE, "labels": { REPOSITORY: "default", SLOT: "0" } },
        "spec": { "nodeName": "node1" },
        "status": { "phase": "Running" },
    }));
    (fake, anchor, other)
}

/// It waits for as long as the other runs, and has all of its own time after that.
#[test]
fn a_pod_that_waits_for_its_turn_is_not_given_up() {
    let (mut fake, anchor, other) = busy();
    let mut seen = Observed::default();
    let limits = Limits::default();
    let long = Duration::from_secs(4 * (limits.start_seconds + limits.volume_seconds));
    while fake.now < long {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None), "{:#?}", fake.written);
    }
    let pods = fake.of_kind(Kind::Pod);
    let pod = pods.iter().find(|(key, _)| *key != other).expect("it is there").0.clone();
    fake.change(&other, &json!({ "status": { "phase": "Succeeded" } }));
    // The node takes its time to begin it.
    fake.faults.pod_never_begins = true;
    fake.change(&pod, &json!({ "spec": { "nodeName": "node1" }, "status": { "conditions": [] } }));
    let half = fake.now + Duration::from_secs(limits.start_seconds / 2);
    while fake.now < half {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None), "{:#?}", fake.written);
    }
    let mut late = (fake.clone(), seen.clone());
    fake.faults.pod_never_begins = false;
    let mut end = None;
    while end.is_none() {
        end = turn(&mut fake, &anchor, &mut seen).expect("the anchor holds it");
    }
    assert_eq!(end.map(|end| end.exit_code), Some(0));
    // And one that never begins is given up after that time.
    let mut end = None;
    while end.is_none() {
        end = turn(&mut late.0, &anchor, &mut late.1).expect("the anchor holds it");
    }
    let end = end.expect("it has ended");
    assert!(end.message.contains("has not begun"), "{end:?}");
    assert!(late.0.now < half + Duration::from_secs(2 * limits.start_seconds), "{:?}", late.0.now);
}

/// The kubelet tells of what a pod lacks when it gets to it, and of something else later.
#[test]
fn a_reason_that_comes_late_is_told() {
    let mut fake = shop(false);
    let request = backup_request(&fake, false, NAMESPACE, false);
    let anchor = begin(&mut fake, "first", &request);
    fake.faults.pod_never_begins = true;
    let mut seen = Observed::default();
    let minute = Duration::from_secs(60);
    let mut told = BTreeSet::new();
    let mut reasons = [(2, "the key is missing"), (6, "the disk is away")].into_iter().peekable();
    while fake.now < 9 * minute {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None), "{:#?}", fake.written);
        if let Err(Stop::Next(Next::Wait(wait))) = plan(&anchor, &seen) {
            told.extend(wait.why.rsplit_once("has not begun: ").map(|(_, why)| why.to_owned()));
        }
        let pods = fake.of_kind(Kind::Pod);
        let due = reasons.next_if(|(minutes, _)| fake.now >= *minutes * minute);
        let (Some((pod, _)), Some((minutes, reason))) = (pods.first(), due) else { continue };
        fake.create(&json!({
            "kind": "Event",
            "metadata": { "name": format!("after-{minutes}"), "namespace": pod.namespace },
            "involvedObject": { "name": pod.name },
            "type": "Warning", "message": reason, "lastTimestamp": fake.time(),
        }));
    }
    assert_eq!(told.into_iter().collect::<Vec<_>>(), ["the disk is away", "the key is missing"]);
}

/// Whoever may not read events backs up all the same: they are reasons in messages.
#[test]
fn a_reason_that_nobody_may_read_fails_nothing() {
    let mut fake = shop(false);
    let request = backup_request(&fake, false, NAMESPACE, false);
    let anchor = begin(&mut fake, "first", &request);
    fake.faults.pod_never_begins = true;
    let mut seen = Observed::default();
    loop {
        if let Err(Stop::Next(Next::Read(query))) = plan(&anchor, &seen)
            && matches!(&query, Query::Many(of) if of.kind == Kind::Event)
        {
            let why = engine::Failure::new(engine::exit::DENIED, "events is forbidden");
            seen.set_refused(query, why);
            break;
        }
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None), "{:#?}", fake.written);
    }
    let next = plan(&anchor, &seen);
    assert!(matches!(&next, Err(Stop::Next(Next::Wait(_)))), "{next:?}");
}

/// The rule keeps it away, and nobody has the node: a scheduler that does nothing is an error.
#[test]
fn a_turn_that_never_comes_is_an_error() {
    let (mut fake, anchor, other) = busy();
    let mut seen = Observed::default();
    while fake.now < Duration::from_secs(3600) {
        assert_eq!(turn(&mut fake, &anchor, &mut seen), Ok(None), "{:#?}", fake.written);
    }
    fake.change(&other, &json!({ "status": { "phase": "Failed" } }));
    fake.faults.pod_never_begins = true;
    let mut end = None;
    while end.is_none() {
        end = turn(&mut fake, &anchor, &mut seen).expect("the anchor holds it");
    }
    let end = end.expect("it has ended");
    assert_eq!(end.exit_code, 1, "{end:?}");
    assert!(end.message.contains("anti-affinity"), "{end:?}");
    settle(&mut fake);
    assert_eq!(fake.left(), Vec::<String>::new());
}

/// As the version before wrote them: they are read, and stay the same text.
#[test]
fn anchors_of_the_version_before_are_read() {
    let repository = r#"{"namespace":"shop","name":"default","url":"s3://bucket/prefix","cluster":"c1","keySecret":"k","serviceAccount":"mover","image":"mover:1","imagePullPolicy":"Never","memory":"320Mi","cpu":"1","allowModeChange":true}"#;
    let limits =
        r#"{"snapshotSeconds":1800,"volumeSeconds":600,"startSeconds":900,"removalSeconds":120}"#;
    for text in [
        format!(
            r#"{{"kind":"backup","source":{{"namespace":"shop","name":"db","uid":"u"}},"driver":"d","volumeHandle":"h","repository":{repository},"volume":"c1/shop/db","snapshotClass":"s","storageClass":"f","filesystem":true,"capacity":"1Gi","labels":{{}},"keepBase":false,"limits":{limits}}}"#
        ),
        format!(
            r#"{{"kind":"restore","repository":{repository},"volume":"c1/shop/db","asked":"db@latest","backup":"b","sizeBytes":1,"namespace":"shop","claim":"db","storageClass":"f","capacity":"1Gi","accessModes":["ReadWriteOnce"],"filesystem":"ext4","limits":{limits}}}"#
        ),
    ] {
        let request = Request::parse(&text).expect("it is read");
        assert_eq!(request.text(), text);
    }
}
