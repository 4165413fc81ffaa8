//! `kubectl mover snapshots`.

use super::super::args::{DeleteSnapshot, ImportSnapshot, List, SnapshotsCommand};
use super::super::output::Output;
use super::volumes;
use crate::api::Api;
use crate::engine::{DiscardFrom, Failure};
use crate::ops::repository;
use crate::ops::snapshots::{self, ImportOptions, Presence};
use serde_json::json;

pub(super) async fn run(
    api: &Api,
    namespace: &str,
    command: SnapshotsCommand,
    output: &Output,
) -> Result<u8, Failure> {
    match command {
        SnapshotsCommand::List(given) => list(api, namespace, &given, output).await,
        SnapshotsCommand::Import(given) => Box::pin(import(api, namespace, &given, output)).await,
        SnapshotsCommand::Delete(given) => delete(api, namespace, &given, output).await,
    }
}

async fn list(api: &Api, namespace: &str, given: &List, output: &Output) -> Result<u8, Failure> {
    let (own, records) = volumes::records(api, namespace, given, output).await?;
    let contents = snapshots::contents(api).await?;
    let mut rows = Vec::new();
    for record in &records {
        let snapshot = &record["snapshot"];
        let Some(handle) = snapshot["snapshot_handle"].as_str() else { continue };
        let text = |name: &str| record[name].as_str().unwrap_or_default();
        let place = snapshots::presence_of(record, contents.as_deref());
        let place = snapshots::looked_for(api, place).await?;
        let (is_in, error) = match &place {
            Presence::Here(namespace, name) => (format!("{namespace}/{name}"), None),
            Presence::NotReady(namespace, name, error) => {
                (format!("{namespace}/{name}"), error.clone())
            }
            Presence::Dangling(namespace, name) => {
                (format!("{namespace}/{name}"), Some("the VolumeSnapshot is gone".to_owned()))
            }
            Presence::Elsewhere | Presence::Unknown => (String::new(), None),
        };
        let volume = text("volume");
        let finished = text("finished");
        let driver = snapshot["csi_driver"].as_str().unwrap_or_default();
        let cells = vec![
            volume.strip_prefix(&own).unwrap_or(volume).to_owned(),
            text("backup_id").to_owned(),
            finished.get(..19).unwrap_or(finished).replace('T', " "),
            place.word().to_owned(),
            is_in.clone(),
            driver.to_owned(),
            handle.to_owned(),
        ];
        rows.push((
            cells,
            json!({
                "volume": volume,
                "backup_id": text("backup_id"),
                "finished": finished,
                "state": place.word(),
                "volumeSnapshot": is_in,
                "error": error,
                "driver": driver,
                "handle": handle,
                "volumeSnapshotName": snapshot["id"],
                "size_bytes": record["size_bytes"],
                "labels": record["labels"],
            }),
        ));
    }
    let head =
        ["VOLUME", "BACKUP", "FINISHED (UTC)", "STATE", "VOLUMESNAPSHOT", "DRIVER", "HANDLE"];
    output.table(&head, 2, &rows);
    Ok(0)
}

async fn import(
    api: &Api,
    namespace: &str,
    given: &ImportSnapshot,
    output: &Output,
) -> Result<u8, Failure> {
    let place = repository::find(api, given.repository.as_deref(), namespace).await?;
    let options = ImportOptions {
        name: given.name.clone(),
        snapshot_class: given.snapshot_class.clone(),
        driver: given.driver.clone(),
        wait_seconds: given.timeout,
    };
    let tell = |wait: &_| output.waiting(wait);
    let (request, done) =
        snapshots::import_of(api, &given.backup, (&place, namespace), &options, tell).await?;
    let mut text = format!(
        "volumesnapshot/{} in namespace {namespace} is snapshot {} of {}, of which backup {} was made",
        request.name, request.handle, request.driver, request.of
    );
    if done.size.is_none() {
        text.push_str(
            "\nwarning: its driver says no size, as one that lists no snapshots: then nobody has looked, and a \
             volume made of it shows whether the storage has it",
        );
    }
    let record = json!({
        "volumeSnapshot": request.name,
        "namespace": namespace,
        "content": done.content.name,
        "driver": request.driver,
        "handle": request.handle,
        "backup": request.of,
        "restoreSize": done.size,
        "looked": done.size.is_some(),
    });
    output.result(&record, &text);
    Ok(0)
}

async fn delete(
    api: &Api,
    namespace: &str,
    given: &DeleteSnapshot,
    output: &Output,
) -> Result<u8, Failure> {
    let tell = |wait: &_| output.waiting(wait);
    let removal = match (given.leave, given.in_storage) {
        (true, _) => DiscardFrom::Leave,
        (_, true) => DiscardFrom::InStorage,
        _ => DiscardFrom::Unsaid,
    };
    let of = snapshots::discard(api, (namespace, &given.name), removal, tell).await?;
    let handle = of.handle.as_deref().unwrap_or("that was never taken");
    let text = match given.leave {
        true => format!(
            "volumesnapshot/{} in namespace {namespace} is gone, and the storage keeps snapshot {handle}",
            given.name
        ),
        false => format!(
            "volumesnapshot/{} in namespace {namespace} is gone, and snapshot {handle} with it",
            given.name
        ),
    };
    let record = json!({
        "volumeSnapshot": given.name,
        "namespace": namespace,
        "handle": of.handle,
        "left": given.leave,
    });
    output.result(&record, &text);
    Ok(0)
}
