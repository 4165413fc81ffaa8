//! What passes between the connection and the generated client: the frames of an answer, followed
//! as they come.
//!
//! The generated client hands out whole messages and forgets what is left over when the trailers
//! come, takes a stream that was reset for one that ended, and gives its own refusals the look of
//! the server's. So each answer goes through here first: it must be one of gRPC, its trailers must
//! come at a frame's border and have a status, and what ends a call is noted as what it is.

use hyper::body::{Body, Frame};
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, Request, Response, StatusCode};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tonic::codegen::{BoxFuture, Bytes, Service, StdError};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// A flag, and the length of the message.
const HEADER_BYTES: usize = 5;
/// A value that the generated client would panic on, where it is not what it must be.
const DETAILS: &str = "grpc-status-details-bin";
const STATUS: &str = "grpc-status";

/// What has ended an answer, where it is known here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nothing did so far.
    #[default]
    Open,
    /// The server sent a status other than OK, or an answer of HTTP that says as much.
    Status,
    /// The stream ended without any status.
    Cut,
    /// It says OK, and misses a part of a message.
    Damaged(String),
    /// A message of so many bytes is announced.
    TooLarge(usize),
}

/// What is seen of an answer, for whoever made the call.
#[derive(Debug, Clone, Default)]
pub(super) struct Watch(Arc<Mutex<Seen>>);

impl Watch {
    pub(super) fn seen(&self) -> Seen {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, seen: Seen) -> Status {
        let words = match &seen {
            Seen::Damaged(what) => what.clone(),
            Seen::TooLarge(bytes) => format!("a message has {bytes} bytes"),
            Seen::Open | Seen::Status | Seen::Cut => "the stream ended without a status".to_owned(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        Status::unknown(words)
    }
}

/// A channel whose answers are followed.
#[derive(Debug)]
pub(super) struct Followed {
    channel: Channel,
    watch: Watch,
    message_bytes_max: usize,
}

impl Followed {
    pub(super) fn new(channel: Channel, watch: Watch, message_bytes_max: usize) -> Self {
        Self { channel, watch, message_bytes_max }
    }
}

impl Service<Request<tonic::body::Body>> for Followed {
    type Response = Response<Answer>;
    type Error = StdError;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        self.channel.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let (answer, watch) = (self.channel.call(request), self.watch.clone());
        let frames = Frames::new(self.message_bytes_max);
        Box::pin(async move {
            let (mut head, body) = answer.await?.into_parts();
            head.headers.remove(DETAILS);
            let answered = status_of(&head.headers);
            if answered.is_some_and(|ok| !ok) {
                watch.set(Seen::Status);
            } else if let Some(status) = no_grpc(head.status, &head.headers) {
                watch.set(Seen::Status);
                return Err(status.into());
            }
            let ended = answered.is_some();
            Ok(Response::from_parts(head, Answer { body, watch, ended, frames }))
        })
    }
}

/// Whether a status is there, and whether it is OK.
fn status_of(headers: &HeaderMap) -> Option<bool> {
    headers.get(STATUS).map(|status| status.as_bytes() == b"0")
}

/// An answer that no server of gRPC gives, as a status: what each code of HTTP means is what gRPC
/// says that it means.
fn no_grpc(status: StatusCode, headers: &HeaderMap) -> Option<Status> {
    let code = match status {
        StatusCode::OK => {
            let found = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
            if found.starts_with(b"application/grpc") {
                return None;
            }
            let found = String::from_utf8_lossy(found);
            let what = format!("an answer of type {found:?}, which is not of gRPC");
            return Some(Status::unimplemented(what));
        }
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    };
    Some(Status::new(code, format!("HTTP {status}")))
}

/// The body of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    body: tonic::body::Body,
    frames: Frames,
    watch: Watch,
    /// A status has come.
    ended: bool,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let answer = self.get_mut();
        let next = ready!(Pin::new(&mut answer.body).poll_frame(cx));
        Poll::Ready(match next {
            Some(Ok(frame)) => Some(answer.follow(frame)),
            Some(Err(status)) => Some(Err(status)),
            None if answer.ended => None,
            // once it was said, it has ended
            None => {
                answer.ended = true;
                Some(Err(answer.watch.set(Seen::Cut)))
            }
        })
    }
}

