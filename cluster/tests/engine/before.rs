//! Operations that another version of this program began: clusters as it left them, at moments of
//! backups and restores, in `before/VERSION.json`. This one takes each of them to its end.
//!
//! After a change of anything that an operation stores, write a file of the new version
//! (`MOVER_TEST_WRITE=before cargo test --workspace --test engine before`) and keep the old ones, as
//! long as that version may be what an upgrade finds.

use super::pause::drive_until;
use super::*;
use mover_cluster::engine::Kind;
use serde_json::Value;
use std::path::PathBuf;

const FORMS: [(bool, &str, bool); 4] = [
    (true, NAMESPACE, true),
    (true, "mover-system", false),
    (false, NAMESPACE, false),
    (false, "mover-system", true),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/engine/before")
}

fn start((backup, jobs_in, filesystem): (bool, &str, bool)) -> (Fake, Anchor) {
    let mut fake = shop(filesystem);
    let request = if backup {
        backup_request(&fake, filesystem, jobs_in, true)
    } else {
        fake.repository.insert("old".into(), DATA.into());
        restore_request("old", filesystem, jobs_in)
    };
    let anchor = begin(&mut fake, "first", &request);
    (fake, anchor)
}

/// All that a cluster has, as a record.
fn saved(fake: &Fake, form: (bool, &str, bool), writes: usize) -> Value {
    let kind = |key: &Key| serde_json::to_value(key.kind.word()).expect("a word");
    let objects: Vec<Value> = fake
        .objects
        .iter()
        .map(|(key, object)| {
            let mut object = object.clone();
            object["kind"] = kind(key);
            object
        })
        .collect();
    json!({
        "form": form, "writes": writes, "objects": objects, "storage": fake.storage,
        "repository": fake.repository, "now_seconds": fake.now.as_secs(),
    })
}

fn loaded(record: &Value) -> (Fake, Anchor) {
    let of = |name: &str| serde_json::from_value(record[name].clone()).expect("texts");
    let mut fake = Fake::default();
    fake.storage = of("storage");
    fake.repository = of("repository");
    fake.now = Duration::from_secs(record["now_seconds"].as_u64().expect("a time"));
    for object in record["objects"].as_array().expect("objects") {
        fake.objects.insert(mover_cluster::api::key_of(object), object.clone());
    }
    // Numbers that no object has yet.
    while fake.next() < 10_000 {}
    let key = Key::new(Kind::ConfigMap, NAMESPACE, "first");
    let uid = Meta::of(fake.get(&key).expect("the anchor")).uid;
    (fake, Anchor { uid, key, member: None })
}

/// A few moments of each form: early, while a Job is under way, and at the end.
fn write() {
    let mut all = Vec::new();
    for form in FORMS {
        let number = (0..)
            .find(|writes| {
                let (mut fake, anchor) = start(form);
                drive_until(&mut fake, &anchor, *writes, true)
            })
            .expect("it ends");
        for part in 1..=4 {
            let writes = number * part / 5;
            let (mut fake, anchor) = start(form);
            drive_until(&mut fake, &anchor, writes, true);
            all.push(saved(&fake, form, writes));
        }
    }
    let lines: Vec<String> = all.iter().map(Value::to_string).collect();
    let path = folder().join(format!("{}.json", env!("CARGO_PKG_VERSION")));
    std::fs::create_dir_all(folder()).expect("a folder");
    std::fs::write(&path, lines.join("\n") + "\n").expect("written");
}

#[test]
fn an_operation_of_another_version_is_taken_to_its_end() {
    #[allow(clippy::disallowed_methods)]
    if std::env::var("MOVER_TEST_WRITE").as_deref() == Ok("before") {
        write();
    }
    let mut number = 0;
    for file in std::fs::read_dir(folder()).expect("the folder") {
        let path = file.expect("an entry").path();
        for line in std::fs::read_to_string(&path).expect("text").lines() {
            let record: Value = serde_json::from_str(line).expect("a record");
            let about = format!("{} {} {}", path.display(), record["form"], record["writes"]);
            let is_backup = record["form"][0] == true;
            let (mut fake, anchor) = loaded(&record);
            let outcome = drive(&mut fake, &anchor);
            assert_eq!(outcome.exit_code, 0, "{about}: {outcome:?}");
            assert_clean(&mut fake, &anchor, usize::from(!is_backup), usize::from(is_backup));
            if is_backup {
                assert_eq!(fake.repository[&anchor.uid], DATA, "{about}");
            } else {
                assert_restored(&fake, record["form"][2] == true);
            }
            // Cancelled instead, nothing of it is left, or it was too late.
            let (mut fake, anchor) = loaded(&record);
            let cancel = json!({ "metadata": { "annotations": { "mover.dev/cancel": "true" } } });
            fake.change(&anchor.key, &cancel);
            let outcome = drive(&mut fake, &anchor);
            assert!([0, 143].contains(&outcome.exit_code), "{about}: {outcome:?}");
            settle(&mut fake);
            assert_eq!(fake.left(), Vec::<String>::new(), "{about}");
            number += 1;
        }
    }
    assert!(number >= 16, "{number} clusters");
}
