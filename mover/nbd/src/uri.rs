//! Addresses of exports: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md>.
//!
//! Two parameters are our own, and so begin with `x-`: `x-timeout`, the seconds that the server may
//! be silent for while an answer is due, and `x-connections`, the most connections that are opened
//! where the server allows several. `tls-certificates` and `tls-hostname` are those of libnbd.

use super::error::{Error, ErrorKind, Result};
use super::tls::TlsPlace;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// As registered.
const PORT: u16 = 10809;
const SCHEMES: [&str; 6] = ["nbd", "nbd+unix", "nbds", "nbds+unix", "nbd+vsock", "nbds+vsock"];
/// The protocol's limit of any text.
const NAME_BYTES_MAX: usize = 4096;
const TIMEOUT_SECONDS: u64 = 60;
const TIMEOUT_SECONDS_MAX: u64 = 3600;
const CONNECTIONS: usize = 4;
const CONNECTIONS_MAX: usize = 16;

/// Whether a source or target is named by an NBD address. A file that has such a name is meant by
/// `./` before it.
pub fn is_nbd(path: &Path) -> bool {
    let text = path.as_os_str().to_string_lossy();
    text.split_once("://").is_some_and(|(scheme, _)| SCHEMES.contains(&scheme))
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Tcp {
        host: String,
        port: u16,
    },
    /// The path of a socket; with a NUL first, its name in the abstract namespace.
    Unix(Vec<u8>),
}

/// The address of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdUri {
    text: String,
    pub(super) place: Place,
    pub(super) export: String,
    pub(super) tls: Option<TlsPlace>,
    pub(super) timeout: Duration,
    pub(super) connections_max: usize,
}

impl NbdUri {
    /// Of a path that [`is_nbd`].
    pub fn of_path(path: &Path) -> Result<Self> {
        match path.to_str() {
            Some(text) => text.parse(),
            None => Err(refused(&path.to_string_lossy(), "it is not text")),
        }
    }

    /// What people would call the volume: the export's name, else the place's. Two servers of one
    /// host are two places.
    pub fn name(&self) -> String {
        match (&self.place, self.export.as_str()) {
            (Place::Tcp { host, port: PORT }, "") => host.clone(),
            (Place::Tcp { host, port }, "") => format!("{host}:{port}"),
            (Place::Unix(path), "") => {
                let path = String::from_utf8_lossy(path);
                let name = path.trim_matches('\0').rsplit('/').next().unwrap_or_default();
                name.strip_suffix(".sock").unwrap_or(name).to_owned()
            }
            (_, export) => export.to_owned(),
        }
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for NbdUri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let no = |what: &str| Err(refused(text, what));
        let Some((scheme, rest)) = text.split_once("://") else { return no("it has no scheme") };
        let (secret, unix) = match scheme {
            "nbd" => (false, false),
            "nbd+unix" => (false, true),
            "nbds" => (true, false),
            "nbds+unix" => (true, true),
            _ => return no("only nbd://, nbd+unix://, nbds:// and nbds+unix:// are spoken"),
        };
        if rest.contains('#') {
            return no("it has a fragment (write # as %23)");
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(path).and_then(|bytes| String::from_utf8(bytes).ok());
        let Some(export) = export.filter(|e| e.len() <= NAME_BYTES_MAX && !e.contains('\0')) else {
            return no("the export's name is not text, or too long");
        };
        let mut parameters = Parameters::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            parameters.take(text, pair)?;
        }
        let place = match (unix, parameters.socket) {
            (true, Some(path)) if authority.is_empty() => Place::Unix(path),
            (true, Some(_)) => {
                return no("a socket's address has three slashes: nbd+unix:///EXPORT?socket=PATH");
            }
            (true, None) => return no("the socket is missing: ?socket=PATH"),
            (false, Some(_)) => return no("a socket is named by nbd+unix:///EXPORT?socket=PATH"),
            (false, None) => match parse_authority(authority) {
                Some((host, port)) => Place::Tcp { host, port },
                None => return no("its host or port is none"),
            },
        };
        let tls = match (secret, parameters.certificates) {
            (false, None) => None,
            (false, Some(_)) => return no("it names certificates, and is not nbds://"),
            (true, None) => {
                return no("the certificates are missing: ?tls-certificates=DIRECTORY");
            }
            (true, Some(directory)) => {
                let of_place = match &place {
                    Place::Tcp { host, .. } => host.clone(),
                    Place::Unix(_) => "localhost".to_owned(),
                };
                let server_name = parameters.server_name.unwrap_or(of_place);
                Some(TlsPlace { directory, server_name })
            }
        };
        Ok(Self {
            text: text.to_owned(),
            place,
            tls,
            export,
            timeout: Duration::from_secs(parameters.timeout_seconds.unwrap_or(TIMEOUT_SECONDS)),
            connections_max: parameters.connections_max.unwrap_or(CONNECTIONS),
        })
    }
}

