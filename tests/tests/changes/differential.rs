//! The server of DifferentialSnapshots, by its first client: our own of the REST draft; and by
//! clients that do as they like. Behind it are an API server and a driver's service of the tests.

mod api;
mod lab;

use super::world::World;
use super::{fetch, wanted};
use api::{AUDIENCE, DRIVER_TOKEN};
use base64::Engine as _;
use lab::{DRIVER, GOOD, Lab, VOLUME, snapshot, some_blocks};
use mover_changes::{ChangeKind, ChangeSource, ChangedBlocks, RestSource};
use mover_cluster::differential::ClientLimits;
use mover_extents::Extents;
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use tests::{Blocks, Code, GrpcQuirks};

#[track_caller]
fn expect(list: &ChangedBlocks, blocks: &Blocks) {
    let (data, _) = wanted(blocks);
    assert_eq!(list.data, data);
    assert_eq!(list.zero, Extents::default());
    assert!(data.count() > 300);
}

fn sum(page: &Value) -> u64 {
    let blocks = page["changeBlockList"].as_array().expect("a list");
    blocks.iter().map(|block| block["size"].as_u64().expect("a size")).sum()
}

#[test]
fn our_client_reads_both_kinds_of_lists_over_tls() {
    let lab = Lab::with("differential-tls", true, ClientLimits::default());
    let (changed, used) = (some_blocks(3), some_blocks(4));
    lab.delta("changed", &changed);
    lab.make("used", json!({ "targetVolumeSnapshotName": "new", "mode": "Block" }));
    lab.driver.put(None, "shop/new", VOLUME, used.clone());
    let list = lab.fetch("changed", ChangeKind::Delta).expect("a list");
    expect(&list, &changed);
    assert_eq!(list.volume_bytes, Some(VOLUME));
    let calls = lab.driver.calls();
    // One for each full page, and one that brings nothing more.
    assert!(calls.len() as u64 > changed.count() / 50, "{}", calls.len());
    assert!(calls.iter().all(|call| call.target == "shop/new" && call.token == DRIVER_TOKEN));
    assert!(calls.iter().all(|call| call.base.as_deref() == Some("h-old")));
    expect(&lab.fetch("used", ChangeKind::Allocated).expect("a list"), &used);
    assert_eq!(lab.api.state().asked, ["drivers"], "one token serves all of it");
}

#[test]
fn a_list_goes_on_after_a_restart() {
    let mut lab = Lab::new("differential-restart");
    let changed = some_blocks(5);
    lab.delta("changed", &changed);
    let (mut target, mut bytes) = ("/shop/changed?maxEntries=40".to_owned(), 0);
    for number in 0.. {
        let page = lab.page(&target);
        assert_eq!(page["volumeSize"], VOLUME);
        assert!(page["timeout"].as_u64().is_some_and(|time| time > 1_700_000_000));
        bytes += sum(&page);
        assert!(page["changeBlockList"].as_array().is_some_and(|all| all.len() <= 40));
        let next = page["nextOffset"].as_str().expect("a text").to_owned();
        if next.is_empty() {
            assert!(number >= 9, "{number} pages");
            break;
        }
        if number % 4 == 1 {
            lab.restart();
        }
        target = format!("/shop/changed?maxEntries=40&startOffset={next}");
    }
    assert_eq!(bytes, wanted(&changed).0.total());
    // An offset of one list begins another one of the same snapshots, as a number of bytes does.
    let first = lab.page("/shop/changed?maxEntries=40");
    let spec = |start: &Value| {
        json!({ "baseVolumeSnapshotName": "old", "targetVolumeSnapshotName": "new",
                "startOffset": start })
    };
    lab.make("rest", spec(&first["nextOffset"]));
    assert_eq!(sum(&first) + sum(&lab.page("/shop/rest")), bytes);
    lab.make("tail", spec(&json!("33554432")));
    let tail: Extents = std::iter::once(VOLUME / 2..VOLUME).collect();
    assert_eq!(sum(&lab.page("/shop/tail")), wanted(&changed).0.intersect(&tail).total());
}

