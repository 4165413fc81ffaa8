//! The store: an XFS with reflinks in a file of its own, and the volumes, snapshots and groups in
//! it.
//!
//! A volume is a sparse file. A snapshot or a clone is a copy by reference, made by the filesystem
//! in one step: it excludes every write to the source while it copies, so the copy is the source at
//! one moment, as a disk is after a power cut. This holds for a mounted volume, too: its filesystem
//! replays its journal on the copy. Before the copy the cache of the loop device itself is written,
//! so that plain writes to a raw block volume that have ended are part of the snapshot. Data that a
//! mounted filesystem still holds in memory is not: whoever needs it syncs or freezes first.

use crate::extents;
use crate::loops;
use crate::records::{Record, Table, remove_if_there};
use crate::system::{Context, run, text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tonic::Status;

/// Where the store is mounted, in its folder.
pub(crate) const PLACE: &str = "store";

/// A volume, and what is done with it on the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) origin: Option<Origin>,
    /// Set while the controller has published it to the node.
    pub(crate) published: Option<Use>,
    /// Set while it is staged.
    pub(crate) staged: Option<Stage>,
    /// Paths of pods that have it.
    pub(crate) targets: BTreeMap<String, Use>,
    /// Its filesystem is being made: nobody has used it yet.
    #[serde(default)]
    pub(crate) unfinished: bool,
}

/// What a volume is a copy of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Origin {
    Snapshot(String),
    Volume(String),
}

/// How somebody has a volume; a second request must be alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Use {
    pub(crate) read_only: bool,
    pub(crate) capability: Capability,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stage {
    pub(crate) path: String,
    pub(crate) capability: Capability,
}

/// A capability of the protocol, checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capability {
    pub(crate) access: Access,
    /// Nobody writes.
    pub(crate) reader: bool,
    /// One pod only.
    pub(crate) single: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Access {
    Block,
    Mount { filesystem: String, flags: Vec<String> },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) volume: String,
    pub(crate) bytes: u64,
    /// A moment right after the copy: whatever was locked until then is in it.
    pub(crate) taken: SystemTime,
    /// The group that it belongs to.
    pub(crate) group: Option<String>,
}

/// Snapshots of one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) snapshots: Vec<String>,
    pub(crate) taken: SystemTime,
}

macro_rules! record {
    ($kind:ty) => {
        impl Record for $kind {
            fn id(&self) -> &str {
                &self.id
            }
            fn name(&self) -> &str {
                &self.name
            }
        }
    };
}
record!(Volume);
record!(Snapshot);
record!(Group);

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) folder: PathBuf,
    pub(crate) volumes: Table<Volume>,
    pub(crate) snapshots: Table<Snapshot>,
    pub(crate) groups: Table<Group>,
}

impl Store {
    /// Opens the store below `folder`; makes its filesystem of `bytes`, and mounts it, if needed.
    pub(crate) fn open(folder: &Path, bytes: u64) -> Result<Self, Status> {
        fs::create_dir_all(folder).context(|| format!("make {}", folder.display()))?;
        let folder = folder.canonicalize().context(|| format!("find {}", folder.display()))?;
        let mounted = folder.join(PLACE);
        if crate::mounts::at(&mounted)?.is_some() {
            return Self::open_mounted(&mounted);
        }
        mount(&folder.join("store.img"), &mounted, bytes)?;
        let mut store = Self::open_mounted(&mounted)?;
        store.release_all()?;
        Ok(store)
    }

    /// Opens what lies in a folder of a filesystem with reflinks.
    pub(crate) fn open_mounted(folder: &Path) -> Result<Self, Status> {
        let mut store = Self {
            folder: folder.to_owned(),
            volumes: Table::open(folder.join("volumes"))?,
            snapshots: Table::open(folder.join("snapshots"))?,
            groups: Table::open(folder.join("groups"))?,
        };
        store.remove_members_of_nothing()?;
        Ok(store)
    }

    pub(crate) fn volume(&self, id: &str) -> Result<&Volume, Status> {
        self.volumes.get(id).ok_or_else(|| Status::not_found(format!("no volume {id}")))
    }

    pub(crate) fn snapshot(&self, id: &str) -> Result<&Snapshot, Status> {
        self.snapshots.get(id).ok_or_else(|| Status::not_found(format!("no snapshot {id}")))
    }

    /// Makes a volume: empty, or a copy of its origin.
    pub(crate) fn make_volume(
        &mut self,
        name: &str,
        bytes: u64,
        origin: Option<Origin>,
    ) -> Result<Volume, Status> {
        let id = new_id("vol")?;
        let data = self.volumes.data(&id);
        match &origin {
            None => drop(File::create_new(&data).context(|| format!("make {}", data.display()))?),
            Some(Origin::Snapshot(snapshot)) => copy(&self.snapshots.data(snapshot), &data)?,
            Some(Origin::Volume(volume)) => {
                let source = self.volumes.data(volume);
                loops::flush(&source)?;
                copy(&source, &data)?;
            }
        }
        set_size(&data, bytes)?;
        let volume = Volume {
            id,
            name: name.to_owned(),
            bytes,
            origin,
            published: None,
            staged: None,
            targets: BTreeMap::new(),
            unfinished: false,
        };
        self.volumes.put(volume.clone())?;
        Ok(volume)
    }

