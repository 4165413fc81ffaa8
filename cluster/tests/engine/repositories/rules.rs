//! What BackupSchedules ask of a Repository.

use super::*;

fn schedule(world: &mut World, namespace: &str, name: &str, spec: Value) {
    let mut all = json!({
        "cron": "0 * * * *",
        "template": { "spec": {
            "source": { "pvc": "db" }, "repositoryRef": { "name": "main", "namespace": HOME },
        } },
    });
    for (name, value) in spec.as_object().expect("an object") {
        all[name] = value.clone();
    }
    let metadata = json!({ "namespace": namespace, "name": name });
    world.fake.create(&json!({ "kind": "BackupSchedule", "metadata": metadata, "spec": all }));
}

fn arguments(world: &World, command: &str) -> Vec<String> {
    let runs = &world.fake.alone.runs;
    runs.iter()
        .find(|(_, args)| args[0] == command)
        .map(|(_, args)| args.clone())
        .unwrap_or_default()
}

fn uid(world: &World, namespace: &str) -> String {
    Meta::of(world.fake.get(&Key::wide(Kind::Namespace, namespace)).expect("it")).uid
}

fn cluster(world: &World) -> String {
    uid(world, "kube-system").split('-').next().expect("one").to_owned()
}

#[test]
fn each_schedule_decides_about_its_own_claims() {
    let mut world = world(spec());
    for (namespace, name) in [("shop", "web-1"), ("shop", "other"), ("web", "web-2")] {
        let labels = if name.starts_with("web") { json!({ "app": "web" }) } else { json!({}) };
        let metadata = json!({ "namespace": namespace, "name": name, "labels": labels });
        world
            .fake
            .create(&json!({ "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {} }));
    }
    let keep = json!({ "last": 3, "within": "30d" });
    schedule(&mut world, "shop", "hourly", json!({ "keep": keep }));
    let source = json!({ "source": { "selector": { "matchLabels": { "app": "web" } } }, "repositoryRef": { "name": "main", "namespace": HOME } });
    schedule(
        &mut world,
        "shop",
        "web",
        json!({ "keep": { "daily": 9 }, "template": { "spec": source } }),
    );
    // It says nothing, so the Repository's rule holds.
    schedule(&mut world, "shop", "plain", json!({}));
    // It may not use the Repository.
    schedule(&mut world, "web", "denied", json!({ "keep": { "last": 1 } }));
    lone(&mut world, hours(24));
    let (cluster, uid) = (cluster(&world), uid(&world, "shop"));
    let only = format!("only=kubernetes/namespace-uid={uid}");
    assert_eq!(
        arguments(&world, "forget"),
        [
            "forget".to_owned(),
            format!("--below={cluster}/"),
            "--keep-daily=7".to_owned(),
            format!("--keep-of=last=3,within=30d,{only}:{cluster}/shop/db"),
            format!("--keep-of=daily=9,{only}:{cluster}/shop/web-1"),
        ]
    );
}

#[test]
fn a_schedule_of_the_repositorys_namespace_decides_about_all_of_its_volume() {
    let mut spec = spec();
    spec["keep"] = Value::Null;
    let mut world = world(spec);
    schedule(&mut world, HOME, "own", json!({ "keep": { "last": 2 } }));
    lone(&mut world, hours(24));
    let cluster = cluster(&world);
    assert_eq!(
        arguments(&world, "forget"),
        [
            "forget".to_owned(),
            format!("--below={cluster}/"),
            format!("--keep-of=last=2:{cluster}/{HOME}/db"),
        ]
    );
}

fn of_labels(value: &str) -> Value {
    let source = json!({ "selector": { "matchLabels": { "app": value } } });
    json!({ "spec": { "source": source, "repositoryRef": { "name": "main", "namespace": HOME } } })
}

#[test]
fn a_rule_that_cannot_be_meant_is_left_out_alone() {
    let mut world = world(spec());
    far(&mut world, HOME, json!({}));
    let metadata = json!({ "namespace": "shop", "name": "web-1" });
    world
        .fake
        .create(&json!({ "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {} }));
    let copied = json!({ "name": "far", "namespace": HOME });
    schedule(&mut world, "shop", "good", json!({ "keep": { "last": 3 }, "copyTo": copied }));
    let bad = json!({ "keep": { "within": "0d" }, "template": { "spec": {
        "source": { "pvc": "other" }, "repositoryRef": { "name": "main", "namespace": HOME },
    } } });
    schedule(&mut world, "shop", "nothing", bad);
    let bad = json!({ "keep": { "last": 1 }, "template": of_labels("my db"), "copyTo": copied });
    schedule(&mut world, "shop", "labels", bad);
    // A name that no volume can have asks for nothing.
    let long = json!({ "keep": { "last": 1 }, "template": { "spec": {
        "source": { "pvc": "x".repeat(250) },
        "repositoryRef": { "name": "main", "namespace": HOME },
    } } });
    schedule(&mut world, "shop", "long", long);
    lone(&mut world, hours(24));
    world.assert_clean("bad rules");
    let (cluster, uid) = (cluster(&world), uid(&world, "shop"));
    let mut rules = arguments(&world, "forget");
    rules.sort_unstable();
    let whole = |claim: &str| format!("--keep-of=last={}:{cluster}/shop/{claim}", u32::MAX);
    let wanted = [
        format!("--below={cluster}/"),
        "--keep-daily=7".to_owned(),
        format!("--keep-of=last=3,only=kubernetes/namespace-uid={uid}:{cluster}/shop/db"),
        whole("other"),
        whole("web-1"),
        "forget".to_owned(),
    ];
    assert_eq!(rules, wanted);
    let (status, reason, message) = world.condition("Collected");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "RuleRefused"));
    assert!(message.contains("backupschedule/nothing in namespace shop: "), "{message}");
    assert!(message.contains("backupschedule/labels in namespace shop: "), "{message}");
    assert_eq!((world.ran()["gc"], world.ran()["check"]), (1, 1));
    assert!(arguments(&world, "copy").contains(&format!("--volume={cluster}/shop/db")));
    let (_, reason, message) = world.condition("Copied");
    assert_eq!(reason, "Refused");
    assert!(message.contains("backupschedule/labels in namespace shop: "), "{message}");
    assert_eq!(world.condition("Ready").0, "True");
}

#[test]
fn a_lane_that_cannot_go_on_holds_up_no_other() {
    let mut world = world(spec());
    far(&mut world, HOME, json!({}));
    let copied = json!({ "name": "far", "namespace": HOME });
    let bad = json!({ "template": of_labels("my db"), "copyTo": copied });
    schedule(&mut world, "shop", "labels", bad);
    lone(&mut world, hours(24));
    let (_, reason, message) = world.condition("Copied");
    assert_eq!(reason, "CopyFailed");
    assert!(message.contains("unable to parse the labels"), "{message}");
    assert_eq!((world.ran()["forget"], world.ran()["gc"], world.ran()["check"]), (1, 1, 1));
    assert_eq!(world.condition("Collected").0, "True");
    assert_eq!(world.condition("Ready").0, "True");
}

#[test]
fn where_nothing_is_to_be_forgotten_garbage_is_collected_all_the_same() {
    let mut spec = spec();
    spec["keep"] = Value::Null;
    let mut world = world(spec);
    let nobody = json!({ "source": { "selector": { "matchLabels": { "app": "none" } } }, "repositoryRef": { "name": "main", "namespace": HOME } });
    schedule(
        &mut world,
        "shop",
        "none",
        json!({ "keep": { "last": 1 }, "template": { "spec": nobody } }),
    );
    lone(&mut world, hours(24));
    assert_eq!((world.ran().get("forget"), world.ran()["gc"]), (None, 1));
}

fn far(world: &mut World, namespace: &str, spec: Value) {
    let mut all = json!({
        "url": "s3://far/", "keySecretRef": { "name": "far-key" },
        "credentials": { "secretRef": { "name": "far-store" } },
        "env": { "AWS_ENDPOINT_URL": "http://far", "HTTPS_PROXY": "p" },
        "allowedNamespaces": ["shop"], "immutableFor": "30d",
        "jobTemplate": {},
    });
    for (name, value) in spec.as_object().expect("an object") {
        all[name] = value.clone();
    }
    let metadata = json!({ "namespace": namespace, "name": "far", "generation": 1 });
    world.fake.create(&json!({ "kind": "Repository", "metadata": metadata, "spec": all }));
}

#[test]
fn copies_have_both_keys_and_both_credentials() {
    let mut world = world(spec());
    far(&mut world, HOME, json!({}));
    schedule(
        &mut world,
        "shop",
        "hourly",
        json!({ "copyTo": { "name": "far", "namespace": HOME } }),
    );
    let mut controller = Controller::default();
    let job = loop {
        if matches!(world.turn(&mut controller), Turn::Waits(_)) {
            world.fake.tick();
        }
        let copies = |(key, job): (Key, Value)| key.name.contains("-copy").then_some(job);
        if let Some(job) = world.fake.of_kind(Kind::Job).into_iter().find_map(copies) {
            break job;
        }
    };
    let pod = &job["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let cluster = cluster(&world);
    let wanted = json!([
        "copy",
        "--to=s3://far/",
        "--to-key-file=/etc/mover/to-keys",
        "--retain-for=30d",
        format!("--volume={cluster}/shop/db"),
    ]);
    assert_eq!(container["args"], wanted);
    let secrets = json!([
        { "secretRef": { "name": "store" } }, { "prefix": "MOVER_TO_", "secretRef": { "name": "far-store" } },
    ]);
    assert_eq!(container["envFrom"], secrets);
    let env: Vec<&str> = container["env"]
        .as_array()
        .expect("env")
        .iter()
        .filter_map(|at| at["name"].as_str())
        .collect();
    assert!(
        env.contains(&"MOVER_TO_AWS_ENDPOINT_URL") && !env.contains(&"MOVER_TO_HTTPS_PROXY"),
        "{env:?}"
    );
    let keys: Vec<&str> = pod["volumes"]
        .as_array()
        .expect("volumes")
        .iter()
        .filter_map(|at| at["secret"]["secretName"].as_str())
        .collect();
    assert_eq!(keys, ["key", "far-key"]);
    assert_eq!(job["metadata"]["ownerReferences"][0]["name"], "main");
}

#[test]
fn good_backups_are_copied_within_the_hour_and_nobody_asks_all_day_long() {
    let mut world = world(spec());
    far(&mut world, HOME, json!({}));
    world.fake.alone.ends.insert("copy".into(), (0, json!({ "copied": 2, "already_there": 5 })));
    let to = json!({ "name": "far", "namespace": HOME });
    schedule(&mut world, "shop", "daily", json!({ "copyTo": to, "cron": "0 4 * * *" }));
    lone(&mut world, hours(24));
    world.assert_clean("copies");
    let first = world.ran()["copy"];
    assert!((5..9).contains(&first), "some hours after the time: {first}");
    let (status, _, message) = world.condition("Copied");
    assert_eq!((status.as_str(), message.as_str()), ("True", "to far: 2 copied, 5 were there"));
    let mut often = self::world(spec());
    far(&mut often, HOME, json!({}));
    let to = json!({ "name": "far", "namespace": HOME });
    schedule(&mut often, "shop", "hourly", json!({ "copyTo": to }));
    lone(&mut often, hours(24));
    assert!((24..=25).contains(&often.ran()["copy"]), "{:?}", often.ran());
}

#[test]
fn copies_that_cannot_be_made_are_refused_by_name() {
    let mut world = world(spec());
    far(&mut world, "shop", json!({}));
    schedule(&mut world, "shop", "hourly", json!({ "copyTo": { "name": "far" } }));
    lone(&mut world, hours(2));
    let (status, reason, message) = world.condition("Copied");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "Refused"));
    assert!(
        message.starts_with("backupschedule/hourly in namespace shop: copyTo far: "),
        "{message}"
    );
    assert!(message.contains("one pod needs the keys of both"), "{message}");
    assert_eq!(world.ran().get("copy"), None);
}

#[test]
fn copies_that_nobody_wants_any_more_end() {
    let mut world = world(spec());
    far(&mut world, HOME, json!({}));
    schedule(
        &mut world,
        "shop",
        "hourly",
        json!({ "copyTo": { "name": "far", "namespace": HOME } }),
    );
    let mut controller = Controller::default();
    let copies = |world: &World| {
        world.fake.of_kind(Kind::Job).iter().any(|(key, _)| key.name.contains("-copy"))
    };
    while !copies(&world) {
        if matches!(world.turn(&mut controller), Turn::Waits(_)) {
            world.fake.tick();
        }
    }
    world.fake.objects.remove(&Key::new(Kind::BackupSchedule, "shop", "hourly"));
    lone(&mut world, hours(1));
    assert_eq!(world.fake.of_kind(Kind::Job), []);
    assert_eq!(world.condition("Copied"), Default::default());
}
