//! The snapshot of a backup that the storage still has, for a restore whose volume begins as it.

use crate::api::Api;
use crate::engine::{
    self, Failure, IMPORTED, Kept, KeptSnapshot, Key, Kind, Object, Observed, Planned, Selection,
    Snapshot, StateOf, StorageClass,
};
use crate::ops::look::look;
use serde_json::Value;

/// What is to begin as a snapshot.
pub(super) struct Wanted<'a> {
    /// What the repository says of the backup.
    pub record: &'a Value,
    /// The backup: a snapshot of another namespace than the claim's is none of its own.
    pub of: StateOf<'a>,
    /// Class of the claim.
    pub storage_class: &'a str,
}

/// The snapshot, if there is one that serves, else why not: it is for speed alone.
///
/// # Errors
///
/// The API server is away.
pub(super) async fn kept(api: &Api, wanted: &Wanted<'_>) -> Result<Kept, Failure> {
    match look(api, |seen| seen.settle(search(seen, wanted))).await {
        Ok(Ok(kept)) => Ok(Kept::Snapshot(kept)),
        Ok(Err(why)) => Ok(Kept::Missing(why)),
        Err(why) if why.exit_code == engine::exit::DENIED => Ok(Kept::Missing(why.message)),
        Err(why) => Err(why),
    }
}

fn search(seen: &Observed, wanted: &Wanted<'_>) -> Planned<Result<KeptSnapshot, String>> {
    let noted = &wanted.record["snapshot"];
    let note = |name: &str| noted[name].as_str().filter(|text| !text.is_empty());
    let (Some(driver), Some(handle)) = (note("csi_driver"), note("snapshot_handle")) else {
        return Ok(Err("the backup notes no snapshot of a driver".to_owned()));
    };
    let class = Key::wide(Kind::StorageClass, wanted.storage_class);
    let provisioner = seen.find::<StorageClass>(&class)?.map(|found| found.body.provisioner);
    if provisioner.as_deref() != Some(driver) {
        let other = provisioner.unwrap_or_default();
        return Ok(Err(format!("the snapshot is of driver {driver}, and {class} of {other}")));
    }
    let all: Vec<Object<Snapshot>> =
        seen.list(&Selection::labelled(Kind::VolumeSnapshot, wanted.of.namespace, ""))?;
    let imported_of = format!("{}@{}", wanted.of.volume, wanted.of.backup);
    let is_named = |found: &&Object<Snapshot>| {
        note("id") == Some(&found.key.name)
            || found.meta.annotations.get(IMPORTED) == Some(&imported_of)
    };
    let mut why = format!("namespace {} has no snapshot of the backup", wanted.of.namespace);
    for found in all.iter().filter(is_named) {
        let kept = KeptSnapshot {
            name: found.key.name.clone(),
            driver: driver.to_owned(),
            handle: handle.to_owned(),
            class: class_of(seen, &found.key)?,
        };
        match engine::usable(seen, &kept, wanted.of)? {
            Ok(_) => return Ok(Ok(kept)),
            Err(not) => why = not,
        }
    }
    Ok(Err(why))
}