    /// Whether nothing was ever written to a volume, nor to what it is a copy of. A device that
    /// looks blank is not enough: it does so, too, when it cannot be read.
    pub(crate) fn is_blank(&self, volume: &Volume) -> Result<bool, Status> {
        if volume.origin.is_some() {
            return Ok(false);
        }
        let data = self.volumes.data(&volume.id);
        let read = || format!("read the extents of {}", data.display());
        let extents = extents::of_file(&File::open(&data).context(read)?).context(read)?;
        Ok(extents.is_empty())
    }

    /// Makes a volume larger, and the device over it.
    pub(crate) fn grow_volume(&mut self, id: &str, bytes: u64) -> Result<(), Status> {
        let mut volume = self.volume(id)?.clone();
        let data = self.volumes.data(id);
        set_size(&data, bytes)?;
        loops::grow(&data)?;
        volume.bytes = bytes;
        self.volumes.put(volume)
    }

    /// Copies the data of a volume to that of a snapshot which has no record yet.
    pub(crate) fn copy_volume(&self, volume: &str, id: &str) -> Result<(), Status> {
        let (source, data) = (self.volumes.data(volume), self.snapshots.data(id));
        loops::flush(&source)?;
        copy(&source, &data)?;
        let read_only = fs::Permissions::from_mode(0o400);
        fs::set_permissions(&data, read_only).context(|| format!("protect {}", data.display()))
    }

    pub(crate) fn make_snapshot(&mut self, name: &str, volume: &str) -> Result<Snapshot, Status> {
        let bytes = self.volume(volume)?.bytes;
        let id = new_id("snap")?;
        self.copy_volume(volume, &id)?;
        let taken = SystemTime::now();
        let (name, volume) = (name.to_owned(), volume.to_owned());
        let snapshot = Snapshot { id, name, volume, bytes, taken, group: None };
        self.snapshots.put(snapshot.clone())?;
        Ok(snapshot)
    }

    /// Nobody has a volume any more: the machine, or the cluster, has begun anew.
    fn release_all(&mut self) -> Result<(), Status> {
        for mut volume in self.volumes.all().cloned().collect::<Vec<_>>() {
            (volume.published, volume.staged) = (None, None);
            volume.targets.clear();
            self.volumes.put(volume)?;
        }
        Ok(())
    }

    /// A group's record is its commit: members without it are of a driver that was killed.
    fn remove_members_of_nothing(&mut self) -> Result<(), Status> {
        let is_lost = |snapshot: &&Snapshot| {
            snapshot.group.as_ref().is_some_and(|group| self.groups.get(group).is_none())
        };
        let lost: Vec<_> = self.snapshots.all().filter(is_lost).map(|s| s.id.clone()).collect();
        lost.iter().try_for_each(|id| self.snapshots.remove(id))
    }
}

/// A handle that was never given before.
pub(crate) fn new_id(kind: &str) -> Result<String, Status> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes)
        .map_err(|error| Status::internal(format!("get random bytes: {error}")))?;
    Ok(format!("{kind}-{}", hex::encode(bytes)))
}

/// Copies by reference, in one step. A file that a failure left is removed.
fn copy(source: &Path, target: &Path) -> Result<(), Status> {
    let copy = || format!("copy {} to {} by reference", source.display(), target.display());
    let from = File::open(source).context(copy)?;
    let to = File::create_new(target).context(copy)?;
    if let Err(error) = rustix::fs::ioctl_ficlone(&to, &from) {
        remove_if_there(target).context(|| format!("remove {}", target.display()))?;
        return Err(error).context(copy);
    }
    to.sync_all().context(|| format!("write {}", target.display()))
}

fn set_size(data: &Path, bytes: u64) -> Result<(), Status> {
    let set = || format!("set {} to {bytes} bytes", data.display());
    let file = File::options().write(true).open(data).context(set)?;
    file.set_len(bytes).context(set)?;
    file.sync_all().context(set)
}

fn mount(image: &Path, place: &Path, bytes: u64) -> Result<(), Status> {
    if !image.exists() {
        // Its last name is given when it is whole, so that a driver that is killed begins again.
        let unfinished = image.with_extension("unfinished");
        remove_if_there(&unfinished).context(|| format!("remove {}", unfinished.display()))?;
        drop(File::create_new(&unfinished).context(|| format!("make {}", unfinished.display()))?);
        set_size(&unfinished, bytes)?;
        run("mkfs.xfs", &["-q", "-m", "reflink=1", "-s", "size=4096", text(&unfinished)?])?;
        fs::rename(&unfinished, image).context(|| format!("make {}", image.display()))?;
    }
    fs::create_dir_all(place).context(|| format!("make {}", place.display()))?;
    let device = loops::attach(image, false)?;
    run("mount", &["-t", "xfs", "-o", "noatime", text(&device)?, text(place)?]).map(drop)
}

#[cfg(test)]
mod tests;
