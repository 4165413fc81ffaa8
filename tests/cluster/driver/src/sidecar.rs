//! The SnapshotMetadata service of Kubernetes, over TLS, for a driver that serves that of CSI on
//! its socket: what the sidecar external-snapshot-metadata is for.
//!
//! It answers as that sidecar does, in the same order: the fields of the request, the token, the
//! right, the objects, the driver. A status of the driver goes on as it is; one without a code
//! becomes `INTERNAL` with the driver's text. One thing is stricter: the content must point back to
//! the snapshot that names it.

mod objects;

use crate::faults::name;
use crate::proto::csi;
use crate::proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use crate::proto::kubernetes::snapshot_metadata_server::{
    SnapshotMetadata, SnapshotMetadataServer,
};
use crate::proto::kubernetes::{
    BlockMetadata, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use objects::Cluster;
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::{Channel, Endpoint, Identity, Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status, Streaming};

/// All of one call, as the sidecar allows by default.
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the driver, and of its SnapshotMetadataService
    #[arg(long, default_value = "test.csi.mover")]
    name: String,
    /// Socket on which the driver serves CSI
    #[arg(long)]
    endpoint: PathBuf,
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    /// Certificate of that address (PEM)
    #[arg(long)]
    cert: PathBuf,
    /// Its key (PEM)
    #[arg(long)]
    key: PathBuf,
    /// How to reach the API server
    #[arg(long)]
    kubeconfig: PathBuf,
}

/// What serves the calls.
struct Sidecar {
    cluster: Cluster,
    driver: SnapshotMetadataClient<Channel>,
}

/// Serves until `end`.
pub(crate) async fn run(
    args: &Args,
    end: impl Future<Output = ()> + Send,
) -> Result<(), Box<dyn Error>> {
    // An error means that there is one already.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let identity = Identity::from_pem(read(&args.cert)?, read(&args.key)?);
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig)?;
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let socket = std::path::absolute(&args.endpoint)?;
    let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))?.connect_lazy();
    let sidecar = Sidecar {
        cluster: Cluster::new(kube::Client::try_from(config)?, args.name.clone()),
        driver: SnapshotMetadataClient::new(channel).max_decoding_message_size(usize::MAX),
    };
    tracing::info!("SnapshotMetadata of {} at {}", args.name, args.listen);
    Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity))?
        .timeout(LONGEST)
        .add_service(SnapshotMetadataServer::new(sidecar))
        .serve_with_shutdown(args.listen, end)
        .await?;
    Ok(())
}

fn read(file: &PathBuf) -> Result<Vec<u8>, Box<dyn Error>> {
    std::fs::read(file).map_err(|error| format!("read {}: {error}", file.display()).into())
}

/// Refuses a request without a field that it must have.
fn required(value: &str, text: &str) -> Result<(), Status> {
    if value.is_empty() { Err(Status::invalid_argument(text)) } else { Ok(()) }
}

/// What the caller is told of an error of the driver.
fn passed_on(error: Status) -> Status {
    match error.code() {
        Code::Unknown => {
            Status::internal(format!("failed to get response from CSI driver: {}", error.message()))
        }
        _ => error,
    }
}

/// Says how a call began; the token is never said.
fn log<T>(call: &str, about: &str, started: Instant, answer: &Result<T, Status>) {
    let ms = started.elapsed().as_millis();
    match answer {
        Ok(_) => tracing::info!(call, ms, about, "OK"),
        Err(error) => {
            let code = name(error.code());
            tracing::warn!(call, ms, code, about, "{}", error.message());
        }
    }
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the driver sends, made what the caller gets, until the time of the call is over.
struct PassedOn<M> {
    messages: Streaming<M>,
    end: Pin<Box<Sleep>>,
    ended: bool,
}

impl<M: Send + 'static> PassedOn<M> {
    fn stream<T: From<M>>(messages: Streaming<M>, end: tokio::time::Instant) -> Messages<T> {
        let end = Box::pin(tokio::time::sleep_until(end));
        let stream = Self { messages, end, ended: false };
        Box::pin(stream.map(|message| message.map(T::from).map_err(passed_on)))
    }
}

