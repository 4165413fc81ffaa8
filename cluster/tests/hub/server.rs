//! An API server of Pods that keeps their past, answers gets, lists and watches, and misbehaves as
//! it is told to.

use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) const SPACE: &str = "shop";
pub(crate) const OWNER: &str = "mover.dev/owner";
/// A watch that is well tells at least this often how far it is.
const BOOKMARKS: Duration = Duration::from_millis(50);

/// How a watch goes wrong, after so many lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection ends in the middle.
    Cut,
    /// It ends as it should.
    End,
    /// Half a line comes, and the end.
    HalfAndEnd,
    /// Half a line comes, and then the next one.
    HalfAndOn,
    /// What was told is told again.
    Again,
    /// The next two lines come in the wrong order.
    Disorder,
    /// It says that it has forgotten the past.
    Gone,
    /// It says nothing more.
    Silent,
    /// It says that it is not well.
    Unwell,
    /// What it says is no JSON.
    Garbage,
    /// The watch is answered with this code.
    Refused(u16),
}

pub(crate) const FAULTS: [Fault; 12] = [
    Fault::Cut,
    Fault::End,
    Fault::HalfAndEnd,
    Fault::HalfAndOn,
    Fault::Again,
    Fault::Disorder,
    Fault::Gone,
    Fault::Silent,
    Fault::Unwell,
    Fault::Garbage,
    Fault::Refused(410),
    Fault::Refused(500),
];

#[derive(Default)]
struct State {
    version: u64,
    uids: u64,
    pods: BTreeMap<String, Value>,
    past: Vec<(u64, Option<Value>, Option<Value>)>,
    /// Of the watches to come.
    faults: VecDeque<(usize, Fault)>,
    /// Watches of an earlier one end.
    life: u32,
    watches: usize,
    reads: usize,
    /// Every list or watch of the kind is answered with this.
    refused: Option<u16>,
}

