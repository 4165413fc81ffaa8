//! `mover serve`, or a live restore, ended when dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tests::Mover;

pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
    pid_file: PathBuf,
    is_dead: bool,
}

impl Server {
    pub(crate) fn start(mover: &Mover, socket: &Path, arguments: &[&str]) -> Self {
        Self::start_as("serve", mover, socket, arguments)
    }

    pub(crate) fn start_as(verb: &str, mover: &Mover, socket: &Path, arguments: &[&str]) -> Self {
        let pid_file = socket.with_extension("pid");
        let mut command = mover.command([verb, "--socket", socket.to_str().unwrap()]);
        command.arg("--pid-file").arg(&pid_file).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        // it is there once clients are answered
        while !pid_file.exists() {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{command:?}: {ended:?}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Self { child, socket: socket.to_owned(), pid_file, is_dead: false }
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn pid_file(&self) -> &Path {
        &self.pid_file
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Server {
    /// At once, as a crash would; what it leaves behind is removed by the next one.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::fs::remove_file(&self.pid_file).unwrap();
        self.is_dead = true;
    }

    /// By a signal; gives the exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        tests::run("kill", [self.child.id().to_string()]);
        self.is_dead = true;
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_dead {
            return;
        }
        tests::run("kill", [self.child.id().to_string()]);
        let status = self.child.wait().unwrap();
        if !std::thread::panicking() {
            assert!(status.success(), "a signal is how a server ends: {status}");
            assert!(!self.socket.exists() && !self.pid_file.exists(), "left behind");
        }
    }
}
