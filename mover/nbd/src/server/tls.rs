//! TLS for clients over a network: who may connect, and which exports each of them sees.
//!
//! Version 1.2 or newer. A client shows a certificate that one of the given authorities has signed.
//! Where there are rules, it sees the exports of all rules whose name its certificate has (a DNS
//! name, as certificates of servers have them), and no others; without rules, all. Before TLS
//! nothing is told to anybody, not even a list.

use super::handshake::ExportTerms;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// What a client with this name in its certificate sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRule {
    /// A DNS name.
    pub name: String,
    /// Any name of an export.
    pub export: String,
}

/// The server's certificate, and whom it trusts.
#[derive(Clone)]
pub struct ServerTls {
    acceptor: TlsAcceptor,
    rules: Vec<ClientRule>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Of PEM texts: the chain of the server's certificate, its key, and the authorities of
    /// clients. An error says what is wrong with them.
    pub fn new(
        chain: &[u8],
        key: &[u8],
        client_authorities: &[u8],
        rules: Vec<ClientRule>,
    ) -> Result<Self, String> {
        for rule in &rules {
            ServerName::try_from(rule.name.as_str())
                .map_err(|e| format!("{} is no name of a client: {e}", rule.name))?;
        }
        let chain = certificates(chain).map_err(|e| format!("the server's certificate: {e}"))?;
        let key =
            PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("the server's key: {e}"))?;
        let mut roots = RootCertStore::empty();
        let authorities = certificates(client_authorities);
        for authority in authorities.map_err(|e| format!("the clients' authorities: {e}"))? {
            roots.add(authority).map_err(|e| format!("an authority of clients: {e}"))?;
        }
        // named, as other parts of the process may bring another one
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|e| format!("the clients' authorities: {e}"))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|e| format!("the server's certificate and key: {e}"))?;
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), rules })
    }

    pub(super) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }

    /// Which exports a client sees that has shown this chain.
    pub(super) fn visible(
        &self,
        shown: Option<&[CertificateDer<'_>]>,
        exports: &[ExportTerms],
    ) -> Vec<bool> {
        let certificate = shown.and_then(|chain| ParsedCertificate::try_from(chain.first()?).ok());
        let has = |name: &str| {
            let name = ServerName::try_from(name).ok();
            let both = certificate.as_ref().zip(name);
            both.is_some_and(|(shown, name)| verify_server_name(shown, &name).is_ok())
        };
        let allows = |rule: &ClientRule, export: &ExportTerms| {
            export.names.contains(&rule.export) && has(&rule.name)
        };
        let sees =
            |export| self.rules.is_empty() || self.rules.iter().any(|rule| allows(rule, export));
        exports.iter().map(sees).collect()
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("there is none in the file".to_owned()),
        Ok(all) => Ok(all),
        Err(e) => Err(e.to_string()),
    }
}
