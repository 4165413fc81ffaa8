//! A store that is not there: what is said at once, and when a run gives up. Times have generous
//! bounds; `chunkstore/src/store/health.rs` has the exact ones in virtual time.

use super::{expect_error, p, random_bytes};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tests::{Authority, Mover, Relay, RelayOptions, require_s3, work_dir};

/// Generous: what is to be said within two seconds.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Generous: what is to be over within fifteen.
const SOON: Duration = Duration::from_secs(30);

fn at(endpoint: &str) -> Mover {
    Mover::new()
        .env("AWS_ENDPOINT", endpoint)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "no-secret-at-all")
        .env("MOVER_REPO", "s3://bucket/prefix")
}

/// Lines of stderr with their times, and the exit code.
fn timed(mover: &Mover, line: &[&str]) -> (Vec<(Duration, String)>, Option<i32>, Duration) {
    let begun = Instant::now();
    let mut command = mover.command(line);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start it");
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    let lines = stderr.lines().map(|l| (begun.elapsed(), l.expect("UTF-8"))).collect();
    let code = child.wait().expect("wait for it").code();
    (lines, code, begun.elapsed())
}

fn says_so_and_gives_up(endpoint: &str, word: &str) {
    let (lines, code, took) = timed(&at(endpoint), &["list"]);
    assert_eq!(code, Some(1), "{lines:?}");
    let (first, text) = &lines[0];
    assert!(*first < AT_ONCE && text.starts_with("warning: no answer from "), "{first:?} {text}");
    assert!(text.contains(word), "{text}");
    let (_, last) = lines.last().expect("an error");
    assert!(last.starts_with("error: ") && last.contains(" failed tries in "), "{last}");
    assert_eq!(lines.len(), 2, "one line, then the count: {lines:?}");
    assert!(took < SOON, "{took:?}: {lines:?}");
}

#[test]
fn a_refused_connection_is_said_at_once_and_given_up_soon() {
    says_so_and_gives_up("http://127.0.0.1:9", "refused");
}

#[test]
fn a_name_that_nobody_has_is_said_at_once_and_given_up_soon() {
    says_so_and_gives_up("http://no-such-host.invalid", "no-such-host.invalid");
}

#[test]
fn a_server_that_says_nothing_is_named_while_it_is_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let endpoint = format!("http://{}", listener.local_addr().expect("its address"));
    let mover = at(&endpoint);
    let mut child = mover.command(["list"]).stderr(Stdio::piped()).spawn().expect("start it");
    let begun = Instant::now();
    let mut line = String::new();
    let stderr = child.stderr.take().expect("piped");
    BufReader::new(stderr).read_line(&mut line).expect("UTF-8");
    assert!(begun.elapsed() < AT_ONCE && line.contains("no answer from 127.0.0.1:"), "{line}");
    child.kill().expect("end it");
    child.wait().expect("it ended");
}

/// Speaks TLS, and refuses every request.
fn tls_server(authority: &Authority, names: &[&str]) -> u16 {
    let config = authority.server(names);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = rustls::ServerConnection::new(config.clone()).expect("a session");
            let mut stream = rustls::StreamOwned::new(session, stream);
            let mut request = [0; 4096];
            // who does not trust it has left
            if stream.read(&mut request).is_ok_and(|n| n > 0) {
                let body = "<Error><Code>InvalidAccessKeyId</Code></Error>";
                let answer = format!(
                    "HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    port
}

#[test]
fn a_certificate_that_is_not_trusted_is_denied_with_the_way_to_name_a_ca() {
    let directory = work_dir("untrusted");
    let authority = Authority::new();
    let ca = authority.write(&directory.path().join("ca.pem"));
    let port = tls_server(&authority, &["localhost"]);
    let begun = Instant::now();
    let stranger = at(&format!("https://localhost:{port}"));
    let error = expect_error(stranger.run(["list"]), 4, "SSL_CERT_FILE");
    assert!(error.contains("certificate"), "{error}");
    // by another name than the certificate has
    let other = at(&format!("https://127.0.0.1:{port}")).env("SSL_CERT_FILE", &ca);
    expect_error(other.run(["list"]), 4, "in the endpoint as its certificate does");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let friend = stranger.env("SSL_CERT_FILE", ca);
    expect_error(friend.run(["list"]), 4, "InvalidAccessKeyId");
}

#[test]
fn an_outage_that_lasts_costs_its_time_once() {
    let server = require_s3!(moto);
    let bucket = server.bucket();
    let address = server.endpoint.trim_start_matches("http://").parse().expect("IP and port");
    let relay = Relay::start(RelayOptions::moody(address)).expect("start a relay");
    let directory = work_dir("outage");
    let image = directory.path().join("image");
    std::fs::write(&image, random_bytes(64 << 20)).expect("write the image");
    let mover = Mover::new()
        .envs(server.environment())
        .env("AWS_ENDPOINT", format!("http://{}", relay.address()))
        .env("MOVER_REPO", bucket.url("p"))
        .env("MOVER_KEY_FILE", directory.path().join("key"));
    mover.ok([p("init"), p("--quiet"), p("--new-key-file"), directory.path().join("key")]);
    let before = relay.fault_counts().expect("it knows HTTP").requests;
    let line = ["backup", "--volume", "v", "--limit-read", "2MiB", "--checkpoint-interval", "4MiB"];
    let mut command = mover.command(line.iter().map(|text| p(text)).chain([image]));
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("start");
    // it is at work: the lease, the lists, the first packs
    while relay.fault_counts().expect("it knows HTTP").requests < before + 12 {
        assert!(child.try_wait().expect("look at it").is_none(), "it ended");
        std::thread::yield_now();
    }
    drop(relay); // nobody listens any more
    let begun = Instant::now();
    let stderr = BufReader::new(child.stderr.take().expect("piped"));
    let lines: Vec<_> = stderr.lines().map(|l| (begun.elapsed(), l.expect("UTF-8"))).collect();
    let code = child.wait().expect("wait for it").code();
    let took = begun.elapsed();
    println!("{took:?}: {lines:#?}");
    assert_eq!(code, Some(1), "{lines:?}");
    let first = lines.iter().find(|(_, l)| l.contains("no answer from 127.0.0.1:"));
    assert!(first.is_some_and(|(time, _)| *time < Duration::from_secs(20)), "{lines:?}");
    // 40 seconds, and a try for each step that ends it
    assert!(took > Duration::from_secs(35) && took < Duration::from_secs(90), "{took:?}");
}