fn class_of(seen: &Observed, snapshot: &Key) -> Planned<Option<String>> {
    let raw = seen.raw(snapshot)?.unwrap_or_default();
    let name = raw["spec"]["volumeSnapshotClassName"].as_str();
    Ok(name.filter(|name| !name.is_empty()).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::BASE_OF;
    use serde_json::json;

    const ID: &str = "12308530-0137";
    const URL: &str = "s3://backups/shop";

    /// As `mover show --json` prints it.
    fn record() -> Value {
        json!({ "snapshot": { "id": "mover-1", "csi_driver": "d", "snapshot_handle": "s-1" } })
    }

    fn left_by_backup() -> Value {
        json!({ BASE_OF: format!("c/shop/db in {URL}") })
    }

    /// A cluster with one snapshot of this name, annotations, size and handle.
    fn cluster(name: &str, notes: Value, size: Value, handle: &str) -> Observed {
        let mut seen = Observed::default();
        let class = json!({ "metadata": { "name": "fast" }, "provisioner": "d" });
        seen.set_object(Key::wide(Kind::StorageClass, "fast"), Some(class));
        let snapshot = json!({
            "kind": "VolumeSnapshot",
            "metadata": { "name": name, "namespace": "shop", "uid": "u-1", "annotations": notes },
            "spec": { "volumeSnapshotClassName": "snaps" },
            "status": { "boundVolumeSnapshotContentName": "content", "readyToUse": true },
        });
        let key = Key::new(Kind::VolumeSnapshot, "shop", name);
        let all = Selection::labelled(Kind::VolumeSnapshot, "shop", "");
        seen.set_list(all, vec![snapshot.clone()], Some("1".into()));
        seen.set_object(key, Some(snapshot));
        let content = json!({
            "kind": "VolumeSnapshotContent",
            "metadata": { "name": "content" },
            "spec": {
                "driver": "d",
                "volumeSnapshotRef": { "uid": "u-1", "namespace": "shop", "name": name },
            },
            "status": { "snapshotHandle": handle, "readyToUse": true, "restoreSize": size },
        });
        seen.set_object(Key::wide(Kind::VolumeSnapshotContent, "content"), Some(content));
        seen
    }

    fn found(seen: &Observed, record: &Value) -> Result<KeptSnapshot, String> {
        let of = StateOf {
            namespace: "shop",
            volume: "c/shop/db",
            backup: ID,
            url: URL,
            size_bytes: 1 << 30,
        };
        search(seen, &Wanted { record, of, storage_class: "fast" }).expect("all was read")
    }

    #[test]
    fn a_snapshot_is_that_which_the_backup_notes() {
        let imported = json!({ IMPORTED: format!("c/shop/db@{ID}") });
        for (name, notes) in [("mover-1", left_by_backup()), ("db-12308530", imported)] {
            let kept = found(&cluster(name, notes, json!(1 << 30), "s-1"), &record()).expect("one");
            let of = (kept.name.as_str(), kept.driver.as_str(), kept.handle.as_str());
            assert_eq!(of, (name, "d", "s-1"));
            assert_eq!(kept.class.as_deref(), Some("snaps"));
        }
    }

    #[test]
    fn any_other_is_none() {
        let why = |name: &str, notes: Value, size: Value, handle: &str| {
            found(&cluster(name, notes, size, handle), &record()).expect_err("none")
        };
        let whole = || json!(1 << 30);
        let other_name = why("mover-2", left_by_backup(), whole(), "s-1");
        assert!(other_name.contains("namespace shop has no snapshot"), "{other_name}");
        let other = why("mover-1", left_by_backup(), whole(), "s-2");
        assert!(other.contains("another one of the storage"), "{other}");
        for notes in [
            json!({}),
            json!({ BASE_OF: "c/shop/db in s3://elsewhere" }),
            json!({ BASE_OF: format!("c/shop/other in {URL}") }),
            json!({ IMPORTED: "c/shop/db@other" }),
        ] {
            let foreign = why("mover-1", notes, whole(), "s-1");
            assert!(foreign.contains("no backup of this volume"), "{foreign}");
        }
        for size in [json!((1_u64 << 30) + 1), json!(0), Value::Null, json!(-1)] {
            let size = why("mover-1", left_by_backup(), size, "s-1");
            assert!(
                size.contains("bytes, and the backup") || size.contains("does not say"),
                "{size}"
            );
        }
        let seen = || cluster("mover-1", left_by_backup(), whole(), "s-1");
        let mut other = record();
        other["snapshot"]["csi_driver"] = "e".into();
        assert!(found(&seen(), &other).expect_err("none").contains("driver e"));
        other["snapshot"] = Value::Null;
        assert!(found(&seen(), &other).expect_err("none").contains("notes no snapshot"));
    }
}
