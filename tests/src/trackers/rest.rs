//! A server of the *Differential Snapshot* REST draft, over HTTP or TLS.
//!
//! A thread for each connection, one request on each: nothing here is fast, and everything is said
//! as plainly as the draft would have it, unless a quirk is switched on.

use super::{Authority, Block, Blocks};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// How the names of members are spelt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RestSpelling {
    /// `changeBlockList`, as the prototype had it.
    #[default]
    Camel,
    /// `ChangeBlockList`: Go structures without tags.
    Go,
    /// `changed_blocks`.
    Snake,
}

/// What a server may do otherwise than plainly. Pages count from 1 in each enumeration; a quirk
/// with `times` works so often.
#[derive(Debug, Clone, Default)]
pub struct RestQuirks {
    /// Most blocks in a page, whatever is asked for.
    pub page_blocks: Option<u64>,
    /// How names are spelt.
    pub spelling: RestSpelling,
    /// Numbers are written as texts.
    pub numbers_as_text: bool,
    /// `nextOffset` is a number.
    pub next_as_number: bool,
    /// The last page has an empty `nextOffset` instead of none.
    pub empty_next_at_end: bool,
    /// Pages are served from the last block to the first.
    pub backwards: bool,
    /// Each block is sent twice.
    pub twice: bool,
    /// From this page on `nextOffset` stays the same.
    pub stuck_at: Option<u64>,
    /// This page is 410, so often.
    pub gone_at: Option<(u64, u32)>,
    /// From this page on `timeout` is in the past, in so many enumerations.
    pub expired_at: Option<(u64, u32)>,
    /// This page is answered with this status, so often.
    pub status_at: Option<(u64, u16, u32)>,
    /// With the status, `Retry-After` of so many seconds.
    pub retry_after: Option<u64>,
    /// The connection ends in the middle of this page, so often.
    pub cut_at: Option<(u64, u32)>,
    /// This page is never answered.
    pub silent_at: Option<u64>,
    /// The body of this page is an error with status 200.
    pub error_at: Option<(u64, String)>,
    /// The volume's size, instead of the true one.
    pub volume_bytes: Option<u64>,
    /// From this page on the volume is larger by one.
    pub growing_at: Option<u64>,
    /// Answers are redirections to this address.
    pub redirect: Option<String>,
    /// Blocks carry this context.
    pub context: Option<String>,
    /// Clients must send this token.
    pub token: Option<String>,
    /// With this token the answer is 401, and the good one is written here, as a kubelet would.
    pub stale: Option<(String, PathBuf)>,
    /// `nextOffset` is taken from this parameter, and from no other.
    pub parameter: Option<String>,
    /// A parameter that is not known is answered with 400.
    pub strict: bool,
    /// Each page is the first one, with a `nextOffset` that never came before.
    pub endless: bool,
    /// After a 410 the list is this one.
    pub after_gone: Option<Blocks>,
    /// The bodies of the answers, whatever was asked; the last one stays.
    pub bodies: VecDeque<String>,
}

/// What a client asked.
#[derive(Debug, Clone)]
pub struct RestRequest {
    /// Path without the query.
    pub path: String,
    /// Query parameters.
    pub query: BTreeMap<String, String>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
}

/// A running server; it ends when dropped.
#[derive(Debug)]
pub struct RestServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    tls: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    resources: Mutex<BTreeMap<String, Resource>>,
    requests: Mutex<Vec<RestRequest>>,
    ended: AtomicBool,
}

#[derive(Debug, Clone)]
struct Resource {
    volume_bytes: u64,
    blocks: Blocks,
    quirks: RestQuirks,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread of the server panics while it holds this")
}

impl RestServer {
    /// Over HTTP.
    pub fn http() -> Self {
        Self::start(None)
    }

    /// Over TLS, by a certificate of these names.
    pub fn tls(authority: &Authority, names: &[&str]) -> Self {
        Self::start(Some(authority.server(names)))
    }

    fn start(config: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            resources: Mutex::default(),
            requests: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let (accepting, tls) = (Arc::clone(&shared), config.is_some());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, config) = (Arc::clone(&accepting), config.clone());
                let Ok(stream) = stream else { continue };
                std::thread::spawn(move || serve(&shared, config, stream));
            }
        });
        Self { shared, address, tls, thread: Some(thread) }
    }

    /// Serves a list at `path`, which starts with a slash. Its address.
    pub fn put(&self, path: &str, volume_bytes: u64, blocks: Blocks, quirks: RestQuirks) -> String {
        let resource = Resource { volume_bytes, blocks, quirks };
        lock(&self.shared.resources).insert(path.to_owned(), resource);
        self.url(path)
    }

    /// Address of a path, by the name `localhost` over TLS.
    pub fn url(&self, path: &str) -> String {
        match self.tls {
            true => format!("https://localhost:{}{path}", self.address.port()),
            false => format!("http://{}{path}", self.address),
        }
    }

    /// What was asked so far.
    pub fn requests(&self) -> Vec<RestRequest> {
        lock(&self.shared.requests).clone()
    }
}

