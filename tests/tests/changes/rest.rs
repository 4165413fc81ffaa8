//! The REST draft: each quirk of a server, and the whole way through the program.

use super::world::{World, number};
use super::{fetch, quick, wanted};
use mover_changes::{ChangeKind, ChangeSource, ChangedBlocks, RestSource};
use tests::{Authority, Block, Blocks, RestQuirks, RestServer, RestSpelling, Rng};

const VOLUME: u64 = 64 << 20;

/// Blocks of all sizes and alignments, some of them zero.
fn some_blocks() -> Blocks {
    let mut rng = Rng::new(11);
    let mut offset = 0;
    let mut blocks = Vec::new();
    while offset < VOLUME - 200_000 {
        offset += rng.below(150_000);
        let len = 1 + rng.below(20_000);
        blocks.push(Block { offset, len, zero: rng.once_in(4) });
        offset += len + 1;
    }
    blocks.into()
}

fn source(url: String) -> RestSource {
    RestSource {
        delta_url: Some(url),
        plain_http: true,
        page_entries: 50,
        retry: quick(),
        ..RestSource::default()
    }
}

fn ask(source: RestSource) -> chunkstore::Result<ChangedBlocks> {
    fetch(&ChangeSource::Rest(source), ChangeKind::Delta, VOLUME)
}

/// What comes of a server with these quirks.
fn with(quirks: RestQuirks) -> chunkstore::Result<ChangedBlocks> {
    let server = RestServer::http();
    ask(source(server.put("/ns/delta", VOLUME, some_blocks(), quirks)))
}

#[track_caller]
fn expect_all(list: &ChangedBlocks) {
    let (data, zero) = wanted(&some_blocks());
    assert_eq!((&list.data, &list.zero), (&data, &zero));
    assert!(list.kind == ChangeKind::Delta && data.count() > 300);
}

#[track_caller]
fn expect_refused(quirks: RestQuirks, about: &str) {
    let error = with(quirks).expect_err(about).to_string();
    assert!(error.contains(about), "{error}");
    assert!(error.contains("http://127.0.0.1"), "{error}");
}

#[test]
fn pages_are_read_to_the_end() {
    let server = RestServer::http();
    let url = server.put("/ns/delta", VOLUME, some_blocks(), RestQuirks::default());
    let mut source = source(format!("{url}?vol=a%20b"));
    source.entries_parameter = Some("maxEntries".into());
    expect_all(&ask(source).expect("a plain server"));
    let requests = server.requests();
    let pages = some_blocks().count().div_ceil(50);
    assert_eq!(requests.len() as u64, pages);
    assert!(requests.iter().all(|r| r.query["vol"] == "a b" && r.query["maxEntries"] == "50"));
    assert!(!requests[0].query.contains_key("startOffset"));
    assert_eq!(requests[1].query["startOffset"], "at 50");
}

#[test]
fn spellings_numbers_orders_and_repeats_are_tolerated() {
    for spelling in [RestSpelling::Camel, RestSpelling::Go, RestSpelling::Snake] {
        for odd in [false, true] {
            let quirks = RestQuirks {
                spelling,
                numbers_as_text: odd,
                next_as_number: odd,
                empty_next_at_end: odd,
                backwards: odd,
                twice: odd,
                page_blocks: Some(if odd { 7 } else { 1000 }),
                ..RestQuirks::default()
            };
            expect_all(&with(quirks).expect("tolerated"));
        }
    }
}

#[test]
fn failures_that_pass_are_tried_again_where_they_happened() {
    let quirks = RestQuirks {
        status_at: Some((3, 503, 3)),
        retry_after: Some(0),
        cut_at: Some((5, 3)),
        ..RestQuirks::default()
    };
    let server = RestServer::http();
    expect_all(&ask(source(server.put("/d", VOLUME, some_blocks(), quirks))).expect("they pass"));
    let pages = some_blocks().count().div_ceil(50);
    assert_eq!(server.requests().len() as u64, pages + 6, "no page was asked for in vain");
    for status in [429, 502, 504] {
        let status_at = Some((2, status, 2));
        expect_all(&with(RestQuirks { status_at, ..RestQuirks::default() }).expect("it passes"));
    }
}

