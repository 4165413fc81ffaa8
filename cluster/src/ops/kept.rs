//! The snapshot of a backup that the storage still has, for a restore whose volume begins as it.

use crate::api::Api;
use crate::engine::{
    self, Failure, IMPORTED, Kept, Key, Kind, Object, Planned, Selection, Snapshot, StorageClass,
    notes,
};
use crate::ops::look::look;
use crate::ops::restore::bytes_of;
use serde_json::Value;

/// What is to begin as a snapshot.
pub(super) struct Wanted<'a> {
    /// What the repository says of the backup.
    pub record: &'a Value,
    /// Its volume in the repository, and its id.
    pub of: (&'a str, &'a str),
    /// Namespace of the claim: a snapshot of another one is none of its own.
    pub namespace: &'a str,
    /// Class of the claim.
    pub storage_class: &'a str,
    /// Bytes of the backup.
    pub size_bytes: u64,
}

/// The snapshot, if there is one that serves. It is for speed alone: where there is none, and where the
/// objects of snapshots may not be read, a warning says so.
///
/// # Errors
///
/// The API server is away.
pub(super) async fn kept(api: &Api, wanted: &Wanted<'_>) -> Result<Option<Kept>, Failure> {
    let found = look(api, |seen| seen.settle(search(seen, wanted))).await;
    let why = match found {
        Ok(Ok(kept)) => return Ok(Some(kept)),
        Ok(Err(why)) => why,
        Err(why) if why.exit_code == engine::exit::DENIED => why.message,
        Err(why) => return Err(why),
    };
    let (volume, id) = wanted.of;
    tracing::warn!("backup {id} of {volume} is restored from the bucket: {why}");
    Ok(None)
}

type Found = Result<Kept, String>;

fn search(seen: &engine::Observed, wanted: &Wanted<'_>) -> Planned<Found> {
    let noted = &wanted.record["snapshot"];
    let note = |name: &str| noted[name].as_str().filter(|text| !text.is_empty());
    let (Some(driver), Some(handle)) = (note("csi_driver"), note("snapshot_handle")) else {
        return Ok(Err("it notes no snapshot of a driver".to_owned()));
    };
    let class = Key::wide(Kind::StorageClass, wanted.storage_class);
    let provisioner = seen.find::<StorageClass>(&class)?.map(|found| found.body.provisioner);
    if provisioner.as_deref() != Some(driver) {
        let other = provisioner.unwrap_or_default();
        return Ok(Err(format!("its snapshot is of driver {driver}, and {class} of {other}")));
    }
    let all: Vec<Object<Snapshot>> =
        seen.list(&Selection::labelled(Kind::VolumeSnapshot, wanted.namespace, ""))?;
    let (volume, id) = wanted.of;
    let imported_of = format!("{volume}@{id}");
    let is_named = |found: &&Object<Snapshot>| {
        note("id") == Some(&found.key.name)
            || found.meta.annotations.get(IMPORTED) == Some(&imported_of)
    };
    let mode = wanted.record["labels"][notes::MODE].as_str();
    for found in all.iter().filter(is_named) {
        if engine::usable_content(seen, &found.key, driver, handle)?.is_none() {
            continue;
        }
        // One of another size is of another state, whatever its name: what lies beyond the backup
        // would stay in the volume.
        let size = found.body.status.restore_size.as_deref().and_then(bytes_of).unwrap_or(0);
        if size > wanted.size_bytes {
            let what = format!("{} has {size} bytes, and it {}", found.key, wanted.size_bytes);
            return Ok(Err(what));
        }
        return Ok(Ok(Kept {
            name: found.key.name.clone(),
            driver: driver.to_owned(),
            handle: handle.to_owned(),
            class: class_of(seen, &found.key)?,
            filesystem: mode == Some("Filesystem"),
        }));
    }
    Ok(Err(format!("namespace {} has no usable snapshot of it", wanted.namespace)))
}

fn class_of(seen: &engine::Observed, snapshot: &Key) -> Planned<Option<String>> {
    let raw = seen.raw(snapshot)?.unwrap_or_default();
    let name = raw["spec"]["volumeSnapshotClassName"].as_str();
    Ok(name.filter(|name| !name.is_empty()).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Observed;
    use serde_json::json;

    const ID: &str = "12308530-0137";

    fn record() -> Value {
        json!({
            "snapshot": { "id": "mover-1", "csi_driver": "d", "snapshot_handle": "s-1" },
            "labels": { notes::MODE: "Filesystem" },
        })
    }

    /// A cluster with one snapshot of this name, annotations, size and handle.
    fn cluster(name: &str, notes: Value, size: &str, handle: &str) -> Observed {
        let mut seen = Observed::default();
        let class = Key::wide(Kind::StorageClass, "fast");
        seen.set_object(class, Some(json!({ "metadata": { "name": "fast" }, "provisioner": "d" })));
        let snapshot = json!({
            "kind": "VolumeSnapshot",
            "metadata": { "name": name, "namespace": "shop", "uid": "u-1", "annotations": notes },
            "spec": { "volumeSnapshotClassName": "snaps" },
            "status": {
                "boundVolumeSnapshotContentName": "content", "readyToUse": true, "restoreSize": size,
            },
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
            "status": { "snapshotHandle": handle, "readyToUse": true },
        });
        seen.set_object(Key::wide(Kind::VolumeSnapshotContent, "content"), Some(content));
        seen
    }

    fn found(seen: &Observed, record: &Value) -> Found {
        let of = ("c/shop/db", ID);
        let size_bytes = 1 << 30;
        let wanted = Wanted { record, of, namespace: "shop", storage_class: "fast", size_bytes };
        search(seen, &wanted).expect("all was read")
    }

    #[test]
    fn a_snapshot_is_that_which_the_backup_notes() {
        let imported = json!({ IMPORTED: format!("c/shop/db@{ID}") });
        for (name, notes) in [("mover-1", json!({})), ("db-12308530", imported)] {
            let kept = found(&cluster(name, notes, "1Gi", "s-1"), &record()).expect("one");
            let of = (kept.name.as_str(), kept.driver.as_str(), kept.handle.as_str());
            assert_eq!(of, (name, "d", "s-1"));
            assert_eq!((kept.class.as_deref(), kept.filesystem), (Some("snaps"), true));
        }
    }

    #[test]
    fn any_other_is_none() {
        let no = json!({});
        let why = |seen: Observed, record: &Value| found(&seen, record).expect_err("none");
        let none = "no usable snapshot";
        assert!(why(cluster("mover-2", no.clone(), "1Gi", "s-1"), &record()).contains(none));
        assert!(why(cluster("mover-1", no.clone(), "1Gi", "s-2"), &record()).contains(none));
        let of_another = json!({ IMPORTED: "c/shop/db@other" });
        assert!(why(cluster("mover-2", of_another, "1Gi", "s-1"), &record()).contains(none));
        // What lies beyond the backup would stay.
        let larger = why(cluster("mover-1", no.clone(), "2Gi", "s-1"), &record());
        assert!(larger.contains("2147483648 bytes"), "{larger}");
        let mut other = record();
        other["snapshot"]["csi_driver"] = "e".into();
        let why_not = why(cluster("mover-1", no.clone(), "1Gi", "s-1"), &other);
        assert!(why_not.contains("driver e"), "{why_not}");
        other["snapshot"] = Value::Null;
        assert!(why(cluster("mover-1", no, "1Gi", "s-1"), &other).contains("notes no snapshot"));
    }
}
