//! Answers as stores and token services give them that no test can have at will: the words are
//! those of the real ones, the server that says them is not.

use crate::Authority;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// One HTTP answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Such as `403 Forbidden`.
    pub status: &'static str,
    /// Such as `Date: Wed, 01 Jan 2025 00:00:00 GMT`.
    pub headers: Vec<String>,
    /// Its body.
    pub body: String,
}

impl Recorded {
    /// An error of S3.
    pub fn s3(status: &'static str, code: &str, message: &str) -> Self {
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
             <Message>{message}</Message><RequestId>4442587FB7D0A2F9</RequestId></Error>"
        );
        Self { status, headers: vec!["Content-Type: application/xml".to_owned()], body }
    }

    /// An error of AWS's token service.
    pub fn sts(status: &'static str, code: &str, message: &str) -> Self {
        let body = format!(
            "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n  <Error>\n    \
             <Type>Sender</Type>\n    <Code>{code}</Code>\n    <Message>{message}</Message>\n  \
             </Error>\n  <RequestId>a9e2c9a4-5d2c-4a5f-8d2f-0f6f3d0f2b11</RequestId>\n\
             </ErrorResponse>\n"
        );
        Self { status, headers: vec!["Content-Type: text/xml".to_owned()], body }
    }

    /// With a `Date` so many seconds from now, as a server's clock may have it.
    #[must_use]
    pub fn dated(mut self, seconds_from_now: i64) -> Self {
        let time = chrono::Utc::now() + chrono::TimeDelta::seconds(seconds_from_now);
        self.headers.push(format!("Date: {}", time.format("%a, %d %b %Y %H:%M:%S GMT")));
        self
    }

    /// As it goes over the line: to a HEAD without its body.
    pub(crate) fn to_bytes(&self, method: &str) -> Vec<u8> {
        let mut answer = format!("HTTP/1.1 {}\r\nConnection: close\r\n", self.status);
        self.headers.iter().for_each(|header| answer.push_str(&format!("{header}\r\n")));
        answer.push_str(&format!("Content-Length: {}\r\n\r\n", self.body.len()));
        if method != "HEAD" {
            answer.push_str(&self.body);
        }
        answer.into_bytes()
    }
}

/// A server over TLS that gives every request the same answer; it ends when dropped.
#[derive(Debug)]
pub struct RecordedServer {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RecordedServer {
    /// By a certificate for `localhost`.
    pub fn tls(authority: &Authority, answer: Recorded) -> Self {
        let config = authority.server(&["localhost"]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let ended = Arc::new(AtomicBool::new(false));
        let accepting = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let tls = rustls::ServerConnection::new(Arc::clone(&config)).expect("TLS");
                // clients that go away in the middle are none of our business
                let _ = exchange(rustls::StreamOwned::new(tls, stream), &answer);
            }
        });
        Self { address, ended, thread: Some(thread) }
    }

    /// Where it is, by the name of its certificate.
    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }
}

impl Drop for RecordedServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // wakes the thread that accepts
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn exchange(stream: impl Read + Write, answer: &Recorded) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut method, mut body_bytes) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim_end().split_once(':') {
            _ if line.trim_end().is_empty() => break,
            _ if method.is_empty() => {
                line.split_whitespace().next().unwrap_or_default().clone_into(&mut method);
            }
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                body_bytes = value.trim().parse().unwrap_or(0);
            }
            _ => {}
        }
    }
    std::io::copy(&mut stream.by_ref().take(body_bytes), &mut std::io::sink())?;
    stream.get_mut().write_all(&answer.to_bytes(&method))?;
    stream.get_mut().flush()
}
