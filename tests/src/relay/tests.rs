use super::link::RateLimiter;
use super::{FaultKind, FaultOptions, LinkOptions, Relay, RelayOptions};
use crate::Rng;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A server that reads all of each connection and then answers with what `answer` makes of it.
fn server(
    connections: usize,
    answer: impl Fn(Vec<u8>) -> Vec<u8> + Copy + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    let thread = std::thread::spawn(move || {
        let serve = |_| {
            let (mut stream, _) = listener.accept().expect("accept");
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).expect("read a request");
                stream.write_all(&answer(bytes)).expect("answer");
            })
        };
        let threads: Vec<_> = (0..connections).map(serve).collect();
        threads.into_iter().for_each(|t| t.join().expect("serve"));
    });
    (address, thread)
}

fn ask(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.write_all(request).expect("send");
    stream.shutdown(Shutdown::Write).expect("end the request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("read the answer");
    answer
}

fn mirrored(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.reverse();
    bytes
}

#[test]
fn bytes_of_many_connections_pass_unchanged_both_ways() {
    const CONNECTIONS: usize = 8;
    let (address, serving) = server(CONNECTIONS, mirrored);
    let options = RelayOptions::symmetric(address, Duration::from_millis(2), Some(64 * MIB as u64));
    let relay = Relay::start(options).expect("start a relay");
    let mut random = Rng::new(2601);
    let requests: Vec<Vec<u8>> = (0..CONNECTIONS).map(|i| random.bytes(100_000 * i + 1)).collect();
    let total: usize = requests.iter().map(Vec::len).sum();
    std::thread::scope(|scope| {
        for request in requests {
            let to = relay.address();
            scope.spawn(move || assert!(ask(to, &request) == mirrored(request)));
        }
    });
    serving.join().expect("serve");
    let counts = relay.counts();
    assert_eq!((counts.up_bytes, counts.down_bytes), (total as u64, total as u64));
    assert_eq!(counts.connections, CONNECTIONS as u64);
}

#[test]
fn a_request_takes_its_handshake_and_its_round_trip() {
    let (address, serving) = server(1, mirrored);
    let up = LinkOptions { delay: Duration::from_millis(30), bytes_per_second: None };
    let down = LinkOptions { delay: Duration::from_millis(20), bytes_per_second: None };
    let options = RelayOptions { up, down, ..RelayOptions::symmetric(address, up.delay, None) };
    let relay = Relay::start(options).expect("start a relay");
    let begun = Instant::now();
    assert_eq!(ask(relay.address(), b"ping"), b"gnip");
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
    serving.join().expect("serve");
}

#[test]
fn all_connections_together_keep_to_the_rate() {
    const CONNECTIONS: usize = 4;
    let (address, serving) = server(CONNECTIONS, |bytes| bytes[..1].to_vec());
    let options = RelayOptions::symmetric(address, Duration::ZERO, Some(4 * MIB as u64));
    let relay = Relay::start(options).expect("start a relay");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| ask(relay.address(), &vec![7; MIB / 4]));
        }
    });
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    serving.join().expect("serve");
}

#[test]
fn a_server_that_is_not_there_ends_the_connection() {
    // bound and dropped: nobody listens there
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
    let options = RelayOptions::symmetric(nobody, Duration::ZERO, None);
    let relay = Relay::start(options).expect("start a relay");
    let mut stream = TcpStream::connect(relay.address()).expect("the relay accepts");
    let mut byte = [0];
    assert!(matches!(stream.read(&mut byte), Ok(0) | Err(_)));
}

#[test]
fn what_is_booked_leaves_one_after_the_other_and_idle_time_is_not_saved() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut pace = RateLimiter::new(Some(MIB as u64), start);
    assert_eq!(pace.book(start, MIB / 4), at(250));
    assert_eq!(pace.ahead(at(100)), Duration::from_millis(150));
    assert_eq!(pace.book(at(100), MIB / 4), at(500));
    assert_eq!(pace.ahead(at(9000)), Duration::ZERO);
    assert_eq!(pace.book(at(9000), MIB), at(10_000));
    let mut endless = RateLimiter::new(None, start);
    assert_eq!(endless.book(at(3), usize::MAX), at(3));
}

/// What a server gets of an upload of `body` that meets this, and what the client hears: what the
/// server has got.
fn uploaded(kind: FaultKind, body: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    let len = body.len();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        let body_at = |got: &[u8]| got.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4);
        while body_at(&got).is_none_or(|at| got.len() < at + len) {
            match stream.read(&mut buffer).expect("read a request") {
                0 => break,
                n => got.extend_from_slice(&buffer[..n]),
            }
        }
        let got = got.split_off(body_at(&got).expect("a whole head"));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", got.len());
        stream.write_all(&[head.as_bytes(), &got].concat()).expect("answer");
        got
    });
    let stall = Duration::ZERO;
    let faults = FaultOptions { seed: 1, percent: 100, kinds: vec![kind], only: "/meant", stall };
    let relay = Relay::start(RelayOptions::faulty(address, faults)).expect("start a relay");
    let head = format!("PUT /meant HTTP/1.1\r\nHost: h\r\nContent-Length: {len}\r\n\r\n");
    let answer = ask(relay.address(), &[head.as_bytes(), body].concat());
    let got = serving.join().expect("serve");
    assert_eq!(relay.fault_counts().expect("faults").met, [(kind, 1)]);
    (got, answer)
}

#[test]
fn uploads_are_cut_short_or_changed_and_the_answer_comes_back() {
    let body = Rng::new(2602).bytes(300_000);
    let (got, answer) = uploaded(FaultKind::TruncatedUpload, &body);
    assert!(got == body[..body.len() / 2], "{} bytes", got.len());
    assert!(answer.ends_with(&got), "{} bytes", answer.len());
    let (got, answer) = uploaded(FaultKind::CorruptedUpload, &body);
    assert_eq!(got.len(), body.len());
    let flipped: u32 = got.iter().zip(&body).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(flipped, 1);
    assert!(answer.ends_with(&got), "{} bytes", answer.len());
}

#[test]
fn only_what_is_meant_and_has_a_body_meets_faults_of_uploads() {
    let stall = Duration::ZERO;
    let kinds = vec![FaultKind::CorruptedUpload];
    let faults = FaultOptions { seed: 1, percent: 100, kinds, only: "/meant", stall };
    let faults = super::faults::Faults::new(faults);
    for (name, has_body, met) in
        [("PUT /meant ", true, true), ("PUT /other ", true, false), ("GET /meant ", false, false)]
    {
        assert_eq!(faults.next(name.into(), has_body).kind.is_some(), met, "{name}");
    }
}
