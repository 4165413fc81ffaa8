//! The SnapshotMetadata services: of Kubernetes over TLS with a token check, and of CSI on a UNIX
//! socket.
//!
//! Both stream [`Blocks`] in messages as a driver would, unless a quirk is switched on. Each call
//! of a test is remembered.

mod raw;
mod stream;

pub use raw::{RawAnswer, RawServer};

use super::{Authority, Block, Blocks};
use proto::csi::snapshot_metadata_server as csi_server;
use proto::kubernetes::snapshot_metadata_server as kubernetes_server;
use proto::{csi, kubernetes};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use stream::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

pub use tonic::Code;

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
mod proto {
    pub(super) mod kubernetes {
        tonic::include_proto!("snapshotmetadata");
    }
    pub(super) mod csi {
        tonic::include_proto!("csi.v1");
    }
}

/// What a service may do otherwise than plainly. A quirk with `times` works in so many calls.
#[derive(Debug, Clone, Default)]
pub struct GrpcQuirks {
    /// Ranges of one size, and the type that says so. The blocks must fit.
    pub fixed: bool,
    /// Most ranges in a message, whatever is asked for; by default 256.
    pub per_message: Option<usize>,
    /// An empty message before each other one.
    pub empty_messages: bool,
    /// Each call ends with this status behind so many ranges, so often.
    pub fail_after: Option<(u64, Code, u32)>,
    /// Each call ends with OK behind so many ranges, so often: cut off, and nobody says so.
    pub cut_after: Option<(u64, u32)>,
    /// Behind so many ranges a call sends empty messages, and never ends.
    pub empty_after: Option<u64>,
    /// Milliseconds between two messages.
    pub pace_ms: u64,
    /// A call sends nothing any more behind so many ranges, so often.
    pub silent_after: Option<(u64, u32)>,
    /// A call that goes on starts one range too early.
    pub early: bool,
    /// A call that goes on starts at the beginning of the volume.
    pub ignores_offset: bool,
    /// `OUT_OF_RANGE` where a call starts at the capacity or behind it; with `true` also where it
    /// starts anywhere but at 0.
    pub out_of_range: Option<bool>,
    /// Ranges this and the next of a call change places.
    pub swapped_at: Option<u64>,
    /// This range of a call is sent twice.
    pub twice_at: Option<u64>,
    /// This range of a call has this size.
    pub size_at: Option<(u64, i64)>,
    /// This range of a call has this offset.
    pub offset_at: Option<(u64, i64)>,
    /// Messages behind so many ranges have this type.
    pub type_after: Option<(u64, i32)>,
    /// Messages behind so many ranges have this capacity.
    pub capacity_after: Option<(u64, i64)>,
    /// Calls but the first have this capacity.
    pub capacity_later: Option<i64>,
    /// What a delta is answered with.
    pub delta_status: Option<(Code, String)>,
    /// What any call is answered with.
    pub status: Option<(Code, String)>,
    /// The token that is good: others are UNAUTHENTICATED.
    pub token: Option<String>,
    /// When a token is refused, the good one is written here, as a kubelet would.
    pub renews: Option<PathBuf>,
    /// Secrets that the driver needs.
    pub secrets: HashMap<String, String>,
    /// How the first calls go, one each, beside all that is above.
    pub scripts: VecDeque<GrpcScript>,
}

/// How one call goes.
#[derive(Debug, Clone, Default)]
pub struct GrpcScript {
    /// Ranges before the first one that it was asked for which it sends as well.
    pub early: u64,
    /// Offsets of ranges that it leaves out.
    pub without: Vec<u64>,
    /// It ends behind so many ranges, with this status or with OK.
    pub stop: Option<(u64, Option<Code>)>,
}

/// What a client asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcCall {
    /// Of a delta.
    pub base: Option<String>,
    /// The snapshot, with its namespace before it where there is one.
    pub target: String,
    /// Where to go on.
    pub starting_offset: i64,
    /// Most ranges in a message.
    pub max_results: i32,
    /// The token.
    pub token: String,
}

/// A running service; it ends when dropped.
#[derive(Debug)]
pub struct GrpcServer {
    shared: Arc<Shared>,
    address: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Base and target of a list.
type SnapshotKey = (Option<String>, String);

#[derive(Debug)]
struct Shared {
    snapshots: Mutex<BTreeMap<SnapshotKey, (u64, Blocks)>>,
    quirks: Mutex<GrpcQuirks>,
    calls: Mutex<Vec<GrpcCall>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no task of the server panics while it holds this")
}

impl GrpcServer {
    /// The service of Kubernetes, by a certificate of these names.
    pub fn kubernetes(authority: &Authority, names: &[&str]) -> Self {
        let (certificate, key) = authority.sign(names);
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
        Self::start(|shared, runtime| {
            let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
            let listener = listener.expect("a free port");
            let port = listener.local_addr().expect("its address").port();
            let service = kubernetes_server::SnapshotMetadataServer::from_arc(shared);
            let mut server = Server::builder().tls_config(tls).expect("certificate and key fit");
            let run = |stop: oneshot::Receiver<()>| async move {
                let incoming = TcpListenerStream::new(listener);
                let stopped = async { drop(stop.await) };
                server.add_service(service).serve_with_incoming_shutdown(incoming, stopped).await
            };
            (format!("localhost:{port}"), run)
        })
    }

