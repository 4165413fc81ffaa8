//! One HTTP exchange on its way through a relay, and what goes wrong with it.
//!
//! Each connection carries one exchange: `Connection: close` is put into both heads, so the end of
//! an answer is the end of its connection, however long it said it was. Signatures do not cover
//! that header. Bodies are handed on as they come, at the line's rate; its delay is waited for
//! once, before the answer.

use super::faults::{Fate, FaultKind, Faults, Mood};
use super::link::Link;
use bytes::{Buf, BytesMut};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_BYTES_MAX: usize = 64 << 10;
/// Read at a time.
const READ_BYTES: usize = 64 << 10;
const HEADERS_MAX: usize = 64;
const LATENCY_MS_MAX: u64 = 400;

/// One direction of the line, and its count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lane<'a> {
    pub(super) link: &'a Link,
    pub(super) passed: &'a AtomicU64,
}

impl Lane<'_> {
    async fn send(&self, to: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(self.link.quantum_bytes()) {
            let leaves = self.link.admit(piece.len()).await - self.link.delay();
            // waiting costs a timer: not for what has left already
            if leaves > Instant::now() {
                tokio::time::sleep_until(leaves.into()).await;
            }
            self.passed.fetch_add(piece.len() as u64, Ordering::Relaxed);
            to.write_all(piece).await?;
        }
        Ok(())
    }
}

/// A connection and what of it was read ahead.
struct Wire {
    stream: TcpStream,
    ahead: BytesMut,
}

/// The beginning of a message: `len` bytes of what was read.
#[derive(Debug)]
struct Head {
    len: usize,
    /// For a request: method, target, range.
    name: String,
    method: String,
    content_bytes: Option<u64>,
}

impl Wire {
    fn new(stream: TcpStream) -> Self {
        Self { stream, ahead: BytesMut::new() }
    }

    /// `None` at the end of the stream.
    async fn more(&mut self) -> io::Result<Option<()>> {
        self.ahead.reserve(READ_BYTES);
        Ok((self.stream.read_buf(&mut self.ahead).await? > 0).then_some(()))
    }

    /// `None`: it ended before a whole head had come.
    async fn head(&mut self, request: bool) -> io::Result<Option<Head>> {
        loop {
            if let Some(head) = parse(&self.ahead, request)? {
                return Ok(Some(head));
            }
            if self.ahead.len() > HEAD_BYTES_MAX {
                return Err(bad("an endless head"));
            }
            if self.more().await?.is_none() {
                return Ok(None);
            }
        }
    }

