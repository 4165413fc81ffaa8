//! Small files that name who asks and whom to trust: tokens and certificates.

use chunkstore::{Error, ErrorKind, Result, secrets::remember_secret};
use std::path::Path;
use zeroize::Zeroizing;

/// A token of a service account is some hundred bytes to a few KiB.
const TOKEN_BYTES_MAX: u64 = 64 << 10;
/// A bundle of certificates.
const CA_BYTES_MAX: u64 = 4 << 20;

/// A token, without the white space around it. Read at each use: whoever issues it renews the file.
pub(super) fn read_token(path: &Path) -> Result<Zeroizing<String>> {
    let bytes = Zeroizing::new(read_small(path, TOKEN_BYTES_MAX, "token")?);
    let bad = |what: &str| {
        Error::new(ErrorKind::Usage, format!("read token {}", path.display()), what)
            .hint("it holds the token and nothing else")
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| bad("it is not text"))?.trim();
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(bad("it is empty, or has characters that no token has"));
    }
    remember_secret(text);
    Ok(Zeroizing::new(text.to_owned()))
}

/// Certificates to trust: as PEM, and each by itself.
pub(super) fn read_ca(path: &Path) -> Result<(Vec<u8>, Vec<reqwest::Certificate>)> {
    let context = || format!("use CA file {}", path.display());
    let hint = "it holds certificates in PEM, from -----BEGIN CERTIFICATE----- on";
    let pem = read_small(path, CA_BYTES_MAX, "CA file")?;
    let found = reqwest::Certificate::from_pem_bundle(&pem)
        .map_err(|e| Error::caused(ErrorKind::Usage, context(), e).hint(hint))?;
    if found.is_empty() {
        let what = "it has no certificate";
        return Err(Error::new(ErrorKind::Usage, context(), what).hint(hint));
    }
    Ok((pem, found))
}

pub(super) fn read_small(path: &Path, bytes_max: u64, what: &str) -> Result<Vec<u8>> {
    use std::io::Read;
    let context = || format!("read {what} {}", path.display());
    let mut bytes = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    match read {
        Err(e) => Err(Error::caused(ErrorKind::Usage, context(), e)),
        Ok(_) if bytes.len() as u64 > bytes_max => {
            let detail = format!("it has more than {bytes_max} bytes");
            Err(Error::new(ErrorKind::Usage, context(), detail))
        }
        Ok(_) => Ok(bytes),
    }
}