#[test]
fn failures_that_stay_are_given_up() {
    let status = |status| RestQuirks { status_at: Some((2, status, 99)), ..RestQuirks::default() };
    expect_refused(status(503), "it was asked 4 times");
    expect_refused(status(404), "404");
    expect_refused(status(401), "`changes-token-file`");
    expect_refused(status(500), "500");
    expect_refused(RestQuirks { cut_at: Some((1, 99)), ..RestQuirks::default() }, "4 times");
    let redirect = Some("http://127.0.0.1:1/".to_owned());
    expect_refused(RestQuirks { redirect, ..RestQuirks::default() }, "redirects");
}

#[test]
fn a_silent_server_is_given_up() {
    let server = RestServer::http();
    let quirks = RestQuirks { silent_at: Some(2), ..RestQuirks::default() };
    let mut source = source(server.put("/d", VOLUME, some_blocks(), quirks));
    source.retry.idle_ms = 50;
    let error = ask(source).expect_err("it never answers").to_string();
    assert!(error.contains("4 times"), "{error}");
}

#[test]
fn an_expired_result_is_asked_for_anew() {
    for quirks in [
        RestQuirks { gone_at: Some((4, 2)), ..RestQuirks::default() },
        RestQuirks { expired_at: Some((3, 2)), ..RestQuirks::default() },
        RestQuirks { gone_at: Some((1, 3)), ..RestQuirks::default() },
    ] {
        expect_all(&with(quirks).expect("the next one lives long enough"));
    }
    for quirks in [
        RestQuirks { gone_at: Some((2, 99)), ..RestQuirks::default() },
        RestQuirks { expired_at: Some((2, 99)), ..RestQuirks::default() },
    ] {
        expect_refused(quirks, "expired 4 times");
    }
}

#[test]
fn what_would_never_end_or_contradicts_itself_is_refused() {
    let quirks = RestQuirks::default;
    expect_refused(RestQuirks { stuck_at: Some(3), ..quirks() }, "came before");
    expect_refused(RestQuirks { growing_at: Some(2), ..quirks() }, "was 67108864 before");
    expect_refused(
        RestQuirks { volume_bytes: Some(VOLUME + 4096), ..quirks() },
        "the device has 67108864",
    );
    let words = "base snapshot was deleted".to_owned();
    expect_refused(RestQuirks { error_at: Some((2, words.clone())), ..quirks() }, &words);
    let server = RestServer::http();
    let beyond = vec![Block { offset: VOLUME, len: 1, zero: false }];
    let error = ask(source(server.put("/b", VOLUME, beyond.into(), quirks()))).expect_err("beyond");
    assert!(error.to_string().contains("names byte 67108864"), "{error}");
    let beyond = vec![Block { offset: u64::MAX, len: 2, zero: false }];
    let error = ask(source(server.put("/c", VOLUME, beyond.into(), quirks()))).expect_err("beyond");
    assert!(error.to_string().contains("64 bits"), "{error}");
}

#[test]
fn nothing_changed_is_a_list_too_and_contexts_are_kept() {
    let server = RestServer::http();
    let none = Blocks::from(Vec::new());
    let url = server.put("/none", VOLUME, none, RestQuirks::default());
    let list = ask(source(url)).expect("an empty list");
    assert!(list.data.is_empty() && list.zero.is_empty());
    let context = Some("AQID/w==".to_owned());
    let list = with(RestQuirks { context, ..RestQuirks::default() }).expect("with contexts");
    expect_all(&list);
    assert_eq!(list.contexts.len() as u64, some_blocks().count());
    assert_eq!(list.contexts[3].context, "AQID/w==");
    let json = list.to_json();
    assert_eq!(json.matches("AQID/w==").count(), list.contexts.len());
    let parse = mover_changes::ParseOptions::new("its own output", VOLUME);
    let back = mover_changes::parse_changed_blocks(json.as_bytes(), &parse).expect("ours");
    assert_eq!((back.data, back.zero), (list.data, list.zero));
}