impl Answer {
    fn follow(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Status> {
        let frame = match frame.into_data() {
            Ok(data) => {
                if self.ended {
                    let what = "data follow behind its status";
                    return Err(self.watch.set(Seen::Damaged(what.to_owned())));
                }
                self.frames.take(&data).map_err(|seen| self.watch.set(seen))?;
                return Ok(Frame::data(data));
            }
            Err(frame) => frame,
        };
        let Ok(mut trailers) = frame.into_trailers() else {
            return Err(Status::internal("a frame is neither data nor trailers"));
        };
        trailers.remove(DETAILS);
        self.ended = true;
        match status_of(&trailers) {
            None => return Err(self.watch.set(Seen::Cut)),
            Some(false) => {
                self.watch.set(Seen::Status);
            }
            Some(true) => self.frames.end().map_err(|seen| self.watch.set(seen))?,
        }
        Ok(Frame::trailers(trailers))
    }
}

/// Where the messages of an answer begin and end.
#[derive(Debug)]
struct Frames {
    message_bytes_max: usize,
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    /// What is still to come of the message.
    left: usize,
}

impl Frames {
    fn new(message_bytes_max: usize) -> Self {
        Self { message_bytes_max, header: [0; HEADER_BYTES], header_bytes: 0, left: 0 }
    }

    fn take(&mut self, mut data: &[u8]) -> Result<(), Seen> {
        while !data.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(data.len());
                self.left -= taken;
                data = &data[taken..];
                continue;
            }
            let taken = (HEADER_BYTES - self.header_bytes).min(data.len());
            self.header[self.header_bytes..][..taken].copy_from_slice(&data[..taken]);
            self.header_bytes += taken;
            data = &data[taken..];
            if self.header_bytes == HEADER_BYTES {
                let [_, len @ ..] = self.header;
                let len = u32::from_be_bytes(len);
                self.left = usize::try_from(len).unwrap_or(usize::MAX);
                self.header_bytes = 0;
                if self.left > self.message_bytes_max {
                    return Err(Seen::TooLarge(self.left));
                }
            }
        }
        Ok(())
    }

    /// The trailers have come.
    fn end(&self) -> Result<(), Seen> {
        let missing = match (self.left, self.header_bytes) {
            (0, 0) => return Ok(()),
            (0, had) => format!("{} bytes of a message's head", HEADER_BYTES - had),
            (left, _) => format!("{left} bytes of a message"),
        };
        Err(Seen::Damaged(format!("it ends with OK, but {missing} are missing")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 16 << 20;

    #[test]
    fn trailers_are_good_at_a_border_only() {
        let message = |len: u8| [&[0, 0, 0, 0, len][..], &vec![7; usize::from(len)]].concat();
        let bytes = [message(3), message(0), message(9)].concat();
        let borders = [0, 8, 13, 27];
        for cut in 0..=bytes.len() {
            for piece in [1, 2, 5, 100] {
                let mut frames = Frames::new(MAX);
                for part in bytes[..cut].chunks(piece) {
                    frames.take(part).unwrap();
                }
                assert_eq!(frames.end().is_ok(), borders.contains(&cut), "{cut} by {piece}");
            }
        }
        let too_large = Frames::new(MAX).take(&[0, 1, 0, 0, 1]).unwrap_err();
        assert_eq!(too_large, Seen::TooLarge(MAX + 1));
    }

    #[test]
    fn what_is_not_grpc_is_said_to_be() {
        let with = |kind: &'static str| {
            HeaderMap::from_iter([(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind))])
        };
        assert!(no_grpc(StatusCode::OK, &with("application/grpc+proto")).is_none());
        let html = no_grpc(StatusCode::OK, &with("text/html")).unwrap();
        assert!(html.message().contains("\"text/html\""), "{html}");
        let gone = no_grpc(StatusCode::BAD_GATEWAY, &with("text/html")).unwrap();
        assert_eq!((gone.code(), gone.message()), (Code::Unavailable, "HTTP 502 Bad Gateway"));
        assert!(no_grpc(StatusCode::NOT_FOUND, &HeaderMap::new()).is_some());
    }
}
