//! Snapshots of single volumes.

use crate::driver::{Call, required};
use crate::paging::page;
use crate::proto::csi;
use crate::proto::csi::list_snapshots_response::Entry;
use crate::proto::csi::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
};
use crate::sizes::signed;
use crate::store::Snapshot;
use std::time::SystemTime;
use tonic::Status;

/// A snapshot as the protocol has it; an error if it is one that fails instead of becoming ready.
pub(crate) fn answer(call: &Call<'_>, snapshot: &Snapshot) -> Result<csi::Snapshot, Status> {
    is_ready(call, snapshot).map(|ready_to_use| told(snapshot, ready_to_use))
}

fn is_ready(call: &Call<'_>, snapshot: &Snapshot) -> Result<bool, Status> {
    call.faults.ready(&format!("{snapshot:?}"), snapshot.taken, SystemTime::now())
}

fn told(snapshot: &Snapshot, ready_to_use: bool) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: signed(snapshot.bytes),
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.volume.clone(),
        creation_time: Some(snapshot.taken.into()),
        ready_to_use,
        group_snapshot_id: snapshot.group.clone().unwrap_or_default(),
    }
}

pub(super) fn create(
    call: &mut Call<'_>,
    request: CreateSnapshotRequest,
) -> Result<CreateSnapshotResponse, Status> {
    let name = required(&request.name, "name")?;
    let volume = required(&request.source_volume_id, "source_volume_id")?;
    let snapshot = match call.store.snapshots.named(name) {
        Some(there) if there.volume == volume => there.clone(),
        Some(there) => {
            return Err(Status::already_exists(format!(
                "snapshot {name} is of volume {}, not {volume}: choose another name",
                there.volume
            )));
        }
        None => call.store.make_snapshot(name, volume)?,
    };
    Ok(CreateSnapshotResponse { snapshot: Some(answer(call, &snapshot)?) })
}

pub(super) fn delete(
    call: &mut Call<'_>,
    request: DeleteSnapshotRequest,
) -> Result<DeleteSnapshotResponse, Status> {
    let id = required(&request.snapshot_id, "snapshot_id")?;
    let group = call.store.snapshots.get(id).and_then(|snapshot| snapshot.group.as_ref());
    if let Some(group) = group {
        return Err(Status::invalid_argument(format!(
            "snapshot {id} is of group {group}: delete the group"
        )));
    }
    call.store.snapshots.remove(id)?;
    Ok(DeleteSnapshotResponse {})
}

pub(super) fn list(
    call: &mut Call<'_>,
    request: ListSnapshotsRequest,
) -> Result<ListSnapshotsResponse, Status> {
    if !call.faults.lists() {
        return Err(Status::unimplemented("ListSnapshots is off by order of the faults file"));
    }
    let meant = |asked: &str, is: &str| asked.is_empty() || asked == is;
    let found = call.store.snapshots.all().filter(|snapshot| {
        meant(&request.snapshot_id, &snapshot.id)
            && meant(&request.source_volume_id, &snapshot.volume)
    });
    let (found, next_token) = page(found, &request.starting_token, request.max_entries)?;
    // One that fails is not ready; the others are listed all the same.
    let entry = |snapshot: &Snapshot| {
        let ready = is_ready(call, snapshot).unwrap_or(false);
        Entry { snapshot: Some(told(snapshot, ready)) }
    };
    Ok(ListSnapshotsResponse { entries: found.into_iter().map(entry).collect(), next_token })
}

pub(super) fn get(
    call: &mut Call<'_>,
    request: GetSnapshotRequest,
) -> Result<GetSnapshotResponse, Status> {
    let snapshot = call.store.snapshot(required(&request.snapshot_id, "snapshot_id")?)?;
    Ok(GetSnapshotResponse { snapshot: Some(answer(call, snapshot)?) })
}