#[derive(Default)]
struct Parameters {
    socket: Option<Vec<u8>>,
    certificates: Option<PathBuf>,
    server_name: Option<String>,
    timeout_seconds: Option<u64>,
    connections_max: Option<usize>,
}

impl Parameters {
    fn take(&mut self, uri: &str, pair: &str) -> Result<()> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let number = |most: u64| match value.parse::<u64>() {
            Ok(n) if (1..=most).contains(&n) => Ok(n),
            _ => Err(refused(uri, &format!("{name} is a number from 1 to {most}"))),
        };
        match name {
            "socket" => {
                let Some(path) = decode(value).filter(|path| !path.is_empty()) else {
                    return Err(refused(uri, "the socket's path is none"));
                };
                self.socket = Some(path);
            }
            "x-timeout" => self.timeout_seconds = Some(number(TIMEOUT_SECONDS_MAX)?),
            "x-connections" => {
                let n = number(CONNECTIONS_MAX as u64)?;
                self.connections_max = Some(usize::try_from(n).unwrap_or(CONNECTIONS_MAX));
            }
            "tls-certificates" => {
                let Some(path) = decode(value).filter(|path| !path.is_empty()) else {
                    return Err(refused(uri, "the directory of certificates is none"));
                };
                self.certificates = Some(OsString::from_vec(path).into());
            }
            "tls-hostname" => {
                let name = decode(value).and_then(|name| String::from_utf8(name).ok());
                let Some(name) = name.filter(|name| !name.is_empty()) else {
                    return Err(refused(uri, "the name of the server is none"));
                };
                self.server_name = Some(name);
            }
            _ => {
                let what = format!("the parameter {name} is not known");
                return Err(refused(uri, &what).hint(
                    "known are socket, tls-certificates (a directory), tls-hostname, x-timeout \
                         (seconds) and x-connections",
                ));
            }
        }
        Ok(())
    }
}

fn parse_authority(authority: &str) -> Option<(String, u16)> {
    // who needs a user's name needs TLS
    if authority.contains('@') {
        return None;
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        None | Some("") => PORT,
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
    };
    let host = if host.is_empty() { "localhost" } else { host };
    let host = String::from_utf8(decode(host)?).ok()?;
    Some((host, port))
}

/// `%XX` to bytes; `None` where that is not what follows a `%`.
fn decode(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
        let valid = digits.bytes().all(|b| b.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| valid)?);
        rest = tail.get(2..)?;
    }
    Some(bytes)
}

fn refused(uri: &str, what: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("open {uri}"), what)
        .hint("give nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH")
}