pub(crate) struct Server {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Mutex::new(State { version: 100, ..State::default() });
        let server = Arc::new(Self { state, changed: Condvar::new(), port });
        let of = Arc::clone(&server);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let of = Arc::clone(&of);
                std::thread::spawn(move || drop(of.serve(stream)));
            }
        });
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes or changes a Pod; without labels and notes it is deleted.
    pub(crate) fn write(&self, name: &str, labels_and_notes: Option<(Value, Value)>) {
        let mut state = self.state();
        state.version += 2;
        let before = state.pods.get(name).cloned();
        let after = labels_and_notes.map(|(labels, notes)| {
            let uid = match &before {
                Some(pod) => pod["metadata"]["uid"].clone(),
                None => {
                    state.uids += 1;
                    format!("uid-{}", state.uids).into()
                }
            };
            let meta = json!({
                "name": name, "namespace": SPACE, "uid": uid, "labels": labels,
                "annotations": notes, "resourceVersion": state.version.to_string(),
                "managedFields": [{ "manager": "somebody" }],
            });
            json!({ "kind": "Pod", "apiVersion": "v1", "metadata": meta })
        });
        match &after {
            Some(pod) => drop(state.pods.insert(name.to_owned(), pod.clone())),
            None => drop(state.pods.remove(name)),
        }
        let version = state.version;
        state.past.push((version, before, after));
        drop(state);
        self.changed.notify_all();
    }

    /// These happen to the next watches, one to each.
    pub(crate) fn misbehave(&self, faults: impl IntoIterator<Item = (usize, Fault)>) {
        self.state().faults.extend(faults);
    }

    /// All objects of the kind are refused, or are served again.
    pub(crate) fn refuse(&self, code: Option<u16>) {
        self.state().refused = code;
    }

    /// It was restored from an older copy: with older versions, and other objects.
    pub(crate) fn set_back(&self, versions: u64) {
        let mut state = self.state();
        state.version -= versions;
        state.life += 1;
        state.past.clear();
        let version = state.version.to_string();
        for pod in state.pods.values_mut() {
            let uid = format!("{}-again", pod["metadata"]["uid"].as_str().expect("a uid"));
            pod["metadata"]["uid"] = uid.into();
            pod["metadata"]["resourceVersion"] = version.clone().into();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Watches and readings until now.
    pub(crate) fn asked(&self) -> (usize, usize) {
        let state = self.state();
        (state.watches, state.reads)
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
            loop {
                let mut header = String::new();
                reader.read_line(&mut header)?;
                if header.trim().is_empty() {
                    break;
                }
            }
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let query: BTreeMap<String, String> = query
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .map(|(name, value)| (name.to_owned(), decoded(value)))
                .collect();
            if query.contains_key("watch") {
                // Whatever became of it, the connection has ended.
                return self.watch(&mut stream, &query);
            }
            let (code, body) = self.answer(path, &query);
            let body = body.to_string();
            let head = "Content-Type: application/json\r\nContent-Length:";
            let length = body.len();
            let text = format!("HTTP/1.1 {code} X\r\n{head} {length}\r\n\r\n{body}");
            stream.write_all(text.as_bytes())?;
        }
    }

    fn answer(&self, path: &str, query: &BTreeMap<String, String>) -> (u16, Value) {
        let mut state = self.state();
        state.reads += 1;
        let name = path.strip_prefix(&format!("/api/v1/namespaces/{SPACE}/pods/"));
        if let Some(code) = state.refused.filter(|_| name.is_none()) {
            return (code, status(code));
        }
        if let Some(name) = name {
            return match state.pods.get(name) {
                Some(pod) => (200, pod.clone()),
                None => (404, status(404)),
            };
        }
        let is_in = |pod: &&Value| is_selected(query, pod);
        let items: Vec<&Value> = state.pods.values().filter(is_in).collect();
        let meta = json!({ "resourceVersion": state.version.to_string() });
        (200, json!({ "kind": "PodList", "metadata": meta, "items": items }))
    }

    fn watch(
        &self,
        stream: &mut TcpStream,
        query: &BTreeMap<String, String>,
    ) -> std::io::Result<()> {
        let from: u64 = query["resourceVersion"].parse().expect("a version");
        let (life, fault, refused) = {
            let mut state = self.state();
            state.watches += 1;
            (state.life, state.faults.pop_front(), state.refused)
        };
        let refused = match fault {
            Some((_, Fault::Refused(code))) => Some(code),
            _ => refused,
        };
        if let Some(code) = refused {
            let body = status(code).to_string();
            return write!(
                stream,
                "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
        let head = "HTTP/1.1 200 X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes())?;
        let mut told: Vec<String> = Vec::new();
        let mut at = self.state().past.partition_point(|(version, ..)| *version <= from);
        loop {
            let Some((lines, now)) = self.lines(life, at, query) else { return Ok(()) };
            at = now;
            let mut lines = VecDeque::from(lines);
            while let Some(line) = lines.pop_front() {
                if let Some((after, fault)) = fault
                    && told.len() == after
                    && !self.go_wrong(stream, fault, &line, &mut lines, &told)?
                {
                    return Ok(());
                }
                chunk(stream, &format!("{line}\n"))?;
                told.push(line);
            }
        }
    }

    /// Does what is wrong; whether the watch goes on.
    fn go_wrong(
        &self,
        stream: &mut TcpStream,
        fault: Fault,
        line: &str,
        next: &mut VecDeque<String>,
        told: &[String],
    ) -> std::io::Result<bool> {
        let failed = |code: u16| json!({ "type": "ERROR", "object": status(code) }).to_string();
        match fault {
            Fault::Cut => stream.write_all(b"40\r\n{\"type\":").map(|()| false),
            Fault::End => chunk(stream, "").map(|()| false),
            Fault::HalfAndEnd => {
                chunk(stream, &line[..line.len() / 2])?;
                chunk(stream, "").map(|()| false)
            }
            Fault::HalfAndOn => {
                chunk(stream, &format!("{}\n", &line[..line.len() / 2]))?;
                match next.pop_front() {
                    Some(next) => chunk(stream, &format!("{next}\n")).map(|()| true),
                    None => Ok(false),
                }
            }
            Fault::Again => {
                told.iter().try_for_each(|line| chunk(stream, &format!("{line}\n")))?;
                Ok(true)
            }
            Fault::Disorder => {
                match next.pop_front() {
                    Some(next) => chunk(stream, &format!("{next}\n"))?,
                    None => return Ok(false),
                }
                Ok(true)
            }
            Fault::Gone => chunk(stream, &format!("{}\n", failed(410))).map(|()| false),
            Fault::Unwell => chunk(stream, &format!("{}\n", failed(500))).map(|()| false),
            Fault::Garbage => chunk(stream, "<html>\n").map(|()| true),
            Fault::Silent => {
                // Until the client gives it up, which is its own end alone.
                while stream.peek(&mut [0]).is_ok_and(|read| read > 0) {}
                Ok(false)
            }
            Fault::Refused(_) => Ok(true),
        }
    }

    /// What has happened since, or a bookmark; nothing where the server's life has ended.
    fn lines(
        &self,
        life: u32,
        at: usize,
        query: &BTreeMap<String, String>,
    ) -> Option<(Vec<String>, usize)> {
        let state = self.state();
        let is_quiet = |state: &mut State| state.life == life && state.past.len() == at;
        let (state, _) = self
            .changed
            .wait_timeout_while(state, BOOKMARKS, is_quiet)
            .unwrap_or_else(PoisonError::into_inner);
        if state.life != life {
            return None;
        }
        let mut lines: Vec<String> =
            state.past[at..].iter().filter_map(|past| line(past, query)).collect();
        if lines.is_empty() {
            let meta = json!({ "resourceVersion": state.version.to_string() });
            let object = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": meta });
            lines.push(json!({ "type": "BOOKMARK", "object": object }).to_string());
        }
        Some((lines, state.past.len()))
    }
}

fn line(
    (version, before, after): &(u64, Option<Value>, Option<Value>),
    query: &BTreeMap<String, String>,
) -> Option<String> {
    let is_in = |pod: &&Value| is_selected(query, pod);
    let (word, pod) = match (before.as_ref().filter(is_in), after.as_ref().filter(is_in)) {
        (None, None) => return None,
        (None, Some(pod)) => ("ADDED", pod.clone()),
        (Some(_), Some(pod)) => ("MODIFIED", pod.clone()),
        (Some(pod), None) => {
            let mut pod = pod.clone();
            pod["metadata"]["resourceVersion"] = version.to_string().into();
            ("DELETED", pod)
        }
    };
    Some(json!({ "type": word, "object": pod }).to_string())
}

fn is_selected(query: &BTreeMap<String, String>, pod: &Value) -> bool {
    let field = query.get("fieldSelector").and_then(|text| text.strip_prefix("metadata.name="));
    let labels = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let owner = &pod["metadata"]["labels"][OWNER];
    field.is_none_or(|name| pod["metadata"]["name"] == name)
        && match labels.split_once('=') {
            Some((_, value)) => owner == value,
            None => labels.is_empty() || owner.is_string(),
        }
}

fn chunk(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn status(code: u16) -> Value {
    let reason = if code == 410 { "Expired" } else { "Unknown" };
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "code": code, "message": "as it is told to", "metadata": {},
    })
}

fn decoded(text: &str) -> String {
    let mut rest = text.as_bytes();
    let mut all = Vec::new();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let code = rest.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, code.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                all.push(byte);
                rest = &rest[2..];
            }
            (b'+', _) => all.push(b' '),
            (other, _) => all.push(*other),
        }
    }
    String::from_utf8(all).expect("text")
}
