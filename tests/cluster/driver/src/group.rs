//! Group snapshots: several volumes at one moment.
//!
//! While the copies are made no pod that has one of the volumes runs: their control groups are
//! frozen, and then mounted filesystems are synced. A write that a pod saw end is then in every
//! copy, and no later one is in any. Somebody who is no pod may write meanwhile, so afterwards each
//! volume is compared with its copy, by extents: if all are still equal, nobody wrote, and the
//! copies are of one moment. Otherwise all are made again.

use crate::driver::{Call, Service, required};
use crate::extents;
use crate::freezer::Frozen;
use crate::proto::csi;
use crate::proto::csi::group_controller_server::GroupController;
use crate::proto::csi::group_controller_service_capability::rpc::Type as Rpc;
use crate::proto::csi::group_controller_service_capability::{self, Type};
use crate::proto::csi::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse,
    DeleteVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotResponse,
    GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse,
    GroupControllerServiceCapability, VolumeGroupSnapshot,
};
use crate::records::remove_if_there;
use crate::store::{Access, Group, Snapshot, new_id};
use crate::system::Context;
use std::collections::BTreeSet;
use std::fs::File;
use std::time::SystemTime;
use tonic::{Request, Response, Status};

/// How often the copies are made again if somebody writes meanwhile.
const ATTEMPTS: u32 = 5;

impl Call<'_> {
    fn group(&self, group: &Group) -> Result<VolumeGroupSnapshot, Status> {
        let snapshots = group.snapshots.iter().filter_map(|id| self.store.snapshots.get(id));
        let snapshots: Result<Vec<_>, Status> =
            snapshots.map(|snapshot| crate::controller::snapshot_answer(self, snapshot)).collect();
        let snapshots: Vec<csi::Snapshot> = snapshots?;
        let ready_to_use = snapshots.iter().all(|snapshot| snapshot.ready_to_use);
        Ok(VolumeGroupSnapshot {
            group_snapshot_id: group.id.clone(),
            snapshots,
            creation_time: Some(group.taken.into()),
            ready_to_use,
        })
    }

    fn volumes_of(&self, group: &Group) -> BTreeSet<String> {
        let members = group.snapshots.iter().filter_map(|id| self.store.snapshots.get(id));
        members.map(|snapshot| snapshot.volume.clone()).collect()
    }

    fn create_group(&mut self, name: &str, volumes: &BTreeSet<String>) -> Result<Group, Status> {
        let mut members = Vec::new();
        for volume in volumes {
            members.push((new_id("snap")?, volume.clone(), self.store.volume(volume)?.bytes));
        }
        let made = self.make_group(name, volumes, &members);
        if made.is_err() {
            for (member, ..) in &members {
                self.store.snapshots.remove(member)?;
                self.remove_data(member)?;
            }
        }
        made
    }

    /// Makes a group of members that have ids and nothing else yet.
    fn make_group(
        &mut self,
        name: &str,
        volumes: &BTreeSet<String>,
        members: &[(String, String, u64)],
    ) -> Result<Group, Status> {
        let frozen = Frozen::freeze(self.pods(volumes), &self.store.folder)?;
        let copied = self.sync_all(volumes).and_then(|()| self.copy_all(members));
        let taken = SystemTime::now();
        frozen.thaw()?;
        copied?;
        let id = new_id("group")?;
        for (number, (member, volume, bytes)) in members.iter().enumerate() {
            self.store.snapshots.put(Snapshot {
                id: member.clone(),
                name: format!("{name}/{number}"),
                volume: volume.clone(),
                bytes: *bytes,
                taken,
                group: Some(id.clone()),
            })?;
        }
        let snapshots = members.iter().map(|(member, ..)| member.clone()).collect();
        let group = Group { id, name: name.to_owned(), snapshots, taken };
        self.store.groups.put(group.clone())?;
        Ok(group)
    }

    /// Writes what mounted filesystems hold in memory. Pods that could add to it stand still.
    fn sync_all(&self, volumes: &BTreeSet<String>) -> Result<(), Status> {
        let volumes = volumes.iter().filter_map(|id| self.store.volumes.get(id));
        for staged in volumes.filter_map(|volume| volume.staged.as_ref()) {
            if staged.capability.access != Access::Block {
                let sync = || format!("sync {}", staged.path);
                let place = File::open(&staged.path).context(sync)?;
                rustix::fs::syncfs(&place).context(sync)?;
            }
        }
        Ok(())
    }

    fn remove_data(&self, member: &str) -> Result<(), Status> {
        let data = self.store.snapshots.data(member);
        remove_if_there(&data).context(|| format!("remove {}", data.display()))
    }

    /// The pods that have one of the volumes, by the uid in their paths.
    fn pods(&self, volumes: &BTreeSet<String>) -> BTreeSet<String> {
        let volumes = volumes.iter().filter_map(|id| self.store.volumes.get(id));
        volumes.flat_map(|volume| volume.targets.keys()).filter_map(|path| pod(path)).collect()
    }

    /// Copies all volumes as of one moment; without success nothing is left of it.
    fn copy_all(&self, members: &[(String, String, u64)]) -> Result<(), Status> {
        let mut changed = Ok(None);
        for _ in 0..ATTEMPTS {
            let copied =
                members.iter().try_for_each(|(id, volume, _)| self.store.copy_volume(volume, id));
            changed = copied.and_then(|()| self.changed_since(members));
            if matches!(changed, Ok(None)) {
                return Ok(());
            }
            for (id, ..) in members {
                self.remove_data(id)?;
            }
            if changed.is_err() {
                break;
            }
        }
        let volume = changed?.unwrap_or_default();
        Err(Status::aborted(format!(
            "volume {volume} was written to during each of {ATTEMPTS} attempts, and not by a pod: \
             stop that and repeat"
        )))
    }

    /// A volume that is not equal to its copy any more.
    fn changed_since(&self, members: &[(String, String, u64)]) -> Result<Option<String>, Status> {
        for (id, volume, _) in members {
            let extents = |data: std::path::PathBuf| {
                let read = || format!("read the extents of {}", data.display());
                extents::of_file(&File::open(&data).context(read)?).context(read)
            };
            let (now, then) = (
                extents(self.store.volumes.data(volume))?,
                extents(self.store.snapshots.data(id))?,
            );
            if !extents::delta(&then, &now, u64::MAX).is_empty() {
                return Ok(Some(volume.clone()));
            }
        }
        Ok(None)
    }
}

