//! The sockets that clients come to: made here, or given by a service manager.
//!
//! TCP without TLS is taken on loopback only, and only by who says so. With TLS it is taken
//! anywhere: the server asks each client who it is.

use super::super::super::args::ServeArgs;
use super::super::super::context::Context;
use chunkstore::{Error, ErrorKind, Result, random_bytes};
use mover_nbd::server::Door;
use rustix::net::sockopt::socket_acceptconn;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::fmt::Write;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The first socket that a service manager gives, `sd_listen_fds(3)`.
const FIRST_GIVEN: i32 = 3;

/// All sockets; those that were made here go when it is dropped.
#[derive(Debug)]
pub(in super::super) struct Doors {
    doors: Vec<Door>,
    tls: bool,
    /// Last, as a socket is in it.
    _directory: Option<Directory>,
}

/// A directory of our own for a socket.
#[derive(Debug)]
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // nothing but the socket was in it
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Where clients come to, as the command line says.
#[derive(Debug)]
pub(in super::super) struct WantedDoors<'a> {
    pub(in super::super) socket: Option<&'a Path>,
    pub(in super::super) listen: Option<&'a str>,
    pub(in super::super) insecure: bool,
    pub(in super::super) tls: bool,
    /// A command is run, which gets a socket if nobody else does.
    pub(in super::super) run: bool,
}

impl<'a> From<&'a ServeArgs> for WantedDoors<'a> {
    fn from(args: &'a ServeArgs) -> Self {
        Self {
            socket: args.socket.as_deref(),
            listen: args.listen.as_deref(),
            insecure: args.insecure,
            tls: args.tls.tls_cert.is_some(),
            run: args.run.is_some(),
        }
    }
}

impl Doors {
    /// All that are wanted, or given; none are an error.
    pub(super) fn open(ctx: &Context, args: &ServeArgs) -> Result<Self> {
        let doors = Self::wanted(ctx, &args.into())?;
        if doors.doors.is_empty() {
            let what = "nobody could come: it has no socket and no address";
            return Err(Error::new(ErrorKind::Usage, "serve backups", what)
                .hint("use --socket PATH, or --run COMMAND for one command"));
        }
        Ok(doors)
    }

    /// All that are wanted, or given; maybe none.
    pub(in super::super) fn wanted(ctx: &Context, args: &WantedDoors<'_>) -> Result<Self> {
        // sockets belong to the runtime that they are made in
        let _inside = ctx.runtime()?.enter();
        let tls = args.tls;
        let trust = if tls { Trust::Tls } else { Trust::Plain { insecure: args.insecure } };
        let mut doors = Vec::new();
        for number in 0..ctx.settings.service.listen_fds {
            doors.push(given(FIRST_GIVEN.saturating_add_unsigned(number), trust)?);
        }
        let socket = args.socket.filter(|path| !path.as_os_str().is_empty());
        if let Some(path) = socket {
            doors.push(at_path(path)?);
        }
        if let Some(address) = args.listen.filter(|address| !address.is_empty()) {
            doors.push(at_address(address, trust)?);
        }
        let mut directory = None;
        if doors.is_empty() && args.run {
            let made = Directory::make(&ctx.settings.service.directory)?;
            doors.push(at_path(&made.0.join("s"))?);
            directory = Some(made);
        }
        Ok(Self { doors, tls, _directory: directory })
    }

    pub(in super::super) fn all(&self) -> &[Door] {
        &self.doors
    }

    /// The address of an export: at a UNIX socket, if there is one.
    pub(in super::super) fn uri(&self, export: &str) -> String {
        let export = escaped(export.as_bytes(), b"");
        let unix = self.doors.iter().find(|door| door.unix_path().is_some());
        let Some(door) = unix.or(self.doors.first()) else { return String::new() };
        match (door.unix_path(), door.tcp_address()) {
            (Some(path), _) => {
                let path = escaped(path.as_os_str().as_bytes(), b"/");
                format!("nbd+unix:///{export}?socket={path}")
            }
            (None, Some(address)) if self.tls => format!("nbds://{address}/{export}"),
            (None, Some(address)) => format!("nbd://{address}/{export}"),
            // one without a place in the file system
            (None, None) => format!("nbd+unix:///{export}"),
        }
    }
}