    /// The service of a CSI driver.
    pub fn csi(socket: &Path) -> Self {
        Self::start(|shared, runtime| {
            let _inside = runtime.enter();
            let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
            let service = csi_server::SnapshotMetadataServer::from_arc(shared);
            let run = |stop: oneshot::Receiver<()>| async move {
                let incoming = UnixListenerStream::new(listener);
                let stopped = async { drop(stop.await) };
                let mut server = Server::builder();
                server.add_service(service).serve_with_incoming_shutdown(incoming, stopped).await
            };
            (format!("unix://{}", socket.display()), run)
        })
    }

    fn start<R, F>(
        prepare: impl FnOnce(Arc<Shared>, &tokio::runtime::Runtime) -> (String, R),
    ) -> Self
    where
        R: FnOnce(oneshot::Receiver<()>) -> F + Send + 'static,
        F: Future<Output = Result<(), tonic::transport::Error>>,
    {
        let shared = Arc::new(Shared {
            snapshots: Mutex::default(),
            quirks: Mutex::default(),
            calls: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let (address, run) = prepare(Arc::clone(&shared), &runtime);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(async {
                // streams that nobody reads any more must not hold the end up
                let (aborted, abort) = oneshot::channel();
                let end = async {
                    let _ = stopped.await;
                    let _ = aborted.send(());
                };
                tokio::select! {
                    result = run(abort) => result,
                    () = end => Ok(()),
                }
            });
            runtime.shutdown_background();
        });
        Self { shared, address, stop: Some(stop), thread: Some(thread) }
    }

    /// For `--changes-server`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Serves a list of a snapshot; for the service of Kubernetes its name is `NAMESPACE/NAME`.
    pub fn put(&self, base: Option<&str>, target: &str, volume_bytes: u64, blocks: Blocks) {
        let key = (base.map(str::to_owned), target.to_owned());
        lock(&self.shared.snapshots).insert(key, (volume_bytes, blocks));
    }

    /// Behaves like that from now on.
    pub fn set(&self, quirks: GrpcQuirks) {
        *lock(&self.shared.quirks) = quirks;
        lock(&self.shared.calls).clear();
    }

