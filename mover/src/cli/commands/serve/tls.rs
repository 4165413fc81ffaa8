//! What the flags about TLS mean: certificates are read, and rules are held against the exports.

use super::super::super::args::ServeTlsArgs;
use chunkstore::{Error, ErrorKind, Result};
use mover_engine::ops::serve::ServedBackup;
use mover_nbd::server::{ClientRule, ServerTls};
use std::path::Path;

/// `None`: there is no TLS.
pub(super) fn tls(args: &ServeTlsArgs, served: &[ServedBackup]) -> Result<Option<ServerTls>> {
    let files = [&args.tls_cert, &args.tls_key, &args.tls_client_ca];
    let given = files.map(|file| file.as_deref().filter(|path| !path.as_os_str().is_empty()));
    let [Some(chain), Some(key), Some(authorities)] = given else {
        if given.iter().all(Option::is_none) && args.tls_client.is_empty() {
            return Ok(None);
        }
        let what = "some of its flags are missing";
        return Err(Error::new(ErrorKind::Usage, "serve with TLS", what)
            .hint("give --tls-cert, --tls-key and --tls-client-ca"));
    };
    let rules = args.tls_client.iter().map(|text| rule(text, served)).collect::<Result<_>>()?;
    let [chain, key, authorities] = [read(chain)?, read(key)?, read(authorities)?];
    ServerTls::new(&chain, &key, &authorities, rules).map(Some).map_err(|why| {
        Error::new(ErrorKind::Usage, "serve with TLS", why)
            .hint("give files of PEM texts to --tls-cert, --tls-key and --tls-client-ca")
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |e| Error::caused(ErrorKind::Usage, format!("read {}", path.display()), e);
    std::fs::read(path).map_err(failed)
}

fn rule(text: &str, served: &[ServedBackup]) -> Result<ClientRule> {
    let bad = |what: &str| {
        Error::new(ErrorKind::Usage, format!("use --tls-client {text}"), what)
            .hint("write it like vm7.example.org=db, with a name of an export behind the sign")
    };
    let (name, export) = text.split_once('=').ok_or_else(|| bad("it has no ="))?;
    if served.iter().all(|one| one.names.iter().all(|known| known != export)) {
        return Err(bad("there is no such export"));
    }
    Ok(ClientRule { name: name.to_owned(), export: export.to_owned() })
}
