//! The connection to the service, and one call on it: the only file that knows the generated code.
//!
//! Keep-alive messages of HTTP/2 stay off: servers of this service drop clients that send them more
//! often than every five minutes. A server that falls silent is noticed by the time between two
//! messages instead.

use super::super::{read_ca, read_small};
use super::status::Failure;
use super::{SnapshotEndpoint, SnapshotSource};
use chunkstore::{Error, ErrorKind, Result, remember_secret};
use proto::csi::snapshot_metadata_client::SnapshotMetadataClient as CsiClient;
use proto::kubernetes::snapshot_metadata_client::SnapshotMetadataClient as KubernetesClient;
use proto::{csi, kubernetes};
use std::collections::HashMap;
use std::error::Error as _;
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Response, Status, Streaming};
use zeroize::Zeroizing;

/// Largest message that is taken: half a million ranges.
const MESSAGE_BYTES_MAX: usize = 16 << 20;
const SECRETS_BYTES_MAX: u64 = 1 << 20;
const CONNECT: Duration = Duration::from_secs(20);
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
mod proto {
    pub(super) mod kubernetes {
        tonic::include_proto!("snapshotmetadata");
    }
    pub(super) mod csi {
        tonic::include_proto!("csi.v1");
    }
}

/// What is asked for.
pub(super) struct Call {
    pub(super) token: Option<Zeroizing<String>>,
    /// Of a delta.
    pub(super) base_id: Option<String>,
    pub(super) target: String,
    pub(super) starting_offset: i64,
    pub(super) max_results: i32,
}

/// One message of either service, of either call.
pub(super) struct Message {
    pub(super) block_type: i32,
    pub(super) capacity_bytes: i64,
    /// Offset and size.
    pub(super) blocks: Vec<(i64, i64)>,
}

macro_rules! messages {
    ($($response:ty),*) => {$(
        impl From<$response> for Message {
            fn from(r: $response) -> Self {
                let blocks = r.block_metadata.iter().map(|b| (b.byte_offset, b.size_bytes)).collect();
                let (block_type, capacity_bytes) = (r.block_metadata_type, r.volume_capacity_bytes);
                Self { block_type, capacity_bytes, blocks }
            }
        }
    )*};
}

messages!(
    kubernetes::GetMetadataAllocatedResponse,
    kubernetes::GetMetadataDeltaResponse,
    csi::GetMetadataAllocatedResponse,
    csi::GetMetadataDeltaResponse
);

/// Why a call did not end well.
pub(super) enum Ended {
    Connect(Failure),
    Status(Status),
    /// The messages break the protocol.
    Broken(String),
}

/// What takes the messages.
type Each<'a> = &'a mut (dyn FnMut(Message) -> std::result::Result<(), String> + Send);

/// A connection, made when it is needed.
pub(super) struct Connection {
    name: String,
    endpoint: Endpoint,
    channel: Option<Channel>,
    service: Service,
}

enum Service {
    Kubernetes { namespace: String },
    Csi { secrets: HashMap<String, String> },
}

impl Connection {
    pub(super) fn new(source: &SnapshotSource) -> Result<Self> {
        let name = source.name();
        let (endpoint, service) = match &source.endpoint {
            SnapshotEndpoint::Kubernetes { address, server_name, ca_file, namespace, .. } => {
                let server_name = server_name.as_deref();
                let endpoint = tls_endpoint(address, server_name, &read_ca(ca_file)?)?;
                (endpoint, Service::Kubernetes { namespace: namespace.clone() })
            }
            SnapshotEndpoint::Csi { socket, secrets_file } => {
                let uri = format!("unix://{}", socket.display());
                let endpoint = Endpoint::from_shared(uri).map_err(|e| {
                    let context = format!("use the socket {}", socket.display());
                    Error::new(ErrorKind::Usage, context, "").caused_by(e)
                })?;
                let secrets = secrets_file.as_deref().map(read_secrets).transpose()?;
                (endpoint, Service::Csi { secrets: secrets.unwrap_or_default() })
            }
        };
        let endpoint = endpoint.connect_timeout(CONNECT).tcp_keepalive(Some(TCP_KEEPALIVE));
        Ok(Self { name, endpoint, channel: None, service })
    }

    /// The next call makes a new connection.
    pub(super) fn close(&mut self) {
        self.channel = None;
    }

