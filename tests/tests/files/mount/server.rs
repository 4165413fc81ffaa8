//! `mover mount`, ended when dropped, and never left mounted.

use super::Stage;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tests::Mover;

pub(crate) struct Mounted {
    child: Child,
    room: PathBuf,
    pid_file: PathBuf,
}

/// Until something is so.
pub(super) fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}: never");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Whether something is mounted there.
pub(super) fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

impl Mounted {
    pub(crate) fn new(stage: &Stage, arguments: &[&str]) -> Self {
        Self::by(&stage.mover, &stage.path("mounted"), arguments)
    }

    pub(crate) fn by(mover: &Mover, room: &Path, arguments: &[&str]) -> Self {
        // a dead mount is one that cannot be looked at
        if fs::metadata(room).is_ok_and(|room| room.is_dir()) || is_mounted(room) {
        } else {
            fs::create_dir(room).unwrap();
        }
        let pid_file = room.with_extension("pid");
        let _ = fs::remove_file(&pid_file);
        let mut command = mover.command(["mount"]);
        command.args(arguments).arg(room).arg("--pid-file").arg(&pid_file);
        command.stdout(Stdio::null()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let child_ended = |child: &mut Child| child.try_wait().unwrap();
        until("mounted", || {
            let ended = child_ended(&mut child);
            assert!(ended.is_none(), "{command:?}: {ended:?}");
            pid_file.exists()
        });
        Self { child, room: room.to_owned(), pid_file }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.room.join(name)
    }

    pub(super) fn room(&self) -> &Path {
        &self.room
    }

    pub(super) fn signal(&self, signal: &str) {
        tests::run_ok("kill", [signal, &self.child.id().to_string()]);
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        until("ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal("-TERM");
        }
        let status = self.child.wait().unwrap();
        if is_mounted(&self.room) {
            tests::run("umount", ["-l", self.room.to_str().unwrap()]);
            assert!(std::thread::panicking() || !status.success(), "it was left mounted");
        }
        if !std::thread::panicking() && status.success() {
            assert!(!self.pid_file.exists(), "left behind");
        }
    }
}