#[test]
fn a_driver_that_stops_early_loses_nothing() {
    let lab = Lab::new("differential-early");
    let changed = some_blocks(6);
    lab.delta("changed", &changed);
    let plain = || GrpcQuirks { token: Some(DRIVER_TOKEN.into()), ..GrpcQuirks::default() };
    for quirks in [
        // OK, as if that were all
        GrpcQuirks { cut_after: Some((30, 7)), ..plain() },
        GrpcQuirks { fail_after: Some((30, Code::DeadlineExceeded, 7)), ..plain() },
        GrpcQuirks { early: true, per_message: Some(3), empty_messages: true, ..plain() },
    ] {
        lab.driver.set(quirks);
        expect(&lab.fetch("changed", ChangeKind::Delta).expect("a list"), &changed);
    }
    // What breaks the protocol is no list.
    lab.driver.set(GrpcQuirks { swapped_at: Some(20), ..plain() });
    lab.refused("/shop/changed", Some(GOOD), 500, "broke its protocol");
    lab.driver.set(GrpcQuirks { capacity_later: Some(1 << 30), ..plain() });
    let error = lab.fetch("changed", ChangeKind::Delta).expect_err("another volume").to_string();
    assert!(error.contains("500"), "{error}");
}

#[test]
fn a_base_that_is_gone_is_an_error_or_all_of_the_volume() {
    let lab = Lab::new("differential-base");
    let used = some_blocks(7);
    lab.driver.put(None, "shop/new", VOLUME, used.clone());
    let spec = |more: Value| {
        json!({ "baseVolumeSnapshotName": "old", "targetVolumeSnapshotName": "new",
                "parameters": more })
    };
    lab.make("strict", spec(json!({})));
    lab.make("all", spec(json!({ "deletedBase": "all-changed" })));
    let all_of_it = || {
        let list = lab.fetch("all", ChangeKind::Delta).expect("a list");
        assert_eq!(list.data, wanted(&used).0);
        assert_eq!(list.data.total() + list.zero.total(), VOLUME, "it names each byte");
    };
    // The driver has lost it, and its object is there.
    lab.refused("/shop/strict", Some(GOOD), 409, "deletedBase: all-changed");
    all_of_it();
    // The object is gone.
    lab.api.remove("VolumeSnapshot", Some("shop"), "old");
    lab.refused("/shop/strict", Some(GOOD), 409, "the base volumesnapshot/old is gone");
    all_of_it();
    let error = lab.fetch("strict", ChangeKind::Delta).expect_err("it is gone").to_string();
    assert!(error.contains("409"), "{error}");
}

#[test]
fn only_who_may_get_it_reads_a_list() {
    let lab = Lab::new("differential-access");
    lab.delta("changed", &some_blocks(8));
    for (token, user, audience) in [
        ("token-for-the-api", "reader", "https://kubernetes.default.svc"),
        ("token-for-a-driver", "reader", "drivers"),
        ("token-of-another", "tenant", AUDIENCE),
    ] {
        lab.api.state().tokens.insert(token.into(), (user.into(), audience.into()));
    }
    let target = "/shop/changed";
    lab.refused(target, None, 401, AUDIENCE);
    for bad in ["nonsense", "token-for-the-api", "token-for-a-driver", "a b"] {
        lab.refused(target, Some(bad), 401, AUDIENCE);
    }
    lab.refused(target, Some("token-of-another"), 403, "may not get");
    lab.refused("/web/changed", Some(GOOD), 403, "may not get");
    // Nobody learns of what he may not see whether it is there.
    lab.refused("/shop/other", Some(GOOD), 403, "may not get");
    assert!(lab.driver.calls().is_empty(), "no driver was asked");
    lab.page(target);
    let error = RestSource { token_file: None, ..lab.source("changed") };
    let error = fetch(&ChangeSource::Rest(error), ChangeKind::Delta, VOLUME);
    assert!(error.expect_err("no token").to_string().contains("401"));
}

