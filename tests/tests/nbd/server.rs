//! A server of others, ended when dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Exports an image of QEMU's own format.
    pub(crate) fn qemu(socket: PathBuf, image: &Path, arguments: &[&str]) -> Self {
        let pid_file = socket.with_extension("pid");
        let mut command = Command::new("qemu-nbd");
        command.args(["--persistent", "--format=qcow2"]).args(arguments);
        command.arg("--pid-file").arg(&pid_file).arg("--socket").arg(&socket).arg(image);
        Self::start(command, socket, &pid_file)
    }

    pub(crate) fn nbdkit(socket: PathBuf, arguments: &[&str]) -> Self {
        let pid_file = socket.with_extension("pid");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent"]);
        command.arg("--pidfile").arg(&pid_file).arg("--unix").arg(&socket).args(arguments);
        Self::start(command, socket, &pid_file)
    }

    pub(crate) fn start(mut command: Command, socket: PathBuf, pid_file: &Path) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("start {command:?}: {e}"));
        let end = Instant::now() + Duration::from_secs(60);
        // both write it once they listen
        while !std::fs::read(pid_file).is_ok_and(|pid| pid.ends_with(b"\n")) {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "{command:?}: {ended:?}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Self { child, socket }
    }

    /// `STOP` makes it hang, `CONT` go on.
    pub(crate) fn signal(&self, name: &str) {
        tests::run_ok("kill", ["-s", name, &self.child.id().to_string()]);
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // by TERM, so that QEMU writes down what its image holds
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").arg(&pid).status();
        // one that was made to hang hears of it only then
        let _ = Command::new("kill").args(["-s", "CONT", &pid]).status();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(self.socket.with_extension("pid"));
    }
}