    /// Up to `most` bytes; empty at the end.
    async fn some(&mut self, most: u64) -> io::Result<BytesMut> {
        if self.ahead.is_empty() && most > 0 && self.more().await?.is_none() {
            return Ok(BytesMut::new());
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(self.ahead.len());
        Ok(self.ahead.split_to(most))
    }

    /// Ends it with a RST.
    fn reset(self) {
        // if the other end was first, there is nothing to reset
        let _ = self.stream.set_zero_linger();
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn parse(bytes: &[u8], request: bool) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let (mut method, mut target) = (String::new(), String::new());
    let (status, headers) = if request {
        let mut head = httparse::Request::new(&mut headers);
        let status = head.parse(bytes).map_err(|e| bad(&e.to_string()))?;
        method = head.method.unwrap_or_default().to_owned();
        target = head.path.unwrap_or_default().to_owned();
        (status, head.headers)
    } else {
        let mut head = httparse::Response::new(&mut headers);
        let status = head.parse(bytes).map_err(|e| bad(&e.to_string()))?;
        (status, head.headers)
    };
    let httparse::Status::Complete(len) = status else { return Ok(None) };
    let value = |name: &str| {
        let found = headers.iter().find(|h| h.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    if request && value("transfer-encoding").is_some() {
        return Err(bad("a request in pieces of unknown length"));
    }
    let name = format!("{method} {target} {}", value("range").unwrap_or_default());
    let content_bytes = value("content-length").and_then(|n| n.parse().ok());
    Ok(Some(Head { len, name, method, content_bytes }))
}

/// The head with `Connection: close` in the place of what it says of its connection.
fn closing(head: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.len() + 32);
    let mut lines = head.split_inclusive(|b| *b == b'\n');
    out.extend(lines.next().unwrap_or_default());
    out.extend(b"Connection: close\r\n");
    let speaks_of_it = |line: &[u8]| {
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        name.eq_ignore_ascii_case(b"connection") || name.eq_ignore_ascii_case(b"keep-alive")
    };
    lines.filter(|line| !speaks_of_it(line)).for_each(|line| out.extend(line));
    out
}

fn refusal(slow_down: bool) -> Vec<u8> {
    let (status, code, more) = if slow_down {
        ("503 Service Unavailable", "SlowDown", "Retry-After: 1\r\n")
    } else {
        ("500 Internal Server Error", "InternalError", "")
    };
    let body = format!("<Error><Code>{code}</Code><Message>injected</Message></Error>");
    let len = body.len();
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/xml\r\n{more}\
         Content-Length: {len}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Where a connection is reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    Never,
    AtOnce,
    InRequest,
    InAnswer,
}

/// One exchange, from its first to its last byte.
pub(super) async fn exchange(
    client: TcpStream,
    server: SocketAddr,
    faults: &Faults,
    up: Lane<'_>,
    down: Lane<'_>,
) -> io::Result<()> {
    let mut client = Wire::new(client);
    let Some(request) = client.head(true).await? else { return Ok(()) };
    let content_bytes = request.content_bytes.unwrap_or(0);
    let Fate { kind, mut dice, mood } = faults.next(request.name.clone(), content_bytes > 0);
    match mood {
        Mood::Seeded => {}
        Mood::Answers(recorded) => {
            client.ahead.advance(request.len);
            discard(&mut client, content_bytes).await?;
            let answer = recorded.to_bytes(&request.method);
            down.send(&mut client.stream, &answer).await?;
            return client.stream.shutdown().await;
        }
        // until the relay ends, and its connections with it
        Mood::Silent => return std::future::pending().await,
    }
    let changes = matches!(request.method.as_str(), "PUT" | "POST" | "DELETE");
    let at = match kind {
        Some(FaultKind::Reset) => match dice.below(3) {
            0 => Break::AtOnce,
            1 => Break::InRequest,
            _ => Break::InAnswer,
        },
        Some(FaultKind::LostAnswer) if !changes => Break::InRequest,
        _ => Break::Never,
    };
    match kind {
        _ if at == Break::AtOnce => {
            client.reset();
            return Ok(());
        }
        Some(FaultKind::Latency) => {
            tokio::time::sleep(Duration::from_millis(dice.below(LATENCY_MS_MAX))).await;
        }
        Some(FaultKind::Stall) => {
            tokio::time::sleep(faults.options.stall).await;
            return Ok(());
        }
        Some(kind @ (FaultKind::ServerError | FaultKind::SlowDown)) => {
            client.ahead.advance(request.len);
            discard(&mut client, content_bytes).await?;
            let answer = refusal(kind == FaultKind::SlowDown);
            down.send(&mut client.stream, &answer).await?;
            return client.stream.shutdown().await;
        }
        _ => {}
    }
    let mut server = Wire::new(TcpStream::connect(server).await?);
    server.stream.set_nodelay(true)?;
    let head = client.ahead.split_to(request.len);
    up.send(&mut server.stream, &closing(&head)).await?;
    let whole = at != Break::InRequest && kind != Some(FaultKind::TruncatedUpload);
    if kind == Some(FaultKind::CorruptedUpload) {
        carry_corrupted(&mut client, &mut server.stream, up, content_bytes, &mut dice).await?;
    } else {
        let hand_on = if whole { content_bytes } else { content_bytes / 2 };
        carry(&mut client, &mut server.stream, up, hand_on).await?;
    }
    if at == Break::InRequest {
        server.reset();
        client.reset();
        return Ok(());
    }
    if !whole {
        server.stream.shutdown().await?;
        // what is left unread would reset the client's connection, and the answer would be lost
        // with it
        discard(&mut client, content_bytes - content_bytes / 2).await?;
    }
    tokio::time::sleep(up.link.delay() + down.link.delay()).await;
    answer(client, server, &request, kind, at, down, &mut dice).await
}

/// The second half: what the server says, as far as the client hears of it.
async fn answer(
    mut client: Wire,
    mut server: Wire,
    request: &Head,
    kind: Option<FaultKind>,
    at: Break,
    down: Lane<'_>,
    dice: &mut crate::Rng,
) -> io::Result<()> {
    let Some(answer) = server.head(false).await? else {
        client.reset();
        return Ok(());
    };
    if kind == Some(FaultKind::LostAnswer) {
        // to its end, so that all of it is done
        while !server.some(u64::MAX).await?.is_empty() {}
        client.reset();
        return Ok(());
    }
    let head = closing(&server.ahead.split_to(answer.len));
    let has_body = request.method != "HEAD" && answer.content_bytes != Some(0);
    let body_bytes = answer.content_bytes.filter(|_| has_body).unwrap_or(0);
    let cut = at == Break::InAnswer || kind == Some(FaultKind::Truncated);
    if cut {
        if body_bytes == 0 {
            down.send(&mut client.stream, &head[..head.len() / 2]).await?;
        } else {
            down.send(&mut client.stream, &head).await?;
            carry(&mut server, &mut client.stream, down, dice.below(body_bytes)).await?;
        }
        if at == Break::InAnswer {
            client.reset();
            return Ok(());
        }
        return client.stream.shutdown().await;
    }
    down.send(&mut client.stream, &head).await?;
    if kind == Some(FaultKind::Corrupted) && body_bytes > 0 {
        carry_corrupted(&mut server, &mut client.stream, down, body_bytes, dice).await?;
    }
    carry(&mut server, &mut client.stream, down, u64::MAX).await?;
    client.stream.shutdown().await
}

/// Hands on so many bytes, or all there are.
async fn carry(from: &mut Wire, to: &mut TcpStream, lane: Lane<'_>, bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let piece = from.some(left).await?;
        if piece.is_empty() {
            break;
        }
        left -= piece.len() as u64;
        lane.send(to, &piece).await?;
    }
    Ok(())
}

/// Hands on so many bytes, at least one, of which one is another.
async fn carry_corrupted(
    from: &mut Wire,
    to: &mut TcpStream,
    lane: Lane<'_>,
    bytes: u64,
    dice: &mut crate::Rng,
) -> io::Result<()> {
    let before = dice.below(bytes);
    carry(from, to, lane, before).await?;
    let mut byte = from.some(1).await?;
    byte.iter_mut().for_each(|b| *b ^= 1 << dice.below(8));
    lane.send(to, &byte).await?;
    carry(from, to, lane, bytes - before - 1).await
}

async fn discard(from: &mut Wire, bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let piece = from.some(left).await?;
        if piece.is_empty() {
            break;
        }
        left -= piece.len() as u64;
    }
    Ok(())
}
