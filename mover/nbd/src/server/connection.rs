//! One client: its handshake, its requests, its end.
//!
//! A task reads requests and starts one task for each, up to [`REQUESTS_MAX`]; beyond them the
//! client's next request stays in its socket. Parts of replies are written whole, one after the
//! other, under one lock: see `reading` and `writing`.
//!
//! Cannot deadlock: a request waits for memory before it reads, and writes what it has read before
//! it takes more. Who writes waits for the client only, and for no longer than [`STALLED`] without
//! that a piece goes out.
//!
//! A client leaves well by saying so, and its tasks then come to their end. In any other case they
//! are dropped, and have ended before the client counts as gone: a change of one that was killed
//! must not land on top of another one's.

use super::decode::{
    ClientRequest, EXTENDED_REQUEST_BYTES, Garbage, OPTION_HEAD_BYTES, OptionHead, REQUEST_BYTES,
};
use super::encode::Replier;
use super::handshake::{Agreed, Handshake, Next, Replies, Secrecy, greeting};
use super::memory::Memory;
use super::request::{Change, Ground, Task, judge};
use super::tls::ServerTls;
use super::writing::{Payload, errno, skip};
use super::{Counts, ServedExport, Volume};
use crate::wire::EINVAL;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf,
    WriteHalf,
};
use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// From the first byte to the first request.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(30);
/// A client that takes nothing of an answer for so long, or sends nothing of a payload, is gone.
pub(super) const STALLED: Duration = Duration::from_secs(300);
/// Requests of one client under way; their heads are all that they keep.
const REQUESTS_MAX: usize = 64;
const READ_AHEAD_BYTES: usize = 4096;

/// A stream to a client.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// What a connection needs of its server.
#[derive(Debug)]
pub(super) struct Served<V> {
    pub(super) exports: Arc<[ServedExport<V>]>,
    pub(super) counts: Arc<Counts>,
    pub(super) memory: Memory,
    /// Bytes of volumes that this client was sent.
    pub(super) sent_bytes: Arc<AtomicU64>,
    /// Goes with the last of its tasks.
    pub(super) _there: watch::Receiver<()>,
}

/// Why a connection ended before the client wished so.
fn garbage(Garbage(what): Garbage) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the client breaks the NBD protocol: {what}"),
    )
}

fn no_goodbye() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it said no goodbye")
}

fn takes_no_answers() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the client takes no answers")
}

