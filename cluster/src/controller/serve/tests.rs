//! Clients that misbehave, over real sockets; all the while somebody else is answered.

use super::*;
use std::io::{Read as _, Write as _};
use std::net::TcpStream as Client;

const QUICK: Patience = Patience {
    head: Duration::from_millis(400),
    age: Duration::from_millis(1_500),
    farewell: Duration::from_millis(300),
    places: 16,
};
const PATIENCE: Duration = Duration::from_secs(20);

struct Server {
    page: SocketAddr,
    metrics: SocketAddr,
    shown: Shown,
}

/// On a thread of its own, with a runtime of one thread as the controller has it.
fn server(limits: Patience) -> Server {
    let loopback = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let doors = Doors { page: loopback, metrics: loopback, page_hosts: vec!["b.example".into()] };
    let shown = Shown::default();
    shown.lock().expect("a lock").heard(Utc::now());
    let known = Arc::clone(&shown);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let serve = Serve::bind(doors, known, Metrics::default()).await.expect("addresses");
            sender.send(serve.addresses()).expect("somebody waits");
            serve.with_limits(limits).run().await;
        });
    });
    let addresses = receiver.recv().expect("it listens");
    Server { page: addresses[0], metrics: addresses[1], shown }
}

fn client(address: SocketAddr) -> Client {
    let client = Client::connect(address).expect("it accepts");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    client
}

/// All that comes until the other end closes. A reset is an end as well.
fn rest(mut client: &Client) -> String {
    let mut all = Vec::new();
    let mut part = [0; 8_192];
    loop {
        match client.read(&mut part) {
            Ok(0) => break,
            Ok(length) => all.extend_from_slice(&part[..length]),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => break,
            Err(e) => panic!("it is not closed: {e}"),
        }
    }
    String::from_utf8_lossy(&all).into_owned()
}

fn said(address: SocketAddr, request: &str) -> String {
    let mut client = client(address);
    let _ = client.write_all(request.as_bytes());
    rest(&client)
}

