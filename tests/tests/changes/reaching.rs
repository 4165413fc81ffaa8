//! Servers that are not there, say nothing, or say nothing new: what is seen of that, and when it
//! ends.

use super::world::World;
use super::{fetch, quick, wanted};
use mover_changes::{
    ChangeKind, ChangeSource, RestSource, RetryPolicy, SnapshotEndpoint, SnapshotSource,
};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};
use tests::{
    Authority, Blocks, Code, GrpcQuirks, GrpcServer, Mover, RestQuirks, RestServer, work_dir,
};

const VOLUME: u64 = 1 << 20;

fn kubernetes(dir: &Path, authority: &Authority, address: String) -> SnapshotSource {
    std::fs::write(dir.join("token"), "good").expect("write the token");
    SnapshotSource {
        endpoint: SnapshotEndpoint::Kubernetes {
            address,
            server_name: None,
            ca_file: authority.write(&dir.join("ca.pem")),
            token_file: dir.join("token"),
            namespace: "ns".into(),
        },
        target: "s2".into(),
        delta: true,
        base_id: Some("h1".into()),
        page_entries: 1000,
        tail_check: true,
        retry: quick(),
    }
}

fn ask(source: &SnapshotSource) -> chunkstore::Error {
    fetch(&ChangeSource::Snapshot(source.clone()), ChangeKind::Delta, VOLUME).expect_err("no list")
}

/// An address at which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("localhost:{}", listener.local_addr().expect("its address").port())
}

