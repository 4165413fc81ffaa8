//! Volumes: made, copied, grown, given to the node, removed.

use crate::capability;
use crate::driver::{Call, required};
use crate::loops;
use crate::paging::page;
use crate::proto::csi;
use crate::proto::csi::list_volumes_response::{Entry, VolumeStatus};
use crate::proto::csi::validate_volume_capabilities_response::Confirmed;
use crate::proto::csi::volume_content_source::{self, SnapshotSource, VolumeSource};
use crate::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, ListVolumesRequest, ListVolumesResponse, Topology,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, VolumeContentSource,
};
use crate::sizes::{GRAIN_BYTES, fits, plan_size, signed};
use crate::store::{Origin, Use, Volume};
use crate::system::Context;
use std::collections::HashMap;
use tonic::Status;

/// A volume as the protocol has it.
fn answer(call: &Call<'_>, volume: &Volume) -> csi::Volume {
    use volume_content_source::Type;
    let origin = volume.origin.clone().map(|origin| match origin {
        Origin::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
        Origin::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
    });
    let segments = HashMap::from([(call.driver.topology_key(), call.driver.node.clone())]);
    csi::Volume {
        capacity_bytes: signed(volume.bytes),
        volume_id: volume.id.clone(),
        volume_context: HashMap::new(),
        content_source: origin.map(|origin| VolumeContentSource { r#type: Some(origin) }),
        accessible_topology: vec![Topology { segments }],
    }
}

/// What a new volume is to be a copy of, and the bytes that it has then at least.
fn origin(
    call: &Call<'_>,
    source: Option<VolumeContentSource>,
) -> Result<(Option<Origin>, u64), Status> {
    use volume_content_source::Type;
    match source.map(|source| source.r#type) {
        None => Ok((None, 0)),
        Some(None) => {
            let text = "volume_content_source is empty: name a snapshot or a volume";
            Err(Status::invalid_argument(text))
        }
        Some(Some(Type::Snapshot(source))) => {
            let snapshot = call.store.snapshot(required(&source.snapshot_id, "snapshot_id")?)?;
            if !super::snapshot_answer(call, snapshot)?.ready_to_use {
                let text = format!("snapshot {} is not ready yet: try again", snapshot.id);
                return Err(Status::unavailable(text));
            }
            Ok((Some(Origin::Snapshot(snapshot.id.clone())), snapshot.bytes))
        }
        Some(Some(Type::Volume(source))) => {
            let volume = call.store.volume(required(&source.volume_id, "volume_id")?)?;
            Ok((Some(Origin::Volume(volume.id.clone())), volume.bytes))
        }
    }
}

/// Refuses a volume that would have to be where the store is not.
fn check_topology(call: &Call<'_>, request: &CreateVolumeRequest) -> Result<(), Status> {
    let wanted = request.accessibility_requirements.iter().flat_map(|wanted| &wanted.requisite);
    let mut wanted = wanted.peekable();
    let (key, node) = (call.driver.topology_key(), &call.driver.node);
    let here = |topology: &Topology| topology.segments.get(&key).is_none_or(|at| at == node);
    if wanted.peek().is_some() && !wanted.any(here) {
        return Err(Status::resource_exhausted(format!(
            "volume {} is wanted elsewhere, and the store is on node {node} only",
            request.name
        )));
    }
    Ok(())
}

pub(super) fn create(
    call: &mut Call<'_>,
    request: CreateVolumeRequest,
) -> Result<CreateVolumeResponse, Status> {
    let name = required(&request.name, "name")?;
    capability::all(&request.volume_capabilities)?;
    if let Some(key) = request.mutable_parameters.keys().next() {
        return Err(Status::invalid_argument(format!("mutable parameter {key} is not known")));
    }
    check_topology(call, &request)?;
    let range = request.capacity_range.as_ref();
    if let Some(there) = call.store.volumes.named(name) {
        let same = same_origin(there.origin.as_ref(), request.volume_content_source.as_ref());
        if !same || !fits(range, there.bytes)? {
            return Err(Status::already_exists(format!(
                "volume {name} is there with {} bytes and content of {:?}: choose another name",
                there.bytes, there.origin
            )));
        }
        return Ok(CreateVolumeResponse { volume: Some(answer(call, there)) });
    }
    let (origin, least) = origin(call, request.volume_content_source.clone())?;
    let bytes = plan_size(range, least, call.faults.grain(GRAIN_BYTES))?;
    let volume = call.store.make_volume(name, bytes, origin)?;
    Ok(CreateVolumeResponse { volume: Some(answer(call, &volume)) })
}

/// Whether a volume that is there is of the content that a request names, which may be gone by now.
fn same_origin(there: Option<&Origin>, wanted: Option<&VolumeContentSource>) -> bool {
    use volume_content_source::Type;
    match (there, wanted.and_then(|wanted| wanted.r#type.as_ref())) {
        (None, None) => true,
        (Some(Origin::Snapshot(id)), Some(Type::Snapshot(source))) => *id == source.snapshot_id,
        (Some(Origin::Volume(id)), Some(Type::Volume(source))) => *id == source.volume_id,
        _ => false,
    }
}

pub(super) fn delete(
    call: &mut Call<'_>,
    request: DeleteVolumeRequest,
) -> Result<DeleteVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let Some(volume) = call.store.volumes.get(id) else { return Ok(DeleteVolumeResponse {}) };
    if volume.published.is_some() || volume.staged.is_some() || !volume.targets.is_empty() {
        return Err(Status::failed_precondition(format!(
            "volume {id} is in use on node {}: unpublish and unstage it first",
            call.driver.node
        )));
    }
    loops::detach(&call.store.volumes.data(id))?;
    call.store.volumes.remove(id)?;
    Ok(DeleteVolumeResponse {})
}

pub(super) fn publish(
    call: &mut Call<'_>,
    request: ControllerPublishVolumeRequest,
) -> Result<ControllerPublishVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let node = required(&request.node_id, "node_id")?;
    let capability = capability::one(request.volume_capability.as_ref())?;
    let mut volume = call.store.volume(id)?.clone();
    if node != call.driver.node {
        return Err(Status::not_found(format!("no node {node}")));
    }
    let wanted = Use { read_only: request.readonly, capability };
    match &volume.published {
        Some(there) if *there == wanted => {}
        Some(there) => {
            return Err(Status::already_exists(format!(
                "volume {id} is published to {node} as {there:?}, not {wanted:?}: unpublish it \
                 first"
            )));
        }
        None => {
            volume.published = Some(wanted);
            call.store.volumes.put(volume)?;
        }
    }
    Ok(ControllerPublishVolumeResponse { publish_context: HashMap::new() })
}

pub(super) fn unpublish(
    call: &mut Call<'_>,
    request: ControllerUnpublishVolumeRequest,
) -> Result<ControllerUnpublishVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let here = request.node_id.is_empty() || request.node_id == call.driver.node;
    let published = call.store.volumes.get(id).filter(|volume| volume.published.is_some());
    if let Some(mut volume) = published.filter(|_| here).cloned() {
        volume.published = None;
        call.store.volumes.put(volume)?;
    }
    Ok(ControllerUnpublishVolumeResponse {})
}