#[test]
fn a_token_goes_only_where_it_is_asked_for_and_safe() {
    let dir = tests::work_dir("token");
    let token_file = dir.path().join("token");
    std::fs::write(&token_file, "abc.def\n").expect("write the token");
    let server = RestServer::http();
    let token = Some("abc.def".to_owned());
    let quirks = RestQuirks { token, ..RestQuirks::default() };
    let url = server.put("/d", VOLUME, some_blocks(), quirks);
    let tokened = RestSource { token_file: Some(token_file.clone()), ..source(url.clone()) };
    expect_all(&ask(tokened.clone()).expect("the right token"));
    let error = ask(source(url)).expect_err("no token").to_string();
    assert!(error.contains("401"), "{error}");
    std::fs::write(&token_file, "other").expect("write another token");
    let error = ask(tokened.clone()).expect_err("another token").to_string();
    assert!(error.contains("403") && !error.contains("other"), "{error}");
    let asked = server.requests().len();
    let clear = RestSource { plain_http: false, ..tokened.clone() };
    let error = ask(clear).expect_err("in the clear").to_string();
    assert!(error.contains("in the clear") && server.requests().len() == asked, "{error}");
    let absent = RestSource { token_file: Some(dir.path().join("absent")), ..tokened };
    assert!(ask(absent).expect_err("no file").to_string().contains("absent"));
}

#[test]
fn only_the_given_authority_is_trusted() {
    let dir = tests::work_dir("authority");
    let authority = Authority::new();
    let server = RestServer::tls(&authority, &["localhost"]);
    let url = server.put("/d", VOLUME, some_blocks(), RestQuirks::default());
    let by = |ca: &Authority, url: &str| {
        let ca_file = Some(ca.write(&dir.path().join("ca.pem")));
        ask(RestSource { ca_file, plain_http: false, ..source(url.to_owned()) })
    };
    expect_all(&by(&authority, &url).expect("the right authority"));
    let without_scheme = url.trim_start_matches("https://");
    expect_all(&by(&authority, without_scheme).expect("https goes without saying"));
    let error = by(&Authority::new(), &url).expect_err("another authority").to_string();
    assert!(error.contains("not trusted"), "{error}");
    let error = by(&authority, &url.replace("localhost", "127.0.0.1")).expect_err("another name");
    assert!(error.to_string().contains("not trusted"), "{error}");
    let error = ask(RestSource { plain_http: false, ..source(url) }).expect_err("the system's");
    assert!(error.to_string().contains("not trusted"), "{error}");
}

/// Backup of what is allocated, increment by a delta, restore: over TLS, with a token.
#[test]
fn end_to_end() {
    let world = World::new("rest");
    let authority = Authority::new();
    let ca = authority.write(&world.path("ca.pem"));
    let token_file = world.path("token");
    std::fs::write(&token_file, "abc").expect("write the token");
    let server = RestServer::tls(&authority, &["localhost"]);
    let quirks = || RestQuirks { token: Some("abc".into()), ..RestQuirks::default() };
    let full = server.put("/s1/all", world.bytes(), Blocks::allocated(&world.old), quirks());
    let delta = Blocks::delta(&world.old, &world.new);
    let delta = server.put("/s2/delta", world.bytes(), delta, quirks());
    let (ca, token) = (ca.to_str().expect("a path"), token_file.to_str().expect("a path"));
    let trust = ["--changes-ca-file", ca, "--changes-token-file", token, "--changes-page", "20"];
    let more = [&["--changes-url", &full][..], &trust].concat();
    let first = world.backup(&world.old, "s1", &more);
    assert_eq!(
        (first["kind"].as_str(), first["origin"].as_str()),
        (Some("allocated"), Some("rest"))
    );
    assert!(number(&first, "read_bytes") < 62 << 16 && number(&first, "zero_bytes") > 30 << 16);
    world.expect_restored(&world.old);
    let more = [&["--changes-url", &delta, "--base-snapshot", "s1"][..], &trust].concat();
    let second = world.backup(&world.new, "s2", &more);
    assert_eq!(second["kind"], "delta");
    assert_eq!(second["degraded"], serde_json::json!([]));
    // five writes in six chunks at most, and the edge of what was discarded
    assert!(number(&second, "read_bytes") <= 7 << 16, "{second}");
    world.expect_restored(&world.new);
    assert_eq!(world.show()["source"]["origin"], "rest");
}
