//! A socket that nobody waits for without end.
//!
//! Owns: the descriptor. The kernel's own timeouts wake each call a few times a second, and what is
//! waited for then decides: the end of the handshake, or the time since the last byte moved in
//! either direction; or that nobody wants the answer any more.

use super::tls::{Session, TlsPlace};
use super::uri::{NbdUri, Place};
use crossbeam_channel::bounded;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How often a waiting call looks at the time.
const LOOK_UP: Duration = Duration::from_millis(250);
/// When a server that has not answered yet is worth a word.
const SLOW: Duration = Duration::from_secs(2);

/// Whether the run is to stop, as all connections of one export see it. Until it is set once, it is
/// not.
#[derive(Debug, Clone, Default)]
pub(super) struct StopFlag(Arc<OnceLock<Arc<AtomicBool>>>);

impl StopFlag {
    /// From now on this one is looked at.
    pub(super) fn set(&self, flag: Arc<AtomicBool>) {
        // who opened the export sets it, and nobody else
        let _ = self.0.set(flag);
    }

    fn is_up(&self) -> bool {
        self.0.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

fn say_slow(name: &str, said: &AtomicBool, timeout: Duration) {
    if timeout > SLOW && !said.swap(true, Ordering::Relaxed) {
        tracing::warn!("{name} has not answered yet: given up after {} s", timeout.as_secs());
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One connection's socket, shared by who sends and who receives.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    /// Once it was agreed on.
    tls: OnceLock<Session>,
    stop: StopFlag,
    timeout: Duration,
    begun: Instant,
    /// When a byte moved last, in milliseconds since `begun`.
    moved_ms: AtomicU64,
    /// What to call the server.
    name: String,
    /// That it is slow was said.
    said: AtomicBool,
}

impl Socket {
    /// Connects. Resolving a name and a full queue of a UNIX socket know no timeout, so a thread of
    /// its own does it; should it hang, it is left to itself.
    pub(super) fn connect(uri: &NbdUri, timeout: Duration, stop: &StopFlag) -> io::Result<Self> {
        let (outbox, inbox) = bounded(1);
        let (place, until) = (uri.place.clone(), Instant::now() + timeout);
        std::thread::Builder::new().name("nbd-connect".to_owned()).spawn(move || {
            // who waited for it may be gone
            let _ = outbox.send(open(&place, until));
        })?;
        let said = AtomicBool::new(false);
        let name = uri.to_string();
        let opened = inbox.recv_timeout(SLOW.min(timeout)).or_else(|_| {
            say_slow(&name, &said, timeout);
            inbox.recv_timeout(timeout.saturating_sub(SLOW))
        });
        let stream = opened.map_err(|_| silent(timeout))??;
        match &stream {
            Stream::Tcp(s) => {
                s.set_nodelay(true)?;
                s.set_read_timeout(Some(LOOK_UP))?;
                s.set_write_timeout(Some(LOOK_UP))?;
            }
            Stream::Unix(s) => {
                s.set_read_timeout(Some(LOOK_UP))?;
                s.set_write_timeout(Some(LOOK_UP))?;
            }
        }
        let (begun, moved_ms) = (Instant::now(), AtomicU64::new(0));
        let tls = OnceLock::new();
        Ok(Self { stream, tls, stop: stop.clone(), timeout, begun, moved_ms, name, said })
    }

    /// Something is waited for from now on.
    pub(super) fn touch(&self) {
        let ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(ms, Ordering::Relaxed);
    }

    /// Ends all calls on it.
    pub(super) fn shut_down(&self) {
        // it may be closed already
        let _ = match &self.stream {
            Stream::Tcp(s) => s.shutdown(Shutdown::Both),
            Stream::Unix(s) => s.shutdown(Shutdown::Both),
        };
    }

    /// Moves bytes until some did, or the patience is at its end.
    fn patiently(
        &self,
        until: Option<Instant>,
        mut step: impl FnMut(&Stream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match step(&self.stream) {
                Ok(n) => {
                    self.touch();
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
                {
                    if self.stop.is_up() {
                        let what = "the run is to stop, and the NBD server has not answered yet";
                        return Err(io::Error::new(io::ErrorKind::ConnectionAborted, what));
                    }
                    let moved = Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
                    let idle = self.begun.elapsed().saturating_sub(moved);
                    // a handshake takes no time, other answers may
                    if until.is_some() && idle >= SLOW {
                        say_slow(&self.name, &self.said, self.timeout);
                    }
                    let over = until.map_or(idle >= self.timeout, |end| Instant::now() >= end);
                    if over {
                        return Err(silent(self.timeout));
                    }
                }
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                    ) =>
                {
                    return Err(closed());
                }
                Err(e) => return Err(e),
            }
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the NBD server closed the connection")
}

fn open(place: &Place, until: Instant) -> io::Result<Stream> {
    match place {
        Place::Unix(path) => {
            let address = match path.split_first() {
                Some((0, name)) => SocketAddr::from_abstract_name(name)?,
                _ => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
            };
            UnixStream::connect_addr(&address).map(Stream::Unix)
        }
        Place::Tcp { host, port } => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            for address in (host.as_str(), *port).to_socket_addrs()? {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                match TcpStream::connect_timeout(&address, left) {
                    Ok(stream) => return Ok(Stream::Tcp(stream)),
                    Err(e) => last = e,
                }
            }
            Err(last)
        }
    }
}

fn silent(timeout: Duration) -> io::Error {
    let what = format!(
        "the NBD server says nothing for {} s; it may serve another client, or the volume hangs",
        timeout.as_secs()
    );
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// Reads and writes a socket with a limit of time.
#[derive(Debug, Clone)]
pub(super) struct Line {
    socket: Arc<Socket>,
    /// `None`: as long as bytes move.
    until: Option<Instant>,
}

impl Line {
    /// For what has to be over at some time.
    pub(super) fn until(socket: &Arc<Socket>, end: Instant) -> Self {
        Self { socket: Arc::clone(socket), until: Some(end) }
    }

    /// For as long as bytes move.
    pub(super) fn moving(socket: &Arc<Socket>) -> Self {
        Self { socket: Arc::clone(socket), until: None }
    }

    /// Goes on in secret.
    pub(super) fn secure(&self, place: &TlsPlace) -> io::Result<()> {
        let session = Session::begin(place, Wire(self))?;
        // a socket is secured once
        let _ = self.socket.tls.set(session);
        Ok(())
    }
}

/// The bytes as they are on the wire.
struct Wire<'a>(&'a Line);

impl Read for Wire<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Line { socket, until } = self.0;
        let n = socket.patiently(*until, |stream| match stream {
            Stream::Tcp(s) => (&*s).read(buf),
            Stream::Unix(s) => (&*s).read(buf),
        })?;
        if n == 0 && !buf.is_empty() {
            return Err(closed());
        }
        Ok(n)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let Line { socket, until } = self.0;
        socket.patiently(*until, |stream| match stream {
            Stream::Tcp(s) => (&*s).write(buf),
            Stream::Unix(s) => (&*s).write(buf),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Line {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = match self.socket.tls.get() {
            Some(session) => session.read(buf, Wire(self))?,
            None => Wire(self).read(buf)?,
        };
        if n == 0 && !buf.is_empty() {
            return Err(closed());
        }
        Ok(n)
    }
}

impl Write for Line {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.socket.tls.get() {
            Some(session) => session.write(buf, Wire(self)),
            None => Wire(self).write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
