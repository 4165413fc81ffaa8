//! `fusermount3`, which mounts for users who may not: it hands the device over through a socket.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::ffi::OsStr;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = "fusermount3";
/// Names the descriptor of the socket.
const SOCKET: &str = "_FUSE_COMMFD";

/// Mounts, and gives the device.
pub(crate) fn mount(path: &Path, options: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let mut command = Command::new(PROGRAM);
    command.args(["-o", options, "--"]).arg(path);
    // nobody else inherits its input
    command.env(SOCKET, "0").stdin(Stdio::from(theirs));
    let output = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    // our copy of its end goes with this, so that its death ends the wait
    drop(command);
    let child = output?;
    let device = receive(&ours);
    let output = child.wait_with_output()?;
    match device? {
        Some(device) => Ok(device),
        None => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(said.trim().trim_start_matches("fusermount3: ").to_owned()))
        }
    }
}

/// The one descriptor that comes, unless the other end is closed before.
fn receive(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut ancillary, flags))?;
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(rights)
}

/// Unmounts.
pub(crate) fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").args(lazily.then_some("-z")).args([OsStr::new("--"), path.as_os_str()]);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let busy = said.contains("busy");
    let kind = if busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, said.trim().trim_start_matches("fusermount3: ").to_owned()))
}