/// Serves one client until it leaves, or is left.
pub(super) async fn serve<V: Volume, S: Stream>(
    served: Served<V>,
    tls: Option<ServerTls>,
    mut stream: S,
) -> io::Result<()> {
    let until = Instant::now() + HANDSHAKE_WITHIN;
    let exports = Arc::clone(&served.exports);
    let terms: Vec<_> = exports.iter().map(|export| export.terms.clone()).collect();
    let payload_bytes_max = served.memory.payload_bytes_max;
    let secrecy = if tls.is_some() { Secrecy::Required } else { Secrecy::None };
    let begun = async {
        stream.write_all(&greeting()).await?;
        let flags = stream.read_u32().await?;
        let unknown = Garbage("it wants what this server does not know");
        let begun = Handshake::begin((&terms, payload_bytes_max), flags, secrecy);
        let mut handshake = begun.ok_or_else(|| garbage(unknown))?;
        let next = options(&mut stream, &mut handshake).await?;
        Ok((handshake, next))
    };
    let (handshake, next) = within(until, begun).await?;
    match (next, tls) {
        (Next::Serve(agreed), _) => Box::pin(requests(served, agreed, stream)).await,
        (Next::StartTls, Some(tls)) => {
            let secured = async {
                // what came behind the option in plain text is no TLS, and ends it
                let mut stream = tls.acceptor().accept(stream).await?;
                let visible = tls.visible(stream.get_ref().1.peer_certificates(), &terms);
                let mut handshake = handshake.secured(visible);
                let next = options(&mut stream, &mut handshake).await?;
                Ok((stream, next))
            };
            match within(until, Box::pin(secured)).await? {
                (stream, Next::Serve(agreed)) => Box::pin(requests(served, agreed, stream)).await,
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

async fn within<T>(until: Instant, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the handshake took too long");
    timeout(until.saturating_duration_since(Instant::now()), work).await.map_err(late)?
}

/// Answers options until something else comes. Not a byte more than theirs is read.
async fn options<S: Stream>(stream: &mut S, handshake: &mut Handshake<'_>) -> io::Result<Next> {
    loop {
        let mut head = [0; OPTION_HEAD_BYTES];
        stream.read_exact(&mut head).await?;
        let OptionHead { option, len } = OptionHead::decode(&head).map_err(garbage)?;
        let mut data = vec![0; len as usize];
        stream.read_exact(&mut data).await?;
        let (answer, next) = handshake.answer(option, &data);
        stream.write_all(&answer).await?;
        stream.flush().await?;
        if next != Next::More {
            return Ok(next);
        }
    }
}

/// Answers requests until the client leaves, or is left.
async fn requests<V: Volume, S: Stream>(
    served: Served<V>,
    agreed: Agreed,
    stream: S,
) -> io::Result<()> {
    let (incoming, outgoing) = tokio::io::split(stream);
    let mut incoming = BufReader::with_capacity(READ_AHEAD_BYTES, incoming);
    let terms = &served.exports[agreed.export].terms;
    let has_contexts = !agreed.contexts.is_empty();
    let ground = Ground::new(terms, served.memory.payload_bytes_max, agreed.replies, has_contexts);
    let client = Arc::new(Client {
        ground,
        extended: agreed.replies == Replies::Extended,
        served,
        agreed,
        out: Mutex::new(outgoing),
        broken: Notify::new(),
        requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
    });
    let mut tasks = JoinSet::new();
    let mut served = client.take_requests(&mut incoming, &mut tasks).await;
    if served.is_ok() {
        // it has said goodbye, and may still want the answers
        served = client.answer_rest(&mut tasks).await;
    }
    tasks.shutdown().await;
    served
}

#[derive(Debug)]
pub(super) struct Client<V, S> {
    pub(super) served: Served<V>,
    pub(super) agreed: Agreed,
    ground: Ground,
    extended: bool,
    pub(super) out: Mutex<WriteHalf<S>>,
    /// Nothing more can be written.
    broken: Notify,
    requests: Arc<Semaphore>,
}

impl<V: Volume, S: Stream> Client<V, S> {
    pub(super) fn export(&self) -> &ServedExport<V> {
        &self.served.exports[self.agreed.export]
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.served.counts
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.served.memory
    }

    async fn take_requests(
        self: &Arc<Self>,
        incoming: &mut BufReader<ReadHalf<S>>,
        tasks: &mut JoinSet<()>,
    ) -> io::Result<()> {
        let broken = self.broken.notified();
        let mut broken = std::pin::pin!(broken);
        loop {
            let next = tokio::select! {
                biased;
                () = &mut broken => return Err(takes_no_answers()),
                next = self.next_task(incoming) => next?,
            };
            while tasks.try_join_next().is_some() {}
            let Some((place, to, task, payload)) = next else { return Ok(()) };
            if let Task::Read { range, .. } = &task {
                self.export().volume.expect(range);
            }
            let client = Arc::clone(self);
            tasks.spawn(async move {
                let done = client.work(to, task, payload).await;
                drop(place);
                if done.is_err() {
                    client.broken.notify_one();
                }
            });
        }
    }

    /// Waits for all tasks, unless nothing more can be written.
    async fn answer_rest(&self, tasks: &mut JoinSet<()>) -> io::Result<()> {
        let broken = self.broken.notified();
        let mut broken = std::pin::pin!(broken);
        loop {
            tokio::select! {
                biased;
                () = &mut broken => return Err(takes_no_answers()),
                ended = tasks.join_next() => if ended.is_none() { return Ok(()) },
            }
        }
    }

    async fn work(&self, to: Replier, task: Task, payload: Option<Payload>) -> io::Result<()> {
        match task {
            Task::Read { range, whole } => self.read(to, range, whole).await,
            Task::Status { range, one } => self.status(to, range, one).await,
            Task::Change { range, change, fua } => {
                self.change(to, (range, change), fua, payload).await
            }
            Task::Flush => self.flush(to).await,
            Task::Refuse { errno, why, .. } => self.send(&to.error(errno, None, why), &[]).await,
            Task::Disconnect | Task::Close(_) => Ok(()),
        }
    }

    /// What is to be done next, with all that came with it. `None`: the client has said goodbye.
    async fn next_task(
        &self,
        incoming: &mut BufReader<ReadHalf<S>>,
    ) -> io::Result<Option<(OwnedSemaphorePermit, Replier, Task, Option<Payload>)>> {
        let place = self.place(incoming).await?;
        let request = self.next_request(incoming).await?;
        let ClientRequest { cookie, offset, .. } = request;
        let to = Replier { replies: self.agreed.replies, cookie, offset };
        let task = judge(&request, &self.ground);
        let mut payload = None;
        match &task {
            Task::Disconnect => return Ok(None),
            Task::Close(why) => {
                let _ = self.send(&to.error(EINVAL, None, why), &[]).await;
                return Err(garbage(Garbage(why)));
            }
            Task::Refuse { skip_bytes, .. } => skip(incoming, *skip_bytes).await?,
            Task::Change { range, change: Change::Write, .. } => {
                payload = Some(self.receive(incoming, range).await?);
            }
            _ => {}
        }
        Ok(Some((place, to, task, payload)))
    }

    /// Waits until one more request may be under way. That the client is gone is noticed meanwhile,
    /// if it has sent no more.
    async fn place(
        &self,
        incoming: &mut BufReader<ReadHalf<S>>,
    ) -> io::Result<OwnedSemaphorePermit> {
        let gone = async {
            match incoming.fill_buf().await {
                Ok([]) => no_goodbye(),
                Ok(_) => std::future::pending().await,
                Err(e) => e,
            }
        };
        tokio::select! {
            biased;
            place = Arc::clone(&self.requests).acquire_owned() => place.map_err(io::Error::other),
            gone = gone => Err(gone),
        }
    }

    /// `UnexpectedEof`: the client is gone, and has not said so.
    async fn next_request(
        &self,
        incoming: &mut BufReader<ReadHalf<S>>,
    ) -> io::Result<ClientRequest> {
        let mut head = [0; EXTENDED_REQUEST_BYTES];
        let len = if self.extended { EXTENDED_REQUEST_BYTES } else { REQUEST_BYTES };
        if let Err(e) = incoming.read_exact(&mut head[..len]).await {
            return Err(match e.kind() {
                io::ErrorKind::UnexpectedEof => no_goodbye(),
                _ => e,
            });
        }
        ClientRequest::decode(&head[..len], self.extended).map_err(garbage)
    }

    /// Writes one piece of a reply. An error is that the client is gone.
    pub(super) async fn send(&self, head: &[u8], payload: &[u8]) -> io::Result<()> {
        let mut out = self.out.lock().await;
        let written = timeout(STALLED, async {
            out.write_all(head).await?;
            out.write_all(payload).await?;
            out.flush().await
        });
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the client takes no answers");
        written.await.map_err(late)??;
        self.count_sent(payload.len());
        Ok(())
    }

    pub(super) fn count_sent(&self, bytes: usize) {
        self.served.counts.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.served.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    async fn status(&self, to: Replier, range: Range<u64>, one: bool) -> io::Result<()> {
        let Some(_memory) = self.served.memory.answers.take().await else { return Ok(()) };
        let contexts = &self.agreed.contexts;
        for (nth, context) in contexts.iter().enumerate() {
            let states = self.export().volume.states(*context, range.clone()).await;
            let mut states = match states {
                Ok(states) if !states.is_empty() => states,
                Ok(_) => {
                    let e = io::Error::other("the state of these blocks is not known");
                    return self.fail(to, range.start, &e).await;
                }
                Err(e) => return self.fail(to, range.start, &e).await,
            };
            if one {
                states.truncate(1);
            }
            let last = nth + 1 == contexts.len();
            self.send(&to.states(last, *context, &states), &[]).await?;
        }
        Ok(())
    }

    pub(super) async fn fail(&self, to: Replier, at: u64, e: &io::Error) -> io::Result<()> {
        self.served.counts.errors.fetch_add(1, Ordering::Relaxed);
        let name = self.export().terms.names.first().map_or("", String::as_str);
        tracing::warn!("export {name}, offset {at}: {e}");
        self.send(&to.error(errno(e), Some(at), &e.to_string()), &[]).await
    }
}