#[test]
fn snapshots_are_of_the_namespace_and_of_one_volume() {
    let lab = Lab::new("differential-foreign");
    lab.delta("changed", &some_blocks(9));
    let pair = |base: &str, target: &str| json!({ "baseVolumeSnapshotName": base, "targetVolumeSnapshotName": target });
    // Those of another namespace.
    lab.make_in("web", "theirs", pair("old", "new"));
    lab.refused("/web/theirs", Some(GOOD), 409, "target volumesnapshot/new is not there");
    // A snapshot that says to be bound to the content of another one.
    let [mut forged, _] = snapshot("new", "web", "vol");
    forged["metadata"]["uid"] = "uid-forged".into();
    lab.api.put(forged);
    lab.refused("/web/theirs", Some(GOOD), 409, "does not point back");
    // Another volume of the same namespace.
    snapshot("cart", "shop", "vol-2").into_iter().for_each(|object| lab.api.put(object));
    lab.make("mixed", pair("cart", "new"));
    lab.refused("/shop/mixed", Some(GOOD), 409, "two volumes");
    lab.make("path", pair("../../../../api/v1/namespaces/shop/secrets/key", "new"));
    lab.refused("/shop/path", Some(GOOD), 409, "no name of a volumesnapshot");
    assert!(lab.driver.calls().is_empty(), "no driver was asked");
}

#[test]
fn an_offset_is_good_for_its_own_snapshots() {
    let lab = Lab::new("differential-offsets");
    lab.delta("changed", &some_blocks(10));
    let page = lab.page("/shop/changed?maxEntries=10");
    let next = page["nextOffset"].as_str().expect("a text");
    let at = |name: &str, next: &str| format!("/shop/{name}?startOffset={next}");
    lab.page(&at("changed", next));
    let other = if next.ends_with('A') { 'Q' } else { 'A' };
    let turned = format!("{}{other}", &next[..next.len() - 1]);
    for bad in [&turned, &next[1..], "x", "-1"] {
        lab.refused(&at("changed", bad), Some(GOOD), 400, "startOffset");
    }
    lab.refused("/shop/changed?cursor=1", Some(GOOD), 400, "not known");
    lab.refused("/shop/changed?maxEntries=many", Some(GOOD), 400, "no number");
    // A list of the same target without the base.
    lab.make("used", json!({ "targetVolumeSnapshotName": "new" }));
    lab.refused(&at("used", next), Some(GOOD), 410, "other snapshots");
    // The target was made anew under its name.
    let [mut object, mut content] = snapshot("new", "shop", "vol");
    object["metadata"]["uid"] = "uid-2".into();
    content["spec"]["volumeSnapshotRef"]["uid"] = "uid-2".into();
    lab.api.put(object);
    lab.api.put(content);
    lab.refused(&at("changed", next), Some(GOOD), 410, "ask from the beginning");
}

#[test]
fn a_driver_that_is_gone_has_no_list() {
    let lab = Lab::new("differential-gone");
    lab.delta("changed", &some_blocks(11));
    let with = |code, words: &str| GrpcQuirks {
        token: Some(DRIVER_TOKEN.into()),
        status: Some((code, words.to_owned())),
        ..GrpcQuirks::default()
    };
    for (code, status) in [
        (Code::FailedPrecondition, 409),
        (Code::Unimplemented, 409),
        (Code::InvalidArgument, 409),
        (Code::Internal, 500),
        (Code::PermissionDenied, 500),
        (Code::Unavailable, 503),
    ] {
        lab.driver.set(with(code, "the driver's words"));
        lab.refused("/shop/changed", Some(GOOD), status, "the driver's words");
    }
    // It wants another token than before: a new one is asked for, once.
    let before = lab.api.state().asked.len();
    lab.driver.set(GrpcQuirks { token: Some("another".into()), ..GrpcQuirks::default() });
    lab.refused("/shop/changed", Some(GOOD), 500, "token is not good");
    assert_eq!((lab.api.state().asked.len(), lab.driver.calls().len()), (before + 1, 2));
    let Lab { driver, .. } = &lab;
    let address = driver.address().to_owned();
    lab.api.put(json!({
        "kind": "SnapshotMetadataService", "metadata": { "name": DRIVER },
        "spec": { "address": address, "audience": "drivers",
                  "caCert": base64::engine::general_purpose::STANDARD.encode("no certificate") },
    }));
    lab.refused("/shop/changed", Some(GOOD), 500, "certificate is not trusted");
    lab.api.remove("SnapshotMetadataService", None, DRIVER);
    lab.refused("/shop/changed", Some(GOOD), 409, "tells nobody what changed");
    lab.api.remove("DifferentialSnapshot", Some("shop"), "changed");
    lab.refused("/shop/changed", Some(GOOD), 404, "no such DifferentialSnapshot");
}