fn get(address: SocketAddr, path: &str) -> String {
    said(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

fn assert_well(server: &Server) {
    let begun = Instant::now();
    assert!(get(server.metrics, "/healthz").starts_with("HTTP/1.1 200 "));
    assert!(get(server.page, "/").contains("<h1>Backups"));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn each_door_has_its_own_paths() {
    let server = server(Patience::default());
    for (path, on_page, on_metrics) in [
        ("/", 200, 404),
        ("/?namespace=a&page=2", 200, 404),
        ("/metrics", 404, 200),
        ("/healthz", 200, 200),
        ("/readyz", 200, 200),
        ("/../etc/passwd", 404, 404),
        ("//", 404, 404),
    ] {
        for (address, code) in [(server.page, on_page), (server.metrics, on_metrics)] {
            let answer = get(address, path);
            assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{path}: {answer}");
        }
    }
    assert!(get(server.metrics, "/metrics").contains("\nmover_controller_build_info{version=\""));
}

#[test]
fn answers_have_headers_that_keep_others_out() {
    let server = server(Patience::default());
    let answer = get(server.page, "/").to_lowercase();
    let (head, _) = answer.split_once("\r\n\r\n").expect("a head");
    for header in [
        "content-security-policy: default-src 'none'; style-src 'sha256-",
        "x-content-type-options: nosniff",
        "x-frame-options: deny",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "cross-origin-resource-policy: same-origin",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert!(!head.contains("set-cookie") && !head.contains("\r\nserver:"), "{head}");
}

#[test]
fn the_page_answers_to_its_own_names_only() {
    let server = server(Patience::default());
    let with = |first: &str, host: &str| {
        said(server.page, &format!("{first}\r\n{host}Connection: close\r\n\r\n"))
    };
    for host in ["localhost", "127.0.0.1:8080", "[::1]", "B.example:99"] {
        let answer = with("GET / HTTP/1.1", &format!("Host: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    for (first, hosts) in [
        ("GET / HTTP/1.1", "Host: rebind.evil.example\r\n"),
        ("GET / HTTP/1.1", "Host: localhost\r\nHost: evil.example\r\n"),
        ("GET / HTTP/1.1", "Host: \r\n"),
        ("GET / HTTP/1.1", "Host: \u{fe}\r\n"),
        ("GET / HTTP/1.0", ""),
        ("GET http://evil.example/ HTTP/1.1", "Host: localhost\r\n"),
    ] {
        let answer = with(first, hosts);
        assert!(answer.starts_with("HTTP/1."), "{first} {hosts}: {answer}");
        assert!(answer[8..].starts_with(" 421 ") || answer[8..].starts_with(" 400 "), "{answer}");
        assert!(!answer.contains("<h1>"), "{answer}");
    }
    // Prometheus and kubelets ask by address.
    let answer = said(
        server.metrics,
        "GET /metrics HTTP/1.1\r\nHost: 10.1.2.3:8081\r\nConnection: close\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn only_reading_is_possible() {
    let server = server(QUICK);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW"] {
        let request =
            format!("{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        let answer = said(server.page, &request).to_lowercase();
        assert!(
            answer.starts_with("http/1.1 405 ") && answer.contains("\r\nallow: get, head\r\n"),
            "{answer}"
        );
    }
    let head = said(server.page, "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let (head, body) = head.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}\n\n{body}");
    let length = |text: &str| {
        let line = text.lines().find(|line| line.to_lowercase().starts_with("content-length: "));
        line.expect("a length").to_lowercase()
    };
    let whole = get(server.page, "/");
    assert_eq!(length(head), length(&whole));
    // A body that never comes is not waited for.
    let greedy = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n";
    assert!(said(server.page, greedy).starts_with("HTTP/1.1 405 "));
}

#[test]
fn half_a_request_and_silence_ends_the_connection() {
    let server = server(QUICK);
    for part in ["", "G", "GET / HTTP/1.1\r\nHost: localh", "GET / HTTP/1.1\r\nHost: localhost\r\n"]
    {
        let begun = Instant::now();
        let answer = said(server.page, part);
        assert!(begun.elapsed() < Duration::from_secs(10), "{part:?}: {:?}", begun.elapsed());
        assert!(!answer.contains("<h1>"), "{part:?}: {answer}");
    }
    assert_well(&server);
}

#[test]
fn a_byte_now_and_then_keeps_no_connection() {
    let server = server(QUICK);
    let mut slow = client(server.page);
    let begun = Instant::now();
    let text = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let (_never, tick) = std::sync::mpsc::channel::<()>();
    for byte in text.iter().cycle() {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        let _ = tick.recv_timeout(Duration::from_millis(40));
        assert!(begun.elapsed() < Duration::from_secs(15), "it is still listened to");
    }
    assert_well(&server);
}

#[test]
fn long_heads_and_noise_are_refused() {
    let server = server(QUICK);
    let long = "x".repeat(1 << 20);
    let many: String = (0..1_000).map(|n| format!("X-{n}: 1\r\n")).collect();
    for request in [
        format!("GET /?find={long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"),
        format!("GET /?find={} HTTP/1.1\r\nHost: localhost\r\n\r\n", &long[..3_000]),
        long.clone(),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}".into(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        "GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nzz"
            .into(),
        "\r\n".repeat(20_000),
    ] {
        let answer = said(server.page, &request);
        let start: String = request.chars().take(60).collect();
        assert!(!answer.contains("<h1>") || start.contains("HTTP/1.1"), "{start}: {answer}");
        assert!(request.len() < 1_000 || !answer.contains("<h1>"), "{start}");
    }
    assert_well(&server);
}

#[test]
fn a_thousand_idle_connections_keep_nobody_out() {
    let server = server(Patience { head: Duration::from_secs(600), ..QUICK });
    for _ in 0..2 {
        let mut idle: Vec<Client> = Vec::new();
        for number in 0..500 {
            let address = if number % 2 == 0 { server.page } else { server.metrics };
            let mut client = client(address);
            let _ = client.write_all(b"GET / HTTP/1.1\r\n");
            idle.push(client);
        }
        assert_well(&server);
        drop(idle);
    }
    assert_well(&server);
}

#[test]
fn requests_in_one_go_are_answered_in_turn() {
    let server = server(QUICK);
    let one = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let last = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answers = said(server.metrics, &format!("{}{last}", one.repeat(50)));
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 51, "{answers}");
    assert!(
        answers.rfind("mover_controller").unwrap_or_default() > answers.rfind("ok\n").expect("one")
    );
}

#[test]
fn who_never_reads_is_left_alone() {
    let server = server(QUICK);
    let one = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut deaf: Vec<Client> = Vec::new();
    for _ in 0..8 {
        let mut client = client(server.page);
        client.set_nonblocking(true).expect("a mode");
        // Until neither end takes any more.
        let mut refused = 0;
        while refused < 1_000 {
            match client.write(one.repeat(100).as_bytes()) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => refused += 1,
                Err(_) => break,
            }
        }
        deaf.push(client);
    }
    assert_well(&server);
    // Each is let go of by its age: reading what was sent comes to an end.
    for client in &deaf {
        client.set_nonblocking(false).expect("a mode");
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        rest(client);
    }
    assert_well(&server);
}

#[test]
fn ready_is_who_hears_the_cluster() {
    let server = server(Patience::default());
    assert!(get(server.metrics, "/readyz").starts_with("HTTP/1.1 200 "));
    *server.shown.lock().expect("a lock") = Known::default();
    assert!(get(server.metrics, "/readyz").starts_with("HTTP/1.1 503 "));
    let long_ago = Utc::now() - crate::page::STALE_AFTER - chrono::TimeDelta::seconds(1);
    server.shown.lock().expect("a lock").heard(long_ago);
    assert!(get(server.metrics, "/readyz").starts_with("HTTP/1.1 503 "));
    assert!(get(server.metrics, "/healthz").starts_with("HTTP/1.1 200 "), "it lives");
    let page = get(server.page, "/");
    assert!(page.contains("heard nothing from the API server for 6 min"), "{page}");
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let address = taken.local_addr().expect("an address");
    let doors = Doors { page: Some(address), metrics: None, page_hosts: Vec::new() };
    let error = Serve::bind(doors, Shown::default(), Metrics::default()).await;
    let error = error.expect_err("it is taken").to_string();
    assert!(error.contains(&address.to_string()), "{error}");
}
