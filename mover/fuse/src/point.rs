//! The directory that a tree is mounted on: looked at before, and mounted on.
//!
//! It is held open from the look to the mount, so a link that somebody puts in its place meanwhile
//! leads nowhere else.

use crate::mounted::{KIND, Mounted};
use crate::session::{Counts, Requests, SessionLimits};
use crate::tree::Tree;
use crate::{helper, table};
use fuser::{Config, Session, SessionACL};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle as Runtime;

const DEVICE: &str = "/dev/fuse";
/// As it stands in the table of mounts.
const SOURCE: &str = "mover";
/// Dead mounts above each other that are cleared away.
const DEAD_MAX: usize = 8;

/// Why a directory cannot be mounted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointFailure {
    /// It is not there, or no directory.
    NoDirectory,
    /// Something is in it, which would be hidden.
    NotEmpty,
    /// A tree of ours is mounted there.
    Mounted,
    /// What is mounted there has lost its server, and is not ours.
    Dead,
    /// This machine, or this pod, has no FUSE for this process.
    NoFuse,
    /// Others may be let in only where the administrator allows it.
    OthersNotAllowed,
    /// Anything else.
    Other,
}

/// A directory that cannot be mounted on.
#[derive(Debug)]
pub struct MountError {
    /// Why.
    pub failure: PointFailure,
    /// The same in words.
    pub detail: String,
}

impl MountError {
    fn new(failure: PointFailure, detail: impl fmt::Display) -> Self {
        Self { failure, detail: detail.to_string() }
    }
}

/// How to mount.
#[derive(Debug, Clone, Copy)]
pub struct MountOptions {
    /// Other users may read it too, as far as permissions let them.
    pub allow_other: bool,
    /// How much is under way at a time.
    pub limits: SessionLimits,
}

/// An empty directory, held open.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    directory: OwnedFd,
    /// What was left of an earlier mount was cleared away.
    pub cleared: bool,
}

