//! Backups that a repository has, as objects.

use super::*;
use mover_cluster::controller::repositories::{NEWEST, OBJECTS_MAX};
use mover_cluster::engine::{RECORDED, notes};

fn shown(world: &World) -> Vec<(String, String)> {
    let one = |(_, object): (Key, Value)| {
        let recorded = &object["spec"]["source"]["recorded"];
        let text = |name: &str| recorded[name].as_str().unwrap_or_default().to_owned();
        (text("volume"), text("backupId"))
    };
    let mut all: Vec<_> = world.fake.of_kind(Kind::VolumeBackup).into_iter().map(one).collect();
    all.sort();
    all
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(volume, id)| ((*volume).to_owned(), (*id).to_owned())).collect()
}

#[test]
fn objects_follow_the_repository() {
    let mut world = world(spec());
    lone(&mut world, hours(1));
    assert_eq!(shown(&world), pairs(&[("c1/shop/db", "b1"), ("c1/shop/db", "b2")]));
    let (_, object) = world.fake.of_kind(Kind::VolumeBackup).remove(0);
    let spec: kinds::VolumeBackupSpec =
        serde_json::from_value(object["spec"].clone()).expect("it is one");
    assert_eq!(spec.repository_ref.name, "main");
    assert_eq!(object["metadata"]["ownerReferences"][0]["kind"], "Repository");
    // One is forgotten, one is new; somebody deleted the object of the third.
    world.fake.alone.list = vec![backup("c1/shop/db", "b2"), backup("c1/shop/db", "b3")];
    lone(&mut world, hours(24));
    assert_eq!(shown(&world), pairs(&[("c1/shop/db", "b2"), ("c1/shop/db", "b3")]));
}

#[test]
fn part_of_a_list_removes_nothing() {
    let mut world = world(spec());
    lone(&mut world, hours(1));
    world.fake.alone.list = vec![backup("c1/shop/db", "b8"), backup("c1/shop/db", "b9")];
    world.fake.alone.kept = Some(1);
    lone(&mut world, hours(24));
    let all = [("c1/shop/db", "b1"), ("c1/shop/db", "b2"), ("c1/shop/db", "b9")];
    assert_eq!(shown(&world), pairs(&all));
    let (status, reason, message) = world.condition("Synced");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ListCut"), "{message}");
    assert!(message.contains("containerLogMaxSize"), "{message}");
    world.fake.alone.kept = None;
    lone(&mut world, hours(24));
    assert_eq!(shown(&world), pairs(&[("c1/shop/db", "b8"), ("c1/shop/db", "b9")]));
}

#[test]
fn what_others_made_stays() {
    let mut world = world(spec());
    let recorded = json!({ "source": { "recorded": { "volume": "x/y/z", "backupId": "gone" } } });
    for (name, labels) in
        [("mine", json!({})), ("other", json!({ RECORDED: "another repository" }))]
    {
        let metadata = json!({ "namespace": HOME, "name": name, "labels": labels });
        world
            .fake
            .create(&json!({ "kind": "VolumeBackup", "metadata": metadata, "spec": recorded }));
    }
    lone(&mut world, hours(1));
    assert_eq!(shown(&world).len(), 4);
}

/// Of this cluster's other namespaces those are shown that nobody has any more.
#[test]
fn backups_of_a_living_namespace_are_its_own() {
    let mut spec = spec();
    spec["clusterName"] = json!("c1");
    let mut world = world(spec);
    let uid = Meta::of(world.fake.get(&Key::wide(Kind::Namespace, "shop")).expect("it")).uid;
    let noted = |volume: &str, id: &str, uid: &str| {
        let mut one = backup(volume, id);
        one["labels"][notes::NAMESPACE_UID] = uid.into();
        one
    };
    world.fake.alone.list = vec![
        noted("c1/shop/db", "living", &uid),
        noted("c1/shop/db", "earlier", "uid-of-one-before"),
        backup("c1/shop/db", "unknown"),
        noted("c1/gone/db", "gone", "uid-of-gone"),
        noted("c1/vault/db", "here", "any"),
        noted("old/shop/db", "old", "any"),
        backup("by-hand", "plain"),
    ];
    lone(&mut world, hours(1));
    let ids: Vec<String> = shown(&world).into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids, ["plain", "gone", "earlier", "here", "old"]);
}

#[test]
fn a_hundred_thousand_backups_are_no_flood() {
    let of = Meta { uid: "u".into(), name: "main".into(), ..Meta::default() };
    let place = mover_cluster::engine::Repository { namespace: HOME.into(), ..Default::default() };
    let list = |volumes: usize, each: usize| {
        let all = (0..volumes).flat_map(|volume| {
            (0..each).map(move |id| backup(&format!("c/n/v{volume:05}"), &format!("{id:05}")))
        });
        read(
            &all.map(|line| line.to_string()).collect::<Vec<_>>().join("\n"),
            false,
            &json!({ "records": volumes * each, "backups": 100_000 }),
        )
    };
    for (volumes, printed, each) in [(10, 10_000, NEWEST), (1_000, 10, 2), (9_000, 10, 1)] {
        let list = list(volumes, printed.min(2 * NEWEST));
        let done = changes(&of, &place, &list, &Present::default());
        assert!(list.complete && list.total == 100_000);
        assert_eq!((done.volumes, done.each), (volumes, each));
        let wanted = (volumes * each).min(OBJECTS_MAX);
        assert_eq!((done.steps.len(), done.shown), (wanted, wanted));
        let said = ended(&list, &done, (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z")), 1);
        assert!(said.message.contains(&format!("the newest {each} of each")), "{}", said.message);
        let ids: Vec<&str> = done
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Create(made) => made["spec"]["source"]["recorded"]["backupId"].as_str(),
                _ => None,
            })
            .collect();
        assert!(
            ids.iter().all(|id| **id >= *format!("{:05}", printed.min(2 * NEWEST) - each)),
            "the newest"
        );
    }
}

#[test]
fn what_a_backup_of_this_namespace_made_has_its_object_already() {
    let of = Meta { uid: "u".into(), name: "main".into(), ..Meta::default() };
    let place = mover_cluster::engine::Repository { namespace: HOME.into(), ..Default::default() };
    let lines = [backup("c/n/v", "mine"), backup("c/n/v", "other")].map(|line| line.to_string());
    let list = read(&lines.join("\n"), false, &json!({ "records": 2 }));
    let present = Present { made: ["mine".to_owned()].into(), ..Present::default() };
    let done = changes(&of, &place, &list, &present);
    assert_eq!(done.steps.len(), 1);
}
