//! The connection to the service, and one call on it: the only file that knows the generated code.
//!
//! Keep-alive messages of HTTP/2 stay off: servers of this service drop clients that send them more
//! often than every five minutes. A server that falls silent is noticed by the time between two
//! messages instead.

use super::super::RetryPolicy;
use super::super::credentials::{read_ca, read_small};
use super::wire::{Followed, MESSAGE_BYTES_MAX, Seen, Watch};
use super::{SnapshotEndpoint, SnapshotSource};
use chunkstore::{Error, ErrorKind, Result, secrets::remember_secret};
use proto::csi::snapshot_metadata_client::SnapshotMetadataClient as CsiClient;
use proto::kubernetes::snapshot_metadata_client::SnapshotMetadataClient as KubernetesClient;
use proto::{csi, kubernetes};
use std::collections::HashMap;
use std::error::Error as _;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Response, Status, Streaming};
use zeroize::Zeroizing;

const SECRETS_BYTES_MAX: u64 = 1 << 20;
/// All of connecting: the name, the socket, TLS. Less where less silence is allowed.
const CONNECT: Duration = Duration::from_secs(15);
/// When a connection that is not there yet is worth a word.
const SLOW: Duration = Duration::from_secs(2);
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
#[derive(Debug)]
pub(super) enum Ended {
    /// Its certificate is not trusted, for this reason.
    Untrusted(String),
    /// There is no connection.
    Unconnected(String),
    /// The connection failed, or the server fell silent, or its stream ended without a status.
    Interrupted(String),
    /// The server gave this status.
    Status(Status),
    /// Its stream misses something, and says that it ended well.
    Damaged(String),
    /// One message is larger than is taken.
    TooLarge(usize),
    /// The messages break the protocol.
    Broken(String),
    /// Messages come, and nothing is in them.
    Endless(String),
}

/// What takes the messages.
type Take<'a> = &'a mut (dyn FnMut(Message) -> std::result::Result<(), String> + Send);

/// One answer while it comes.
struct Each<'a> {
    retry: &'a RetryPolicy,
    watch: Watch,
    take: Take<'a>,
    /// When the last range came.
    news: Instant,
}

/// A connection, made when it is needed.
pub(super) struct Connection {
    name: String,
    endpoint: Endpoint,
    channel: Option<Channel>,
    made: bool,
    /// Of all of connecting.
    connect: Duration,
    service: Service,
}

enum Service {
    Kubernetes { namespace: String },
    Csi { secrets: HashMap<String, String> },
}

impl Connection {
    pub(super) fn new(source: &SnapshotSource) -> Result<Self> {
        let (name, connect) = (source.name(), CONNECT.min(source.retry.idle()));
        let (endpoint, service) = match &source.endpoint {
            SnapshotEndpoint::Kubernetes { address, server_name, ca_file, namespace, .. } => {
                let server_name = server_name.as_deref();
                let endpoint = tls_endpoint(address, server_name, &read_ca(ca_file)?.0)?;
                (endpoint, Service::Kubernetes { namespace: namespace.clone() })
            }
            SnapshotEndpoint::Csi { socket, secrets_file } => {
                let uri = format!("unix://{}", socket.display());
                let endpoint = Endpoint::from_shared(uri).map_err(|e| {
                    let context = format!("use the socket {}", socket.display());
                    Error::caused(ErrorKind::Usage, context, e)
                })?;
                let secrets = secrets_file.as_deref().map(read_secrets).transpose()?;
                (endpoint, Service::Csi { secrets: secrets.unwrap_or_default() })
            }
        };
        let endpoint = endpoint.connect_timeout(connect).tcp_keepalive(Some(TCP_KEEPALIVE));
        Ok(Self { name, endpoint, channel: None, made: false, connect, service })
    }

    /// Whether one was ever made.
    pub(super) fn is_made(&self) -> bool {
        self.made
    }

    /// The next call makes a new connection.
    pub(super) fn close(&mut self) {
        self.channel = None;
    }

    fn channel<'a>(
        &'a mut self,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<Channel, Ended>> + 'a>> {
        Box::pin(async move {
            if let Some(channel) = &self.channel {
                return Ok(channel.clone());
            }
            let mut connecting = std::pin::pin!(self.endpoint.connect());
            let made = match tokio::time::timeout(SLOW.min(self.connect), &mut connecting).await {
                Ok(made) => made,
                Err(_) => {
                    let left = self.connect.saturating_sub(SLOW);
                    if !left.is_zero() && !self.made {
                        let left = left.as_secs();
                        tracing::warn!("no connection to {} yet: given up in {left} s", self.name);
                    }
                    tokio::time::timeout(left, connecting).await.map_err(|_| {
                        let within = self.connect.as_millis();
                        Ended::Unconnected(format!("no connection: no answer within {within} ms"))
                    })?
                }
            };
            let channel = made.map_err(unconnected)?;
            (self.channel, self.made) = (Some(channel.clone()), true);
            Ok(channel)
        })
    }