/// The uid of a pod in a path below the kubelet's folder: `…/pods/UID/volumes/…` for a mount,
/// `…/volumeDevices/publish/VOLUME/UID` for a device.
fn pod(path: &str) -> Option<String> {
    let parts: Vec<_> = path.split('/').collect();
    let after = |name: &str, distance: usize| {
        let at = parts.iter().rposition(|part| *part == name)?;
        parts.get(at + distance)
    };
    let uid = if path.contains("/volumeDevices/publish/") {
        after("publish", 2)
    } else {
        after("pods", 1)
    };
    let plain = |uid: &&&str| uid.len() >= 8 && !uid.contains(['.', '*']);
    uid.filter(plain).map(|uid| (*uid).to_owned())
}

#[tonic::async_trait]
impl GroupController for Service {
    async fn group_controller_get_capabilities(
        &self,
        request: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        self.serve("GroupControllerGetCapabilities", request, |_, _| {
            let rpc = group_controller_service_capability::Rpc {
                r#type: Rpc::CreateDeleteGetVolumeGroupSnapshot.into(),
            };
            let capability = GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) };
            Ok(GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] })
        })
        .await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        self.serve("CreateVolumeGroupSnapshot", request, |call, request| {
            let name = required(&request.name, "name")?;
            let volumes: BTreeSet<_> = request.source_volume_ids.iter().cloned().collect();
            if volumes.is_empty() {
                return Err(Status::invalid_argument("source_volume_ids are missing"));
            }
            let group = match call.store.groups.named(name).cloned() {
                Some(there) if call.volumes_of(&there) == volumes => there,
                Some(there) => {
                    return Err(Status::already_exists(format!(
                        "group {name} is of volumes {:?}, not {volumes:?}: choose another name",
                        call.volumes_of(&there)
                    )));
                }
                None => call.create_group(name, &volumes)?,
            };
            let group_snapshot = Some(call.group(&group)?);
            Ok(CreateVolumeGroupSnapshotResponse { group_snapshot })
        })
        .await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        self.serve("DeleteVolumeGroupSnapshot", request, |call, request| {
            let id = required(&request.group_snapshot_id, "group_snapshot_id")?;
            if let Some(group) = call.store.groups.get(id).cloned() {
                check_members(&group, &request.snapshot_ids)?;
                // The members first: a second call finds the group, and the rest of them.
                for member in &group.snapshots {
                    call.store.snapshots.remove(member)?;
                }
                call.store.groups.remove(id)?;
            }
            Ok(DeleteVolumeGroupSnapshotResponse {})
        })
        .await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        self.serve("GetVolumeGroupSnapshot", request, |call, request| {
            let id = required(&request.group_snapshot_id, "group_snapshot_id")?;
            let none = || Status::not_found(format!("no group snapshot {id}"));
            let group = call.store.groups.get(id).ok_or_else(none)?;
            check_members(group, &request.snapshot_ids)?;
            Ok(GetVolumeGroupSnapshotResponse { group_snapshot: Some(call.group(group)?) })
        })
        .await
    }
}

/// Refuses a list of members with one that is none.
fn check_members(group: &Group, snapshots: &[String]) -> Result<(), Status> {
    match snapshots.iter().find(|id| !group.snapshots.contains(id)) {
        Some(stranger) => Err(Status::invalid_argument(format!(
            "snapshot {stranger} is not of group {}: name its members, or none",
            group.id
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_found_in_its_paths() {
        let uid = "0b7f2c3e-1111-4222-8333-444455556666";
        let mount = format!("/var/k/pods/{uid}/volumes/kubernetes.io~csi/pvc-1/mount");
        let device = format!("/k/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/{uid}");
        assert_eq!(pod(&mount).as_deref(), Some(uid));
        assert_eq!(pod(&device).as_deref(), Some(uid));
        assert_eq!(pod("/tmp/csi-target"), None);
    }
}
