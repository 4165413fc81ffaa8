//! A certificate authority of its own, as a cluster has one for its tracker.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Signs certificates of servers on this machine.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// With a new key.
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names are fine");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "tests");
        let pem = params.self_signed(&key).expect("sign it").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Writes its own certificate, for `--changes-ca-file`.
    pub fn write(&self, path: &Path) -> PathBuf {
        std::fs::write(path, &self.pem).expect("write the certificate");
        path.to_owned()
    }

    /// Certificate and key of a server of these names, as PEM.
    pub fn sign(&self, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names).expect("names");
        let certificate = params.signed_by(&key, &self.issuer).expect("sign it");
        (certificate.pem(), key.serialize_pem())
    }

    /// What a server of these names speaks TLS with.
    pub fn server(&self, names: &[&str]) -> Arc<rustls::ServerConfig> {
        let (certificate, key) = self.sign(names);
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("its PEM");
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("its PEM");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key);
        Arc::new(config.expect("certificate and key fit"))
    }
}