    /// Makes the call and hands on each message as it comes. `retry` bounds the wait for each
    /// of them, and for one with a range.
    pub(super) async fn drain(
        &mut self,
        call: Call,
        retry: &RetryPolicy,
        take: Take<'_>,
    ) -> std::result::Result<(), Ended> {
        let (channel, watch) = (self.channel().await?, Watch::default());
        let channel = Followed::new(channel, watch.clone());
        let mut each = Each { retry, watch, take, news: Instant::now() };
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
                        consume(client.get_metadata_delta(request), &mut each).await
                    }
                    None => {
                        let request = kubernetes::GetMetadataAllocatedRequest {
                            security_token,
                            namespace,
                            snapshot_name: call.target,
                            starting_offset,
                            max_results,
                        };
                        consume(client.get_metadata_allocated(request), &mut each).await
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
                        consume(client.get_metadata_delta(request), &mut each).await
                    }
                    None => {
                        let request = csi::GetMetadataAllocatedRequest {
                            snapshot_id: call.target,
                            starting_offset,
                            max_results,
                            secrets,
                        };
                        consume(client.get_metadata_allocated(request), &mut each).await
                    }
                }
            }
        }
    }
}

async fn consume<T: Into<Message>>(
    call: impl Future<Output = std::result::Result<Response<Streaming<T>>, Status>>,
    each: &mut Each<'_>,
) -> std::result::Result<(), Ended> {
    let answer = each.wait(call).await?;
    let mut stream = answer.into_inner();
    // only a status is a clean end; that there is one has been seen to
    while let Some(message) = each.wait(stream.message()).await? {
        each.take(message.into())?;
    }
    Ok(())
}

impl Each<'_> {
    /// As long as a server may be silent.
    async fn wait<T>(
        &self,
        next: impl Future<Output = std::result::Result<T, Status>>,
    ) -> std::result::Result<T, Ended> {
        match tokio::time::timeout(self.retry.idle(), next).await {
            Ok(Ok(next)) => Ok(next),
            Ok(Err(status)) => Err(ended(&self.watch, status)),
            Err(_) => {
                let what = format!("nothing came for {} ms", self.retry.idle_ms);
                Err(Ended::Interrupted(what))
            }
        }
    }

    fn take(&mut self, message: Message) -> std::result::Result<(), Ended> {
        let now = Instant::now();
        if !message.blocks.is_empty() {
            self.news = now;
        } else if now.duration_since(self.news) > self.retry.nothing_new() {
            let seconds = now.duration_since(self.news).as_secs();
            return Err(Ended::Endless(format!(
                "for {seconds} s nothing came but messages without a range"
            )));
        }
        (self.take)(message).map_err(Ended::Broken)
    }
}

/// The generated client says everything by a status. What was seen on the wire tells whose it is.
fn ended(watch: &Watch, status: Status) -> Ended {
    match watch.seen() {
        Seen::Status => Ended::Status(status),
        Seen::Damaged(what) => Ended::Damaged(what),
        Seen::TooLarge(bytes) => Ended::TooLarge(bytes),
        Seen::Cut => Ended::Interrupted("the stream ended without a status".to_owned()),
        // the connection's own failure has a cause
        Seen::Open if status.source().is_some() => {
            Ended::Interrupted(format!("the connection failed: {}", status.message()))
        }
        Seen::Open => Ended::Broken(format!("it cannot be understood: {}", status.message())),
    }
}

fn tls_endpoint(address: &str, server_name: Option<&str>, ca: &[u8]) -> Result<Endpoint> {
    let context = || format!("use {address} as the address of a list");
    let hint = "write it like host:port";
    let bad = |what: &str| Error::new(ErrorKind::Usage, context(), what).hint(hint);
    if address.contains("://") {
        return Err(bad("it has a scheme"));
    }
    let endpoint = Endpoint::from_shared(format!("https://{address}"))
        .map_err(|e| Error::caused(ErrorKind::Usage, context(), e).hint(hint))?;
    if endpoint.uri().port_u16().is_none() {
        return Err(bad("it has no port"));
    }
    let ca = Certificate::from_pem(ca);
    let mut tls = ClientTlsConfig::new().ca_certificate(ca).timeout(CONNECT);
    if let Some(name) = server_name {
        tls = tls.domain_name(name);
    }
    endpoint.tls_config(tls).map_err(|e| {
        Error::caused(ErrorKind::Usage, format!("trust {address} by the CA file"), e)
            .hint("the file holds certificates in PEM, and the address is host:port")
    })
}

fn unconnected(error: tonic::transport::Error) -> Ended {
    let mut cause = error.source();
    let mut words = error.to_string();
    while let Some(e) = cause {
        words = e.to_string();
        if words.contains("certificate") {
            return Ended::Untrusted(words);
        }
        cause = e.source();
    }
    Ended::Unconnected(format!("no connection: {words}"))
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