pub(super) fn validate(
    call: &mut Call<'_>,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    if request.volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are missing"));
    }
    call.store.volume(id)?;
    Ok(match capability::all(&request.volume_capabilities) {
        Err(error) => ValidateVolumeCapabilitiesResponse {
            confirmed: None,
            message: error.message().to_owned(),
        },
        Ok(_) => ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: HashMap::new(),
            }),
            message: String::new(),
        },
    })
}

pub(super) fn list(
    call: &mut Call<'_>,
    request: ListVolumesRequest,
) -> Result<ListVolumesResponse, Status> {
    if !call.faults.lists() {
        return Err(Status::unimplemented("ListVolumes is off by order of the faults file"));
    }
    let all = call.store.volumes.all();
    let (found, next_token) = page(all, &request.starting_token, request.max_entries)?;
    let entry = |volume: &Volume| {
        let nodes = volume.published.iter().map(|_| call.driver.node.clone());
        let status = VolumeStatus { published_node_ids: nodes.collect(), volume_condition: None };
        Entry { volume: Some(answer(call, volume)), status: Some(status) }
    };
    Ok(ListVolumesResponse { entries: found.into_iter().map(entry).collect(), next_token })
}

pub(super) fn capacity(
    call: &mut Call<'_>,
    request: GetCapacityRequest,
) -> Result<GetCapacityResponse, Status> {
    let folder = &call.store.folder;
    let space = rustix::fs::statvfs(folder)
        .context(|| format!("ask for the free space of {}", folder.display()))?;
    let key = call.driver.topology_key();
    let asked = request.accessible_topology.as_ref().and_then(|at| at.segments.get(&key));
    let here = asked.is_none_or(|node| *node == call.driver.node);
    let free = if here { space.f_bavail.saturating_mul(space.f_frsize) } else { 0 };
    Ok(GetCapacityResponse {
        available_capacity: signed(free),
        maximum_volume_size: None,
        minimum_volume_size: Some(signed(GRAIN_BYTES)),
    })
}

pub(super) fn expand(
    call: &mut Call<'_>,
    request: ControllerExpandVolumeRequest,
) -> Result<ControllerExpandVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let missing = || Status::invalid_argument("capacity_range is missing");
    let range: CapacityRange = request.capacity_range.ok_or_else(missing)?;
    let there = call.store.volume(id)?.bytes;
    let bytes = if fits(Some(&range), there)? {
        there
    } else {
        plan_size(Some(&range), there, call.faults.grain(GRAIN_BYTES))?
    };
    if bytes > there {
        call.store.grow_volume(id, bytes)?;
    }
    let capacity_bytes = signed(bytes);
    Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: true })
}
