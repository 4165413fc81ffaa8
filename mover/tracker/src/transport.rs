//! The connection to the service, and one call on it: the only file that knows the generated code.
//!
//! Keep-alive messages of HTTP/2 stay off: servers of this service drop clients that send them more
//! often than every five minutes. A server that falls silent is noticed by the time between two
//! messages instead.

use crate::wire::{Followed, Seen, Watch};
use proto::csi::snapshot_metadata_client::SnapshotMetadataClient as CsiClient;
use proto::kubernetes::snapshot_metadata_client::SnapshotMetadataClient as KubernetesClient;
use proto::{csi, kubernetes};
use std::collections::HashMap;
use std::error::Error as _;
use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Response, Status, Streaming};
use zeroize::Zeroizing;

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
pub struct Call {
    /// Of a service account for the service's audience; a driver's own service takes none.
    pub token: Option<Zeroizing<String>>,
    /// Of a delta: what the driver calls the base.
    pub base_id: Option<String>,
    /// The snapshot: the name of the VolumeSnapshot, or the driver's handle of it.
    pub target: String,
    /// Where the list begins; ranges may start before it.
    pub starting_offset: i64,
    /// Most ranges in a message; 0 leaves it to the service.
    pub max_results: i32,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Call of {} from byte {}", self.target, self.starting_offset)
    }
}

/// How long a service may be silent, and how much it may say at once.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Between two messages.
    pub idle: Duration,
    /// Messages without a range may come for so long.
    pub nothing_new: Duration,
    /// Largest message.
    pub message_bytes_max: usize,
}

/// One message of either service, of either call.
#[derive(Debug)]
pub struct Message {
    /// By its number in the protocol.
    pub block_type: i32,
    /// Of the volume.
    pub capacity_bytes: i64,
    /// Offset and size.
    pub blocks: Vec<(i64, i64)>,
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
pub enum Ended {
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
type Take<'a> = &'a mut (dyn FnMut(Message) -> Result<(), String> + Send);

/// One answer while it comes.
struct Each<'a> {
    patience: &'a Patience,
    watch: Watch,
    take: Take<'a>,
    /// When the last range came.
    news: Instant,
}

/// A connection, made when it is needed.
#[derive(Debug)]
pub struct Connection {
    name: String,
    endpoint: Endpoint,
    channel: Option<Channel>,
    made: bool,
    /// Of all of connecting.
    connect: Duration,
    patience: Patience,
    service: Service,
}

enum Service {
    Kubernetes { namespace: String },
    Csi { secrets: HashMap<String, String> },
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kubernetes { .. } => "the service of Kubernetes",
            Self::Csi { .. } => "the service of a driver",
        })
    }
}

/// What is wrong with the address of a service.
#[derive(Debug)]
pub enum BadAddress {
    /// It is none, for this reason.
    Malformed(Box<dyn std::error::Error + Send + Sync>),
    /// The certificates cannot be used.
    Certificates(Box<dyn std::error::Error + Send + Sync>),
}

impl Connection {
    /// To the service of Kubernetes at `host:port`, in one namespace. Only certificates of `ca` (in
    /// PEM) are trusted, for the host's name or `server_name`. `name` is for messages.
    ///
    /// # Errors
    ///
    /// An address that is none.
    pub fn kubernetes(
        name: String,
        (address, server_name): (&str, Option<&str>),
        ca: &[u8],
        namespace: String,
        patience: Patience,
    ) -> Result<Self, BadAddress> {
        let endpoint = tls_endpoint(address, server_name, ca)?;
        Ok(Self::new(name, endpoint, Service::Kubernetes { namespace }, patience))
    }

    /// To the service of a driver on its socket, with what the driver needs to get at its storage.
    ///
    /// # Errors
    ///
    /// A socket whose path cannot be one.
    pub fn csi(
        name: String,
        socket: &Path,
        secrets: HashMap<String, String>,
        patience: Patience,
    ) -> Result<Self, BadAddress> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))
            .map_err(|e| BadAddress::Malformed(e.into()))?;
        Ok(Self::new(name, endpoint, Service::Csi { secrets }, patience))
    }

    fn new(name: String, endpoint: Endpoint, service: Service, patience: Patience) -> Self {
        let connect = CONNECT.min(patience.idle);
        let endpoint = endpoint.connect_timeout(connect).tcp_keepalive(Some(TCP_KEEPALIVE));
        Self { name, endpoint, channel: None, made: false, connect, patience, service }
    }

    /// Whether one was ever made.
    pub fn is_made(&self) -> bool {
        self.made
    }

    /// The next call makes a new connection.
    pub fn close(&mut self) {
        self.channel = None;
    }

    fn channel<'a>(
        &'a mut self,
    ) -> Pin<Box<dyn Future<Output = Result<Channel, Ended>> + Send + 'a>> {
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

    /// Makes the call and hands on each message as it comes. An error of `take` ends it as
    /// [`Ended::Broken`].
    ///
    /// # Errors
    ///
    /// The call did not end well.
    pub async fn drain(&mut self, call: Call, take: Take<'_>) -> Result<(), Ended> {
        let (channel, watch) = (self.channel().await?, Watch::default());
        let most = self.patience.message_bytes_max;
        let channel = Followed::new(channel, watch.clone(), most);
        let mut each = Each { patience: &self.patience, watch, take, news: Instant::now() };
        match &self.service {
            Service::Kubernetes { namespace } => {
                let mut client = KubernetesClient::new(channel).max_decoding_message_size(most);
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
                let mut client = CsiClient::new(channel).max_decoding_message_size(most);
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
    call: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    each: &mut Each<'_>,
) -> Result<(), Ended> {
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
    async fn wait<T>(&mut self, next: impl Future<Output = Result<T, Status>>) -> Result<T, Ended> {
        match tokio::time::timeout(self.patience.idle, next).await {
            Ok(Ok(next)) => Ok(next),
            Ok(Err(status)) => Err(ended(&self.watch, status)),
            Err(_) => {
                let what = format!("nothing came for {} ms", self.patience.idle.as_millis());
                Err(Ended::Interrupted(what))
            }
        }
    }

    fn take(&mut self, message: Message) -> Result<(), Ended> {
        let now = Instant::now();
        if !message.blocks.is_empty() {
            self.news = now;
        } else if now.duration_since(self.news) > self.patience.nothing_new {
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

fn tls_endpoint(
    address: &str,
    server_name: Option<&str>,
    ca: &[u8],
) -> Result<Endpoint, BadAddress> {
    if address.contains("://") {
        return Err(BadAddress::Malformed("it has a scheme".into()));
    }
    let endpoint = Endpoint::from_shared(format!("https://{address}"))
        .map_err(|e| BadAddress::Malformed(e.into()))?;
    if endpoint.uri().port_u16().is_none() {
        return Err(BadAddress::Malformed("it has no port".into()));
    }
    let ca = Certificate::from_pem(ca);
    let mut tls = ClientTlsConfig::new().ca_certificate(ca).timeout(CONNECT);
    if let Some(name) = server_name {
        tls = tls.domain_name(name);
    }
    endpoint.tls_config(tls).map_err(|e| BadAddress::Certificates(e.into()))
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
