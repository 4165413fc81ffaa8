//! What goes on beside a server: a command that runs as long as it serves, or the other way round;
//! the file with the number of this process; the service manager that waits to hear of it.

use chunkstore::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How often it is looked whether the command has ended.
const LOOK_UP: Duration = Duration::from_millis(50);
/// From the request to end to the end by force.
const END_WITHIN: Duration = Duration::from_secs(3);
/// What only we are to know.
const SECRETS: [&str; 2] = ["MOVER_PASSWORD", "MOVER_TO_PASSWORD"];

/// A command that runs. Its thread owns it, and so never signals another process.
#[derive(Debug)]
pub(in super::super) struct Beside {
    command: String,
    thread: JoinHandle<io::Result<ExitStatus>>,
    stop: Sender<()>,
}

impl Beside {
    /// Starts it; its end is notified.
    pub(in super::super) fn start(command: &str, uri: &str, ended: &Arc<Notify>) -> Result<Self> {
        let failed = |e| Error::caused(ErrorKind::Usage, format!("run {command}"), e);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", command]).env("uri", uri);
        for name in SECRETS {
            shell.env_remove(name);
        }
        let child = shell.spawn().map_err(failed)?;
        let (stop, stopped) = bounded(0);
        let ended = Arc::clone(ended);
        let thread = std::thread::Builder::new().name("run".into()).spawn(move || {
            let status = until_it_ends(child, &stopped);
            ended.notify_one();
            status
        });
        Ok(Self { command: command.to_owned(), thread: thread.map_err(failed)?, stop })
    }

    /// Ends it, if it has not ended; an error unless it has ended well.
    pub(in super::super) fn end(self) -> Result<()> {
        let Self { command, thread, stop } = self;
        drop(stop);
        let context = format!("run {command}");
        match thread.join() {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => {
                Err(Error::new(ErrorKind::Unavailable, context, format!("it failed: {status}")))
            }
            Ok(Err(e)) => Err(Error::caused(ErrorKind::Unavailable, context, e)),
            Err(_) => Err(Error::new(ErrorKind::Bug, context, "its thread has panicked")),
        }
    }
}

fn until_it_ends(mut child: Child, stopped: &Receiver<()>) -> io::Result<ExitStatus> {
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match asked {
            Some(at) if at.elapsed() >= END_WITHIN => child.kill()?,
            Some(_) => drop(crossbeam_channel::after(LOOK_UP).recv()),
            None => {
                if stopped.recv_timeout(LOOK_UP) == Err(RecvTimeoutError::Disconnected) {
                    asked = Some(Instant::now());
                    // it has not been waited for, so the number is still its own
                    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                    pid.map(|pid| kill_process(pid, Signal::TERM));
                }
            }
        }
    }
}

/// A file with the number of this process, removed when dropped.
#[derive(Debug)]
pub(in super::super) struct PidFile(PathBuf);

impl PidFile {
    /// Whoever sees the file sees all of it. What a link leads to is not touched.
    pub(in super::super) fn make(path: &Path) -> Result<Self> {
        let failed =
            |e| Error::caused(ErrorKind::Device, format!("write --pid-file {}", path.display()), e);
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        // of a process that was killed, or a link that somebody has put there
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        let mut file =
            OpenOptions::new().write(true).create_new(true).open(&new).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        std::fs::rename(&new, path).map_err(failed)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // somebody may have done so already
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Tells a service manager how it is, `sd_notify(3)`, if there is one.
pub(in super::super) fn tell_manager(socket: Option<&OsStr>, state: &str) {
    let Some(socket) = socket else { return };
    let told = || -> io::Result<usize> {
        let address = match socket.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(socket)?,
        };
        UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)
    };
    if let Err(e) = told() {
        tracing::warn!("the service manager could not be told {state}: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_file_with_our_number_is_written_through_no_link() {
        let directory = tempfile::tempdir().unwrap();
        let [path, new, precious] =
            ["pid", "pid.new", "precious"].map(|name| directory.path().join(name));
        std::fs::write(&precious, b"precious").unwrap();
        symlink(&precious, &new).unwrap();
        symlink(&precious, &path).unwrap();
        let made = PidFile::make(&path).unwrap();
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
        assert!(path.symlink_metadata().unwrap().is_file());
        let number = std::fs::read_to_string(&path).unwrap();
        assert_eq!(number, format!("{}\n", std::process::id()));
        drop(made);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