impl Drop for RestServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // wakes the thread that accepts
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared, config: Option<Arc<rustls::ServerConfig>>, stream: TcpStream) {
    // clients that go away in the middle are none of our business
    let _ = match config {
        None => exchange(shared, stream),
        Some(config) => rustls::ServerConnection::new(config)
            .map_err(std::io::Error::other)
            .and_then(|tls| exchange(shared, rustls::StreamOwned::new(tls, stream))),
    };
}

fn exchange(shared: &Shared, stream: impl Read + Write) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let Some(request) = read_request(&mut stream)? else { return Ok(()) };
    lock(&shared.requests).push(request.clone());
    let reply = reply(shared, &request);
    let stream = stream.get_mut();
    match reply {
        Reply::Silence => {
            while !shared.ended.load(Ordering::SeqCst) {
                std::thread::park_timeout(Duration::from_millis(20));
            }
            Ok(())
        }
        Reply::Answer { status, headers, body, cut } => {
            let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
            head.push_str("Connection: close\r\nDate: Wed, 01 Jan 2025 00:00:00 GMT\r\n");
            headers.iter().for_each(|header| head.push_str(&format!("{header}\r\n")));
            stream.write_all(head.as_bytes())?;
            stream.write_all(b"\r\n")?;
            let sent = if cut { body.len() / 2 } else { body.len() };
            stream.write_all(&body.as_bytes()[..sent])?;
            stream.flush()
        }
    }
}

/// Seconds since 1970 of the `Date` that is sent.
const NOW: u64 = 1_735_689_600;

fn read_request(stream: &mut impl BufRead) -> std::io::Result<Option<RestRequest>> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let Some(target) = line.split_whitespace().nth(1).map(str::to_owned) else { return Ok(None) };
    let mut authorization = None;
    loop {
        let mut header = String::new();
        if stream.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("authorization")
        {
            authorization = Some(value.trim().to_owned());
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
    Ok(Some(RestRequest { path: path.to_owned(), query, authorization }))
}

/// A value of a query, as browsers write it.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex: Vec<u8> = rest.by_ref().take(2).collect();
                let hex = String::from_utf8_lossy(&hex).into_owned();
                u8::from_str_radix(&hex, 16).expect("two hex digits behind %")
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).expect("a query is text")
}

enum Reply {
    Silence,
    Answer { status: u16, headers: Vec<String>, body: String, cut: bool },
}

fn answer(status: u16, headers: Vec<String>) -> Reply {
    Reply::Answer { status, headers, body: String::new(), cut: false }
}

/// Uses up one of the times of a quirk.
fn take(quirk: &mut Option<(u64, u32)>, page: u64) -> bool {
    match quirk {
        Some((at, times)) if *at == page && *times > 0 => {
            *times -= 1;
            true
        }
        _ => false,
    }
}

