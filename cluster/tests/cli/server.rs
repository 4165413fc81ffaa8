//! An API server of fixed answers, one thread, over plain HTTP.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A request as it was sent: method, path with its query, and body.
pub(crate) type Sent = (String, String, Value);

/// What is answered to a path, or to `METHOD PATH`, which comes first: an object, or a code and a
/// message. All else is 404.
pub(crate) enum Answer {
    Object(Value),
    /// What was sent, with these members besides.
    Made(Value),
    Refused(u16, &'static str),
    /// So often that it is too busy, which passes, and then this.
    Busy(AtomicU32, Value),
    /// So often that somebody else came before, and then this.
    Contended(AtomicU32, Value),
    /// A list in pages. So often the server has forgotten the list when its second page is asked for.
    Pages(AtomicU32, Vec<Vec<Value>>),
}

pub(crate) struct Server {
    config: PathBuf,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Server {
    pub(crate) fn start(name: &str, answers: BTreeMap<String, Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let answers = Arc::new(answers);
        let sent: Arc<Mutex<Vec<Sent>>> = Arc::default();
        let all = Arc::clone(&sent);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answers, sent) = (Arc::clone(&answers), Arc::clone(&all));
                std::thread::spawn(move || drop(serve(stream, &answers, &sent)));
            }
        });
        let config = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.kubeconfig"));
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{
                "name": "it", "cluster": { "server": format!("http://127.0.0.1:{port}") },
            }],
            "users": [{ "name": "it", "user": {} }],
            "contexts": [{
                "name": "it", "context": { "cluster": "it", "user": "it", "namespace": "shop" },
            }],
        });
        std::fs::write(&config, text.to_string()).expect("the configuration");
        Self { config, sent }
    }

    /// All requests until now, in their order.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().expect("no thread has failed").clone()
    }

    /// Runs `kubectl mover` with these arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kubectl-mover"))
            .arg("--kubeconfig")
            .arg(&self.config)
            .args(arguments)
            .output()
            .expect("it runs")
    }
}

fn serve(
    stream: TcpStream,
    answers: &BTreeMap<String, Answer>,
    sent: &Mutex<Vec<Sent>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split(' ').map(str::to_owned);
        let (method, full) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = full.split('?').next().unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(text) = header.strip_prefix("content-length:") {
                length = text.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let was_sent = body.clone();
        sent.lock().expect("no thread has failed").push((method.clone(), full.clone(), body));
        let refused = |code: u16, message: &str| {
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unknown",
                "code": code, "message": message,
            });
            (code, status.to_string())
        };
        let answer = answers.get(&format!("{method} {path}")).or_else(|| answers.get(&path));
        let less = |left: u32| left.checked_sub(1);
        let (code, body) = match answer {
            Some(Answer::Object(object)) => (200, object.to_string()),
            Some(Answer::Made(more)) => (201, with(was_sent, more).to_string()),
            Some(Answer::Refused(code, message)) => refused(*code, message),
            Some(Answer::Contended(times, object)) => {
                match times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
                    Ok(_) => refused(409, "the object has been modified"),
                    Err(_) => (200, object.to_string()),
                }
            }
            Some(Answer::Busy(times, object)) => {
                match times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
                    Ok(_) => refused(429, "too many requests"),
                    Err(_) => (200, object.to_string()),
                }
            }
            Some(Answer::Pages(times, pages)) => match page_of(&full, times, pages) {
                Some(page) => (200, page.to_string()),
                None => refused(410, "the provided continue parameter is too old"),
            },
            None => refused(404, "not found"),
        };
        let head = format!(
            "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\n{}Content-Length: {}\r\n\r\n",
            if code == 429 { "Retry-After: 0\r\n" } else { "" },
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    }
}

/// An object with the members of another one.
fn with(mut object: Value, more: &Value) -> Value {
    match (&mut object, more) {
        (Value::Object(of), Value::Object(more)) => {
            for (name, value) in more {
                let old = of.remove(name).unwrap_or_default();
                of.insert(name.clone(), with(old, value));
            }
            object
        }
        _ => more.clone(),
    }
}

/// The page that a request asks for, unless it is forgotten.
fn page_of(path: &str, forgets: &AtomicU32, pages: &[Vec<Value>]) -> Option<Value> {
    let token = path.split_once("continue=").map(|(_, rest)| rest);
    let page = token.map_or(0, |text| text.parse().expect("a token of ours"));
    let less = |left: u32| left.checked_sub(1);
    if page > 0 && forgets.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
        return None;
    }
    let next = (page + 1 < pages.len()).then(|| (page + 1).to_string());
    Some(json!({ "items": pages[page], "metadata": { "continue": next } }))
}
