use super::super::make;
use super::*;
use crate::controller::testing::{Server, clock};
use crate::engine::OPERATION;

fn line(volume: &str, id: &str) -> String {
    json!({ "type": "backup", "volume": volume, "backup_id": id }).to_string()
}

#[test]
fn a_list_is_whole_only_if_all_that_was_printed_is_there() {
    let log =
        [line("v", "1"), r#"{"type":"log"}"#.into(), line("v", "2"), "{\"type\":\"back".into()];
    let log = log.join("\n");
    assert!(read(&log, false, &json!({ "records": 2 })).complete);
    assert!(!read(&log, false, &json!({ "records": 3 })).complete, "a line is missing");
    assert!(!read(&log, true, &json!({ "records": 2 })).complete, "it was cut");
    assert!(!read(&log, false, &Value::Null).complete, "an older program proves nothing");
    assert!(read("", false, &json!({ "records": 0 })).complete, "there are none");
    assert!(!read("", false, &Value::Null).complete);
    let list = read(&log, false, &json!({ "records": 2, "backups": 7 }));
    assert_eq!((list.backups.len(), list.total), (2, 7));
}

#[test]
fn lines_that_are_no_records_of_backups_are_none() {
    let odd = [
        json!({ "type": "backup", "volume": 1, "backup_id": "x" }),
        json!({ "type": "backup", "volume": "v" }),
        json!(["backup"]),
    ];
    let log = odd.map(|line| line.to_string()).join("\n");
    assert_eq!(read(&log, false, &json!({ "records": 3 })), List { total: 0, ..List::default() });
}

#[test]
fn names_follow_from_volume_and_id_and_are_names_of_dns() {
    let all = [
        ("c1/shop/db", "b1"),
        ("c1/shop/db", "b2"),
        ("c2/shop/db", "b1"),
        ("c1/shop/d", "bb1"),
        ("c1/shop/Ünïcode_DB.", "b1"),
        ("c1/shop/---", "b1"),
        ("", ""),
    ];
    let long = format!("c1/shop/{}", "x".repeat(250));
    let names: BTreeSet<String> =
        all.iter().map(|(volume, id)| name(volume, id)).chain([name(&long, "b")]).collect();
    assert_eq!(names.len(), all.len() + 1, "{names:?}");
    for name in &names {
        let fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(name.len() <= 63 && name.chars().all(fit), "{name}");
        assert!(!name.starts_with('-') && !name.ends_with('-'), "{name}");
    }
    assert_eq!(name("c1/shop/db", "b1"), name("c1/shop/db", "b1"));
    assert!(name("c1/shop/db", "b1").starts_with("db-"));
}

#[test]
fn what_is_deleted_already_is_not_deleted_again() {
    let of = Meta { uid: "u".into(), ..Meta::default() };
    let place = Repository { namespace: "home".into(), ..Repository::default() };
    let object = |name: &str, deleted: Value| {
        json!({ "metadata": {
            "name": name, "uid": name, "labels": { RECORDED: "u" }, "deletionTimestamp": deleted,
        } })
    };
    let objects = vec![object("a", "then".into()), object("b", Value::Null)];
    let present = Present { objects, ..Present::default() };
    let list = List { complete: true, ..List::default() };
    let steps = changes(&of, &place, &list, &present).steps;
    let key = Key::new(Kind::VolumeBackup, "home", "b");
    assert_eq!(steps, [Step::Delete { key, uid: "b".into() }]);
}

/// One that is past the bounds is still stored.
#[tokio::test]
async fn what_forgets_retains_before_it_is_removed() {
    let server = Server::default();
    let put = |policy: &str| {
        server.put(json!({
            "apiVersion": "mover.dev/v1alpha1",
            "kind": "VolumeBackup",
            "metadata": {
                "name": "db", "namespace": "shop", "labels": { RECORDED: "u" }, "finalizers": [OPERATION],
            },
            "spec": {
                "source": { "recorded": { "volume": "c1/shop/db", "backupId": "b1" } },
                "repositoryRef": { "name": "main" },
                "deletionPolicy": policy,
            },
        }));
        server.get(Kind::VolumeBackup, "db").expect("it is there")
    };
    let of = Meta { uid: "u".into(), ..Meta::default() };
    let place = Repository { namespace: "shop".into(), ..Repository::default() };
    let list = List { complete: true, ..List::default() };
    let steps = |objects: Vec<Value>| {
        changes(&of, &place, &list, &Present { objects, ..Present::default() }).steps
    };
    let seen = put("Forget");
    let context = server.context(clock::now).await;
    // One that somebody changed meanwhile stays until the next list.
    put("Forget");
    make(&context.api, &steps(vec![seen])).await.unwrap_or_else(|why| panic!("{why}"));
    let found = server.get(Kind::VolumeBackup, "db").expect("it is there");
    assert!(found["metadata"]["deletionTimestamp"].is_null(), "{found}");
    make(&context.api, &steps(vec![found])).await.unwrap_or_else(|why| panic!("{why}"));
    let going = server.get(Kind::VolumeBackup, "db").expect("our mark holds it");
    assert!(going["metadata"]["deletionTimestamp"].is_string(), "{going}");
    assert_eq!(going["spec"]["deletionPolicy"], "Retain");
    assert_eq!(steps(vec![put("Retain")]).len(), 1, "nothing is changed");
}
