//! The SnapshotMetadata services: each quirk of a driver, and the whole way through the program.

use super::command::{MANY, expect_many, many};
use super::world::{World, number, only_step};
use super::{fetch, quick, wanted};
use mover_changes::{ChangeKind, ChangeSource, ChangedBlocks, SnapshotEndpoint, SnapshotSource};
use mover_extents::Extents;
use std::collections::HashMap;
use std::path::PathBuf;
use tests::{Authority, Block, Blocks, Code, GrpcCall, GrpcQuirks, GrpcServer, Rng, work_dir};

const VOLUME: u64 = 64 << 20;

/// Ranges of all sizes; the last one ends well before the volume does.
fn variable() -> Blocks {
    let mut rng = Rng::new(17);
    let (mut offset, mut blocks) = (0, Vec::new());
    while offset < VOLUME - 500_000 {
        offset += rng.below(50_000);
        let len = 1 + rng.below(20_000);
        blocks.push(Block { offset, len, zero: false });
        offset += len;
    }
    blocks.into()
}

/// Blocks of 4 KiB, some of them side by side.
fn fixed() -> Blocks {
    let mut rng = Rng::new(18);
    let all = (0..VOLUME / 4096 - 100).filter(|_| rng.once_in(3)).collect::<Vec<_>>();
    let block = |n: &u64| Block { offset: n * 4096, len: 4096, zero: false };
    all.iter().map(block).collect::<Vec<_>>().into()
}

/// A CSI driver on its socket, and how to ask it.
struct Driver {
    server: GrpcServer,
    source: SnapshotSource,
    _dir: tempfile::TempDir,
}

impl Driver {
    fn new(quirks: GrpcQuirks) -> Self {
        let dir = work_dir("csi");
        let socket = dir.path().join("csi.sock");
        let server = GrpcServer::csi(&socket);
        let blocks = if quirks.fixed { fixed() } else { variable() };
        server.put(Some("h1"), "h2", VOLUME, blocks);
        server.set(quirks);
        let source = SnapshotSource {
            endpoint: SnapshotEndpoint::Csi { socket, secrets_file: None },
            target: "h2".into(),
            delta: true,
            base_id: Some("h1".into()),
            page_entries: 100,
            tail_check: true,
            retry: quick(),
        };
        Self { server, source, _dir: dir }
    }

    fn ask(&self) -> chunkstore::Result<ChangedBlocks> {
        fetch(&ChangeSource::Snapshot(self.source.clone()), ChangeKind::Delta, VOLUME)
    }

    #[track_caller]
    fn expect_all(&self, blocks: &Blocks) {
        let list = self.ask().expect("the whole list");
        assert!(list.data == wanted(blocks).0 && list.zero.is_empty() && list.data.count() > 500);
    }
}

#[track_caller]
fn expect_all(quirks: GrpcQuirks) -> Vec<GrpcCall> {
    let blocks = if quirks.fixed { fixed() } else { variable() };
    let driver = Driver::new(quirks);
    driver.expect_all(&blocks);
    driver.server.calls()
}

#[track_caller]
fn expect_refused(quirks: GrpcQuirks, about: &str) -> Vec<GrpcCall> {
    let driver = Driver::new(quirks);
    let error = driver.ask().expect_err(about).to_string();
    assert!(error.contains(about) && error.contains("csi.sock for snapshot h2"), "{error}");
    driver.server.calls()
}

fn end(blocks: &Blocks) -> i64 {
    let last = blocks.at(blocks.count() - 1);
    i64::try_from(last.offset + last.len).expect("it fits")
}

