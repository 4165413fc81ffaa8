//! TLS below the protocol: a session over a socket that one thread writes to while another reads.
//!
//! The session is locked for no longer than bytes are turned into others. The order in which what
//! it has made goes to the wire is that in which it was made: whoever sends holds `sending` from
//! the first to the second.
//!
//! Cannot deadlock: a reader that has something to send (an answer of TLS itself) leaves it to the
//! next who sends if somebody sends just now, and so never waits for one who waits for it.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of one read of the wire: a record, as long as they are.
const WIRE_BYTES: usize = 18 << 10;

/// Where the certificates are, and by which name the server is known; of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TlsPlace {
    /// With `ca-cert.pem`, and `client-cert.pem` and `client-key.pem` if the server wants to know
    /// who asks: as libnbd has them.
    pub(super) directory: PathBuf,
    pub(super) server_name: String,
}

/// A session in which all is said in secret.
#[derive(Debug)]
pub(super) struct Session {
    state: Mutex<ClientConnection>,
    sending: Mutex<()>,
    /// Only the one that reads locks it.
    wire: Mutex<Came>,
}

/// What was read of the wire, and how much of it the session has not taken yet: it takes no more
/// than it can give.
#[derive(Debug)]
struct Came {
    bytes: Vec<u8>,
    left: Range<usize>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // a panic in the session ends the process
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn invalid(what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("TLS: {what}"))
}

impl Session {
    /// Goes through the handshake of TLS, over a wire.
    pub(super) fn begin(place: &TlsPlace, mut wire: impl Read + Write) -> io::Result<Self> {
        let config = Arc::new(config(&place.directory)?);
        let name = ServerName::try_from(place.server_name.clone()).map_err(|e| {
            invalid(format_args!("{} is no name of a server: {e}", place.server_name))
        })?;
        let mut state = ClientConnection::new(config, name).map_err(invalid)?;
        while state.is_handshaking() {
            state.complete_io(&mut wire).map_err(refused)?;
        }
        let wire = Mutex::new(Came { bytes: vec![0; WIRE_BYTES], left: 0..0 });
        Ok(Self { state: Mutex::new(state), sending: Mutex::new(()), wire })
    }

    /// Bytes that the server has said, at least one; `wire` reads and writes what is on the wire.
    pub(super) fn read(&self, buf: &mut [u8], mut wire: impl Read + Write) -> io::Result<usize> {
        let came = &mut *lock(&self.wire);
        loop {
            let there = lock(&self.state).reader().read(buf);
            match there {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                there => return there,
            }
            if came.left.is_empty() {
                came.left = 0..wire.read(&mut came.bytes)?;
            }
            let mut state = lock(&self.state);
            came.left.start += state.read_tls(&mut &came.bytes[came.left.clone()])?;
            state.process_new_packets().map_err(invalid)?;
            if state.wants_write()
                && let Ok(_sending) = self.sending.try_lock()
            {
                let made = made(&mut state)?;
                drop(state);
                wire.write_all(&made)?;
            }
        }
    }

    /// Says some of these bytes.
    pub(super) fn write(&self, buf: &[u8], mut wire: impl Write) -> io::Result<usize> {
        let _sending = lock(&self.sending);
        let (len, made) = {
            let mut state = lock(&self.state);
            let len = state.writer().write(buf)?;
            (len, made(&mut state)?)
        };
        wire.write_all(&made)?;
        Ok(len)
    }
}

/// What the session has to send.
fn made(state: &mut ClientConnection) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while state.wants_write() {
        state.write_tls(&mut bytes)?;
    }
    Ok(bytes)
}

/// A handshake that failed for what the other one is, rather than for the line.
fn refused(e: io::Error) -> io::Error {
    if e.kind() == io::ErrorKind::InvalidData { invalid(e) } else { e }
}

fn config(directory: &Path) -> io::Result<ClientConfig> {
    let file = |name: &str| -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(directory.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    };
    let bad = |name: &str, e: &dyn std::fmt::Display| {
        let what = format!("{}: {e}", directory.join(name).display());
        io::Error::new(io::ErrorKind::InvalidInput, what)
    };
    let certificates = |name: &str, pem: &[u8]| {
        let all: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(pem).collect();
        match all {
            Ok(all) if all.is_empty() => Err(bad(name, &"it holds no certificate")),
            Ok(all) => Ok(all),
            Err(e) => Err(bad(name, &e)),
        }
    };
    let (authorities, chain, key) = ("ca-cert.pem", "client-cert.pem", "client-key.pem");
    let mut roots = RootCertStore::empty();
    let pem = file(authorities)?.ok_or_else(|| bad(authorities, &"it is not there"))?;
    for authority in certificates(authorities, &pem)? {
        roots.add(authority).map_err(|e| bad(authorities, &e))?;
    }
    // named, as other parts of the process may bring another one
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)?
        .with_root_certificates(roots);
    match (file(chain)?, file(key)?) {
        (Some(pem), Some(secret)) => {
            let secret = PrivateKeyDer::from_pem_slice(&secret).map_err(|e| bad(key, &e))?;
            let own = config.with_client_auth_cert(certificates(chain, &pem)?, secret);
            own.map_err(|e| bad(chain, &e))
        }
        (None, None) => Ok(config.with_no_client_auth()),
        (Some(_), None) => Err(bad(key, &"it is not there")),
        (None, Some(_)) => Err(bad(chain, &"it is not there")),
    }
}
