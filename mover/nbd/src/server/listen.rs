//! The sockets that clients come to.

use rustix::net::sockopt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A client that says nothing for so long is asked whether it is there.
const ASKED_AFTER: Duration = Duration::from_secs(60);
/// Between two such questions.
const ASKED_EVERY: Duration = Duration::from_secs(15);
/// A client that answers none of so many is gone.
const ASKED_TIMES: u32 = 4;

/// Where clients come in. A socket in the file system goes when it is dropped.
#[derive(Debug)]
pub enum Door {
    /// A UNIX socket; with its place, if it was made here.
    Unix(UnixListener, Option<SocketFile>),
    /// TCP.
    Tcp(TcpListener),
}

/// A socket's place in the file system, removed when dropped.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // somebody may have done so already
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A client that has come in, with what to call it.
#[derive(Debug)]
pub enum ClientSocket {
    /// By a UNIX socket.
    Unix(UnixStream, String),
    /// By TCP.
    Tcp(TcpStream, String),
}

impl ClientSocket {
    /// For messages.
    pub fn who(&self) -> &str {
        match self {
            Self::Unix(_, who) | Self::Tcp(_, who) => who,
        }
    }
}

impl Door {
    /// A UNIX socket that only this user may connect to. It is made in a directory of its own, and
    /// gets its place once it has its mode, so nobody meets it before. A socket that nobody listens on any
    /// more is replaced, anything else is not.
    ///
    /// Must be called within a runtime.
    pub fn at_path(path: &Path) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(there) => {
                if !there.file_type().is_socket() {
                    let what = "it exists, and is no socket";
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
                }
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    let what = "another process serves there";
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
                }
                std::fs::remove_file(path)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let room = PathBuf::from(name);
        let made = room.join("s");
        let clear = || {
            let _ = std::fs::remove_file(&made);
            let _ = std::fs::remove_dir(&room);
        };
        // of a process that was killed
        clear();
        std::fs::DirBuilder::new().mode(0o700).create(&room)?;
        let placed = std::os::unix::net::UnixListener::bind(&made).and_then(|listener| {
            std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600))?;
            std::fs::hard_link(&made, path)?;
            Ok(listener)
        });
        clear();
        let listener = placed?;
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(UnixListener::from_std(listener)?, Some(SocketFile(path.to_owned()))))
    }

    /// TCP at these addresses' first that can be had. Must be called within a runtime.
    pub fn at_addresses(addresses: &[SocketAddr]) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(addresses)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(TcpListener::from_std(listener)?))
    }

    /// A listening socket that somebody else has made: a UNIX socket, or TCP.
    ///
    /// Must be called within a runtime.
    pub fn given(socket: OwnedFd) -> io::Result<Self> {
        let unix = std::os::unix::net::UnixListener::from(socket.try_clone()?);
        let is_unix = unix.local_addr().is_ok();
        if is_unix {
            unix.set_nonblocking(true)?;
            return Ok(Self::Unix(UnixListener::from_std(unix)?, None));
        }
        let tcp = std::net::TcpListener::from(socket);
        tcp.local_addr()?;
        tcp.set_nonblocking(true)?;
        Ok(Self::Tcp(TcpListener::from_std(tcp)?))
    }

    /// The address, of TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix(..) => None,
            Self::Tcp(listener) => listener.local_addr().ok(),
        }
    }

    /// The path, of a UNIX socket that has one.
    pub fn unix_path(&self) -> Option<PathBuf> {
        match self {
            Self::Unix(_, Some(SocketFile(path))) => Some(path.clone()),
            Self::Unix(listener, None) => {
                listener.local_addr().ok()?.as_pathname().map(Path::to_owned)
            }
            Self::Tcp(_) => None,
        }
    }

    /// The next client. May be dropped and called again.
    pub(super) async fn accept(&self) -> io::Result<ClientSocket> {
        match self {
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
                let who = process.map_or("a client".to_owned(), |pid| format!("process {pid}"));
                Ok(ClientSocket::Unix(stream, who))
            }
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                Ok(ClientSocket::Tcp(stream, format!("client {address}")))
            }
        }
    }
}

/// Of a machine that vanishes no word comes. It is noticed within two minutes, and what it had
/// under way is dropped.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, ASKED_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, ASKED_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ASKED_TIMES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_vanishes_is_noticed() {
        let door = Door::at_addresses(&[SocketAddr::from(([127, 0, 0, 1], 0))]).unwrap();
        let _client = TcpStream::connect(door.tcp_address().unwrap()).await.unwrap();
        let ClientSocket::Tcp(stream, _) = door.accept().await.unwrap() else { panic!() };
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let unanswered = sockopt::tcp_keepintvl(&stream).unwrap() * ASKED_TIMES;
        let noticed = sockopt::tcp_keepidle(&stream).unwrap() + unanswered;
        assert_eq!((sockopt::tcp_keepcnt(&stream).unwrap(), noticed.as_secs()), (4, 120));
    }
}