impl MountPoint {
    /// Looks at a directory. A mount of ours whose server is gone is cleared away.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn look(path: &Path) -> Result<Self, MountError> {
        let no_directory = |e: io::Error| MountError::new(PointFailure::NoDirectory, e);
        let mut cleared = false;
        let mut left = DEAD_MAX;
        while let Err(e) = std::fs::metadata(path) {
            if e.raw_os_error() != Some(Errno::NOTCONN.raw_os_error()) || left == 0 {
                return Err(no_directory(e));
            }
            left -= 1;
            clear_dead(path)?;
            cleared = true;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty()).map_err(|e| no_directory(e.into()))?;
        let held = held(&directory);
        let path = std::fs::read_link(&held).map_err(no_directory)?;
        let on = table::on(&path).map_err(|e| MountError::new(PointFailure::Other, e))?;
        if on.is_some_and(|line| line.kind == KIND) {
            return Err(MountError::new(
                PointFailure::Mounted,
                "backups are mounted there already",
            ));
        }
        let mut names = std::fs::read_dir(&held).map_err(no_directory)?;
        if names.next().is_some() {
            let what = "there are files in it, and they would be hidden";
            return Err(MountError::new(PointFailure::NotEmpty, what));
        }
        Ok(Self { path, directory, cleared })
    }

    /// Its path, without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts a tree on it, and answers requests from now on.
    ///
    /// # Errors
    ///
    /// There is no FUSE, or it is not for us.
    pub fn mount<T: Tree>(
        self,
        rt: &Runtime,
        tree: &Arc<T>,
        options: MountOptions,
    ) -> Result<Mounted, MountError> {
        let device = match geteuid().is_root() {
            true => self.directly(options.allow_other)?,
            false => self.by_helper(options.allow_other, None)?,
        };
        let other = |e: io::Error| MountError::new(PointFailure::Other, e);
        let line = table::on(&self.path).ok().flatten().filter(|line| line.kind == KIND);
        let Some(line) = line else {
            return Err(other(io::Error::other("it was unmounted at once")));
        };
        let counts = Arc::<Counts>::default();
        let requests = Requests::new(rt, Arc::clone(tree), options.limits, Arc::clone(&counts));
        // the kernel has looked already at who may come in
        let session = Session::from_fd(requests, device, SessionACL::All, Config::default());
        let mounted = session.and_then(|session| Mounted::start(line.clone(), counts, session));
        mounted.map_err(|e| {
            let _ = rustix::mount::unmount(&line.path, UnmountFlags::DETACH);
            other(e)
        })
    }

    fn directly(&self, allow_other: bool) -> Result<OwnedFd, MountError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = open(DEVICE, flags, Mode::empty()).map_err(|e| {
            MountError::new(PointFailure::NoFuse, format!("open {DEVICE}: {}", io::Error::from(e)))
        })?;
        let mut data = format!(
            "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
            device.as_raw_fd(),
            geteuid().as_raw(),
            getegid().as_raw()
        );
        if allow_other {
            data.push_str(",allow_other");
        }
        let data = CString::new(data).unwrap_or_default();
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        match rustix::mount::mount(SOURCE, held(&self.directory), KIND, flags, data.as_c_str()) {
            Ok(()) => Ok(device),
            Err(Errno::PERM) => self.by_helper(allow_other, Some(Errno::PERM)),
            Err(Errno::NODEV) => Err(MountError::new(PointFailure::NoFuse, "the kernel has none")),
            Err(e) => Err(MountError::new(PointFailure::Other, io::Error::from(e))),
        }
    }

    fn by_helper(&self, allow_other: bool, before: Option<Errno>) -> Result<OwnedFd, MountError> {
        let mut options = "ro,nosuid,nodev,default_permissions".to_owned();
        options.push_str(&format!(",fsname={SOURCE},subtype={SOURCE}"));
        if allow_other {
            options.push_str(",allow_other");
        }
        helper::mount(&self.path, &options).map_err(|e| {
            if let Some(before) = before {
                let detail = format!("mount: {}", io::Error::from(before));
                return MountError::new(PointFailure::NoFuse, detail);
            }
            let said = e.to_string();
            let failure = match e.kind() {
                io::ErrorKind::NotFound => PointFailure::NoFuse,
                _ if said.contains("user_allow_other") => PointFailure::OthersNotAllowed,
                _ if said.contains("device not found") || said.contains(DEVICE) => {
                    PointFailure::NoFuse
                }
                _ => PointFailure::Other,
            };
            MountError::new(failure, format!("fusermount3: {said}"))
        })
    }
}

/// A way to an open directory that nobody can bend.
fn held(directory: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// A mount whose server is gone, if it was one of ours.
fn clear_dead(path: &Path) -> Result<(), MountError> {
    let dead = |detail: String| MountError::new(PointFailure::Dead, detail);
    let failed = |e: io::Error| dead(e.to_string());
    // it cannot be looked at itself
    let absolute = std::path::absolute(path).map_err(failed)?;
    let path = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().map_err(failed)?.join(name),
        _ => absolute,
    };
    let line = table::on(&path).map_err(failed)?;
    match line {
        Some(line) if line.kind == KIND => {}
        Some(line) => {
            let kind = line.kind.to_string_lossy();
            return Err(dead(format!("its server is gone, and it is of kind {kind}, not ours")));
        }
        None => return Err(dead("a mount above it has lost its server".to_owned())),
    }
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(&path, flags) {
        Err(Errno::PERM) => helper::unmount(&path, true),
        unmounted => unmounted.map_err(Into::into),
    }
    .map_err(|e| dead(format!("its server is gone, and it cannot be unmounted: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_directory_will_do() {
        let room = tempfile::tempdir().unwrap();
        let failure = |path: &Path| MountPoint::look(path).unwrap_err().failure;
        assert_eq!(failure(&room.path().join("none")), PointFailure::NoDirectory);
        let file = room.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(failure(&file), PointFailure::NoDirectory);
        assert_eq!(failure(room.path()), PointFailure::NotEmpty);
        let empty = room.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let link = room.path().join("link");
        std::os::unix::fs::symlink(&empty, &link).unwrap();
        let point = MountPoint::look(&link).unwrap();
        assert_eq!(point.path(), empty.canonicalize().unwrap());
        assert!(!point.cleared);
    }
}
