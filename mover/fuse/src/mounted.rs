//! A tree that is mounted, until somebody unmounts it: we, or anybody else.

use crate::session::{Counts, Requests};
use crate::table::{self, MountLine};
use crate::tree::Tree;
use crate::{helper, users};
use fuser::Session;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Handle as Runtime;
use tokio::sync::watch;

/// As `mount -t` has it, and how we know our own.
pub(crate) const KIND: &str = "fuse.mover";
/// The kernel's last request comes at once after the last user has left.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// How it was unmounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmounted {
    /// By us, and nobody had it in use.
    Now,
    /// Somebody else did before.
    Before,
    /// By us, and these had it in use: what they have open is an error to them now.
    InUse(Vec<String>),
}

/// What is mounted. Dropping it unmounts nothing: see [`Mounted::unmount`].
#[derive(Debug)]
pub struct Mounted {
    line: MountLine,
    counts: Arc<Counts>,
    ended: watch::Receiver<bool>,
    thread: JoinHandle<()>,
}

impl Mounted {
    pub(crate) fn start<T: Tree>(
        line: MountLine,
        counts: Arc<Counts>,
        session: Session<Requests<T>>,
    ) -> io::Result<Self> {
        let (tell, ended) = watch::channel(false);
        let thread = std::thread::Builder::new().name("fuse".into()).spawn(move || {
            if let Err(e) = session.run() {
                tracing::warn!("the kernel's requests cannot be read any more: {e}");
            }
            // nobody may be left to hear it
            let _ = tell.send(true);
        })?;
        Ok(Self { line, counts, ended, thread })
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Where it was mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.line.path
    }

    /// Ready once it is unmounted, and nobody has anything of it open.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // an end without a word is one too
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Unmounts it, also where somebody has it in use.
    ///
    /// # Errors
    ///
    /// It stays mounted.
    pub fn unmount(self, rt: &Runtime) -> io::Result<Unmounted> {
        let Some(path) = self.place()? else {
            return Ok(Unmounted::Before);
        };
        let how = match unmount(&path, UnmountFlags::NOFOLLOW) {
            Ok(()) => Unmounted::Now,
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                let users = users::of(&path);
                // first all that is under way fails, so that nobody waits for us
                let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                unmount(&path, flags)?;
                Unmounted::InUse(users)
            }
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Unmounted::Before,
            Err(e) => return Err(e),
        };
        let ended = rt.block_on(async { tokio::time::timeout(LAST_REQUEST, self.ended()).await });
        if ended.is_ok() {
            // a panic has ended the process
            let _ = self.thread.join();
        }
        Ok(how)
    }

    /// Where it is mounted now: a directory above it may have another name.
    fn place(&self) -> io::Result<Option<PathBuf>> {
        let ours = |line: &MountLine| line.id == self.line.id && line.device == self.line.device;
        Ok(table::mounts()?.into_iter().find(ours).map(|line| line.path))
    }
}

fn unmount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(path, flags) {
        Err(Errno::PERM) => helper::unmount(path, flags.contains(UnmountFlags::DETACH)),
        unmounted => unmounted.map_err(Into::into),
    }
}
