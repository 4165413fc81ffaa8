//! What each call on the node does.

use crate::capability;
use crate::driver::{Call, required};
use crate::loops;
use crate::mounts::{self, Plan};
use crate::proto::csi::volume_usage::Unit;
use crate::proto::csi::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, VolumeUsage,
};
use crate::records::remove_if_there;
use crate::sizes::signed;
use crate::store::{Access, Capability, Stage, Use, Volume};
use crate::system::Context;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
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
    let data = call.store.volumes.data(id);
    let fresh = volume.staged.is_none() && loops::attached(&data)?.is_none();
    if let Err(error) = put_on_stage(call, &mut volume, &stage) {
        // A device that nobody asked for any more would keep its volume from being removed.
        if fresh && let Err(after) = clear_stage(Path::new(path), &data) {
            tracing::error!("a stage that failed is left: {}", after.message());
        }
        return Err(error);
    }
    if volume.staged.is_none() {
        volume.staged = Some(stage);
        call.store.volumes.put(volume)?;
    }
    Ok(NodeStageVolumeResponse {})
}

/// Takes a volume away again, and nothing else that may be at the place.
fn clear_stage(place: &Path, data: &Path) -> Result<(), Status> {
    let Some(device) = loops::attached(data)? else { return Ok(()) };
    if mounts::at(place)?.is_some() && mounts::shows(place, loops::number(&device)?)? {
        mounts::unmount(place)?;
    }
    loops::detach(data)
}

/// Attaches a volume, and mounts it if that is asked for.
fn put_on_stage(call: &mut Call<'_>, volume: &mut Volume, stage: &Stage) -> Result<(), Status> {
    let reader = stage.capability.reader;
    let data = call.store.volumes.data(&volume.id);
    let Access::Mount { filesystem, flags } = &stage.capability.access else {
        // Whatever a killed driver left on it, it is data from now on.
        if volume.unfinished {
            volume.unfinished = false;
            call.store.volumes.put(volume.clone())?;
        }
        let in_use = !volume.targets.is_empty();
        return if in_use { Ok(()) } else { loops::attach(&data, reader).map(drop) };
    };
    let device = loops::attach(&data, false)?;
    let place = Path::new(&stage.path);
    let plan = Plan { filesystem, flags, read_only: reader };
    if mounts::at(place)?.is_none() {
        fs::create_dir_all(place).context(|| format!("make {}", stage.path))?;
        if volume.unfinished || call.store.is_blank(volume)? {
            if reader {
                return Err(Status::failed_precondition(format!(
                    "volume {} is blank and for reading: write a filesystem to it first",
                    volume.id
                )));
            }
            volume.unfinished = true;
            call.store.volumes.put(volume.clone())?;
            mounts::make(&device, filesystem)?;
            volume.unfinished = false;
            call.store.volumes.put(volume.clone())?;
        }
        mounts::check(&device, filesystem)?;
        mounts::mount(&device, place, &plan)?;
    } else if !mounts::shows(place, loops::number(&device)?)? {
        return Err(Status::failed_precondition(format!(
            "{} shows something else than volume {}: unstage it first",
            stage.path, volume.id
        )));
    }
    mounts::fill(place, &plan)
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
    check_stage(id, &staged, &wanted.capability)?;
    let read_only = wanted.read_only || wanted.capability.reader;
    let data = call.store.volumes.data(id);
    let (source, device) = match wanted.capability.access {
        Access::Mount { .. } => {
            let device = loops::attached(&data)?;
            (staged.path.clone().into(), device.ok_or_else(|| not_on_stage(id, &staged))?)
        }
        Access::Block => {
            let device = block_device(&volume, path, &data, read_only)?;
            (device.clone(), device)
        }
    };
    publish_at(id, &staged, (&source, &device), Path::new(path), read_only)?;
    volume.targets.insert(path.to_owned(), wanted);
    call.store.volumes.put(volume)?;
    Ok(NodePublishVolumeResponse {})
}

fn not_on_stage(id: &str, staged: &Stage) -> Status {
    Status::failed_precondition(format!(
        "volume {id} is not at {} any more: stage it again",
        staged.path
    ))
}

/// Refuses what is asked for otherwise than the volume was staged.
fn check_stage(id: &str, staged: &Stage, wanted: &Capability) -> Result<(), Status> {
    let same = match (&staged.capability.access, &wanted.access) {
        (Access::Block, Access::Block) => true,
        (Access::Mount { filesystem: a, .. }, Access::Mount { filesystem: b, .. }) => a == b,
        _ => false,
    };
    if same && (wanted.reader || !staged.capability.reader) {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "volume {id} is staged as {:?}, not {wanted:?}: unstage it first",
        staged.capability
    )))
}

/// The device of a block volume. It is read-only for all who have it, or for none: a path that is
/// mounted read-only keeps nobody from writing to the device behind it.
fn block_device(
    volume: &Volume,
    path: &str,
    data: &Path,
    read_only: bool,
) -> Result<PathBuf, Status> {
    let mut others = volume.targets.iter().filter(|(other, _)| other.as_str() != path);
    let other = others.find(|(_, there)| (there.read_only || there.capability.reader) != read_only);
    if let Some((other, there)) = other {
        return Err(Status::failed_precondition(format!(
            "volume {} is published at {other} as {there:?}, and a device is read-only for all or \
             for none: unpublish it there first",
            volume.id
        )));
    }
    loops::attach(data, read_only)
}

/// Shows the volume at the target; whatever a killed driver did of it is done again.
fn publish_at(
    id: &str,
    staged: &Stage,
    (source, device): (&Path, &Path),
    target: &Path,
    read_only: bool,
) -> Result<(), Status> {
    let make = || format!("make {}", target.display());
    let number = loops::number(device)?;
    if source == device {
        make_file(target).context(make)?;
    } else {
        if mounts::at(source)?.is_none() || !mounts::shows(source, number)? {
            return Err(not_on_stage(id, staged));
        }
        fs::create_dir_all(target).context(make)?;
    }
    mounts::bind(source, target, read_only)?;
    if !mounts::shows(target, number)? {
        return Err(Status::failed_precondition(format!(
            "{} shows something else than volume {id}: unpublish it first",
            target.display()
        )));
    }
    Ok(())
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