    /// What was asked since [`Self::set`].
    pub fn calls(&self) -> Vec<GrpcCall> {
        lock(&self.shared.calls).clone()
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A message of any of the calls.
#[derive(Debug)]
struct Message {
    block_type: i32,
    capacity: i64,
    blocks: Vec<(i64, i64)>,
}

/// Uses up one of the times of a quirk.
fn take<T: Copy>(quirk: &mut Option<(u64, T, u32)>) -> Option<(u64, T)> {
    let (at, what, times) = quirk.as_mut()?;
    (*times > 0).then(|| {
        *times -= 1;
        (*at, *what)
    })
}

fn take_plain(quirk: &mut Option<(u64, u32)>) -> Option<u64> {
    let (at, times) = quirk.as_mut()?;
    (*times > 0).then(|| {
        *times -= 1;
        *at
    })
}

impl Shared {
    /// Answers a call with a stream of messages.
    fn answer<T: From<Message> + Send + 'static>(
        &self,
        call: GrpcCall,
    ) -> Result<Response<ReceiverStream<Result<T, Status>>>, Status> {
        let first = lock(&self.calls).is_empty();
        lock(&self.calls).push(call.clone());
        let mut quirks = lock(&self.quirks);
        if let Some(token) = quirks.token.as_ref().filter(|token| **token != call.token) {
            if let Some(file) = &quirks.renews {
                std::fs::write(file, token).expect("renew the token");
            }
            return Err(Status::unauthenticated("the token is not good"));
        }
        let delta = quirks.delta_status.as_ref().filter(|_| call.base.is_some());
        if let Some((code, words)) = quirks.status.as_ref().or(delta) {
            return Err(Status::new(*code, words.clone()));
        }
        let key = (call.base.clone(), call.target.clone());
        let Some((volume_bytes, blocks)) = lock(&self.snapshots).get(&key).cloned() else {
            return Err(Status::not_found(format!("no such snapshot: {key:?}")));
        };
        let start = u64::try_from(call.starting_offset).expect("the client never goes below 0");
        match quirks.out_of_range {
            Some(anywhere) if start >= volume_bytes || (anywhere && start > 0) => {
                return Err(Status::out_of_range("starting_offset is out of range"));
            }
            _ => {}
        }
        let script = quirks.scripts.pop_front().unwrap_or_default();
        let blocks = match script.without.as_slice() {
            [] => blocks,
            out => Vec::from_iter(blocks.iter().filter(|b| !out.contains(&b.offset))).into(),
        };
        let fail = script.stop.and_then(|(at, code)| code.map(|code| (at, code)));
        let cut = script.stop.filter(|(_, code)| code.is_none()).map(|(at, _)| at);
        let stream = Stream {
            from: first_range(&quirks, &blocks, start).saturating_sub(script.early),
            volume_bytes,
            blocks,
            first,
            fail: fail.or_else(|| take(&mut quirks.fail_after)),
            cut: cut.or_else(|| take_plain(&mut quirks.cut_after)),
            silent: take_plain(&mut quirks.silent_after),
            per_message: quirks
                .per_message
                .unwrap_or(256)
                .min(usize::try_from(call.max_results).ok().filter(|n| *n > 0).unwrap_or(256)),
            quirks: quirks.clone(),
        };
        let (sender, receiver) = mpsc::channel(2);
        tokio::spawn(stream.send(sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The first range that ends behind `start`, or what the quirks make of it.
fn first_range(quirks: &GrpcQuirks, blocks: &Blocks, start: u64) -> u64 {
    if quirks.ignores_offset {
        return 0;
    }
    // ranges ascend
    let (mut low, mut high) = (0, blocks.count());
    while low < high {
        let middle = (low + high) / 2;
        let Block { offset, len, .. } = blocks.at(middle);
        if offset + len > start { high = middle } else { low = middle + 1 }
    }
    if quirks.early { low.saturating_sub(1) } else { low }
}

macro_rules! responses {
    ($($module:ident::$response:ident),*) => {$(
        impl From<Message> for $module::$response {
            fn from(m: Message) -> Self {
                let block = |(byte_offset, size_bytes)| $module::BlockMetadata { byte_offset, size_bytes };
                Self {
                    block_metadata_type: m.block_type,
                    volume_capacity_bytes: m.capacity,
                    block_metadata: m.blocks.into_iter().map(block).collect(),
                }
            }
        }
    )*};
}

responses!(
    kubernetes::GetMetadataAllocatedResponse,
    kubernetes::GetMetadataDeltaResponse,
    csi::GetMetadataAllocatedResponse,
    csi::GetMetadataDeltaResponse
);

#[tonic::async_trait]
impl kubernetes_server::SnapshotMetadata for Shared {
    type GetMetadataAllocatedStream =
        ReceiverStream<Result<kubernetes::GetMetadataAllocatedResponse, Status>>;
    type GetMetadataDeltaStream =
        ReceiverStream<Result<kubernetes::GetMetadataDeltaResponse, Status>>;

    async fn get_metadata_allocated(
        &self,
        request: Request<kubernetes::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let r = request.into_inner();
        self.answer(GrpcCall {
            base: None,
            target: format!("{}/{}", r.namespace, r.snapshot_name),
            starting_offset: r.starting_offset,
            max_results: r.max_results,
            token: r.security_token,
        })
    }

    async fn get_metadata_delta(
        &self,
        request: Request<kubernetes::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let r = request.into_inner();
        self.answer(GrpcCall {
            base: Some(r.base_snapshot_id),
            target: format!("{}/{}", r.namespace, r.target_snapshot_name),
            starting_offset: r.starting_offset,
            max_results: r.max_results,
            token: r.security_token,
        })
    }
}

impl Shared {
    fn check_secrets(&self, secrets: &HashMap<String, String>) -> Result<(), Status> {
        match lock(&self.quirks).secrets == *secrets {
            true => Ok(()),
            false => Err(Status::invalid_argument("the secrets are not those of the storage")),
        }
    }
}

#[tonic::async_trait]
impl csi_server::SnapshotMetadata for Shared {
    type GetMetadataAllocatedStream =
        ReceiverStream<Result<csi::GetMetadataAllocatedResponse, Status>>;
    type GetMetadataDeltaStream = ReceiverStream<Result<csi::GetMetadataDeltaResponse, Status>>;

    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let r = request.into_inner();
        self.check_secrets(&r.secrets)?;
        self.answer(GrpcCall {
            base: None,
            target: r.snapshot_id,
            starting_offset: r.starting_offset,
            max_results: r.max_results,
            token: String::new(),
        })
    }

    async fn get_metadata_delta(
        &self,
        request: Request<csi::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let r = request.into_inner();
        self.check_secrets(&r.secrets)?;
        self.answer(GrpcCall {
            base: Some(r.base_snapshot_id),
            target: r.target_snapshot_id,
            starting_offset: r.starting_offset,
            max_results: r.max_results,
            token: String::new(),
        })
    }
}
