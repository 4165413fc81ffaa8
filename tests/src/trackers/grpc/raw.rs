//! A CSI driver that answers with bytes as they were given, over real HTTP/2: for what no library
//! would send.

use super::{csi, lock};
use hyper::body::{Body, Frame};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response};
use prost::Message as _;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{Bytes, Service};
use tonic::server::NamedService;
use tonic::transport::Server;

/// An answer, byte by byte.
#[derive(Debug, Clone)]
pub struct RawAnswer {
    /// Of HTTP.
    pub status: u16,
    /// Its header.
    pub content_type: &'static str,
    /// Its body.
    pub body: Vec<u8>,
    /// What its body is cut into on the way.
    pub piece_bytes: usize,
    /// Names and values behind the body; without them the stream just ends.
    pub trailers: Option<Vec<(&'static str, &'static str)>>,
}

impl RawAnswer {
    /// A body that ends with OK.
    pub fn ok(body: Vec<u8>) -> Self {
        let trailers = Some(vec![("grpc-status", "0")]);
        let content_type = "application/grpc";
        Self { status: 200, content_type, body, piece_bytes: 1 << 20, trailers }
    }

    /// A message of a delta with its frame: offsets and sizes.
    pub fn message(volume_bytes: u64, blocks: &[(i64, i64)]) -> Vec<u8> {
        let block = |&(byte_offset, size_bytes)| csi::BlockMetadata { byte_offset, size_bytes };
        let message = csi::GetMetadataDeltaResponse {
            block_metadata_type: 2,
            volume_capacity_bytes: i64::try_from(volume_bytes).expect("it fits"),
            block_metadata: blocks.iter().map(block).collect(),
        };
        let message = message.encode_to_vec();
        let len = u32::try_from(message.len()).expect("it fits");
        [&[0][..], &len.to_be_bytes(), &message].concat()
    }
}

/// A running driver; it ends when dropped.
#[derive(Debug)]
pub struct RawServer {
    answers: Arc<Mutex<(usize, VecDeque<RawAnswer>)>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl RawServer {
    /// On this socket.
    pub fn csi(socket: &Path) -> Self {
        let answers = Arc::default();
        let service = Raw(Arc::clone(&answers));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::bind(socket).expect("a socket")
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let incoming = UnixListenerStream::new(listener);
            let serving = Server::builder().add_service(service).serve_with_incoming(incoming);
            runtime.block_on(async {
                tokio::select! {
                    served = serving => served.expect("it serves"),
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        Self { answers, stop: Some(stop), thread: Some(thread) }
    }

    /// Answers so from now on, one after the other; the last one stays.
    pub fn set(&self, answers: Vec<RawAnswer>) {
        *lock(&self.answers) = (0, answers.into());
    }

    /// Calls since [`Self::set`].
    pub fn calls(&self) -> usize {
        lock(&self.answers).0
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Clone)]
struct Raw(Arc<Mutex<(usize, VecDeque<RawAnswer>)>>);

impl NamedService for Raw {
    const NAME: &'static str = "csi.v1.SnapshotMetadata";
}

impl Service<Request<tonic::body::Body>> for Raw {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<tonic::body::Body>) -> Self::Future {
        let mut answers = lock(&self.0);
        answers.0 += 1;
        let answer = match answers.1.len() {
            0 | 1 => answers.1.front().cloned().expect("an answer was set"),
            _ => answers.1.pop_front().expect("there are two"),
        };
        let pieces = answer.body.chunks(answer.piece_bytes).map(Bytes::copy_from_slice).collect();
        let header = |(name, value): (&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let trailers = answer.trailers.map(|t| t.into_iter().map(header).collect());
        let response = Response::builder()
            .status(answer.status)
            .header(CONTENT_TYPE, answer.content_type)
            .body(tonic::body::Body::new(RawBody { pieces, trailers }));
        ready(Ok(response.expect("a response")))
    }
}

struct RawBody {
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
}

impl Body for RawBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.pieces.pop_front().map(Frame::data);
        Poll::Ready(next.or_else(|| self.trailers.take().map(Frame::trailers)).map(Ok))
    }
}