    async fn channel(&mut self) -> std::result::Result<Channel, Ended> {
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
        }
        let made = self.endpoint.connect().await;
        let channel = made.map_err(|e| Ended::Connect(unconnected(&self.name, e)))?;
        self.channel = Some(channel.clone());
        Ok(channel)
    }

    /// Makes the call and hands on each message as it comes. `idle` bounds the wait for each of
    /// them.
    pub(super) async fn drain(
        &mut self,
        call: Call,
        idle: Duration,
        each: Each<'_>,
    ) -> std::result::Result<(), Ended> {
        let channel = self.channel().await?;
        match &self.service {
            Service::Kubernetes { namespace } => {
                let mut client =
                    KubernetesClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
                let security_token = call.token.map(|t| t.to_string()).unwrap_or_default();
                let (namespace, starting_offset) = (namespace.clone(), call.starting_offset);
                let max_results = call.max_results;
                match call.base_id {
                    Some(base_snapshot_id) => {
                        let request = kubernetes::GetMetadataDeltaRequest {
                            security_token,
                            namespace,
                            base_snapshot_id,
                            target_snapshot_name: call.target,
                            starting_offset,
                            max_results,
                        };
                        consume(client.get_metadata_delta(request), idle, each).await
                    }
                    None => {
                        let request = kubernetes::GetMetadataAllocatedRequest {
                            security_token,
                            namespace,
                            snapshot_name: call.target,
                            starting_offset,
                            max_results,
                        };
                        consume(client.get_metadata_allocated(request), idle, each).await
                    }
                }
            }
            Service::Csi { secrets } => {
                let mut client =
                    CsiClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
                let (starting_offset, max_results) = (call.starting_offset, call.max_results);
                let secrets = secrets.clone();
                match call.base_id {
                    Some(base_snapshot_id) => {
                        let request = csi::GetMetadataDeltaRequest {
                            base_snapshot_id,
                            target_snapshot_id: call.target,
                            starting_offset,
                            max_results,
                            secrets,
                        };
                        consume(client.get_metadata_delta(request), idle, each).await
                    }
                    None => {
                        let request = csi::GetMetadataAllocatedRequest {
                            snapshot_id: call.target,
                            starting_offset,
                            max_results,
                            secrets,
                        };
                        consume(client.get_metadata_allocated(request), idle, each).await
                    }
                }
            }
        }
    }
}

async fn consume<T: Into<Message>>(
    call: impl Future<Output = std::result::Result<Response<Streaming<T>>, Status>>,
    idle: Duration,
    each: Each<'_>,
) -> std::result::Result<(), Ended> {
    let silent = |_| {
        let what = format!("nothing came for {} ms", idle.as_millis());
        Ended::Status(Status::unavailable(what))
    };
    let answer = tokio::time::timeout(idle, call).await.map_err(silent)?;
    let mut stream = answer.map_err(Ended::Status)?.into_inner();
    let mut messages = 0u64;
    loop {
        let message = tokio::time::timeout(idle, stream.message()).await.map_err(silent)?;
        match message.map_err(Ended::Status)? {
            Some(message) => each(message.into()).map_err(Ended::Broken)?,
            None => break,
        }
        messages += 1;
    }
    // only a status is a clean end; a server without messages may have sent it before the stream
    // began
    let trailers = tokio::time::timeout(idle, stream.trailers()).await.map_err(silent)?;
    match trailers.map_err(Ended::Status)? {
        None if messages > 0 => {
            Err(Ended::Status(Status::unavailable("the stream ended without a status")))
        }
        _ => Ok(()),
    }
}

fn tls_endpoint(address: &str, server_name: Option<&str>, ca: &[u8]) -> Result<Endpoint> {
    let bad = |e: tonic::transport::Error| {
        let context = format!("use {address} as the address of a list");
        Error::new(ErrorKind::Usage, context, "").caused_by(e).hint("write it like host:port")
    };
    let endpoint = Endpoint::from_shared(format!("https://{address}")).map_err(bad)?;
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    if let Some(name) = server_name {
        tls = tls.domain_name(name);
    }
    endpoint.tls_config(tls).map_err(|e| {
        Error::new(ErrorKind::Usage, format!("trust {address} by the CA file"), "")
            .caused_by(e)
            .hint("the file holds certificates in PEM, and the address is host:port")
    })
}

fn unconnected(name: &str, error: tonic::transport::Error) -> Failure {
    let mut cause = error.source();
    let mut words = error.to_string();
    while let Some(e) = cause {
        words = e.to_string();
        if words.contains("certificate") {
            return Failure::Final(
                super::refused(
                    ErrorKind::Denied,
                    name,
                    format!("its certificate is not trusted: {words}"),
                )
                .hint("give the CA file that signed it, and with --changes-server-name the name that stands in it"),
            );
        }
        cause = e.source();
    }
    Failure::Passing(super::refused(
        ErrorKind::Unavailable,
        name,
        format!("no connection: {words}"),
    ))
}

fn read_secrets(path: &std::path::Path) -> Result<HashMap<String, String>> {
    let bytes = Zeroizing::new(read_small(path, SECRETS_BYTES_MAX, "secrets")?);
    let secrets: HashMap<String, String> = serde_json::from_slice(&bytes).map_err(|e| {
        // the error's own text may quote a secret
        let what = format!("it is not a JSON object of texts, at line {}", e.line());
        Error::new(ErrorKind::Usage, format!("read secrets {}", path.display()), what)
    })?;
    secrets.values().for_each(|secret| remember_secret(secret));
    Ok(secrets)
}
