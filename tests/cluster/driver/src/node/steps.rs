//! What each call on the node does.

use crate::capability;
use crate::driver::{Call, required};
use crate::loops;
use crate::mounts;
use crate::proto::csi::volume_usage::Unit;
use crate::proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, VolumeUsage,
};
use crate::records::remove_if_there;
use crate::sizes::signed;
use crate::store::{Access, Stage, Use};
use crate::system::Context;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use tonic::Status;

pub(super) fn stage(
    call: &mut Call<'_>,
    request: NodeStageVolumeRequest,
) -> Result<NodeStageVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let path = required(&request.staging_target_path, "staging_target_path")?;
    let capability = capability::one(request.volume_capability.as_ref())?;
    let mut volume = call.store.volume(id)?.clone();
    let stage = Stage { path: path.to_owned(), capability };
    if let Some(there) = volume.staged.as_ref().filter(|there| **there != stage) {
        return Err(Status::already_exists(format!(
            "volume {id} is staged as {there:?}, not {stage:?}: unstage it first"
        )));
    }
    let reader = stage.capability.reader;
    let device = loops::attach(&call.store.volumes.data(id), reader)?;
    if let Access::Mount { filesystem, flags } = &stage.capability.access {
        let place = Path::new(path);
        if mounts::at(place)?.is_none() {
            fs::create_dir_all(place).context(|| format!("make {path}"))?;
            mounts::mount(&device, place, filesystem, flags, reader)?;
        }
    }
    if volume.staged.is_none() {
        volume.staged = Some(stage);
        call.store.volumes.put(volume)?;
    }
    Ok(NodeStageVolumeResponse {})
}

pub(super) fn unstage(
    call: &mut Call<'_>,
    request: NodeUnstageVolumeRequest,
) -> Result<NodeUnstageVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let path = required(&request.staging_target_path, "staging_target_path")?;
    let Some(mut volume) = call.store.volumes.get(id).cloned() else {
        mounts::unmount(Path::new(path))?;
        return Ok(NodeUnstageVolumeResponse {});
    };
    if let Some(target) = volume.targets.keys().next() {
        return Err(Status::failed_precondition(format!(
            "volume {id} is published at {target}: unpublish it first"
        )));
    }
    mounts::unmount(Path::new(path))?;
    loops::detach(&call.store.volumes.data(id))?;
    volume.staged = None;
    call.store.volumes.put(volume)?;
    Ok(NodeUnstageVolumeResponse {})
}

pub(super) fn publish(
    call: &mut Call<'_>,
    request: NodePublishVolumeRequest,
) -> Result<NodePublishVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let path = required(&request.target_path, "target_path")?;
    let capability = capability::one(request.volume_capability.as_ref())?;
    let mut volume = call.store.volume(id)?.clone();
    let Some(staged) = volume.staged.clone() else {
        return Err(Status::failed_precondition(format!(
            "volume {id} is not staged: stage it first"
        )));
    };
    let wanted = Use { read_only: request.readonly, capability };
    if let Some(there) = volume.targets.get(path).filter(|there| **there != wanted) {
        return Err(Status::already_exists(format!(
            "volume {id} is published at {path} as {there:?}, not {wanted:?}: unpublish it first"
        )));
    }
    let other = volume.targets.iter().find(|(other, _)| other.as_str() != path);
    if let Some((other, there)) = other
        && (wanted.capability.single || there.capability.single)
    {
        return Err(Status::failed_precondition(format!(
            "volume {id} is for one pod and published at {other}: unpublish it there first"
        )));
    }
    let target = Path::new(path);
    if mounts::at(target)?.is_none() {
        let read_only = wanted.read_only || wanted.capability.reader;
        match wanted.capability.access {
            Access::Mount { .. } => {
                fs::create_dir_all(target).context(|| format!("make {path}"))?;
                mounts::bind(Path::new(&staged.path), target, read_only)?;
            }
            Access::Block => {
                let device = loops::attach(&call.store.volumes.data(id), wanted.capability.reader)?;
                make_file(target).context(|| format!("make {path}"))?;
                mounts::bind(&device, target, read_only)?;
            }
        }
    }
    volume.targets.insert(path.to_owned(), wanted);
    call.store.volumes.put(volume)?;
    Ok(NodePublishVolumeResponse {})
}

/// A file to bind a device to, and the folder that it is in.
fn make_file(target: &Path) -> io::Result<()> {
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    File::options().create(true).truncate(false).write(true).open(target).map(drop)
}

pub(super) fn unpublish(
    call: &mut Call<'_>,
    request: NodeUnpublishVolumeRequest,
) -> Result<NodeUnpublishVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let path = required(&request.target_path, "target_path")?;
    let target = Path::new(path);
    mounts::unmount(target)?;
    let removed = if target.is_dir() { fs::remove_dir(target) } else { remove_if_there(target) };
    removed.context(|| format!("remove {path}"))?;
    if let Some(mut volume) = call.store.volumes.get(id).cloned()
        && volume.targets.remove(path).is_some()
    {
        call.store.volumes.put(volume)?;
    }
    Ok(NodeUnpublishVolumeResponse {})
}

pub(super) fn stats(
    call: &mut Call<'_>,
    request: NodeGetVolumeStatsRequest,
) -> Result<NodeGetVolumeStatsResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let path = required(&request.volume_path, "volume_path")?;
    let volume = call.store.volume(id)?;
    let mount = mounts::at(Path::new(path))?
        .ok_or_else(|| Status::not_found(format!("volume {id} is not at {path}")))?;
    if !Path::new(path).is_dir() {
        let total = signed(volume.bytes);
        let bytes = VolumeUsage { total, unit: Unit::Bytes.into(), ..VolumeUsage::default() };
        return Ok(NodeGetVolumeStatsResponse { usage: vec![bytes], volume_condition: None });
    }
    let space =
        rustix::fs::statvfs(&mount.path).context(|| format!("ask for the free space of {path}"))?;
    let bytes = |blocks: u64| signed(blocks.saturating_mul(space.f_frsize));
    let usage = vec![
        VolumeUsage {
            available: bytes(space.f_bavail),
            total: bytes(space.f_blocks),
            used: bytes(space.f_blocks.saturating_sub(space.f_bfree)),
            unit: Unit::Bytes.into(),
        },
        VolumeUsage {
            available: signed(space.f_favail),
            total: signed(space.f_files),
            used: signed(space.f_files.saturating_sub(space.f_ffree)),
            unit: Unit::Inodes.into(),
        },
    ];
    Ok(NodeGetVolumeStatsResponse { usage, volume_condition: None })
}

pub(super) fn expand(
    call: &mut Call<'_>,
    request: NodeExpandVolumeRequest,
) -> Result<NodeExpandVolumeResponse, Status> {
    let id = required(&request.volume_id, "volume_id")?;
    let path = required(&request.volume_path, "volume_path")?;
    let volume = call.store.volume(id)?;
    let mount = mounts::at(Path::new(path))?;
    let mount = mount.or(match volume.staged.as_ref() {
        Some(staged) => mounts::at(Path::new(&staged.path))?,
        None => None,
    });
    loops::grow(&call.store.volumes.data(id))?;
    if let Some(mount) = mount.filter(|mount| mount.path.is_dir()) {
        mounts::grow(&mount)?;
    }
    Ok(NodeExpandVolumeResponse { capacity_bytes: signed(volume.bytes) })
}