/// TCP is accepted by the kernel, and nobody says anything: TLS must not wait for good.
#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up() {
    let dir = work_dir("silent");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("its address").port();
    let mut source = kubernetes(dir.path(), &Authority::new(), format!("localhost:{port}"));
    source.retry.idle_ms = 200;
    let begun = Instant::now();
    let error = ask(&source).to_string();
    assert!(error.contains("no connection") && error.contains("4 times"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn mistakes_of_ours_are_said_to_be() {
    let dir = work_dir("mistakes");
    let authority = Authority::new();
    for address in ["localhost", "https://localhost:1", "local host:1", ""] {
        let error = ask(&kubernetes(dir.path(), &authority, address.to_owned()));
        assert_eq!(error.kind(), chunkstore::ErrorKind::Usage, "{error}");
    }
    let source = kubernetes(dir.path(), &authority, nobody());
    for ca in ["", "no certificate", "-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n"]
    {
        std::fs::write(dir.path().join("ca.pem"), ca).expect("write the CA file");
        let error = ask(&source);
        assert_eq!(error.kind(), chunkstore::ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains("ca.pem"), "{error}");
    }
}

#[test]
fn messages_without_a_range_do_not_go_on_for_ever() {
    let dir = work_dir("endless");
    let socket = dir.path().join("csi.sock");
    let server = GrpcServer::csi(&socket);
    let blocks = Blocks::by(20, |n| tests::Block { offset: n * 8192, len: 4096, zero: false });
    server.put(Some("h1"), "h2", VOLUME, blocks);
    server.set(GrpcQuirks { empty_after: Some(10), ..GrpcQuirks::default() });
    let endpoint = SnapshotEndpoint::Csi { socket, secrets_file: None };
    let source = kubernetes(dir.path(), &Authority::new(), String::new());
    let mut source = SnapshotSource { endpoint, target: "h2".into(), ..source };
    // a machine under load is silent for a while, but not as long as that
    (source.retry.idle_ms, source.retry.nothing_new_ms) = (60_000, 200);
    let error = ask(&source).to_string();
    assert!(error.contains("nothing came but messages without a range"), "{error}");
    assert_eq!(server.calls().len(), 1, "to ask again is of no use");
}

/// What a list brings counts, however slowly it comes.
#[test]
fn a_slow_list_is_no_stall() {
    let world = World::new("slow-list");
    let server = GrpcServer::csi(&world.path("csi.sock"));
    server.put(None, "h1", world.bytes(), Blocks::allocated(&world.old));
    server.set(GrpcQuirks { per_message: Some(50), pace_ms: 200, ..GrpcQuirks::default() });
    assert!(Blocks::allocated(&world.old).count() > 900, "it takes longer than the stall");
    let line = ["--changes-server", server.address(), "--snapshot-handle", "h1"];
    let first = world.backup(&world.old, "s1", &[&line[..], &["--stall-timeout", "2s"]].concat());
    assert_eq!(first["kind"], "allocated", "{first}");
    world.expect_restored(&world.old);
}

#[test]
fn the_first_failure_is_said_and_the_others_are_counted() {
    let dir = work_dir("refused");
    let source = kubernetes(dir.path(), &Authority::new(), String::new());
    let SnapshotEndpoint::Kubernetes { ca_file, token_file, .. } = &source.endpoint else {
        panic!("that is what it is");
    };
    let [ca, token] = [ca_file, token_file].map(|path| path.to_str().expect("a path"));
    let asked = |server: &str| {
        let line = ["changes", "--volume-size", "1MiB", "--changes-server", server];
        let more = ["--changes-ca-file", ca, "--changes-token-file", token, "--changes-target"];
        let last = ["s2", "--changes-namespace", "ns", "--changes-tries", "3"];
        Mover::new().run([&line[..], &more, &last].concat())
    };
    let refused = asked(&nobody()).expect_code(1).stderr;
    let lines: Vec<&str> = refused.lines().collect();
    assert!(lines[0].contains("no connection") && lines[0].contains("3 times in all"), "{refused}");
    assert!(lines[1].contains("try 3 of 3"), "{refused}");
    assert!(lines[2].contains("check the address that --changes-server names"), "{refused}");
    // another authority
    let server = GrpcServer::kubernetes(&Authority::new(), &["localhost"]);
    let untrusted = asked(server.address()).expect_code(4).stderr;
    assert!(untrusted.contains("--changes-ca-file"), "{untrusted}");
    assert_eq!(untrusted.lines().count(), 1, "{untrusted}");
}

#[test]
fn both_reasons_are_told_where_neither_list_can_be_had() {
    let server = RestServer::http();
    let (delta, all) = (server.url("/delta"), server.url("/all"));
    let line = ["changes", "--volume-size", "1MiB", "--changes-url", &delta];
    let more = ["--changed-blocks-kind", "delta", "--allocated-url", &all];
    let said = Mover::new().run([&line[..], &more].concat()).expect_code(2).stderr;
    assert!(said.contains(&delta) && said.contains(&all), "{said}");
}

/// 503 comes from a server that is there, so it gets all tries, and not the short time of an address
/// where nobody was ever reached: here none at all. An hour that it asks for is cut, or this test
/// would take hours.
#[test]
fn a_server_that_is_busy_at_the_start_is_waited_for_within_bounds() {
    let server = RestServer::http();
    let blocks = Blocks::by(9, |n| tests::Block { offset: n * 8192, len: 4096, zero: false });
    let busy = |path, times| {
        let status_at = Some((1, 503, times));
        let quirks = RestQuirks { status_at, retry_after: Some(3600), ..RestQuirks::default() };
        server.put(path, VOLUME, blocks.clone(), quirks)
    };
    let ask = |url| {
        let retry = RetryPolicy { start_ms: 0, ..quick() };
        let source =
            RestSource { delta_url: Some(url), plain_http: true, retry, ..RestSource::default() };
        fetch(&ChangeSource::Rest(source), ChangeKind::Delta, VOLUME)
    };
    let list = ask(busy("/soon", 3)).expect("it is waited for");
    assert_eq!((list.data, list.zero), wanted(&blocks));
    assert_eq!(server.requests().len(), 4);
    let error = ask(busy("/never", u32::MAX)).expect_err("it stays busy").to_string();
    assert!(error.contains("503") && error.contains("it was asked 4 times"), "{error}");
    assert_eq!(server.requests().len(), 4 + 4);
    let error = ask(format!("http://{}/", nobody())).expect_err("nobody is there").to_string();
    assert!(error.contains("it was asked 1 times"), "{error}");
}

/// Where a driver does not answer for what follows, its list can be had nevertheless.
#[test]
fn the_way_out_of_the_check_of_the_end_is_named() {
    let dir = work_dir("tail");
    let socket = dir.path().join("csi.sock");
    let server = GrpcServer::csi(&socket);
    let blocks = Blocks::by(9, |n| tests::Block { offset: n * 8192, len: 4096, zero: false });
    server.put(Some("h1"), "h2", VOLUME, blocks);
    server.set(GrpcQuirks { out_of_range: Some(true), ..GrpcQuirks::default() });
    let endpoint = SnapshotEndpoint::Csi { socket, secrets_file: None };
    let source = kubernetes(dir.path(), &Authority::new(), String::new());
    let source = SnapshotSource { endpoint, target: "h2".into(), ..source };
    let error = ask(&source).to_string();
    assert!(error.contains("`changes-no-tail-check`"), "{error}");
    let status = Some((Code::InvalidArgument, "no".to_owned()));
    server.set(GrpcQuirks { status, ..GrpcQuirks::default() });
    let error = ask(&source).to_string();
    assert!(!error.contains("`changes-no-tail-check`"), "its first call failed: {error}");
}