impl<M: Send + 'static> Stream for PassedOn<M> {
    type Item = Result<M, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.end.as_mut().poll(context).is_ready() {
            self.ended = true;
            let error = Status::deadline_exceeded(format!("the list takes more than {LONGEST:?}"));
            return Poll::Ready(Some(Err(error)));
        }
        Pin::new(&mut self.messages).poll_next(context)
    }
}

macro_rules! response {
    ($($name:ident),*) => {$(
        impl From<csi::$name> for $name {
            fn from(answer: csi::$name) -> Self {
                let block = |block: csi::BlockMetadata| BlockMetadata {
                    byte_offset: block.byte_offset,
                    size_bytes: block.size_bytes,
                };
                Self {
                    block_metadata_type: answer.block_metadata_type,
                    volume_capacity_bytes: answer.volume_capacity_bytes,
                    block_metadata: answer.block_metadata.into_iter().map(block).collect(),
                }
            }
        }
    )*};
}
response!(GetMetadataAllocatedResponse, GetMetadataDeltaResponse);

impl Sidecar {
    async fn allocated(
        &self,
        request: GetMetadataAllocatedRequest,
    ) -> Result<Messages<GetMetadataAllocatedResponse>, Status> {
        let end = tokio::time::Instant::now() + LONGEST;
        required(&request.security_token, "securityToken is missing")?;
        required(&request.namespace, "namespace parameter cannot be empty")?;
        required(&request.snapshot_name, "snapshotName cannot be empty")?;
        self.cluster.admit(&request.security_token, &request.namespace).await?;
        let request = csi::GetMetadataAllocatedRequest {
            snapshot_id: self.cluster.handle(&request.namespace, &request.snapshot_name).await?,
            starting_offset: request.starting_offset,
            max_results: request.max_results,
            ..csi::GetMetadataAllocatedRequest::default()
        };
        let answer = self.driver.clone().get_metadata_allocated(request).await;
        Ok(PassedOn::stream(answer.map_err(passed_on)?.into_inner(), end))
    }

    async fn delta(
        &self,
        request: GetMetadataDeltaRequest,
    ) -> Result<Messages<GetMetadataDeltaResponse>, Status> {
        let end = tokio::time::Instant::now() + LONGEST;
        required(&request.security_token, "securityToken is missing")?;
        required(&request.namespace, "namespace parameter cannot be empty")?;
        required(&request.base_snapshot_id, "baseSnapshotId cannot be empty")?;
        required(&request.target_snapshot_name, "targetSnapshotName cannot be empty")?;
        self.cluster.admit(&request.security_token, &request.namespace).await?;
        let target = self.cluster.handle(&request.namespace, &request.target_snapshot_name).await?;
        let request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: request.base_snapshot_id,
            target_snapshot_id: target,
            starting_offset: request.starting_offset,
            max_results: request.max_results,
            ..csi::GetMetadataDeltaRequest::default()
        };
        let answer = self.driver.clone().get_metadata_delta(request).await;
        Ok(PassedOn::stream(answer.map_err(passed_on)?.into_inner(), end))
    }
}

#[tonic::async_trait]
impl SnapshotMetadata for Sidecar {
    type GetMetadataAllocatedStream = Messages<GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let (started, request) = (Instant::now(), request.into_inner());
        let about = format!("{}/{}", request.namespace, request.snapshot_name);
        let answer = self.allocated(request).await;
        log("GetMetadataAllocated", &about, started, &answer);
        answer.map(Response::new)
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let (started, request) = (Instant::now(), request.into_inner());
        let (namespace, target) = (&request.namespace, &request.target_snapshot_name);
        let about = format!("{} to {namespace}/{target}", request.base_snapshot_id);
        let answer = self.delta(request).await;
        log("GetMetadataDelta", &about, started, &answer);
        answer.map(Response::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_the_driver_goes_on() {
        let gone = passed_on(Status::not_found("no snapshot x"));
        assert_eq!((gone.code(), gone.message()), (Code::NotFound, "no snapshot x"));
        let unknown = passed_on(Status::unknown("odd"));
        assert_eq!(unknown.code(), Code::Internal);
        assert!(unknown.message().ends_with(": odd"), "{unknown}");
    }
}