impl Directory {
    fn make(parent: &Path) -> Result<Self> {
        let name = hex::encode(random_bytes::<8>());
        let path = parent.join(format!("mover-{name}"));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|e| {
            let context = format!("make a directory for a socket, {}", path.display());
            Error::caused(ErrorKind::Device, context, e).hint("use --socket PATH")
        })?;
        Ok(Self(path))
    }
}

fn at_path(path: &Path) -> Result<Door> {
    Door::at_path(path).map_err(|e| {
        Error::caused(ErrorKind::Usage, format!("listen on socket {}", path.display()), e)
            .hint("give --socket a path of at most 100 bytes in a directory that you may write to")
    })
}

fn at_address(address: &str, trust: Trust) -> Result<Door> {
    let context = || format!("listen on {address}");
    let addresses: Vec<SocketAddr> = address
        .to_socket_addrs()
        .map_err(|e| {
            Error::caused(ErrorKind::Usage, context(), e).hint("write it like localhost:10809")
        })?
        .collect();
    check_tcp(&addresses, trust, context)?;
    Door::at_addresses(&addresses).map_err(|e| {
        Error::caused(ErrorKind::Usage, context(), e).hint("choose another address or port")
    })
}

/// What keeps strangers away from TCP.
#[derive(Debug, Clone, Copy)]
enum Trust {
    /// Each client shows a certificate.
    Tls,
    /// Nothing, and whether that is wished.
    Plain { insecure: bool },
}

fn check_tcp(addresses: &[SocketAddr], trust: Trust, context: impl Fn() -> String) -> Result<()> {
    let Trust::Plain { insecure } = trust else { return Ok(()) };
    let outside = addresses.iter().find(|address| !address.ip().is_loopback());
    let what = match outside {
        Some(address) => {
            format!("without TLS no other machine may connect, and to {address} one may")
        }
        None if !insecure => "without TLS every process of this machine could read".to_owned(),
        None => return Ok(()),
    };
    let hint = if outside.is_some() {
        "give --tls-cert, --tls-key and --tls-client-ca, or use --socket PATH"
    } else {
        "use --socket PATH, or say --insecure"
    };
    Err(Error::new(ErrorKind::Usage, context(), what).hint(hint))
}

/// A socket that a service manager has made.
fn given(number: i32, trust: Trust) -> Result<Door> {
    let context = || format!("take socket {number} of the service manager");
    let failed = |e: io::Error| {
        Error::caused(ErrorKind::Usage, context(), e)
            .hint("use a stream socket of systemd.socket(5), with Accept=no")
    };
    // of this very process: the safe way to a descriptor that is known by its number alone
    let this = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
    let socket = pidfd_getfd(this, number, PidfdGetfdFlags::empty());
    let socket = socket.map_err(|e| failed(e.into()))?;
    // whatever else has the number would be taken for a door that nobody comes to
    if !socket_acceptconn(&socket).map_err(|e| failed(e.into()))? {
        return Err(failed(io::Error::other("nobody listens on it")));
    }
    let door = Door::given(socket).map_err(failed)?;
    if let Some(address) = door.tcp_address() {
        check_tcp(&[address], trust, context)?;
    }
    Ok(door)
}

/// What stands in an address as it is, and all else by its number.
fn escaped(bytes: &[u8], also: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(byte) || also.contains(byte);
        if plain {
            text.push(char::from(*byte));
        } else {
            // a text takes whatever is written to it
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_taken_and_only_by_who_says_so() {
        let check_with = |address: &str, trust| {
            check_tcp(&[address.parse().unwrap()], trust, || "listen".into())
        };
        let check = |address, insecure| check_with(address, Trust::Plain { insecure });
        assert!(check_with("10.0.0.1:1", Trust::Tls).is_ok());
        assert!(check("127.0.0.1:1", true).is_ok() && check("[::1]:1", true).is_ok());
        for (address, insecure) in
            [("127.0.0.1:1", false), ("0.0.0.0:1", true), ("[::]:1", true), ("10.0.0.1:1", true)]
        {
            assert_eq!(check(address, insecure).unwrap_err().kind(), ErrorKind::Usage);
        }
    }

    #[test]
    fn names_are_escaped_in_addresses() {
        assert_eq!(escaped(b"db@1 \xff/x", b""), "db%401%20%FF%2Fx");
        assert_eq!(escaped(b"/run/a b", b"/"), "/run/a%20b");
    }
}