fn reply(shared: &Shared, request: &RestRequest) -> Reply {
    let mut resources = lock(&shared.resources);
    let Some(resource) = resources.get_mut(&request.path) else { return answer(404, vec![]) };
    let quirks = &mut resource.quirks;
    if let Some((stale, file)) = &quirks.stale
        && request.authorization.as_ref() == Some(&format!("Bearer {stale}"))
    {
        let good = quirks.token.as_ref().expect("a token is good");
        std::fs::write(file, good).expect("renew the token");
        return answer(401, vec![]);
    }
    if let Some(token) = &quirks.token
        && request.authorization.as_ref() != Some(&format!("Bearer {token}"))
    {
        let status = if request.authorization.is_some() { 403 } else { 401 };
        return answer(status, vec![]);
    }
    if let Some(address) = &quirks.redirect {
        return answer(302, vec![format!("Location: {address}")]);
    }
    let asked = request.query.get("maxEntries").and_then(|n| n.parse().ok());
    let per_page = quirks.page_blocks.or(asked.filter(|n| *n > 0)).unwrap_or(1000);
    let parameter = quirks.parameter.clone().unwrap_or_else(|| "startOffset".to_owned());
    let known = |name: &String| *name == "maxEntries" || *name == parameter;
    if quirks.strict && !request.query.keys().all(known) {
        return answer(400, vec![]);
    }
    let headers = vec!["Content-Type: application/json".to_owned()];
    if let Some(body) = match quirks.bodies.len() {
        0 | 1 => quirks.bodies.front().cloned(),
        _ => quirks.bodies.pop_front(),
    } {
        return Reply::Answer { status: 200, headers, body, cut: false };
    }
    let from = request.query.get(&parameter).map_or("0", String::as_str);
    let from = if quirks.endless { "0" } else { from };
    let from: u64 = from.trim_start_matches("at ").parse().expect("a nextOffset of ours");
    let page = from / per_page + 1;
    if quirks.silent_at == Some(page) {
        return Reply::Silence;
    }
    if take(&mut quirks.gone_at, page) {
        if let Some(blocks) = quirks.after_gone.take() {
            resource.blocks = blocks;
        }
        return answer(410, vec![]);
    }
    if let Some((at, status, times)) = &mut quirks.status_at
        && *at == page
        && *times > 0
    {
        *times -= 1;
        let after = quirks.retry_after.map(|seconds| format!("Retry-After: {seconds}"));
        return answer(*status, after.into_iter().collect());
    }
    let expired = take(&mut quirks.expired_at, page);
    let cut = take(&mut quirks.cut_at, page);
    let fresh = lock(&shared.requests).len();
    let mut body = body(resource, from, per_page, page, expired);
    if resource.quirks.endless {
        body = body.replace("\"at ", &format!("\"fresh {fresh} at "));
    }
    Reply::Answer { status: 200, headers, body, cut }
}

fn body(resource: &Resource, from: u64, per_page: u64, page: u64, expired: bool) -> String {
    let quirks = &resource.quirks;
    if let Some((at, words)) = &quirks.error_at
        && *at == page
    {
        return format!("{{\"error\":\"{words}\"}}");
    }
    let names = match quirks.spelling {
        RestSpelling::Camel => ["changeBlockList", "nextOffset", "volumeSize", "timeout"],
        RestSpelling::Go => ["ChangeBlockList", "NextOffset", "VolumeSize", "Timeout"],
        RestSpelling::Snake => ["changed_blocks", "next_offset", "volume_size", "timeout"],
    };
    let number = |n: u64| match quirks.numbers_as_text {
        true => format!("\"{n}\""),
        false => n.to_string(),
    };
    let end = (from + per_page).min(resource.blocks.count());
    let mut text = format!("{{\"{}\":[", names[0]);
    for n in from..end {
        let n = if quirks.backwards { resource.blocks.count() - 1 - n } else { n };
        for _ in 0..if quirks.twice { 2 } else { 1 } {
            let comma = if text.ends_with('[') { "" } else { "," };
            text.push_str(comma);
            block(&mut text, quirks, resource.blocks.at(n), &number);
        }
    }
    let size = quirks.volume_bytes.unwrap_or(resource.volume_bytes);
    let size = size + u64::from(quirks.growing_at.is_some_and(|at| page >= at));
    let expiry = if expired { NOW - 1 } else { NOW + 3600 };
    let _ = write!(text, "],\"{}\":{}", names[2], number(size));
    let _ = write!(text, ",\"{}\":{}", names[3], number(expiry));
    let next = if quirks.stuck_at.is_some_and(|at| page >= at) { from } else { end };
    if next < resource.blocks.count() {
        let next = match quirks.next_as_number {
            true => next.to_string(),
            // a token that a query has to quote
            false => format!("\"at {next}\""),
        };
        let _ = write!(text, ",\"{}\":{next}", names[1]);
    } else if quirks.empty_next_at_end {
        let _ = write!(text, ",\"{}\":\"\"", names[1]);
    }
    text.push('}');
    text
}

fn block(text: &mut String, quirks: &RestQuirks, block: Block, number: &dyn Fn(u64) -> String) {
    let names = match quirks.spelling {
        RestSpelling::Camel => ["offset", "size", "zeroOut", "context"],
        RestSpelling::Go => ["Offset", "Size", "ZeroOut", "Context"],
        RestSpelling::Snake => ["byte_offset", "size_bytes", "zero_out", "context"],
    };
    let (offset, len) = (number(block.offset), number(block.len));
    let _ = write!(text, "{{\"{}\":{offset},\"{}\":{len}", names[0], names[1]);
    if block.zero {
        let _ = write!(text, ",\"{}\":true", names[2]);
    }
    if let Some(context) = &quirks.context {
        let _ = write!(text, ",\"{}\":\"{context}\"", names[3]);
    }
    text.push('}');
}