/// Says what to do where TLS is wanted.
pub(super) fn needs_tls(context: String, what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, context, what).hint(
        "give nbds://HOST/EXPORT?tls-certificates=DIRECTORY, with ca-cert.pem and perhaps \
         client-cert.pem and client-key.pem in it; for keys agreed on before let a proxy do it, such \
         as nbdkit -U SOCKET nbd uri=nbds://…",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Place, String) {
        let uri: NbdUri = text.parse().unwrap();
        assert_eq!(uri.to_string(), text);
        (uri.place, uri.export)
    }

    fn tcp(host: &str, port: u16) -> Place {
        Place::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn addresses_are_read_as_their_specification_shows() {
        let socket = || Place::Unix(b"/s.sock".to_vec());
        for (text, place, export) in [
            ("nbd://example.com/disk", tcp("example.com", PORT), "disk"),
            ("nbd://example.com", tcp("example.com", PORT), ""),
            ("nbd://example.com:1234/", tcp("example.com", 1234), ""),
            ("nbd://example.com//disk", tcp("example.com", PORT), "/disk"),
            ("nbd://example.com/hello%20world", tcp("example.com", PORT), "hello world"),
            ("nbd://[::1]:99/x", tcp("::1", 99), "x"),
            ("nbd:///x", tcp("localhost", PORT), "x"),
            ("nbd+unix:///disk?socket=/s.sock", socket(), "disk"),
            ("nbd+unix:///a/b?socket=%2Fs.sock&x-timeout=5", socket(), "a/b"),
            ("nbd+unix://?socket=/s.sock", socket(), ""),
            ("nbd+unix:///?socket=%00/abstract", Place::Unix(b"\0/abstract".to_vec()), ""),
        ] {
            assert_eq!(parsed(text), (place, export.to_owned()), "{text}");
            assert!(is_nbd(Path::new(text)));
        }
        let uri: NbdUri = "nbd://h/x?x-timeout=7&x-connections=2".parse().unwrap();
        assert_eq!((uri.timeout, uri.connections_max), (Duration::from_secs(7), 2));
    }

    #[test]
    fn what_is_no_address_is_refused_and_says_why() {
        for (text, what) in [
            ("nbd+unix:///x", "socket is missing"),
            ("nbd+unix://host/x?socket=/s", "three slashes"),
            ("nbd://h/x?socket=/s", "nbd+unix"),
            ("nbd://h:0/x", "host or port"),
            ("nbd://h:99999/x", "host or port"),
            ("nbd://me@h/x", "host or port"),
            ("nbd://[::1/x", "host or port"),
            ("nbd://h/%zz", "export's name"),
            ("nbd://h/%ff", "export's name"),
            ("nbd://h/%00", "export's name"),
            ("nbd://h/x#y", "fragment"),
            ("nbd://h/x?x-timeout=0", "from 1 to 3600"),
            ("nbd://h/x?x-connections=17", "from 1 to 16"),
            ("nbd://h/x?soket=/s", "soket is not known"),
            ("nbd+vsock:///x", "only nbd://"),
            ("nbds+unix:///x?socket=/s", "tls-certificates"),
        ] {
            let error = text.parse::<NbdUri>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
            assert!(error.to_string().contains(what), "{text}: {error}");
        }
    }

    #[test]
    fn secret_addresses_name_certificates() {
        let of = |text: &str| text.parse::<NbdUri>().unwrap().tls.unwrap();
        let place = |name: &str| TlsPlace { directory: "/c d".into(), server_name: name.into() };
        assert_eq!(of("nbds://h/x?tls-certificates=/c%20d"), place("h"));
        assert_eq!(of("nbds://h/x?tls-certificates=/c d&tls-hostname=i"), place("i"));
        let unix = "nbds+unix:///x?socket=/s&tls-certificates=/c%20d";
        assert_eq!(of(unix), place("localhost"));
        for text in ["nbds://h/x", "nbd://h/x?tls-certificates=/c", "nbds://h/x?tls-type=x509"] {
            let error = text.parse::<NbdUri>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
        }
    }

    #[test]
    fn a_volume_has_the_name_of_its_export() {
        let name = |text: &str| text.parse::<NbdUri>().unwrap().name();
        assert_eq!(name("nbd://h/db"), "db");
        assert_eq!(name("nbd://h"), "h");
        assert_eq!(name("nbd://h:10809/"), "h");
        assert_eq!(name("nbd://h:10810"), "h:10810");
        assert_eq!(name("nbd+unix:///?socket=/run/vm.sock"), "vm");
        for path in ["/dev/sda", "nbd:h:1:exportname=x", "./nbd://x", "http://h/x"] {
            assert!(!is_nbd(Path::new(path)), "{path}");
        }
    }
}