#[test]
fn both_types_are_drained_and_the_end_is_checked_again() {
    let calls = expect_all(GrpcQuirks::default());
    assert_eq!(calls.len(), 2, "the list, and once more from its end");
    assert_eq!((calls[0].starting_offset, calls[0].max_results), (0, 100));
    assert_eq!(calls[1].starting_offset, end(&variable()));
    assert_eq!(calls[1].base.as_deref(), Some("h1"));
    expect_all(GrpcQuirks { fixed: true, ..GrpcQuirks::default() });
    expect_all(GrpcQuirks { empty_messages: true, per_message: Some(7), ..GrpcQuirks::default() });
    let mut driver = Driver::new(GrpcQuirks::default());
    driver.source.tail_check = false;
    driver.expect_all(&variable());
    assert_eq!(driver.server.calls().len(), 1);
}

#[test]
fn no_message_at_all_is_an_empty_list() {
    let driver = Driver::new(GrpcQuirks::default());
    driver.server.put(Some("h1"), "h2", VOLUME, Blocks::from(Vec::new()));
    let list = driver.ask().expect("an empty list");
    assert!(list.data.is_empty() && driver.server.calls().len() == 1);
}

#[test]
fn a_list_to_the_very_end_is_not_asked_for_again() {
    for len in [4096, 5000] {
        let driver = Driver::new(GrpcQuirks { out_of_range: Some(false), ..GrpcQuirks::default() });
        // the last block may end behind the capacity
        let last = Block { offset: VOLUME - 4096, len, zero: false };
        driver.server.put(Some("h1"), "h2", VOLUME, vec![last].into());
        let list = driver.ask().expect("a list");
        assert_eq!(list.data, Extents::of(VOLUME - 4096..VOLUME));
        assert_eq!(driver.server.calls().len(), 1);
    }
}

#[test]
fn a_stream_that_breaks_goes_on_where_it_was() {
    for code in [Code::Unavailable, Code::Aborted, Code::ResourceExhausted, Code::DeadlineExceeded]
    {
        let calls =
            expect_all(GrpcQuirks { fail_after: Some((250, code, 2)), ..GrpcQuirks::default() });
        assert_eq!(calls.len(), 4, "two that broke, the rest, and the check of the end");
        assert!(calls.windows(2).all(|w| w[0].starting_offset < w[1].starting_offset));
    }
    // as the time limit of the sidecar does, again and again: each call makes progress, so there
    // may be many
    let fail_after = Some((100, Code::DeadlineExceeded, u32::MAX));
    let calls = expect_all(GrpcQuirks { fail_after, ..GrpcQuirks::default() });
    assert!(calls.len() as u64 > variable().count() / 100);
    expect_all(GrpcQuirks { fail_after: Some((99, Code::Internal, 1)), ..GrpcQuirks::default() });
}

#[test]
fn a_stream_that_falls_silent_is_left_and_gone_on_with() {
    let mut driver =
        Driver::new(GrpcQuirks { silent_after: Some((100, 2)), ..GrpcQuirks::default() });
    driver.source.retry.idle_ms = 300;
    driver.expect_all(&variable());
    assert_eq!(driver.server.calls().len(), 4);
}

#[test]
fn what_comes_again_on_going_on_is_dropped() {
    let broken = Some((333, Code::Unavailable, 3));
    let fail_after = broken;
    expect_all(GrpcQuirks { early: true, fail_after, ..GrpcQuirks::default() });
    expect_all(GrpcQuirks { early: true, fixed: true, fail_after, ..GrpcQuirks::default() });
    let once = Some((333, Code::Unavailable, 1));
    expect_all(GrpcQuirks { ignores_offset: true, fail_after: once, ..GrpcQuirks::default() });
}

#[test]
fn a_list_that_was_cut_off_with_ok_is_completed() {
    let calls = expect_all(GrpcQuirks { cut_after: Some((300, 2)), ..GrpcQuirks::default() });
    assert_eq!(calls.len(), 4);
    // one message a call, always
    let calls = expect_all(GrpcQuirks {
        per_message: Some(100),
        cut_after: Some((100, u32::MAX)),
        ..GrpcQuirks::default()
    });
    assert_eq!(calls.len() as u64, variable().count().div_ceil(100) + 1);
}