#[test]
fn clients_that_do_as_they_like_keep_nobody_out() {
    let head = Duration::from_secs(20);
    let lab = Lab::with(
        "differential-rude",
        false,
        ClientLimits { head, places: 4, ..ClientLimits::default() },
    );
    lab.delta("changed", &some_blocks(12));
    assert_eq!(
        lab.say("POST /shop/changed HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n").0,
        405
    );
    assert_eq!(lab.say("\u{1}\u{2}\u{3}\r\n\r\n").0, 400);
    let long = format!("GET /shop/{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(5000));
    assert_eq!(lab.say(&long).0, 414);
    let endless = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "a".repeat(70_000));
    assert!([0, 431].contains(&lab.say(&endless).0));
    // Half a head each, and one that asks for pages and reads none.
    let mut rude: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(lab.address).expect("it listens");
            stream.write_all(b"GET /shop/changed HTTP/1.1\r\nHos").expect("a connection");
            stream
        })
        .collect();
    let mut deaf = TcpStream::connect(lab.address).expect("it listens");
    let request =
        format!("GET /shop/changed HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {GOOD}\r\n\r\n");
    deaf.write_all(request.repeat(50).as_bytes()).expect("a connection");
    rude.push(deaf);
    lab.page("/shop/changed");
    drop(rude);
}

#[test]
fn the_status_says_whether_there_is_a_list_and_where() {
    let mut lab = Lab::new("differential-status");
    lab.delta("changed", &some_blocks(13));
    lab.make("gone", json!({ "targetVolumeSnapshotName": "none" }));
    let [mut object, content] = snapshot("slow", "shop", "vol");
    object["status"] = json!({});
    lab.api.put(object);
    lab.make("slow", json!({ "targetVolumeSnapshotName": "slow" }));
    // What was made before it began is listed.
    lab.restart();
    let status = lab.api.wait_status("changed", |status| status["state"] == "Success");
    let url = status["url"].as_str().expect("a URL");
    assert!(url.ends_with("/shop/changed") && url.starts_with("http://"), "{url}");
    let status = lab.api.wait_status("gone", |status| status["state"] == "Failure");
    assert!(status["error"].as_str().is_some_and(|why| why.contains("is not there")), "{status}");
    let status = lab.api.wait_status("slow", |status| !status["error"].is_null());
    assert!(status["state"].is_null(), "{status}");
    let [object, _] = snapshot("slow", "shop", "vol");
    lab.api.put(object);
    lab.api.put(content);
    let status = lab.api.wait_status("slow", |status| status["state"] == "Success");
    assert!(status["error"].is_null(), "{status}");
}

#[test]
fn a_backup_is_made_of_a_list() {
    let world = World::new("differential-backup");
    let lab = Lab::new("differential-backup-lab");
    let bytes = world.bytes();
    let spec = json!({ "baseVolumeSnapshotName": "old", "targetVolumeSnapshotName": "new" });
    lab.make("changed", spec);
    let changed = Blocks::delta(&world.old, &world.new);
    lab.driver.put(Some("h-old"), "shop/new", bytes, changed);
    world.backup(&world.old, "old", &[]);
    let (url, token) = (format!("{}/shop/changed", lab.url), lab.path("token"));
    let made = world.backup(
        &world.new,
        "new",
        &[
            "--base-snapshot",
            "old",
            "--changes-url",
            &url,
            "--changes-http",
            "--changes-token-file",
            text(&token),
            "--changes-page",
            "3",
            "--require",
            "delta",
        ],
    );
    assert_eq!(made["kind"], "delta", "{made}");
    assert!(!lab.driver.calls().is_empty());
    world.expect_restored(&world.new);
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}
