//! A server of locks beside a store in memory: it answers HEAD and `PUT ?retention` over HTTP as S3
//! does, and remembers.

use super::RetainingClients;
use crate::store::{RetainMode, RetainPolicy, Retention, Store, StoreOptions, open_url_with};
use chrono::DateTime;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

type Locks = Arc<Mutex<HashMap<String, Retention>>>;

/// The status with which it answers whether the bucket has locks.
type Question = Arc<Mutex<&'static str>>;

/// See the module.
pub(crate) struct LockServer(Locks, Question);

impl LockServer {
    /// Starts one, and gives a store of `inner` that locks what is written by `policy`.
    pub(crate) fn start(inner: &Arc<InMemory>, policy: RetainPolicy) -> (Self, Store) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (locks, question) = (Locks::default(), Arc::new(Mutex::new("404 Not Found")));
        let (objects, remembered) = (Arc::clone(inner), Arc::clone(&locks));
        let asked = Arc::clone(&question);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            for stream in listener.incoming() {
                let exists = |key: &str| runtime.block_on(objects.head(&Path::from(key))).is_ok();
                serve(stream.unwrap(), &remembered, &asked, exists);
            }
        });
        let settings = [
            ("aws_endpoint", endpoint.as_str()),
            ("aws_access_key_id", "key"),
            ("aws_secret_access_key", "secret"),
            ("aws_region", "us-east-1"),
            ("aws_allow_http", "true"),
        ];
        let remote = open_url_with("s3://bucket", &StoreOptions::default(), &settings).unwrap();
        let objects: Arc<dyn ObjectStore> = Arc::clone(inner) as _;
        let mut store = Store::new(Arc::clone(&objects), Path::default(), "memory:///");
        store.lock = remote.lock;
        store.retaining =
            Some(RetainingClients { policy, small: Arc::clone(&objects), bulk: objects });
        (Self(locks, question), store)
    }

    /// From now on that is the answer to who asks whether the bucket has locks.
    pub(crate) fn says_of_bucket(&self, status: &'static str) {
        *self.1.lock().unwrap() = status;
    }

    pub(crate) fn lock_of(&self, key: &str) -> Option<Retention> {
        self.0.lock().unwrap().get(key).copied()
    }
}

fn serve(mut stream: TcpStream, locks: &Locks, question: &Question, exists: impl Fn(&str) -> bool) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    let (head, body_at) = loop {
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => request.extend_from_slice(&buffer[..n]),
            _ => return,
        }
        if let Some(at) = request.windows(4).position(|w| w == b"\r\n\r\n") {
            break (String::from_utf8_lossy(&request[..at]).into_owned(), at + 4);
        }
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    while request.len() < body_at + length.unwrap_or(0_usize) {
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => request.extend_from_slice(&buffer[..n]),
            _ => return,
        }
    }
    let body = String::from_utf8_lossy(&request[body_at..]).into_owned();
    let mut words = head.split([' ', '?']);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let key = path.trim_start_matches("/bucket").trim_start_matches('/');
    let mut locks = locks.lock().unwrap();
    let (status, headers) = match method {
        _ if key.is_empty() => (*question.lock().unwrap(), String::new()),
        _ if !exists(key) => ("404 Not Found", String::new()),
        "PUT" => {
            locks.insert(key.to_owned(), retention(&body));
            ("200 OK", String::new())
        }
        _ => ("200 OK", locks.get(key).map(headers_of).unwrap_or_default()),
    };
    let answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n{headers}\r\n");
    let _ = stream.write_all(answer.as_bytes());
}

fn retention(body: &str) -> Retention {
    let of = |tag: &str| {
        let (_, rest) = body.split_once(&format!("<{tag}>")).unwrap();
        rest.split('<').next().unwrap().to_owned()
    };
    let mode = match of("Mode").as_str() {
        "COMPLIANCE" => RetainMode::Compliance,
        _ => RetainMode::Governance,
    };
    let until = DateTime::parse_from_rfc3339(&of("RetainUntilDate")).unwrap().to_utc();
    Retention { mode, until }
}

fn headers_of(lock: &Retention) -> String {
    let (mode, until) = (lock.mode.to_string().to_uppercase(), lock.until.to_rfc3339());
    format!("x-amz-object-lock-mode: {mode}\r\nx-amz-object-lock-retain-until-date: {until}\r\n")
}