#[test]
fn out_of_range_starts_anew_once() {
    // at the capacity it is the end; the program never asks there
    expect_all(GrpcQuirks { out_of_range: Some(false), ..GrpcQuirks::default() });
    let quirks = GrpcQuirks { out_of_range: Some(true), ..GrpcQuirks::default() };
    let calls = expect_refused(quirks, "OUT_OF_RANGE");
    let starts: Vec<_> = calls.iter().map(|call| call.starting_offset).collect();
    assert_eq!(starts, [0, end(&variable()), 0, end(&variable())]);
    let mut driver = Driver::new(GrpcQuirks {
        out_of_range: Some(true),
        fail_after: Some((50, Code::Unavailable, 1)),
        ..GrpcQuirks::default()
    });
    driver.source.tail_check = false;
    driver.expect_all(&variable());
}

#[test]
fn messages_above_four_mib_are_taken() {
    let blocks = Blocks::by(600_000, |n| Block { offset: n * 100, len: 50, zero: false });
    let mut driver =
        Driver::new(GrpcQuirks { per_message: Some(600_000), ..GrpcQuirks::default() });
    driver.server.put(Some("h1"), "h2", VOLUME, blocks.clone());
    driver.source.page_entries = 600_000;
    driver.source.retry.idle_ms = 60_000;
    let list = driver.ask().expect("one large message");
    assert_eq!(list.data.count() as u64, blocks.count());
}

#[test]
fn broken_promises_are_refused() {
    let quirks = GrpcQuirks::default;
    expect_refused(GrpcQuirks { swapped_at: Some(150), ..quirks() }, "out of order");
    expect_refused(GrpcQuirks { twice_at: Some(150), ..quirks() }, "overlaps");
    expect_refused(GrpcQuirks { size_at: Some((5, 0)), ..quirks() }, "has no size");
    expect_refused(GrpcQuirks { size_at: Some((5, -1)), ..quirks() }, "negative");
    expect_refused(GrpcQuirks { offset_at: Some((5, -4096)), ..quirks() }, "negative");
    expect_refused(GrpcQuirks { offset_at: Some((99, i64::MAX)), ..quirks() }, "behind the volume");
    expect_refused(GrpcQuirks { type_after: Some((0, 0)), ..quirks() }, "UNKNOWN");
    expect_refused(GrpcQuirks { type_after: Some((200, 1)), ..quirks() }, "another one");
    expect_refused(GrpcQuirks { fixed: true, size_at: Some((9, 512)), ..quirks() }, "FIXED_LENGTH");
    expect_refused(GrpcQuirks { capacity_after: Some((200, 1 << 30)), ..quirks() }, "was 67108864");
    expect_refused(GrpcQuirks { capacity_after: Some((0, 0)), ..quirks() }, "capacity");
    expect_refused(GrpcQuirks { capacity_after: Some((0, 1 << 40)), ..quirks() }, "the device has");
    let later = GrpcQuirks { capacity_later: Some(1 << 30), cut_after: Some((100, 1)), ..quirks() };
    expect_refused(later, "in the call before");
}

#[test]
fn codes_that_stay_are_given_up_as_the_table_says() {
    for (code, tries) in [
        (Code::InvalidArgument, 1),
        (Code::NotFound, 1),
        (Code::FailedPrecondition, 1),
        (Code::Unimplemented, 1),
        (Code::PermissionDenied, 1),
        // a socket knows no token
        (Code::Unauthenticated, 1),
        (Code::Internal, 2),
        (Code::Unavailable, 4),
    ] {
        let status = Some((code, "words of the driver".to_owned()));
        let calls =
            expect_refused(GrpcQuirks { status, ..GrpcQuirks::default() }, "words of the driver");
        assert_eq!(calls.len(), tries, "{code:?}");
    }
    let driver = Driver::new(GrpcQuirks::default());
    let endpoint =
        SnapshotEndpoint::Csi { socket: PathBuf::from("/does/not/exist"), secrets_file: None };
    let absent = SnapshotSource { endpoint, ..driver.source.clone() };
    let error = fetch(&ChangeSource::Snapshot(absent), ChangeKind::Delta, VOLUME);
    assert!(error.expect_err("no socket").to_string().contains("no connection"));
}

/// The service of Kubernetes, and how to ask it.
fn cluster(authority: &Authority, dir: &std::path::Path) -> (GrpcServer, SnapshotSource) {
    let server = GrpcServer::kubernetes(authority, &["localhost"]);
    server.put(Some("h1"), "ns/s2", VOLUME, variable());
    std::fs::write(dir.join("token"), "good").expect("write the token");
    let source = SnapshotSource {
        endpoint: SnapshotEndpoint::Kubernetes {
            address: server.address().to_owned(),
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
    };
    (server, source)
}

#[test]
fn tokens_are_checked_and_read_again() {
    let dir = work_dir("kubernetes");
    let (server, source) = cluster(&Authority::new(), dir.path());
    let ask = || fetch(&ChangeSource::Snapshot(source.clone()), ChangeKind::Delta, VOLUME);
    let token = Some("good".to_owned());
    server.set(GrpcQuirks { token: token.clone(), ..GrpcQuirks::default() });
    assert_eq!(ask().expect("a good token").data, wanted(&variable()).0);
    assert!(server.calls().iter().all(|call| call.token == "good"));
    // expired; the kubelet writes the next one
    std::fs::write(dir.path().join("token"), "old").expect("write the token");
    let renews = Some(dir.path().join("token"));
    server.set(GrpcQuirks { token: token.clone(), renews, ..GrpcQuirks::default() });
    assert_eq!(ask().expect("renewed").data, wanted(&variable()).0);
    let tokens: Vec<_> = server.calls().into_iter().map(|call| call.token).collect();
    assert_eq!(tokens, ["old", "good", "good"]);
    // of another audience: it stays bad
    std::fs::write(dir.path().join("token"), "other").expect("write the token");
    server.set(GrpcQuirks { token, ..GrpcQuirks::default() });
    let error = ask().expect_err("a bad token");
    assert!(
        error.to_string().contains("audience") && !error.to_string().contains("other"),
        "{error}"
    );
    assert_eq!((error.kind(), server.calls().len()), (chunkstore::ErrorKind::Denied, 2));
}

#[test]
fn only_the_given_authority_and_name_are_trusted() {
    let dir = work_dir("trust");
    let authority = Authority::new();
    let (_server, source) = cluster(&authority, dir.path());
    let with = |ca: &Authority, name: Option<&str>| {
        let mut source = source.clone();
        if let SnapshotEndpoint::Kubernetes { server_name, ca_file, .. } = &mut source.endpoint {
            *server_name = name.map(str::to_owned);
            *ca_file = ca.write(&dir.path().join("other.pem"));
        }
        fetch(&ChangeSource::Snapshot(source), ChangeKind::Delta, VOLUME)
    };
    assert!(with(&authority, None).is_ok() && with(&authority, Some("localhost")).is_ok());
    for error in [with(&Authority::new(), None), with(&authority, Some("elsewhere"))] {
        let error = error.expect_err("not to be trusted");
        assert!(error.to_string().contains("not trusted"), "{error}");
        assert_eq!(error.kind(), chunkstore::ErrorKind::Denied);
    }
}

/// Backup of what is allocated, increment by a delta, a step down, restore: over TLS, with a token.
#[test]
fn end_to_end_in_kubernetes() {
    let world = World::new("kubernetes-e2e");
    let authority = Authority::new();
    let server = GrpcServer::kubernetes(&authority, &["localhost"]);
    server.put(None, "ns/s1", world.bytes(), Blocks::allocated(&world.old));
    server.put(None, "ns/s2", world.bytes(), Blocks::allocated(&world.new));
    server.put(Some("h1"), "ns/s2", world.bytes(), Blocks::delta(&world.old, &world.new));
    server.set(GrpcQuirks { token: Some("good".into()), ..GrpcQuirks::default() });
    let ca = authority.write(&world.path("ca.pem"));
    let token = world.path("token");
    std::fs::write(&token, "good\n").expect("write the token");
    let (ca, token) = (ca.to_str().expect("a path"), token.to_str().expect("a path"));
    let asked = [
        "--changes-server",
        server.address(),
        "--changes-ca-file",
        ca,
        "--changes-token-file",
        token,
        "--changes-namespace",
        "ns",
    ];
    let first =
        world.backup(&world.old, "s1", &[&asked[..], &["--snapshot-handle", "h1"]].concat());
    assert_eq!(first["kind"], "allocated");
    assert_eq!(first["origin"], "snapshot-metadata");
    world.expect_restored(&world.old);
    let based = [&asked[..], &["--base-snapshot", "s1"]].concat();
    let second = world.backup(&world.new, "s2", &based);
    assert_eq!((&second["kind"], &second["degraded"]), (&"delta".into(), &serde_json::json!([])));
    assert!(number(&second, "read_bytes") <= 11 << 16, "{second}");
    world.expect_restored(&world.new);
    // the base is gone from the storage: one step down, not two
    let status = Some((Code::Internal, "no snap source in omap".to_owned()));
    let token = Some("good".to_owned());
    server.set(GrpcQuirks { token, delta_status: status, ..GrpcQuirks::default() });
    let line = [&based[..], &["--changes-tries", "1"]].concat();
    let third = world.backup(&world.new, "s2", &line);
    assert_eq!(third["kind"], "allocated");
    assert!(only_step(&third).contains("no snap source in omap"), "{third}");
    world.expect_restored(&world.new);
    let line = [&line[..], &["--require", "delta"]].concat();
    let error = world.run(&world.new, "s3", &line).expect_code(1).stderr;
    assert!(error.contains("keep to --require delta"), "{error}");
}

/// The same by a CSI driver's socket, with its secrets.
#[test]
fn end_to_end_with_a_driver() {
    let world = World::new("csi-e2e");
    let server = GrpcServer::csi(&world.path("csi.sock"));
    server.put(None, "h1", world.bytes(), Blocks::allocated(&world.old));
    server.put(Some("h1"), "h2", world.bytes(), Blocks::delta(&world.old, &world.new));
    let secrets = HashMap::from([("user".to_owned(), "admin".to_owned())]);
    server.set(GrpcQuirks { secrets, ..GrpcQuirks::default() });
    let file = world.path("secrets");
    std::fs::write(&file, r#"{"user": "admin"}"#).expect("write the secrets");
    let secrets = ["--changes-secrets-file", file.to_str().expect("a path")];
    let asked = [&["--changes-server", server.address()][..], &secrets].concat();
    let first =
        world.backup(&world.old, "s1", &[&asked[..], &["--snapshot-handle", "h1"]].concat());
    assert_eq!(first["kind"], "allocated");
    let based = ["--base-snapshot", "s1", "--snapshot-handle", "h2"];
    let second = world.backup(&world.new, "s2", &[&asked[..], &based].concat());
    assert_eq!((&second["kind"], &second["degraded"]), (&"delta".into(), &serde_json::json!([])));
    world.expect_restored(&world.new);
}

#[test]
fn ten_million_ranges_go_through_64_mib() {
    tests::require_root!();
    let dir = work_dir("many");
    let server = GrpcServer::csi(&dir.path().join("csi.sock"));
    server.put(Some("h1"), "h2", MANY * 8192, many());
    server.set(GrpcQuirks { per_message: Some(10_000), ..GrpcQuirks::default() });
    let target = ["--changes-target", "h2", "--changes-base-id", "h1"];
    expect_many(&[&["--changes-server", server.address()][..], &target].concat());
}
